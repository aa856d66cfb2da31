"""Heads of our Transformer turned down and off, and how much the loss minds: their importance."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from heapq import heapify, heappop, heappush

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.functional import AttentionFunction, compute_attention
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.want import Want
from glassformer.errors import ArgumentError
from glassformer.text.batching import Batch
from glassformer.training.objective import Objective
from glassformer.transformer.model import Transformer

Gates = dict[str, Float[Tensor, "#batch heads"]]
"""What each head's output is multiplied by, of the attentions by their paths."""


@contextmanager
def gated(model: Transformer, gates: Gates) -> Iterator[None]:
    """Inside, heads' outputs are multiplied by the gates, which may be changed; others are as before."""
    modules = model.attentions
    if unknown := set(gates) - set(modules):
        raise ArgumentError(f"gates must be of the model's attentions, got {', '.join(sorted(unknown))}")

    def through(gate: Tensor) -> AttentionFunction:
        def gated_look(of: Problem, dropout: float, want: Want | None) -> tuple[Tensor, Tensor | None]:
            heads, weights = compute_attention(of, dropout, want)
            return heads * gate[:, :, None, None].to(heads.dtype), weights

        return gated_look

    with ExitStack() as stack:
        for name, gate in gates.items():
            stack.enter_context(modules[name].computed_by(through(gate)))
        yield


def importance(model: Transformer, batches: Sequence[Batch]) -> dict[str, Float[Tensor, " heads"]]:
    """Of each attention's heads, by its path: E |d loss / d gate| over sentences, the loss summed over a sentence's
    tokens, divided by the norm over the attention's heads (Michel et al. 2019, equation 2 and section 4). One backward
    pass, in float32 without dropout."""
    sums = {name: torch.zeros(of.num_heads, dtype=torch.float64) for name, of in model.attentions.items()}
    with _evaluated(model) as objective, torch.enable_grad():
        for batch in batches:
            size, device = len(batch.targets.keep), batch.source.device
            gates = {
                name: torch.ones(size, len(total), device=device, requires_grad=True) for name, total in sums.items()
            }
            with gated(model, gates):
                loss, _ = objective(batch)
                gradients = torch.autograd.grad(loss, list(gates.values()), allow_unused=True)
            for total, gradient in zip(sums.values(), gradients, strict=True):
                if gradient is not None:  # an attention may have no heads
                    total += gradient.abs().sum(0).double().cpu()
    return {name: total / total.norm().clamp(min=1e-30) for name, total in sums.items()}


def rise_without(model: Transformer, batches: Sequence[Batch]) -> dict[str, Float[Tensor, " heads"]]:
    """Of each attention's heads, by its path: how much the negative log-likelihood, in nats a token, rises when the
    head alone is switched off. One forward pass a head, in float32 without dropout."""
    device = model.target_embedding.weight.device
    gates = {name: torch.ones(1, of.num_heads, device=device) for name, of in model.attentions.items()}
    rises = {name: torch.zeros(gate.shape[1], dtype=torch.float64) for name, gate in gates.items()}
    with _evaluated(model) as objective, torch.no_grad(), gated(model, gates):
        base = _loss(objective, batches)
        for name, gate in gates.items():
            for head in range(gate.shape[1]):
                gate[0, head] = 0.0
                rises[name][head] = _loss(objective, batches) - base
                gate[0, head] = 1.0
    return rises


def least_missed(model: Transformer, batches: Sequence[Batch], count: int) -> list[tuple[str, int]]:
    """This many heads, by their attention's path and number, chosen one after the other: each time the one without
    which, and without those chosen before, the loss (as in `rise_without`) is lowest.

    Heads stand in for each other, so one that isn't missed alone may be after others are gone. As that makes a head's
    worth grow, what was measured before is taken for its least, and only heads that are lowest by that are measured
    again (lazy greedy search: Minoux 1978): a few forward passes a choice. An attention's last head goes only when no
    attention has two: one without heads can't learn to look anywhere again, which the loss at once doesn't show.
    """
    alone = rise_without(model, batches)
    # Each with its rise, and how many were gone when that was measured.
    waiting = [(rise, 0, name, head) for name, rises in alone.items() for head, rise in enumerate(rises.tolist())]
    if not 0 <= count <= len(waiting):
        raise ArgumentError(f"count must be from 0 to the model's {len(waiting)} heads, got {count}")
    device = model.target_embedding.weight.device
    gates = {name: torch.ones(1, len(rises), device=device) for name, rises in alone.items()}
    gone: list[tuple[str, int]] = []
    with _evaluated(model) as objective, torch.no_grad(), gated(model, gates):
        reached = _loss(objective, batches)
        for least in (1, 0):
            candidates, waiting = waiting, []
            heapify(candidates)
            while candidates and len(gone) < count:
                rise, when, name, head = heappop(candidates)
                if gates[name].sum() == least:
                    waiting.append((rise, when, name, head))
                    continue
                gates[name][0, head] = 0.0
                if when == len(gone):
                    gone.append((name, head))
                    reached += rise
                else:
                    heappush(candidates, (_loss(objective, batches) - reached, len(gone), name, head))
                    gates[name][0, head] = 1.0
    return gone


@contextmanager
def _evaluated(model: Transformer) -> Iterator[Objective]:
    """Inside, the model is without dropout; the loss is the plain one."""
    training = model.training
    model.eval()
    try:
        yield Objective(model, torch.float32, label_smoothing=0.0)
    finally:
        model.train(training)


def _loss(objective: Objective, batches: Sequence[Batch]) -> float:
    """Negative log-likelihood, nats a token."""
    return sum(objective(batch)[1].item() for batch in batches) / sum(batch.tokens for batch in batches)
