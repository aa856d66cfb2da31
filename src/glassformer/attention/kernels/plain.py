"""Attention and facts about its weights in plain operations on all of them: what every tracer and transform of torch
understands, what is fastest for small inputs, and what the other forms are tested against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.attention.kernels.blocks import Problem, in_window
from glassformer.attention.kernels.statistics import Facts, aligned_queries
from glassformer.attention.kernels.weigh import multiply_by_head, score, weigh
from glassformer.attention.masks import causal
from glassformer.attention.want import Want, tile_size


def observe_plainly(
    problem: Problem, want: Want, stays: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Facts]:
    """Return softmax(q kᵀ scale + bias) v, and what is wanted of its weights; holds all of them.

    `stays` are the factors of dropout; without them they are drawn with probability `dropout`.
    """
    device = problem.q.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return observe_plainly(problem, want, stays, dropout)
    q, k, v, keep, bias = problem.q, problem.k, problem.v, problem.keep, problem.bias
    q_len, k_len = q.shape[2], k.shape[2]
    if problem.causal and q_len != 1:  # a single query is the last position: nothing comes after it
        triangle = causal(q_len, k_len, q.device)
        keep = triangle if keep is None else keep & triangle
    if q.dtype != problem.dtype:
        q, k = q.to(problem.dtype), k.to(problem.dtype)
    if bias is not None and bias.dtype == torch.float64:
        bias = bias.to(problem.dtype)
    if problem.variant is not None:
        keep, bias = _add_variant(problem, keep, bias)
    facts: Facts = {}
    if want.lse or want.entropy or want.max_score or problem.variant is not None:
        w = _weigh_with_normaliser(q, k, keep, bias, problem, want, facts)
    else:
        w = weigh(q, k, keep=keep, bias=bias, scale=problem.scale)
    if stays is not None:
        w = w * stays
    elif dropout:
        w = F.dropout(w, dropout)
    facts |= facts_of_weights(w, want, first=problem.offset, dtype=problem.q.dtype)
    return multiply_by_head(w if w.dtype == v.dtype else w.to(v.dtype), v), facts


def plain_gradients(
    problem: Problem, want: Want, stays: Tensor | None, grad_output: Tensor | None, grads: Facts
) -> list[Tensor | None]:
    """Return the gradients of q, k, v, bias, sinks and slopes, differentiable again.

    `stays` are the factors of dropout.
    """
    with torch.enable_grad():
        output, facts = observe_plainly(problem, want, stays)
        outputs, towards = [output], [grad_output]
        for name, grad in grads.items():
            outputs.append(facts[name])
            towards.append(grad)
    used = [n for n, grad in enumerate(towards) if grad is not None and outputs[n].requires_grad]
    variant = problem.variant
    by_head = (None, None) if variant is None else (variant.sinks, variant.slopes)
    inputs = [problem.q, problem.k, problem.v, problem.bias, *by_head]
    differentiable = [x for x in inputs if x is not None and x.requires_grad]
    gradients = iter(
        torch.autograd.grad(
            [outputs[n] for n in used],
            differentiable,
            [towards[n] for n in used],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    )
    return [next(gradients) if x is not None and x.requires_grad else None for x in inputs]


def facts_of_weights(w: Tensor, want: Want, *, first: int, dtype: torch.dtype) -> Facts:
    """Return what is wanted of weights (batch, heads, q_len, k_len), but for entropy, lse and max_score.

    Those describe the scores and the weights before dropout. `first` is the position of the first query among the keys,
    `dtype` the type of the maps.
    """
    facts: Facts = {}
    if want.received:
        facts["received"] = w.sum(2)
    if want.distance:
        rows = torch.arange(w.shape[2], device=w.device) + first
        distance = (rows[:, None] - torch.arange(w.shape[3], device=w.device)).abs().to(w.dtype)
        facts["distance"] = (w * distance).sum(-1)
    if want.sink:
        facts["sink"] = w[..., : want.sink].sum(-1)
    if want.mass is not None:
        facts["mass"] = (w * want.mass).sum(-1)
    if want.agreement is not None:
        facts["agreement"] = (w * want.agreement[:, None]).sum((2, 3)) / aligned_queries(want.agreement)[:, None]
    if want.top:
        top, keys = w.topk(want.top, -1)
        facts["top"], facts["top_keys"] = top, keys.masked_fill(top == 0, -1)
    if want.rows:
        chosen = w if want.row_heads is None else w[:, list(want.row_heads)]
        facts["rows"] = chosen[:, :, list(want.rows)]
    if want.pooled:
        facts["pooled"] = _tiles(w.mean(1), want.pooled)
    if want.pooled_heads:
        facts["pooled_heads"] = _tiles(w, want.pooled_heads)
    if want.head_mean:
        facts["head_mean"] = w.mean(1).to(dtype)
    if want.weights:
        facts["weights"] = w.to(dtype)
    return facts


def _add_variant(problem: Problem, keep: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the masks with the window and the slopes of a kind of attention."""
    assert problem.variant is not None
    variant, q_len, k_len = problem.variant, problem.q.shape[2], problem.k.shape[2]
    keys = torch.arange(k_len, device=problem.q.device)
    rows = torch.arange(q_len, device=problem.q.device)[:, None] + problem.offset
    if variant.windowed:
        window = in_window(rows, keys, variant)[None, None]
        keep = window if keep is None else keep & window
    if variant.slopes is not None:
        lowered = -variant.slopes[:, None, None].to(problem.dtype) * (rows - keys).abs()
        bias = lowered[None] if bias is None else bias + lowered
    return keep, bias


def _weigh_with_normaliser(
    q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, problem: Problem, want: Want, facts: Facts
) -> Tensor:
    """Return the weights; what is wanted of lse, entropy and max_score goes to `facts`."""
    softcap = sinks = None
    if problem.variant is not None:
        softcap, sinks = problem.variant.softcap, problem.variant.sinks
    scores, nowhere = score(q, k, keep=keep, bias=bias, scale=problem.scale, softcap=softcap)
    if not k.shape[2]:
        nowhere = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=q.device)
    if sinks is not None:
        sinks = sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:3], 1)
    w = scores.softmax(-1) if sinks is None else torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    w = w if nowhere is None else w.masked_fill(nowhere, 0.0)
    if want.max_score:
        highest = scores.amax(-1) if k.shape[2] else scores.new_zeros(scores.shape[:3])
        facts["max_score"] = highest if nowhere is None else highest.masked_fill(nowhere[..., 0], -torch.inf)
    if not (want.lse or want.entropy):
        return w
    # Counted from the largest, so that large scores lose no digits.
    largest = scores.detach().amax(-1, keepdim=True) if k.shape[2] else scores.new_zeros(1)
    below = scores - largest
    normaliser = below.logsumexp(-1) if sinks is None else torch.cat([below, sinks - largest], -1).logsumexp(-1)
    if want.lse:
        lse = normaliser + largest[..., 0]
        if sinks is not None and nowhere is not None:
            alone = sinks.masked_fill(sinks == -torch.inf, -torch.inf)  # without a gradient there
            facts["lse"] = lse.where(~nowhere[..., 0], alone[..., 0])
        else:
            facts["lse"] = lse if nowhere is None else lse.masked_fill(nowhere[..., 0], -torch.inf)
    if want.entropy:  # -Σ p log p = Σ p lse - Σ p s, both counted from the largest
        whole = normaliser if sinks is None else normaliser * w.sum(-1)
        entropy = whole - (w * below.masked_fill(below == -torch.inf, 0.0)).sum(-1)
        facts["entropy"] = entropy if nowhere is None else entropy.masked_fill(nowhere[..., 0], 0.0)
    return w


def _tiles(w: Tensor, most: int) -> Tensor:
    """Sum (..., L, S) into at most `most` x `most` tiles."""
    for axis in (-1, -2):
        size = tile_size(w.shape[axis], most)
        short = -w.shape[axis] % size
        w = F.pad(w, (0, short) if axis == -1 else (0, 0, 0, short)).unflatten(axis, (-1, size)).sum(axis)
    return w
