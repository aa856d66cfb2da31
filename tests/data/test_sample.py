import json
import random
from collections import Counter
from pathlib import Path

import pytest

from glassformer.data import vocabularies as learning
from glassformer.data.held_out import HeldOut, source_rank
from glassformer.data.sample import LINES, NOTHING, SYMBOLS, sample_text
from glassformer.data.vocabularies import VocabularySettings, train_vocabularies
from glassformer.text import pairs
from glassformer.text.loading import load_tokenizer
from glassformer.text.pairs import Pair, PairFiles
from glassformer.text.tokenizer import SymbolTokenizer, train_tokenizer


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 500)


@pytest.fixture
def rows() -> list[Pair]:
    draw = random.Random(3)
    return [(" ".join(draw.choices("abcdeé", k=5)), f"{i} {' '.join(draw.choices('01', k=4))}") for i in range(1500)]


@pytest.fixture
def files(rows: list[Pair], tmp_path: Path) -> PairFiles:
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    return PairFiles(tmp_path / "pairs.tsv")


SPLIT = HeldOut(7)


def test_all_lines_are_the_lines(files, rows):
    sources, targets = sample_text(files, wants=[LINES, LINES], share=1.0, held_out=SPLIT, workers=0)
    assert list(zip(sources, targets, strict=True)) == rows


def test_a_share_is_drawn_all_over_the_files(files, rows):
    sources, targets = sample_text(files, wants=[LINES, LINES], share=0.2, held_out=SPLIT, workers=0)
    drawn = list(zip(sources, targets, strict=True))
    assert 240 < len(drawn) < 360
    places = [rows.index(pair) for pair in drawn]
    assert places == sorted(places)
    assert all(40 < sum(begin <= place < begin + 300 for place in places) < 80 for begin in range(0, 1500, 300))
    others = sample_text(files, wants=[LINES, LINES], share=0.2, held_out=HeldOut(8), workers=0)
    assert others[1] != targets, "another seed draws others"


@pytest.mark.parametrize("workers", [1, 3])
def test_other_processes_draw_the_same(files, workers):
    split = HeldOut(7, [source_rank("a b c d e", 7)])
    for wants in ([LINES, LINES], [LINES, SYMBOLS]):
        here, there = (sample_text(files, wants=wants, share=0.3, held_out=split, workers=n) for n in (0, workers))
        assert here == there


def test_symbols_are_counted_in_all_lines(files, rows):
    lines, symbols = sample_text(files, wants=[LINES, SYMBOLS], share=0.01, held_out=SPLIT, workers=0)
    assert len(lines) < 50
    assert symbols == Counter(symbol for _, target in rows for symbol in target.split())
    assert sample_text(files, wants=[NOTHING, SYMBOLS], share=0.01, held_out=SPLIT, workers=0) == ([], symbols)


def test_what_is_held_out_is_not_drawn(files, rows):
    sources = [source for source, _ in rows]
    split = HeldOut(7, [source_rank(source, 7) for source in sources[::2]])
    left = [source for source in sources if source not in sources[::2]]
    assert sample_text(files, wants=[LINES, NOTHING], share=1.0, held_out=split, workers=0) == (left, [])
    counted = sample_text(files, wants=[SYMBOLS, NOTHING], share=0.1, held_out=split, workers=0)[0]
    assert counted == Counter(symbol for source in left for symbol in source.split())


# Learning from it


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_vocabularies_are_those_of_the_text_wherever_they_are_learned(rows, tmp_path, workers):
    text, symbols = [source for source, _ in rows], Counter({"x": 3, "ü": 5, "a": 3})
    lessons = [
        VocabularySettings(str(tmp_path / "left"), "char", None, 1, 1.0),
        VocabularySettings(str(tmp_path / "right"), "symbols", 5, 1, 1.0),
    ]
    left, right = train_vocabularies(lessons, [text, symbols], workers)
    assert (left.name, right.name) == ("left.spm", "right.symbols")
    expected = train_tokenizer(text, kind="char", vocab_size=None, seed=1).save(tmp_path / "expected")
    assert left.read_bytes() == expected.read_bytes()
    assert load_tokenizer(right).tokens(range(5)) == ["</s>", "<unk>", "ü", "a", "<pad>"]


def test_a_lesson_is_what_train_tokenizer_is_told(monkeypatch, tmp_path):
    told = []

    def note(text: list[str], **settings: object) -> SymbolTokenizer:
        told.append((text, settings))
        return SymbolTokenizer(text)

    monkeypatch.setattr(learning, "train_tokenizer", note)
    train_vocabularies([VocabularySettings(str(tmp_path / "left"), "bpe", 17, 7, 0.9, True)], [["a", "ü"]], 0)
    assert told == [(["a", "ü"], dict(kind="bpe", vocab_size=17, seed=7, coverage=0.9, decompose=True))]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["users.model", "source.spm"])
def test_a_model_of_the_users_needs_no_text(rows, tmp_path, workers, name):
    model = train_tokenizer([json.dumps(rows)], kind="bpe", vocab_size=None, seed=1).save(tmp_path / "users")
    model = model.rename(tmp_path / name)
    [path] = train_vocabularies([VocabularySettings(str(tmp_path / "left"), str(model), None, 1, 1.0)], [[]], workers)
    assert path.read_bytes() == model.read_bytes()


def test_a_counter_is_as_good_as_its_lines():
    lines = ["K AE T", "B AE T", "AE"]
    counted = SymbolTokenizer.train(Counter({"K": 1, "T": 2, "B": 1, "AE": 3}), vocab_size=None)
    assert counted.tokens(range(7)) == SymbolTokenizer.train(lines, vocab_size=None).tokens(range(7))
