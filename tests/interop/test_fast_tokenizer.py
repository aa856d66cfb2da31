"""tokenizer.json gives the ids and texts of our tokenizers, in Hugging Face's library and in transformers.js."""

import io
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from glassformer.errors import RunError
from glassformer.interop.fast_tokenizer import fast_tokenizer, tokenizer_settings, write_fast_tokenizers
from glassformer.text.tokenizer import SubwordTokenizer, SymbolTokenizer, Tokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

tokenizers = pytest.importorskip("tokenizers")

LINES = [
    "a man rides a red bike in 2000",
    "two dogs run on the grass, ha haha!",
    "ein Mann fährt é é über 100000 Räder",
    "한국어 Việt 日本語 100%",
    "aaaa aa aaa aaaaaa abab ababab baba",
] * 4
ODD = [
    "</s>",
    "a</s>b <unk><pad>",
    "<unk>",
    "",
    " ",
    "   ",
    "  a  man ",
    "a\0b",
    "a\tb\nc",
    "a▁▁b",
    "▁a ▁",
    "▅⁇",
    "e\u0301 a\u0323\u0302 a\u0302\u0323 \u0301\u0301a",
    "\ufdd0 a\ufdd0\u0301",
    "a\u00a0b\u3000c\x85d\x1ce\u200bf",
    "😀a😀😀 𝒳",
    "日本 語 Z Z",
    "10000 00000 hahahaha aaaaaaaaaaaa",
    "$& $1 \\A",
    "<V><PST>man <é>a<N> <PST",
]
PIECES = [
    "<V>",
    "<PST>",
    "<é>",
    "a",
    "b",
    "aa",
    " ",
    "  ",
    "man ",
    "0",
    "00",
    "ha",
    "é",
    "\u0301",
    "\u0323",
    "한",
    "▁",
    "Q",
    "</s>",
    "\0",
    "\t",
]
"""Parts of random lines."""


def with_options(kind: str = "unigram", **options: Any) -> SubwordTokenizer:
    """A model as its user trained it, with sentencepiece's own program."""
    model = io.BytesIO()
    settings = dict(normalization_rule_name="identity", hard_vocab_limit=False, minloglevel=2, vocab_size=90)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type=kind, **{**settings, **options}
    )
    return SubwordTokenizer(model.getvalue())


def ours(kind: str, **options: Any) -> SubwordTokenizer:
    return SubwordTokenizer.train(LINES, kind=kind, vocab_size=None, seed=1, **options)


def with_features(**options: Any) -> SubwordTokenizer:
    lines = [*LINES, "<V><PST>a man", "<é>a <V>"]
    return SubwordTokenizer.train(lines, kind="features", vocab_size=None, seed=1, **options)


def by_vocabulary() -> VocabularyTokenizer:
    """A tokenizer of the Marian layout, whose ids are in an order of its own and fill up to a larger vocabulary."""
    made = ours("unigram")
    pieces = ["</s>", "<unk>", *sorted(made.tokens(range(2, made.pad))), "<unused_0>", "<pad>"]
    return VocabularyTokenizer(made.proto, {piece: i for i, piece in enumerate(pieces)})


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    kinds = {kind: ours(kind) for kind in ("unigram", "bpe", "char", "word")}
    return kinds | {
        "decomposed": ours("unigram", decompose=True),
        "symbols": SymbolTokenizer(["a", "man", "</s>", "<unk>", "b"]),
        "vocabulary": by_vocabulary(),
        "spaces kept": with_options("bpe", remove_extra_whitespaces=False),
        "no space first": with_options("bpe", add_dummy_prefix=False),
        "features": with_features(),
        "symbols of the user": with_options(user_defined_symbols=["<sep>", "Q", "ab"], vocab_size=70),
    }


NAMES = [
    *("unigram", "bpe", "char", "word", "decomposed", "symbols", "vocabulary"),
    *("spaces kept", "no space first", "features", "symbols of the user"),
]
ROUND = [name for name in NAMES if name != "symbols of the user"]
"""Where scores aren't round numbers, one of several equally good splittings may be taken elsewhere."""


@pytest.fixture(scope="module")
def read(made) -> dict[str, Any]:
    """The files, read by Hugging Face's library."""
    return {
        name: tokenizers.Tokenizer.from_str(json.dumps(fast_tokenizer(one, "source"))) for name, one in made.items()
    }


def expected(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    return [[*ids, 0] for ids in tokenizer.encode(lines)]


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_texts_are_ours(made, read, name):
    lines = [*LINES, *ODD]
    ids = [encoding.ids for encoding in read[name].encode_batch(lines)]
    assert ids == expected(made[name], lines)
    texts = made[name].decode(ids)
    assert read[name].decode_batch(ids, skip_special_tokens=True) == texts
    assert read[name].decode_batch(ids, skip_special_tokens=False) == texts


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_line_has_our_ids(made, read, data):
    name = data.draw(st.sampled_from(ROUND))
    parts = st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"]))
    line = "".join(data.draw(st.lists(parts, max_size=25)))
    assert read[name].encode(line).ids == expected(made[name], [line])[0]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_ids_have_our_text(made, read, data):
    name = data.draw(st.sampled_from(NAMES))
    ids = data.draw(st.lists(st.integers(0, made[name].pad), max_size=15))
    assert read[name].decode(ids, skip_special_tokens=True) == made[name].decode([ids])[0]


def test_transformers_js_has_our_ids_and_texts(made, transformers_js):
    draw = random.Random(5)
    drawn = ["".join(draw.choices(PIECES, k=draw.randint(1, 30))) for _ in range(99)]
    lines = {name: [*LINES[:5], *ODD, *(drawn if name in ROUND else [])] for name in made}
    ids = {name: [[draw.randrange(one.vocab_size) for _ in range(9)] for _ in range(30)] for name, one in made.items()}
    tasks = [
        dict(file=fast_tokenizer(one, "source"), settings=tokenizer_settings(one), lines=lines[name], ids=ids[name])
        for name, one in made.items()
    ]
    answers = dict(zip(made, transformers_js("tokenize.mjs", tasks), strict=True))
    for name, one in made.items():
        found = zip(lines[name], answers[name]["ids"], expected(one, lines[name]), strict=True)
        assert [(name, line) for line, theirs, ours in found if theirs != ours] == []
        assert answers[name]["texts"] == one.decode(ids[name])


def with_rules(units: dict[int, int], results: bytes = b"a\0", size: int = 256) -> SubwordTokenizer:
    """Return a model whose rules for characters are this double array, which sentencepiece takes as it is."""
    model = sentencepiece_model_pb2.ModelProto.FromString(ours("char").proto)
    trie = struct.pack(f"<{size}I", *(units.get(n, 0) for n in range(size)))
    model.normalizer_spec.precompiled_charsmap = struct.pack("<I", len(trie)) + trie + results
    return SubwordTokenizer(model.SerializeToString())


def unit(place: int, child: int, label: int = 0, *, has_value: bool = False) -> int:
    """Return a unit of a double array, whose children begin at `child`."""
    return (place ^ child) << 10 | label | 256 * has_value


def two_ways_to_each(levels: int) -> dict[int, int]:
    """Return a double array in which 2 ** levels keys lead to the same value."""
    places = {4 * n + label: (n, label) for n in range(1, levels + 1) for label in (1, 2)}
    units = {at: unit(at, 4 * n + 4, label, has_value=n == levels) for at, (n, label) in places.items()}
    return {0: unit(0, 4), 4 * levels + 4: 1 << 31} | units


ONE_RULE = {0: unit(0, 4), 4 ^ 97: unit(4 ^ 97, 8, 97, has_value=True), 8: 1 << 31}
"""The rule for the character a."""

REFUSED: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "a rule that is no text": (
        lambda: with_rules(ONE_RULE, b"\xff\0"),
        "^the source tokenizer has rules for characters that can't be read: 'utf-8' codec can't decode byte 0xff in ",
    ),
    "rules without end": (
        lambda: with_rules(two_ways_to_each(40)),
        "^the source tokenizer has rules for characters that can't be read: there are too many: ",
    ),
    "one rule": (
        lambda: with_rules(ONE_RULE),
        "has rules for characters of its own, such as 'a' to 'a', and transformers.js",
    ),
    "rules of its own": (
        lambda: with_options(normalization_rule_name="nmt_nfkc"),
        "the source tokenizer has rules for characters of its own, such as '.*' to '.*', and transformers.js",
    ),
    "bytes": (
        lambda: with_options("bpe", byte_fallback=True, vocab_size=350),
        "the source tokenizer splits unknown characters into bytes, which transformers.js reads otherwise",
    ),
    "spaces at the end": (
        lambda: with_options(treat_whitespace_as_suffix=True),
        r"puts spaces at the end of words \(treat_whitespace_as_suffix\)",
    ),
    "symbols in bpe": (
        lambda: with_options("bpe", user_defined_symbols=["<sep>"]),
        "has symbols of its user in a bpe model",
    ),
    "overlapping symbols": (
        lambda: with_options("char", user_defined_symbols=["ab", "bc"]),
        "has symbols of its user in a char model",
    ),
    "parts of characters but in features": (
        lambda: with_features(decompose=True),
        r"reads characters as their parts, but not in \['<é>'\]",
    ),
    "pieces without an id": (
        lambda: VocabularyTokenizer(ours("char").proto, {"</s>": 0, "<unk>": 1, "a": 2, "<pad>": 3}),
        r"splits text into pieces that have no id of their own, such as \['▁'\]: tokenizer.json can't",
    ),
    "languages": (
        lambda: VocabularyTokenizer(
            ours("char").proto,
            {name: i for i, name in enumerate([*ours("char").tokens(range(ours("char").pad)), ">>de<<", "<pad>"])},
        ),
        r"takes the code of a language at the beginning of a line, such as \['>>de<<'\]",
    ),
    "pieces of the other side": (
        lambda: VocabularyTokenizer(
            ours("char").proto,
            {name: i for i, name in enumerate([*ours("char").tokens(range(ours("char").pad)), "ßß", "<pad>"])},
        ),
        r"gives some unknown texts an id, such as \['ßß'\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_exactly_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(RunError, match=message):
        fast_tokenizer(make(), "source")


def test_a_target_with_ids_of_its_own_has_a_folder(made, tmp_path, tree):
    write_fast_tokenizers(tmp_path, made["unigram"], made["unigram"])
    assert list(tree(tmp_path)) == ["tokenizer.json", "tokenizer_config.json"]
    (tmp_path / "two").mkdir()
    write_fast_tokenizers(tmp_path / "two", made["unigram"], made["bpe"])
    names = [
        "target",
        "target/tokenizer.json",
        "target/tokenizer_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert list(tree(tmp_path / "two")) == names
    target = tokenizers.Tokenizer.from_file(str(tmp_path / "two/target/tokenizer.json"))
    assert target.encode(LINES[0]).ids == expected(made["bpe"], LINES[:1])[0]
