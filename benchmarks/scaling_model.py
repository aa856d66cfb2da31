"""Time and memory of training and of bulk translation on many devices: a model, held against runs on this machine.

    python benchmarks/scaling_model.py --measure [--only alone together translation]
    python benchmarks/scaling_model.py --check
    python benchmarks/scaling_model.py --markdown
    python benchmarks/scaling_model.py --draw

`--measure` learns the constants, in three minutes: what one process of one thread needs for each kind of work, in
seconds of its processor; how much slower it is beside others; what messages through gloo take among 2 and 4 processes;
and what a line costs to translate. `--check` predicts updates of three other models in 1, 2 and 4 processes, DDP and
`--shard`, and translation by as many workers, then measures them, in three minutes. With more processes than cores each
gets its share of them, which the prediction counts. Both want a machine that does nothing else. Records go to
benchmarks/results/scaling_model.jsonl.

`--markdown` prints the tables of docs/scaling.md from the last records, those of clusters with the constants of
scaling/cluster.py, which are published or measured elsewhere. A test compares them with the docs. `--draw` draws
docs/img/scaling_model.png.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import tyro
from scaling import tables, translation
from scaling.calibrate import measure_alone, measure_together
from scaling.cases import CHECKED, rows_of, write_pairs
from scaling.local import BEFORE, Constants, predict_memory, predict_update
from scaling.picture import draw as draw_picture
from scaling.work import Rows
from scaling.worker import ask

from glassformer.data.corpus import Corpus
from glassformer.training.muon import POLYNOMIALS

NAME = "scaling_model"
PLOT = Path(__file__).parents[1] / "docs" / "img" / f"{NAME}.png"
COUNTS = (1, 2, 4)
"""Processes of the check."""
UPDATES = 4
Part = Literal["alone", "together", "translation"]


def main(
    measure: bool = False,
    only: tuple[Part, ...] = get_args(Part),
    check: bool = False,
    counts: tuple[int, ...] = COUNTS,
    markdown: bool = False,
    draw: bool = False,
    plot: Path = PLOT,
) -> int:
    """Do what is asked for, in this order, and return the exit status: 1 if a prediction is off by more than 15 %.

    Args:
        measure: Measure the constants.
        only: Measure these parts alone.
        check: Predict and measure.
        counts: Numbers of processes that are checked.
        markdown: Print the tables.
        draw: Draw the picture.
        plot: Where it is drawn.
    """
    off = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pairs(folder / "pairs")
        if measure:
            bench.keep(NAME, measured(folder, only))
        if check:
            off = compare(folder, counts)
    if markdown:
        print_tables()
    if draw:
        draw_picture(checked(), recorded(), plot)
    return 1 if off else 0


def measured(folder: Path, parts: Sequence[Part]) -> dict[str, Any]:
    """Return what these parts measure."""
    several = [count for count in COUNTS if count > 1]
    found: dict[str, Any] = {}
    if "alone" in parts:
        found["alone"] = measure_alone(folder)
    if "together" in parts:
        found["together"] = measure_together(folder, several)
    if "translation" in parts:
        questions = [
            ("translations", {"preset": preset, "vocab": vocab, "batches": translation.CHECKED.get(preset, 1)})
            for preset, vocab in translation.SIZES.items()
        ]
        found["translation"] = dict(zip(translation.SIZES, ask(folder, 1, questions), strict=True))
    return found


def constants() -> Constants:
    """Return the last constants that were recorded."""
    alone, together = bench.last(NAME, "alone"), bench.last(NAME, "together")
    return Constants.of({**alone, **together, "burdens": {**alone["burdens"], **together["burdens"]}})


def recorded() -> tables.Recorded:
    """Return the last records that the tables stand on."""
    return tables.Recorded(
        constants=constants(),
        lines=bench.last(NAME, "translation"),
        gpu_tokens=bench.last("generation", "gpu")["ours auto cuda"]["median"],
        prepared=bench.last("preparation", "sides")["one"]["lines_per_second"],
        planned={int(pairs): found for pairs, found in bench.last("planning", "planned").items()},
    )


def compare(folder: Path, counts: Sequence[int]) -> int:
    """Print predictions beside measurements, record these, and return how many predictions are too far off."""
    corpus = Corpus(folder / "pairs")
    for count in counts:
        modes = ("ddp", "shard") if count > 1 else ("plain",)
        cases = [(name, case, mode) for name, case in CHECKED.items() for mode in modes]
        asked: list[tuple[str, dict[str, Any]]] = [
            ("updates", {"case": case.to_json(), "shard": mode == "shard", "updates": UPDATES, "counted": True})
            for _, case, mode in cases
        ]
        presets = translation.CHECKED if count > 1 else {}
        asked += [
            ("translations", {"preset": preset, "vocab": translation.SIZES[preset], "batches": batches})
            for preset, batches in presets.items()
        ]
        answers = ask(folder, count, asked)
        found = list[dict[str, Any]]()
        for (name, _, mode), answer in zip(cases, answers[: len(cases)], strict=True):
            rows = [
                [list(asdict(one).values()) for one in rows_of(corpus, pairs, count)]
                for pairs in (*answer["pairs"], answer["counted_pairs"])
            ]
            common = {"what": "update", "model": name, "mode": mode, "processes": count}
            common |= {"polynomials": len(POLYNOMIALS), "rows": rows[:-1], "counted_rows": rows[-1][0]}
            measured = {"measured": statistics.median(answer["seconds"]), "measured_bytes": answer["peak"]}
            found.append(common | measured | {"counted": answer["traffic"]})
        for preset, answer in zip(presets, answers[len(cases) :], strict=True):
            common = {"what": "line", "model": preset, "mode": "plain", "processes": count}
            found.append(common | {"measured": answer["seconds"]})
        bench.keep(NAME, {check_of(count): found})
    found = [one for one in checked() if one["processes"] in counts]
    print("\n".join(map(describe, found)))
    errors = [abs(one["predicted"] / one["measured"] - 1) for one in found]
    off = sum(error > tables.WITHIN for error in errors)
    print(
        f"{len(found) - off} of {len(found)} within {tables.WITHIN:.0%}, the median {statistics.median(errors):.0%} off"
    )
    return off


def check_of(count: int) -> str:
    """Return the name of the record of the check with so many processes."""
    return f"check {count}"


def checked() -> list[dict[str, Any]]:
    """Return the last measurements for each number of processes, with what the last constants predict."""
    known = constants()
    return [one | predicted(known, one) for count in COUNTS for one in bench.last(NAME, check_of(count))]


def predicted(known: Constants, one: dict[str, Any]) -> dict[str, Any]:
    """Return the prediction for what was measured: medians over updates, and the memory of one."""
    if one["what"] == "line":
        lines = bench.last(NAME, "translation")
        return {"predicted": translation.predict_line(known, lines, one["model"], one["processes"])}
    case, mode = CHECKED[one["model"]], one["mode"]
    updates = [[Rows(*sizes) for sizes in update] for update in one["rows"]]
    predictions = [predict_update(known, case, rows, mode, one.get("polynomials", BEFORE)) for rows in updates]
    sums = [sum(parts.values()) for parts in predictions]
    return {
        "predicted": statistics.median(sums),
        "parts": predictions[sums.index(statistics.median_low(sums))],
        "predicted_bytes": predict_memory(case, Rows(*one["counted_rows"]), one["processes"], mode),
    }


def describe(one: dict[str, Any]) -> str:
    """Return a comparison as a line."""
    error = one["predicted"] / one["measured"] - 1
    parts = ", ".join(f"{name} {1e3 * part:.0f}" for name, part in one.get("parts", {}).items())
    memory = f"; MiB {one['predicted_bytes'] / 2**20:.0f} / {one['measured_bytes'] / 2**20:.0f}" if parts else ""
    return (
        f"{one['processes']} {one['model']:6} {one['what']:6} {one['mode']:6} {1e3 * one['predicted']:8.1f} / "
        f"{1e3 * one['measured']:8.1f} ms ({error:+.0%})  {parts}{memory}"
    )


def print_tables() -> None:
    """Print each table under the name of its place in the docs."""
    found, stands_on = checked(), recorded()
    for name, text in {
        "checks": tables.checks(found),
        "memories": tables.memories(found),
        **{name: make(stands_on) for name, make in tables.TABLES.items()},
    }.items():
        print(f"## {name}\n\n{text}\n")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
