"""Capture of Hugging Face models whose own code computes attention, from the weights that their modules return."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from glassformer.capture.huggingface import uses_registry
from glassformer.capture.record import Captured
from glassformer.capture.running import attributes_set
from glassformer.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Tell how to read the weights (batch, heads, queries, keys) of a call from what a module returns."""

    read: Callable[[Sequence[Any]], list[Tensor]]
    restore: Callable[[Sequence[Any]], Sequence[Any]]
    """Leave out of the output what the module returns only if it is asked for the weights."""


def _second(output: Sequence[Any]) -> list[Tensor]:
    return [output[1]]


def _both_streams(output: Sequence[Any]) -> list[Tensor]:
    """Return the weights of XLNet's stream of content, and of its stream of queries where that runs."""
    weights = output[2] if isinstance(output[2], tuple) else (output[2],)
    return [one.permute(2, 3, 0, 1) for one in weights]


def _as_it_is(output: Sequence[Any]) -> Sequence[Any]:
    return output


def _without_last(output: Sequence[Any]) -> Sequence[Any]:
    return output[:-1]


def _with_none(output: Sequence[Any]) -> Sequence[Any]:
    return output[0], None


ADAPTERS = {
    ("gptj", "GPTJAttention"): Adapter(read=_second, restore=_as_it_is),
    ("codegen", "CodeGenAttention"): Adapter(read=_second, restore=_as_it_is),
    ("openai", "Attention"): Adapter(read=_second, restore=_without_last),
    ("gpt_neo", "GPTNeoSelfAttention"): Adapter(read=_second, restore=_as_it_is),
    ("bloom", "BloomAttention"): Adapter(read=_second, restore=_as_it_is),
    ("mpt", "MptAttention"): Adapter(read=_second, restore=_as_it_is),
    ("mpnet", "MPNetSelfAttention"): Adapter(read=_second, restore=_without_last),
    ("roformer", "RoFormerSelfAttention"): Adapter(read=_second, restore=_as_it_is),
    ("megatron_bert", "MegatronBertSelfAttention"): Adapter(read=_second, restore=_as_it_is),
    ("rembert", "RemBertSelfAttention"): Adapter(read=_second, restore=_as_it_is),
    ("big_bird", "BigBirdSelfAttention"): Adapter(read=_second, restore=_as_it_is),
    ("convbert", "ConvBertSelfAttention"): Adapter(read=_second, restore=_as_it_is),
    ("xlm", "MultiHeadAttention"): Adapter(read=_second, restore=_without_last),
    ("swinv2", "Swinv2SelfAttention"): Adapter(read=_second, restore=_without_last),
    ("deberta", "DisentangledSelfAttention"): Adapter(read=_second, restore=_with_none),
    ("deberta_v2", "DisentangledSelfAttention"): Adapter(read=_second, restore=_with_none),
    ("xlnet", "XLNetRelativeAttention"): Adapter(read=_both_streams, restore=_without_last),
}
"""Adapters by the module of transformers.models and the class."""


def adapted_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of these classes by their paths."""
    return {name: module for name, module in model.named_modules() if _adapter(module) is not None}


def _adapter(module: nn.Module) -> Adapter | None:
    """Return the adapter of a module; none where a later release of transformers has moved it to the registry."""
    package, _, family = type(module).__module__.partition("transformers.models.")
    adapter = None if package else ADAPTERS.get((family.partition(".")[0], type(module).__name__))
    return None if adapter is None or uses_registry(module) else adapter


@contextmanager
def capturing_adapted(modules: Mapping[str, nn.Module], captured: Captured) -> Iterator[None]:
    """Record the attention of these modules inside the context."""
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.enter_context(_reading_weights(name, module, captured))
        yield


@contextmanager
def _reading_weights(name: str, module: nn.Module, captured: Captured) -> Iterator[None]:
    if isinstance(module.__dict__.get("forward"), _ForwardAndRead):
        raise ArgumentError(f"{name or 'model'} is being captured already: leave that context first")
    adapter = _adapter(module)
    assert adapter is not None
    with attributes_set(module, forward=_ForwardAndRead(module, adapter, partial(captured.add_weights, name))):
        yield


class _ForwardAndRead:
    """The forward pass of an attention, whose weights are read; a copy of the attention has its own pass again."""

    def __init__(self, module: nn.Module, adapter: Adapter, record: Callable[[Tensor], None]) -> None:
        self._module, self._adapter, self._record = module, adapter, record
        self._forward = module.forward
        self._signature = inspect.signature(module.forward)

    def __call__(self, *arguments: Any, **settings: Any) -> Sequence[Any]:
        given = self._signature.bind(*arguments, **settings)
        asked = bool(given.arguments.get("output_attentions", False))
        if "output_attentions" in self._signature.parameters:
            given.arguments["output_attentions"] = True
        output = self._forward(*given.args, **given.kwargs)
        for weights in self._adapter.read(output):
            self._record(weights)
        return output if asked else self._adapter.restore(output)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (type(self._module).forward, self._module)
