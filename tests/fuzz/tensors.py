"""safetensors files after a change of the header, of its length, or of the numbers."""

import hashlib
import json
import struct
from collections.abc import Callable

from documents import edited
from hypothesis import strategies as st
from mutations import NUMBERS, Bytes, Draw, damaged

FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, 1e-45)


@st.composite
def rewritten(draw: Draw, base: bytes) -> bytes:
    """Return a file with another header, whose length is right."""
    header, numbers = _parts(base)
    return _joined(draw(edited(header)), numbers)


@st.composite
def mismeasured(draw: Draw, base: bytes) -> bytes:
    """Return a file whose header claims another length."""
    length = draw(st.one_of(st.sampled_from(NUMBERS), st.integers(0, 2 * len(base))))
    return struct.pack("<Q", length % (1 << 64)) + base[8:]


@st.composite
def renumbered(draw: Draw, base: bytes) -> bytes:
    """Return a file in which some numbers are not finite, or whose numbers are too few or too many."""
    header, numbers = _parts(base)
    if draw(st.booleans()):
        return _joined(header, numbers[: draw(st.integers(0, len(numbers)))] + b"\0" * draw(st.integers(0, 9)))
    changed = bytearray(numbers)
    for _ in range(draw(st.integers(1, 3))):
        struct.pack_into("<f", changed, 4 * draw(st.integers(0, len(numbers) // 4 - 1)), draw(st.sampled_from(FLOATS)))
    return _joined(header, bytes(changed))


def stored(base: bytes) -> Bytes:
    """Return a safetensors file, changed in one of these ways."""
    return st.one_of(rewritten(base), rewritten(base), mismeasured(base), renumbered(base), damaged(base))


def sealed(strategy: Callable[[bytes], Bytes]) -> Callable[[bytes], Bytes]:
    """Return the same changes with a checksum that is right again, as whoever means harm would write it."""
    return lambda base: st.one_of(strategy(base), strategy(base).map(_sealed))


def _parts(base: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack_from("<Q", base)
    return base[8 : 8 + length], base[8 + length :]


def _joined(header: bytes, numbers: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + numbers


def _sealed(content: bytes) -> bytes:
    """Return a checkpoint with the checksum that `glassformer.tensors` expects, where it can still be read."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header, numbers = _parts(content)
        document = json.loads(header)
        metadata = {name: text for name, text in document["__metadata__"].items() if name != "blake2b"}
        digest = hashlib.blake2b(json.dumps(sorted(metadata.items())).encode(), digest_size=16)
        for name, tensor in sorted(load(content).items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    except (
        SafetensorError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,
        struct.error,
        RuntimeError,
    ):
        return content
    document["__metadata__"] = {**metadata, "blake2b": digest.hexdigest()}
    return _joined(json.dumps(document).encode(errors="surrogatepass"), numbers)
