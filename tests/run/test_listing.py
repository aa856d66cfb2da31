"""What `glassformer runs` says of run folders, whole and damaged, and of those that are none."""

import io
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glassformer.errors import RunError
from glassformer.run.folder import load_run
from glassformer.run.listing import RunSummary, advice, as_lines, as_table, find_runs, summarize
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training.config import TrainConfig
from glassformer.training.train import train

NOON = 1_700_000_000.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, random_run: Callable) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    random_run(folder, SymbolTokenizer("abcd"), SymbolTokenizer("uvwxyz"))
    edit_config(folder, lambda config: config["training"].update(settings={"max_updates": 500}))
    figures: list[dict[str, Any]] = [
        {"update": 200, "epoch": 1, "loss": 4.5, "seconds": 61.5, "learning_rate": 1e-3},
        {"update": 250, "valid_loss": 3.25, "metric": "bleu", "score": 31.75},
        {"update": 500, "epoch": 2, "loss": 2.5, "seconds": 3725.0, "learning_rate": 5e-4},
        {"update": 500, "valid_loss": 3.125, "metric": "bleu", "score": 29.5},
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in figures))
    return folder


@pytest.fixture
def make(trained: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copies the run to another name, and changes it."""

    def copy(name: str = "run", *changes: Callable[[Path], object]) -> Path:
        folder = tmp_path / name
        shutil.copytree(trained, folder)
        for change in changes:
            change(folder)
        return folder

    return copy


def edit_config(run: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))


def unfinished(run: Path) -> None:
    """As it is before the first validation and checkpoint."""
    (run / "resume" / "train").mkdir(parents=True)
    for name in ("model.safetensors", "metrics.jsonl"):
        (run / name).unlink()


def checkpoint(run: Path, update: int, seconds: float, *, rank: int = 1, files: int = 1) -> Path:
    """The header of one, which is what is read of it."""
    path = run / "resume" / f"checkpoint-{update:09d}" / f"{rank:05d}-of-{files:05d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    position = json.dumps({"update": update, "epoch": 3, "seconds": seconds})
    header = {"__metadata__": {"position": position}, "x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    return path


def set_age(run: Path, seconds: float) -> None:
    for path in run.iterdir():
        os.utime(path, (NOON - seconds, NOON - seconds))


def states(folder: Path) -> dict[str, str]:
    return {str(run.run.relative_to(folder)): run.state for run in find_runs(folder)}


# One run


def test_a_finished_run(make):
    run = make()
    set_age(run, 100)
    model = load_run(run).model
    figures = dict(updates=500, max_updates=500, metric="bleu", score=31.75, valid_loss=3.25, seconds=3725.0)
    figures["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    figures["bytes"] = (run / "model.safetensors").stat().st_size
    assert summarize(run) == RunSummary(run=run, state="done", changed=NOON - 100, problem="", **figures)


def test_a_training_has_come_as_far_as_it_says_and_a_stopped_one_goes_on_from_its_checkpoint(make, holding):
    run = make("run", lambda run: checkpoint(run, 300, 1000.0))
    with holding(run):
        found = summarize(run)
        assert (found.state, found.updates, found.seconds) == ("training", 500, 3725.0)
    found = summarize(run)
    assert (found.state, found.updates, found.seconds) == ("unfinished", 300, 1000.0)
    assert (found.score, found.max_updates) == (31.75, 500)
    with holding(run):
        for name in ("model.safetensors", "metrics.jsonl"):  # which come with the first validation
            (run / name).unlink()
        found = summarize(run)
        assert (found.state, found.updates, found.seconds, found.problem) == ("training", None, None, "")


def test_stopped_before_the_first_checkpoint(make):
    found = summarize(make("run", unfinished))
    assert (found.state, found.updates, found.seconds, found.parameters) == ("unfinished", 0, 0.0, None)


def test_the_newest_checkpoint_that_is_complete_counts(make):
    run = make("run", unfinished)
    checkpoint(run, 100, 10.0)
    checkpoint(run, 200, 20.0, rank=1, files=2)
    checkpoint(run, 200, 20.0, rank=2, files=2)
    checkpoint(run, 300, 30.0, rank=1, files=2)  # the other process was lost
    path = checkpoint(run, 400, 40.0)
    path.write_bytes(path.read_bytes()[:-1])
    (run / "resume" / "checkpoint-000000500").mkdir()
    assert summarize(run).updates == 200
    for damaged in run.glob("resume/checkpoint-*/*"):
        damaged.write_bytes(b"x")
    assert (summarize(run).state, summarize(run).problem) == ("damaged", "no checkpoint in resume can be read")


def test_killed_at_its_very_end_it_is_done(make):
    run = make()
    (run / "resume").mkdir()
    (run / "resume" / "lock").touch()
    assert summarize(run).state == "done"


@pytest.mark.parametrize(("given", "expected"), [({}, 5000), ({"max_updates": 7}, 7), ({"max_minutes": 0.5}, None)])
def test_a_chosen_limit_counts_where_none_was_given(make, given, expected):
    def limited(config: dict) -> None:
        config["training"].update(settings=given, chosen={"max_updates": 5000})

    assert summarize(make("limited", lambda run: edit_config(run, limited))).max_updates == expected


def test_an_imported_model(make):
    def imported(config: dict) -> None:
        config["training"] = {"imported": "huggingface marian"}

    run = make("opus", lambda run: edit_config(run, imported), lambda run: (run / "metrics.jsonl").unlink())
    found = summarize(run)
    assert (found.state, found.problem) == ("imported", "")
    assert (found.updates, found.score, found.seconds, found.max_updates) == (None, None, None, None)
    assert found.parameters == summarize(make()).parameters


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:size])


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda run: (run / "model.safetensors").unlink(), "model.safetensors is missing"),
        (cut("model.safetensors", 100), "model.safetensors is damaged or cut off"),
        (cut("model.safetensors", 9999), "model.safetensors is cut off: it has 9,999 of "),
        (lambda run: (run / "model.safetensors").write_bytes(bytes(99)), "model.safetensors is damaged ("),
        (lambda run: (run / "source.symbols").unlink(), "source.symbols is missing"),
        (lambda run: (run / "config.json").unlink(), "config.json is missing"),
        (
            lambda run: (run / "config.json").write_bytes(b"\xff{"),
            "config.json was not written by glassf",
        ),
        (lambda run: (run / "config.json").write_text("[]"), "config.json was not written by glassformer, or is d"),
        (lambda run: edit_config(run, lambda c: c.pop("format")), "config.json was not written by glassformer, or"),
        (lambda run: edit_config(run, lambda c: c.pop("model")), "config.json is damaged: the object lacks model"),
        (
            lambda run: edit_config(run, lambda c: c.pop("target_tokenizer")),
            "config.json is damaged: the obj",
        ),
        (
            lambda run: edit_config(run, lambda c: c.update(format=2)),
            "config.json has format version 2, this glassf",
        ),
    ],
)
def test_a_damaged_run(make, spoil, problem):
    run = make("run", spoil)
    [found] = find_runs(run.parent)
    assert found.state == "damaged"
    assert found.problem.startswith(problem)


def test_weights_are_not_read(make):
    run = make()
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 1 << 30], "data_offsets": [0, 1 << 33]}}).encode()
    (run / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(run / "model.safetensors", 8 + len(header) + (1 << 33))  # 8 GiB, nearly all of it a hole
    found = summarize(run)
    assert (found.state, found.parameters, found.bytes) == ("done", 1 << 31, 8 + len(header) + (1 << 33))


def test_settings_that_make_no_sense_are_not_known(make):
    for settings, state in (({"max_updates": "many"}, "done"), ({}, "done"), (None, "done"), (7, "damaged")):
        run = make("run", lambda run, s=settings: edit_config(run, lambda c: c["training"].update(settings=s)))
        assert (summarize(run).state, summarize(run).max_updates) == (state, None)
        shutil.rmtree(run)


@pytest.mark.parametrize(("given", "limit"), [(None, 5400), (300, 300)])
def test_a_limit_that_the_task_chose_is_shown_unless_one_was_given(make, given, limit):
    settings = dict(settings={"max_updates": given}, chosen={"max_updates": 5400})
    run = make("run", lambda run: edit_config(run, lambda config: config["training"].update(settings)))
    assert summarize(run).max_updates == limit


# Many


def test_the_last_changed_comes_first(make, tmp_path):
    for name, age in (("b", 300), ("a", 300), ("new", 7), ("old", 9000)):
        set_age(make(name), age)
    assert list(states(tmp_path)) == ["new", "a", "b", "old"]
    os.utime(tmp_path / "old" / "metrics.jsonl", (NOON, NOON))
    assert list(states(tmp_path)) == ["old", "new", "a", "b"]


def test_runs_are_found_below_folders_and_nothing_else_is(make, tmp_path):
    make("one")
    make("x/two")
    make("x/y/z/deep")
    make("x/y/z/w/too-deep")
    make(".prepared/hidden")
    make("x/.two.abc.preparing")
    make("one/inside")
    for name, content in {
        "huggingface/config.json": '{"model_type": "marian"}',
        "other/config.json": "{",
        "another/metrics.jsonl": '{"update": 1}',
        "thesis/chapter1.txt": "ten years of work",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    assert set(states(tmp_path)) == {"one", "x/two", "x/y/z/deep"}


def test_links_are_followed_and_rings_have_an_end(make, tmp_path):
    run = make("elsewhere/run")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(run)
    (tmp_path / "runs" / "ring").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "nowhere").symlink_to(tmp_path / "gone")
    assert states(tmp_path / "runs")["link"] == "done"


def test_a_run_shows_itself(make):
    run = make()
    assert [found.run for found in find_runs(run)] == [run]


def test_no_runs(tmp_path):
    fix = "name another folder, or make one with glassformer train --source PAIRS --out"
    with pytest.raises(RunError, match=f"^there are no runs in {tmp_path}: {fix} {tmp_path}/NAME$"):
        find_runs(tmp_path)
    with pytest.raises(RunError, match=f"^{tmp_path}/gone is not there: {fix}"):
        find_runs(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file is a file, and not a folder of runs: name another folder$"):
        find_runs(tmp_path / "file")


# What is shown


def summary(**changes: Any) -> RunSummary:
    known = dict(run=Path("runs/one"), state="done", updates=12_340, max_updates=50_000, metric="bleu", score=31.756)
    known |= dict(valid_loss=1.23456, parameters=6_001_664, bytes=24_016_176, seconds=2382.6, changed=NOON, problem="")
    return RunSummary(**{**known, **changes})


NOTHING = dict.fromkeys(
    ("updates", "max_updates", "metric", "score", "valid_loss", "parameters", "bytes", "seconds"), None
)


def test_lines_for_programs():
    found = [summary(), summary(run=Path("a\tb  c\nd"), state="damaged", problem="gone", **NOTHING)]
    header, *lines = as_lines(found)
    assert header.split("\t")[:6] == ["run", "state", "updates", "max_updates", "metric", "score"]
    assert header.split("\t")[6:] == ["valid_loss", "parameters", "bytes", "seconds", "changed", "problem"]
    first, second = (line.split("\t") for line in lines)
    figures = ("12340", "50000", "bleu", "31.756", "1.2346", "6001664", "24016176", "2382.6")
    assert first[:10] == ["runs/one", "done", *figures]
    assert second == ["a b  c d", "damaged", *[""] * 8, first[10], "gone"]
    assert first[10] == time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOON)) + first[10][19:]
    assert first[11] == ""


def rows(found: list[RunSummary], width: int = 100, now: float = NOON) -> list[list[str]]:
    """The cells of the table as printed, split where two blanks or more are."""
    file = io.StringIO()
    Console(file=file, width=width).print(as_table(found, width, now=now))
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in file.getvalue().splitlines()]


def test_the_table_for_people():
    header, *cells = rows(
        [
            summary(),
            summary(run=Path("two"), state="training", bytes=999, parameters=999, seconds=45.4, valid_loss=0.5),
            summary(run=Path("[red]"), state="imported", **NOTHING),
        ]
    )
    assert header == ["run", "state", "updates", "score", "loss", "params", "size", "time", "changed"]
    assert cells == [
        ["runs/one", "done", "12,340", "bleu 31.76", "1.235", "6.0 M", "24 MB", "39:43", "just now"],
        ["two", "training", "12,340/50,000", "bleu 31.76", "0.500", "999", "999 B", "0:45", "just now"],
        ["[red]", "imported", "just now"],
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "just now"), (59, "just now"), (60, "1 min ago"), (3599, "59 min ago"), (86_399, "23 h"), (86_400, "2023-")],
)
def test_when_it_was_changed(seconds, shown):
    assert rows([summary()], now=NOON + seconds)[1][-1].startswith(shown)


def test_a_narrow_terminal_shows_fewer_columns_and_cuts_none():
    found = [summary(), summary(run=Path("two"), state="unfinished", seconds=12_382.6)]
    names, dropped = rows(found, width=100)[0], []
    cells = {name: [] for name in names}
    for width in range(100, 46, -1):
        header, first, second = rows(found, width)
        dropped += [name for name in names if name not in (*header, *dropped)]
        for name, *shown in zip(header, first, second, strict=True):
            cells[name].append(shown)
    assert dropped == ["params", "loss", "size", "changed", "time"]
    assert all(shown == cells[name][0] for name in names for shown in cells[name])
    # 8 + 10 + 13 + 10 letters from run to score, then 7, 8, 5, 5, 6 from time to params; two blanks between columns.
    least = {"params": 88, "loss": 80, "size": 73, "changed": 66, "time": 56, "score": 47}
    assert {name: 101 - len(cells[name]) for name in least} == least


def test_a_long_name_is_folded():
    path = "runs/" + "語x" * 30
    header, first, *more = rows([summary(run=Path(path))], width=100)
    assert len(header) == 9
    assert first[1:] == ["done", "12,340", "bleu 31.76", "1.235", "6.0 M", "24 MB", "39:43", "just now"]
    assert "".join([first[0], *(line[0] for line in more)]) == path
    narrow = rows([summary(run=Path("a/" * 14), state="unfinished")], width=50)
    assert narrow[1][1:] == ["unfinished", "12,340/50,000", "bleu 31.76"]


def test_a_name_moves_no_cursor():
    escape = summary(run=Path("runs/\x1b[2J"), state="unfinished", problem="no \x07")
    assert rows([escape], width=100)[1][0] == r"runs/\x1b[2J"
    damage, *_, command = advice([escape])
    assert damage == r"runs/\x1b[2J: no \x07"
    assert command.endswith(r"--out 'runs/\x1b[2J'")


def test_what_to_do_next():
    found = [
        summary(),
        summary(run=Path("runs/half done"), state="unfinished"),
        summary(run=Path("runs/lost"), state="damaged", problem="config.json is missing"),
        summary(run=Path("third"), state="unfinished"),
    ]
    assert list(advice(found)) == [
        "runs/lost: config.json is missing",
        "continue what is unfinished with:",
        "  glassformer train --resume --out 'runs/half done'",
        "  glassformer train --resume --out third",
    ]
    assert list(advice(found[:1])) == []


COMMAND = (
    "import sys\nfrom glassformer.cli import main\ntry: main(['runs', *sys.argv[1:]])\n"
    "finally: print(*{'torch', 'numpy', 'safetensors', 'sentencepiece'} & set(sys.modules), file=sys.stderr)"
)


def test_the_command_in_a_pipe_loads_no_torch(make, tmp_path):
    make("runs/one")
    make("runs/two", unfinished)
    done = subprocess.run([sys.executable, "-c", COMMAND], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "\n")
    header, *lines = (line.split("\t") for line in done.stdout.splitlines())
    assert header[:2] == ["run", "state"]
    assert sorted(line[:3] for line in lines) == [["runs/one", "done", "500"], ["runs/two", "unfinished", "0"]]


DEEP = b'{"format": 1, "model": ' + b"[" * 100_000
SPOILED: dict[str, Callable[[Path], object]] = {
    "deep config": lambda run: (run / "config.json").write_bytes(DEEP),
    "deep heads": lambda run: (run / "config.json").write_bytes(b'{"format": ' + b'{"x":' * 100_000),
    "long format": lambda run: edit_config(run, lambda c: c.update(format=10**400)),
    "long loss": lambda run: (run / "metrics.jsonl").write_text('{"update": 1, "loss": %s}\n' % ("9" * 400)),
    "endless loss": lambda run: (run / "metrics.jsonl").write_text('{"update": 1, "loss": 1e400}\n'),
    "long update": lambda run: (run / "metrics.jsonl").write_text('{"update": %s, "loss": 1}\n' % ("9" * 5000)),
    "one line": lambda run: (run / "metrics.jsonl").write_bytes(b"x" * 10_000_000),
    "pipe for config": lambda run: ((run / "config.json").unlink(), os.mkfifo(run / "config.json")),
    "pipe for metrics": lambda run: ((run / "metrics.jsonl").unlink(), os.mkfifo(run / "metrics.jsonl")),
    "pipe for weights": lambda run: ((run / "model.safetensors").unlink(), os.mkfifo(run / "model.safetensors")),
    "device for config": lambda run: ((run / "config.json").unlink(), (run / "config.json").symlink_to("/dev/zero")),
    "folder for config": lambda run: ((run / "config.json").unlink(), (run / "config.json").mkdir()),
    "wrong header": lambda run: (run / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b'{"x": 1}'),
    "long header": lambda run: (run / "model.safetensors").write_bytes(b"\xff" * 6 + bytes(2) + b"{}"),
    "odd name \udcff\udcfe": lambda run: None,
    "odd name \x1b[31m": lambda run: None,
}


def test_bad_folders_break_nothing(make, tmp_path):
    make("good")
    for name, spoil in SPOILED.items():
        make(name, spoil)
    found = states(tmp_path)
    usable = {name for name in SPOILED if name.startswith(("odd", "long loss", "endless", "long update", "one line"))}
    assert found == {"good": "done", **{name: "done" if name in usable else "damaged" for name in SPOILED}}
    done = subprocess.run([sys.executable, "-c", COMMAND, "."], cwd=tmp_path, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"\n")
    assert b"good\tdone" in done.stdout


def test_the_command_on_a_terminal(make, tmp_path):
    make("one")
    make("two", unfinished)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "."], cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, env=environment
        )
        os.close(theirs)
        shown = terminal.read(1 << 16).decode()
    assert (done.returncode, done.stderr) == (0, b"\n")
    assert "\033[32mdone" in shown
    assert "bleu 31.75" in shown
    assert shown.endswith("continue what is unfinished with:\r\n  glassformer train --resume --out two\r\n")


def test_a_run_as_training_leaves_it_interrupted_and_finished(settings, interrupting):
    config = settings(max_updates=30)
    with interrupting(23):
        train(config)
    found = summarize(config.out)
    assert (found.state, found.problem) == ("unfinished", "")
    assert (found.updates, found.max_updates, found.metric) == (23, 30, "bleu")
    assert found.seconds is not None
    assert 0 < found.seconds < 60
    result = train(TrainConfig(out=config.out, resume=True))
    found = summarize(config.out)
    assert (found.state, found.problem, found.updates) == ("done", "", 30)
    assert result.score is not None
    assert found.valid_loss is not None
