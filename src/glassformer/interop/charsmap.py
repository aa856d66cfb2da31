"""The rules for characters that a sentencepiece model has, read from the form that they are compiled to."""

import struct
from collections.abc import Iterator

import torch

_MOST = 1 << 17
"""Most beginnings of texts that are read; the rules of NFD have 14,000. A damaged trie can spell any number."""


def read_rules(charsmap: bytes) -> Iterator[tuple[str, str]]:
    """Yield the rules of a `precompiled_charsmap`: a text, and the one that takes its place.

    Where several texts of rules begin alike, the longest is taken. The charsmap is the number of bytes of a trie, the
    trie, and the results, each ended by a zero byte. The trie is a double array (darts-clone) over the bytes of the
    texts; its values are places among the results. Raises ValueError for what is none, and for far more rules than NFD
    has, once they are reached.
    """
    if not charsmap:
        return
    if len(charsmap) < 4:
        raise ValueError("cut short")
    (size,) = struct.unpack_from("<I", charsmap)
    results = charsmap[4 + size :]
    for key, value in _keys(torch.frombuffer(bytearray(charsmap[4 : 4 + size]), dtype=torch.int32).long() & 0xFFFFFFFF):
        yield key.decode(), results[value : results.index(b"\0", value)].decode()


def _keys(units: torch.Tensor) -> Iterator[tuple[bytes, int]]:
    """Yield each key of a double array with its value, those of one length at a time; ValueError as in `read_rules`."""
    labels = torch.arange(1, 256)
    nodes, prefixes = torch.zeros(1, dtype=torch.long), [b""]
    left = _MOST
    while len(nodes):
        left -= len(nodes)
        if left < 0:
            raise ValueError("there are too many")
        found = units[nodes]
        first = nodes ^ ((found >> 10) << ((found & 512) >> 6))  # where the children of each begin
        for n in ((found >> 8) & 1).nonzero().flatten().tolist():
            if first[n] >= len(units):
                raise ValueError("a value beyond its end")
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
