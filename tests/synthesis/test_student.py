"""Distillation and back-translation: stage after stage, each resumable, and a student in the end."""

import json
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from glassformer.errors import ConfigError, DataError, RunError
from glassformer.files import alone
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run.folder import load_run, open_run
from glassformer.synthesis import student as module
from glassformer.synthesis.config import BacktranslateConfig, DistillConfig, SynthesisConfig
from glassformer.synthesis.student import backtranslate, distill, write_pairs
from glassformer.training import progress
from glassformer.training.config import TrainConfig

LETTERS = "abcdefghijklmnop"


@pytest.fixture(autouse=True)
def _quick(monkeypatch, unchecked) -> None:
    monkeypatch.setattr(progress, "can_draw", lambda: False)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with text, real pairs and validation pairs."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(7)
    lines = [" ".join(draw.sample(LETTERS, draw.randint(2, 7))) for _ in range(40)]
    Path("text.txt").write_text("".join(f"{line}\n" for line in [*lines, "", lines[0]]))
    pairs = [f"{line}\t{line[::-1].upper()}\n" for line in lines[:30]]
    Path("pairs.tsv").write_text("".join(pairs))
    Path("valid.tsv").write_text("".join(pairs[:5]))
    return tmp_path


@pytest.fixture
def config(here, run, tiny) -> Callable[..., SynthesisConfig]:
    def make(kind: type = DistillConfig, student: dict | None = None, **changes) -> SynthesisConfig:
        files = dict(source=Path("pairs.tsv"), valid_source=Path("valid.tsv"))
        trained = {"out": Path("out"), **files, "max_updates": 2, "validate_every": 2, **(student or {})}
        given = dict(run=run, text=(Path("text.txt"),), search=SearchConfig(beam=2, max_length=12))
        return kind(**{**given, "student": tiny(**trained), **changes})

    return make


def test_what_text_alone_may_mean_is_said_and_what_the_student_would_refuse_comes_before_the_writing(config):
    said: list[str] = []
    Path("text.txt").write_text("a b\tc\nd\n")
    write_pairs(config(student={"source": None}), said.append)
    assert said[0] == "text.txt has tabs: each line is translated as it stands; pairs go before all flags"
    assert said[1].startswith("no real pairs are given")
    for changes in ({"tokenizer": "unigramm"}, {"tokenize": "14a"}, {"device": "cuda:99"}):
        said.clear()
        with pytest.raises(ConfigError):
            distill(config(student={"out": Path("late"), **changes}), said.append)
        assert said == []


def test_a_student_whose_text_cannot_be_split_anew_is_refused_before_the_writing(config, run):
    files = dict(source=Path("pairs.tsv"), valid_source=Path("valid.tsv"), out=Path("late"))
    student, said = TrainConfig(**files, from_=run, resample=0.5), list[str]()
    with pytest.raises(
        ConfigError, match=r"^resample is for tokenizers that can split text in several ways, and those"
    ):
        distill(replace(config(), student=student), said.append)
    assert said == []


def names(folder: Path) -> list[str]:
    """The kinds of the files in a folder: their names up to the digest."""
    return sorted(
        path.name.partition("-")[0] for path in folder.iterdir() if path.name != ".lock" and path.suffix != ".json"
    )


def test_a_teacher_writes_and_a_student_is_trained(config, run):
    said: list[str] = []
    student = distill(config(writing_precision="float32"), said.append)
    assert student.training.finished
    assert student.training.updates == 2
    lines = Path("text.txt").read_text().splitlines()[:40]
    translator = Translator.load(run, "cpu", "float32")
    expected = dict(zip(lines, translator.translate(lines, SearchConfig(beam=2, max_length=12)), strict=True))
    real, written = (Path(path) for path in student.pairs.source)
    assert (real.name, written.name) == ("real.source", "written.source")
    sides = [path.read_text().splitlines() for path in (written, Path(student.pairs.target[1]))]
    pairs = dict(zip(*sides, strict=True))
    assert 5 < len(pairs) <= 40
    assert pairs.items() <= expected.items()
    counts = student.pairs.counts
    assert counts["text"] == {"lines": 42, "empty": 1, "repeated": 1, "left": 40}
    assert counts["written"] == {"translations": 40}
    assert counts["written pairs"]["left"] == len(pairs)
    assert counts["real pairs"]["left"] == 30
    assert said[0] == "text: 42 lines, 1 empty, 1 repeated, 40 left"
    assert said[1].startswith(f"{run} writes targets for out.pairs/text-")
    assert [line.partition(":")[0] for line in said[2:]] == ["written", "written pairs", "scores", "real pairs"]
    assert names(Path("out.pairs")) == ["mixed", "text", "written"]
    assert Translator.load("out", "cpu").translate(["a b c"])


def test_stopped_at_every_stage_it_goes_on_and_comes_to_the_same(config, back, writer, monkeypatch):
    settings = dict(round_trip=back, min_agreement=0.0)
    whole = distill(config(written=Path("whole.pairs"), student={"out": Path("whole")}, **settings), writer=writer())
    write, train_once, calls = writer(), module.train_once, []

    def lost(stage: str, work: Callable) -> Callable:
        def run(*args):
            calls.append(stage)
            if calls.count(stage) == 1:
                raise SystemError("lost")
            return work(*args)

        return run

    monkeypatch.setattr(module, "write_text", lost("text", module.write_text))
    monkeypatch.setattr(module, "write_mixture", lost("mixed", module.write_mixture))
    monkeypatch.setattr(module, "train_once", lost("train", train_once))
    losing = lost("writer", write)
    student, said = None, list[str]()
    for _ in range(5):
        said.clear()
        try:
            student = distill(config(**settings), said.append, writer=losing)
        except SystemError:
            continue
        break
    assert student is not None
    assert calls == ["text", "text", "writer", "writer", "writer", "mixed", "mixed", "train", "train"]
    assert student.pairs.counts == whole.pairs.counts
    assert [line.partition(":")[0] for line in said] == list(whole.pairs.counts)  # what was done is counted again
    one, other = (load_run(Path(folder)).model.state_dict() for folder in ("whole", "out"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert names(Path("out.pairs")) == ["mixed", "returned", "text", "written"]


def test_a_student_that_was_interrupted_goes_on(config, writer, interrupting):
    settings = config(student={"max_updates": 9})
    with interrupting(4):
        stopped = distill(settings, writer=writer())
    assert (stopped.training.finished, stopped.training.signal) == (False, signal.SIGINT)
    student = distill(settings, writer=failing)
    assert (student.training.finished, student.training.updates) == (True, 9)
    assert distill(settings, writer=failing).training.updates == 9  # finished, it stays


def failing(*_: object) -> NoReturn:
    raise AssertionError("nothing is to be written")


def test_other_filters_leave_what_was_written(config, writer):
    write_pairs(config(), writer=writer(score=lambda line: -len(line) / 10))
    pairs = write_pairs(config(min_score=-1.0), writer=failing)
    assert 0 < pairs.counts["written pairs"]["of a low score"] < 40
    assert names(Path("out.pairs")) == ["mixed", "mixed", "text", "written"]


def test_the_writer_is_given_all_runs_of_an_ensemble_and_that_of_the_way_back(config, run, back, writer, tmp_path):
    shutil.copytree(run, tmp_path / "second")
    write, given = writer(), []

    def noting(runs: Sequence[Path], text: Path, output: Path, search: SearchConfig) -> None:
        given.append([path.name for path in runs])
        write(runs, text, output, search)

    beside = dict(round_trip=back, min_agreement=0.0)
    write_pairs(config(run=run, ensemble=(tmp_path / "second",), **beside), writer=noting)
    assert given == [["run", "second"], ["back"]]
    write_pairs(config(run=run, **beside), writer=noting)
    assert given[2:] == [["run"], ["back"]], "one run alone writes anew"


def test_students_share_a_folder(config, writer):
    shared = dict(written=Path("shared"))
    one = distill(config(**shared, student={"out": Path("one"), "seed": 1}), writer=writer())
    two = distill(config(**shared, student={"out": Path("two"), "seed": 2}), writer=failing)
    assert one.pairs == two.pairs
    assert names(Path("shared")) == ["mixed", "text", "written"]


def test_changed_text_is_other_text(config, writer):
    write_pairs(config(), writer=writer())
    with Path("text.txt").open("a") as file:
        file.write("a p a p\n")
    assert write_pairs(config(), writer=writer()).counts["text"]["left"] == 41


def test_backtranslated_sources_stand_before_real_targets(config, writer):
    student = backtranslate(config(BacktranslateConfig, text=(), tag="<BT>", real_weight=2), writer=writer(str.lower))
    assert student.training.finished
    real, written = student.pairs.source
    assert str(real).endswith("real.source:2")
    targets = [line.partition("\t")[2] for line in Path("pairs.tsv").read_text().splitlines()]
    assert Path(student.pairs.target[1]).read_text().splitlines() == targets
    assert Path(written).read_text().splitlines() == [f"<BT> {target.lower()}" for target in targets]
    assert "<BT>" in (Path("out") / "source.symbols").read_text().split()


def test_what_does_not_come_back_is_left_out(config, back, writer):
    write = writer()

    def forgetful(runs: Sequence[Path], text: Path, output: Path, search: SearchConfig) -> None:
        write(runs, text, output, search)
        if "returned" in output.name:
            hypotheses = text.read_text().splitlines()
            back = ["zzz" if n % 4 == 0 else line[::-1].lower() for n, line in enumerate(hypotheses)]
            output.write_text("".join(f"-0.5\t{line}\n" for line in back))

    counts = write_pairs(config(round_trip=back), writer=forgetful).counts
    assert counts["returned"] == {"translations": 40}
    assert counts["written pairs"]["not coming back"] == 10
    assert counts["agreement"]["half below"] == 100.0
    assert not list(Path("out.pairs").glob("hypotheses*"))


def test_several_translations_of_each_text(config, writer):
    pairs = write_pairs(config(search=SearchConfig(sample=True, n_best=3)), writer=writer())
    assert pairs.counts["written"] == {"translations": 120}
    assert pairs.counts["written pairs"]["left"] == 120 - 30  # the first of each is the real one


def test_the_student_has_the_languages_of_the_run(config, run, writer):
    distill(config(run=run), writer=writer())
    assert open_run("out").training.languages == ("en", "de")
    distill(config(BacktranslateConfig, run=run, student={"out": Path("back")}), writer=writer())
    assert open_run("back").training.languages == ("de", "en")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"kind": DistillConfig, "languages": ("de", "en")}, "de to en"),
        ({"kind": BacktranslateConfig, "languages": ("en", "de")}, "de to en"),
        ({"kind": DistillConfig, "languages": ("en", "fr")}, "en to fr"),
        ({"kind": DistillConfig, "languages": None, "round_trip": True}, "de to en"),
    ],
)
def test_a_run_of_the_wrong_direction(changes, wanted, config, run):
    languages = changes["languages"] or (None, None)
    student = dict(zip(("source_language", "target_language"), languages, strict=True))
    round_trip = run if changes.get("round_trip") else None
    settings = config(changes["kind"], run=run, student=student, round_trip=round_trip)
    with pytest.raises(ConfigError, match=f"run translates from en to de, and a run from {wanted} is needed"):
        write_pairs(settings)
    assert not Path("out.pairs").exists()


def test_folders_and_files_in_the_way(config, writer, tree, here):
    Path("thesis").mkdir()
    Path("thesis/chapter").touch()
    Path("memory.po").write_text('msgid "a"\nmsgstr "b"\n')
    before = tree(here)
    for changes, error, message in (
        ({"student": {"out": Path("thesis")}}, RunError, "thesis is there already: give a new name, or remove it"),
        ({"written": Path("text.txt")}, ConfigError, "written must be a folder, and text.txt is a file: choose anothe"),
        ({"text": (Path("none.txt"),)}, DataError, "none.txt: no such file"),
        ({"run": Path("none")}, RunError, "none: no such run folder"),
        ({"round_trip": Path("none")}, RunError, "none: no such run folder"),
        ({"student": {"source": Path("none.tsv")}}, DataError, "none.tsv: no such file"),
        ({"student": {"valid_source": Path("none.tsv")}}, DataError, "none.tsv: no such file"),
        (
            {"text": (Path("memory.po"),)},
            DataError,
            r"memory\.po is a PO file, text was expected, a sentence a line: save the sources of it so",
        ),
    ):
        with pytest.raises(error, match=f"^{message}"):
            distill(config(**changes), writer=failing)
        assert tree(here) == before


def test_a_student_of_other_pairs_is_not_replaced(config, writer):
    distill(config(), writer=writer())
    with pytest.raises(RunError, match=r"out was trained with other settings \(source .*mixed-.*, now .*mixed-"):
        distill(config(min_score=-2.0), writer=failing)


def test_a_writing_that_fails_leaves_what_is_done(config):
    def lost(*_: object) -> NoReturn:
        raise SystemError("lost")

    with pytest.raises(SystemError) as stopped:
        write_pairs(config(), writer=lost)
    assert stopped.value.__notes__ == ["out.pairs has the stages that are done: the same command goes on"]
    assert names(Path("out.pairs")) == ["text"]


def test_two_at_once_are_refused(config, writer):
    Path("out.pairs").mkdir()
    with (
        alone(Path("out.pairs/.lock"), "writing of pairs"),
        pytest.raises(RunError, match=r"^out\.pairs is used by another writing of pairs: wait for it, or stop it$"),
    ):
        write_pairs(config(), writer=writer())


def test_text_that_is_empty_leaves_no_folder(config):
    Path("empty.txt").write_text("\n")
    with pytest.raises(DataError, match="there is no text to translate"):
        write_pairs(config(text=(Path("empty.txt"),), written=Path("above/empty.pairs")))
    assert not Path("above").exists()


def test_a_kill_before_the_record_of_the_pairs_was_written(config, writer):
    pairs = write_pairs(config(), writer=writer())
    [record] = Path("out.pairs").glob("mixed-*.json")
    settings = json.loads(record.read_text())["settings"]
    record.unlink()
    assert write_pairs(config(), writer=failing) == pairs
    assert json.loads(record.read_text())["settings"] == settings
