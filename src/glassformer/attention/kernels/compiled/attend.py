"""attend_compiled: attention and facts about its weights by compiled functions, forward and backward."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.compiled.forward import attend_spans
from glassformer.attention.kernels.compiled.spans import side_by_side, spans_of
from glassformer.attention.kernels.statistics import Facts
from glassformer.attention.want import Want


class _Done(NamedTuple):
    """The output and facts. A query's log-sum-exp is its largest score, `peak`, and `tilt`, which is small."""

    output: Tensor
    peak: Tensor
    tilt: Tensor
    entropy: Tensor
    distance: Tensor
    received: Tensor
    top: Tensor
    top_keys: Tensor


def attend_compiled(problem: Problem, want: Want) -> tuple[Tensor, Facts]:
    """Return softmax(q kᵀ scale + bias) v, and what is wanted of its weights."""
    done = _forward(problem, want)
    return done.output, _facts(done, want)


def _facts(done: _Done, want: Want) -> Facts:
    facts: Facts = {"lse": done.peak + done.tilt} if want.lse else {}
    facts |= {name: getattr(done, name) for name in ("entropy", "received", "distance") if getattr(want, name)}
    return facts | ({"top": done.top, "top_keys": done.top_keys} if want.top else {})


@torch.no_grad()
def _forward(problem: Problem, want: Want) -> _Done:
    q, k, v = problem.q, problem.k, problem.v
    batch, heads, q_len, _ = q.shape
    height = choose.compiled_height(q_len, k.shape[2])
    shares = spans_of(problem, height, choose.compiled_threads(q, k))
    output = v.new_empty(batch, q_len, heads, v.shape[3]).transpose(1, 2)  # so that the heads are merged by a view
    peak, tilt, entropy, distance = (v.new_empty(batch, heads, q_len) for _ in range(4))
    top = v.new_zeros(batch, heads, q_len, want.top)
    top_keys = torch.full(top.shape, -1)
    parts = [v.new_zeros(len(spans), k.shape[2] if want.received else 0) for spans in shares]
    inputs = _inputs(problem)
    results = output, peak, tilt, entropy, distance
    side_by_side(
        [
            partial(attend_spans, *inputs, height, *map(_array, (spans, *results, part, top, top_keys)))
            for spans, part in zip(shares, parts, strict=True)
        ]
    )
    received = v.new_zeros(batch * heads, k.shape[2] if want.received else 0)
    received.index_add_(0, torch.cat([_head(spans, heads) for spans in shares]), torch.cat(parts))
    return _Done(*results, received.unflatten(0, (batch, heads)), top, top_keys)


def _inputs(problem: Problem) -> tuple[Any, ...]:
    """Return what the compiled functions take first: q, k, v, keep, bias, scale and causal."""
    masks = (
        torch.empty(0, 0, 0, 0, dtype=dtype) if mask is None else _small(mask)
        for mask, dtype in ((problem.keep, torch.bool), (problem.bias, torch.float32))
    )
    return *map(_array, (problem.q, problem.k, problem.v, *masks)), problem.scale, problem.causal


def _small(mask: Tensor) -> Tensor:
    """Return a mask without copies along axes that it was expanded over, its rows side by side in memory."""
    for axis in range(3):
        mask = mask if mask.stride(axis) else mask.narrow(axis, 0, min(1, mask.shape[axis]))
    return mask.contiguous()


def _array(x: Tensor) -> Any:
    return x.detach().numpy()


def _head(spans: Tensor, heads: int) -> Tensor:
    """Return which head each span belongs to, counted through all entries."""
    return spans[:, 0] * heads + spans[:, 1]
