import json
import threading
import time
from pathlib import Path

import pytest
import torch

from glassformer.attention.kernels import calibration
from glassformer.attention.kernels.calibration import MARGIN, Calibration, onednn_beats_mkl, recall
from glassformer.errors import ArgumentError

MACHINE = "a processor\na torch"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path) -> Path:
    """A process that has asked nothing yet, and the user's cache folder."""
    monkeypatch.setattr(calibration, "_known", {})
    monkeypatch.delenv(calibration.SETTING)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "glassformer" / "calibration"


@pytest.fixture
def measured(monkeypatch) -> list[float]:
    """The speeds of oneDNN, where MKL's is 100, that are measured one after the other; those left weren't needed."""
    speeds: list[float] = []
    monkeypatch.setattr(calibration, "has_both", lambda: True)
    monkeypatch.setattr(
        calibration, "measure", lambda machine: Calibration(calibration.FORMAT, machine, 100.0, speeds.pop(0))
    )
    return speeds


@pytest.mark.parametrize(("speed", "expected"), [(100 * MARGIN - 1, False), (100 * MARGIN + 1, True), (30.0, False)])
def test_onednn_must_be_clearly_faster(measured, speed, expected):
    measured.append(speed)
    assert onednn_beats_mkl() is expected
    assert onednn_beats_mkl() is expected  # once a process


def test_another_process_repeats_the_answer(measured, monkeypatch, forgotten):
    measured.extend([237.0, 59.0])
    assert onednn_beats_mkl()
    (file,) = forgotten.iterdir()
    assert json.loads(file.read_text())["onednn"] == 237.0
    monkeypatch.setattr(calibration, "_known", {})
    assert onednn_beats_mkl()
    assert measured == [59.0]


def test_off_is_torchs_own_way(measured, monkeypatch, forgotten):
    monkeypatch.setenv(calibration.SETTING, "off")
    assert not onednn_beats_mkl()
    assert not forgotten.exists()
    monkeypatch.setenv(calibration.SETTING, "no")
    with pytest.raises(ArgumentError, match="GLASSFORMER_CALIBRATION must be on or off, got 'no'"):
        onednn_beats_mkl()
    measured.append(237.0)
    monkeypatch.setenv(calibration.SETTING, "on")
    assert onednn_beats_mkl()


def test_a_torch_without_one_of_the_libraries_has_no_choice(measured, monkeypatch):
    monkeypatch.setattr(calibration, "has_both", lambda: False)
    assert not onednn_beats_mkl()


SPOILT = {
    "empty": b"",
    "cut": b'{"format": 1, "mach',
    "another machine's": json.dumps(dict(format=1, machine="other", mkl=1.0, onednn=7.0)).encode(),
    "another format": json.dumps(dict(format=2, machine=MACHINE, mkl=1.0, onednn=7.0)).encode(),
    "no speeds": json.dumps(dict(format=1, machine=MACHINE, mkl=0.0, onednn=0.0)).encode(),
    "too large": b" " * (1 << 20),
}


@pytest.mark.parametrize("content", SPOILT.values(), ids=SPOILT)
def test_a_damaged_file_is_measured_anew(measured, tmp_path, content):
    measured.append(211.0)
    recall(tmp_path, MACHINE)
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(content)
    measured.append(223.0)
    assert recall(tmp_path, MACHINE).onednn == 223.0
    assert recall(tmp_path, MACHINE).onednn == 223.0
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_folder_that_cant_be_written_to_does_no_harm(measured, tmp_path):
    measured.extend([211.0, 223.0])
    (tmp_path / "file").touch()
    assert recall(tmp_path / "file" / "calibration", MACHINE).onednn == 211.0
    assert recall(None, MACHINE).onednn == 223.0


def test_a_folder_in_place_of_the_file_does_no_harm(measured, tmp_path):
    measured.extend([211.0, 223.0])
    recall(tmp_path, MACHINE)
    (file,) = tmp_path.glob("*.json")
    file.unlink()
    file.mkdir()
    assert recall(tmp_path, MACHINE).onednn == 223.0
    assert file.is_dir()


def test_of_processes_that_measure_at_once_the_first_ones_answer_counts(measured, monkeypatch, tmp_path):
    def slow(machine: str) -> Calibration:
        monkeypatch.setattr(calibration, "measure", lambda machine: Calibration(1, machine, 100.0, 59.0))
        assert recall(tmp_path, machine).onednn == 59.0  # another process, meanwhile
        return Calibration(1, machine, 100.0, 237.0)

    monkeypatch.setattr(calibration, "measure", slow)
    assert recall(tmp_path, MACHINE).onednn == 59.0


def test_threads_wait_for_one_answer(measured, monkeypatch):
    asked = []

    def slow(setting: str) -> bool:
        asked.append(setting)
        time.sleep(0.05)
        return True

    monkeypatch.setattr(calibration, "_ask", slow)
    threads = [threading.Thread(target=onednn_beats_mkl) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == ["on"]


@pytest.mark.parametrize("given", ["", "relative"])
def test_the_folder_is_in_the_users_home_unless_an_absolute_one_is_given(monkeypatch, tmp_path, given):
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setattr("os.path.expanduser", {"~": str(tmp_path)}.get)
    assert calibration.folder() == tmp_path / ".cache" / "glassformer" / "calibration"
    monkeypatch.setattr("os.path.expanduser", {"~": "~"}.get)
    assert calibration.folder() is None


@pytest.mark.skipif(not calibration.has_both(), reason="this torch lacks MKL or oneDNN")
def test_measuring_changes_nothing_and_is_short():
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        began = time.perf_counter()
        found = calibration.measure(MACHINE)
        took = time.perf_counter() - began
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), random)
    assert found.machine == MACHINE
    assert min(found.mkl, found.onednn) > 0
    assert took < 2  # under 0.1 on an idle machine


def test_what_is_measured_is_told_by_the_processor_and_the_torch():
    assert torch.__version__ in calibration.describe()
    assert len(calibration.describe()) < calibration.MOST_BYTES / 2
