"""The choice of the form that computes: every threshold and every predicate about an input, with its measurement.

Callers write `choose.NAME`, so that a test which changes a name here changes it everywhere: the one seam for tests.
Unless it is said otherwise, times were measured with torch 2.13 on two threads of an Intel Xeon with AMX
(benchmarks/LOG.md has more of them).
"""

import platform
from functools import cache
from importlib.util import find_spec

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from glassformer.attention.kernels.calibration import onednn_beats_mkl
from glassformer.attention.want import NOTHING, Want

# What the input allows

_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))


def is_eager(*tensors: Tensor | None) -> bool:
    """Return whether code may look at values and write in place.

    It may not while torch compiles, traces or transforms, nor with tensor subclasses.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    ) and _PLAIN.issuperset(map(type, tensors))


def values_can_be_read(*tensors: Tensor | None) -> bool:
    """Return whether code may decide by values: where `is_eager`, and on the CPU, where none are waited for."""
    return is_eager(*tensors) and all(x is None or x.device.type == "cpu" for x in tensors)


def is_batched(x: Tensor | None) -> bool:
    """Return whether x is what torch.autograd.grad(is_grads_batched=True) passes through a backward pass."""
    return x is not None and is_legacy_batchedtensor(x)


# Short sequences: `attend_short` in place of the fused kernel

# Forward and backward of 4,096 positions, lengths 8 to 256: in bfloat16 the fused kernel takes 2 to 14 times as long as
# `attend_short` up to a length of 128, in float32 1.1 to 1.5 times up to 16, then 0.8.
SHORT_UP_TO_SCORES = {torch.float32: 20 * 20, torch.float64: 20 * 20}
SHORT_UP_TO_SCORES_IN_HALF = 128 * 128
SHORT_IN_CACHE = 1 << 19  # numbers of q of the sequences that `attend_short` takes at a time


def short_is_faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `attend_short` is the faster form: on the CPU, when short sequences need gradients."""
    return (
        q.device.type == "cpu"
        and torch.is_grad_enabled()
        and (q.requires_grad or k.requires_grad or v.requires_grad)
        and is_eager(q, k, v)  # a graph or a transform must see all operations
        and q.numel() > 0
        and q.shape[-2] * k.shape[-2] <= SHORT_UP_TO_SCORES.get(q.dtype, SHORT_UP_TO_SCORES_IN_HALF)
    )


# A single query: plain products in place of the fused kernel

ONE_QUERY_UP_TO_KEYS = 128 * 128


def products_are_faster(q: Tensor, k: Tensor) -> bool:
    """Return whether plain products are the faster form: on the CPU, for a single query over few keys."""
    if torch.compiler.is_compiling():  # a comparison of sizes would become a condition of the graph
        return False
    return q.device.type == "cpu" and q.shape[-2] == 1 and k.shape[-2] <= ONE_QUERY_UP_TO_KEYS


# Long sequences: copies of q, k and v before the fused kernel

COPIES_FROM_SCORES = 512 * 512


def copies_are_faster(q: Tensor, k: Tensor) -> bool:
    """Return whether the fused kernel should read copies.

    On the CPU it reads long heads a tenth faster from memory of their own than out of packed projections.
    """
    return (
        not torch.compiler.is_compiling()
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and q.shape[-2] * k.shape[-2] >= COPIES_FROM_SCORES
    )


# Small self-attention: one operator of torch's for all of it

# Up to how many scores that operator is at least as fast as its parts: (with weights, without). It holds all weights,
# and a mask doubles its time.
ONE_CALL_UP_TO_SCORES = {
    torch.float32: (1 << 20, 1 << 14),
    torch.float64: (1 << 14, 1 << 14),
    torch.bfloat16: (1 << 23, 1 << 20),
    torch.float16: (1 << 23, 1 << 20),
}
ONE_CALL_WITH_MASK_UP_TO_SCORES = 1 << 14


def one_call_is_faster(
    x: Tensor,
    heads: int,
    projections: tuple[Tensor, ...],
    padding: Tensor | None,
    mask: Tensor | None,
    need_weights: bool,
) -> bool:
    """Return whether one operator is right and the faster form for self-attention over x (batch, length, d_model).

    At 1 x 8 x 64 the calls themselves are the time: the one operator takes 26 us, our nine of them 60.
    """
    if not x.is_cpu or (padding is not None and mask is not None) or not is_eager(x, *projections, padding, mask):
        return False
    batch, length, _ = x.shape
    most = ONE_CALL_UP_TO_SCORES.get(x.dtype, (0, 0))[not need_weights]
    blocked, shape = (mask, (length, length)) if padding is None else (padding, (batch, length))
    if blocked is not None:
        most = min(most, ONE_CALL_WITH_MASK_UP_TO_SCORES)
    if (
        batch * heads * length * length > most
        or any(p.dtype != x.dtype for p in projections)
        or x.shape[2] != projections[0].shape[1]
        or not length
        or torch.is_autocast_enabled("cpu")
        or not torch.backends.mha.get_fastpath_enabled()
        or not hasattr(torch, "_native_multi_head_attention")
    ):
        return False
    if blocked is None:
        return True
    # With every key blocked the operator returns NaN; a wrong mask is explained elsewhere.
    return blocked.dtype == torch.bool and blocked.shape == shape and not bool(blocked.all(-1).any())


# float16 on the CPU: everything in float32

# torch multiplies float16 by plain loops where oneDNN can't: a projection of 2,048 x 512 by 1,536 takes 87 ms, in
# float32 with both conversions 18; its gradients 1,420 and 469, and 17 (Zen 4). At 1 x 8 x 64
# the conversions cost more.
FLOAT32_FROM_PRODUCTS = 1 << 17  # numbers of the query times its width


def float32_is_faster(query: Tensor, *tensors: Tensor | None) -> bool:
    """Return whether to compute float16 in float32: on x86 processors without instructions for it."""
    return (
        query.dtype == torch.float16
        and query.is_cpu
        and not torch.compiler.is_compiling()  # before sizes, and these before what takes longer
        and query.numel() * query.shape[-1] >= FLOAT32_FROM_PRODUCTS
        and is_eager(query, *tensors)
        and not torch.is_autocast_enabled("cpu")
        and not _multiplies("fp16")
    )


# bfloat16 on the CPU: blocks in place of the fused kernel


def half_blocks_are_faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether blocks are the faster form in bfloat16: on processors that have it in AVX-512, and no AMX.

    1 x 2048 takes 37 ms, in the fused kernel 60, 4 x 512 10.6 and 18.6 (Zen 4). With AMX the fused kernel is as fast.
    """
    return (
        q.dtype == torch.bfloat16 and q.device.type == "cpu" and blocks_are_faster(q, k, v) and _bfloat16_in_vectors()
    )


# Causal attention of more queries than keys: from so many keys on in two parts where blocks are faster. 4 x 512 takes
# 21 ms, in the fused kernel 26; 32 x 64 16 and 14 (the whole module in bfloat16, Zen 4).
PARTS_FROM_KEYS = 256


@cache
def _multiplies(kind: str) -> bool:
    """Return whether the processor multiplies matrices of a 16-bit type, fp16 or bf16, or isn't known."""
    has = torch.cpu.get_capabilities()
    return has.get("architecture") != "x86_64" or bool(has.get(f"avx512_{kind}") or has.get(f"amx_{kind}"))


@cache
def _bfloat16_in_vectors() -> bool:
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16")) and not has.get("amx_bf16")


# Small inputs: as few calls as possible

# At 1 x 8 x 64 the general way takes 1.2 to 1.7 times as long as torch's module, `attend_small` 0.7 to 0.9 (Zen 4).
SMALL_UP_TO_SCORES = 1 << 14
# With weights and no gradients the general way, blocks, takes longer than all weights at once: 1.02 to 1.1 times at
# 32 x 64, in float32 and bfloat16; in bfloat16 without AMX, each head's weights, 1.00 to 1.05 times at 4 x 512, where
# float32 takes 0.8 to 0.9 (Zen 4).
SMALL_WEIGHTS_UP_TO_SCORES = 1 << 20
SMALL_WEIGHTS_IN_HALF_UP_TO_SCORES = 1 << 23


def calls_are_the_time(
    batch: int,
    q_len: int,
    k_len: int,
    heads: int,
    tensors: tuple[Tensor | None, ...],
    padding: Tensor | None,
    mask: Tensor | None,
    need_weights: bool,
    average: bool,
) -> bool:
    """Return whether `attend_small` is right and the faster form for these tensors, the query first, and masks."""
    query = tensors[0]
    # is_eager before sizes: under torch.compile a comparison of sizes would become a condition of the graph.
    if query is None or not query.is_cpu or not is_eager(*tensors, padding, mask) or not query.is_floating_point():
        return False
    scores = batch * heads * q_len * k_len
    if not scores or torch.is_autocast_enabled("cpu") or not _are_alike(tensors):
        return False
    if scores > SMALL_UP_TO_SCORES:
        if not need_weights or torch.is_grad_enabled() or onednn_is_faster(query, query, columns=query.shape[-1]):
            return False
        in_half = not average and query.dtype == torch.bfloat16 and _bfloat16_in_vectors()
        if scores > (SMALL_WEIGHTS_IN_HALF_UP_TO_SCORES if in_half else SMALL_WEIGHTS_UP_TO_SCORES):
            return False
    if padding is not None and (padding.dtype != torch.bool or not padding.is_cpu or padding.shape != (batch, k_len)):
        return False
    return mask is None or (mask.dtype in (torch.bool, query.dtype) and mask.is_cpu and mask.shape == (q_len, k_len))


def calls_are_the_gpus_time(
    batch: int, q_len: int, k_len: int, heads: int, tensors: tuple[Tensor | None, ...], mask: Tensor | None
) -> bool:
    """Return whether `attend_small` is right for these tensors on a GPU, where neither weights nor a mask is needed.

    A GPU waits for the first call, whatever the size: our checks took 50 of 360 us at 256 x 64 x 1024 (H200).
    """
    query = tensors[0]
    if query is None or not query.is_cuda or not is_eager(*tensors, mask) or torch.is_autocast_enabled("cuda"):
        return False
    fits = mask is None or (mask.dtype == torch.bool and mask.is_cuda and mask.shape == (q_len, k_len))
    return fits and batch * heads * q_len * k_len > 0 and _are_alike(tensors)


def _are_alike(tensors: tuple[Tensor | None, ...]) -> bool:
    """Return whether all have one type and one place."""
    there = [x for x in tensors if x is not None]
    return len({x.dtype for x in there}) == len({x.device for x in there}) == 1  # sets: `all` takes 1 us more of 90


# Blocks of queries in place of the fused kernel with dropout, and of all weights at once for `observe`

BLOCKS_FROM_SCORES = 1 << 16  # below, one block holds everything, and plain operations have less to do
BLOCKS_UP_TO_DROPOUT = 255 / 256  # above, a random byte can't decide
# A block's weights fill about this much, and hold some heads rather than less than so many rows: products of few rows
# are slow. Near the best of many at every size (benchmarks/LOG.md). A GPU wants more work at once.
BLOCK_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}
BLOCK_ROWS = 128
COPY_KEYS_FROM = 1024  # keys; then reading them a head at a time pays for the copy: 248 -> 206 ms at 1 x 4096


def blocks_are_faster(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> bool:
    """Return whether blocks are the faster form: for all but small inputs, unless torch compiles or transforms."""
    return (
        not torch.compiler.is_compiling()  # first: a comparison of sizes would become a condition of the graph
        and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] >= max(1, BLOCKS_FROM_SCORES)
        and q.device.type in ("cpu", "cuda")
        and q.dtype == k.dtype == v.dtype
        and 0 <= dropout <= BLOCKS_UP_TO_DROPOUT
        and is_eager(q, k, v)
    )


# The steps of generation: plain operations in place of blocks, and of compiled functions

# A step reads all keys once, and blocks lay them out first: 8 heads of 64 over 2 of 8,193 keys take 2.4 ms, compiled 5,
# in plain operations 0.6, for two queries 2.1 and 1.6, for four 3 and 2.5, for 8 7.5 and above (Zen 4).
STEP_UP_TO_QUERIES = 2
STEP_SCORES = 1 << 16, 1 << 22  # below blocks aren't faster either; plain operations hold all weights, a few times


def step_is_faster_plainly(q: Tensor, k: Tensor) -> bool:
    """Return whether plain operations are the faster form for the few queries of a step of generation, on a CPU."""
    return (
        not torch.compiler.is_compiling()  # first: a comparison of sizes would become a condition of the graph
        and q.device.type == "cpu"
        and q.shape[2] <= STEP_UP_TO_QUERIES
        and STEP_SCORES[0] <= q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= STEP_SCORES[1]
    )


# Functions compiled by numba in place of blocks

# On two threads of an AMD Zen 4 blocks take nearly twice as long: 35 ms against 20 at 1 x 8 x 1024, 8.0 s against 3.7
# at 16,384. But numba compiles for some seconds when a machine first needs them.
COMPILED_FROM_SCORES = 1 << 20
COMPILED_FACTS = {"entropy", "received", "distance", "lse", "max_score", "sink", "top", "rows", "head_mean"}
COMPILED_UP_TO_TOP = 64  # the largest are sorted in as they come
# Queries of a block at most, a multiple of 6, and bytes of the exponentials that are kept. 24, 48 and 96 queries of
# 65,536 keys take 1.37, 1.24 and 1.10 of SDPA's time, though 96 fill 24 MiB of the third-level cache for each thread.
COMPILED_ROWS = 96
COMPILED_BYTES = 32 << 20
COMPILED_PIECES = 4  # for each thread
# For the mean over the heads: keys from which on it is faster, and bytes of a block's exponentials and means. Blocks
# take so many times as long, in eval and training: 32 x 128 0.81 and 1.30, 8 x 256 0.93 and 1.18, 4 x 512 1.12 and
# 1.24, 1 x 1024 1.17 and 1.52. With 2, 4, 8 and 16 MiB 1 x 4096 takes 1.20, 1.14, 1.14 and 1.14 of SDPA's time.
COMPILED_MEANS_FROM_KEYS = 512
COMPILED_MEAN_BYTES = 4 << 20
# For attention without facts, in place of torch's fused kernel. That takes so many times as long, in eval and training:
# 4 x 512 1.08 and 1.06, 1 x 1024 0.99 and 1.08, 2 x 1024 1.09 and 1.10, 1 x 2048 1.05 and 1.15, 1 x 4096 1.10 and 1.25;
# 128 queries of 2,048 keys 0.74 and 0.91, 512 1.03 and 1.14; 1 x 2048 with a bias 0.93 and 1.04.
COMPILED_ATTENTION_FROM_SCORES = 1 << 23
COMPILED_ATTENTION_FROM_LENGTH = 512  # queries, and keys


@cache
def compiler_is_there() -> bool:
    """Return whether numba is installed, and this processor multiplies and adds in one instruction."""
    try:
        from glassformer.attention.kernels.compiled.jit import binding
    except ImportError:  # numba isn't installed, or not the one for this numpy
        return False
    return platform.machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("fma"))


def compiled_fits(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, want: Want, dropout: float, budget: int | None
) -> bool:
    """Return whether compiled functions are the faster form, and compute what is asked: float32 on a CPU."""
    return (
        not dropout
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and budget is None
        and (bias is None or (bias.dtype == torch.float32 and not bias.requires_grad))
        and COMPILED_FACTS.issuperset(want.asked)
        and want.top <= COMPILED_UP_TO_TOP
        and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] >= max(1, COMPILED_FROM_SCORES)
        and (not want.head_mean or k.shape[2] >= COMPILED_MEANS_FROM_KEYS)
        and v.shape[3] > 0
        and compiler_is_there()
    )


def compiled_attention_is_faster(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, dropout: float
) -> bool:
    """Return whether compiled functions are the faster form of attention without facts: long float32 on a CPU."""
    return (
        not torch.compiler.is_compiling()  # first: a comparison of sizes would become a condition of the graph
        and bias is None
        and min(q.shape[2], k.shape[2]) >= COMPILED_ATTENTION_FROM_LENGTH
        and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] >= COMPILED_ATTENTION_FROM_SCORES
        and is_eager(q, k, v, keep)
        and not torch.is_autocast_enabled("cpu")
        and q.dtype == k.dtype == v.dtype
        and compiled_fits(q, k, v, None, NOTHING, dropout, budget=None)
    )


def compiled_height(q_len: int, k_len: int) -> int:
    """Return how many queries a block has: a multiple of 6, the rows of a product's tile."""
    return max(1, min(COMPILED_ROWS, COMPILED_BYTES // (4 * max(1, k_len)), q_len + 5) // 6) * 6


def compiled_height_of_means(q_len: int, k_len: int) -> int:
    """Return the same where a block goes through all heads, and its means stay in the cache with its exponentials."""
    rows = min(COMPILED_ROWS, COMPILED_MEAN_BYTES // (8 * max(1, k_len)), q_len + 5)
    return max(1, rows // 6) * 6


def compiled_threads() -> tuple[int, int]:
    """Return how many threads share the work, and into how many pieces it is cut for them."""
    threads = torch.get_num_threads()
    return threads, COMPILED_PIECES * threads if threads > 1 else 1


# GPU kernels in place of blocks

KERNEL_FACTS = COMPILED_FACTS - {"max_score", "sink"} | {"pooled", "pooled_heads"}
KERNELS_UP_TO_TOP = 64  # the kernel keeps the largest weights in registers
KERNEL_TILE = 256  # rows and keys of a tile that one program sums
# Queries and keys that a program of `attend` holds, and its warps, by bytes of a number and width: what fits into the
# shared memory of Ampere, Ada and Hopper with every mask. 8 x 8192 of 64 in bfloat16 take 0.61 ms on an H200 with
# (128, 64, 8), 0.63 with (64, 64, 4), 0.74 with (128, 64, 4); of 128 0.92 with (64, 64, 4), 1.39 with (64, 64, 8).
KERNEL_SIZES = {
    (2, 64): (128, 64, 8),
    (2, 128): (64, 64, 4),
    (2, 256): (64, 32, 8),
    (4, 64): (64, 32, 8),
    (4, 128): (32, 32, 4),
    (4, 256): (32, 16, 4),
}
# The other kernels hold no values, and have the same blocks with fewer warps: 0.23 ms for `receive`, with 8 warps 0.50.
KERNEL_WARPS = 4
# Blocks of keys and values that are loaded ahead, where a program may take as many bytes of shared memory (Ampere's and
# Hopper's large GPUs), and elsewhere.
KERNEL_STAGES_IN_LARGE, KERNEL_STAGES = 3, 2
KERNEL_LARGE = 160 << 10


@cache
def triton_is_there() -> bool:
    """Return whether Triton, in which the kernels are written, is installed."""
    return find_spec("triton") is not None


def kernel_stages(shared_memory: int) -> int:
    """Return how many blocks the kernels load ahead on a GPU whose programs may take so many bytes."""
    return KERNEL_STAGES_IN_LARGE if shared_memory >= KERNEL_LARGE else KERNEL_STAGES


def kernels_fit(q: Tensor, v: Tensor, want: Want, dropout: float) -> bool:
    """Return whether the kernels compute what is asked: neither dropout nor float64, nor every fact."""
    return (
        not dropout
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and max(q.shape[3], v.shape[3]) <= max(width for _, width in KERNEL_SIZES)
        and KERNEL_FACTS.issuperset(want.asked)
        and want.top <= KERNELS_UP_TO_TOP
    )


# The k largest: chunks in place of torch.topk

TOPK_CHUNKS_FROM_CLASSES = 32 * 128
TOPK_CHUNK_FROM_KEYS = 4  # keys of a chunk, and chunks for each of the k, below which nothing is gained


def chunks_of_classes_are_faster(scores: Tensor, k: int, chunk: int) -> bool:
    """Return whether to search chunks of `chunk` classes side by side: on the CPU, of many classes."""
    classes = scores.shape[1]
    return (
        scores.device.type == "cpu"
        and classes >= TOPK_CHUNKS_FROM_CLASSES
        and not classes % chunk
        and k < classes // chunk
    )


def chunks_of_keys_are_faster(keys: int, k: int, chunk: int) -> bool:
    """Return whether to search chunks of `chunk` keys."""
    return keys // chunk >= TOPK_CHUNK_FROM_KEYS * k and chunk >= TOPK_CHUNK_FROM_KEYS


# oneDNN in place of MKL for float32 products

ONEDNN_FROM_OPERATIONS = 2 * 64**3  # below, its calls cost more than they save: 22 us against MKL's 5
COPY_COLUMNS_FROM = 1024  # MKL multiplies by so many columns a fifth faster if they lie in rows


def onednn_is_faster(left: Tensor, right: Tensor, columns: int) -> bool:
    """Return whether a product of so many columns goes through oneDNN."""
    return (
        left.dtype == right.dtype == torch.float32
        and left.device.type == "cpu"
        and is_eager(left, right)
        and 2 * left.numel() * columns >= ONEDNN_FROM_OPERATIONS
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and onednn_beats_mkl()  # last, since the first time it measures
    )


def packing_is_faster(weight: Tensor) -> bool:
    """Return whether oneDNN multiplies by a weight of this type at full speed, laid out beforehand."""
    if weight.device.type != "cpu" or not _HAS_PACKING or not torch.backends.mkldnn.enabled:
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


_HAS_PACKING = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name)
    for name in ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
)
