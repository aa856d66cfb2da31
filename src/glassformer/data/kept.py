"""Prepared corpora that are kept for the next run with the same text: a folder of folders, each named by a digest.

    .prepared/<digest>/entry.json   facts, and the sizes and checksums of its other files

An entry is made elsewhere, sealed, and moved here when it is complete. Nothing in it is changed afterwards, so runs may
hold links of its files.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.files import write_json

PREPARED, ENTRY = ".prepared", "entry.json"
FORMAT = 1
"""To be raised whenever the same text and settings are prepared otherwise than before."""
KEPT = 4
"""Entries that are kept: those that were used last."""
CHECKED = 1 << 24
"""Of files up to this size (bytes) the content is checked before they are used, of larger ones the size alone."""


class KeptCorpora:
    """The entries in a folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: str) -> Path | None:
        """The folder of this entry, which then counts as used last; None if there is none, or it is damaged."""
        entry = self._folder / digest
        if not _is_whole(entry):
            return None
        os.utime(entry)
        return entry

    def keep(self, made: Path, digest: str) -> None:
        """Move a sealed folder here, and remove the entries that were not used for longest."""
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
    """Write entry.json into the folder, when everything else is there, and see to it that all of it is on the disk."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        files[path.relative_to(folder).as_posix()] = _fingerprint(path)
    sealed = {"format": FORMAT, "facts": facts, "files": files}
    write_json(folder / ENTRY, {**sealed, "checksum": _checksum(_as_json(sealed))})


def read_entry(entry: Path) -> dict[str, Any]:
    """What the entry was sealed with."""
    return json.loads((entry / ENTRY).read_text(encoding="utf-8"))["facts"]


def _is_whole(entry: Path) -> bool:
    try:
        sealed = json.loads((entry / ENTRY).read_text(encoding="utf-8"))
        checksum = sealed.pop("checksum")
        if checksum != _checksum(_as_json(sealed)) or sealed["format"] != FORMAT:
            return False
        return all(_fingerprint(entry / name) == kept for name, kept in sealed["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no entry, or none of ours
        return False


def _fingerprint(path: Path) -> list[int | str]:
    size = path.stat().st_size
    return [size] if size > CHECKED else [size, _checksum(path.read_bytes())]


def _as_json(sealed: Mapping[str, Any]) -> bytes:
    return json.dumps(sealed, sort_keys=True).encode()


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
