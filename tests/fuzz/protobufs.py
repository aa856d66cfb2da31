"""Protocol buffers, as sentencepiece's models are, after a change of one of their fields."""

import struct
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from mutations import NUMBERS, SNIPPETS, Bytes, Draw, damaged

VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5
"""Types of fields on the wire."""
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1e38, 3e38)


@dataclass(frozen=True)
class Field:
    """A field as it stands in the file."""

    number: int
    kind: int
    value: int | bytes
    claimed: int | None = None
    """The length that it claims to have; None: its own."""


def modelled(base: bytes) -> Bytes:
    """Return a protocol buffer with one or two fields changed, or with its bytes damaged."""
    return st.one_of(refielded(base), refielded(base), refielded(base), damaged(base))


@st.composite
def refielded(draw: Draw, base: bytes) -> bytes:
    """Return a protocol buffer with one or two fields changed, at any depth."""
    for _ in range(draw(st.integers(1, 2))):
        base = _change(draw, base)
    return base


def _change(draw: Draw, message: bytes) -> bytes:
    fields = parse(message)
    if not fields:
        return draw(damaged(message))
    numbers = sorted({field.number for field in fields})  # each kind of field as likely, however often it comes
    number = draw(st.sampled_from(numbers))
    at = draw(st.sampled_from([n for n, field in enumerate(fields) if field.number == number]))
    field = fields[at]
    match draw(st.sampled_from(("value", "value", "value", "drop", "drop all", "double", "number", "length", "swap"))):
        case "value":
            fields[at] = replace(field, value=_other(draw, field))
        case "drop":
            del fields[at]
        case "drop all":
            fields = [one for one in fields if one.number != number]
        case "double":
            fields[at:at] = [field] * draw(st.sampled_from((1, 3, 1000)))
        case "number":
            fields[at] = replace(field, number=draw(st.sampled_from((*numbers, 99, (1 << 29) - 1))))
        case "length" if field.kind == LENGTH:
            fields[at] = replace(field, claimed=draw(st.sampled_from(NUMBERS)) % (1 << 63))
        case _:
            other = draw(st.integers(0, len(fields) - 1))
            fields[at], fields[other] = fields[other], field
    return b"".join(map(_written, fields))


def _other(draw: Draw, field: Field) -> int | bytes:
    """Return another value of the same type; of a message within, or of text, one that is like it."""
    if field.kind == VARINT:
        return draw(st.sampled_from(NUMBERS))
    if isinstance(field.value, bytes) and field.kind == LENGTH:
        if parse(field.value) and draw(st.sampled_from((True, True, False))):
            return _change(draw, field.value)
        return draw(st.one_of(damaged(field.value), st.sampled_from((b"", *SNIPPETS)), st.sampled_from(REPEATED)))
    size = 8 if field.kind == EIGHT else 4
    return draw(st.one_of(st.binary(min_size=size, max_size=size), st.sampled_from(FLOATS).map(_packed)))[:size]


REPEATED = (b"</s>", b"<unk>", b"<s>", b"\xe2\x96\x81", b"a", b"<0x41>")
"""Pieces that a model has already, or that mean something to it."""


def _packed(number: float) -> bytes:
    return struct.pack("<d", number) if number != number else struct.pack("<f", number) * 2


def parse(message: bytes) -> list[Field]:
    """Return the fields of a message; none where it is no message."""
    fields, place = [], 0
    try:
        while place < len(message):
            tag, place = _varint(message, place)
            number, kind = tag >> 3, tag & 7
            value: int | bytes
            if kind == VARINT:
                value, place = _varint(message, place)
            else:
                if kind == LENGTH:
                    size, place = _varint(message, place)
                else:
                    size = {EIGHT: 8, FOUR: 4}[kind]
                value = message[place : place + size]
                place += size
            if not number or place > len(message):
                return []
            fields.append(Field(number, kind, value))
    except (IndexError, KeyError):
        return []
    return fields


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if byte < 128:
            return value, place


def _written(field: Field) -> bytes:
    head = _as_varint(field.number << 3 | field.kind)
    if isinstance(field.value, int):
        return head + _as_varint(field.value)
    if field.kind == LENGTH:
        head += _as_varint(len(field.value) if field.claimed is None else field.claimed)
    return head + field.value


def _as_varint(value: int) -> bytes:
    parts, value = [], value % (1 << 64)
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
