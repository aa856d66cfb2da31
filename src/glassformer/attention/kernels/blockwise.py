"""Attention and facts about its weights a block of queries at a time, so that a block's weights stay in the cache.

Exact. The backward pass computes each block's weights again (Rabe and Staats 2021, arXiv:2112.05682), so that training,
too, never holds all of them.

B batch, H heads, L query length, S key length, D width of one head, G heads of all the batch entries in a block.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Block, Problem, distances, groups, own, where_in
from glassformer.attention.kernels.dropper import Dropper
from glassformer.attention.kernels.plain import plain_gradients
from glassformer.attention.kernels.products import RightFactor
from glassformer.attention.kernels.scratch import Place, Scratch
from glassformer.attention.kernels.statistics import Facts, Sizes, Statistic, statistics
from glassformer.attention.want import NOTHING, Want

_T = TypeVar("_T")
_FIRST = 64  # looking at so many keys in place of all, twice, saves a tenth of the time
_FAR = 50.0  # in nats: weights of exp(-50) still have all their digits
_LARGE = 64.0  # scores up to which counting from zero is exact to 4e-6


def attend_in_blocks(problem: Problem, dropout: float = 0.0, want: Want = NOTHING) -> tuple[Tensor, Facts]:
    """Return softmax(q kᵀ scale + bias) v, and what is wanted of its weights."""
    variant = problem.variant
    if variant is None and choose.compiled_fits(
        problem.q, problem.k, problem.v, problem.bias, want, dropout, problem.budget
    ):
        from glassformer.attention.kernels.compiled.attend import attend_compiled

        return attend_compiled(problem, want)
    # One draw from the global generator seeds all of a call's random numbers: the backward pass repeats them.
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if dropout else 0
    settings = _Settings(dropout, seed, want)
    by_head = (None, None) if variant is None else (variant.sinks, variant.slopes)
    inputs = (problem.q, problem.k, problem.v, problem.bias, *by_head)
    if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)):
        return _forward(problem, settings)
    names: list[str] = []
    output, *tensors = _Attend.apply(*inputs, problem, settings, names)
    return output, dict(zip(names, tensors, strict=True))


@dataclass(frozen=True)
class _Settings:
    dropout: float
    seed: int
    want: Want

    def dropper(self, problem: Problem) -> Dropper | None:
        return Dropper(self.dropout, self.seed, _scratch(problem)) if self.dropout else None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        slopes: Tensor | None,
        problem: Problem,
        settings: _Settings,
        names: list[str],
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        output, facts = _forward(problem, settings)
        bias = own(bias) if bias is not None and not bias.requires_grad else bias
        masks = (settings.want.mass, settings.want.agreement)  # so that torch tells if they were changed
        ctx.save_for_backward(q, k, v, problem.keep, bias, sinks, slopes, facts.get("top_keys"), *masks)
        ctx.settings = settings
        ctx.problem = partial(
            Problem,
            causal=problem.causal,
            scale=problem.scale,
            dtype=problem.dtype,
            budget=problem.budget,
            first_query=problem.first_query,
        )
        ctx.variant = None if problem.variant is None else replace(problem.variant, sinks=None, slopes=None)
        ctx.names = list(facts)
        names.extend(facts)
        if "top_keys" in facts:
            ctx.mark_non_differentiable(facts["top_keys"])
        if not any(x is not None and x.requires_grad for x in (q, k, bias, sinks, slopes)):
            ctx.mark_non_differentiable(*facts.values())
        return output, *facts.values()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, sinks, slopes, top_keys, _, _ = ctx.saved_tensors
        variant = None if ctx.variant is None else replace(ctx.variant, sinks=sinks, slopes=slopes)
        problem = ctx.problem(*tensors, variant=variant)
        by_name = {name: grad for name, grad in zip(ctx.names, grads[1:], strict=True) if grad is not None}
        # Gradients of gradients, and many gradients at once, come from plain operations.
        if torch.is_grad_enabled() or not choose.is_eager(*grads) or any(map(choose.is_batched, grads)):
            stays = _all_that_stays(problem, ctx.settings)
            return *plain_gradients(problem, ctx.settings.want, stays, grads[0], by_name), None, None, None
        facts = {} if top_keys is None else {"top_keys": top_keys}
        learns = Learns(*ctx.needs_input_grad[:6])
        return *_backward(problem, ctx.settings, learns, grads[0], by_name, facts), None, None, None


def _without_autocast(function: Callable[..., _T]) -> Callable[..., _T]:
    @wraps(function)
    def run(problem: Problem, *rest: Any) -> _T:
        with torch.autocast(problem.q.device.type, enabled=False):
            return function(problem, *rest)

    return run


@torch.no_grad()
@_without_autocast
def _forward(problem: Problem, settings: _Settings) -> tuple[Tensor, Facts]:
    want = settings.want
    if _kernels_take(problem, settings):
        from glassformer.attention.kernels.gpu import attend_with_kernels
        from glassformer.attention.kernels.triton import OutOfResources

        try:
            with torch.cuda.device(problem.q.device):
                return attend_with_kernels(problem, want)
        except OutOfResources:  # a GPU with less shared memory than any that the kernels were made for
            pass
    batch, heads, q_len, _ = problem.q.shape
    width = problem.v.shape[3]
    # Laid out as the queries' input, so that the heads are merged by a view.
    if problem.q.stride(2) > problem.q.stride(0):
        output = problem.v.new_empty(q_len, batch, heads, width).permute(1, 2, 0, 3)
    else:
        output = problem.v.new_empty(batch, q_len, heads, width).transpose(1, 2)
    facts: Facts = {}
    for name in ("lse", "entropy", "max_score"):
        if getattr(want, name):
            facts[name] = torch.empty(problem.q.shape[:3], dtype=_exact(problem), device=problem.q.device)
    wanted = _wanted(problem, want)
    for statistic in wanted:
        statistic.prepare(facts)
    drop = settings.dropper(problem)
    for_scores, for_weights = _scratch(problem), _scratch(problem)
    # All weights alone are computed where they stay.
    in_place = (
        want.weights
        and want.asked == ("weights",)
        and drop is None
        and not problem.causal
        and problem.variant is None
        and problem.dtype == problem.q.dtype
    )
    sinks = None if problem.variant is None else problem.variant.sinks
    for group in groups(problem, in_place=in_place):
        values = RightFactor(group.v)
        for block in group.blocks():
            place = (block.entries, block.heads, block.rows)
            s = group.score(block, Place(facts["weights"][place].flatten(0, 1)) if in_place else for_scores)
            told = want.lse or want.entropy or want.max_score or sinks is not None
            p = group.softmax(block, s, out=for_weights.shaped(s.shape) if told else s)
            if want.max_score:
                facts["max_score"][place] = block.by_head(s.amax(-1))
            if told:
                reference, tilt = _normaliser(s, p)
                share = None if sinks is None else _share_with(sinks, block, p, _lse(reference, tilt))
                if want.lse:
                    facts["lse"][place] = block.by_head(_lse(reference, tilt) if share is None else share.lse)
                if want.entropy:  # -Σ p log p = Σ p lse - Σ p s, both counted from the same
                    origin = _centre(s, reference, problem.masked)
                    whole = reference - origin + tilt if share is None else (share.lse - origin) * share.of_keys
                    entropy = whole - torch.mul(p, s, out=s).sum(-1)
                    facts["entropy"][place] = block.by_head(entropy.masked_fill_(reference == -math.inf, 0.0))
            if drop is not None:
                p.mul_(drop.next(p))
            for statistic in () if in_place else wanted:
                statistic.add(block, p, facts)
            seen = p.new_empty(*p.shape[:2], width)
            values.inner(p.shape[-1], group.inside(block).start).multiply(group.fold(p), out=group.fold(seen))
            output[place] = block.by_head(seen)
    return output, facts


def _kernels_take(problem: Problem, settings: _Settings) -> bool:
    """Return whether a GPU's kernels compute this in place of blocks."""
    return (
        problem.q.device.type == "cuda"
        and problem.variant is None
        and choose.triton_is_there()
        and choose.kernels_fit(problem.q, problem.v, settings.want, settings.dropout)
    )


class Learns(NamedTuple):
    """A flag for each input: True if it needs a gradient."""

    q: bool
    k: bool
    v: bool
    bias: bool = False
    sinks: bool = False
    slopes: bool = False

    @property
    def scores(self) -> bool:
        """Return whether any of what makes the weights needs one."""
        return self.q or self.k or self.bias or self.sinks or self.slopes


def gradients_in_blocks(
    problem: Problem, want: Want, learns: Learns, grad_output: Tensor | None, grads: Facts, facts: Facts
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v, bias, sinks and slopes, for another form's output and facts, without dropout.

    Of `facts` only top_keys is read, if `top` is wanted.
    """
    return _backward(problem, _Settings(0.0, 0, want), learns, grad_output, grads, facts)


@_without_autocast
def _backward(
    problem: Problem, settings: _Settings, learns: Learns, grad_output: Tensor | None, grads: Facts, facts: Facts
) -> tuple[Tensor | None, ...]:
    """Return the gradients. With s the scores, p the weights, w what dropout leaves of them, o the output, m = w / p:
    dv = wᵀ do, dw = do vᵀ + what the statistics push, dp = m dw - s d(entropy),
    ds = p (dp - Σ p dp) + p d(lse), where the sum is over a query's keys; dq = ds k scale, dk = dsᵀ q scale.

    The weight r of a sink has no value, so that dp = 0 there: d(sink) = r (d(lse) - Σ p dp). Weights that don't sum to
    one because of it need all of -(log p + 1) d(entropy) in dp, in place of -s d(entropy).
    """
    # What several blocks add to is summed in float32 or better.
    exact = _exact(problem)
    grad_q = torch.empty_like(problem.q) if learns.q else None
    grad_k = _zeros_like(problem.k, exact) if learns.k else None
    grad_v = _zeros_like(problem.v, exact) if learns.v and grad_output is not None else None
    grad_bias = _zeros_like(problem.bias, exact) if learns.bias and problem.bias is not None else None
    variant = problem.variant
    sinks, slopes, softcap = (None, None, None) if variant is None else (variant.sinks, variant.slopes, variant.softcap)
    grad_sinks = _zeros_like(sinks, exact) if learns.sinks and sinks is not None else None
    grad_slopes = _zeros_like(slopes, exact) if learns.slopes and slopes is not None else None
    needs_scores = "entropy" in grads or "max_score" in grads or sinks is not None
    pushing = [statistic for statistic in _wanted(problem, settings.want) if statistic.name in grads]
    drop = settings.dropper(problem)
    for_scores, for_weights, for_dw, for_ds = (_scratch(problem) for _ in range(4))
    capped = None if softcap is None else _scratch(problem)
    for group in groups(problem):
        keys, values_transposed = RightFactor(group.k), RightFactor(group.v.mT)
        dk = None if grad_k is None else _zeros_like(group.k, exact)
        dv = None if grad_v is None else _zeros_like(group.v, exact)
        for block in group.blocks():
            place = (block.entries, block.heads, block.rows)
            s = group.score(block, for_scores, capped)
            p = group.softmax(block, s, out=for_weights.shaped(s.shape) if needs_scores else s)
            share = None if sinks is None else _share_with(sinks, block, p, _lse(*_normaliser(s, p)))
            inside = group.inside(block)
            stays = None if drop is None else drop.next(p)
            dw = for_dw.shaped(p.shape)
            do = None if grad_output is None else grad_output[place].to(problem.dtype).flatten(0, 1)
            if dv is not None and do is not None:
                w = p if stays is None else torch.mul(p, stays, out=dw)
                RightFactor(group.fold(do)).multiply(group.fold(w).mT, out=dv[:, inside], add=True)
            if not learns.scores:
                continue
            if do is None:
                dw.zero_()
            else:
                values_transposed.columns(p.shape[-1], inside.start).multiply(group.fold(do), out=group.fold(dw))
            for statistic in pushing:
                statistic.add_gradient(block, grads[statistic.name], dw, facts)
            if stays is not None:
                dw.mul_(stays)
            of_highest = _spread_to_highest(s, grads["max_score"], block) if "max_score" in grads else None
            if "entropy" in grads:
                origin = _centre(s, _normaliser(s, p)[0], problem.masked)
                by_query = _by_query(grads["entropy"], block, dw)
                dw.addcmul_(s, by_query, value=-1)
                if share is not None:
                    lse = share.lse.masked_fill(share.lse == -math.inf, 0.0)
                    dw.addcmul_((lse - origin - 1)[..., None], by_query)
            if grad_sinks is not None and share is not None:
                by_query = 0.0 if "lse" not in grads else _by_query(grads["lse"], block, dw)[..., 0]
                dr = (share.of_sink * (by_query - (p * dw).sum(-1))).masked_fill(share.of_sink == 0, 0.0)
                grad_sinks[block.heads] += block.by_head(dr).sum((0, 2))
            ds = for_ds.shaped(p.shape)
            torch.ops.aten._softmax_backward_data.out(dw, p, -1, p.dtype, grad_input=ds)
            if "lse" in grads:
                by_query = _by_query(grads["lse"], block, dw)
                if problem.masked:  # their lse is -inf, and so may be what was made of it
                    by_query = by_query.masked_fill(group.nowhere(block, p), 0.0)
                ds.addcmul_(p, by_query)
            if of_highest is not None:
                ds += of_highest
            if grad_bias is not None:
                _add_reduced(block.by_head(ds), grad_bias[where_in(grad_bias, block)])
            if grad_slopes is not None:
                grad_slopes[block.heads] -= (block.by_head(ds).sum(0) * distances(block, ds)).sum((1, 2))
            if capped is not None:  # of q kᵀ scale, by tanh' = 1 - tanh²
                ds.mul_(capped.shaped(ds.shape).square_().neg_().add_(1))
            if grad_q is not None:
                dq = p.new_empty(*p.shape[:2], problem.q.shape[3])
                keys.inner(p.shape[-1], inside.start).multiply(group.fold(ds), out=group.fold(dq))
                grad_q[place] = block.by_head(dq.mul_(problem.scale))
            if dk is not None:
                RightFactor(group.fold(group.q[:, block.rows])).multiply(group.fold(ds).mT, out=dk[:, inside], add=True)
        for grad, whole in ((dk, grad_k), (dv, grad_v)):
            if grad is not None and whole is not None:
                group.spread(grad, whole)
    return (
        grad_q,
        None if grad_k is None else grad_k.to(problem.k.dtype),
        None if grad_v is None else grad_v.to(problem.v.dtype),
        None if grad_bias is None or problem.bias is None else grad_bias.to(problem.bias.dtype),
        None if grad_sinks is None or sinks is None else grad_sinks.to(sinks.dtype),
        None if grad_slopes is None or slopes is None else grad_slopes.to(slopes.dtype),
    )


def _all_that_stays(problem: Problem, settings: _Settings) -> Tensor | None:
    """Return the factors of dropout for all the weights (B, H, L, S)."""
    drop = settings.dropper(problem)
    if drop is None:
        return None
    detached = replace(problem, q=problem.q.detach(), k=problem.k.detach(), v=problem.v.detach())
    stays = torch.zeros(*problem.q.shape[:3], problem.k.shape[2], dtype=problem.dtype, device=problem.q.device)
    for group in groups(detached):
        for block in group.blocks():
            part = stays[block.entries, block.heads, block.rows, block.keys]
            part.copy_(block.by_head(drop.next(part.flatten(0, 1))))
    return stays


def _wanted(problem: Problem, want: Want) -> list[Statistic]:
    batch, heads, q_len, _ = problem.q.shape
    return statistics(
        want, Sizes(batch, heads, q_len, problem.k.shape[2], _exact(problem), problem.q.dtype, problem.q.device)
    )


def _exact(problem: Problem) -> torch.dtype:
    """Return the dtype of facts that are numbers; maps of weights may be in half precision."""
    return torch.promote_types(problem.dtype, torch.float32)


def _zeros_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(x.shape, dtype=dtype, device=x.device)


def _scratch(problem: Problem) -> Scratch:
    return Scratch(problem.dtype, problem.q.device)


def _normaliser(s: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return one of the larger scores of each row, and lse minus it, from scores s and weights p = exp(s - lse).

    Any key serves whose weight isn't too small: mostly one of the first.
    """
    reference, tilt = s[..., :_FIRST].amax(-1), -p[..., :_FIRST].amax(-1).log()
    if not (tilt <= _FAR).all():
        reference, tilt = s.amax(-1), -p.amax(-1).log()
    return reference, tilt


def _lse(reference: Tensor, tilt: Tensor) -> Tensor:
    return (reference + tilt).masked_fill_(reference == -math.inf, -math.inf)


class _Share(NamedTuple):
    """Divide a query's weights among keys and sink, for each query of a block (G, rows). The two shares sum to one."""

    lse: Tensor
    of_keys: Tensor
    of_sink: Tensor


def _share_with(sinks: Tensor, block: Block, p: Tensor, of_keys: Tensor) -> _Share:
    """Leave sinks their share of the weights, in place; `of_keys` is the lse of the keys alone (G, rows)."""
    by_head = sinks.detach()[block.heads].to(p.dtype)
    logits = by_head.repeat(p.shape[0] // len(by_head))[:, None]
    lse = torch.logaddexp(of_keys, logits)
    share = (of_keys - lse).exp().masked_fill_(of_keys == -math.inf, 0.0)
    p.mul_(share[..., None])
    return _Share(lse, share, (logits - lse).exp().masked_fill_((logits == -math.inf).expand_as(lse), 0.0))


def _spread_to_highest(s: Tensor, grad: Tensor, block: Block) -> Tensor:
    """Return the gradient that comes to scores through the highest of each query; equal ones share it."""
    highest = (s == s.amax(-1, keepdim=True)) & (s > -math.inf)
    return torch.where(highest, _by_query(grad, block, s) / highest.sum(-1, keepdim=True), 0.0)


def _centre(s: Tensor, reference: Tensor, masked: bool) -> Tensor | float:
    """Make scores fit to be multiplied with weights, in place, and return what they are counted from.

    Blocked keys, whose weight is zero, get 0 in place of -inf. The scores are counted from `reference` if that is so
    large that digits would be lost, else from 0.
    """
    if masked:
        s.nan_to_num_(nan=math.nan, posinf=math.inf, neginf=0.0)
        reference = reference.masked_fill(reference == -math.inf, 0.0)
    if (reference.abs() <= _LARGE).all():
        return 0.0
    s.sub_(reference[..., None])
    return reference


def _by_query(grad: Tensor, block: Block, like: Tensor) -> Tensor:
    return grad[block.entries, block.heads, block.rows].to(like.dtype).flatten(0, 1)[..., None]


def _add_reduced(x: Tensor, onto: Tensor) -> None:
    """Add x to onto, summed over the axes along which onto was broadcast."""
    axes = [axis for axis in range(4) if onto.shape[axis] == 1 and x.shape[axis] > 1]
    onto += (x.sum(axes, keepdim=True) if axes else x).to(onto.dtype)
