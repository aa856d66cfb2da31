"""The content of a sentencepiece model's file: its pieces, its rules for characters, and what it does with spaces.

The file is a message of protocol buffers. The fields are those of sentencepiece_model.proto (sentencepiece 0.2). Loads
no torch.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from glassformer.errors import DataError

_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_UNK_SURFACE = " \u2047 "
_FORMS = {5: "<f", 1: "<d"}
"""Formats of numbers of a fixed length, by their wire type."""
_PIECE, _SCORE = 1 << 3 | 2, 2 << 3 | 5
"""Keys of a piece in a model, and of the score in a piece."""
ROUND = 2.0**-10
"""Sums of multiples of it are exact in float32 up to 16,384, the score of a line of more than a thousand tokens."""


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
    """The contents of a sentencepiece model that encoding and decoding depend on."""

    kind: str
    """unigram, bpe, word or char."""
    pieces: Sequence[Piece]
    charsmap: bytes
    """The rules for characters, compiled; empty if there are none."""
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


def with_round_scores(proto: bytes) -> bytes:
    """Return the file of a model with scores that are multiples of `ROUND`.

    Sums of them are exact in float32. Splittings that are equally good, such as 00|0 and 0|00, then have the same score
    wherever they stand, and the first is taken: by sentencepiece, which computes in float32, and by others, which
    compute in float64.
    """
    changed = bytearray(proto)
    for key, start, end in _places(proto, 0, len(proto)):
        if key == _PIECE:
            for inner, at, _ in _places(proto, start, end):
                if inner == _SCORE:
                    (score,) = struct.unpack_from("<f", proto, at)
                    struct.pack_into("<f", changed, at, round(score / ROUND) * ROUND)
    return bytes(changed)


def _piece(fields: dict[int, list]) -> Piece:
    return Piece(_last(fields, 1, b"").decode(), _last(fields, 2, 0.0), PieceType(_last(fields, 3, 1)))


def _last(fields: dict[int, list], number: int, default):
    """Return the last value of a field, which is the one that counts."""
    return fields[number][-1] if number in fields else default


def _fields(message: bytes) -> dict[int, list]:
    """Return the values of each field of a message, by its number."""
    found: dict[int, list] = {}
    for key, start, end in _places(message, 0, len(message)):
        wire = key & 7
        if wire == 0:
            value, _ = _varint(message, start)
        elif wire == 2:
            value = message[start:end]
        else:
            (value,) = struct.unpack_from(_FORMS[wire], message, start)
        found.setdefault(key >> 3, []).append(value)
    return found


def _places(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield key, beginning and end of each field's value in a part of a message."""
    while at < end:
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            _, stop = _varint(message, at)
        elif wire == 2:
            length, at = _varint(message, at)
            stop = at + length
        else:
            stop = at + struct.calcsize(_FORMS[wire])
        if stop > end:
            raise ValueError("it is cut short")
        yield key, at, stop
        at = stop


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place of a message, seven bits a byte, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
