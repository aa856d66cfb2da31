"""Dropout, padding, and when blocks are used; what they hold, forward and backward, is tested in test_observe.py."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention import attend as attend_module
from glassformer.attention.attend import attend
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.blockwise import attend_in_blocks
from glassformer.attention.kernels.weigh import weigh
from glassformer.attention.observe import observe
from glassformer.attention.want import Want

B, H, Q, K, D, V = 2, 3, 17, 7, 11, 5  # distinct primes: a swapped axis cannot pass


def heads(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as projections leave them: views, not contiguous."""
    return tuple(torch.randn(B, n, H, w, dtype=dtype).transpose(1, 2) for n, w in ((Q, D), (K, D), (K, V)))


def problem(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Problem:
    return Problem(q, k, v, keep, None, False, 1 / math.sqrt(q.shape[-1]), q.dtype)


def dropped_weights(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    return attend_in_blocks(problem(q, k, v), dropout, Want(weights=True))[1]["weights"]


def test_dropout_drops_at_its_rate_and_scales_the_rest():
    p = 0.1
    q, k, v = (torch.randn(1, 1, 400, 8) for _ in range(3))
    dropped = dropped_weights(q, k, v, p)
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
        return attend_in_blocks(problem(q, k, v), 0.5)[0]

    first = draw(1)
    assert not torch.equal(attend_in_blocks(problem(q, k, v), 0.5)[0], first)
    assert torch.equal(draw(1), first)
    assert not torch.equal(draw(2), first)


@pytest.mark.parametrize("rows", [1, 5, Q, 1000])
def test_keys_that_nobody_may_look_at_are_left_out_of_the_products(rows, monkeypatch):
    monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": rows * K * 8})
    monkeypatch.setattr(choose, "BLOCK_ROWS", min(rows, 5))
    q, k, v = heads()
    keep = torch.zeros(B, 1, 1, K, dtype=torch.bool)
    keep[0, ..., 2:5] = True
    keep[1, ..., 4] = True
    spoilt = k.clone()
    spoilt[:, :, :2] = torch.nan  # what is left out may be anything
    output, facts = attend_in_blocks(problem(q, spoilt, v, keep=keep), want=Want(weights=True))
    weights = weigh(q, k, keep=keep)
    assert_close([output, facts["weights"]], [weights @ v, weights])


# When they are used


def test_small_inputs_and_what_blocks_cannot_do_take_plain_operations(monkeypatch):
    q, k, v = heads()
    assert not choose.blocks_are_faster(q, k, v)
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", B * H * Q * K)
    assert choose.blocks_are_faster(q, k, v)
    assert not choose.blocks_are_faster(q[:, :, 1:], k, v)
    assert not choose.blocks_are_faster(q.float(), k, v)
    assert not choose.blocks_are_faster(*(x.to("meta") for x in (q, k, v)))
    assert not torch.vmap(lambda x: torch.tensor(choose.blocks_are_faster(x, k, v)))(q[None]).any()


def test_attend_with_dropout_goes_through_blocks_and_without_does_not(monkeypatch):
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    seen = []
    monkeypatch.setattr(
        attend_module, "attend_in_blocks", lambda of, p: seen.append((of.causal, p)) or attend_in_blocks(of, p)
    )
    q, k, v = heads()
    attend(q, k, v)
    assert seen == []
    attend(q, k, v, dropout=0.2)
    attend(q[:, :, :K], k, v, dropout=0.3, causal=True)
    assert seen == [(False, 0.2), (True, 0.3)]


MEMORY = """
import re, sys, torch
from pathlib import Path
from glassformer.attention.observe import observe
from glassformer.attention.want import Want

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

length, train = 4096, sys.argv[1] == "train"
budget = 32 << 20 if sys.argv[2] == "32 MiB" else None
settings = {
    "dropout": 0.1 if train else 0.0,
    "budget": budget,
    "want": Want(entropy=True, received=True, distance=True, lse=True, top=2, rows=(0,), pooled=64, pooled_heads=16),
}
q, k, v = (torch.randn(1, 8, length, 16, requires_grad=train) for _ in range(3))

def run(*qkv):
    output, seen = observe(*qkv, **settings)
    if train:
        facts = seen.top.weights, *(getattr(seen, name) for name in settings["want"].asked if name != "top")
        sum((x.sum() for x in facts), output.sum()).backward()

run(q[:, :, :96], k[:, :, :96], v[:, :, :96])
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
before = peak()
run(q, k, v)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("mode", "budget", "most"), [("infer", "any", 90), ("train", "any", 250), ("train", "32 MiB", 70)]
)
# Slow, since only a long input shows the memory of the process against what all weights would take.
def test_all_weights_never_exist_at_once(mode, budget, most):
    # They would be 8 x 4096 x 4096 floats: 512 MiB. Inputs, results and gradients are some 20.
    found = subprocess.run([sys.executable, "-c", MEMORY, mode, budget], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert 0 < int(found.stdout) < most


@pytest.mark.parametrize("p", [255 / 256, 0.997, 0.999, 1.0])
def test_dropout_of_nearly_everything_takes_plain_operations(p, monkeypatch):
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    q, k, v = heads()
    assert choose.blocks_are_faster(q, k, v, p) == (p == 255 / 256)
    output, seen = observe(q, k, v, dropout=p, want=Want(weights=True))
    assert output.isfinite().all()
    assert (seen.weights == 0).double().mean() > 0.9


@pytest.mark.parametrize("p", [1 / 512, 1 / 256, 0.1, 0.5, 255 / 256])
def test_dropout_at_the_ends_of_what_a_byte_decides(p):
    q, k, v = (torch.randn(2, 4, 128, 8) for _ in range(3))
    zero = (dropped_weights(q, k, v, p) == 0).double()
    assert abs(zero.mean().item() - p) < 5 * math.sqrt(p * (1 - p) / zero.numel())


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_output_is_merged_by_a_view_in_the_layout_of_the_queries(batch_first):
    x = torch.randn(2, 7, 3, 5) if batch_first else torch.randn(7, 2, 3, 5)
    q = x.transpose(1, 2) if batch_first else x.permute(1, 2, 0, 3)
    output, _ = attend_in_blocks(Problem(q, q, q, None, None, False, 1.0, q.dtype))
    merged = output.transpose(1, 2) if batch_first else output.permute(2, 0, 1, 3)
    assert merged.is_contiguous()
    assert_close(output, (q @ q.mT).softmax(-1) @ q)


@pytest.mark.parametrize("size", [1 << 10, 1 << 12, 1 << 20])
@pytest.mark.parametrize("masked", [True, False])
def test_all_weights_alone_are_computed_where_they_stay(monkeypatch, masked, size):
    monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": size})
    q, k, v = (torch.randn(2, 3, n, 5, dtype=torch.float64) for n in (31, 37, 37))
    keep = torch.rand(2, 1, 31, 37) > 0.3 if masked else None
    if keep is not None:
        keep[1, 0, 3] = False
    output, facts = attend_in_blocks(Problem(q, k, v, keep, None, False, 0.5, q.dtype), want=Want(weights=True))
    expected = weigh(q, k, keep=keep, scale=0.5)
    assert_close(facts["weights"], expected)
    assert_close(output, expected @ v)
