"""Whatever ends a training, it goes on to the same weights: real signals, a full disk, too little memory.

Slow, because each of these needs processes of their own.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassformer.training import loop
from glassformer.training.config import TrainConfig
from glassformer.training.result import TrainResult
from glassformer.training.train import train

pytestmark = pytest.mark.usefixtures("undrawn")

EVERY_UPDATE = str(Path(__file__).with_name("every_update.py"))
LENGTH = dict(max_updates=150, dropout=0.2, validate_every=30)
OFTEN = 1e-9
"""Seconds between checkpoints: one is always being written."""


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def course(folder: Path) -> list[tuple[float, ...]]:
    """Update, loss and score of every line of metrics.jsonl."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    names = ("update", "loss", "valid_loss", "score", "learning_rate")
    return [tuple(line.get(name) for name in names) for line in lines]


def resume(folder: Path, **changes) -> TrainResult:
    return train(TrainConfig(out=folder, resume=True, **changes))


@pytest.fixture(scope="module")
def every_update() -> Iterator[None]:
    """As in every_update.py there is a line in metrics.jsonl for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "REPORT_EVERY", 1)
        yield


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


def test_killed_again_and_again_it_ends_with_the_same_weights(settings, commands, flags, uninterrupted):
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
        process = commands.start(sys.executable, EVERY_UPDATE, "train", *arguments)
        wait_for(process, moment)
        process.kill()
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert "warning" not in err
        left.append(unfinished(config.out))
    assert any(left)
    assert resume(config.out).updates == 150
    assert weights(config.out) == weights(uninterrupted)
    assert course(config.out) == course(uninterrupted)
    assert unfinished(config.out) == []
    assert not resumable.exists()


def test_sigterm_saves_and_says_how_to_go_on(settings, commands, flags, uninterrupted):
    config = settings(**LENGTH)
    process = commands.start(sys.executable, EVERY_UPDATE, "train", *flags(config))
    wait_for(process, (config.out / "metrics.jsonl").exists)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    again = f"glassformer train --resume --out {config.out}"
    found = re.fullmatch(rf"saved at update (\d+); continue with:\n  {re.escape(again)}\n", out)
    assert found, out
    assert err.endswith("\nsaving after this update\n")
    assert [path.name for path in (config.out / "resume").glob("checkpoint-*")] == [f"checkpoint-{int(found[1]):09d}"]
    assert resume(config.out).updates == 150
    assert weights(config.out) == weights(uninterrupted)
    assert course(config.out) == course(uninterrupted)


# No room


ON_A_SMALL_DISK = (
    'mount -t tmpfs -o size=200k none small || exit 99; "$@"; status=$?; cp -r small/run left; exit $status'
)


def own_mounts() -> list[str]:
    """How a process may have mounts of its own here: as any user, or as root where users may not."""
    for command in (["unshare", "--user", "--map-root-user", "--mount"], ["unshare", "--mount"]):
        if shutil.which("unshare"):
            tried = subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, timeout=60)
            if tried.returncode == 0:
                return command
    pytest.skip("no small disk can be mounted here: neither unshare --user nor root may")


def test_a_full_disk_ends_it_and_leaves_what_was_written(settings, commands, flags, uninterrupted, tmp_path):
    (tmp_path / "small").mkdir()
    config = settings("small/run", **LENGTH, checkpoint_seconds=OFTEN)
    shell = [*own_mounts(), "sh", "-c", ON_A_SMALL_DISK, "sh"]
    process = commands.start(*shell, sys.executable, EVERY_UPDATE, "train", *flags(config))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, ""), err
    assert "Traceback" not in err
    full = r"glassformer: error: \[Errno 28\] No space left on device(: '\S+')?: free some space, then go on with "
    again = f"glassformer train --resume --out {config.out}"
    assert re.fullmatch(full + re.escape(again), err.splitlines()[-1])
    left = tmp_path / "left"
    assert unfinished(left) == []
    assert any(left.glob("resume/checkpoint-*/*.safetensors"))
    assert resume(left).updates == 150  # without a warning: nothing is damaged
    assert weights(left) == weights(uninterrupted)
    assert course(left) == course(uninterrupted)


WITH_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
import glassformer.training.loop
from glassformer.cli import main

pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * [pages * resource.getpagesize() + (256 << 20)])
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_too_little_memory_names_the_batch_and_the_setting(settings, commands, flags, tmp_path):
    (tmp_path / "long.tsv").write_text("a b c d e f\tf e d c b a\n" * 900, encoding="utf-8")
    # 5,999 target tokens with 20,011 activations of 4 bytes each: 458 MB
    config = settings(source=tmp_path / "long.tsv", batch_tokens=6000, d_ff=20011, max_updates=2)
    process = commands.start(sys.executable, "-c", WITH_LITTLE_MEMORY, "train", *flags(config))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == (
        "glassformer: error: out of memory in update 1, with a batch of 857 pairs with 5,999 source and 5,999 target "
        "tokens, the longest 7: go on with --resume and a smaller --batch-tokens (it is 6,000; twice --accumulate, "
        "which is 1, makes up for half of it), or leave longer pairs out with --max-tokens"
    )
    assert resume(config.out, batch_tokens=64).updates == 2
