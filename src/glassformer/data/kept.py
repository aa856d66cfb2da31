"""Prepared corpora kept for the next run with the same text: a folder of entries, each named by its digest.

    .prepared/<digest>/entry.json   facts, and the sizes and checksums of its other files

An entry is made elsewhere and moved here when it is complete. Nothing in it changes afterwards, so runs may hold links
of its files.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from glassformer.decoding import FileName, Natural, check_regular, open_regular, read_json
from glassformer.errors import DataError, RunError
from glassformer.files import flush_folder, remove_at_once, remove_unfinished, write_json

PREPARED, ENTRY = ".prepared", "entry.json"
FORMAT = 7
"""Version of the preparation: raise it whenever the same text and settings give other files than before."""
KEPT = 4
"""Number of entries that are kept: the last ones used."""
CHECKED = 1 << 24
"""Bytes of an array up to which its content is checked before it is used; training checks that of larger ones."""


Fingerprint = tuple[Natural, str]
"""Size and checksum of a file."""


class _Facts(Struct, frozen=True, forbid_unknown_fields=True):
    """The names of the tokenizers' files, and the counts of pairs for training and for validation."""

    source: FileName
    target: FileName
    pairs: dict[str, dict[str, Natural]]


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of entry.json."""

    format: Natural
    facts: _Facts
    files: dict[str, Fingerprint]
    checksum: str
    """The checksum of all the rest."""


class KeptCorpora:
    """The kept entries in a folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: str) -> Path | None:
        """Return the folder of this entry and mark it as used; None where there is none, or it is damaged.

        Of large arrays only the size is looked at: their content takes seconds to read, and whoever uses them reads it
        anyway (see `drop_damaged`).
        """
        entry = self._folder / digest
        if not _is_whole(entry):
            return None
        with suppress(OSError):  # a folder that may only be read
            os.utime(entry)
        return entry

    def keep(self, made: Path, digest: str) -> None:
        """Move a complete folder here, and remove the entries that have gone unused for longest."""
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self._folder)
        entry = self._folder / digest
        if _is_whole(entry):  # another process has made it meanwhile
            return
        if entry.exists():
            remove_at_once(entry)
        made.replace(entry)
        os.utime(entry)
        for old in sorted(self._entries(), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            remove_at_once(old)

    def drop_damaged(self) -> None:
        """Remove the entries that `find` would return although their content is damaged; all of it is read."""
        for entry in self._entries():
            if _is_whole(entry) and not _is_whole(entry, _is_kept):
                remove_at_once(entry)

    def _entries(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if re.fullmatch("[0-9a-f]{32}", path.name)]


def fingerprint(path: Path) -> Fingerprint:
    """Return size and checksum of a file; RunError where it isn't a regular one."""
    with os.fdopen(open_regular(path), "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return os.fstat(file.fileno()).st_size, digest.hexdigest()


def write_entry(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write entry.json into a folder that is otherwise complete, with everything flushed to the disk."""
    flush_folder(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): fingerprint(path) for path in paths}
    values = {"format": FORMAT, "facts": facts, "files": files}
    write_json(folder / ENTRY, {**values, "checksum": _checksum(values)})


def read_entry(entry: Path) -> tuple[dict[str, Any], dict[str, Fingerprint]]:
    """Return the facts that `write_entry` was given, and the fingerprints of the files."""
    found = read_json(entry / ENTRY, _Entry)
    return to_builtins(found.facts), found.files


def _seems_kept(entry: Path, name: str, expected: Fingerprint) -> bool:
    """Return whether a file seems to be the one that was kept: a large array has its size, others its content."""
    is_array = "/" in name
    if is_array and expected[0] > CHECKED:
        check_regular(entry / name)
        return (entry / name).stat().st_size == expected[0]
    return _is_kept(entry, name, expected)


def _is_kept(entry: Path, name: str, expected: Fingerprint) -> bool:
    """Return whether a file is the one that was kept, by its content."""
    return fingerprint(entry / name) == expected


def _is_whole(entry: Path, is_kept: Callable[[Path, str, Fingerprint], bool] = _seems_kept) -> bool:
    """Return whether this is an entry whose files are those that were kept, as `is_kept` judges each."""
    try:
        values = to_builtins(read_json(entry / ENTRY, _Entry, error=DataError))
        if values.pop("checksum") != _checksum(values) or values["format"] != FORMAT:
            return False
        return all(is_kept(entry, name, tuple(kept)) for name, kept in values["files"].items())
    except (OSError, DataError, RunError):  # no entry, or not one of ours
        return False


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()
