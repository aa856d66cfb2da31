"""Torture: `python tests/torture` kills, starves and disturbs commands at random moments, and counts what they lose.

After each fault what a command writes must be absent, as before or usable, and what it reads unchanged; then the same
command, or --resume, must come to the same bits as one that nothing disturbed, and leave nothing else. The status is 1
after a failure. Each failure is printed with the command that strikes the same again.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import lab
from children import FaultError, kill_orphans
from faults import FAULTS, Case, Impossible
from lab import Command

WHOLE = 600.0
"""Seconds that all cases take."""

Key = tuple[str, str, int]
"""Fault, command, and number of a case."""
_made: dict[str, Command] = {}
_scratch = Path()


def main() -> int:
    """Strike, and return the exit status."""
    global _scratch
    given = _flags()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        _scratch = Path(folder)
        _scratch.chmod(0o755)  # commands of another user work in it
        return _torture(given)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of all moments")
    parser.add_argument(
        "--seconds", type=float, default=WHOLE, help="less strikes as much less often (default: %(default)g)"
    )
    parser.add_argument("--case", action="append", default=[], help="FAULT/COMMAND/NUMBER, to strike only that")
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=list(FAULTS), help="only these")
    parser.add_argument("--commands", nargs="*", choices=list(lab.COMMANDS), help="only these")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="cases at once")
    return parser.parse_args()


def _torture(given: argparse.Namespace) -> int:
    print(f"seed {given.seed}", flush=True)
    began = time.monotonic()
    (_scratch / "lab").mkdir()
    keys = _plan(given)
    _made.update(lab.make(_scratch / "lab", {command for _, command, _ in keys}))
    struck, failed, impossible = Counter[tuple[str, str]](), list[Key](), dict[str, str]()
    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("fork")) as pool:
        struck_ones = [pool.submit(_strike, given.seed, key) for key in keys]
        for (fault, command, number), answer in zip(keys, struck_ones, strict=True):
            # A mistake of the torture itself fails its case; the others go on.
            mistake = answer.exception()
            why, failure = answer.result() if mistake is None else ("", "".join(traceback.format_exception(mistake)))
            if why:
                impossible[fault] = why
                continue
            struck[fault, command] += 1
            if failure:
                failed.append((fault, command, number))
                again = f"python tests/torture --seed {given.seed} --case {fault}/{command}/{number}"
                print(f"FAILED {fault} {command}: {failure}\n  again: {again}", flush=True)
    _print_table(struck)
    for fault, why in impossible.items():
        print(f"not here: {fault}, since {why}")
    print(f"{time.monotonic() - began:.0f} s")
    print(f"{struck.total():,} faults, {len(failed):,} failures")
    return int(bool(failed))


def _plan(given: argparse.Namespace) -> list[Key]:
    if given.case:
        cases = [case.split("/") for case in given.case]
        return [(fault, command, int(number)) for fault, command, number in cases]
    keys = []
    for place, fault in enumerate(given.faults):
        kind = FAULTS[fault]
        commands = [name for name in kind.commands or lab.COMMANDS if given.commands is None or name in given.commands]
        if not commands:
            continue
        whole = kind.times * len(commands)
        for case in range(min(whole, max(1, round(whole * given.seconds / WHOLE)))):
            # All commands take turns, and so do a command's numbers, wherever a short form ends.
            turn, at = divmod(case, len(commands))
            command = commands[(place + given.seed + at) % len(commands)]
            keys.append((fault, command, (turn + at) % kind.times))
    return keys


def _strike(seed: int, key: Key) -> tuple[str, str]:
    """Return why the fault is impossible on this machine, and what it has broken; both are empty if all is well."""
    fault, name, number = key
    folder = Path(tempfile.mkdtemp(prefix=f"{fault}-{name}-", dir=_scratch))
    folder.chmod(0o755)
    try:
        _made[name].lay_out(folder / "here")
        FAULTS[fault].strike(
            Case(_made[name], folder / "here", random.Random(f"{seed} {fault} {name} {number}"), number)
        )
    except Impossible as why:
        return str(why), ""
    except FaultError as failure:
        return "", str(failure)
    finally:
        kill_orphans()
        shutil.rmtree(folder, ignore_errors=True)
    return "", ""


def _print_table(struck: Counter[tuple[str, str]]) -> None:
    faults = list(dict.fromkeys(fault for fault, _ in struck))
    names = list(dict.fromkeys(name for _, name in struck))
    print(f"{'':12}" + "".join(f"{name:>12}" for name in names))
    for fault in faults:
        print(f"{fault:12}" + "".join(f"{struck[fault, name] or '':>12}" for name in names))


if __name__ == "__main__":
    sys.exit(main())
