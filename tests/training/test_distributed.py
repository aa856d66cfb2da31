"""Real processes under torchrun train like one, whether they have all weights each or a part, and however many.

One start is of new interpreters, each with its own order of sets, and takes seconds to load torch in three of them. The
others are forks of two processes that have loaded it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glassformer.data.corpus import Corpus
from glassformer.tensors import read_tensors
from glassformer.text.batching import plan_batches
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import ALONE, Processes
from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("undrawn", "every_update", "unchecked_trainings")

EVERY_UPDATE = str(Path(__file__).with_name("every_update.py"))
OFTEN = 1e-9
"""Seconds between checkpoints: one is always being written."""
UPDATES = 40
CLIPPED = 0.7
"""Heads' scores grow larger, often in one of the processes alone."""
"""Later, differences of rounding grow: Adam divides small numbers by small numbers."""
PATIENCE = 150
"""Seconds after which a start under torchrun is taken for one that hangs."""


@pytest.fixture(scope="module")
def make(tiny, reversed_symbols, tmp_path_factory) -> Callable[..., TrainConfig]:
    """Settings of a run with batches of one pair."""
    path = tmp_path_factory.mktemp("lengths") / "train.tsv"
    lines = [*reversed_symbols(97, seed=3), *reversed_symbols(11, seed=5, shortest=37, longest=41)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sizes = dict(d_ff=4, batch_tokens=64, accumulate=2)  # of 4 rows the last of three processes has none
    sizes |= dict(dropout=0.0, guide=0.3, qk_clip=CLIPPED)  # the guide's loss is shared out as the other is
    return lambda out, **changes: tiny(out, source=path, max_updates=UPDATES, validate_every=20, **sizes, **changes)


@pytest.fixture(scope="module")
def expected(make, files, every_update, undrawn, tmp_path_factory) -> dict[tuple[str, int], float]:
    """What one process comes to."""
    config = make(tmp_path_factory.mktemp("alone") / "run")
    train(config)
    found = files.course(config.out)
    assert len(found) == UPDATES + 2 * 2
    assert found["score", UPDATES] > 0
    return found


@pytest.fixture
def torchrun(start, torchrun_forked, every_update_forked) -> Callable[..., subprocess.Popen[str]]:
    """Starts so many processes, which are forks."""
    program = every_update_forked[every_update_forked.index(EVERY_UPDATE) :]

    def run(count: int, *arguments: str, restarts: int = 2, **environment: str) -> subprocess.Popen[str]:
        launch = ["--standalone", f"--nproc-per-node={count}", f"--max-restarts={restarts}"]
        return start(*torchrun_forked, *launch, *program, "train", *arguments, **environment)

    return run


def finish_by_itself(process: subprocess.Popen[str], config: TrainConfig, count: int, starts: int) -> str:
    """See a run of so many processes come to its end after so many starts; returns what was printed on the way."""
    printed, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert printed.count(f"{config.out}: {UPDATES} updates in ") == 1  # the first process alone says so
    assert err.count(f"training on cpu and {count - 1} more with float32 products") == starts
    assert err.count(f"update {UPDATES}: validation loss ") == 1
    assert not (config.out / "resume").exists()
    return err


def updates_made(trace: Path) -> Counter[str]:
    """By each process, of all its starts together."""
    return Counter(trace.read_text().split())


def test_two_of_which_one_is_stopped_and_later_killed_go_on_by_themselves(
    make, expected, files, torchrun, flags, tmp_path
):
    config, trace = make(tmp_path / "run", checkpoint_seconds=OFTEN), tmp_path / "trace"
    mishaps = f"13 {signal.SIGTERM} 1,17 {signal.SIGKILL} 1"
    process = torchrun(2, *flags(config), MISHAP=mishaps, TRACE=str(trace))
    err = finish_by_itself(process, config, 2, starts=3)
    # torchrun names the process that was killed, unless the other one, which has lost it, ends first.
    assert "exitcode: -9" in err or "process 0 of 2 has lost another one" in err
    made = updates_made(trace)
    assert set(made) == {"0", "1"}
    # All stop where one is asked to; what is lost later is less than all since then.
    assert UPDATES <= made["1"] < UPDATES + 17
    assert files.course(config.out) == pytest.approx(expected, abs=1e-4)


def test_parts_of_weights_stopped_on_two_continued_on_one_and_on_three(
    make, expected, files, start, torchrun, flags, tmp_path
):
    config = make(tmp_path / "run", checkpoint_seconds=OFTEN, shard=True)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    slowly = {"PAUSE": str(tmp_path / "never")}  # so that it is stopped early, however busy this process is
    process = start(sys.executable, *launch, EVERY_UPDATE, "train", *flags(config), **slowly)
    until = time.monotonic() + PATIENCE
    while process.poll() is None and not (config.out / "metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.001)
    process.terminate()
    printed, err = process.communicate(timeout=PATIENCE)
    saved = int(printed.removeprefix("saved at update ").partition(";")[0])
    assert 1 <= saved < UPDATES - 15, err
    assert printed == f"saved at update {saved}; continue with:\n  glassformer train --resume --out {config.out}\n"
    assert err.count("saving after this update") == 1
    checkpoints = sorted((config.out / "resume").glob("checkpoint-*"))
    assert checkpoints[-1].name == f"checkpoint-{saved:09d}"
    assert [path.name for path in sorted(checkpoints[-1].iterdir())] == [
        *("00001-of-00002.safetensors", "00002-of-00002.safetensors")
    ]

    corpus = Corpus(config.out / "resume" / "train")
    plan = plan_batches(corpus.source.lengths, corpus.target.lengths, batch_tokens=64, seed=config.seed, epoch=0)
    assert min(map(len, plan)) == 1  # batches with fewer pairs than processes

    alone = Path(shutil.copytree(config.out, tmp_path / "alone"))
    assert resume(alone).updates == UPDATES
    assert files.course(alone) == pytest.approx(expected, abs=1e-4)

    trace, more = tmp_path / "trace", ["--resume", f"--out={config.out}"]
    process = torchrun(3, *more, MISHAP=f"15 {signal.SIGKILL} 0", TRACE=str(trace))
    assert "exitcode: -9" in finish_by_itself(process, config, 3, starts=2)
    made = updates_made(trace)
    assert set(made) == {"0", "1", "2"}
    assert UPDATES - saved <= made["1"] < UPDATES - saved + 15
    assert files.course(config.out) == pytest.approx(expected, abs=1e-4)


def test_the_first_alone_watches_and_the_others_do_not_wait_for_it(make, torchrun, flags, tmp_path):
    config = replace(make(tmp_path / "run"), guide=0.0, watch=3, max_updates=6, validate_every=6)
    process = torchrun(2, *flags(config), restarts=0)
    printed, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert printed.startswith(f"{config.out}: 6 updates in ")
    seen = [json.loads(line)["step"] for line in (config.out / "attention.jsonl").read_text().splitlines()]
    assert seen == [1, 3, 6]


def test_lost_best_weights_are_made_up_for_by_all(make, interrupting, torchrun, tmp_path):
    """Only the first process sees that they are damaged, and all must validate once more."""
    config = replace(make(tmp_path / "run"), max_updates=20)
    with interrupting(20):
        train(config)
    best, weights = config.out / "resume" / "best-000000020.safetensors", config.out / "model.safetensors"
    os.truncate(best, best.stat().st_size - 1)
    weights.unlink()
    process = torchrun(2, "--resume", f"--out={config.out}", restarts=0)
    printed, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "best-000000020.safetensors is damaged; the next validation counts as the best so far" in err
    assert printed.startswith(f"{config.out}: 20 updates in ")
    assert not (config.out / "resume").exists()
    assert read_tensors(weights)


def test_what_is_wrong_with_the_settings_is_said_once(make, torchrun, flags, tmp_path):
    config = make(tmp_path / "run")
    config.out.mkdir()
    (config.out / "notes.txt").write_text("mine")
    _, err = torchrun(2, *flags(config), restarts=0).communicate(timeout=PATIENCE)
    errors = [line for line in err.splitlines() if line.startswith("glassformer: error: ")]
    assert errors == [f"glassformer: error: {config.out} exists and is not a run folder: choose another --out"]
    assert "[rank" not in err  # which torch puts before the lines of a worker's traceback


def test_one_process_is_all_of_them():
    assert ALONE.first
    assert ALONE.share(["a", "b", "c"]) == ALONE.gather(["a", "b", "c"]) == ["a", "b", "c"]
    assert ALONE.agree(2, 3.5) == ALONE.add(2, 3.5) == [2.0, 3.5]
    assert ALONE.sum(torch.tensor(7.0)) == 7


@pytest.mark.parametrize("size", [2, 3, 7])
def test_shares_are_of_about_the_same_size_and_together_everything(size):
    items = list(range(11))
    shares = [Processes(rank, size).share(items) for rank in range(size)]
    assert sorted(item for share in shares for item in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [Processes(rank, size).first for rank in range(size)] == [True] + [False] * (size - 1)
