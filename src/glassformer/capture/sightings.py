"""Keep a few figures of every head in a step that `watch` looked at, and the alarms that they gave."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from glassformer.decoding import Natural, decode_json, read_bounded_lines
from glassformer.errors import ArgumentError
from glassformer.files import open_to_append, replacing

MEANS, HIGHEST = ("entropy", "sink", "distance"), ("max_score", "lse")
"""Facts whose mean over the queries describes a head, and facts of which the largest number does."""

WHOLE = "model"
"""Name a model that is an attention itself: its path is empty."""
MOST_NAMED = 3
"""Most heads that one warning names."""
LONGEST = 1 << 22
"""Most bytes of a line: 40 of each fact of a head."""

Figures = dict[str, dict[str, list[float]]]
"""A number for each head, by the path of the attention and the fact."""


@dataclass(frozen=True)
class Alarm:
    """A head that was warned of."""

    layer: str
    head: int
    kind: str
    """collapse: its entropy is nearly gone. runaway: its scores are very large. nan: a figure is not a number."""
    before: float
    """Give the figure before: the highest entropy so far, or the score that `now` is compared with."""
    now: float

    def __str__(self) -> str:
        name = f"{self.layer or WHOLE} head {self.head}"
        if self.kind == "nan":
            return f"{name} has figures that are not numbers"
        if self.kind == "collapse":
            return f"{name} looks at a single key: entropy {self.before:.2f} -> {self.now:.3f} of the largest possible"
        return f"{name} has scores that run away: largest {self.before:.3g} -> {self.now:.3g}"


@dataclass(frozen=True)
class Sighting:
    """The figures of every head in one step, over all batches of it.

    `figures[layer][fact]` has a number for each head. entropy is the mean over the queries, as a share of the largest
    that is possible: 1 looks everywhere alike, 0 at a single key. max_score and lse are the largest of all queries,
    sink and distance means.

    Example: docs/howto/watch.md.
    """

    step: int
    figures: Figures
    alarms: tuple[Alarm, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the line of the file: what is not a finite number is null."""
        layers = {
            layer: {fact: [_finite(value) for value in values] for fact, values in facts.items()}
            for layer, facts in self.figures.items()
        }
        line: dict[str, Any] = {"step": self.step, "layers": layers}
        if self.alarms:
            line["alarms"] = [
                {**vars(alarm), "before": _finite(alarm.before), "now": _finite(alarm.now)} for alarm in self.alarms
            ]
        return line

    def describe_alarms(self) -> str:
        """Return a text that names the first heads that were warned of, and says how many more there are."""
        more = len(self.alarms) - MOST_NAMED
        return "; ".join(map(str, self.alarms[:MOST_NAMED])) + (f"; and {more} more" if more > 0 else "")

    def to_scalars(self) -> dict[str, float]:
        """Return a few numbers for each layer, by names for a logger: of each fact the mean head and the extreme one.

        The extreme is the head of the lowest entropy, or of the highest of another fact.
        """
        found: dict[str, float] = {}
        for layer, facts in self.figures.items():
            path = layer or WHOLE
            for fact, values in facts.items():
                if not values:
                    continue
                name, extreme = ("lowest", min) if fact == "entropy" else ("highest", max)
                # min and max may pass over what is not a number
                found[f"attention/{fact}_{name}/{path}"] = math.nan if any(map(math.isnan, values)) else extreme(values)
                if fact in MEANS:
                    found[f"attention/{fact}_mean/{path}"] = sum(values) / len(values)
        return found


def append_sighting(path: Path, sighting: Sighting) -> None:
    """Add a line to a file of sightings, in one write."""
    line = (json.dumps(sighting.to_json(), allow_nan=False) + "\n").encode()
    with os.fdopen(open_to_append(path, error=ArgumentError), "ab", buffering=0) as file:
        file.write(line)


def read_sightings(path: Path) -> list[Sighting]:
    """Read the lines that can be used, by rising steps: none if there is no file, and none that was cut off.

    Where the steps go back, because a training went on from an earlier one, the lines that were written first are left
    out.
    """
    found: list[Sighting] = []
    for line in read_bounded_lines(path, LONGEST, error=ArgumentError):
        try:
            sighting = decode_json(line, _Line).sighting()
        except ValueError:
            continue
        while found and found[-1].step >= sighting.step:
            found.pop()
        found.append(sighting)
    return found


def keep_sightings_until(path: Path, last: int) -> list[Sighting]:
    """Remove the lines of later steps than the `last`, and return the others."""
    if not path.exists():
        return []
    kept = [sighting for sighting in read_sightings(path) if sighting.step <= last]
    with replacing(path) as file:
        for sighting in kept:
            file.write((json.dumps(sighting.to_json(), allow_nan=False) + "\n").encode())
    return kept


class _AlarmLine(Struct, frozen=True):
    """A head that was warned of, as files hold it."""

    layer: str
    head: Natural
    kind: Literal["collapse", "runaway", "nan"]
    before: float | None = None
    now: float | None = None


class _Line(Struct, frozen=True):
    """A line of the file."""

    step: Natural
    layers: dict[str, dict[str, list[float | None]]]
    alarms: list[_AlarmLine] = []

    def sighting(self) -> Sighting:
        """Return what the line says."""
        figures = {
            layer: {fact: [_number(value) for value in values] for fact, values in facts.items()}
            for layer, facts in self.layers.items()
        }
        alarms = (Alarm(one.layer, one.head, one.kind, _number(one.before), _number(one.now)) for one in self.alarms)
        return Sighting(self.step, figures, tuple(alarms))


def facts_of(sightings: Sequence[Sighting]) -> list[str]:
    """Return the facts that some sighting has, in the order in which they are drawn."""
    there = {fact for sighting in sightings for facts in sighting.figures.values() for fact in facts}
    return [fact for fact in ("entropy", "max_score", "lse", "sink", "distance") if fact in there]


def heads_of(sightings: Sequence[Sighting]) -> dict[str, int]:
    """Return how many heads each layer has, in the order of the layers."""
    heads: dict[str, int] = {}
    for sighting in sightings:
        for layer, facts in sighting.figures.items():
            heads[layer] = max([heads.get(layer, 0), *(len(values) for values in facts.values())])
    return heads


def series(sightings: Sequence[Sighting], layer: str, fact: str) -> Iterator[Sequence[float]]:
    """Yield the heads' numbers at each sighting, none where it lacks them."""
    for sighting in sightings:
        facts: Mapping[str, list[float]] = sighting.figures.get(layer, {})
        yield facts.get(fact, ())


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _finite(value: float) -> float | None:
    """Return a number to five digits, which is what it is good for; None in place of what JSON can't hold."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
