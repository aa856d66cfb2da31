"""Tokenizers, from text to token ids and back: sentencepiece models trained on the user's text, or symbols at spaces.

Ids follow the Marian layout: `</s>` = 0, `<unk>` = 1, `<pad>` = the last.
"""

import io
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from glassformer.decoding import MOST_BYTES, read_limited
from glassformer.errors import ArgumentError, ConfigError, DataError, check_texts, shown
from glassformer.pairs.lines import LONGEST_LINE
from glassformer.text.decomposition import decomposition_rules
from glassformer.text.features import find_features, is_feature
from glassformer.text.kinds import KINDS, SUBWORD_ENDINGS
from glassformer.text.model_file import with_round_scores
from glassformer.text.units import HALF

EOS, UNK = 0, 1
UNKNOWN = "⁇"
LINE_END = "\r\n"
"""The characters that may end a line that was read from a file."""
LEAST = 4
"""Fewest ids of any vocabulary: `</s>`, `<unk>`, one token, `<pad>`."""
FEWEST, MOST, ROOM = 500, 32_000, 100
"""Fewest and most ids of a vocabulary whose size the text decides, and its fewest ids beyond the characters."""
ENDINGS = (".spm", ".symbols")


class Tokenizer(ABC):
    """Turns text into token ids and back, for one side. A line end that a line still has is no part of its text.

    Example: docs/reference/run_folder.md.
    """

    vocab_size: int
    """Number of ids, `<pad>` included."""
    pad: int
    """The id of `<pad>`, the last."""
    languages: Sequence[str] = ()
    """Codes of languages, each a token, that a line may begin with, such as >>deu<<."""

    @abstractmethod
    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, without `</s>`."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence as one line, without `</s>` and `<pad>`; an unknown token reads ⁇."""

    @abstractmethod
    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id, as it stands in the vocabulary."""

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return what each id adds to a text, with the space before it if it has one; "" for `</s>` and the unknown."""
        tokens = zip(ids, self.tokens(ids), strict=True)
        return ["" if i in (EOS, UNK, self.pad) else token.replace("\u2581", " ") for i, token in tokens]

    @abstractmethod
    def id_of(self, token: str) -> int | None:
        """Return the id of a token as it stands in the vocabulary; None for other texts, and for `<pad>`."""

    @abstractmethod
    def surfaces(self, line: str) -> list[str]:
        """Return the text that each token of `encode` stands for, without outer spaces; "" where there is none.

        It is as the vocabulary writes it, which may normalise the line's.
        """

    @abstractmethod
    def spans(self, line: str) -> list[tuple[int, int]]:
        """Return where each token of `encode` begins and ends in the line, by its characters, without outer spaces.

        One that stands for none of them, such as a lone space, begins and ends at the same place.
        """

    @cached_property
    def can_sample(self) -> bool:
        """Return whether text can be split in other ways: not where tokens are characters, words or symbols."""
        return False

    def sample(self, lines: Sequence[str], seed: int) -> list[list[int]]:
        """Return the ids of each line as `encode` does, but split into pieces at random, where that can be.

        The same lines and seed give the same ids only in the same process: sentencepiece mixes in a number of the
        process's own. A bpe model leaves out each merge with probability 0.1 (BPE-dropout, Provilkov et al. 2020); a
        unigram model draws a splitting with its probability to the power of 0.2 (Kudo 2018).
        """
        return self.encode(lines)

    @property
    def is_characterwise(self) -> bool:
        """Return whether each token is a character, a feature or a symbol: what is read so is mostly a word."""
        return all(len(text) < 2 or is_feature(text) for text in self.texts(range(self.vocab_size)))

    def unknown(self, lines: Sequence[str]) -> list[str]:
        """Return the pieces of these lines that have no id of their own, each once, in their order; no spaces."""
        found: dict[str, None] = {}
        for line, ids in zip(lines, self.encode(lines), strict=True):
            if UNK in ids:
                pieces = zip(self.surfaces(line), ids, strict=True)
                found |= {piece: None for piece, i in pieces if i == UNK and piece}
        return list(found)

    @abstractmethod
    def save(self, stem: Path) -> Path:
        """Write the tokenizer to `stem` with its own ending and return the path."""


class SentencepieceTokenizer(Tokenizer):
    """A tokenizer that has a sentencepiece model."""

    suffix = ".spm"

    def __init__(self, proto: bytes) -> None:
        self.proto = proto
        self._processor = read_sentencepiece(proto)

    @cached_property
    def can_sample(self) -> bool:
        try:
            self._processor.encode("", enable_sampling=True, alpha=0.5, nbest_size=-1)
        except RuntimeError:
            return False
        return True

    @cached_property
    def _merges(self) -> bool:
        """Return whether it is a bpe model: its scores are numbers of merges, others' are log-probabilities."""
        return all(self._processor.get_score(i).is_integer() for i in range(self._processor.get_piece_size()))

    def _sampled(self, lines: Sequence[str], seed: int, kind: type) -> list[list[Any]]:
        """Return the pieces of each line as `sample` splits them: their names (str), or the model's numbers (int)."""
        sentencepiece.set_random_generator_seed(seed)  # only threads that a call starts heed it
        alpha = 0.1 if self._merges else 0.2
        return self._split(lines, kind, enable_sampling=True, alpha=alpha, nbest_size=-1)

    def _split(self, lines: Sequence[str], kind: type, **how: Any) -> list[list[Any]]:
        """Return the pieces of each line: their names (str), or the model's numbers (int)."""
        texts = [line.rstrip(LINE_END) for line in lines]
        return self._processor.encode(texts, out_type=kind, num_threads=1, **how)  # the cores are shared out elsewhere


def as_line(text: str) -> str:
    """Return a text that sentencepiece has joined as one line, without the spaces around it.

    Other white space stays, such as that which indents Chinese paragraphs.
    """
    return text.replace("\n", " ").strip(" ")


class SubwordTokenizer(SentencepieceTokenizer):
    """A sentencepiece model (Kudo and Richardson 2018).

    Where every character stood in the training text, `decode(encode(text))` is `text` with runs of spaces made one and
    outer spaces removed. Sentencepiece reserves three characters: U+2581 (▁) stands for the space and reads back as
    one; U+2585 (▅), its own mark of the unknown, and U+0000 are lost. A user's .model file may normalise more (often
    NFKC).

    >>> tokenizer = SubwordTokenizer.train(["3 May 2024", "1 June 1999"], kind="char", vocab_size=None, seed=1)
    >>> tokenizer.decode(tokenizer.encode(["9 May 1024"]))
    ['9 May 1024']
    """

    def __init__(self, proto: bytes) -> None:
        super().__init__(proto)
        if self._processor.eos_id() < 0:
            raise DataError("a sentencepiece model must have the piece </s>: train it without --eos_id=-1")
        # Models that glassformer trained have our ids already; others may have <unk> = 0, <s> = 1, </s> = 2.
        first = [self._processor.eos_id(), self._processor.unk_id()]
        left_out = {*first, self._processor.bos_id(), self._processor.pad_id()}
        self._pieces = first + [i for i in range(self._processor.get_piece_size()) if i not in left_out]
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._same = self._pieces == list(range(len(self._pieces)))
        self.pad = len(self._pieces)
        self.vocab_size = self.pad + 1

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        kind: str,
        vocab_size: int | None,
        seed: int,
        coverage: float = 1.0,
        decompose: bool = False,
    ) -> "SubwordTokenizer":
        """Train a vocabulary of `vocab_size` ids; None chooses by the length of the text.

        Of more than two million lines a sample is used. `coverage` is the share of characters that get ids of their
        own. With `decompose` a character that has parts is read as these (see `decomposition_rules`), here and later.
        The kind features is char with the features of the text (`find_features`) as tokens. Raises ConfigError where
        the size doesn't fit the text, DataError where there is no text, or too many features.
        """
        lines = [line for line in lines if line.strip()]
        features = find_features(lines) if kind == "features" else []
        size = _fitting_size(lines) + len(features) if vocab_size is None else vocab_size
        if size < (least := len(features) + LEAST):
            raise ConfigError(f"vocab_size {size} cannot hold every feature of this text: give at least {least}")
        model = io.BytesIO()
        sentencepiece.set_random_generator_seed(seed)
        try:
            with decomposition_rules() if decompose else nullcontext() as rules:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=iter(lines),
                    model_writer=model,
                    model_type="char" if kind == "features" else kind,
                    user_defined_symbols=features,
                    vocab_size=size - 1,  # <pad> is ours
                    hard_vocab_limit=False,  # too large a vocabulary is refused below, alike for every kind
                    eos_id=EOS,
                    unk_id=UNK,
                    bos_id=-1,
                    pad_id=-1,
                    unk_surface=f" {UNKNOWN}"
                    if kind == "word"
                    else UNKNOWN,  # elsewhere the space is a token of its own
                    normalization_rule_name="identity",  # but for the rules, if there are any
                    normalization_rule_tsv="" if rules is None else str(rules),
                    character_coverage=coverage,
                    max_sentence_length=1 << 16,
                    input_sentence_size=2_000_000,
                    shuffle_input_sentence=True,
                    num_threads=2,  # part of the result: fixed, not the machine's
                    minloglevel=2,
                )
        except RuntimeError as error:
            raise _training_error(kind, size, str(error)) from None
        proto = model.getvalue()
        tokenizer = cls(with_round_scores(proto) if kind == "unigram" else proto)
        if vocab_size is not None and tokenizer.vocab_size < vocab_size:
            raise ConfigError(
                f"vocab_size {vocab_size} is larger than this text allows for a {kind} tokenizer: "
                f"give at most {tokenizer.vocab_size}, or leave it out"
            )
        return tokenizer

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self._as_ids(self._split(lines, int))

    def sample(self, lines: Sequence[str], seed: int) -> list[list[int]]:
        return self._as_ids(self._sampled(lines, seed, int))

    def _as_ids(self, rows: list[list[int]]) -> list[list[int]]:
        """Return our ids for the model's own numbers of the pieces."""
        return rows if self._same else [[self._ids[piece] for piece in row] for row in rows]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        kept = ([self._pieces[i] for i in row if i not in (EOS, self.pad)] for row in ids)
        # Each by itself: for several together, or a list of one, sentencepiece starts threads and waits for them.
        texts = (self._processor.decode(row) if row else "" for row in kept)
        return [as_line(text) for text in texts]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return ["<pad>" if i == self.pad else self._processor.id_to_piece(self._pieces[i]) for i in ids]

    def id_of(self, token: str) -> int | None:
        i = self._ids.get(self._processor.piece_to_id(token))  # that of <unk> for all that it doesn't know
        return i if i is not None and self.tokens([i]) == [token] else None

    def surfaces(self, line: str) -> list[str]:
        return piece_surfaces(self._processor, line)

    def spans(self, line: str) -> list[tuple[int, int]]:
        return piece_spans(self._processor, line)

    def save(self, stem: Path) -> Path:
        path = stem.with_suffix(self.suffix)
        path.write_bytes(self.proto)
        return path


class SymbolTokenizer(Tokenizer):
    """Symbols split at white space, such as phones: `K AE T` is three tokens. Ids are in the order of frequency.

    >>> tokenizer = SymbolTokenizer(["AE", "K", "T"])
    >>> tokenizer.encode(["K AE T"]), tokenizer.vocab_size  # </s> = 0, <unk> = 1, <pad> is the last
    ([[3, 2, 4]], 6)
    >>> tokenizer.decode([[3, 2, 4]])
    ['K AE T']
    """

    suffix = ".symbols"

    def __init__(self, symbols: Sequence[str]) -> None:
        self._symbols = ["</s>", "<unk>", *symbols, "<pad>"]
        self._ids = {symbol: UNK + 1 + i for i, symbol in enumerate(symbols)}
        self.vocab_size = len(self._symbols)
        self.pad = self.vocab_size - 1

    @classmethod
    def train(cls, lines: Iterable[str], *, vocab_size: int | None) -> "SymbolTokenizer":
        """Take every symbol of the text (or of a Counter of symbols), or the most frequent `vocab_size` - 3 of them."""
        counts = lines if isinstance(lines, Counter) else count_symbols(lines)
        if not counts:
            raise DataError("no text to learn a tokenizer from: every line is empty")
        symbols = [symbol for symbol, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
        if vocab_size is not None:
            if vocab_size > len(symbols) + 3:
                raise ConfigError(
                    f"vocab_size {vocab_size} is larger than this text allows for a symbols tokenizer: "
                    f"give at most {len(symbols) + 3}, or leave it out"
                )
            symbols = symbols[: vocab_size - 3]
        return cls(symbols)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(symbol, UNK) for symbol in line.split()] for line in lines]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(self._surface(i) for i in row if i not in (EOS, self.pad)) for row in ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._symbols[i] for i in ids]

    def texts(self, ids: Sequence[int]) -> list[str]:
        tokens = zip(ids, self.tokens(ids), strict=True)
        return ["" if i in (EOS, UNK, self.pad) else f" {token}" for i, token in tokens]

    @property
    def is_characterwise(self) -> bool:
        return True

    def id_of(self, token: str) -> int | None:
        return self._ids.get(token, {"</s>": EOS, "<unk>": UNK}.get(token))

    def surfaces(self, line: str) -> list[str]:
        return line.split()

    def spans(self, line: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer(r"\S+", line)]

    def save(self, stem: Path) -> Path:
        path = stem.with_suffix(self.suffix)
        path.write_text("".join(f"{symbol}\n" for symbol in self._symbols[UNK + 1 : -1]), encoding="utf-8")
        return path

    def _surface(self, i: int) -> str:
        return UNKNOWN if i == UNK else self._symbols[i]


def check_lines(name: str, lines: Sequence[str]) -> None:
    """Raise ArgumentError unless these are a sequence of str that can be encoded."""
    check_texts(name, lines)
    for i, line in enumerate(lines):
        if len(line) > LONGEST_LINE:
            raise ArgumentError(
                f"{name}[{i}] must be at most {LONGEST_LINE:,} characters long, got {len(line):,}: split it"
            )
        if not line.isascii() and HALF.search(line):
            raise ArgumentError(f"{name}[{i}] has half a surrogate pair, which is no character: take it out")


def train_tokenizer(
    lines: Iterable[str],
    *,
    kind: str,
    vocab_size: int | None,
    seed: int,
    coverage: float = 1.0,
    decompose: bool = False,
) -> Tokenizer:
    """Train a tokenizer of this kind on `lines`; for symbols `lines` may be a Counter of them.

    `kind` is one of `KINDS`, or the path of a sentencepiece model with one of `SUBWORD_ENDINGS`, which is read. Raises
    ConfigError where kind and size can't be, DataError where text or model can't be used.

    >>> tokenizer = train_tokenizer(["K AE T", "B AE T"], kind="symbols", vocab_size=None, seed=1)
    >>> tokenizer.encode(["B AE T"]), tokenizer.decode([[4, 2, 3, 0]])
    ([[4, 2, 3]], ['B AE T'])
    """
    if kind.endswith(SUBWORD_ENDINGS):
        if vocab_size is not None:
            raise ConfigError(f"vocab_size {vocab_size} can't be chosen for {kind}, which has a size: leave it out")
        check_kind(kind)
        return read_subwords(Path(kind))
    if vocab_size is not None and vocab_size < LEAST:
        raise ConfigError(f"vocab_size must be at least {LEAST} (</s>, <unk>, one token, <pad>), got {vocab_size}")
    if kind == "symbols":
        return SymbolTokenizer.train(lines, vocab_size=vocab_size)
    check_kind(kind)
    return SubwordTokenizer.train(
        lines, kind=kind, vocab_size=vocab_size, seed=seed, coverage=coverage, decompose=decompose
    )


def count_symbols(lines: Iterable[str]) -> Counter[str]:
    """Return how often each symbol stands in the lines."""
    return Counter(symbol for line in lines for symbol in line.split())


def read_sentencepiece(proto: bytes) -> sentencepiece.SentencePieceProcessor:
    """Read a sentencepiece model from the bytes of its file; raise DataError where they are none."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(proto)
    except (RuntimeError, UnicodeDecodeError) as error:  # its message may quote bytes that are no text
        raise DataError(f"not a sentencepiece model: {error}") from None
    return processor


def piece_surfaces(processor: sentencepiece.SentencePieceProcessor, line: str) -> list[str]:
    """Return the text that each piece of a line stands for, without outer spaces."""
    pieces = processor.encode(line.rstrip(LINE_END), out_type=str)
    return [piece.replace("\u2581", " ").strip() for piece in pieces]


def piece_spans(processor: sentencepiece.SentencePieceProcessor, line: str) -> list[tuple[int, int]]:
    """Return where each piece of a line begins and ends in it, without outer spaces, whatever the model normalises."""
    spans = list[tuple[int, int]]()
    for start, end in processor.encode(line.rstrip(LINE_END), return_type="offset_mapping")["offsets"]:
        text = line[start:end]
        stripped = text.strip()
        start += text.index(stripped)  # a lone space begins where it stands
        spans.append((start, start + len(stripped)))
    return spans


def check_kind(kind: str) -> None:
    """Raise ConfigError where `kind` isn't one of `KINDS`, DataError where it names a model that doesn't exist."""
    if kind.endswith(SUBWORD_ENDINGS):
        if not Path(kind).exists():
            raise DataError(f"{kind}: no such sentencepiece model")
    elif kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise ConfigError(f"tokenizer must be one of {kinds}, or the path of a .model or .spm file, got {shown(kind)}")


def read_model(path: Path) -> bytes:
    """Return the bytes of a sentencepiece model's file; raise DataError where it can't be one."""
    return read_limited(path, MOST_BYTES, error=DataError)


def read_subwords(path: Path) -> SubwordTokenizer:
    """Read the sentencepiece model in a file; raise DataError, which names the file, where there is none."""
    try:
        return SubwordTokenizer(read_model(path))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _fitting_size(lines: Sequence[str]) -> int:
    """Return how many ids suit a text: ten times the square root of its words, of which a word has six characters.

    29,000 sentences of English and German get 8,000, a thousand of them 1,500: of more, most would be too rare to
    learn. There is room for every character.
    """
    size = max(FEWEST, min(MOST, round(10 * math.sqrt(sum(map(len, lines)) / 6))))
    return max(size, len(set().union(*lines)) + ROOM)


def _training_error(kind: str, size: int, reason: str) -> Exception:
    """Return the error to raise where sentencepiece's trainer gave up for this reason."""
    if match := re.search(r"smaller than required_chars. \d+ vs (\d+)", reason):
        least = int(match[1]) + 1
        return ConfigError(
            f"vocab_size {size} cannot hold every character of this text: give at least {least}, "
            "or lower character_coverage below 1"
        )
    if "sentences_.empty()" in reason:
        return DataError("no text to learn a tokenizer from: every line is empty or longer than 65,536 bytes")
    return DataError(f"sentencepiece could not learn a {kind} tokenizer: {reason}")
