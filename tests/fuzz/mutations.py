"""Damage to files: strategies of hypothesis that draw a changed content, or something that is no file."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

WRONG_VALUES: list[Any] = [
    *(None, True, False, "", "128", "\x1b[31m", "x" * 70_000, "../x", "/dev/zero", 0, -1, 1.5, 1e308),
    *(10**9, 10**18, 10**400, [], {}, [[[]]], {"a": {"b": []}}),
]
"""Values of the wrong type or size."""
MISSING, UNKNOWN, DEEP = "missing", "unknown", "deep"
ODD_BYTES = [
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"\r", b"\n\n", b"\t\t", b'"', b"\\", b"\xed\xa0\x80", b"NaN"),
    *(
        b"9" * 400,
        b"[" * 5000,
        b"<!ENTITY a 'b'>",
        b"&a;",
        b"\xe2\x80\xae",
        b"a" * 100_000,
        b"1e400",
        b"\xf4\x90\x80\x80",
    ),
]
ODD_FILES = ("pipe", "folder", "device", "ring", "nowhere")
"""What may stand in place of a file: see `place`."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes, name: str, *, may_be_pipe: bool) -> bytes | str:
    """Draw a damaged content for a file of this name, or the kind of something that is no file.

    Text that a user gives may come through a pipe, and waits for whoever writes to it.
    """
    ways: list[Callable[[st.DrawFn, bytes], bytes]] = [_flip, _cut, _insert, _double, _overwrite]
    for ending, way in BY_ENDING.items():
        if name.endswith(ending):
            ways += [way] * len(ways)  # as often as all the others together
            break
    if draw(st.integers(0, 19)) == 0:
        return draw(st.sampled_from(ODD_FILES if may_be_pipe else ODD_FILES[1:]))
    return draw(st.sampled_from(ways))(draw, content)


def _at(draw: st.DrawFn, content: bytes) -> int:
    return draw(st.integers(0, max(0, len(content) - 1)))


def _flip(draw: st.DrawFn, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 8)) if content else 0):
        changed[_at(draw, content)] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


def _cut(draw: st.DrawFn, content: bytes) -> bytes:
    return content[: _at(draw, content)]


def _insert(draw: st.DrawFn, content: bytes) -> bytes:
    at = _at(draw, content)
    return content[:at] + draw(st.sampled_from(ODD_BYTES)) + content[at:]


def _double(draw: st.DrawFn, content: bytes) -> bytes:
    first, second = sorted((_at(draw, content), _at(draw, content)))
    return content[:second] + content[first:second] + content[second:]


def _overwrite(draw: st.DrawFn, content: bytes) -> bytes:
    at, odd = _at(draw, content), draw(st.sampled_from(ODD_BYTES))
    return content[:at] + odd + content[at + len(odd) :]


def _swap_field(draw: st.DrawFn, content: bytes) -> bytes:
    """Give a field of a JSON document another value, leave it out, add one, or nest it deeply."""
    value = json.loads(content)
    changed = swapped(draw, value)
    return changed if isinstance(changed, bytes) else json.dumps(changed).encode()


def swapped(draw: st.DrawFn, value: Any) -> Any:
    """Return a JSON value of which one field is wrong; bytes where Python can't write it down."""
    value = deepcopy(value)
    paths = list(_paths(value))
    if not paths:
        return draw(st.sampled_from(WRONG_VALUES))
    *above, last = draw(st.sampled_from(paths))
    inner = value
    for step in above:
        inner = inner[step]
    wrong = draw(st.sampled_from([*WRONG_VALUES, MISSING, UNKNOWN, DEEP]))
    if wrong is MISSING:
        del inner[last]
    elif wrong is UNKNOWN and isinstance(inner, dict):
        inner["unknown"] = 1
    elif wrong is DEEP:
        inner[last] = "DEEP"
        return json.dumps(value).encode().replace(b'"DEEP"', b"[" * 50_000 + b"]" * 50_000)
    else:
        inner[last] = wrong
    return value


def _paths(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field; of lists only the first two items."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for name, inner in inside:
        yield (*path, name)
        yield from _paths(inner, *path, name)


def _swap_in_line(draw: st.DrawFn, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    number = draw(st.integers(0, len(lines) - 1))
    lines[number] = _swap_field(draw, lines[number]) + b"\n"
    return b"".join(lines)


def _change_header(draw: st.DrawFn, content: bytes) -> bytes:
    """Change the JSON in the header of a safetensors file, its length, or a number among the weights."""
    length = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + length], content[8 + length :]
    way = draw(st.integers(0, 5))
    if way == 0:
        return draw(st.sampled_from([0, 1, length + 1, 1 << 32, (1 << 64) - 1])).to_bytes(8, "little") + content[8:]
    if way == 1:
        odd = draw(
            st.sampled_from([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f"])
        )  # NaN, infinity, the largest
        at = draw(st.integers(0, max(0, len(rest) // 4 - 1))) * 4
        return content[:8] + header + rest[:at] + odd + rest[at + 4 :]
    values = json.loads(header)
    name = draw(st.sampled_from([name for name in values if name != "__metadata__"]))
    if way == 2:
        values[name]["dtype"] = draw(st.sampled_from(["I64", "BOOL", "F64", "F16", "BF16", "F8_E4M3", "X", 7, None]))
    elif way == 3:
        values[draw(st.sampled_from(["x", "", "\x1b", "a" * 9999]))] = values.pop(name)
    else:
        values = swapped(draw, values)
    header = values if isinstance(values, bytes) else json.dumps(values).encode()
    return len(header).to_bytes(8, "little") + header + rest


def _change_message(draw: st.DrawFn, content: bytes) -> bytes:
    """Leave out, repeat, cut or spoil one field of a protobuf message, as sentencepiece's models are."""
    fields = list(_fields(content))
    number = draw(st.integers(0, len(fields) - 1))
    way = draw(st.sampled_from(["none", "twice", "many", "cut", "flip", "large"]))
    if way == "none":
        fields[number] = b""
    elif way in ("twice", "many"):
        fields[number] *= 2 if way == "twice" else 1000
    elif way == "cut":
        fields[number] = _cut(draw, fields[number])
    elif way == "flip":
        fields[number] = _flip(draw, fields[number])
    else:
        fields[number] = fields[number][:1] + b"\xff\xff\xff\xff\x7f" + fields[number][2:]
    return b"".join(fields)


def _fields(content: bytes) -> Iterator[bytes]:
    """Yield the fields of a protobuf message, each with its key and length."""
    at = 0
    while at < len(content):
        begin, kind = at, content[at] & 7
        at = _after_number(content, at)
        if kind == 2:
            size, shift = 0, 0
            while True:
                size |= (content[at] & 127) << shift
                shift, at = shift + 7, at + 1
                if content[at - 1] < 128:
                    break
            at += size
        else:
            at = {0: _after_number(content, at), 1: at + 8, 5: at + 4}[kind]
        yield content[begin:at]


def _after_number(content: bytes, at: int) -> int:
    while content[at] >= 128:
        at += 1
    return at + 1


def _repack(pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]) -> Callable[[st.DrawFn, bytes], bytes]:
    """Return a way to damage the packed text, or to join a second member to it."""

    def damage(draw: st.DrawFn, content: bytes) -> bytes:
        if draw(st.booleans()):
            return content + draw(st.sampled_from([content, content[:-5], b"rest", pack(b"x" * 3_000_000)]))
        way = draw(st.sampled_from([_flip, _cut, _insert, _double, _overwrite]))
        return pack(way(draw, unpack(content)))

    return damage


def _change_entry(draw: st.DrawFn, content: bytes) -> bytes:
    """Damage one file within a zip archive."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(changed, "w") as new:
        names = old.namelist()
        chosen = draw(st.sampled_from(names))
        for name in names:
            inside = old.read(name)
            new.writestr(
                name, draw(st.sampled_from([_flip, _cut, _insert, _double]))(draw, inside) if name == chosen else inside
            )
    return changed.getvalue()


def _unzstd(content: bytes) -> bytes:
    import zstandard

    return zstandard.decompress(content)


def _zstd(content: bytes) -> bytes:
    import zstandard

    return zstandard.compress(content)


BY_ENDING: dict[str, Callable[[st.DrawFn, bytes], bytes]] = {
    ".jsonl": _swap_in_line,
    ".json": _swap_field,
    ".safetensors": _change_header,
    ".spm": _change_message,
    ".gz": _repack(gzip.compress, gzip.decompress),
    ".bz2": _repack(bz2.compress, bz2.decompress),
    ".xz": _repack(lzma.compress, lzma.decompress),
    ".zst": _repack(_zstd, _unzstd),
    ".xlsx": _change_entry,
}
