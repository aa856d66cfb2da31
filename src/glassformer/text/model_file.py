"""The content of a sentencepiece model's file: its pieces, its rules for characters, and what it does with spaces.

The file is a message of protocol buffers. The fields are those of sentencepiece_model.proto (sentencepiece 0.2).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from glassformer.errors import DataError

_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_UNK_SURFACE = " \u2047 "


class PieceType(IntEnum):
    """The uses of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    """A piece as the file has it."""

    text: str
    score: float
    """The log-probability; in a bpe model, minus the number of its merge."""
    type: PieceType


@dataclass(frozen=True)
class ModelFile:
    """What encoding and decoding with a sentencepiece model depend on."""

    kind: str
    """unigram, bpe, word or char."""
    pieces: Sequence[Piece]
    charsmap: bytes
    """The rules for characters, compiled (see `read_rules`)."""
    add_dummy_prefix: bool
    """Put a space before the text."""
    remove_extra_whitespaces: bool
    """Make runs of spaces one, and remove outer spaces."""
    escape_whitespaces: bool
    """Write spaces as U+2581."""
    spaces_end_pieces: bool
    """Put the space of a word behind it."""
    byte_fallback: bool
    """Split unknown characters into their bytes."""
    unk_surface: str
    """The text that an unknown token is read as."""
    rules_to_decode: bool
    """Change characters when decoding too."""


def read_model_file(proto: bytes) -> ModelFile:
    """Read the bytes of a sentencepiece model's file; raise DataError where they are none."""
    try:
        fields = _fields(proto)
        trainer, normalizer, denormalizer = (_fields(_last(fields, number, b"")) for number in (2, 3, 5))
        return ModelFile(
            kind=_MODEL_TYPES[_last(trainer, 3, 1)],
            pieces=[_piece(_fields(message)) for message in fields.get(1, [])],
            charsmap=_last(normalizer, 2, b""),
            add_dummy_prefix=bool(_last(normalizer, 3, 1)),
            remove_extra_whitespaces=bool(_last(normalizer, 4, 1)),
            escape_whitespaces=bool(_last(normalizer, 5, 1)),
            spaces_end_pieces=bool(_last(trainer, 24, 0)),
            byte_fallback=bool(_last(trainer, 35, 0)),
            unk_surface=_last(trainer, 44, _UNK_SURFACE.encode()).decode(),
            rules_to_decode=bool(_last(denormalizer, 2, b"")),
        )
    except (IndexError, KeyError, ValueError, AttributeError, TypeError, struct.error) as error:
        raise DataError(f"not a sentencepiece model: {error}") from None


def read_rules(charsmap: bytes) -> Iterator[tuple[str, str]]:
    """Yield the rules of a `precompiled_charsmap`: a text, and the one that takes its place.

    Where several texts of rules begin alike, the longest is taken. The charsmap is the number of bytes of a trie, the
    trie, and the results, each ended by a zero byte. The trie is a double array (darts-clone) over the bytes of the
    texts; its values are places among the results.
    """
    if not charsmap:
        return
    (size,) = struct.unpack_from("<I", charsmap)
    results = charsmap[4 + size :]
    for key, value in _keys(torch.frombuffer(bytearray(charsmap[4 : 4 + size]), dtype=torch.int32).long() & 0xFFFFFFFF):
        yield key.decode(), results[value : results.index(b"\0", value)].decode()


def _piece(fields: dict[int, list]) -> Piece:
    return Piece(_last(fields, 1, b"").decode(), _last(fields, 2, 0.0), PieceType(_last(fields, 3, 1)))


def _last(fields: dict[int, list], number: int, default):
    """Return the last value of a field, which is the one that counts."""
    return fields[number][-1] if number in fields else default


def _fields(message: bytes) -> dict[int, list]:
    """Return the values of each field of a message, by its number."""
    found: dict[int, list] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
        elif wire == 2:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        else:
            form, length = {5: ("<f", 4), 1: ("<d", 8)}[wire]
            (value,), at = struct.unpack_from(form, message, at), at + length
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place of a message, seven bits a byte, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _keys(units: torch.Tensor) -> Iterator[tuple[bytes, int]]:
    """Yield each key of a double array with its value, all keys of one length at a time."""
    labels = torch.arange(1, 256)
    nodes, prefixes = torch.zeros(1, dtype=torch.long), [b""]
    while len(nodes):
        found = units[nodes]
        first = nodes ^ ((found >> 10) << ((found & 512) >> 6))  # where the children of each begin
        for n in ((found >> 8) & 1).nonzero().flatten().tolist():
            if prefixes[n]:
                yield prefixes[n], int(units[first[n]] & 0x7FFFFFFF)
        children = first[:, None] ^ labels
        there = children < len(units)
        there &= units[children.where(there, 0)] & 0x800000FF == labels
        rows, columns = there.nonzero(as_tuple=True)
        prefixes = [
            prefixes[row] + bytes([column + 1]) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        ]
        nodes = children[rows, columns]
