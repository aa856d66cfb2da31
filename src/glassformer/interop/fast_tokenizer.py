"""Tokenizers written as `tokenizer.json`, which Hugging Face's tokenizers and transformers.js read.

The ids of every text are ours. A tokenizer for which that can't be reached in both libraries is refused. Three things
look unusual in the file:

- The names of `</s>`, `<unk>` and `<pad>`, and of pieces that no text is split into, begin with a space. No text has a
  space there, so that a line with the words `</s>` in it is read as these four characters.
- They aren't listed among the added tokens, which both libraries look for in the raw text. The decoder leaves them out.
- There is no pre-tokenizer: sentencepiece splits the whole line, and all of a run of unknown characters is one `<unk>`.
"""

import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import RunError
from glassformer.files import write_json
from glassformer.interop.charsmap import read_rules
from glassformer.text.features import is_feature
from glassformer.text.model_file import ModelFile, Piece, PieceType, read_model_file
from glassformer.text.tokenizer import EOS, UNK, UNKNOWN, SubwordTokenizer, SymbolTokenizer, Tokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

FILE, SETTINGS, TARGET = "tokenizer.json", "tokenizer_config.json", "target"
"""Names of the files, and of the folder with those of a target that has a vocabulary of its own."""
_SPACE = "\u2581"
_NONCHARACTERS = [*map(chr, range(0xFDD0, 0xFDF0))]
"""Code points that no text should have, and that never get a character."""
_WHITE = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace())


def write_fast_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Write the files of both sides into `folder`; those of the target into a folder in it, if it has its own ids.

    RunError says which tokenizer can't be written, and why.
    """
    ours, theirs = fast_tokenizer(source, "source"), fast_tokenizer(target, "target")
    _write(folder, ours, source)
    if theirs != ours:
        (folder / TARGET).mkdir()
        _write(folder / TARGET, theirs, target)


def fast_tokenizer(tokenizer: Tokenizer, side: str) -> dict[str, Any]:
    """Return what `tokenizer.json` holds for a tokenizer; `side` names it in the RunError of one that can't be."""
    names = _names(tokenizer)
    if isinstance(tokenizer, SymbolTokenizer):
        normalizers, pre_tokenizer, model, decoders = _symbols(names)
    elif isinstance(tokenizer, SubwordTokenizer | VocabularyTokenizer):
        file = read_model_file(tokenizer.proto)
        _check(file, names, side)
        normalizers, pre_tokenizer, decoders = _normalizers(file, side), None, _decoders(file)
        by_scores = file.kind in ("unigram", "word") or bool(_defined(file))
        model = _unigram(file, names) if by_scores else _bpe(file, names, side)
    else:
        raise RunError(f"the {side} tokenizer is a {type(tokenizer).__name__}, which {FILE} has no form for")
    end = names[EOS]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
                {"SpecialToken": {"id": end, "type_id": 0}},
            ],
            "special_tokens": {end: {"id": end, "ids": [EOS], "tokens": [end]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what `tokenizer_config.json` holds for a tokenizer."""
    names = _names(tokenizer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names[EOS],
        "pad_token": names[-1],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # transformers would look for their names in the text
    }
    # Unknown tokens are read as ⁇; transformers would leave them out. For symbols transformers.js must know theirs.
    return settings | ({"unk_token": names[UNK]} if isinstance(tokenizer, SymbolTokenizer) else {})


def _write(folder: Path, content: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    write_json(folder / FILE, content)
    write_json(folder / SETTINGS, tokenizer_settings(tokenizer))


def _names(tokenizer: Tokenizer) -> list[str]:
    """Return the name of each id; that of a token that no text is split into begins with a space."""
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    if isinstance(tokenizer, SymbolTokenizer):
        special = {EOS, UNK, tokenizer.pad}
        return [f" {name}" if i in special else name for i, name in enumerate(names)]
    assert isinstance(tokenizer, SubwordTokenizer | VocabularyTokenizer)
    file = read_model_file(tokenizer.proto)
    matched = {piece.text for piece in file.pieces if piece.type in (PieceType.NORMAL, PieceType.USER_DEFINED)}
    end = " " if file.kind == "word" else ""  # see _normalizers
    return [f"{name}{end}" if name in matched else f" {name}" for name in names]


def _inexact(side: str, why: str) -> RunError:
    return RunError(
        f"the {side} tokenizer {why}: {FILE} can't hold that exactly; export --to ctranslate2 or huggingface"
    )


def _check(file: ModelFile, names: Sequence[str], side: str) -> None:
    """Raise RunError for what one of the two libraries can't do as sentencepiece does."""
    known = {name.strip(" ") for name in names}
    defined = _defined(file)
    overlapping = [text for text in defined if not is_feature(text)]  # as features never do
    unfit = {"unigram": [], "char": overlapping}.get(file.kind, defined)
    whole = [text for text in defined if unicodedata.normalize("NFD", text) != text] if file.charsmap else []
    normal = [piece.text for piece in file.pieces if piece.type == PieceType.NORMAL]
    characters = {text for text in [*normal, *defined] if len(text) == 1}
    lost = [text for text in normal if text not in known]
    apart = [text for text in normal if file.kind in ("unigram", "bpe") and not characters.issuperset(text)]
    others = sorted(known.difference(piece.text for piece in file.pieces) - {"<pad>"})
    languages = [name for name in others if name.startswith(">>") and name.endswith("<<")]
    unknown = [name for name in others if characters.isdisjoint(name)]
    for refused, why in (
        (file.byte_fallback, "splits unknown characters into bytes, which transformers.js reads otherwise"),
        (file.spaces_end_pieces, "puts spaces at the end of words (treat_whitespace_as_suffix)"),
        (not file.escape_whitespaces, "leaves spaces as they are (escape_whitespaces)"),
        (file.rules_to_decode, "changes characters when decoding (denormalizer_spec)"),
        (unfit, f"has symbols of its user in a {file.kind} model"),
        (whole, f"reads characters as their parts, but not in {whole[:1]}"),
        (any(" " in text for text in defined), "has symbols of its user with spaces"),
        ("$" in file.unk_surface, "reads an unknown token as text with a $"),
        (languages, f"takes the code of a language at the beginning of a line, such as {languages[:1]}"),
        (unknown, f"gives some unknown texts an id, such as {unknown[:1]}"),
        (lost, f"splits text into pieces that have no id of their own, such as {lost[:1]}"),
        (apart, f"has pieces with characters that are no pieces themselves, such as {apart[:1]}"),
    ):
        if refused:
            raise _inexact(side, why)


def _defined(file: ModelFile) -> list[str]:
    """Return the symbols of the model's user, which are found in the text before all else."""
    return [piece.text for piece in file.pieces if piece.type == PieceType.USER_DEFINED]


def _normalizers(file: ModelFile, side: str) -> list[dict[str, Any]]:
    """Return the steps from text to what is split."""
    steps = _decomposition(file, side)
    if file.remove_extra_whitespaces:
        # At the end, but not at the beginning, sentencepiece takes the sign for a space too.
        steps += [_regex(rf"\A +|[ {_SPACE}]+\z", ""), _regex(" +", _SPACE)]
    else:
        steps += [_string(" ", _SPACE)]
    if file.add_dummy_prefix:
        steps += [_regex(r"\A(?=[\s\S])", _SPACE)]
    if file.kind == "word":
        # A space ends each word, and is part of the names: so only whole words are found.
        steps += [_regex(rf"(?<=[\s\S])(?={_SPACE})|(?<=[\s\S])\z", " ")]
    return steps


def _decomposition(file: ModelFile, side: str) -> list[dict[str, Any]]:
    """Return the steps that read characters as their parts; none for a model that leaves characters as they are."""
    if not file.charsmap:
        return []
    expected = {
        c: parts for c in map(chr, range(sys.maxunicode + 1)) if (parts := unicodedata.normalize("NFD", c)) != c
    }
    try:
        for text, result in read_rules(file.charsmap):
            if expected.pop(text, None) != result:
                raise _inexact(
                    side,
                    f"has rules for characters of its own, such as {text!r} to {result!r}, and transformers.js "
                    "knows no such rules",
                )
    except ValueError as error:
        raise _inexact(side, f"has rules for characters that can't be read: {error}") from None
    known = {character for piece in file.pieces for character in piece.text}
    if newer := [c for c, parts in expected.items() if c in known or known.intersection(parts)]:
        raise _inexact(side, f"leaves {newer[0]!r} whole, and transformers.js would read its parts")
    # NFD sorts the accents of a character; the rules don't. A mark before each accent keeps them where they are.
    mark, other = [c for c in _NONCHARACTERS if c not in known][:2]
    return [_string(mark, other), _regex(r"(?<=[\s\S])(?=\p{M})", mark), {"type": "NFD"}, _string(mark, "")]


def _decoders(file: ModelFile) -> list[dict[str, Any]]:
    """Return the steps from names to text."""
    return [
        _regex(r"\A </s>\z|\A <pad>\z|\A (?!<unk>\z)| \z", ""),
        _regex(r"\A <unk>\z", file.unk_surface),
        _string(_SPACE, " "),
        {"type": "Fuse"},
        _regex(r"\A +| +\z", ""),
    ]


def _unigram(file: ModelFile, names: Sequence[str]) -> dict[str, Any]:
    """Return the model that takes the splitting with the best sum of scores.

    In a word model each word is a piece, and there is no better one than the whole.
    """
    whole_words = {f"{piece.text} ": 0.0 for piece in file.pieces}
    scores = whole_words if file.kind == "word" else _scores(file.pieces)
    return {
        "type": "Unigram",
        "unk_id": UNK,
        "vocab": [[name, scores.get(name, 0.0)] for name in names],
        "byte_fallback": False,
    }


def _scores(pieces: Sequence[Piece]) -> dict[str, float]:
    """Return the scores of pieces; sentencepiece gives symbols of its user one that nearly always wins."""
    scores = {piece.text: piece.score for piece in pieces if piece.type == PieceType.NORMAL}
    best = max(0.0, *scores.values())
    defined = [piece.text for piece in pieces if piece.type == PieceType.USER_DEFINED]
    return scores | {text: len(text.encode()) * best - 0.1 for text in defined}


def _bpe(file: ModelFile, names: Sequence[str], side: str) -> dict[str, Any]:
    """Return the model that joins the two neighbours whose union has the best score, again and again."""
    vocabulary = {name: i for i, name in enumerate(names)}
    merges = []
    if file.kind == "bpe":
        joined = [piece for piece in file.pieces if piece.type == PieceType.NORMAL and len(piece.text) > 1]
        twice = [score for score, count in Counter(piece.score for piece in joined).items() if count > 1]
        if twice:
            raise _inexact(side, f"is a bpe model with pieces of equal score ({twice[0]:g})")
        for piece in sorted(joined, key=lambda piece: -piece.score):
            splits = ((piece.text[:n], piece.text[n:]) for n in range(1, len(piece.text)))
            merges += [[left, right] for left, right in splits if left in vocabulary and right in vocabulary]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": names[UNK],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _symbols(names: Sequence[str]) -> tuple[list, dict[str, Any], dict[str, Any], list]:
    """Return normalizers, pre-tokenizer, model and decoders of symbols that stand between spaces."""
    spaces = {
        "type": "Split",
        "pattern": {"Regex": f"[{_WHITE}]+"},
        "behavior": "Removed",
        "invert": False,
    }
    model = {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(names)}, "unk_token": names[UNK]}
    decoders = [
        _string(names[UNK], UNKNOWN),
        _regex(r"\A </s>\z|\A <pad>\z", ""),
        _regex(r"\A(?=[\s\S])", " "),
        {"type": "Fuse"},
        _regex(r"\A ", ""),
    ]
    return [], spaces, model, decoders


def _regex(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _string(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}
