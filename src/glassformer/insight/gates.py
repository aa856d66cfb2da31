"""Heads of our Transformer turned down and off, and how much the loss minds: their importance."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.attend import attend
from glassformer.attention.functional import Look
from glassformer.attention.multihead import MultiheadAttention
from glassformer.errors import ArgumentError
from glassformer.text.batching import Batch
from glassformer.training.objective import Objective
from glassformer.transformer.model import Transformer

Gates = dict[str, Float[Tensor, "#batch heads"]]
"""What each head's output is multiplied by, of the attentions by their paths."""


@dataclass(frozen=True)
class Importance:
    """What the loss says of the heads of each attention, by its path; one number a head."""

    gradient: dict[str, Float[Tensor, " heads"]]
    """E |d loss / d gate| over sentences, the loss summed over a sentence's tokens (Michel et al. 2019, equation 2)."""
    without: dict[str, Float[Tensor, " heads"]]
    """How much the negative log-likelihood, in nats a token, rises when the head is switched off."""
    loss: float
    """With all heads, nats a token."""


def attentions_of(model: Transformer) -> dict[str, MultiheadAttention]:
    """The attentions of the model by their paths, in the order of the layers."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MultiheadAttention)}


@contextmanager
def gated(model: Transformer, gates: Gates) -> Iterator[None]:
    """Inside, heads' outputs are multiplied by the gates, which may be changed; others are as before."""
    modules = attentions_of(model)
    if unknown := set(gates) - set(modules):
        raise ArgumentError(f"gates must be of the model's attentions, got {', '.join(sorted(unknown))}")

    def gate(name: str) -> Look:
        def look(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            *,
            keep: Tensor | None,
            bias: Tensor | None,
            causal: bool,
            dropout: float,
            want: None,
        ) -> tuple[Tensor, None]:
            heads = attend(q, k, v, keep=keep, bias=bias, causal=causal, dropout=dropout)
            return heads * gates[name][:, :, None, None].to(q.dtype), None

        return look

    try:
        for name in gates:
            modules[name]._look = gate(name)
        yield
    finally:
        for module in modules.values():
            module.__dict__.pop("_look", None)


def measure_importance(model: Transformer, batches: Sequence[Batch]) -> Importance:
    """Of every head of the model on these batches, computed in float32 without dropout."""
    training = model.training
    model.eval()
    objective = Objective(model, torch.float32, label_smoothing=0.0)
    heads = {name: module.num_heads for name, module in attentions_of(model).items()}
    gradient = {name: torch.zeros(count, dtype=torch.float64) for name, count in heads.items()}
    sentences = 0
    for batch in batches:
        count = len(batch.targets.keep)
        gates = {
            name: torch.ones(count, n, device=batch.source.device, requires_grad=True) for name, n in heads.items()
        }
        with torch.enable_grad(), gated(model, gates):
            loss, _ = objective(batch)
            found = torch.autograd.grad(loss, list(gates.values()), allow_unused=True)
        for name, grad in zip(gates, found, strict=True):
            if grad is not None:
                gradient[name] += grad.abs().sum(0).double().cpu()
        sentences += count
    gates = {name: torch.ones(1, n, device=model.target_embedding.weight.device) for name, n in heads.items()}
    without = {name: torch.zeros(n, dtype=torch.float64) for name, n in heads.items()}
    with torch.no_grad(), gated(model, gates):
        base = _loss(objective, batches)
        for name, gate in gates.items():
            for head in range(heads[name]):
                gate[0, head] = 0.0
                without[name][head] = _loss(objective, batches) - base
                gate[0, head] = 1.0
    model.train(training)
    return Importance({name: total / sentences for name, total in gradient.items()}, without, base)


def _loss(objective: Objective, batches: Sequence[Batch]) -> float:
    """Negative log-likelihood, nats a token."""
    return sum(objective(batch)[1].item() for batch in batches) / sum(batch.tokens for batch in batches)
