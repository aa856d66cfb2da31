"""Stages and what they leave: files named by all that decides them, and a record of their counts.

    text-1b2c3d4e.txt, written-5f60718a.txt   the lines of a stage
    mixed-9b0c1d2e/                           the pairs
    text-1b2c3d4e.json                        settings and counts; it is written last: a stage that has one is complete

The eight digits are a digest of settings and of what is read, that of the stage before included. So the same command
finds what is there, and another one leaves it alone.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from glassformer.decoding import read_json
from glassformer.files import write_json

Counts = dict[str, dict[str, int | float]]
"""Numbers by what they count, in groups: {"text": {"lines": 12, "empty": 2}}."""


class _Record(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a stage's record."""

    settings: dict[str, Any]
    counts: dict[str, dict[str, int | float]]


@dataclass(frozen=True)
class Stage:
    """A stage of the work in a folder, complete or not."""

    path: Path
    """The file or folder that it leaves."""
    settings: Mapping[str, Any]
    """All that decides it, as JSON can hold it."""

    @classmethod
    def of(cls, folder: Path, name: str, ending: str, settings: Mapping[str, Any]) -> "Stage":
        """Return the stage of this name, whose files are named by its settings too."""
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=4).hexdigest()
        return cls(folder / f"{name}-{digest}{ending}", settings)

    @property
    def record(self) -> Path:
        """The file that says that it is complete."""
        return self.path.with_suffix(".json")

    def counts(self) -> Counts | None:
        """Return the counts of a complete stage, or None."""
        if not (self.record.exists() and self.path.exists()):
            return None
        return read_json(self.record, _Record).counts

    def complete(self, counts: Counts) -> Counts:
        """Record that what the stage leaves is there, and return its counts."""
        write_json(self.record, {"settings": self.settings, "counts": counts})
        return counts


def in_words(counts: Mapping[str, int | float]) -> str:
    """Return counts as words.

    >>> in_words({"lines": 1200, "empty": 0, "median": -0.4321})
    '1,200 lines, 0 empty, median -0.43'
    """
    return ", ".join(f"{n:,} {what}" if isinstance(n, int) else f"{what} {n:.2f}" for what, n in counts.items())
