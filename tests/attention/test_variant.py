"""Soft caps, sinks, windows and slopes in `observe`, with every mask, against their definitions in float64."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.kernels import choose
from glassformer.attention.observe import observe
from glassformer.attention.want import Want

B, H, Q, K, D, V = 2, 3, 11, 13, 5, 7  # distinct primes: a swapped axis cannot pass
NUMBERS = ("entropy", "received", "distance", "lse", "max_score")
EVERYTHING = Want(**dict.fromkeys(NUMBERS, True), sink=2, top=3, rows=(4, -1), pooled=5, head_mean=True, weights=True)
KINDS: dict[str, Any] = {
    "softcap": 1.3,
    "sinks": torch.tensor([0.7, -math.inf, 1.5], dtype=torch.float64),
    "window": (3, 2),
    "slopes": torch.tensor([0.5, 0.25, 0.0625], dtype=torch.float64),
}
COMBINATIONS = [kinds for n in range(1, 5) for kinds in itertools.combinations(KINDS, n)]


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: Any = None,
    slopes: Tensor | None = None,
    stays: Tensor | float = 1.0,
) -> dict[str, Tensor]:
    """The definitions, in float64: the output and every fact of EVERYTHING."""
    (*_, q_len, width), k_len, each = q.shape, k.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    i, j = torch.arange(q_len)[:, None] + (k_len - q_len if causal else 0), torch.arange(k_len)
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(width)
    s = s if softcap is None else softcap * (1 - 2 / ((2 * s / softcap).exp() + 1))  # tanh
    s = s if slopes is None else s - torch.einsum("h,qk->hqk", slopes, (i - j).abs().double())
    open_ = torch.ones_like(s, dtype=torch.bool) & (j <= i if causal else True) & (True if keep is None else keep)
    if window is not None:
        left, right = (math.inf if side is None else side for side in window)
        open_ = open_ & (i - j <= left) & (j - i <= right)
    if bias is not None:
        open_ = open_ & (bias > -math.inf)
        s = s + bias.where(bias > -math.inf, 0.0)
    exponentials = s.where(open_, 0.0).exp() * open_  # of small scores
    total = exponentials.sum(-1) + (0.0 if sinks is None else sinks.exp()[:, None])
    p = exponentials / total.where(total > 0, 1.0)[..., None]
    somewhere, w = open_.any(-1), p * stays
    return {
        "output": torch.einsum("bhqk,bhkd->bhqd", w, v),
        "entropy": -(p * p.where(p > 0, 1.0).log()).sum(-1),
        "received": torch.einsum("bhqk->bhk", w),
        "distance": torch.einsum("bhqk,qk->bhq", w, (i - j).abs().double()),
        "lse": total.where(total > 0, 1.0).log().where(total > 0, -math.inf),
        "max_score": s.where(open_, -1e9).amax(-1).where(somewhere, -math.inf),
        "sink": w[..., 0] + w[..., 1],
        "top": w.sort(-1, descending=True).values[..., :3],
        "rows": torch.stack([w[:, :, 4], w[:, :, -1]], 2),
        "head_mean": torch.einsum("bhqk->bqk", w) / w.shape[1],
        "weights": w,
    }


def heads(key_heads: int = H, dtype: Any = torch.float64) -> list[Tensor]:
    """Queries, keys and values as projections leave them, with gradients."""
    shapes = [(B, Q, H, D), (B, K, key_heads, D), (B, K, key_heads, V)]
    made = [2 * torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
    return [x.transpose(1, 2).requires_grad_() for x in made]


def kinds_of(names: tuple[str, ...]) -> dict[str, Any]:
    """These arguments, with gradients where they are tensors."""
    return {name: x.clone().requires_grad_() if isinstance(x := KINDS[name], Tensor) else x for name in names}


@pytest.fixture(params=["plain", "4 rows of 2 heads", "all heads of both entries"])
def way(request, monkeypatch) -> None:
    """Attention goes this way, whatever the sizes."""
    monkeypatch.setattr(choose, "COMPILED_FROM_SCORES", 0)  # where it is installed it must not be taken
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 10**9 if request.param == "plain" else 0)
    if request.param == "4 rows of 2 heads":
        monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": 4 * 2 * K * 8})
        monkeypatch.setattr(choose, "BLOCK_ROWS", 4)


def rows_blocked() -> Tensor:
    """Random; two queries may look nowhere."""
    keep = torch.rand(B, H, Q, K) < 0.6
    keep[0, 1, 3] = keep[1, 2, -1] = False
    return keep


def padding() -> Tensor:
    keys = torch.arange(K)
    return torch.stack([(keys > 4) & (keys < 10), (keys > 1) & (keys < 6)])[:, None, None]


def some_bias() -> Tensor:
    bias = torch.randn(1, H, Q, K, dtype=torch.float64)
    return bias.masked_fill(torch.rand(bias.shape) < 0.2, -math.inf).requires_grad_()


MASKS = {
    "none": dict,
    "padding": lambda: {"keep": padding()},
    "of each": lambda: {"keep": rows_blocked()},
    "causal": lambda: {"causal": True},
    "bias": lambda: {"bias": some_bias()},
    "all": lambda: {"bias": some_bias(), "keep": rows_blocked(), "causal": True},
}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], close: float = 1e-10) -> None:
    for name, exact in expected.items():
        assert_close(
            found[name].to(exact.dtype), exact, atol=close, rtol=close, msg=lambda words, name=name: f"{name}: {words}"
        )


def assert_same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], inputs: list[Tensor]) -> None:
    """Of all facts together and of each alone, in random directions."""
    names = [name for name, x in expected.items() if x.requires_grad]
    for chosen in (names, *([name] for name in names)):
        towards = [torch.randn_like(expected[name]) for name in chosen]
        grads, exact = (
            torch.autograd.grad([one[n] for n in chosen], inputs, towards, materialize_grads=True, retain_graph=True)
            for one in (found, expected)
        )
        for grad, right in zip(grads, exact, strict=True):
            assert_close(grad, right, atol=1e-9, rtol=1e-9, msg=lambda words, chosen=chosen: f"{chosen}: {words}")


# Every combination of four arguments, with every mask, in three forms.
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_every_fact_and_gradient_is_as_the_definitions_say(way, names, masks):
    inputs, kinds, given = heads(), kinds_of(names), MASKS[masks]()
    output, seen = observe(*inputs, **given, **kinds, want=EVERYTHING)
    found = {"output": output, **seen.tensors()}
    expected = explicit(*inputs, **given, **kinds)
    assert_same(found, expected)
    learnt = [*inputs, *(x for x in (given | kinds).values() if isinstance(x, Tensor) and x.requires_grad)]
    assert_same_gradients(found, expected, learnt)


def test_numbers_computed_by_hand(way):
    # Query 0 has scores ln 3 and 0 beside a sink of ln 4: weights 3/8, 1/8 and 4/8. Query 1 has 0, 0: 1/6, 1/6, 4/6.
    q, k, v = (torch.tensor(x).view(1, 1, 2, 1) for x in ([math.log(3), 0.0], [1.0, 0.0], [8.0, 4.0]))
    sinks = torch.tensor([math.log(4)])
    output, seen = observe(q, k, v, sinks=sinks, want=Want(entropy=True, lse=True, max_score=True, sink=1))
    assert_close(output, torch.tensor([[[[3.5], [2.0]]]]))
    assert_close(seen.lse, torch.tensor([[[math.log(8), math.log(6)]]]))
    assert_close(seen.entropy, torch.tensor([[[3 / 8 * math.log(8 / 3) + math.log(8) / 8, math.log(6) / 3]]]))
    assert_close(seen.max_score, torch.tensor([[[math.log(3), 0.0]]]))
    assert_close(seen.sink, torch.tensor([[[3 / 8, 1 / 6]]]))
