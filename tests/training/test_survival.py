"""Killed at any moment, a training goes on to the same weights: with processes of the command line.

They are forks of a process that has loaded torch. SIGTERM is in test_distributed.py, a full disk in test_cli.py.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("undrawn", "every_update", "unchecked_trainings")

LENGTH = dict(max_updates=90, dropout=0.2, validate_every=30)


def unfinished(folder: Path) -> list[Path]:
    """The folders of files that are being written, or were when the process was lost."""
    return list(folder.rglob(".*.tmp"))


def wait_for(process: subprocess.Popen[str], what: Callable[[], object]) -> None:
    """Return as soon as it is true."""
    until = time.monotonic() + 60
    while not what():
        assert process.poll() is None, f"it came to its end too early: {process.communicate()}"
        assert time.monotonic() < until
        time.sleep(0.0003)


def test_killed_again_and_again_it_ends_with_the_same_weights(
    settings, start, every_update_forked, flags, files, tmp_path
):
    train(undisturbed := settings("undisturbed", **LENGTH))
    config = settings(**LENGTH, checkpoint_seconds=1e-9)  # a checkpoint is always being written
    resumable = config.out / "resume"
    moments = [  # while its first checkpoint is written, after a validation, and while a later checkpoint is written
        lambda: any("checkpoint" in str(path) for path in unfinished(resumable)),
        (resumable / "snapshot-000000030.safetensors").exists,
        lambda: any(resumable.glob("checkpoint-*/*.safetensors")) and unfinished(resumable),
    ]
    left, pid = list[list[Path]](), tmp_path / "pid"
    for moment in moments:
        pid.unlink(missing_ok=True)
        arguments = ["--resume", "--out", str(config.out)] if left else flags(config)
        process = start(*every_update_forked, "train", *arguments, PID=str(pid))
        wait_for(process, lambda: pid.exists() and pid.stat().st_size)
        wait_for(process, moment)
        os.kill(int(pid.read_text()), signal.SIGKILL)  # at once, rather than the process that stands for it
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert "warning" not in err
        left.append(unfinished(config.out))
    assert any(left)
    assert resume(config.out).updates == 90
    assert files.outcome(config.out) == files.outcome(undisturbed.out)
    assert unfinished(config.out) == []
    assert not resumable.exists()
