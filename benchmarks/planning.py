"""Planning the batches of an epoch of ever larger corpora: time, memory of the process, and padding.

    python benchmarks/planning.py [--pairs 10000000 100000000] [--scratch FOLDER]

Only lengths are generated, like those of sentences, because planning reads nothing else: the files of ids are empty
ranges of the disk. Each corpus is planned in a process of its own, on one thread: it opens the corpus, plans an epoch,
and looks at 2,000 batches all over it, in their order. Memory is what the process has for itself beyond what it had
before, at its peak, looked at a thousand times a second; so Linux only. Mapped files are not in it, because processes
share them. Padding is that of batches padded to their longest pair. Appends to benchmarks/results/planning.jsonl.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread

import torch
import tyro
from bench import keep, status
from torch import Tensor

from glassformer.data.corpus import Corpus
from glassformer.text.batching import plan_batches

AT_ONCE = 1 << 22
BATCH_TOKENS = 2048
LOOKED_AT = 2_000


def main(pairs: tuple[int, ...] = (10_000_000, 100_000_000), scratch: Path | None = None) -> None:
    """Plan an epoch of corpora of so many pairs.

    Args:
        pairs: How many.
        scratch: Where to put their offsets, 16 bytes a pair; left out, where the system keeps temporary files.
    """
    planned: dict[str, dict[str, float]] = {}
    for count in pairs:
        with tempfile.TemporaryDirectory(dir=scratch) as name:
            generate(Path(name), count)
            found = json.loads(subprocess.check_output([sys.executable, __file__, "--plan", name]))
        told = (
            "{seconds:.1f} s, {counted:.1f} before the first batch, then at most {longest:.1f} at one; {mib:,.0f} MiB"
        )
        print(f"{count:,} pairs: {told.format(**found)}; {found['batches']:,} batches, padding {found['padding']}")
        planned[str(count)] = found
    keep("planning", {"planned": planned, "batch_tokens": BATCH_TOKENS})


def generate(folder: Path, pairs: int) -> None:
    """Write a corpus whose ids are all zero. Most pairs are short, and targets within a tenth as long as sources."""
    draw = torch.Generator().manual_seed(1)
    ends = [0, 0]
    files = [(folder / f"{side}.offsets").open("wb") for side in ("source", "target")]
    for file in files:
        file.write(bytes(8))
    for first in range(0, pairs, AT_ONCE):
        count = min(AT_ONCE, pairs - first)
        source = torch.randn(count, generator=draw).mul_(0.6).add_(3).exp_().round_().clamp_(2, 100)
        target = (torch.rand(count, generator=draw).mul_(0.2).add_(0.9) * source).round_().clamp_(min=2)
        for side, lengths in enumerate((source, target)):
            offsets = lengths.long().cumsum(0).add_(ends[side])
            offsets.numpy().tofile(files[side])
            ends[side] = int(offsets[-1])
    for file, end in zip(files, ends, strict=True):
        file.close()
        ids = Path(file.name).with_suffix(".ids")
        ids.touch()
        os.truncate(ids, 4 * end)


class OwnMemory:
    """The most memory (MiB) that the process has for itself inside the context, beyond what it had before."""

    def __enter__(self) -> "OwnMemory":
        self._before = self._peak = status("RssAnon")
        self._ended = Event()
        self._thread = Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            self._peak = max(self._peak, status("RssAnon"))

    @property
    def mib(self) -> float:
        """Return the peak."""
        return (self._peak - self._before) / 1024


def plan(folder: str) -> None:
    """Print what an epoch's plan takes: seconds in all and of the longest step, MiB, batches, and shares of padding."""
    torch.set_num_threads(1)
    torch.arange(1000).argsort()  # what torch sets up once
    with OwnMemory() as memory:
        times = [time.thread_time()]
        corpus = Corpus(Path(folder))
        times.append(time.thread_time())
        lengths = corpus.source.lengths, corpus.target.lengths
        batches = plan_batches(*lengths, batch_tokens=BATCH_TOKENS, seed=1, epoch=0)
        times.append(time.thread_time())
        looked_at = list[list[int]]()
        for number in range(0, len(batches), -(-len(batches) // LOOKED_AT)):
            looked_at.append(batches[number])
            times.append(time.thread_time())
    seconds = torch.tensor(times, dtype=torch.float64).diff()
    figures = {
        "seconds": float(seconds.sum()),
        "counted": float(seconds[1]),
        "longest": float(seconds[2:].max()),
        "mib": memory.mib,
        "batches": len(batches),
        "padding": [padding([side[pairs] for pairs in looked_at]) for side in lengths],
    }
    print(json.dumps(figures))


def padding(batches: list[Tensor]) -> float:
    """Return the share of padding in batches of sequences that are so long."""
    padded = sum(len(lengths) * int(lengths.max()) for lengths in batches)
    return 1 - sum(int(lengths.sum()) for lengths in batches) / padded


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plan"]:
        plan(*sys.argv[2:])
    else:
        tyro.cli(main)
