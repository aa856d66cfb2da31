"""The page's tokenizer gives the ids and texts of ours, on lines that nobody meant."""

import random

import pytest

from glassformer.interop.fast_tokenizer import fast_tokenizer
from glassformer.text.kinds import KINDS
from glassformer.text.tokenizer import Tokenizer, train_tokenizer

WORDS = [
    "the",
    "dogs",
    "sang",
    "über",
    "naïve",
    "3",
    "May",
    "2024",
    "日本語",
    "東京",
    "क्या",
    "한국어",
    "don't",
    "e-mail",
    "…",
    "A.B.",
    "x²",
    "ﬁn",
    "🙂",
    "́",
    "▁a",
    "</s>",
    "<unk>",
    "<pad>",
    "<V>",
    "<AT+ABL(PL)>x",
]
OTHERS = [
    "<V",
    "<N>",
    "  ",
    "\u3000",
    "\t",
    "\u00a0",
    "☃",
    "𝔘𝔫",
    "$1",
    "\\A",
    "\u200b",
    "É",
    "e\u0301\u0323",
    "Ω",
    "\U0001f469\u200d\U0001f680",
]


def lines(seed: int, count: int, of: list[str]) -> list[str]:
    draw = random.Random(seed)
    return [
        "".join(draw.choice(of) + draw.choice(("", " ", " ")) for _ in range(draw.randrange(9))) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    text = lines(1, 600, WORDS)
    made = {
        kind: train_tokenizer(text, kind=kind, vocab_size=None, seed=1, coverage=0.99 if kind != "symbols" else 1.0)
        for kind in KINDS
    }
    return made | {"decomposed": train_tokenizer(text, kind="unigram", vocab_size=None, seed=1, decompose=True)}


def test_ids_and_texts_are_those_of_our_tokenizers(in_node, tokenizers):
    draw = random.Random(3)
    asked = lines(2, 300, WORDS + OTHERS)
    ids = {
        name: [[draw.randrange(one.vocab_size) for _ in range(draw.randrange(12))] for _ in range(100)]
        for name, one in tokenizers.items()
    }
    cases = [
        {"file": fast_tokenizer(one, "source"), "lines": asked, "ids": ids[name]} for name, one in tokenizers.items()
    ]
    found = in_node("tokenizer.mjs", "tokenizer.js", cases)
    for (name, one), answer in zip(tokenizers.items(), found, strict=True):
        assert answer["ids"] == one.encode(asked), name
        assert answer["texts"] == one.decode(ids[name]), name
        assert answer["tokens"] == [one.tokens(row) for row in ids[name]], name
        assert any(1 in row for row in answer["ids"]), name
