"""The page splits lines into sentences, and joins their translations, as `translate --segment paragraph` does."""

import random
import re
import sys
from typing import Any

import pytest

from glassformer.generation.segments.sentences import ABBREVIATIONS, split_sentences
from glassformer.page.assets import PACKAGE
from glassformer.text.units import is_single

LINES = "../../page/translator/lines.js"
PIECES = [
    *(
        "It rained",
        "he said",
        "Dr",
        "e.g",
        "J",
        "1999",
        "3.50",
        "20",
        "No",
        "Τέλος",
        "Конец",
        "г",
        "下雨了",
        "と言った",
    ),
    *("أ", "जे", "डॉ", "א", "ก", "가", "ー", "ა"),
    *(">>deu<<", ">>", "はい", "मैं आया", "نعم", "Ende", "über", "²", "x", "A", "5", "🙂", "ª", "É"),
]
MARKS = [
    ".",
    ". ",
    "! ",
    "? ",
    "… ",
    "...  ",
    "。",
    "！",
    "？」",
    "।",
    "؟ ",
    ".\t",
    '." ',
    ".) ",
    "\u00a0» ",
    " ",
    ", ",
    "; ",
]
MARKS += [".\x85", "\x85", ".\x1c", " \x1f ", "\ufeff", ".\ufeff", ".\u2028", ".\u3000"]
MARKS += [". „", ". (", "。」", "!?", "  ", ".\u00a0", "։ ", "! – ", "« ", ""]
TRANSLATIONS = [["It rained.", "It poured."], ["下雨了。", "下大雨了。"], ["Aa", "", "Bb"], ["好。", "OK"]]


def cases() -> list[dict[str, Any]]:
    draw = random.Random(1)
    lines = [f"Here {word}. Then {word.capitalize()}. X" for word in sorted(ABBREVIATIONS)]
    for _ in range(1500):
        count = draw.randrange(8)
        lines.append("".join(draw.choice(["", " "]) + draw.choice(PIECES) + draw.choice(MARKS) for _ in range(count)))
    return [{"text": line, "translations": draw.choice(TRANSLATIONS)} for line in lines]


def test_sentences_and_the_white_space_between_them_are_ours(in_node):
    asked = cases()
    found = in_node("sentences.mjs", LINES, asked)
    several = 0
    for case, answer in zip(asked, found, strict=True):
        line, split = case["text"], split_sentences(case["text"])
        sentences = answer["sentences"]
        assert [one["text"] for one in sentences if one["text"]] == split.texts, line
        assert "".join(one["before"] + one["text"] + one["after"] for one in sentences) == line
        utf16 = line.encode("utf-16-le")
        for one in sentences:
            assert utf16[2 * one["start"] :].decode("utf-16-le").startswith(one["text"])
        if not split.texts:
            continue
        several += len(split.texts) > 1
        texts = [case["translations"][n % len(case["translations"])] for n in range(len(split.texts))]
        parts = zip(sentences, texts, answer["gaps"], strict=True)
        assert "".join(one["before"] + text + gap for one, text, gap in parts) == split.joined(texts), line
    assert several > 500


def test_both_lists_of_abbreviations_are_one():
    code = (PACKAGE / "page" / "translator" / "sentences.js").read_text(encoding="utf-8")
    single = re.search(r"SINGLE =\s+/(\[[^\]]+\])/u", code)[1]
    single = re.sub(r"\\u\{?([0-9a-f]+)\}?", lambda found: chr(int(found[1], 16)), single)
    assert [c for c in map(chr, range(sys.maxunicode + 1)) if bool(re.match(single, c)) != is_single(c)] == []
    assert set(re.search(r"ABBREVIATIONS = new Set\(\s*`([^`]*)`", code)[1].split()) == ABBREVIATIONS


def test_lines_of_words_and_symbols_stay_whole(in_node):
    case = {"text": " a. B c \nD. E", "translations": ["x"], "segment": "line"}
    ((one, other),) = (answer["sentences"] for answer in in_node("sentences.mjs", LINES, [case]))
    assert (one["before"], one["text"], one["after"], other["text"]) == (" ", "a. B c", " ", "D. E")


@pytest.mark.parametrize("text", ["", "\n", " a. B\n\n C. \r\nD", "A. B.\nC. D.\n"])
def test_lines_keep_their_numbers_and_sentences_their_places(in_node, text):
    (answer,) = in_node("sentences.mjs", LINES, [{"text": text, "translations": [""]}])
    sentences = answer["sentences"]
    lines = text.replace("\r\n", "\n").split("\n")
    assert [[one["text"] for one in sentences if one["line"] == n] for n in range(len(lines))] == [
        split_sentences(line).texts or [""] for line in lines
    ]
    for one in sentences:
        assert text[one["start"] :].startswith(one["text"])
