"""Writing files whole or not at all, and linking them. Loads no torch."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote_to_bytes

from glassformer.errors import DataError

SCHEME = "file:"


def check_writable(path: Path) -> None:
    """Raise DataError where no file can be written to `path`. Call it before long work."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: give the name of a file to write")
    if path.exists() and not path.is_file():  # a file put in its place would replace a device or a pipe for everybody
        raise DataError(f"{path} is a device or a pipe, and only a file can be written whole: give the name of a file")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent}: no such folder to write {path.name} to")


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Give the path of a temporary file to write: it takes the place of `path`, or is removed where an error comes."""
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        file = os.open(temporary, os.O_RDWR)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a temporary file to write to: it takes the place of `path`, or is removed where an error comes."""
    with replacement(path) as temporary, temporary.open("wb") as file:
        yield file


def link_or_copy(file: Path, place: Path) -> None:
    """Make a file appear at `place` too: as a hard link, or as a copy where the file system can't link.

    Only for files that are never changed in place, since a change would show at both names.
    """
    try:
        place.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, place)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files, ours and safetensors', that a process killed while writing has left in a folder."""
    for path in (*folder.glob(".*.tmp"), *folder.glob(".tmp??????")):
        if path.is_file():
            path.unlink()


def path_as_text(path: Path) -> str:
    """Return a path as JSON can hold it: as it is, or where its name isn't UTF-8 as a `file:` URI."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return SCHEME + quote(os.fsencode(path))
    return SCHEME + quote(text) if text.startswith(SCHEME) else text


def path_from_text(text: str) -> Path:
    """Return the path that `path_as_text` gave this text for.

    >>> path_from_text(path_as_text(Path("pairs.tsv"))), path_from_text("file:pairs%FF.tsv").name
    (PosixPath('pairs.tsv'), 'pairs\\udcff.tsv')
    """
    return Path(os.fsdecode(unquote_to_bytes(text.removeprefix(SCHEME))) if text.startswith(SCHEME) else text)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
