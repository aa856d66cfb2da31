"""Whatever ends a training, it goes on to the same weights: processes of the command line, and real signals.

Slow, because every process imports torch. A full disk is in test_cli.py.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("undrawn", "every_update")

EVERY_UPDATE = str(Path(__file__).with_name("every_update.py"))
LENGTH = dict(max_updates=90, dropout=0.2, validate_every=30)
OFTEN = 1e-9
"""Seconds between checkpoints: one is always being written."""


@pytest.fixture(scope="module")
def uninterrupted(tiny, every_update, undrawn, tmp_path_factory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(tiny(folder, **LENGTH))
    return folder


def unfinished(folder: Path) -> list[Path]:
    """The files that are being written, or were when the process was lost."""
    return [path for pattern in (".*.tmp", ".tmp??????") for path in folder.rglob(pattern)]


def wait_for(process: subprocess.Popen[str], what: Callable[[], object]) -> None:
    """Return as soon as it is true."""
    until = time.monotonic() + 60
    while not what():
        assert process.poll() is None, f"it came to its end too early: {process.communicate()}"
        assert time.monotonic() < until
        time.sleep(0.0003)


def test_killed_again_and_again_it_ends_with_the_same_weights(settings, start, flags, files, uninterrupted):
    config = settings(**LENGTH, checkpoint_seconds=OFTEN)
    resumable = config.out / "resume"
    moments = [  # while its first checkpoint is written, after a validation, and while a later checkpoint is written
        lambda: any("checkpoint" in str(path) for path in unfinished(resumable)),
        (resumable / "snapshot-000000030.safetensors").exists,
        lambda: any(resumable.glob("checkpoint-*/*.safetensors")) and unfinished(resumable),
    ]
    left: list[list[Path]] = []
    for moment in moments:
        arguments = ["--resume", "--out", str(config.out)] if left else flags(config)
        process = start(sys.executable, EVERY_UPDATE, "train", *arguments)
        wait_for(process, moment)
        process.kill()
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert "warning" not in err
        left.append(unfinished(config.out))
    assert any(left)
    assert resume(config.out).updates == 90
    assert files.outcome(config.out) == files.outcome(uninterrupted)
    assert unfinished(config.out) == []
    assert not resumable.exists()


def test_sigterm_saves_and_says_how_to_go_on(settings, start, flags, files, uninterrupted):
    config = settings(**LENGTH)
    process = start(sys.executable, EVERY_UPDATE, "train", *flags(config))
    wait_for(process, (config.out / "metrics.jsonl").exists)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    again = f"glassformer train --resume --out {config.out}"
    found = re.fullmatch(rf"saved at update (\d+); continue with:\n  {re.escape(again)}\n", out)
    assert found, out
    assert err.endswith("\nsaving after this update\n")
    assert [path.name for path in (config.out / "resume").glob("checkpoint-*")] == [f"checkpoint-{int(found[1]):09d}"]
    assert resume(config.out).updates == 90
    assert files.outcome(config.out) == files.outcome(uninterrupted)
