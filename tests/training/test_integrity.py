"""Data that were damaged after they were prepared are never trained on; a run that can't go on loses nothing."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.data.corpus import Corpus
from glassformer.errors import GlassformerError, RunError
from glassformer.training import integrity
from glassformer.training.integrity import Integrity
from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("undrawn", "unchecked")

CHECKED = ["resume/valid.json", "source.symbols", "target.symbols"]
CHECKED += [
    f"resume/{part}/{side}.{end}"
    for part in ("train", "valid")
    for side in ("source", "target")
    for end in ("ids", "offsets")
]


def flip(path: Path, number: int = -1) -> None:
    """Change a bit, in a file of its own: those that are kept are links of it."""
    content = bytearray(path.read_bytes())
    content[number] ^= 1
    path.unlink()
    path.write_bytes(content)


@pytest.fixture(scope="module")
def begun(tiny, interrupting, tmp_path_factory) -> Path:
    """A run that was stopped at update 15 of 20, after a validation, and lost at 18, after a better one at 16."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    config = tiny(folder, max_updates=20, validate_every=5)
    with interrupting(13):
        train(config)
    checkpoint = folder / "resume" / "checkpoint-000000013"
    shutil.copytree(checkpoint, kept := folder.parent / "kept")
    with interrupting(5):
        resume(folder)
    shutil.rmtree(folder / "resume" / "checkpoint-000000018")
    shutil.rmtree(checkpoint, ignore_errors=True)
    shutil.copytree(kept, checkpoint)
    (folder / "resume" / "checkpoint-000000019").mkdir()
    (folder / "resume" / "checkpoint-000000019" / "half").touch()
    return folder


@pytest.fixture
def run(begun, tmp_path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


@pytest.fixture(scope="module")
def whole(tiny, files, tmp_path_factory) -> tuple:
    """What such a run comes to when nothing disturbs it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(tiny(folder, max_updates=20, validate_every=5))
    return files.outcome(folder)


def test_it_goes_on_from_its_checkpoint(run, whole, files):
    resume(run)
    assert files.outcome(run) == whole


@pytest.mark.parametrize("name", CHECKED)
def test_a_changed_bit_in_anything_that_training_reads_is_found(run, tree, name):
    flip(run / name)
    before = tree(run)
    with pytest.raises(GlassformerError, match=f"{Path(name).name}"):
        resume(run)
    assert tree(run) == before, "metrics, weights and checkpoints are as they were"


def test_what_is_damaged_is_named_with_what_to_do(run):
    flip(run / "resume" / "train" / "source.ids", 3)
    message = (
        r"^\S+run/resume/train/source\.ids is damaged \(its checksum is another\): copy it again from where it was "
        r"whole, or train anew with --overwrite$"
    )
    with pytest.raises(RunError, match=message):
        resume(run)


FAILURES: dict[str, Callable[[Path], object]] = {
    "config": lambda run: (run / "config.json").write_text("{"),
    "an array is missing": lambda run: (run / "resume/train/target.ids").unlink(),
    "an array is cut": lambda run: os.truncate(run / "resume/valid/source.offsets", 20),
    "an array is a pipe": lambda run: [
        (run / "resume/train/source.ids").unlink(),
        os.mkfifo(run / "resume/train/source.ids"),
    ],
    "an array is a link": lambda run: (
        (run / "resume/train/source.ids").rename(run.parent / "array")
        and (run / "resume/train/source.ids").symlink_to(run.parent / "array")
    ),
    "tokenizer": lambda run: (run / "source.symbols").unlink(),
    "validation text": lambda run: (run / "resume/valid.json").unlink(),
    "checksums": lambda run: (run / "resume/checksums.json").write_text("[]"),
    "checkpoint": lambda run: flip(run / "resume/checkpoint-000000013/00001-of-00001.safetensors"),
}


@pytest.mark.parametrize("spoil", FAILURES.values(), ids=FAILURES)
def test_a_run_that_cannot_go_on_loses_nothing(run, tree, spoil):
    """Its weights are usable, and its figures true, whatever is wrong with what only training needs."""
    spoil(run)

    def regular():
        return {name: content for name, content in tree(run).items() if not (run / name).is_fifo()}

    before = regular()
    assert {"model.safetensors", "resume/best-000000015.safetensors", "resume/checkpoint-000000019"} <= set(before)
    with pytest.raises(GlassformerError):
        resume(run)
    assert regular() == before


@pytest.fixture
def large(monkeypatch) -> threading.Event:
    """All files count as large: their check is under way until the event is set."""
    monkeypatch.setattr(integrity, "CHECKED_FIRST", 0)
    goes_on, find = threading.Event(), integrity.fingerprint
    monkeypatch.setattr(integrity, "fingerprint", lambda path: goes_on.wait(60) and find(path))
    return goes_on


def test_large_files_are_checked_while_training_begins(run, whole, large, files, tree):
    (run / "resume" / "lock").touch()  # it is there while a process trains
    before, written = set(tree(run).items()), list[set]()

    def look() -> None:
        written.append(set(tree(run).items()) ^ before)
        large.set()

    threading.Timer(0.5, look).start()
    resume(run)
    assert {name for name, _ in written[0]} == {"resume/lock"}, "which has the process's id by now"
    assert files.outcome(run) == whole


def test_large_files_that_are_damaged_stop_it_before_it_writes(run, large, tree):
    flip(run / "resume" / "train" / "source.ids", 0)
    before = tree(run)
    threading.Timer(0.3, large.set).start()
    with pytest.raises(RunError, match=r"source\.ids is damaged \(its checksum is another\)"):
        resume(run)
    assert {name: content for name, content in tree(run).items() if name != "resume/lock"} == before


def test_an_id_beyond_the_vocabulary_is_named_whatever_it_does_to_the_model(run, large):
    path = run / "resume" / "train" / "source.ids"
    content = bytearray(path.read_bytes())
    content[0:4] = (1 << 30).to_bytes(4, "little")
    path.unlink()
    path.write_bytes(content)
    (run / "resume" / "checksums.json").unlink()
    large.set()
    with (
        pytest.raises(RunError, match=r"source\.ids is damaged \(the vocabulary has 10 ids, got 1073741824\)"),
        pytest.warns(UserWarning, match="checksums.json is missing, so it can't be known whether a file has changed"),
    ):
        resume(run)


def test_a_run_from_before_checksums_goes_on_with_a_warning(run):
    (run / "resume" / "checksums.json").unlink()
    with pytest.warns(UserWarning, match=r"resume/checksums\.json is missing"):
        assert resume(run).finished


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ([0, 2, 1, 5], "its offsets are not those of the sequences"),
        ([0, 2, 2, 5], "its offsets are not those of the sequences"),
        ([1, 2, 3, 5], "its offsets are not those of the sequences"),
        ([0, 2, 3, 6], "its offsets are not those of the sequences"),
        ([0], "its offsets are not those of the sequences"),
        ([0, 2, 5], "it has 2 sources and 3 targets"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, offsets, reason):
    for side, ends in (("source", offsets), ("target", [0, 2, 3, 5])):
        (tmp_path / f"{side}.ids").write_bytes(b"\1\0\0\0" * 5)
        (tmp_path / f"{side}.offsets").write_bytes(b"".join(end.to_bytes(8, "little") for end in ends))
    with pytest.raises(RunError, match=f"is damaged \\({reason}\\)"):
        Corpus(tmp_path)


def test_a_link_in_resume_is_refused(run, tmp_path):
    """A folder from a stranger: training would write through it."""
    (tmp_path / "precious").mkdir()
    (run / "resume" / "checkpoint-000000020").symlink_to(tmp_path / "precious")
    with pytest.raises(
        RunError, match="checkpoint-000000020 is a link, and what training reads and writes must be its own"
    ):
        Integrity(run)


def test_a_damaged_alignment_says_what_to_do(settings, interrupting):
    with interrupting(3):
        train(config := settings("guided", guide=0.1, max_updates=9))
    flip(config.out / "resume" / "alignment.safetensors")
    with pytest.raises(RunError, match=r"alignment\.safetensors is damaged \(.*\): remove it, and it is learned again"):
        resume(config.out)
    (config.out / "resume" / "alignment.safetensors").unlink()
    assert resume(config.out).finished


def test_damaged_best_weights_are_made_up_for(run, settings):
    flip(run / "resume" / "best-000000010.safetensors")
    with pytest.warns(
        UserWarning, match=r"best-000000010\.safetensors is damaged; the next validation counts as the best"
    ):
        result = resume(run)
    assert result.finished
    assert (run / "model.safetensors").exists()
