"""observe(): attention's output together with exact facts about its weights, in memory linear in the length."""

import math
import operator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary, has_torch_function_variadic

from glassformer.attention.attend import check_dropout
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.kernels.blockwise import attend_in_blocks
from glassformer.attention.kernels.plain import facts_of_weights, observe_plainly
from glassformer.attention.kernels.statistics import Facts
from glassformer.attention.masks import check_causal, check_masks, check_tensors
from glassformer.attention.observation import Observation
from glassformer.attention.variant import make_variant
from glassformer.attention.want import SUMMARY, Want
from glassformer.errors import ArgumentError, shown


def observe(
    q: Float[Tensor, "batch heads q_len d_head"],
    k: Float[Tensor, "batch key_heads k_len d_head"],
    v: Float[Tensor, "batch key_heads k_len d_value"],
    *,
    keep: Bool[Tensor, "#batch #heads #q_len k_len"] | None = None,
    bias: Float[Tensor, "#batch #heads #q_len k_len"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
    dropout: float = 0.0,
    want: Want = SUMMARY,
    budget: int | None = None,
    first_query: int = 0,
) -> tuple[Float[Tensor, "batch heads q_len d_value"], Observation]:
    """Return softmax(q kᵀ scale + bias) v, and what `want` asks about the weights (Vaswani et al. 2017, section 3.2.1).

    Output and facts are exact, computed in one pass over blocks of queries (Rabe and Staats 2021, arXiv:2112.05682). No
    fact but `weights` takes batch x heads x q_len x k_len numbers, neither here nor in the backward pass. Everything is
    differentiable. Under torch.compile, tracing and function transforms, for gradients of gradients, and on devices
    other than CPU and CUDA, torch's plain operations are used, which do hold all weights. With numba (the extra `fast`)
    output, entropy, received, distance, lse, top and rows of float32 inputs take half the time on a CPU, and head_mean
    of long inputs takes four fifths. numba compiles for some seconds when a machine first needs it.

    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4), torch.tensor([[[[1.0], [2.0], [6.0]]]])
    >>> output, observation = observe(q, k, v, causal=True, want=Want(weights=True, entropy=True))
    >>> observation.weights.squeeze()  # equal scores; the first of the two queries may not look at the last key
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    >>> observation.entropy.exp().squeeze()  # how many keys a query looks at
    tensor([2., 3.])

    `keep` (True = may look), `bias` (added to the scores; -inf blocks) and `causal` (see `masks.causal`) combine;
    `scale` is 1 / sqrt(d_head) if not given; with fewer key heads than heads, each serves heads / key_heads of them.
    `softcap` makes softcap tanh(s / softcap) of the scores, before bias and masks (Gemma 2). `slopes`, one for each
    head, lower a score by slope |i - j| (ALiBi, Press et al. 2022). `window` = (left, right) lets query i look at keys
    i - left to i + right, None without end; a number is both. `sinks`, one logit for each head, take their share in the
    softmax and have no value (gpt-oss): weights then sum to less than 1, lse has the sink in it, and entropy sums over
    the keys alone.

    With `dropout` (0 outside training) the facts describe the weights after dropout, which made the output; entropy and
    lse describe the softmax before it. Positions are indices: query i has position `first_query` + i, for a step of
    generation that of its first query. Under `causal` the queries are the last positions: query i has position
    k_len - q_len + i. `budget` is the most bytes that blocks may take. Left out, they take what is fastest (128 MiB on
    a CPU). The smallest block is a single query of a single head.

    A query that may look nowhere has zero output, weights, entropy and distance, and an lse of -inf. Facts about
    half-precision inputs are computed and returned in float32; output, head_mean and weights have the inputs' dtype.
    Autocast changes nothing here: q, k and v must have one dtype, in which the output is returned.

    Raises ArgumentError for shapes or dtypes that don't fit, and for queries, heads or a `top` that don't exist.
    """
    if has_torch_function_variadic(q, k, v):  # as when `capture` sees every call
        settings: dict[str, Any] = dict(keep=keep, bias=bias, causal=causal, scale=scale, softcap=softcap, sinks=sinks)
        settings |= dict(window=window, slopes=slopes, dropout=dropout, want=want, budget=budget)
        settings |= dict(first_query=first_query)
        return handle_torch_function(observe, (q, k, v), q, k, v, **settings)
    check_tensors(q=q, k=k, v=v)
    _check_heads(q, k, v)
    check_masks(keep, bias, q, k)
    for name, x in (("k", k), ("v", v), ("keep", keep), ("bias", bias)):
        if x is not None and x.device != q.device:
            raise ArgumentError(f"{name} must be where q is, on {q.device}, got {x.device}: pass {name}.to(q.device)")
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float)):
        raise ArgumentError(f"scale must be a number, got {type(scale).__name__}: one that learns can multiply q")
    _check_want(want)
    if causal:
        check_causal(q.shape[2], k.shape[2])
    check_dropout(dropout)
    first_query = _as_first_query(first_query, causal=causal)
    if budget is not None and (not isinstance(budget, int) or budget <= 0):
        raise ArgumentError(f"budget must be a whole number of bytes above 0, got {budget!r}: 2**28 is 256 MiB")
    batch, heads, q_len, _ = q.shape
    want.check(heads, q_len, k.shape[2])
    want.check_masks(batch, heads, q_len, k.shape[2], q.device)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    dtype = torch.promote_types(q.dtype, torch.float32)
    problem = Problem(q, k, v, keep, bias, causal, scale, dtype, budget, first_query=first_query)
    if not (softcap is None and sinks is None and window is None and slopes is None):
        problem.variant = make_variant(q, softcap, sinks, window, slopes)
    output, facts = observe_problem(problem, want, dropout)
    return output, Observation(facts, want, batch=q.shape[0])


def observe_weights(
    weights: Float[Tensor, "batch heads q_len k_len"], want: Want = SUMMARY, *, first_query: int = 0
) -> Observation:
    """Return what `want` asks about attention weights that exist already, such as those that a model returns.

    The facts are those of `observe`, entropy being that of these weights; lse and max_score aren't known from them
    and are left out. Rows needn't sum to 1, as after dropout. Query i has position `first_query` + i.

    >>> observation = observe_weights(torch.tensor([[[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]]]), Want(entropy=True))
    >>> observation.entropy.exp()  # how many keys a query looks at
    tensor([[[2., 1.]]])

    Raises ArgumentError for other shapes and dtypes, and for queries, heads or a `top` that don't exist.
    """
    if has_torch_function_unary(weights):
        return handle_torch_function(observe_weights, (weights,), weights, want, first_query=first_query)
    check_tensors(weights=weights)
    if weights.dim() != 4 or not weights.is_floating_point():
        raise ArgumentError(
            "weights must be floating-point, (batch, heads, q_len, k_len), got "
            f"{weights.dtype} {tuple(weights.shape)}: for one head or entry, pass weights[None]"
        )
    _check_want(want)
    first_query = _as_first_query(first_query, causal=False)
    want = replace(want, lse=False, max_score=False)
    batch, heads, q_len, k_len = weights.shape
    want.check(heads, q_len, k_len)
    want.check_masks(batch, heads, q_len, k_len, weights.device)
    w = weights.to(torch.promote_types(weights.dtype, torch.float32))
    facts = facts_of_weights(w, want, first=first_query, dtype=weights.dtype)
    if want.entropy:
        facts["entropy"] = torch.special.entr(w.where(w != 0, 1.0)).sum(-1)  # 0 as well, and with a finite gradient
    return Observation(facts, want, batch=len(weights))


def observe_problem(problem: Problem, want: Want, dropout: float) -> tuple[Tensor, Facts]:
    """Return what `observe` does, unchecked, as plain tensors by name, in whichever form is fastest."""
    q, k, v = problem.q, problem.k, problem.v
    if choose.blocks_are_faster(q, k, v, dropout) and not choose.step_is_faster_plainly(q, k):
        return attend_in_blocks(problem, dropout, want)
    return observe_plainly(problem, want, dropout=dropout)


def _as_first_query(given: int, *, causal: bool) -> int:
    """Return a position that the first query may have; ArgumentError for what is none, and for one under `causal`."""
    try:
        if isinstance(given, bool):
            raise TypeError
        first = given if isinstance(given, int | torch.SymInt) else operator.index(given)  # a copy would be fixed
    except TypeError:
        raise ArgumentError(f"first_query must be a position, 0 or more, got {shown(given)}") from None
    if first < 0:
        raise ArgumentError(f"first_query must be a position, 0 or more, got {shown(given)}")
    if causal and first:
        raise ArgumentError(f"first_query must be left out under causal, got {first}: the queries are the last")
    return first


def _check_want(want: object) -> None:
    if not isinstance(want, Want):
        raise ArgumentError(f"want must be a Want, got {want!r}: want=Want(entropy=True), say")


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or not x.is_floating_point() or not x.shape[3]:
            raise ArgumentError(
                f"{name} must be floating-point, (batch, heads, length, width), got {x.dtype} {tuple(x.shape)}: for "
                "one head or entry, pass x[None]"
            )
    if not q.dtype == k.dtype == v.dtype:
        raise ArgumentError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if k.shape[:3] != v.shape[:3]:
        raise ArgumentError(
            f"k and v must agree in (batch, heads, length), got {tuple(k.shape[:3])} and {tuple(v.shape[:3])}"
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ArgumentError(
            "q and k must agree in batch and width, the first and last of their sizes, got "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    if q.shape[1] != k.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise ArgumentError(
            f"the heads of q must be a multiple of those of k and v, got {q.shape[1]} and {k.shape[1]}: are the axes "
            "(batch, heads, length, width)?"
        )
