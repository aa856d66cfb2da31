import json
import os
import shlex
from pathlib import Path

import pytest

pytest.importorskip("babel", reason='needs the extra: pip install "glassformer[demo]"')

from dataclasses import replace

from rich.console import Console

from glassformer.demo import demonstration
from glassformer.demo.dates import make_dates
from glassformer.demo.demonstration import demonstrate
from glassformer.errors import RunError
from glassformer.training.result import TrainResult


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demonstration of three updates on few dates."""
    settings = demonstration.settings
    changes = dict(d_model=16, heads=2, d_ff=16, max_updates=3, validate_every=3, score_pairs=5, device="cpu")
    monkeypatch.setattr(
        demonstration, "make_dates", lambda seed, train: make_dates(seed=seed, train=64, valid=7, test=16)
    )
    monkeypatch.setattr(demonstration, "settings", lambda *a, **more: replace(settings(*a, **more), **changes))


@pytest.mark.usefixtures("short")
def test_it_reports_every_language_and_replaces_its_own_run(tmp_path, capsys, monkeypatch):
    # Takes seconds: a whole training, however short, loads torch's optimizers and draws the curves.
    assert demonstrate(tmp_path / "dates", 1) == 0
    printed = capsys.readouterr().out
    assert "64 dates to learn from" in printed
    assert all(name in printed for name in ("English", "Chinese", "Held-out dates by style", "echo "))
    assert printed.splitlines()[-1] == "exact match 0.0 %"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["dates", "dates-data"]
    lines = (tmp_path / "dates-data" / "test.tsv").read_text(encoding="utf-8").splitlines()
    test = make_dates(seed=1, train=64, valid=7, test=16).test
    assert [tuple(line.split("\t")) for line in lines] == [(date.phrase, date.iso) for date in test]

    given = []
    unfinished = TrainResult(tmp_path, finished=False, updates=1, seconds=0.1, metric="exact", score=None, signal=15)
    monkeypatch.setattr(demonstration, "train", lambda config: given.append(config) or unfinished)
    assert [demonstrate(tmp_path / name, 2) for name in ("dates", "other")] == [15, 15]
    assert [config.overwrite for config in given] == [True, False]
    assert capsys.readouterr().out.endswith("The demonstration was interrupted; run it again for its results.\n")


def test_the_last_line_is_the_score_and_the_command_to_go_on_with_runs(tmp_path, capsys, monkeypatch):
    test = make_dates(seed=1, train=16, valid=7, test=16).test
    result = TrainResult(tmp_path / "dates", finished=True, updates=199, seconds=90.2, metric="exact", score=0.2)
    monkeypatch.setattr("sys.argv", ["site-packages/glassformer/__main__.py", "demo"])
    demonstration._report(Console(soft_wrap=True), test, ["1999-01-01"] * len(test), result)
    *before, last = capsys.readouterr().out.splitlines()
    assert last == "exact match 0.0 %"
    assert any(f"| python -m glassformer translate {tmp_path}/dates" in line for line in before)
    right = [date.iso for date in test]
    demonstration._report(Console(soft_wrap=True), test, right, result)
    assert capsys.readouterr().out.splitlines()[-1] == "exact match 100.0 %"


@pytest.mark.parametrize("name", ["my dates", "[v1]", "a[/b]"])
def test_the_command_can_be_copied_whatever_the_folder_is_called(tmp_path, capsys, monkeypatch, name):
    test = make_dates(seed=1, train=16, valid=7, test=16).test
    result = TrainResult(Path(name), finished=True, updates=199, seconds=90.2, metric="exact", score=0.2)
    monkeypatch.setattr("sys.argv", ["/opt/my env/bin/glassformer", "demo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    demonstration._report(Console(soft_wrap=True), test, ["1999-01-01"] * len(test), result)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Try one" in line)
    assert shlex.split(line.partition("| ")[2]) == ["/opt/my env/bin/glassformer", "translate", name]


def test_its_own_run_is_known_however_the_folder_is_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (Path("dates"), tmp_path / "dates", Path(os.fsdecode(b"caf\xe9"))):
        given.mkdir(exist_ok=True)
        data = given.with_name(f"{given.name}-data")
        training = {"settings": demonstration.settings(data, given, 1, overwrite=False).to_json()}
        config = {"format": 1, "model": {}, "source_tokenizer": "source.spm", "target_tokenizer": "target.spm"}
        (given / "config.json").write_text(json.dumps(config | {"training": training}))
        for asked in (given, tmp_path / given, tmp_path / "dates" / ".." / given.name):
            assert demonstration._was_made_from(asked.with_name(f"{given.name}-data"), asked)
        assert not demonstration._was_made_from(Path("other-data"), given)


def test_the_settings_are_those_that_the_readme_promises():
    settings = demonstration.settings(Path("data"), Path("out"), 3, overwrite=True)
    assert (settings.max_updates, settings.max_minutes) == (1400, None)  # by updates: as good on a busy machine
    assert (settings.seed, settings.overwrite) == (3, True)
    assert (settings.source, settings.valid_source) == (Path("data/train.tsv"), Path("data/valid.tsv"))


@pytest.mark.parametrize(
    "training",
    [
        {"imported": "huggingface marian"},  # without settings
        {"settings": {"source": "mine.tsv"}},
        {"settings": {"source": None}},
        {"settings": {}},
        {"settings": ["damaged"]},
        None,  # no run at all
    ],
)
def test_what_it_did_not_make_is_left_alone(tmp_path, training):
    out = tmp_path / "imported"
    out.mkdir()
    config = {"format": 1, "model": {}, "source_tokenizer": "source.spm", "target_tokenizer": "target.spm"}
    (out / "config.json").write_text(json.dumps(config if training is None else config | {"training": training}))
    before = (out / "config.json").read_bytes()
    with pytest.raises(
        RunError, match=r"imported is there already, and .* only a run that it made: choose another --out$"
    ):
        demonstrate(out, 1)
    assert [x.relative_to(tmp_path).as_posix() for x in sorted(tmp_path.rglob("*"))] == [
        "imported",
        "imported/config.json",
    ]
    assert (out / "config.json").read_bytes() == before


def test_a_file_of_somebody_elses_where_the_dates_go_is_left_alone(tmp_path):
    (tmp_path / "dates-data").mkdir()
    mine = tmp_path / "dates-data" / "valid.tsv"
    mine.write_text("a man\tein Mann\n")
    with pytest.raises(RunError, match=r"valid\.tsv is there already, and holds something else than dates: choose an"):
        demonstrate(tmp_path / "dates", 1)
    assert [path.name for path in tmp_path.rglob("*")] == ["dates-data", "valid.tsv"]
    assert mine.read_text() == "a man\tein Mann\n"
    (tmp_path / "other-data").touch()
    with pytest.raises(RunError, match=r"other-data is a file, and the dates go into a folder of this name: choose an"):
        demonstrate(tmp_path / "other", 1)
