"""What a server must stand: `python tests/serve/faults` sends it what nobody should, kills its worker, and ends it.

A server of its own gets requests that are too large, of wrong types, encodings and depth, too slow, cut off, with
floods of header fields and paths that lead elsewhere, some at a time, while a client of good manners asks for the same
translation again and again. Whatever comes: an answer within its limit, or a closed connection where the request never
ended; no status of 500; errors as an object of `error` and `code`; no text of a request in an error or in the log. The
client gets its translation each time. In the end no worker was lost, nothing waits, and no connection is left open.

Then the worker is killed under load (`--kills` times), and the server told to end: every request that was accepted is
answered. The last line counts what was tried and what was wrong; the status is 1 where something was.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import load
from hostile import LIMIT, SECRET, judge, make, send, shown
from service import DEADLINE, GOOD, KEEP_ALIVE, SLOW, Served, get, served, translate

AT_ONCE = 24


@dataclass
class Report:
    """What came of all cases."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    polite: int = 0
    """Number of translations that the client of good manners got."""
    longest_wait: float = 0.0

    def __str__(self) -> str:
        found = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))
        answers = ", ".join(f"{status or 'none'} {count}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.kinds.total()} hostile requests ({found}); answers: {answers}; the longest took "
            f"{self.slowest:.1f} s; {self.polite} good ones beside them, the longest {self.longest_wait:.2f} s; "
            f"{len(self.wrong)} wrong"
        )


async def try_all(server: Served, count: int, seed: int) -> Report:
    """Send so many cases to a server."""
    report, port = Report(), server.port
    status, expected = await translate(port)
    assert status == 200, expected
    files, ended, gate = server.files(), asyncio.Event(), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        kind, case = make(seed, number)
        async with gate:
            outcome = await send(port, case)
        report.kinds[kind] += 1
        report.statuses[outcome.status] += 1
        report.slowest = max(report.slowest, outcome.seconds)
        if wrong := judge(case, outcome):
            report.wrong.append(f"{kind} {number}: {wrong}; sent {shown(case)}")

    async def be_polite() -> None:
        while not ended.is_set():
            began = time.monotonic()
            if (answer := await translate(port)) != (200, expected):
                report.wrong.append(f"a good request was answered with {answer}")
            report.polite += 1
            report.longest_wait = max(report.longest_wait, time.monotonic() - began)
            await asyncio.sleep(0.1)

    polite = asyncio.create_task(be_polite())
    await asyncio.gather(*(one(number) for number in range(count)))
    ended.set()
    await polite
    await _look_after(server, files, report)
    return report


async def _look_after(server: Served, files: int, report: Report) -> None:
    """Note what the server has left behind."""
    until = time.monotonic() + LIMIT
    while True:
        text = (await get(server.port, "/metrics"))[1].decode()
        figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        waiting, open_ = figures['glassformer_queue{run="tiny"}'], server.files()
        if waiting == "0.0" and open_ <= files + 1:
            break
        if time.monotonic() > until:
            report.wrong.append(f"{waiting} requests wait, and {open_} files are open, of which {files} at first")
            break
        await asyncio.sleep(0.2)
    if lost := [
        name for name, n in figures.items() if name.startswith("glassformer_workers_lost_total") and n != "0.0"
    ]:
        report.wrong.append(f"it lost workers: {lost}")
    if (ready := await get(server.port, "/health/ready"))[0] != 200:
        report.wrong.append(f"it is not ready: {ready}")


def main() -> None:
    """Try as many cases as are wanted, and end with 1 where something was wrong."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--kills", type=int, default=5)
    arguments.add_argument("--run", type=Path, help="a run from en to de; left out: a random one")
    given = arguments.parse_args()
    limits = ("--slow-seconds", str(SLOW), "--deadline-seconds", str(DEADLINE), "--keep-alive-seconds", str(KEEP_ALIVE))
    with tempfile.TemporaryDirectory() as folder, served(given.run or make_run(Path(folder)), *limits) as server:
        hostile = asyncio.run(try_all(server, given.count, given.seed))
        killed, ended = asyncio.run(load.kill_worker(server, given.kills)), asyncio.run(load.end(server))
    texts = (SECRET, GOOD["q"])
    lines = [line for line in server.said.splitlines() if " id=" not in line or any(text in line for text in texts)]
    wrong = [*hostile.wrong, *killed.wrong, *ended.wrong, *(f"the log: {line}" for line in lines)]
    print(*wrong, hostile, sep="\n")
    print(f"a worker killed {given.kills} times: {killed}")
    print(f"ended by a signal: {ended}")
    print(f"{hostile.kinds.total() + killed.sent + ended.sent} requests, {len(wrong)} wrong")
    sys.exit(bool(wrong))


def make_run(scratch: Path) -> Path:
    """Make a random run in this folder."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from conftest import write_random_run

    from glassformer.text.tokenizer import SubwordTokenizer

    text = ["the cat sat on the mat", "a dog and a cat", "on a log", "the dog sat", "Grüße an die Katze"] * 3
    tokenizer = SubwordTokenizer.train(text, kind="bpe", vocab_size=60, seed=1)
    write_random_run(scratch / "tiny", tokenizer, tokenizer, shared=True)
    return scratch / "tiny"


if __name__ == "__main__":
    main()
