"""Reading what comes from outside: regular files of limited size, and JSON decoded into typed values. Loads no torch.

Every file of JSON is read here and nowhere else. A structure is a frozen `msgspec.Struct` or dataclass; its annotations
are the rules: types are exact ("128" is no number, true is no 1), numbers are finite and within bounds.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, overload

from msgspec import DecodeError, Meta, ValidationError
from msgspec.json import decode

from glassformer.errors import GlassformerError, RunError, abridged

Decoded = TypeVar("Decoded")

MOST_BYTES = 1 << 25
"""Largest file of JSON that is read, 32 MiB: several times the largest vocabulary that is in use."""

Natural = Annotated[int, Meta(ge=0, le=1 << 62)]
"""A whole number from 0 on, as files hold it."""
_NAME = r"^(?!\.\.?$)[^/\\:\x00-\x1f]{1,255}\Z"
FileName = Annotated[str, Meta(pattern=_NAME)]
"""The bare name of a file: no folder, no drive, and neither "." nor ".."."""

_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_SIGNS = {"of length >=": "with at least", "of length <=": "with at most", ">=": "of at least", "<=": "of at most"}


@overload
def read_json(
    path: Path, kind: type[Decoded], *, error: type[GlassformerError] = RunError, most: int = MOST_BYTES
) -> Decoded: ...
@overload
def read_json(path: Path, kind: Any, *, error: type[GlassformerError] = RunError, most: int = MOST_BYTES) -> Any: ...
def read_json(path: Path, kind: Any, *, error: type[GlassformerError] = RunError, most: int = MOST_BYTES) -> Any:
    """Read a file of JSON as a value of this type.

    Raises `error`, whose message names the file, the field, what was expected and what came. OSError is raised as it
    is: the file is missing, or may not be read.
    """
    try:
        return decode_json(read_limited(path, most, error=error), kind)
    except ValueError as reason:
        raise error(f"{path} is damaged, or not of glassformer: {reason}") from None


@overload
def decode_json(data: bytes, kind: type[Decoded]) -> Decoded: ...
@overload
def decode_json(data: bytes, kind: Any) -> Any: ...
def decode_json(data: bytes, kind: Any) -> Any:
    """Decode JSON as a value of this type; raise ValueError, which says what is wrong with it.

    >>> decode_json(b'[1, 2]', list[int])
    [1, 2]
    >>> decode_json(b'[1, "2"]', list[int])
    Traceback (most recent call last):
        ...
    ValueError: [1] must be a whole number, got "2"
    """
    try:
        return decode(data, type=kind)
    except ValidationError as error:
        raise ValueError(_in_words(str(error), data)) from None
    except (DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not JSON ({error})" + _hint(data)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_strictly(data: bytes) -> Any:
    """Decode JSON of no known type, as it came from a stranger.

    Raises ValueError for what isn't UTF-8 or JSON, for NaN, Infinity and numbers of thousands of digits, and for an
    object that has a name twice; RecursionError for deep nesting.

    >>> decode_strictly(b'{"a": 1}')
    {'a': 1}
    """
    return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def decode_anything(data: bytes) -> Any:
    """Decode JSON of no known type, with the NaN, Infinity and halves of surrogate pairs that Python writes into it.

    Raises ValueError, as `decode_json` does.
    """
    try:
        return decode_json(data, Any)
    except ValueError as error:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise error from None


def decode_message(data: bytes) -> Any:
    """Decode what another process of ours has sent. Nothing is checked, and names may hold bytes that aren't UTF-8."""
    return json.loads(data)


def read_limited(path: Path, most: int, *, error: type[GlassformerError] = RunError) -> bytes:
    """Return the content of a file; raise `error` where it isn't a regular file, or holds more than `most` bytes."""
    with os.fdopen(open_regular(path, error=error), "rb") as file:
        content = file.read(most + 1)
        if len(content) > most:
            size = os.fstat(file.fileno()).st_size
            raise error(f"{path} holds {size:,} bytes, and at most {most:,} are read: it is damaged, or another file")
    return content


def open_regular(path: Path, *, error: type[GlassformerError] = RunError) -> int:
    """Open a file to read and return its descriptor; raise `error` for a pipe, a device or a folder, which may hang."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{path} must be a regular file, and is a folder, a pipe or a device")
    return descriptor


def read_bounded_lines(path: Path, longest: int, *, error: type[GlassformerError] = RunError) -> Iterator[bytes]:
    """Yield the lines of a regular file with their ends, and one of more than `longest` bytes in pieces.

    Where there is no file there are none. Raises `error` as `open_regular` does.
    """
    if not path.exists():
        return
    with os.fdopen(open_regular(path, error=error), "rb") as file:
        while line := file.readline(longest):
            yield line


def check_regular(path: Path, *, error: type[GlassformerError] = RunError) -> None:
    """Raise `error` unless this is a regular file; OSError where there is none."""
    os.close(open_regular(path, error=error))


def _in_words(message: str, data: bytes) -> str:
    """Return msgspec's message as a sentence: the field, what was expected, what came."""
    message, _, path = message.partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        return f"{field or 'the object'} lacks {missing[1]}"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", message):
        name = abridged(unknown[1])
        return f"{field or 'the object'} has {name}, which is unknown: a newer glassformer may have written it"
    if message in ("Number out of range", "Integer value out of range"):
        came = _value_at(data, path) or "one of thousands of digits"
        return f"{field or 'the number'} must be a smaller number, got {came}"
    expected, _, got = message.removeprefix("Expected ").partition(", got ")
    if _NAME in message.replace("\\\\", "\\"):
        expected = "the bare name of a file"
    expected = re.sub(r"`([^`]*)`", lambda kind: _kinds(kind[1]), expected)
    for sign, words in _SIGNS.items():
        expected = expected.replace(sign, words)
    came = _value_at(data, path) or _kinds(got.strip("`"))
    return f"{field or 'the value'} must be {expected}{', got ' if came else ''}{came}"


def _kinds(names: str) -> str:
    """Return the names of msgspec's types in words."""
    return " or ".join(_IN_WORDS.get(name, name) for name in names.split(" | "))


def _value_at(data: bytes, path: str) -> str:
    """Return the value at a path of msgspec's, as JSON and cut to an end; an empty text where it can't be told."""
    if len(data) > 1 << 20:
        return ""
    try:
        value = json.loads(data)
        for name, index in re.findall(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]", path):
            value = value[name] if name else value[int(index)]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    return abridged(json.dumps(value, ensure_ascii=False))


def _hint(data: bytes) -> str:
    """Return what may be wrong with something that is not JSON."""
    if data.startswith(b"\xef\xbb\xbf"):
        return ": it begins with a byte order mark, save it without"
    if number := re.search(rb"[:\[,]\s*(-?Infinity|NaN)\b", data[: 1 << 16]):
        return f": {number[1].decode()} is no number of JSON"
    if half := re.search(rb"(?<!\\)(?:\\\\)*(\\u[dD][89a-fA-F][0-9a-fA-F]{2})", data[: 1 << 16]):
        return f": {half[1].decode()} may be half of a surrogate pair, which is no character"
    return ""
