"""Run by test_gpu.py, in a process where Triton interprets: the GPU kernels against plain operations in float64."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.kernels import choose, gpu
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.plain import observe_plainly
from glassformer.attention.want import Want

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, H, G, L, S, D, E = 2, 4, 2, 19, 29, 11, 5  # G heads share a key head
# Triton's interpreter gets products of bfloat16 wrong; on a GPU they are tested.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
torch.manual_seed(0)
if DEVICE == "cpu":
    choose.KERNEL_SIZES = {(2, 16): (16, 16, 4), (4, 16): (16, 16, 4)}  # several blocks each way


def heads(heads: int, length: int, width: int, dtype: torch.dtype) -> Tensor:
    """As projections leave them: not contiguous."""
    return torch.randn(B, length, heads, width, device=DEVICE).to(dtype).transpose(1, 2)


def random_keep(*shape: int, share: float) -> Tensor:
    return torch.rand(shape, device=DEVICE) < share


def check(case: str, want: Want, dtype: torch.dtype = torch.float32, causal: bool = False, **masks: Tensor) -> None:
    q, k, v = heads(H, L, D, dtype), heads(H // G, S, D, dtype), heads(H // G, S, E, dtype)
    q = masks.get("q", q)
    keep, bias = masks.get("keep"), masks.get("bias")
    of = Problem(q, k, v, keep, bias, causal, 0.4, torch.float32)
    assert choose.kernels_fit(of.q, of.v, want, dropout=0.0)
    output, found = gpu.attend_with_kernels(of, want)
    exact_bias = None if bias is None else bias.double()
    exactly = Problem(q.double(), k.double(), v.double(), keep, exact_bias, causal, 0.4, torch.float64)
    expected, exact = observe_plainly(exactly, want)
    exactness = {"atol": 1e-5, "rtol": 1e-5}
    rough = exactness if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    assert (output.dtype, output.shape) == (dtype, expected.shape)
    assert_close(output.double(), expected, **rough)
    assert found.keys() == exact.keys()
    for name, x in exact.items():
        if name == "top_keys":
            assert torch.equal(found[name] < 0, found["top"] == 0)
            assert_close(exact_weights(exactly, found[name]), exact["top"], **exactness)
        else:
            close = rough if name == "head_mean" else exactness
            assert_close(found[name].double(), x, **close, msg=lambda text, name=name: f"{case}, {name}: {text}")
    print(case)


def exact_weights(of: Problem, keys: Tensor) -> Tensor:
    """The weights that lie at these keys."""
    weights = observe_plainly(of, Want(weights=True))[1]["weights"]
    return weights.gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)


flags = dict(entropy=True, received=True, distance=True, lse=True)
everything = Want(**flags, top=3, rows=(2, 16, 2), row_heads=(1, -1), pooled=2, pooled_heads=5, head_mean=True)
linear = Want(**flags, top=5)
each = random_keep(1, H, L, S, share=0.5)
nowhere = each.clone()
nowhere[:, :, 4] = False
check("no mask", everything)
check("causal, each head its mask, a query that looks nowhere", everything, keep=nowhere, causal=True)
bias = torch.randn(B, 1, L, S, device=DEVICE).masked_fill(~random_keep(B, 1, L, S, share=0.7), -torch.inf)
check("bias and padding", linear, bias=bias, keep=random_keep(B, 1, 1, S, share=0.5))
check("half precision", Want(**flags, head_mean=True), dtype=HALF)
check("output alone", Want())

# What all keys of a query have in common doesn't count, however large; the lowest number is a number, -inf blocks.
bias = torch.zeros(1, 1, L, S, device=DEVICE)
bias[:, :, 0], bias[:, :, 1, :20], bias[:, :, 2, :9] = -1e9, torch.finfo(torch.float32).min, -2e38
check("huge scores", everything, bias=bias, q=heads(H, L, D, torch.float32) * 0)

if DEVICE == "cpu":
    choose.KERNEL_TILE = 8
check("tiles of several programs", Want(pooled=1, pooled_heads=2))

q, k, v = heads(H, L, D, torch.float32), heads(H, S, D, torch.float32), heads(H, S, E, torch.float32)
k[:, 1, 5] = torch.nan
without_top = Want(**flags, head_mean=True, rows=(3,))
output, found = gpu.attend_with_kernels(Problem(q, k, v, None, None, False, 0.4, torch.float32), without_top)
assert output[:, 1].isnan().all()
assert output[:, [0, 2, 3]].isfinite().all()
for name in ("entropy", "received", "distance", "lse", "rows"):
    assert found[name][:, 1].isnan().all(), name
    assert found[name][:, [0, 2, 3]].isfinite().all(), name
assert found["head_mean"].isnan().all()
print("a NaN stays in its head")
