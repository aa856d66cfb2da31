"""From files to tokenizers and token arrays: the same files however many processes share the work."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer import meter
from glassformer.data import preparation, processes
from glassformer.data.corpus import Corpus
from glassformer.data.encode import PairCounts
from glassformer.data.held_out import source_rank
from glassformer.data.preparation import DataSettings, Preparation, check_known
from glassformer.errors import ConfigError, DataError, GlassformerError
from glassformer.pairs import files as pairs
from glassformer.pairs.files import PairFiles
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import UNK, train_tokenizer
from glassformer.training.config import TrainConfig

ARRAYS = {
    f"{part}/{side}.{end}" for part in ("train", "valid") for side in ("source", "target") for end in ("ids", "offsets")
}


@pytest.fixture
def settings(tmp_path: Path, syllables, write_pairs) -> DataSettings:
    """Settings for 1,200 pairs; unigram takes longer to train than bpe."""
    pairs = dict(pairs=write_pairs(tmp_path / "data", syllables()), valid_pairs=None, max_tokens=256, max_ratio=9.0)
    tokenizers = dict(kinds=("bpe", "bpe"), vocab_sizes=(60, 60), shares_vocab=True)
    text = dict(character_coverage=1.0, decompose=False)
    return DataSettings(**pairs, **tokenizers, **text, score_pairs=500, seed=1, threads=1)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, said: list[str]) -> Callable[..., dict[str, Any]]:
    """Prepares a folder and returns the counts."""

    def make(settings: DataSettings, name: str = "made") -> dict[str, Any]:
        prepared = Preparation.from_files(settings, said.append)
        return prepared.make(tmp_path / name, lambda source, target: None)["pairs"]

    return make


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has processes started for a small corpus."""
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(preparation, "TRAINED_HERE", 1000)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("trained_on", [1 << 24, 9_000], ids=["all of it", "a part"])
def test_the_same_files_however_many_processes(settings, make, small_blocks, monkeypatch, said, tmp_path, trained_on):
    monkeypatch.setattr(preparation, "TRAINED_ON", trained_on)
    counts = [make(replace(settings, threads=threads), str(threads)) for threads in (1, 3)]
    one, three = (content(tmp_path / str(threads)) for threads in (1, 3))
    assert set(one) == {*ARRAYS, "valid.json", "source.spm", "target.spm"}
    assert one == three
    assert counts[0] == counts[1]
    assert any("pairs drawn at random" in line for line in said) == (trained_on < 10_000)


def test_joined_neighbours_are_the_same_however_many_processes_and_have_a_name_of_their_own(
    settings, make, small_blocks, tmp_path
):
    joining = replace(settings, join_lines=3, max_tokens=40)
    counts = [make(replace(joining, threads=threads), str(threads)) for threads in (1, 2)]
    one, two = (content(tmp_path / str(threads)) for threads in (1, 2))
    assert one == two
    train, valid = counts[0]["train"], counts[0]["valid"]
    assert train["joined"] > 200
    assert len(Corpus(tmp_path / "1" / "train")) == train["kept"] + train["joined"]
    assert len(Corpus(tmp_path / "1" / "valid")) == valid["kept"]
    digests = [Preparation.from_files(one, print).digest for one in (joining, replace(joining, join_lines=1))]
    assert digests[0] != digests[1]


def test_arrays_are_the_ids_of_the_pairs_that_are_not_held_out(settings, make, small_blocks, syllables, tmp_path):
    counts = make(replace(settings, threads=2, max_tokens=9))
    rows = syllables()
    low = set(sorted({source_rank(source, settings.seed) for source, _ in rows})[: 1200 // 20])
    tokenizer = load_tokenizer(tmp_path / "made" / "source.spm")
    for part, held in (("train", False), ("valid", True)):
        chosen = [pair for pair in rows if (source_rank(pair[0], settings.seed) in low) == held]
        sides = [tokenizer.encode([pair[side] for pair in chosen]) for side in (0, 1)]
        expected = [[[*a, 0], [*b, 0]] for a, b in zip(*sides, strict=True) if held or max(len(a), len(b)) + 1 <= 9]
        corpus = Corpus(tmp_path / "made" / part)
        assert len(corpus) == len(expected) == counts[part]["kept"]
        for i in (0, 1, len(expected) // 2, len(expected) - 1):
            assert [corpus.source[i].tolist(), corpus.target[i].tolist()] == expected[i]
        if held:
            text = json.loads((tmp_path / "made" / "valid.json").read_text())
            assert text == {"pairs": [list(pair) for pair in chosen]}
    assert counts["train"]["too_long"] > 100


def test_validation_files_and_a_tokenizer_for_each_side(settings, make, said, tmp_path, syllables, write_pairs):
    valid = write_pairs(tmp_path / "valid", [("", "X"), *syllables(300, seed=6)])
    each = dict(kinds=("char", "symbols"), vocab_sizes=(13, 40), shares_vocab=False)
    counts = make(replace(settings, valid_pairs=valid, score_pairs=7, **each))
    assert counts["train"]["read"] == 1200
    of_valid = PairCounts(**counts["valid"])
    assert (of_valid.read, of_valid.kept, of_valid.empty, of_valid.too_long, of_valid.bad_ratio) == (301, 300, 1, 0, 0)
    corpus = Corpus(tmp_path / "made" / "valid")
    for side, ids in (("source", corpus.source.ids), ("target", corpus.target.ids)):
        assert counts["valid"][f"{side}_tokens"] == len(ids)
        assert counts["valid"][f"{side}_unknown"] == (ids == UNK).sum() > 0
    text = json.loads((tmp_path / "made" / "valid.json").read_text())["pairs"]
    assert text == [list(syllables(300, seed=6)[n]) for n in (0, 42, 85, 128, 171, 214, 257)]
    assert set(content(tmp_path / "made")) == {*ARRAYS, "valid.json", "source.spm", "target.symbols"}
    assert "vocabulary: 13 + 40 ids" in said


def test_validation_pairs_that_are_all_empty_are_named_as_such(settings, make, tmp_path, write_pairs):
    valid = write_pairs(tmp_path / "valid", [("", ""), ("", "a")])
    with pytest.raises(DataError, match=r"^valid: no pair is left: 0 of 2 pairs, left out 2 empty"):
        make(replace(settings, valid_pairs=valid))


def test_tokenizers_that_are_given_are_used(settings, make, tmp_path):
    make(settings)
    tokenizers = tmp_path / "made" / "source.spm", tmp_path / "made" / "target.spm"
    make(replace(settings, tokenizers=tokenizers, kinds=("char", "char")), "again")
    assert content(tmp_path / "again") == content(tmp_path / "made")


# What goes wrong


@pytest.mark.parametrize("task", ["PairScanner", "TextSampler", "VocabularyTrainer", "PairEncoder"])
def test_a_lost_process_is_an_error_and_ends_the_others(settings, make, small_blocks, monkeypatch, task):
    made: list[processes._Process] = []

    class Doomed(processes._Process):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def send(self, parts: list[bytes]) -> None:
            if task.encode() in parts[0]:
                self.kill()
            super().send(parts)

    monkeypatch.setattr(processes, "_Process", Doomed)
    with pytest.raises(GlassformerError, match="a process that shares the work was ended by SIGKILL"):
        make(replace(settings, threads=2))
    assert all(process._popen.returncode is not None for process in made)


def test_sizes_that_cannot_be_are_refused_before_the_long_work(settings, make, small_blocks, said, tmp_path):
    with pytest.raises(ConfigError, match="vocab_size 5000 is larger than this text allows"):
        make(replace(settings, threads=2, vocab_sizes=(5000, 5000)))

    def refuse(source: int, target: int) -> None:
        raise ConfigError(f"{source} and {target} ids")

    with pytest.raises(ConfigError, match="60 and 60 ids"):
        Preparation.from_files(settings, said.append).make(tmp_path / "refused", refuse)
    assert said[-1].startswith("learning the vocabulary")


def test_a_text_that_the_vocabulary_does_not_know_is_refused_or_said(said):
    counts = PairCounts(source_tokens=1000, target_tokens=1000)
    check_known(replace(counts, source_unknown=2), said.append)
    assert said == []
    check_known(replace(counts, target_unknown=3), said.append)
    assert said == ["0.3% of the target tokens are unknown to the vocabulary, and will be read and written as ⁇"]
    with pytest.raises(
        DataError, match=r"^26% of the source tokens are unknown to the vocabulary, which was trained on text in"
    ):
        check_known(replace(counts, source_unknown=260), said.append)


# Its name


def test_every_setting_that_matters_has_another_digest(settings, tmp_path, syllables, write_pairs):
    left, right = zip(*syllables(), strict=True)
    model, other = (
        train_tokenizer(lines, kind="bpe", vocab_size=30, seed=1).save(tmp_path / name)
        for lines, name in ((left, "one"), (right, "two"))
    )
    (tmp_path / "b").mkdir()
    models = [shutil.copy(path, tmp_path / name) for path, name in ((model, "a.model"), (other, "b/a.model"))]
    valid = write_pairs(tmp_path / "valid", syllables(10))

    def changed(**changes: Any) -> str:
        return Preparation.from_files(replace(settings, **changes), print).digest

    def with_model(path: Path) -> dict[str, Any]:
        return dict(kinds=(str(path), str(path)), vocab_sizes=(None, None))

    digests = [
        changed(**changes)
        for changes in (
            *(dict(kinds=kinds) for kinds in (("bpe",) * 2, ("unigram",) * 2, ("char", "bpe"), ("bpe", "char"))),
            *(dict(vocab_sizes=sizes) for sizes in ((61, 61), (None, None), (50, 60), (60, 50))),
            *(dict(shares_vocab=False), dict(character_coverage=0.99), dict(decompose=True)),
            *(dict(max_tokens=50), dict(max_ratio=2.0), dict(seed=2), dict(score_pairs=5)),
            *(dict(valid_pairs=files) for files in (valid, PairFiles(valid.target, valid.source))),
            *(with_model(path) for path in models),
        )
    ]
    assert len(set(digests)) == len(digests) == 19
    assert changed(threads=2) == digests[0]
    # The content of a model counts, not where it is, nor whether it is given as a tokenizer.
    other.replace(models[0])
    assert changed(**with_model(models[0])) == digests[-1]
    spm = Path(shutil.copy(models[0], tmp_path / "source.spm"))
    assert changed(**with_model(spm)) == changed(tokenizers=(spm, spm), vocab_sizes=(None, None)) == digests[-1]


def test_the_digest_stays_as_it_was(settings, write_pairs, tmp_path, monkeypatch):
    # Another one would prepare anew what every user has kept.
    monkeypatch.setattr(preparation.sentencepiece, "__version__", "0.2.0")
    monkeypatch.setattr(preparation.sys, "byteorder", "little")
    files = write_pairs(tmp_path / "fixed", [("a b", "A B"), ("c", "C")])
    assert Preparation.from_files(replace(settings, pairs=files), print).digest == "3462b4decd447005549dd0120643c933"


def test_progress_is_said_where_there_is_no_terminal(settings, make, small_blocks, said, monkeypatch):
    monkeypatch.setattr(meter, "SECONDS", 0)
    make(replace(settings, threads=2))
    for what, facts in (
        ("reading", "pairs, "),
        ("drawing text", "of 1,200 pairs, "),
        ("tokenising", "of 1,200 pairs, "),
    ):
        assert sum(line.startswith(f"{what}: ") and facts in line for line in said) > 10
    assert any(" left, " in line for line in said)
    assert said[-1].startswith("valid: 60 of 60 pairs")


def test_an_empty_pair_is_never_the_one_that_is_held_out(settings, make, tmp_path, write_pairs):
    good = [(f"w{i} x y z", f"z y x w{i}") for i in range(19)]
    fits = dict(kinds=("char", "char"), vocab_sizes=(None, None))
    for number in range(12):
        pairs = write_pairs(tmp_path / str(number), [*good, (f"lonely line {number}", " ")])
        counts = make(replace(settings, pairs=pairs, **fits), f"made{number}")
        assert (counts["valid"]["kept"], counts["valid"]["empty"]) == (1, 0)


def test_a_side_of_white_space_alone_is_not_trained_on(settings, make, tmp_path, write_pairs):
    """Such spaces have ids of their own, and were counted as pairs though none of them was scored."""
    odd = [("\u3000", "x"), ("\u00a0", "red"), ("red", "\u00a0"), (" ", "y")]
    pairs = write_pairs(tmp_path / "odd", [*((f"w{i} x y z", f"z y x w{i}") for i in range(19)), *odd])
    counts = make(replace(settings, pairs=pairs, kinds=("char", "char"), vocab_sizes=(None, None)))
    assert (counts["train"]["kept"] + counts["valid"]["kept"], counts["train"]["empty"]) == (19, 4)


def test_a_file_that_is_read_several_times_has_the_same_pairs_held_out(settings, make, tmp_path, syllables):
    path = tmp_path / "few.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in syllables(15)), encoding="utf-8")
    fits = dict(kinds=("char", "char"), vocab_sizes=(None, None))
    for number, name in enumerate((f"{path}", f"{path}:3")):
        config = TrainConfig(source=Path(name), out=tmp_path / "run")
        counts = make(replace(settings, pairs=config.pairs, **fits), f"made{number}")
        assert counts["valid"]["kept"] == 1
    texts = [(tmp_path / f"made{number}" / "valid.json").read_text() for number in (0, 1)]
    assert texts[0] == texts[1]


def test_only_pairs_that_are_kept_are_scored(settings, make, tmp_path, syllables, write_pairs):
    good = syllables(5, seed=6)
    long = "ab " * 30_000, "y"  # more tokens than are read of any pair
    valid = write_pairs(tmp_path / "valid", [("x y", " "), *good[:3], long, *good[3:], (" ", "y")])
    make(replace(settings, valid_pairs=valid))
    assert json.loads((tmp_path / "made" / "valid.json").read_text())["pairs"] == [list(pair) for pair in good]
