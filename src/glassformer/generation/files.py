"""Output that takes hours to write, and is gone on with after a stop.

    OUT.partial        the output for the first lines of the input, whole chunks
    OUT.partial.json   for how many lines, their digest, how many bytes of output they gave, and the settings

The second is what counts: it is written after the bytes that it tells of, so whatever stops the process, what it says
is there. OUT itself appears at the end, complete.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.errors import ConfigError, DataError
from glassformer.files import check_writable, write_json


@dataclass(frozen=True)
class Record:
    """What a partial output holds."""

    settings: Mapping[str, Any]
    lines: int = 0
    """Lines of the input."""
    digest: str = ""
    """Of those lines."""
    bytes: int = 0
    """Of the output."""


class PartialOutput:
    """The output for the first `lines` lines of an input, to which that for the next ones is added."""

    def __init__(self, path: Path, file: BinaryIO, record: Record) -> None:
        self.path = path
        self._file = file
        self._record = record
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def lines(self) -> int:
        return self._record.lines

    def skip(self, lines: Iterator[str], name: object) -> None:
        """Take the lines that are done from the input `name`; DataError if they are other lines than those."""
        for line in islice(lines, self.lines):
            self._digest.update(f"{line}\n".encode())
        if self.lines and self._digest.hexdigest() != self._record.digest:
            raise DataError(
                f"{name} doesn't begin with the {self.lines:,} lines whose output is in {self.path}: give the input "
                "that it was begun with, or remove it to start over"
            )

    def append(self, lines: Sequence[str], output: bytes) -> None:
        """Add the output for the next lines. Once this returns it is safe."""
        self._file.write(output)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._digest.update("".join(f"{line}\n" for line in lines).encode())
        count, size = self.lines + len(lines), self._record.bytes + len(output)
        self._record = Record(self._record.settings, count, self._digest.hexdigest(), size)
        write_json(_json_of(self.path), asdict(self._record))

    def leave(self) -> None:
        """Keep whole chunks; if there is none, nothing."""
        if self.lines:
            os.truncate(self.path, self._record.bytes)
            write_json(_json_of(self.path), asdict(self._record))  # which a Ctrl-C may have kept from being written
        else:
            _json_of(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)


@contextmanager
def partial_output(output: Path, settings: Mapping[str, Any], *, resume: bool) -> Iterator[PartialOutput]:
    """Output that becomes the file `output` when all went well; when it didn't, what there is stays beside it.

    With `resume` it is gone on with, if its settings (of JSON's types) are the same; without, it mustn't be there.
    """
    check_writable(output)
    path = output.with_name(f"{output.name}.partial")
    if resume and output.exists() and not path.exists():
        raise DataError(
            f"{output} is there and {path.name} isn't: there is nothing to resume; leave out --resume to write it anew"
        )
    with path.open("ab") as file:
        _lock(file, path)
        record = _begun(path, settings, resume)
        partial = PartialOutput(path, file, record)
        try:
            with file:  # closed before it is cut to whole chunks
                file.truncate(record.bytes)
                write_json(_json_of(path), asdict(record))
                yield partial
        except BaseException:
            partial.leave()
            raise
    path.replace(output)
    _json_of(path).unlink()


def _json_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _lock(file: BinaryIO, path: Path) -> None:
    """Raise DataError if another process is writing to it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(
            f"another process is writing to {path}: wait until it has finished, or choose another output"
        ) from None


def _begun(path: Path, settings: Mapping[str, Any], resume: bool) -> Record:
    """What to go on with; ConfigError or DataError if it can't be gone on with, or would be lost."""
    size = path.stat().st_size
    record = _read(_json_of(path)) if size else Record(settings)
    remove = f"remove {path} to start over"
    if record is None or size < record.bytes:
        raise DataError(f"{path} is not what {_json_of(path).name} says, or that is missing or damaged: {remove}")
    if not record.lines:
        return Record(settings)
    if not resume:
        raise DataError(
            f"{path} has the output for {record.lines:,} lines, of a run that was stopped: go on with --resume, or "
            f"{remove}"
        )
    old, new = record.settings, settings
    if differ := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        was, now = (", ".join(f"{name} {values.get(name)}" for name in differ) for values in (old, new))
        raise ConfigError(f"{path} was begun with {was}, and is to be gone on with {now}: give the same, or {remove}")
    return record


def _read(path: Path) -> Record | None:
    """The record; None if it is missing or damaged."""
    try:
        record = Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    kinds = isinstance(record.settings, dict), isinstance(record.lines, int), isinstance(record.bytes, int)
    return record if all(kinds) else None
