"""Keeping attention scores from running away: `qk_clip` makes the weights of queries and keys smaller."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.capture.sightings import Figures, Sighting
from glassformer.capture.torch_nn import torch_attentions
from glassformer.errors import ArgumentError, shown

THRESHOLD = 100.0
PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "in_proj_bias", "bias_k")
"""Name the parameters that make queries and keys in torch's module and in glassformer's; some have not all of them."""


@torch.no_grad()
def qk_clip(model: nn.Module, seen: Sighting | Figures | None, threshold: float = THRESHOLD) -> dict[str, list[int]]:
    """Scale down the queries and keys of heads whose largest score was above the threshold; return these heads.

    Let s be the largest score of a head. Its rows of the query and key projections, with their biases, are multiplied
    by sqrt(threshold / s). On the same inputs its scores are then multiplied by threshold / s, and the largest one is
    the threshold (QK-Clip: Kimi K2, arXiv:2507.20534, section 2.1, which takes 100). Other heads, values and outputs
    stay as they are. A bias that is added to the scores, such as a mask's, isn't scaled.

    `seen` is what `watch` saw of this model in the step before. Call `qk_clip` after the optimizer's step. None, which
    `log` returns for a step that wasn't looked at, changes nothing. It works on torch.nn.MultiheadAttention and
    glassformer's. Raises ArgumentError for other attentions, for weights that are made from others before each call, as
    by torch's pruning and weight norm, and where `seen` has no max_score; then nothing is changed.

    >>> import torch
    >>> from glassformer import MultiheadAttention, Want, watch
    >>> model, x = MultiheadAttention(8, 2, batch_first=True), 1000 * torch.randn(1, 5, 8)
    >>> with watch(model, every=1, want=Want(max_score=True)) as seen:
    ...     for step in range(2):
    ...         _ = model(x, x, x)
    ...         clipped = qk_clip(model, seen.log(step), threshold=30.0)
    >>> [round(score, 3) for score in seen.sightings[1].figures[""]["max_score"]]
    [30.0, 30.0]
    """
    if isinstance(threshold, bool) or not 0 < threshold < math.inf:
        raise ArgumentError(f"threshold must be a score above 0, got {shown(threshold)}: 100.0, say")
    if seen is not None and not isinstance(seen, Sighting | dict):
        raise ArgumentError(f"seen must be what log(step) returned, got {shown(seen)}: qk_clip(model, seen.log(step))")
    attentions, clipped, changes = torch_attentions(model), dict[str, list[int]](), list[tuple[Tensor, Tensor]]()
    for layer, facts in (seen.figures if isinstance(seen, Sighting) else seen or {}).items():
        if "max_score" not in facts:
            raise ArgumentError(f"seen must have max_score, got {', '.join(facts)}: watch(want=Want(max_score=True))")
        if layer not in attentions:
            raise ArgumentError(
                f"seen must be of torch.nn.MultiheadAttention or glassformer's, got {layer!r}: is it of another "
                "model, or of Hugging Face? watch(layers=...) leaves layers out"
            )
        scores = facts["max_score"]
        if len(scores) != (heads := attentions[layer].num_heads):
            raise ArgumentError(f"seen must be of this model, got {len(scores)} heads of {layer!r}, which has {heads}")
        if heads := [head for head, score in enumerate(scores) if threshold < score < math.inf]:
            factors = clipping_factors(torch.tensor(scores), threshold)
            _check_plain(layer, attentions[layer])
            changes += [(rows, factors) for rows in _queries_and_keys(attentions[layer])]
            clipped[layer] = heads
    for rows, factors in changes:
        rows.view(len(factors), -1).mul_(factors[:, None].to(rows))
    return clipped


def clipping_factors(scores: Float[Tensor, " heads"], threshold: float) -> Float[Tensor, " heads"]:
    """Return what to multiply queries and keys by: sqrt(threshold / s) for a head whose largest score s is above it.

    1 for the others, and where s is not a finite number.
    """
    return torch.where((scores > threshold) & scores.isfinite(), (threshold / scores).sqrt(), 1.0)


def _check_plain(layer: str, attention: nn.MultiheadAttention) -> None:
    """Raise ArgumentError where queries and keys are made by weights that each call makes anew from others."""
    for name in PROJECTIONS:
        if getattr(attention, name) is not None and name not in attention._parameters:
            raise ArgumentError(
                f"qk_clip can't scale {name} of {layer or 'the model'}, which is made from other weights before each "
                "call: make pruning or a parametrization permanent first, or leave the layer out of watch(layers=...)"
            )


def _queries_and_keys(attention: nn.MultiheadAttention) -> list[Tensor]:
    """Return what makes queries and keys, each with the rows of one head after another's."""
    width = attention.num_heads * attention.head_dim
    parts: list[Tensor] = []
    if attention.in_proj_weight is not None:
        parts += attention.in_proj_weight[: 2 * width].chunk(2)
    else:
        parts += [attention.q_proj_weight, attention.k_proj_weight]
    if attention.in_proj_bias is not None:
        parts += attention.in_proj_bias[: 2 * width].chunk(2)
    if attention.bias_k is not None:
        parts.append(attention.bias_k)
    return parts
