"""The fuzzer: every reader and every flag, with inputs that nobody meant. Run it with `make fuzz`.

Prints its seed, each new failure with the command that repeats it, and a table of counts. The exit status is 1 where
anything failed. Failing inputs are kept in tests/fuzz/cases, and every run tries those first.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

from cases import KEPT, Case, read_case
from flags import limits_of
from oracle import Failure
from sandbox import Sandbox
from search import Search
from targets import Target, make_targets

ROUND = 20
"""Cases of each target in a round of the long form."""


IMPORTED = (
    *("matplotlib.backends.backend_agg", "matplotlib.figure", "openpyxl", "pyarrow.parquet", "torch._dynamo"),
    *("translate.storage.po", "translate.storage.tmx", "translate.storage.xliff", "zstandard", "conllu", "ctranslate2"),
    *("glassformer.cli", "glassformer.data.facts", "glassformer.insight.prune", "glassformer.interop.ctranslate2"),
    *("glassformer.interop.huggingface", "glassformer.page.inspection", "glassformer.training.train"),
)


def main() -> int:
    """Fuzz as the arguments say, and return the exit status."""
    parser = argparse.ArgumentParser(prog="tests/fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="how long to try new inputs (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="(default: drawn)")
    parser.add_argument("--examples", type=int, help="try so many inputs of each target instead, always the same")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (default: %(default)s)")
    parser.add_argument("--only", default="", help="only targets whose name has this text")
    parser.add_argument("--case", type=Path, help="only this kept case, with all that it prints")
    options = parser.parse_args()
    _import_all()
    with tempfile.TemporaryDirectory(dir=_memory_disk(), prefix="fuzz-") as folder:
        sandbox = Sandbox(Path(folder))
        if options.case is not None:
            return _repeat(sandbox, read_case(options.case))
        return _fuzz(sandbox, options)


def _fuzz(sandbox: Sandbox, options: argparse.Namespace) -> int:
    """Try the kept cases, then new ones, and print what came of them."""
    began = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    search = Search(sandbox, _say_failure)
    for path in sorted(KEPT.glob("*.json")):
        case = read_case(path)
        if options.only in case.target:
            search.try_kept(path, case)
    targets = [one for one in make_targets(sandbox) if options.only in one.name]
    if options.examples:
        _go_round(search, targets, options.seed, options.examples)
    else:
        _share_out(search, targets, options, began + options.seconds)
    _print_table(search)
    seconds, failures = time.monotonic() - began, sum(search.failures.values())
    print(f"{sum(search.tried.values()):,} inputs in {seconds:.0f} s (seed {options.seed}), {failures:,} failures")
    return 1 if failures else 0


def _share_out(search: Search, targets: Sequence[Target], options: argparse.Namespace, deadline: float) -> None:
    """Try cases until the deadline in one process for each core, each with targets of its own."""
    fork, jobs = get_context("fork"), range(options.jobs)
    searches = [search.beside(number) for number in jobs]
    pipes = [fork.Pipe(duplex=False) for _ in jobs]
    processes = [
        fork.Process(target=_work, args=(searches[n], targets[n :: options.jobs], options.seed, deadline, pipes[n][1]))
        for n in jobs
    ]
    for process in processes:
        process.start()
    for _, going in pipes:
        going.close()  # so that a process that is lost ends the wait for it
    for coming, _ in pipes:
        search.add(*coming.recv())
    for process in processes:
        process.join()


def _work(search: Search, targets: Sequence[Target], number: int, deadline: float, going: Connection) -> None:
    """Try cases until the deadline, in rounds, and send the counts."""
    while time.monotonic() < deadline:
        for target in targets:
            search.try_good(target, number)
        _go_round(search, targets, number, ROUND, deadline)
        number += 1
    going.send((search.tried, search.failures, search.seconds))


def _go_round(
    search: Search, targets: Sequence[Target], number: int, count: int, deadline: float | None = None
) -> None:
    """Try `count` cases of each target, times its weight, unless the deadline comes first."""
    for target in targets:
        search.try_target(target, max(1, round(count * target.weight)), number, deadline)


def _repeat(sandbox: Sandbox, case: Case) -> int:
    """Run one case, and print all of it."""
    outcome, failure = sandbox.try_case(case, limits_of(case))
    print(f"{case.line}\nexit status {outcome.status}, {outcome.seconds:.2f} s, {outcome.memory >> 20} MiB")
    print(outcome.stdout[-3000:], outcome.stderr[-6000:], sep="\n")
    print(failure or "no failure")
    return 1 if failure else 0


def _say_failure(case: Case, failure: Failure, path: Path | None) -> None:
    """Print a failure, and how it is repeated."""
    print(f"\n{case.target}: {failure}\n  {case.line}", flush=True)
    if path is not None:
        print(f"  python tests/fuzz --case {os.path.relpath(path)}", flush=True)


def _print_table(search: Search) -> None:
    width = max(map(len, search.tried), default=0)
    print(f"\n{'read or run':{width}}  inputs  seconds  failures")
    for name, count in sorted(search.tried.items()):
        print(f"{name:{width}}  {count:6,}  {search.seconds[name]:7.1f}  {search.failures[name] or '':>8}")


def _import_all() -> None:
    """Import what the commands import, once for all the processes that are forked."""
    for name in IMPORTED:
        import_module(name)
    import_module("glassformer.generation.kernels.passes").compiled()  # numba, which takes 0.4 s
    import_module("torch").set_num_threads(1)  # a forked process has none of its parent's threads


def _memory_disk() -> str | None:
    """Return a folder in memory, where files are quickest, or None for the usual one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
