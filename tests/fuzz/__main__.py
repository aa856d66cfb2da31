"""The fuzzer: `python tests/fuzz --seconds 600` damages real files and flags, and judges how each command ends.

Each input runs in a process of its own. It must end with 0, or with 2 and one line that says why; what is in its folder
must be as before, and it may take 30 s and 2 GiB. What fails is made small by hypothesis and kept in tests/fuzz/cases,
whose inputs are tried first from then on.
"""

import argparse
import base64
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from flags import FLAGS, Flags
from hypothesis import HealthCheck, Phase, given, seed, settings
from lab import make
from oracle import run, snapshot
from targets import TARGETS, Input, Target

CASES = Path(__file__).parent / "cases"
AT_ONCE = 20
"""Inputs of one target before the next has its turn."""


class FaultError(Exception):
    """An input that a command doesn't stand; the message says what happened."""


def judge(input: Input, lab: Path) -> None:
    """Run a command on an input; FaultError if it doesn't end as it should."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        input.lay_out(lab, folder)
        before = snapshot(folder)
        ending = run(input.argv, folder)
        fault = ending.fault()
        if fault is None and ending.status == 2 and (after := snapshot(folder)) != before:
            changed = sorted(one for one in {*before, *after} if before.get(one) != after.get(one))
            fault = f"it failed, and left its folder changed: {', '.join(changed[:5])}"
        if fault is not None:
            raise FaultError(f"{fault}\n  {input!r}\n  {ending.errors.strip()[-1500:]}")


def kept_cases() -> Iterator[Input]:
    """Yield the inputs that once failed."""
    for path in sorted(CASES.glob("*.json")):
        values = json.loads(path.read_text())
        content = values["content"]
        if not isinstance(content, str):
            content = base64.b64decode(content["base64"])
        argv = tuple(word.encode().decode("unicode_escape") for word in values["argv"])
        yield Input(values["target"], argv, tuple(values["needs"]), values["file"], content)


def keep(input: Input) -> Path:
    """Write an input that failed where it is found again."""
    content = input.content
    if isinstance(content, bytes):
        content = {"base64": base64.b64encode(content).decode()}
    argv = [word.encode("unicode_escape").decode() for word in input.argv]
    values = {"target": input.target, "argv": argv, "needs": input.needs, "file": input.file, "content": content}
    text = json.dumps(values, indent=1)
    path = CASES / f"{input.target.replace(' ', '-').replace('/', '-').replace('*', '')}-{hash(text) % 10**6:06d}.json"
    CASES.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    return path


def attack(target: Target | Flags, lab: Path, number: int, count: int, counts: Counter[str]) -> str | None:
    """Try so many inputs of a target; return what failed, made small, or None."""
    last: list[Input] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # shrinking repeats what may take 30 s each time
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(target.inputs(lab))
    def try_one(input: Input) -> None:
        counts[target.name] += 1
        last[:] = [input]
        judge(input, lab)

    try:
        try_one()
    except FaultError as fault:
        return f"{fault}\n  kept in {keep(last[0]).name}; again: --seed {number} --only {target.name!r}"
    return None


def main() -> int:
    """Try kept cases, then damaged inputs of each target in turn until the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--inputs", type=int, help="so many of each target, in place of a time")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", default="", help="targets whose names hold this text")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    torch.set_num_threads(1)  # a forked process has none of its parent's threads, and would wait for them
    torch.backends.mkldnn.is_available()
    _load_all()
    targets = [target for target in (*TARGETS, *FLAGS) if options.only in target.name]
    counts, faults = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="fuzz-lab-") as name:
        lab = Path(name)
        make(lab)
        end, number = time.monotonic() + options.seconds, options.seed
        for input in kept_cases():
            counts["kept cases"] += 1
            try:
                judge(input, lab)
            except FaultError as fault:
                faults.append(str(fault))
                print(f"FAILED: {fault}", flush=True)
        while True:
            for target in targets:
                if fault := attack(target, lab, number, options.inputs or AT_ONCE, counts):
                    faults.append(fault)
                    print(f"FAILED: {fault}", flush=True)
                if options.inputs is None and time.monotonic() > end:
                    break
            number += 1
            if options.inputs is not None or time.monotonic() > end:
                break
    for target, count in sorted(counts.items()):
        print(f"{count:7,} {target}")
    print(f"{sum(counts.values()):,} inputs, {len(faults)} failures")
    return 1 if faults else 0


def _load_all() -> None:
    """Load what the commands load, once for all of them."""
    import openpyxl  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import translate.storage.xliff  # noqa: F401

    import glassformer.generation.files
    import glassformer.insight.study
    import glassformer.interop.huggingface
    import glassformer.page.inspection
    import glassformer.run.listing
    import glassformer.training.train  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
