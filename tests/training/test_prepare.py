"""From files to a run folder: the same however many processes share the work, and used again for the same text."""

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer import meter
from glassformer.data import preparation, processes
from glassformer.data.corpus import Corpus
from glassformer.data.held_out import source_rank
from glassformer.data.preparation import Preparation
from glassformer.errors import ConfigError, DataError, GlassformerError, RunError
from glassformer.text import pairs
from glassformer.text.loading import load_tokenizer
from glassformer.text.pairs import Pair
from glassformer.text.tokenizer import UNK, train_tokenizer
from glassformer.training.config import TrainConfig
from glassformer.training.prepare import data_settings, prepare_run, read_valid_pairs

ARRAYS = [
    f"resume/{part}/{side}.{end}"
    for part in ("train", "valid")
    for side in ("source", "target")
    for end in ("ids", "offsets")
]
AGAIN = "the same text was prepared before, and that is used again: 1,140 train and 60 valid pairs"


def rows(count: int = 1200, seed: int = 5) -> list[Pair]:
    """Pairs of words that are made of few syllables, no source twice."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(["ka", "to", "mi", "ré", "nu"], k=draw.randint(1, 3))) for _ in range(80)]
    lines: dict[str, str] = {}
    while len(lines) < count:
        line = draw.choices(words, k=draw.randint(3, 7))
        lines[" ".join(line)] = " ".join(word.upper() for word in reversed(line))
    return list(lines.items())


def two_files(folder: Path, rows: list[Pair], ending: str = "") -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"source": folder / f"source{ending}", "target": folder / f"target{ending}"}
    for side, path in enumerate(paths.values()):
        content = "".join(f"{row[side]}\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if ending == ".gz" else content)
    return paths


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., TrainConfig]:
    """Settings of a run of 1,200 pairs, with changes; unigram takes longer to learn."""
    files = two_files(tmp_path / "data", rows())
    plain = dict(tokenizer="bpe", vocab_size=60, preset="tiny", threads=1)
    return lambda out="run", **changes: TrainConfig(out=tmp_path / "runs" / out, **{**plain, **files, **changes})


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that processes are started for a small corpus."""
    monkeypatch.setattr(pairs, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(preparation, "TRAINED_HERE", 1000)


def content(run: Path) -> dict[str, bytes]:
    """Every file of a run but config.json, which has the paths in it."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "config.json"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def counts(run: Path) -> dict[str, dict[str, int]]:
    return json.loads((run / "config.json").read_text())["training"]["pairs"]


def entries(runs: Path) -> list[Path]:
    return sorted((runs / ".prepared").iterdir()) if (runs / ".prepared").exists() else []


# What is made


@pytest.mark.parametrize("learned_from", [1 << 24, 9_000], ids=["from all", "from a part"])
def test_the_same_files_however_many_processes(config, small_blocks, monkeypatch, said, tmp_path, learned_from):
    monkeypatch.setattr(preparation, "TRAINED_ON", learned_from)
    monkeypatch.setattr(preparation, "WORTH_KEEPING", 1 << 40)
    for threads in (1, 2, 3):
        prepare_run(config(str(threads), threads=threads), said.append)
    one, two, three = (tmp_path / "runs" / str(threads) for threads in (1, 2, 3))
    assert set(content(one)) == {*ARRAYS, "resume/valid.json", "source.spm", "target.spm"}
    assert content(one) == content(two) == content(three)
    assert counts(one) == counts(two) == counts(three)
    assert any("pairs drawn at random" in line for line in said) == (learned_from < 10_000)


@pytest.mark.parametrize("form", ["packed", "tsv", "with CRLF and BOM"])
def test_the_same_text_in_another_form_gives_the_same_run(config, small_blocks, said, tmp_path, form):
    if form == "packed":
        changes = two_files(tmp_path / "other", rows(), ".gz")
    elif form == "tsv":
        (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\tmore\n" for a, b in rows()), encoding="utf-8")
        changes = {"source": tmp_path / "pairs.tsv", "target": None}
    else:
        changes = two_files(tmp_path / "other", rows())
        for path in changes.values():
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    prepare_run(config("plain"), said.append)
    prepare_run(config("other", threads=2, **changes), said.append)
    assert content(tmp_path / "runs" / "plain") == content(tmp_path / "runs" / "other")


def test_arrays_are_the_ids_of_the_pairs_that_are_not_held_out(config, small_blocks, said):
    settings = config(threads=2, max_tokens=9)
    prepare_run(settings, said.append)
    low = set(sorted({source_rank(source, settings.seed) for source, _ in rows()})[: 1200 // 20])
    tokenizer = load_tokenizer(settings.out / "source.spm")
    for part, held in (("train", False), ("valid", True)):
        chosen = [pair for pair in rows() if (source_rank(pair[0], settings.seed) in low) == held]
        sides = [tokenizer.encode([pair[side] for pair in chosen]) for side in (0, 1)]
        expected = [(a, b) for a, b in zip(*sides, strict=True) if held or max(len(a), len(b)) + 1 <= 9]
        corpus = Corpus(settings.out / "resume" / part)
        assert len(corpus) == len(expected) == counts(settings.out)[part]["kept"]
        for i in (0, 1, len(expected) // 2, -1 + len(expected)):
            assert corpus.source[i].tolist() == [*expected[i][0], 0]
            assert corpus.target[i].tolist() == [*expected[i][1], 0]
        if held:
            assert read_valid_pairs(settings.out) == chosen
    assert counts(settings.out)["train"]["too_long"] > 100


def test_validation_files_and_a_tokenizer_for_each_side(config, small_blocks, said, tmp_path):
    valid = two_files(tmp_path / "valid", [("", "X"), *rows(300, seed=6)])
    settings = config(
        threads=2,
        valid_source=valid["source"],
        valid_target=valid["target"],
        source_tokenizer="char",
        source_vocab_size=13,
        target_tokenizer="symbols",
        target_vocab_size=40,
        score_pairs=7,
    )
    prepare_run(settings, said.append)
    assert counts(settings.out)["train"]["read"] == 1200
    found = counts(settings.out)["valid"]
    assert {name: found[name] for name in ("read", "kept", "empty", "too_long", "bad_ratio")} == {
        **{"read": 301, "kept": 300, "empty": 1, "too_long": 0, "bad_ratio": 0},
    }
    corpus = Corpus(settings.out / "resume" / "valid")
    for side, ids in (("source", corpus.source.ids), ("target", corpus.target.ids)):
        assert found[f"{side}_tokens"] == len(ids)
        assert found[f"{side}_unknown"] == (ids == UNK).sum() > 0
    assert read_valid_pairs(settings.out) == rows(300, seed=6)[:7]
    assert {path.name for path in settings.out.iterdir()} == {"config.json", "resume", "source.spm", "target.symbols"}
    assert "vocabulary: 13 + 40 ids" in said


# What goes wrong


@pytest.mark.parametrize("threads", [1, 2])
def test_a_wrong_line_late_in_the_files_is_named(config, small_blocks, said, tmp_path, threads):
    settings = config("new/run", threads=threads)
    lines = settings.target.read_bytes().split(b"\n")
    lines[1100] = b"caf\xe9"
    settings.target.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=r"target, line 1101: not UTF-8 \(byte 0xe9 at column 4\)"):
        prepare_run(settings, said.append)
    settings.target.write_bytes(b"\n".join(line for line in lines if line != b"caf\xe9"))
    with pytest.raises(DataError, match=r"as many lines as each other: .*source has 1200, .*target has 1199"):
        prepare_run(settings, said.append)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("task", ["PairScanner", "TextSampler", "VocabularyTrainer", "PairEncoder"])
def test_a_lost_process_leaves_nothing_behind(config, small_blocks, said, tmp_path, monkeypatch, task):
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
        prepare_run(config("new/run", threads=2), said.append)
    assert all(process._popen.returncode is not None for process in made)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_what_cannot_be_learned_leaves_nothing_behind(config, small_blocks, said, tmp_path):
    with pytest.raises(ConfigError, match="vocab_size 5000 is larger than this text allows"):
        prepare_run(config("new/run", threads=2, vocab_size=5000), said.append)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_run_with_files_of_somebody_elses_is_not_replaced(config, said):
    settings = config()
    prepare_run(settings, said.append)
    for name in ("curves.png", "metrics.jsonl"):
        (settings.out / name).write_bytes(b"")
    prepare_run(config(overwrite=True), said.append)
    assert not (settings.out / "curves.png").exists()
    (settings.out / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"run also holds notes.txt: move that away"):
        prepare_run(config(overwrite=True), said.append)


# Used again


@pytest.fixture
def prepared(config, said) -> TrainConfig:
    """A run that is prepared and kept."""
    settings = config("first")
    prepare_run(settings, said.append)
    assert len(entries(settings.out.parent)) == 1
    return settings


SAME = {
    "other settings of the training": dict(learning_rate=1e-3, batch_tokens=100, dropout=0.3, preset="small"),
    "other threads": dict(threads=2),
    "other validation": dict(validate_every=7, metric="chrf"),
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_is_prepared_is_used_again(config, prepared, said, changes):
    said.clear()
    settings = config("second", **changes)
    prepare_run(settings, said.append)
    assert said == [AGAIN]
    assert content(settings.out) == content(prepared.out)
    assert counts(settings.out) == counts(prepared.out)
    assert json.loads((settings.out / "config.json").read_text())["training"]["settings"] == settings.to_json()
    [entry] = entries(prepared.out.parent)
    for name in ARRAYS:
        assert (settings.out / name).samefile(entry / name.removeprefix("resume/")), "a link, without a copy"


@pytest.mark.parametrize("change", ["a newer time", "another path", "packed"])
def test_the_content_counts_not_where_and_since_when_it_is(config, prepared, said, tmp_path, change):
    files = {"source": prepared.source, "target": prepared.target}
    if change == "a newer time":
        for path in files.values():
            os.utime(path, (4e9, 4e9))
    else:
        files = two_files(tmp_path / "elsewhere", rows(), ".gz" if change == "packed" else "")
    said.clear()
    prepare_run(config("second", **files), said.append)
    assert said == [AGAIN]


def test_another_text_is_prepared_anew(config, prepared, said, tmp_path):
    before = content(prepared.out)
    changed = rows()
    changed[600] = (changed[600][0], changed[600][1] + " TO")
    times = prepared.target.stat()
    two_files(tmp_path / "data", changed)
    os.utime(prepared.target, ns=(times.st_atime_ns, times.st_mtime_ns))
    said.clear()
    prepare_run(config("second"), said.append)
    assert AGAIN not in said
    assert len(entries(prepared.out.parent)) == 2
    assert content(prepared.out) == before
    assert content(tmp_path / "runs" / "second") != before


def digest(config: TrainConfig) -> str:
    return Preparation.from_files(data_settings(config), print).digest


def test_every_setting_that_matters_has_another_digest(config, tmp_path):
    model = train_tokenizer([source for source, _ in rows()], kind="bpe", vocab_size=30, seed=1).save(
        tmp_path / "users"
    )
    other = train_tokenizer([target for _, target in rows()], kind="bpe", vocab_size=30, seed=1).save(tmp_path / "mine")
    (tmp_path / "b").mkdir()
    models = [shutil.copy(path, tmp_path / name) for path, name in ((model, "a.model"), (other, "b/a.model"))]
    valid = two_files(tmp_path / "valid", rows(10))
    matters = [
        dict(),
        dict(tokenizer="unigram"),
        dict(vocab_size=61),
        dict(vocab_size=None),
        dict(separate_vocab=True),
        dict(source_tokenizer="char"),
        dict(target_tokenizer="char"),
        dict(source_vocab_size=50),
        dict(target_vocab_size=50),
        dict(character_coverage=0.99),
        dict(decompose=True),
        dict(max_tokens=50),
        dict(max_ratio=2.0),
        dict(seed=2),
        dict(score_pairs=5),
        dict(valid_source=valid["source"], valid_target=valid["target"]),
        dict(valid_source=valid["target"], valid_target=valid["source"]),
        *(dict(tokenizer=str(path), vocab_size=None) for path in models),
    ]
    digests = [digest(config(**changes)) for changes in matters]
    assert len(set(digests)) == len(matters)
    assert digest(config(max_updates=3, out=tmp_path)) == digests[0]
    # A model is its content, wherever it is.
    other.replace(models[0])
    assert digest(config(tokenizer=str(models[0]), vocab_size=None)) == digests[-1]
    spm = shutil.copy(models[0], tmp_path / "source.spm")
    assert digest(config(tokenizer=str(spm), vocab_size=None)) == digests[-1]


def test_a_damaged_entry_is_not_used(config, prepared, said):
    [entry] = entries(prepared.out.parent)
    before = content(prepared.out)
    ids = entry / "train" / "source.ids"
    size = ids.stat().st_size
    ids.unlink()
    ids.write_bytes(b"\x01" * size)
    said.clear()
    prepare_run(config("second"), said.append)
    assert AGAIN not in said
    assert content(config("second").out) == before == content(prepared.out)
    said.clear()
    prepare_run(config("third"), said.append)
    assert said == [AGAIN], "it was replaced"


def test_runs_and_what_is_kept_do_not_depend_on_each_other(config, prepared, said, tmp_path):
    prepare_run(config("second"), said.append)
    before = content(prepared.out)
    # Another text in the place of the first run, then that run's end, then what is kept goes.
    two_files(tmp_path / "data", rows(seed=7))
    prepare_run(config("first", overwrite=True), said.append)
    assert content(config("second").out) == before
    shutil.rmtree(config("first").out / "resume")
    two_files(tmp_path / "data", rows())
    said.clear()
    prepare_run(config("third"), said.append)
    assert said == [AGAIN]
    assert content(config("third").out) == before
    shutil.rmtree(tmp_path / "runs" / ".prepared")
    assert content(config("third").out) == content(config("second").out) == before


def test_four_are_kept(config, said, monkeypatch, tmp_path):
    for seed in range(6):
        prepare_run(config(str(seed), seed=seed, tokenizer="symbols"), said.append)
    assert len(entries(tmp_path / "runs")) == 4


def test_of_few_pairs_nothing_is_kept(config, said, tmp_path):
    prepare_run(config(**two_files(tmp_path / "few", rows(999))), said.append)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_files_that_change_meanwhile_are_not_kept(config, said, monkeypatch, tmp_path):
    def say(line: str) -> None:
        if line.startswith("learning"):
            two_files(tmp_path / "data", [*rows(), ("ka to", "TO KA")])

    prepare_run(config(), say)
    assert counts(config().out)["train"]["read"] == 1141
    assert entries(tmp_path / "runs") == []


def test_where_nothing_can_be_kept_the_run_is_made(config, said, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".prepared").write_text("a file is in the way")
    prepare_run(config(), said.append)
    assert said[-1].startswith("what was prepared can't be kept for further runs: ")
    assert len(Corpus(config().out / "resume" / "train")) == 1140


def test_progress_is_said_where_there_is_no_terminal(config, small_blocks, said, monkeypatch):
    monkeypatch.setattr(meter, "SECONDS", 0)
    prepare_run(config(threads=2), said.append)
    for what, facts in (
        ("reading", "pairs, "),
        ("drawing text", "of 1,200 pairs, "),
        ("tokenising", "of 1,200 pairs, "),
    ):
        assert sum(line.startswith(f"{what}: ") and facts in line for line in said) > 10
    assert any(line.endswith(" left") for line in said)
    assert said[-1].startswith("valid: 60 of 60 pairs")
