"""Prepared corpora kept for the next run with the same text: a folder of entries, each named by its digest.

    .prepared/<digest>/entry.json   facts, and the sizes and checksums of its other files

An entry is made elsewhere and moved here when it is complete. Nothing in it changes afterwards, so runs may hold links
of its files.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from glassformer.decoding import FileName, Natural, read_json
from glassformer.errors import DataError
from glassformer.files import write_json

PREPARED, ENTRY = ".prepared", "entry.json"
FORMAT = 3
"""Version of the preparation: raise it whenever the same text and settings give other files than before."""
KEPT = 4
"""Number of entries that are kept: the last ones used."""
CHECKED = 1 << 24
"""Bytes up to which a file's content is checked before it is used; of a larger file only the size is."""


class _Facts(Struct, frozen=True, forbid_unknown_fields=True):
    """The names of the tokenizers' files, and the counts of pairs for training and for validation."""

    source: FileName
    target: FileName
    pairs: dict[str, dict[str, Natural]]


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of entry.json."""

    format: Natural
    facts: _Facts
    files: dict[str, list[Natural | str]]
    """Size of each file, and its checksum."""
    checksum: str
    """The checksum of all the rest."""


class KeptCorpora:
    """The kept entries in a folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: str) -> Path | None:
        """Return the folder of this entry and mark it as used; None where there is none, or it is damaged."""
        entry = self._folder / digest
        if not _is_whole(entry):
            return None
        os.utime(entry)
        return entry

    def keep(self, made: Path, digest: str) -> None:
        """Move a complete folder here, and remove the entries that have gone unused for longest."""
        self._folder.mkdir(parents=True, exist_ok=True)
        entry = self._folder / digest
        if entry.exists():
            shutil.rmtree(entry)  # it is damaged
        made.replace(entry)
        os.utime(entry)
        entries = [path for path in self._folder.iterdir() if re.fullmatch("[0-9a-f]{32}", path.name)]
        for old in sorted(entries, key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            shutil.rmtree(old)


def write_entry(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write entry.json into a folder that is otherwise complete, with everything flushed to the disk."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        files[path.relative_to(folder).as_posix()] = _fingerprint(path)
    values = {"format": FORMAT, "facts": facts, "files": files}
    write_json(folder / ENTRY, {**values, "checksum": _checksum(_as_json(values))})


def read_entry(entry: Path) -> dict[str, Any]:
    """Return the facts that `write_entry` was given."""
    return to_builtins(read_json(entry / ENTRY, _Entry).facts)


def _is_whole(entry: Path) -> bool:
    try:
        values = to_builtins(read_json(entry / ENTRY, _Entry, error=DataError))
        if values.pop("checksum") != _checksum(_as_json(values)) or values["format"] != FORMAT:
            return False
        return all(_fingerprint(entry / name) == kept for name, kept in values["files"].items())
    except (OSError, DataError):  # no entry, or not one of ours
        return False


def _fingerprint(path: Path) -> list[int | str]:
    size = path.stat().st_size
    return [size] if size > CHECKED else [size, _checksum(path.read_bytes())]


def _as_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
