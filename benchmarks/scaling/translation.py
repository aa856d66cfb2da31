"""Predictions for the translation of many lines by many workers, none of which waits for another."""

from collections.abc import Mapping
from dataclasses import dataclass

from scaling.local import Constants

TOKENS = 25
"""Tokens of a line and of its translation."""
SIZES = {"tiny": 8_000, "small": 8_000, "base": 32_000, "big": 32_000}
"""Presets whose translation is measured, and their token ids."""
CHECKED = {"tiny": 8, "small": 6, "base": 1}
"""Presets that several workers translate with, and the batches of each worker."""


def predict_line(constants: Constants, alone: Mapping[str, Mapping[str, float]], preset: str, workers: int) -> float:
    """Return the seconds in which each of so many workers on this machine translates a line."""
    return alone[preset]["busy"] * constants.slowdown("products", workers)


@dataclass(frozen=True)
class Fleet:
    """Workers that translate blocks of lines."""

    workers: int
    rate: float
    """Lines a second of one worker."""
    block: int
    """Lines that a worker takes at a time."""
    start: float
    """Seconds until a worker has loaded the model."""
    mtbf: float
    """Seconds between failures of one worker."""

    def seconds(self, lines: float) -> float:
        """Return the time until all lines are translated.

        Whoever is free takes the next block, so that the last to end is late by at most a block (Graham 1969, "Bounds
        on multiprocessing timing anomalies": total / m + (1 - 1 / m) * longest). A worker that fails loses half a block
        and loads the model again.
        """
        block = self.block / self.rate
        work = lines / self.rate / self.workers
        failures = work / self.mtbf  # of each worker
        return self.start + work + failures * (block / 2 + self.start) + (1 - 1 / self.workers) * block

    def useful(self, lines: float) -> float:
        """Return the share of the workers' time in which they translate."""
        return lines / self.rate / self.workers / self.seconds(lines)
