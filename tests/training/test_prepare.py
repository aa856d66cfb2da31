"""From files to a run folder; what was prepared is used again for the same text."""

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from glassformer.data import kept, preparation
from glassformer.data.corpus import Corpus
from glassformer.errors import ConfigError, RunError
from glassformer.text.tokenizer import train_tokenizer
from glassformer.training.config import TrainConfig
from glassformer.training.integrity import Integrity
from glassformer.training.prepare import prepare_run, read_valid_pairs

ARRAYS = [
    f"resume/{part}/{side}.{end}"
    for part in ("train", "valid")
    for side in ("source", "target")
    for end in ("ids", "offsets")
]
AGAIN = "the same text was prepared before, and that is used again: 1,140 train and 60 valid pairs"


@pytest.fixture
def config(tmp_path: Path, syllables, write_pairs) -> Callable[..., TrainConfig]:
    """Settings of a run of 1,200 pairs, with changes."""
    files = asdict(write_pairs(tmp_path / "data", syllables()))
    plain = dict(tokenizer="symbols", preset="tiny", metric="bleu", batch_tokens=512, threads=1, separate_vocab=True)
    return lambda out="run", **changes: TrainConfig(out=tmp_path / "runs" / out, **{**plain, **files, **changes})


@pytest.fixture
def said() -> list[str]:
    return []


def content(run: Path) -> dict[str, bytes]:
    """Every file of a run but config.json, which has the paths in it."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "config.json"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def training(run: Path) -> dict[str, dict[str, int]]:
    return json.loads((run / "config.json").read_text())["training"]


def entries(runs: Path) -> list[Path]:
    return sorted((runs / ".prepared").iterdir()) if (runs / ".prepared").exists() else []


@pytest.mark.parametrize(
    ("more", "weight"), [("", ""), ("\n", ""), ("", ":2")], ids=["plain", "an empty line", "weight"]
)
def test_repeated_pairs_are_said_where_all_were_looked_at(config, said, tmp_path, more, weight):
    """An empty line, or a weight, made the pairs more than those that were looked at."""
    lines = "".join(f"w{n % 40}\tW{n % 40}\n" for n in range(200))
    (tmp_path / "again.tsv").write_text(lines + more, encoding="utf-8")
    files = dict(source=(Path(f"{tmp_path / 'again.tsv'}{weight}"),), target=None)
    valid = dict(valid_source=tmp_path / "again.tsv", valid_target=None)
    prepare_run(config(**files, **valid), said.append)
    repeated = [line for line in said if line.startswith("repeated: ")]
    assert [line.partition(",")[0] for line in repeated] == ["repeated: 80% of the pairs"]


def test_a_failure_leaves_nothing_behind_and_an_old_run_as_it_is(config, said, tmp_path, tree):
    def fail() -> None:
        before = tree(tmp_path)
        with pytest.raises(ConfigError, match="vocab_size 5000 is larger than this text allows"):
            prepare_run(config("new/run", overwrite=True, vocab_size=5000), said.append)
        assert tree(tmp_path) == before

    fail()
    prepare_run(config("new/run"), said.append)
    fail()


def test_a_run_that_another_training_has_made_meanwhile_is_left_alone(config, tmp_path):
    def say(line: str) -> None:
        (tmp_path / "runs" / "run" / "another's").mkdir(parents=True, exist_ok=True)

    with pytest.raises(RunError, match="was made by another process meanwhile: choose another --out"):
        prepare_run(config(), say)
    assert [path.name for path in config().out.iterdir()] == ["another's"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_empty_folder_is_as_good_as_none(config, said, overwrite):
    settings = config(overwrite=overwrite)
    settings.out.mkdir(parents=True)
    prepare_run(settings, said.append)
    assert (settings.out / "config.json").exists()


def test_as_many_pairs_are_read_for_the_score_as_were_written(tmp_path):
    """They have a limit of their own, --score-pairs, and that of other files is 32 MiB."""
    (tmp_path / "resume").mkdir()
    pairs = [("a" * (1 << 20), "b" * (1 << 20))] * 17
    (tmp_path / "resume/valid.json").write_text(json.dumps({"pairs": pairs}))
    assert read_valid_pairs(tmp_path) == pairs


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


@pytest.mark.parametrize("name", ["source.vocab.json", ".model.safetensors.ab3_e9xy.tmp"])
def test_what_an_import_or_a_killed_training_has_left_is_no_bodys(config, said, name):
    settings = config()
    prepare_run(settings, said.append)
    (settings.out / name).mkdir() if name.endswith(".tmp") else (settings.out / name).touch()
    prepare_run(config(overwrite=True), said.append)
    assert not (settings.out / name).exists()


def test_what_looks_like_ours_and_is_not_stays(config, said):
    settings = config()
    prepare_run(settings, said.append)
    for name in (".config.json.backup", ".tmp-notes"):
        (settings.out / name).touch()
        with pytest.raises(RunError, match=f"run also holds {name}: move that away"):
            prepare_run(config(overwrite=True), said.append)
        (settings.out / name).unlink()


def test_what_comes_into_the_folder_while_its_replacement_is_made_stays(config, said, tmp_path):
    prepare_run(config(), said.append)

    def say(line: str) -> None:
        (config().out / "notes.txt").touch()

    with pytest.raises(RunError, match=r"run also holds notes\.txt"):
        prepare_run(config(overwrite=True), say)
    assert (config().out / "notes.txt").exists()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".prepared", "run"]


# Used again


@pytest.fixture
def prepared(config, said) -> TrainConfig:
    """A run that is prepared and kept."""
    settings = config("first")
    prepare_run(settings, said.append)
    assert len(entries(settings.out.parent)) == 1
    said.clear()
    return settings


def test_what_is_prepared_is_used_again(config, prepared, said):
    settings = config("second", learning_rate=1e-3, dropout=0.3, preset="small", threads=2, metric="chrf")
    prepare_run(settings, said.append)
    assert said == [AGAIN]
    assert content(settings.out) == content(prepared.out)
    files = {*ARRAYS, "resume/valid.json", "source.symbols", "target.symbols"}
    assert set(content(settings.out)) == {*files, "resume/checksums.json"}
    assert set(json.loads((settings.out / "resume" / "checksums.json").read_text())["files"]) == files
    assert training(settings.out) == {
        **{"settings": settings.to_json(), "chosen": {}},
        "pairs": training(prepared.out)["pairs"],
    }
    assert len(read_valid_pairs(settings.out)) == 60
    [entry] = entries(prepared.out.parent)
    for name in ARRAYS:
        assert (settings.out / name).samefile(entry / name.removeprefix("resume/")), "a link, without a copy"


def test_the_content_counts_not_where_and_since_when_it_is(config, prepared, said, tmp_path, syllables, write_pairs):
    files = write_pairs(tmp_path / "elsewhere", syllables(), ".gz")
    os.utime(files.source, (4e9, 4e9))
    prepare_run(config("second", **asdict(files)), said.append)
    assert said == [AGAIN]


def test_another_text_is_prepared_anew(config, prepared, said, tmp_path, syllables, write_pairs):
    before = content(prepared.out)
    changed = syllables()
    changed[600] = (changed[600][0], changed[600][1] + " TO")
    times = prepared.target.stat()
    write_pairs(tmp_path / "data", changed)
    os.utime(prepared.target, ns=(times.st_atime_ns, times.st_mtime_ns))
    prepare_run(config("second"), said.append)
    assert AGAIN not in said
    assert len(entries(prepared.out.parent)) == 2
    assert content(prepared.out) == before != content(config("second").out)


def test_runs_and_what_is_kept_do_not_depend_on_each_other(config, prepared, said, tmp_path, syllables, write_pairs):
    prepare_run(config("second"), said.append)
    before = content(prepared.out)
    # Another text in the place of the first run, then that run's end, then what is kept goes.
    write_pairs(tmp_path / "data", syllables(seed=7))
    prepare_run(config("first", overwrite=True), said.append)
    assert content(config("second").out) == before
    shutil.rmtree(config("first").out / "resume")
    write_pairs(tmp_path / "data", syllables())
    prepare_run(config("third"), said.append)
    assert said[-1] == AGAIN
    assert content(config("third").out) == before
    shutil.rmtree(tmp_path / "runs" / ".prepared")
    assert content(config("third").out) == content(config("second").out) == before


@pytest.mark.parametrize("changed", [False, True])
def test_neither_few_pairs_nor_files_that_change_meanwhile_are_kept(
    config, tmp_path, monkeypatch, syllables, write_pairs, changed
):
    if not changed:
        monkeypatch.setattr(preparation, "WORTH_KEEPING", 1201)

    def say(line: str) -> None:
        if changed and line.startswith("learning"):
            write_pairs(tmp_path / "data", [*syllables(), ("ka to", "TO KA")])

    prepare_run(config(), say)
    assert training(config().out)["pairs"]["train"]["read"] == 1140 + changed
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_what_is_kept_and_was_damaged_is_prepared_anew(config, prepared, said):
    before = content(config("first").out)
    flip(entries(prepared.out.parent)[0] / "train" / "target.ids")
    prepare_run(config("second"), said.append)
    assert AGAIN not in said
    assert content(config("second").out) == before
    prepare_run(config("third"), said.append)
    assert said[-1] == AGAIN


def test_what_is_too_large_to_check_at_first_stops_the_training_and_is_prepared_anew(
    config, prepared, said, monkeypatch
):
    monkeypatch.setattr(kept, "CHECKED", 0)
    before, [entry] = content(prepared.out), entries(prepared.out.parent)
    flip(entry / "train" / "target.ids")
    prepare_run(config("second"), said.append)
    assert said == [AGAIN]
    with pytest.raises(RunError, match=r"second/resume/train/target\.ids is damaged .* train anew with --overwrite"):
        Integrity(config("second").out).check({}, ())
    prepare_run(config("second", overwrite=True), said.append)
    assert said.count(AGAIN) == 1
    assert content(config("second").out) == before
    Integrity(config("second").out).check({}, ())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_where_nothing_can_be_kept_the_run_is_made(config, said, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".prepared").write_text("a file is in the way")
    prepare_run(config(), said.append)
    assert said[-1].startswith("what was prepared can't be kept for further runs: ")
    assert len(Corpus(config().out / "resume" / "train")) == 1140


def test_resampling_is_refused_where_the_files_of_tokenizers_split_text_in_one_way(config, said, tmp_path):
    lines = [text for pair in config().pairs for text in pair]
    for kind in ("char", "bpe"):
        made = train_tokenizer(lines, kind=kind, vocab_size=None, seed=1).save(tmp_path / kind)
        changes = dict(tokenizer=str(made), source_tokenizer="char", resample=0.5)
        if kind == "bpe":
            prepare_run(config(**changes), said.append)
            continue
        with pytest.raises(ConfigError, match=rf"^resample is for .*, got 0\.5 with {made} and char: leave it out$"):
            prepare_run(config(**changes), said.append)
        assert said == []


WORDS = {"one": "ein", "two": "zwei", "three": "drei", "man": "Mann", "men": "Männer", "see": "sehen", "the": "die"}


@pytest.mark.parametrize(
    ("vocabularies", "written"),
    [
        (dict(tokenizer="char", separate_vocab=False), str),
        (dict(tokenizer="char"), str),
        (dict(tokenizer="bpe", vocab_size=40), str),
        (dict(tokenizer="symbols"), str),
        (dict(tokenizer="char"), lambda word: "".join(chr(ord(letter) % 97 + 0x4E00) for letter in word)),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_validation_pairs_the_wrong_way_round_are_said(config, said, tmp_path, vocabularies, written, is_turned):
    drawn = random.Random(3)
    words = [[drawn.choice(list(WORDS)) for _ in range(drawn.randint(2, 6))] for _ in range(330)]
    pairs = [(" ".join(line), " ".join(written(WORDS[word]) for word in line)) for line in words]
    valid = [pair[::-1] if is_turned else pair for pair in pairs[300:]]
    for name, some in (("a.tsv", pairs[:300]), ("b.tsv", valid)):
        (tmp_path / name).write_text("".join("\t".join(pair) + "\n" for pair in some), encoding="utf-8")
    files = dict(source=tmp_path / "a.tsv", target=None, valid_source=tmp_path / "b.tsv")
    for _ in range(2):
        prepare_run(config(**files, **vocabularies, overwrite=True), said.append)
        wanted = f"{tmp_path / 'b.tsv'}: the validation pairs seem the wrong way round, as their sources are like "
        assert any(line.startswith(wanted) for line in said) == is_turned
        said.clear()
