"""What holds for every form of attention: its results, its masks, rows with every key blocked, gradients, precision."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.multihead import MultiheadAttention

B, H, D = 2, 3, 11
E = H * D
HALF = [torch.float16, torch.bfloat16]
each = pytest.mark.parametrize
blocked_rows = each("keep", ["blocked rows"], indirect=True)


def draw_inputs(form: Any, dtype: torch.dtype = torch.float64, width: int = E) -> list[Tensor]:
    """Query, key and value, or the one input of self-attention."""
    return [torch.randn(B, length, width, dtype=dtype, requires_grad=True) for length in form.lengths]


def mask_of(form: Any, keep: Tensor | None) -> Tensor | None:
    return None if keep is None else form.mask(keep)


def expand(form: Any, keep: Tensor | None) -> Tensor:
    full = torch.ones(B, form.lengths[0], form.lengths[-1], dtype=torch.bool)
    return full if keep is None else keep.expand_as(full)


@torch.no_grad()
def attend_one_by_one(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The oracle: the result and the weights of one head of one sentence, each query by itself over its open keys."""
    weights, attended = torch.zeros(len(q), len(k), dtype=q.dtype), torch.zeros(len(q), v.shape[1], dtype=q.dtype)
    for i, query in enumerate(q):
        keys = [j for j in range(len(k)) if keep[i, j]]
        powers = [math.exp(float((query * k[j]).sum()) / math.sqrt(len(query))) for j in keys]
        for j, power in zip(keys, powers, strict=True):
            weights[i, j] = power / sum(powers)
            attended[i] += weights[i, j] * v[j]
    return attended, weights


def test_each_head_attends_as_one_query_after_the_other(form, keep):
    module, inputs = form.make().double().eval(), draw_inputs(form)
    output, weights = form.attend(module, inputs, mask_of(form, keep))
    q, k, v = form.project(module, inputs)
    heads, expected_weights = torch.empty_like(q), torch.empty(B, form.heads, q.shape[2], k.shape[2]).double()
    for b in range(B):
        for h in range(form.heads):
            of_head = attend_one_by_one(q[b, h], k[b, h], v[b, h], expand(form, keep)[b])
            heads[b, h], expected_weights[b, h] = of_head
    assert_close(output, form.output(module, heads.transpose(1, 2).flatten(2)))
    if weights is not None:
        assert_close(weights, expected_weights)


def test_results_weights_and_gradients_are_the_fast_forms(form, keep, dtype, close):
    ours, fast = form.make().eval(), MultiheadAttention(E, form.heads, batch_first=True)
    form.to_fast(ours, fast)
    inputs = draw_inputs(form, dtype)
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    output, weights = form.attend(ours, inputs, mask_of(form, keep))
    blocked = None if keep is None else ~expand(form, keep).repeat_interleave(form.heads, 0)
    query, key, value = copies if len(copies) == 3 else copies * 3
    expected, expected_weights = fast(query, key, value, attn_mask=blocked, average_attn_weights=False)
    assert_close(output, expected, **close)
    results, fast_results = [output], [expected]
    if weights is not None:
        assert_close(weights, expected_weights, **close)
        if weights.requires_grad:
            results, fast_results = [output, weights], [expected, expected_weights]

    towards = [torch.randn_like(result) for result in results]
    torch.autograd.backward(results, towards)
    torch.autograd.backward(fast_results, towards)
    assert_close([x.grad for x in inputs], [x.grad for x in copies], **close)
    for gradient, fast_gradient in form.pairs(ours, fast, lambda parameter: parameter.grad):
        assert_close(gradient, fast_gradient, **close)


# Masks: where any dtype is taken, exactly 0 blocks

taken = each("form", ["sequence first", "single head"], indirect=True)


@taken
@each("dtype", [torch.bool, torch.uint8, torch.int64, *HALF, torch.float32, torch.float64])
def test_a_mask_may_have_any_dtype(form, keep, dtype):
    if keep is None:
        return
    module, inputs, mask = form.make().double().eval(), draw_inputs(form), form.mask(keep)
    output, weights = form.attend(module, inputs, mask.to(dtype))
    assert torch.equal(weights > 0, expand(form, keep)[:, None].expand_as(weights))
    assert torch.equal(output, form.attend(module, inputs, mask)[0])


@taken
def test_whatever_is_not_zero_is_open_and_nothing_is_added(form):
    module = form.make().double().eval()
    inputs = [torch.randn(B, 7, E, dtype=torch.float64)] * len(form.lengths)
    numbers = torch.tensor([[[0.0, -0.0, 1e-30, -1.0, -1e9, -math.inf, math.nan]]])
    keep = torch.tensor([[[False, False, True, True, True, True, True]]])
    output, weights = form.attend(module, inputs, form.mask(numbers))
    assert torch.equal(weights > 0, keep.expand_as(weights))
    assert torch.equal(output, form.attend(module, inputs, form.mask(keep))[0])


@each("form", ["sequence first", "per head"], indirect=True)
@each("keep", ["padding"], indirect=True)
@each("dtype", [torch.float32, *HALF])
def test_what_a_blocked_key_holds_changes_nothing(form, keep, dtype):
    module, (q, k, v) = form.make().to(dtype).eval(), draw_inputs(form, dtype)
    others = [q, *(torch.where(keep.mT, x, 100 * torch.randn_like(x)) for x in (k, v))]
    assert not torch.equal(form.attend(module, others)[0], form.attend(module, [q, k, v])[0])
    mask = form.mask(keep)
    assert torch.equal(form.attend(module, others, mask)[0], form.attend(module, [q, k, v], mask)[0])


# Rows with every key blocked, gradients, precision


@each("training", [True, False])
@each("dtype", [torch.float64, torch.float32, *HALF])
@blocked_rows
def test_a_query_with_every_key_blocked_gets_zeros_and_finite_gradients(form, keep, dtype, training):
    module, inputs = form.make().to(dtype).train(training), draw_inputs(form, dtype)
    output, weights = form.attend(module, inputs, form.mask(keep))
    nowhere = ~keep.any(-1)
    assert nowhere.sum() >= form.lengths[0] + 1
    assert torch.equal(output[nowhere], form.output(module, torch.zeros_like(output))[nowhere])
    assert weights is None or (weights.transpose(1, 2)[nowhere] == 0).all()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, either
        output.sum().backward()
    parameters = dict(module.named_parameters())
    for x in (*inputs, *parameters.values()):
        assert x.grad.isfinite().all()
        # A bias of the keys adds the same to all scores of a query, which changes no weight.
        assert (x.grad != 0).any() or x is parameters.get("key.linear.bias")
    if len(inputs) == 3:
        assert (inputs[0].grad[nowhere] == 0).all()


@each("dtype", HALF)
@each("autocast", [True, False])
@blocked_rows
def test_half_precision_blocks_without_overflow(form, keep, dtype, autocast):
    module, inputs, mask = form.make().eval(), draw_inputs(form, torch.float32), form.mask(keep)
    expected, expected_weights = form.attend(module, inputs, mask)
    if not autocast:
        module, inputs = module.to(dtype), [x.to(dtype) for x in inputs]
    with torch.autocast("cpu", dtype, enabled=autocast):
        output, weights = form.attend(module, inputs, mask)
    assert output.dtype == dtype
    assert_close(output.float(), expected, atol=0.02, rtol=0.0)
    if weights is not None:
        assert_close(weights.float(), expected_weights, atol=0.01, rtol=0.0)
        assert (weights.masked_select(~keep[:, None]) == 0).all()
