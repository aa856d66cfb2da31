"""Capture the step-by-step forms of `glassformer.reference`, whose weights are there to be read."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from glassformer.capture.record import Captured
from glassformer.capture.running import attributes_set
from glassformer.errors import ArgumentError
from glassformer.reference import multi_head, self_attention, transformer

Record = Callable[[Tensor], None]
"""Takes the weights (batch, heads, queries, keys) of a call."""


def reference_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the step-by-step attentions by their paths."""
    kinds = (multi_head.MultiHeadAttention, self_attention.SelfAttention, transformer.MultiHeadAttention)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


@contextmanager
def capturing_reference(modules: Mapping[str, nn.Module], captured: Captured) -> Iterator[None]:
    """Record the attention of these modules inside the context."""
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.enter_context(_reading_weights(name, module, partial(captured.add_weights, name)))
        yield


@contextmanager
def _reading_weights(name: str, module: Any, record: Record) -> Iterator[None]:
    """Call `record` with the weights of each call, after dropout and with their graph."""
    if isinstance(module, transformer.MultiHeadAttention):
        attention, heads = module.scaled_dot_product_attention, module.h
        if isinstance(attention.__dict__.get("get_weights"), _GetAndRecord):
            raise ArgumentError(f"{name or 'model'} is being captured already: leave that context first")
        with attributes_set(attention, get_weights=_GetAndRecord(attention, heads, record)):
            yield
    elif isinstance(module, multi_head.MultiHeadAttention):
        with module.dropout.register_forward_hook(_Hook(lambda weights: record(weights.permute(2, 3, 0, 1)))):
            yield
    else:
        with module.register_forward_hook(_Hook(lambda output: record(output[1][:, None]))):
            yield


class _GetAndRecord:
    """The method `get_weights` of an attention, recorded; a copy of the attention has its own method again."""

    def __init__(self, attention: Any, heads: int, record: Record) -> None:
        self._attention, self._heads, self._record = attention, heads, record
        self._get_weights = attention.get_weights

    def __call__(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights = self._get_weights(scores, mask)
        self._record(weights.unflatten(0, (self._heads, -1)).transpose(0, 1))
        return weights

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (type(self._attention).get_weights, self._attention)


class _Hook:
    """A forward hook that reads what a module returns; a copy of the module has one that does nothing."""

    def __init__(self, read: Callable[[Any], None] | None = None) -> None:
        self._read = read

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._read is not None:
            self._read(output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, ()
