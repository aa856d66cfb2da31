"""Gates on the heads of our Transformer, and the importance of a head: how the loss reacts when its gate closes."""

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
"""The factors of the heads' outputs, by the path of their attention; 0 switches a head off."""


@contextmanager
def gated(model: Transformer, gates: Gates) -> Iterator[None]:
    """Multiply the outputs of heads by the gates inside the context.

    The gates may be changed meanwhile. Attentions without gates compute as before. Raises ArgumentError for a path that
    is no attention of the model.
    """
    modules = model.attentions
    if unknown := set(gates) - set(modules):
        raise ArgumentError(
            f"gates must name the model's attentions, such as {next(iter(modules))}, got {', '.join(sorted(unknown))}"
        )

    def gated_by(gate: Tensor) -> AttentionFunction:
        def compute_gated(problem: Problem, dropout: float, want: Want | None) -> tuple[Tensor, Tensor | None]:
            heads, weights = compute_attention(problem, dropout, want)
            return heads * gate[:, :, None, None].to(heads.dtype), weights

        return compute_gated

    with ExitStack() as stack:
        for name, gate in gates.items():
            stack.enter_context(modules[name].computed_by(gated_by(gate)))
        yield


def importance(model: Transformer, batches: Sequence[Batch]) -> dict[str, Float[Tensor, " heads"]]:
    """Return the importance of each attention's heads, by its path: E |d loss / d gate| over sentences.

    The loss is summed over a sentence's tokens, and the result is divided by its norm over the attention's heads
    (Michel et al. 2019, equation 2 and section 4). It takes one backward pass, in float32 without dropout.
    """
    sums = {name: torch.zeros(attention.num_heads, dtype=torch.float64) for name, attention in model.attentions.items()}
    with in_evaluation(model) as objective, torch.enable_grad():
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


def loss_rise_without(model: Transformer, batches: Sequence[Batch]) -> dict[str, Float[Tensor, " heads"]]:
    """Return how much the loss rises when a head alone is switched off, for each attention's heads by its path.

    The loss is the negative log-likelihood in nats per token. It takes one forward pass for each head, in float32
    without dropout.
    """
    device = model.target_embedding.weight.device
    gates = {name: torch.ones(1, attention.num_heads, device=device) for name, attention in model.attentions.items()}
    rises = {name: torch.zeros(gate.shape[1], dtype=torch.float64) for name, gate in gates.items()}
    with in_evaluation(model) as objective, torch.no_grad(), gated(model, gates):
        base = _loss(objective, batches)
        for name, gate in gates.items():
            for head in range(gate.shape[1]):
                gate[0, head] = 0.0
                rises[name][head] = _loss(objective, batches) - base
                gate[0, head] = 1.0
    return rises


def least_missed(model: Transformer, batches: Sequence[Batch], count: int) -> list[tuple[str, int]]:
    """Choose this many heads to remove, one after the other, each as (path of the attention, number of the head).

    The next head is always the one without which, and without those chosen before, the loss of `loss_rise_without` is
    lowest. An attention's last head is chosen only when no attention has two left: an attention without heads can never
    learn again, which the loss right after the removal doesn't show.

    Heads can replace each other: one that isn't missed alone may be missed after others are gone. So a head's worth
    grows as others go, and its last measurement is a lower bound; only the head with the lowest bound is measured again
    (lazy greedy search, Minoux 1978). That takes a few forward passes for each choice. Raises ArgumentError if the
    model has fewer heads.
    """
    alone = loss_rise_without(model, batches)
    # Each entry is a head's rise, and how many heads were gone when it was measured.
    waiting = [(rise, 0, name, head) for name, rises in alone.items() for head, rise in enumerate(rises.tolist())]
    if not 0 <= count <= len(waiting):
        raise ArgumentError(f"count must be from 0 to the model's {len(waiting)} heads, got {count}")
    device = model.target_embedding.weight.device
    gates = {name: torch.ones(1, len(rises), device=device) for name, rises in alone.items()}
    gone: list[tuple[str, int]] = []
    with in_evaluation(model) as objective, torch.no_grad(), gated(model, gates):
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
def in_evaluation(model: Transformer) -> Iterator[Objective]:
    """Switch dropout off inside the context, and give the plain loss, without label smoothing.

    Afterwards each module is in the mode in which it was.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield Objective(model, torch.float32, label_smoothing=0.0)
    finally:
        for module, training in modes.items():
            module.training = training


def _loss(objective: Objective, batches: Sequence[Batch]) -> float:
    """Return the negative log-likelihood in nats per token."""
    return sum(objective(batch)[1].item() for batch in batches) / sum(batch.tokens for batch in batches)
