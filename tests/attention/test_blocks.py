import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention import attend as attend_module
from glassformer.attention import blocks
from glassformer.attention.attend import attend, attend_with_weights
from glassformer.attention.blocks import attend_in_blocks, blocks_are_faster
from glassformer.attention.weigh import weigh

B, H, Q, K, D, V = 2, 3, 17, 7, 11, 5  # distinct primes: a swapped axis cannot pass


def heads(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as projections leave them: views, not contiguous."""
    return tuple(torch.randn(B, n, H, w, dtype=dtype).transpose(1, 2) for n, w in ((Q, D), (K, D), (K, V)))


@pytest.fixture(params=[1, 3, 16, Q, 1000], ids="{} rows".format)
def _rows(request, monkeypatch) -> None:
    """Blocks of so many rows of one sequence, or several sequences."""
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", request.param * H * K * 8)
    monkeypatch.setattr(blocks, "_BLOCK_ROWS", 1)


KEEPS = {"none": None, "padding": (B, 1, 1, K), "shared": (1, 1, Q, K), "each": (B, H, Q, K), "heads": (1, H, 1, K)}


def mask(name: str, share_open: float = 0.5) -> Tensor | None:
    shape = KEEPS[name]
    return None if shape is None else torch.rand(shape) < share_open


def bias_like(name: str) -> Tensor | None:
    keep = mask(name, 0.7)
    return None if keep is None else torch.randn(keep.shape, dtype=torch.float64).masked_fill(~keep, -torch.inf)


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("weights", ["none", "mean", "heads"])
@pytest.mark.parametrize(
    ("keep", "bias"), [("none", "none"), ("padding", "none"), ("each", "shared"), ("none", "each")]
)
def test_output_weights_and_gradients_are_those_of_explicit_weights(keep, bias, weights):
    q, k, v = (x.requires_grad_() for x in heads())
    masks = {"keep": mask(keep), "bias": bias_like(bias)}
    output, seen = attend_in_blocks(q, k, v, weights=weights, **masks)
    p = weigh(q, k, **masks)
    expected = [p @ v]
    if weights == "none":
        assert seen is None
    else:
        expected.append(p.mean(1) if weights == "mean" else p)
    found = [output] if seen is None else [output, seen]
    assert_close(found, expected)
    towards = [torch.randn_like(x) for x in found]
    grads = torch.autograd.grad(found, (q, k, v), towards)
    assert_close(grads, torch.autograd.grad(expected, (q, k, v), towards))


@pytest.mark.usefixtures("_rows")
def test_gradients_through_the_weights_alone():
    q, k, v = (x.requires_grad_() for x in heads())
    _, seen = attend_in_blocks(q, k, v, weights="mean")
    towards = torch.randn_like(seen)
    found = torch.autograd.grad(seen, (q, k, v), towards, allow_unused=True)
    expected = torch.autograd.grad(weigh(q, k).mean(1), (q, k), towards)
    assert_close(found[:2], expected)
    assert not found[2].any()


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("weights", ["none", "mean", "heads"])
def test_dropped_weights_are_the_same_forward_and_backward(weights):
    q, k, v = (x[:, :, :5].detach().requires_grad_() for x in heads())
    keep = mask("padding")[..., :5]

    def run(*qkv: Tensor):
        torch.manual_seed(3)
        output, seen = attend_in_blocks(*qkv, keep=keep, dropout=0.4, weights=weights)
        return output if seen is None else (output, seen)

    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (q, k, v), fast_mode=True)


def test_dropout_drops_at_its_rate_and_scales_the_rest():
    p = 0.1
    q, k, v = (torch.randn(1, 1, 400, 8) for _ in range(3))
    _, dropped = attend_in_blocks(q, k, v, dropout=p, weights="heads")
    zero = dropped == 0
    assert abs(zero.double().mean().item() - p) < 5 * math.sqrt(p * (1 - p) / zero.numel())
    assert_close(dropped[~zero], (weigh(q, k) / (1 - p))[~zero])
    for axis in (2, 3):  # no row, no column is favoured
        rates = zero.double().mean(axis)
        assert (rates - p).abs().max() < 6 * math.sqrt(p * (1 - p) / 400)
    neighbours = (zero[..., 1:] & zero[..., :-1]).double().mean().item()
    assert abs(neighbours - p * p) < 5 * math.sqrt(p * p / zero.numel())


def test_dropout_follows_the_global_seed():
    q, k, v = heads()

    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend_in_blocks(q, k, v, dropout=0.5)[0]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    torch.manual_seed(1)
    assert not torch.equal(attend_in_blocks(q, k, v, dropout=0.5)[0], attend_in_blocks(q, k, v, dropout=0.5)[0])


def test_a_nan_of_the_input_is_not_hidden():
    q, k, v = heads()
    q[0, 0, 0, 0] = torch.nan
    keep = mask("each")
    keep[1] = False
    output, weights = attend_in_blocks(q, k, v, keep=keep, weights="heads")
    assert weights[0, 0, 0].isnan().all()
    assert output[0, 0, 0].isnan().all()
    assert (weights[1] == 0).all()


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("weights", ["none", "mean", "heads"])
def test_keys_that_nobody_may_look_at_are_left_out_of_the_products(weights):
    q, k, v = (x.requires_grad_() for x in heads())
    keep = torch.zeros(B, 1, 1, K, dtype=torch.bool)
    keep[0, ..., 2:5] = True
    keep[1, ..., 4] = True
    output, seen = attend_in_blocks(q, k, v, keep=keep, weights=weights)
    p = weigh(q, k, keep=keep)
    expected = [p @ v] if seen is None else [p @ v, p.mean(1) if weights == "mean" else p]
    found = [output] if seen is None else [output, seen]
    assert_close(found, expected)
    towards = [torch.randn_like(x) for x in found]
    assert_close(torch.autograd.grad(found, (q, k, v), towards), torch.autograd.grad(expected, (q, k, v), towards))
    # What is left out may be anything.
    spoilt = k.detach().clone()
    spoilt[:, :, :2] = torch.nan
    assert_close(attend_in_blocks(q.detach(), spoilt, v.detach(), keep=keep)[0], output.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_half_precisions_keep_their_dtype_and_come_close(dtype):
    q, k, v = (x.to(dtype) for x in heads())
    output, weights = attend_in_blocks(q, k, v, keep=mask("shared", 0.8), weights="mean")
    assert output.dtype == weights.dtype == dtype
    exact, exact_weights = attend_in_blocks(
        q.double(), k.double(), v.double(), keep=None if dtype is None else mask("shared", 2.0), weights="mean"
    )
    output, weights = attend_in_blocks(q, k, v, weights="mean")
    eps = torch.finfo(dtype).eps
    assert_close(output.double(), exact, atol=8 * eps, rtol=8 * eps)
    assert_close(weights.double(), exact_weights, atol=8 * eps, rtol=8 * eps)


# When they are used


def test_small_inputs_and_what_blocks_cannot_do_take_plain_operations(monkeypatch):
    q, k, v = heads()
    assert not blocks_are_faster(q, k, v, None)
    monkeypatch.setattr(blocks, "_FROM_SCORES", B * H * Q * K)
    assert blocks_are_faster(q, k, v, None)
    assert not blocks_are_faster(q, k, v, torch.zeros(1, 1, Q, K, requires_grad=True))
    assert not blocks_are_faster(q.float(), k, v, None)
    assert not blocks_are_faster(*(x.to("meta") for x in (q, k, v)), None)
    assert not torch.vmap(lambda x: torch.tensor(blocks_are_faster(x, k, v, None)))(q[None]).any()


@pytest.mark.parametrize("average", [True, False])
def test_a_bias_that_learns_gets_its_gradient(average, monkeypatch):
    monkeypatch.setattr(blocks, "_FROM_SCORES", 0)
    q, k, v = heads()
    bias = torch.randn(1, H, Q, K, dtype=torch.float64, requires_grad=True)
    output, _ = attend_with_weights(q, k, v, bias=bias, average=average)
    (found,) = torch.autograd.grad(output.sum(), bias)
    (expected,) = torch.autograd.grad((weigh(q, k, bias=bias) @ v).sum(), bias)
    assert_close(found, expected)
    assert found.any()


def test_attend_with_dropout_goes_through_blocks_and_without_does_not(monkeypatch):
    monkeypatch.setattr(blocks, "_FROM_SCORES", 0)
    seen = []
    monkeypatch.setattr(attend_module, "attend_in_blocks", lambda *a, **s: seen.append(s) or attend_in_blocks(*a, **s))
    q, k, v = heads()
    attend(q, k, v)
    assert seen == []
    attend(q, k, v, dropout=0.2)
    assert [settings["dropout"] for settings in seen] == [0.2]


MEMORY = """
import re, sys, torch
from pathlib import Path
from glassformer.attention.blocks import attend_in_blocks

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

length, train = 4096, sys.argv[1] == "train"
q, k, v = (torch.randn(1, 8, length, 16, requires_grad=train) for _ in range(3))
attend_in_blocks(q[:, :, :64], k[:, :, :64], v[:, :, :64])
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
before = peak()
output, _ = attend_in_blocks(q, k, v, dropout=0.1 if train else 0.0)
if train:
    output.sum().backward()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_all_weights_never_exist_at_once(mode):
    # They would be 8 x 4096 x 4096 floats: 512 MiB.
    found = subprocess.run([sys.executable, "-c", MEMORY, mode], capture_output=True, text=True, check=True)
    assert 0 < int(found.stdout) < 100


@pytest.mark.parametrize("p", [0.996, 0.999, 1.0])
def test_dropout_of_nearly_everything_takes_plain_operations(p, monkeypatch):
    monkeypatch.setattr(blocks, "_FROM_SCORES", 0)
    q, k, v = heads()
    assert blocks_are_faster(q, k, v, None, 255 / 256)
    for dropped in (0.997, p):
        assert blocks_are_faster(q, k, v, None, dropped) == (dropped <= 255 / 256)
    output, weights = attend_with_weights(q, k, v, dropout=p, average=False)
    assert output.isfinite().all()
    assert (weights == 0).double().mean() > 0.9


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.5, 255 / 256])
def test_dropout_at_the_ends_of_what_a_byte_decides(p):
    q, k, v = (torch.randn(2, 4, 128, 8) for _ in range(3))
    _, dropped = attend_in_blocks(q, k, v, dropout=p, weights="heads")
    zero = (dropped == 0).double()
    assert abs(zero.mean().item() - p) < 5 * math.sqrt(p * (1 - p) / zero.numel())
