"""attend_compiled: attention and facts about its weights by compiled functions, forward and backward."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem, own
from glassformer.attention.kernels.blockwise import Learns, gradients_in_blocks
from glassformer.attention.kernels.compiled.chosen import ChosenRows
from glassformer.attention.kernels.compiled.forward import attend_spans, pack_spans
from glassformer.attention.kernels.compiled.products import packed_sizes
from glassformer.attention.kernels.compiled.spans import (
    heads_of_keys,
    pieces_of,
    pieces_through_heads,
    side_by_side,
    with_places,
)
from glassformer.attention.kernels.plain import plain_gradients
from glassformer.attention.kernels.statistics import Facts
from glassformer.attention.want import NOTHING, Want


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
    head_mean: Tensor
    rows: Tensor
    sink: Tensor

    def facts(self, want: Want) -> Facts:
        facts: Facts = {"lse": self.peak + self.tilt} if want.lse else {}
        if want.max_score:  # where a score is not a number the largest may have passed it over
            facts["max_score"] = self.peak.masked_fill(self.tilt.isnan() & (self.peak < torch.inf), torch.nan)
        names = ("entropy", "received", "distance", "rows", "head_mean", "sink")
        facts |= {name: getattr(self, name) for name in names if want.asks(name)}
        return facts | ({"top": self.top, "top_keys": self.top_keys} if want.top else {})


def attend_compiled(problem: Problem, want: Want) -> tuple[Tensor, Facts]:
    """Return softmax(q kᵀ scale + bias) v, and what is wanted of its weights."""
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in (problem.q, problem.k, problem.v))):
        done = _forward(problem, want)
        return done.output, done.facts(want)
    names: list[str] = []
    output, *tensors = _AttendCompiled.apply(problem.q, problem.k, problem.v, problem, want, names)
    return output, dict(zip(names, tensors, strict=True))


class _AttendCompiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: Problem, want: Want, names: list[str]
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        done = _forward(problem, want)
        facts = done.facts(want)
        names.extend(facts)
        ctx.names, ctx.want = list(facts), want
        settings = dict(causal=problem.causal, scale=problem.scale, dtype=problem.dtype)
        ctx.problem = partial(Problem, **settings, first_query=problem.first_query)
        bias = None if problem.bias is None else own(problem.bias)
        kept = (done.output, done.peak, done.tilt, done.entropy, done.distance, done.top, done.top_keys)
        ctx.save_for_backward(q, k, v, problem.keep, bias, *kept)
        if want.top:
            ctx.mark_non_differentiable(done.top_keys)
        if not (q.requires_grad or k.requires_grad):
            ctx.mark_non_differentiable(*facts.values())
        return done.output, *facts.values()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, keep, bias, output, peak, tilt, entropy, distance, top, top_keys = ctx.saved_tensors
        problem = ctx.problem(q, k, v, keep, bias)
        by_name = {name: grad for name, grad in zip(ctx.names, grads[1:], strict=True) if grad is not None}
        # Gradients of gradients, and many gradients at once, come from plain operations.
        if torch.is_grad_enabled() or not choose.is_eager(*grads) or any(map(choose.is_batched, grads)):
            return *plain_gradients(problem, ctx.want, None, grads[0], by_name)[:3], None, None, None
        if not by_name.keys().isdisjoint(("max_score", "sink")):
            learns = Learns(*ctx.needs_input_grad[:3])
            known = {"top_keys": top_keys} if ctx.want.top else {}
            return *gradients_in_blocks(problem, ctx.want, learns, grads[0], by_name, known)[:3], None, None, None
        unused = q.new_empty(0)
        done = _Done(output, peak, tilt, entropy, distance, unused, top, top_keys, unused, unused, unused)
        found = _backward(problem, done, ctx.want, grads[0], by_name)
        needed = (grad if needs else None for grad, needs in zip(found, ctx.needs_input_grad, strict=False))
        return *needed, None, None, None


@torch.no_grad()
def _forward(problem: Problem, want: Want) -> _Done:
    q, k, v = problem.q, problem.k, problem.v
    batch, heads, q_len, _ = q.shape
    threads, number = choose.compiled_threads()
    if want.head_mean:
        height = choose.compiled_height_of_means(q_len, k.shape[2])
        pieces, shared = with_places(pieces_through_heads(problem, height, number), served=1)
        packed = _packed(problem, threads)
    else:
        height = choose.compiled_height(q_len, k.shape[2])
        pieces, shared = with_places(pieces_of(problem, height, number), served=1)
        packed = v.new_empty(2, 0, 0, 0).unbind()
    output = v.new_empty(batch, q_len, heads, v.shape[3]).transpose(1, 2)  # so that the heads are merged by a view
    told = q_len if want.entropy or want.distance else 0
    peak, tilt, entropy, distance = (v.new_empty(batch, heads, length) for length in (q_len, q_len, told, told))
    top = v.new_zeros(batch, heads, q_len, want.top)
    top_keys = torch.full_like(top, -1, dtype=torch.long)
    summed = k.shape[2] if want.received else 0
    received, parts = v.new_zeros(batch, heads, summed), v.new_zeros(len(shared), summed)
    head_mean = v.new_empty((batch, q_len, k.shape[2]) if want.head_mean else (batch, 0, 0))
    chosen = ChosenRows.of(want, heads, q_len)
    rows = chosen.zeros(v, k.shape[2])
    results = output, peak, tilt, entropy, distance
    inputs = _inputs(problem)
    maps = head_mean, rows, chosen.row_of_query, chosen.row_of_head
    sink = v.new_empty(batch, heads, q_len if want.sink else 0)
    arrays = [_array(x) for x in (*packed, *results, received, parts, top, top_keys, *maps, sink)]
    side_by_side(
        [partial(attend_spans, *inputs, height, _array(spans), *arrays, want.sink) for spans in pieces], threads
    )
    for owner, part in zip(shared, parts, strict=True):
        received[owner] += part
    return _Done(*results, received, top, top_keys, head_mean, chosen.fact(rows) if want.rows else rows, sink)


def _packed(problem: Problem, threads: int) -> tuple[Tensor, Tensor]:
    """Return all keys and values as products read them: (batch, heads of keys, numbers) each."""
    k, v = problem.k, problem.v
    for_keys, for_values = packed_sizes(k.shape[2], k.shape[3], v.shape[3])
    packed = k.new_empty(*k.shape[:2], for_keys), v.new_empty(*k.shape[:2], for_values)
    arrays = [_array(x) for x in (k, v)], [_array(x) for x in packed]
    spans = [torch.tensor(piece, device="cpu") for piece in heads_of_keys(problem)]
    side_by_side([partial(pack_spans, *arrays[0], _array(piece), *arrays[1]) for piece in spans], threads)
    return packed


def _backward(
    problem: Problem, done: _Done, want: Want, grad_output: Tensor | None, grads: Facts
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v: see `backward`."""
    from glassformer.attention.kernels.compiled.backward import push_back_spans  # compiled when first needed

    q, k, v = problem.q, problem.k, problem.v
    batch, heads, q_len, _ = q.shape
    nowhere = done.peak == -torch.inf
    grad_output = done.output.new_zeros(()).expand_as(done.output) if grad_output is None else grad_output
    of_entropy, of_distance = (_given(grads, name, done.peak) for name in ("entropy", "distance"))
    of_top = _given(grads, "top", done.top).masked_fill(done.top_keys < 0, 0.0)
    constants = (grad_output * done.output).sum(-1) + (of_top * done.top).sum(-1)
    if want.entropy or want.distance:
        constants += of_entropy * done.entropy + of_distance * done.distance
    if "lse" in grads:
        constants -= grads["lse"].masked_fill(nowhere, 0.0)  # their lse is -inf, and so may be what was made of it
    of_received = _given(grads, "received", v.new_empty(batch, heads, k.shape[2]))
    of_mean = v.new_empty(batch, 0, 0)
    if "head_mean" in grads:
        of_mean = (grads["head_mean"] / heads).contiguous()
    chosen = ChosenRows.of(want if "rows" in grads else NOTHING, heads, q_len)
    of_rows = chosen.gradient(grads["rows"]) if "rows" in grads else chosen.zeros(v, k.shape[2])
    sweep = not grads.keys().isdisjoint(("received", "head_mean", "rows"))
    height = choose.compiled_height(q_len, k.shape[2])
    threads, number = choose.compiled_threads()
    if want == NOTHING:  # as with torch's kernel, sums don't depend on the number of threads
        number = batch * heads
    pieces, shared = with_places(pieces_of(problem, height, number), served=heads // k.shape[1])
    grad_q, grad_k, grad_v = torch.empty_like(q), k.new_zeros(k.shape), v.new_zeros(v.shape)
    shared_k, shared_v = (x.new_zeros(len(shared), 1, *x.shape[2:]) for x in (k, v))
    by_query = done.peak.masked_fill(nowhere, 0.0), done.tilt, constants, of_entropy, of_distance, of_received, of_mean
    by_query = *by_query, of_rows, chosen.row_of_query, chosen.row_of_head
    inputs, given = _inputs(problem), [_array(x) for x in (grad_output, *by_query)]
    results = [_array(x) for x in (of_top, done.top_keys, grad_q, grad_k, grad_v, shared_k, shared_v)]
    side_by_side(
        [partial(push_back_spans, *inputs, height, _array(spans), *given, sweep, *results) for spans in pieces],
        threads,
    )
    for owner, of_keys, of_values in zip(shared, shared_k, shared_v, strict=True):
        grad_k[owner] += of_keys[0]
        grad_v[owner] += of_values[0]
    return grad_q, grad_k, grad_v


def _given(grads: Facts, name: str, like: Tensor) -> Tensor:
    """Return the gradient of a fact, or zeros, in memory of its own."""
    return grads[name].contiguous() if name in grads else like.new_zeros(like.shape)


def _inputs(problem: Problem) -> tuple[Any, ...]:
    """Return what the compiled functions take first: q, k, v, keep, bias, scale, causal and offset."""
    masks = (
        torch.empty(0, 0, 0, 0, dtype=dtype, device="cpu") if mask is None else _small(mask)
        for mask, dtype in ((problem.keep, torch.bool), (problem.bias, torch.float32))
    )
    return *map(_array, (problem.q, problem.k, problem.v, *masks)), problem.scale, problem.causal, problem.offset


def _small(mask: Tensor) -> Tensor:
    """Return a mask without copies along axes that it was expanded over, its rows side by side in memory."""
    for axis in range(3):
        mask = mask if mask.stride(axis) else mask.narrow(axis, 0, min(1, mask.shape[axis]))
    return mask.contiguous()


def _array(x: Tensor) -> Any:
    return x.detach().resolve_neg().numpy()
