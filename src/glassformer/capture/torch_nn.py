"""Capture of torch.nn.MultiheadAttention and of ours."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from glassformer.attention.functional import Look
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe
from glassformer.attention.replace import as_ours
from glassformer.attention.want import Want
from glassformer.capture.record import Captured
from glassformer.errors import ArgumentError

Attention = nn.MultiheadAttention | MultiheadAttention


def torch_attentions(model: nn.Module) -> dict[str, Attention]:
    """The attentions by their paths. Subclasses that compute something of their own aren't among them."""
    forwards = (nn.MultiheadAttention.forward, MultiheadAttention.forward)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Attention) and type(module).forward in forwards
    }


@contextmanager
def capturing_torch(modules: Mapping[str, Attention], captured: Captured) -> Iterator[None]:
    """Inside, what these modules look at is added to the record."""
    with ExitStack() as stack:
        for name, module in modules.items():
            if "forward" in module.__dict__:
                raise ArgumentError(
                    f"{name or 'model'} is being captured already, or its forward was replaced: one capture at a time"
                )
            ours = module if isinstance(module, MultiheadAttention) else as_ours(module)
            stack.enter_context(ours.looked_at_by(_looking(name, captured)))
            if ours is not module:
                # Layers of torch.nn that find False here call the attention, and don't compute it themselves.
                stack.enter_context(_set(module, forward=_Forward(module, ours), _qkv_same_embed_dim=False))
        yield


class _Forward:
    """The forward pass of torch's module by ours."""

    def __init__(self, theirs: nn.Module, ours: MultiheadAttention) -> None:
        self._theirs, self._ours = theirs, ours

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self._ours.training = self._theirs.training
        return self._ours.forward(*arguments, **settings)


@contextmanager
def _set(module: nn.Module, **values: Any) -> Iterator[None]:
    """Inside, the module has these attributes of its own."""
    before = {name: module.__dict__[name] for name in values if name in module.__dict__}
    module.__dict__.update(values)
    try:
        yield
    finally:
        for name in values:
            del module.__dict__[name]
        module.__dict__.update(before)


def _looking(name: str, captured: Captured) -> Look:
    """A `Look` that adds what it sees to the record."""

    def look(of: Problem, dropout: float, want: Want | None) -> tuple[Tensor, Tensor | None]:
        asked = captured.want(name, of.q.shape[0], of.q.shape[1], of.q.shape[2], of.k.shape[2])
        both = asked
        if want is not None:
            both = replace(asked, head_mean=asked.head_mean or want.head_mean, weights=asked.weights or want.weights)
        output, seen = observe(
            of.q, of.k, of.v, keep=of.keep, bias=of.bias, causal=of.causal, scale=of.scale, dropout=dropout, want=both
        )
        tensors = seen.tensors()
        weights = None if want is None else tensors["head_mean" if want.head_mean else "weights"]
        for fact in set(both.asked) - set(asked.asked):
            del tensors[fact]
        captured.add(name, Observation(tensors, asked, seen.batch))
        return output, weights

    return look
