"""varlen_attn, whose kernel is for GPUs alone: inside a capture it runs here too, beside each sequence by itself."""

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.errors import ArgumentError

H, D = 3, 11
OF_QUERIES, OF_KEYS = (2, 5, 1), (7, 5, 4)


@pytest.fixture(scope="module")
def varlen() -> Any:
    from torch.nn.attention import varlen  # it loads torch's compiler, which takes over a second

    return varlen


def ends(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def skip_without(function: Any, *names: str) -> None:
    """Skip the test where this torch's function has no such parameters: 2.11's lacks some."""
    if missing := set(names) - inspect.signature(function).parameters.keys():
        pytest.skip(f"{function.__name__} of torch {torch.__version__} has no {', '.join(sorted(missing))}")


class Packed(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        return self.function(*arguments, ends(OF_QUERIES), ends(OF_KEYS), 5, 7, **settings)


def explicit(q: Tensor, k: Tensor, window: tuple[int, int], scale: float) -> Tensor:
    """The scores of one sequence, queries and keys counted from their ends."""
    i, j = torch.arange(len(q))[:, None] + len(k) - len(q), torch.arange(len(k))
    left, right = (len(k) if side < 0 else side for side in window)
    scores = q.transpose(0, 1) @ k.permute(1, 2, 0) * scale
    return scores.masked_fill((i - j > left) | (j - i > right), -math.inf)


@pytest.mark.parametrize(
    "settings", [{}, {"window_size": (-1, 0)}, {"window_size": (1, 2), "scale": 0.4}, {"enable_gqa": True}]
)
def test_sequences_are_a_padded_batch(varlen, settings):
    skip_without(varlen.varlen_attn, *settings)
    heads = 2 * H if "enable_gqa" in settings else H
    q, k, v = (torch.randn(sum(n), h, D) for n, h in ((OF_QUERIES, heads), (OF_KEYS, H), (OF_KEYS, H)))
    model = Packed(varlen.varlen_attn)
    with capture(model, Want(weights=True)) as captured:
        output, lse = model(q, k, v, **settings, return_aux=varlen.AuxRequest(lse=True))
    one = captured[""]
    assert one.weights.shape == (3, heads, 5, 7)
    assert set(one.tensors()) == {"weights"}
    k, v = (x.repeat_interleave(heads // H, 1) for x in (k, v))
    parts = zip(
        *(x.split(n) for x, n in ((q, OF_QUERIES), (k, OF_KEYS), (v, OF_KEYS), (output, OF_QUERIES))), strict=True
    )
    window, scale = settings.get("window_size", (-1, -1)), settings.get("scale", 1 / math.sqrt(D))
    sums = []
    for n, (queries, keys, values, made) in enumerate(parts):
        scores = explicit(queries, keys, window, scale)
        assert_close(one.weights[n, :, : len(queries), : len(keys)], scores.softmax(-1))
        assert not one.weights[n, :, len(queries) :].any()
        assert not one.weights[n, :, :, len(keys) :].any()
        assert_close(made, (scores.softmax(-1) @ values.transpose(0, 1)).transpose(0, 1))
        sums.append(scores.logsumexp(-1))
    assert_close(lse, torch.cat(sums, 1))


def test_keys_that_a_cache_has_no_use_for_yet(varlen):
    skip_without(varlen.varlen_attn, "seqused_k")
    q, k, v = (torch.randn(sum(n), H, D) for n in (OF_QUERIES, OF_KEYS, OF_KEYS))
    model = Packed(varlen.varlen_attn)
    with torch.no_grad(), capture(model, Want(weights=True)) as captured:
        model(q, k, v, window_size=(-1, 0), seqused_k=torch.tensor([3, 5, 2]))
    weights = captured[""].weights
    first = explicit(q[:2], k[:3], (-1, 0), 1 / math.sqrt(D)).softmax(-1)
    assert_close(weights[0, :, :2, :3], first)
    assert not weights[0, ..., 3:].any()
    assert not weights[2, ..., 2:].any()


def test_positions_that_are_not_used_give_zeros(varlen):
    q, k, v = (torch.randn(sum(n) + 3, H, D) for n in (OF_QUERIES, OF_KEYS, OF_KEYS))
    model, used = Packed(varlen.varlen_attn), sum(OF_QUERIES)
    with capture(model):
        output = model(q, k, v)
        assert_close(output[:used], model(q[:used], k[:-3], v[:-3]))
    assert not output[used:].any()


def test_an_output_that_is_given_is_filled(varlen):
    if not hasattr(varlen, "varlen_attn_out"):
        pytest.skip("this torch has no varlen_attn_out")
    q, k, v = (torch.randn(sum(n), H, D) for n in (OF_QUERIES, OF_KEYS, OF_KEYS))
    given = torch.zeros_like(q)
    into, fresh = Packed(varlen.varlen_attn_out), Packed(varlen.varlen_attn)
    with torch.no_grad(), capture(into) as captured, capture(fresh):
        assert into(given, q, k, v) is given
        assert_close(given, fresh(q, k, v))
    assert list(captured) == [""]


def test_paged_caches_are_refused(varlen):
    skip_without(varlen.varlen_attn, "block_table", "seqused_k")
    q, k = torch.randn(sum(OF_QUERIES), H, D), torch.randn(2, 8, H, D)
    model = Packed(varlen.varlen_attn)
    pages = dict(block_table=torch.zeros(3, 1, dtype=torch.int32), seqused_k=torch.tensor([3, 5, 2]))
    with (
        capture(model),
        pytest.raises(ArgumentError, match="model computes attention with a paged cache, which observe"),
    ):
        model(q, k, k, **pages)
