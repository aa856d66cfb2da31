"""The device and the precision to compute with, and the memory of a process."""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from glassformer.errors import ConfigError, OutOfMemoryError, shown

THREADS_PER_CORE, MOST_ANYWHERE = 8, 64
"""Most CPU threads for each core, and how many every machine may start."""


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device of this name, or this one. `auto` is CUDA if there is a GPU, else MPS, else the CPU."""
    if isinstance(name, torch.device):
        name = str(name)
    if not isinstance(name, str):
        raise ConfigError(f"device must be one of auto, cpu, cuda, mps, got {shown(name)}")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(device for device in ("cuda", "mps", "cpu") if available[device]))
    if name.split(":")[0] not in available:
        raise ConfigError(f"device must be one of auto, cpu, cuda, mps, got {shown(name)}")
    if not available[name.split(":")[0]]:
        usable = ", ".join(device for device, there in available.items() if there)
        raise ConfigError(f"device {name} is not available on this machine: choose one of auto, {usable}")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, mps, cuda, or cuda:N for the N-th GPU, got {name!r}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name} is not there: this machine has {torch.cuda.device_count()} GPUs, from cuda:0")
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the type in which training computes matrix products.

    `auto` is bfloat16 on a CPU with AVX512_BF16 or AMX and on a GPU for which torch reports it, and float32 elsewhere.
    """
    if name == "auto":
        if device.type == "cpu":
            has = torch.cpu.get_capabilities()
            fast = bool(has.get("avx512_bf16") or has.get("amx_bf16"))
        else:
            fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if fast else torch.float32
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in types:
        raise ConfigError(f"precision must be one of auto, {', '.join(types)}, got {shown(name)}")
    return types[name]


def use_threads(count: int | None) -> None:
    """Compute with so many CPU threads from now on; None leaves torch's choice.

    Raises ConfigError where they are far more than this machine has cores.
    """
    if count is None:
        return
    most = max(MOST_ANYWHERE, THREADS_PER_CORE * (os.cpu_count() or 1))
    if count > most:
        raise ConfigError(
            f"threads must be at most {most} on this machine, got {count}: they would wait for one another"
        )
    torch.set_num_threads(count)


@contextmanager
def explaining_memory(doing: Callable[[], str]) -> Iterator[None]:
    """Turn any device's error about memory that has run out into OutOfMemoryError.

    `doing` returns the rest of the message: what the memory was for, and which setting to lower.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        signs = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "ALLOC_FAILED")
        if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in signs):
            raise
        raise OutOfMemoryError(f"out of memory {doing()}") from None


@contextmanager
def mapped_memory() -> Iterator[None]:
    """Map each large block that is allocated inside by itself, so that freeing it gives its memory back.

    Loading takes and frees a block for each weight. In glibc's heap, packed weights would lie between holes of their
    own size: 20 weights of 4 MiB took 160 MiB. Afterwards blocks from 8 MiB on are mapped, such as the caches of
    generation, or from the size that `tame_memory` has set. (With the 32 MiB to which glibc's own rule grows, the peak
    was 110 MiB higher.) Without glibc this does nothing.
    """
    _set_limits(_LOADING)
    try:
        yield
    finally:
        _set_limits(_limits)


@contextmanager
def attention_for_any_shape() -> Iterator[None]:
    """Keep torch on a GPU from cuDNN's attention inside, for batches whose shapes vary; the whole process's switch.

    cuDNN makes a plan for each new shape, forward and backward: on an H100 an update of a new shape takes 524 ms, of
    one seen before 70. Flash and memory-efficient attention make none: 65 ms and 54.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def tame_memory() -> None:
    """Prepare the process's memory for training on the CPU. Call it before the first computation.

    oneDNN keeps a compiled product for each of the last 1,024 shapes. Batches have thousands of shapes, which would
    take gigabytes for a tiny model; training has fewer than 256 (see `Packing`), so that many are kept. glibc maps
    every block above 128 kB anew, and page faults took a fifth of a training step. So freed blocks are kept, which
    raised the tiny model from 7.4k to 9.2k target tokens per second. Without oneDNN or glibc, that part does nothing.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "256")
    global _limits
    _limits = _KEEPING
    _set_limits(_limits)


# Each pair: the size from which glibc maps a block by itself (at most 32 MiB), and the free memory that it keeps.
_LOADING = (1 << 18, 1 << 26)
_GENERATING = (1 << 23, 1 << 26)
_KEEPING = (1 << 25, (1 << 31) - 1)
_limits = _GENERATING
_FROM_BYTES = 1 << 22  # two huge pages


def _set_limits(limits: tuple[int, int]) -> None:
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return
    m_trim_threshold, m_mmap_threshold = -1, -3
    mallopt(m_mmap_threshold, limits[0])
    mallopt(m_trim_threshold, limits[1])


def use_huge_pages(block: torch.Tensor) -> None:
    """Ask Linux for pages of 2 MiB for a large block that was just made on the CPU, so that it costs fewer page faults.

    To write 8 MiB for the first time takes 3.7 ms in pages of 4 KiB, and 1.7 ms so (AMD Zen 4, virtual).
    """
    if not sys.platform.startswith("linux") or block.device.type != "cpu" or block.nbytes < _FROM_BYTES:
        return
    first = -(-block.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = block.data_ptr() + block.nbytes - first
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)
