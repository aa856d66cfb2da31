"""Machines come and go while a training runs: two torchruns on one machine, each its own node.

Torchrun and its processes are forks of processes that have loaded torch. benchmarks/elastic.py kills nodes ten times.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.training.train import train

pytestmark = pytest.mark.usefixtures("undrawn", "every_update", "unchecked_trainings")

EVERY_UPDATE = str(Path(__file__).with_name("every_update.py"))
QUICKLY = "store_type=file,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"
"""A node that has said nothing for five seconds is lost: on a busy machine three pass without anybody's fault."""
UPDATES = 60
PATIENCE = 100
"""Seconds after which something that should happen is missed."""


@pytest.fixture
def node(start, torchrun_forked, every_update_forked, tmp_path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a torchrun, which joins the others of the test."""
    program = every_update_forked[every_update_forked.index(EVERY_UPDATE) :]

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        launcher = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--local-addr=localhost"]
        launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path / 'rendezvous'}", "--rdzv-id=elastic"]
        launcher += [f"--rdzv-conf={QUICKLY}", *program, "train"]
        unshared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return start(*torchrun_forked, *launcher, *arguments, **unshared, **environment)

    return run


def test_one_node_joins_and_the_first_is_lost(node, tiny, flags, files, tmp_path):
    sizes = dict(max_updates=UPDATES, validate_every=20, dropout=0.0, checkpoint_seconds=1e-9)
    train(alone := tiny(tmp_path / "alone", **sizes))
    config = tiny(tmp_path / "run", **sizes)
    fast, trace = tmp_path / "fast", tmp_path / "trace"
    nodes = [node(*flags(config), PAUSE=str(fast), TRACE=str(trace))]

    def made_by(rank: str) -> int:
        return Counter(trace.read_text().split())[rank] if trace.exists() else 0

    def wait(until: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not until():
            assert all(each.poll() is None for each in nodes)
            assert time.monotonic() < end
            time.sleep(0.01)

    wait(lambda: made_by("0") >= 3)
    nodes.append(node(*flags(config), PAUSE=str(fast), TRACE=str(trace)))
    wait(lambda: made_by("1") >= 3)
    nodes[0].send_signal(signal.SIGKILL)  # its worker ends with it
    fast.touch()
    printed, err = nodes[1].communicate(timeout=PATIENCE)
    assert nodes[1].returncode == 0, err
    _, before = nodes[0].communicate(timeout=PATIENCE)
    assert before.count("saving after this update") == 1, "when the second joined"
    assert before.count("training on cpu and 1 more with float32 products\ngoing on from update ") == 1
    assert " has lost another one (" in err
    assert err.count("training on cpu with float32 products\ngoing on from update ") == 1
    assert err.count(f"update {UPDATES}: validation loss ") == 1
    assert printed.startswith(f"{config.out}: {UPDATES} updates in ")
    assert UPDATES <= made_by("0") < UPDATES + 20
    assert files.course(config.out) == pytest.approx(files.course(alone.out), abs=1e-4)
    assert {name for name in os.listdir(tmp_path) if "run" in name} == {"run"}
    assert not (config.out / "resume").exists()
