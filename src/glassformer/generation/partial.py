"""The output of a translation from file to file while it is made, which no stop can lose.

    OUT.partial        the output for the first lines of the input, whole chunks
    OUT.partial.json   for how many lines, how many bytes of output they gave, digests of both, and the settings

The second is what counts: it is written after the bytes that it tells of, so whatever stops the process, what it says
is there. OUT itself appears at the end, complete.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct, structs

from glassformer.decoding import Natural, read_json
from glassformer.errors import ConfigError, DataError, counted
from glassformer.files import check_writable, is_at, open_to_append, remove_unfinished, try_lock, write_json
from glassformer.stopping import unbroken_ends


@dataclass(frozen=True)
class Record:
    """The extent of a partial output, and the settings it was made with."""

    settings: dict[str, Any]
    lines: int = 0
    """Number of lines of the input that are done."""
    digest: str = ""
    """A digest of those lines."""
    bytes: int = 0
    """Number of bytes of output that they gave."""
    output: str = ""
    """A digest of that output."""

    def write(self, path: Path) -> None:
        """Write it with a checksum of its own."""
        write_json(path, {**asdict(self), "checksum": self.checksum})

    @property
    def checksum(self) -> str:
        """A digest of all of it."""
        return _digest(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class _Written(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a record's file."""

    settings: dict[str, Any]
    lines: Natural
    digest: str
    bytes: Natural
    output: str
    checksum: str


class PartialOutput:
    """The output for the first lines of an input, to which the output for the next ones is added."""

    def __init__(self, path: Path, file: BinaryIO, record: Record) -> None:
        self.path = path
        self._file = file
        self._record = record
        self._lines = _digest()
        self._output = _digest_of_beginning(path, record.bytes)

    @property
    def lines(self) -> int:
        """Number of lines of the input that are done."""
        return self._record.lines

    def skip(self, lines: Iterator[str], name: object) -> None:
        """Skip the lines that are done in those of the input `name`; DataError if it begins with other lines."""
        for line in islice(lines, self.lines):
            self._lines.update(f"{line}\n".encode())
        if self.lines and self._lines.hexdigest() != self._record.digest:
            raise DataError(
                f"{name} doesn't begin with the {counted(self.lines, 'line')} whose output is in {self.path}: give "
                "the input that it was started with, or remove it to start over"
            )

    def append(self, lines: Sequence[str], output: bytes) -> None:
        """Add the output for the next lines; once this returns, no stop can lose it."""
        self._file.write(output)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._lines.update("".join(f"{line}\n" for line in lines).encode())
        self._output.update(output)
        self._record = Record(
            settings=self._record.settings,
            lines=self.lines + len(lines),
            digest=self._lines.hexdigest(),
            bytes=self._record.bytes + len(output),
            output=self._output.hexdigest(),
        )
        self._record.write(_json_of(self.path))

    def cut(self) -> None:
        """Cut the files to whole chunks, and remove them if there is none."""
        if self.lines:
            os.truncate(self.path, self._record.bytes)
            self._record.write(_json_of(self.path))  # again: a Ctrl-C may have stopped its writing
        else:
            _json_of(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)


@unbroken_ends
def partial_output(output: Path, settings: Mapping[str, Any], *, resume: bool) -> Iterator[PartialOutput]:
    """Collect output that becomes the file `output` when all went well; otherwise what there is stays beside it.

    With `resume` what is there is continued, if its settings (of JSON's types) are the same; without, nothing may be
    there. What is damaged is set aside under another name, with a warning, and the output begins anew.
    """
    check_writable(output)
    path = output.with_name(f"{output.name}.partial")
    if resume and is_finished(output):
        raise DataError(
            f"{output} is there and {path.name} isn't: there is nothing to resume; leave out --resume to write it anew"
        )
    file = _open(path)
    with file:
        if (found := _read(path)) is None:
            file.close()  # Windows renames no file that is open
            _set_aside(path)
            file = _open(path)
            found = Record({})
        record = _continued(found, path, dict(settings), resume)
        partial = PartialOutput(path, file, record)
        try:
            with file:  # closed before it is cut to whole chunks
                file.truncate(record.bytes)
                record.write(_json_of(path))
                yield partial
        except BaseException:
            partial.cut()
            raise
    path.replace(output)
    _json_of(path).unlink()


def is_finished(output: Path) -> bool:
    """Return whether an output is complete. What a kill right afterwards has left beside it is then removed."""
    path = output.with_name(f"{output.name}.partial")
    if path.exists() or not output.exists():
        return False
    _json_of(path).unlink(missing_ok=True)
    remove_unfinished(path.parent, _json_of(path).name)
    return True


def _json_of(path: Path) -> Path:
    """Return the path of a partial output's record."""
    return path.with_name(f"{path.name}.json")


def _open(path: Path) -> BinaryIO:
    """Open a partial output to write at its end, and lock it; DataError where another process has it."""
    while True:
        file = os.fdopen(open_to_append(path, error=DataError), "ab")
        if try_lock(file.fileno()) is False:
            file.close()
            raise DataError(
                f"another process is writing to {path}: wait until it has finished, or choose another output"
            )
        if is_at(file.fileno(), path):  # it may have been completed in between, and have another name now
            return file
        file.close()


def _read(path: Path) -> Record | None:
    """Return the record of what is there, or None if one of both is damaged; DataError where there is no record."""
    if not (size := path.stat().st_size):
        return Record({})
    record_file = _json_of(path)
    try:
        written = structs.asdict(read_json(record_file, _Written, error=DataError))
    except FileNotFoundError:
        raise DataError(f"{path} has no {record_file.name} that says what it is: remove {path} to start over") from None
    except DataError:
        return None
    checksum = written.pop("checksum")
    record = Record(**written)
    if record.checksum != checksum or record.bytes > size:
        return None
    return record if _digest_of_beginning(path, record.bytes).hexdigest() == record.output else None


def _set_aside(path: Path) -> None:
    """Give a partial output and its record other names, and say so."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    aside = next(name for name in names if not (name.exists() or _json_of(name).exists()))
    path.rename(aside)
    _json_of(path).rename(_json_of(aside))
    warnings.warn(
        f"{path} is not what {_json_of(path).name} says, or that is damaged: they are {aside.name} and "
        f"{_json_of(aside).name} now, and the output begins anew",
        stacklevel=4,
    )


def _continued(found: Record, path: Path, settings: dict[str, Any], resume: bool) -> Record:
    """Return the record to continue; ConfigError or DataError if it can't be continued, or would be lost."""
    if not found.lines:
        return Record(settings, output=_digest().hexdigest())
    remove = f"remove {path} to start over"
    if not resume:
        raise DataError(
            f"{path} has the output for {counted(found.lines, 'line')}, of a run that was stopped: continue with "
            f"--resume, or {remove}"
        )
    old, new = found.settings, settings
    if differ := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        was, now = (", ".join(f"{name} {values.get(name)}" for name in differ) for values in (old, new))
        message = f"{path} was started with {was}, and is to be continued with {now}: give the same, or {remove}"
        raise ConfigError(message)
    return found


def _digest(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)


def _digest_of_beginning(path: Path, size: int) -> "hashlib.blake2b":
    """Return the digest of the first bytes of a file, to which more can be added."""
    digest = _digest()
    with path.open("rb") as file:
        while part := file.read(min(size, 1 << 20)):
            digest.update(part)
            size -= len(part)
    return digest
