"""See every call of torch's attention functions in a thread, and record those of chosen modules under their paths."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from glassformer.attention.attend import attend
from glassformer.attention.functional import multi_head_attention_forward
from glassformer.attention.observe import observe, observe_weights
from glassformer.attention.want import Want
from glassformer.capture.calls.callers import matches, may_call_flex
from glassformer.capture.calls.flex import compute_flex, record_flex
from glassformer.capture.calls.multihead import record_multi_head
from glassformer.capture.calls.own import PRODUCTS, SOFTMAX, OwnAttention
from glassformer.capture.calls.sdpa import (
    random_numbers_apart,
    record_attend,
    record_observe,
    record_scaled_dot_product,
)
from glassformer.capture.calls.varlen import record_varlen, record_varlen_out
from glassformer.capture.record import Captured, Place
from glassformer.capture.running import Running, in_backward
from glassformer.errors import ArgumentError

FLEX = torch.ops.higher_order.flex_attention
"""The operator that `flex_attention` calls."""

RECORDED: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: record_scaled_dot_product,
    F.multi_head_attention_forward: record_multi_head,
    multi_head_attention_forward: record_multi_head,
    attend: record_attend,
    observe: record_observe,
    FLEX: record_flex,
}
"""Functions whose calls are recorded, and what does it."""

RECORDED_OPERATORS = {"torch_attn::_varlen_attn": record_varlen, "torch_attn::_varlen_attn_out": record_varlen_out}
"""Operators whose calls are recorded, by their names: torch makes them in a module that is slow to import."""

BACKWARD = (Tensor.backward, torch.autograd.grad)
"""Functions inside which a checkpoint computes a forward pass again."""


@contextmanager
def capturing_calls(
    callers: Mapping[str, nn.Module],
    known: Collection[nn.Module],
    patterns: Collection[str] | None,
    running: Running,
    captured: Captured,
    want: Want,
) -> Iterator[None]:
    """Record calls of torch's attention functions by these modules, but not inside those whose attention is `known`.

    `patterns` are of the paths of modules whose calls are recorded; None is all.
    """
    chosen = {name: module for name, module in callers.items() if matches(name, patterns)}
    if not _CALLERS.isdisjoint(chosen.values()):
        raise ArgumentError("model is being captured already: leave that context first")
    if not chosen and not any(map(may_call_flex, callers.values())):
        yield
        return
    outer = _THREAD.modes
    mode = _Calls(set(known), patterns, running, captured, want, is_inside_another=outer > 0)
    _CALLERS.update(chosen.values())
    _THREAD.modes = outer + 1
    try:
        with mode:
            yield
    finally:
        _THREAD.modes = outer
        _CALLERS.difference_update(chosen.values())


_CALLERS: set[nn.Module] = set()
"""The modules whose calls are being recorded."""


class _Thread(threading.local):
    """Hold what is apart for each thread."""

    modes = 0
    """Number of modes that are on."""


_THREAD = _Thread()


class _Calls(TorchFunctionMode):
    """Records calls of attention functions under the path of the module that is running."""

    def __init__(
        self,
        known: set[nn.Module],
        patterns: Collection[str] | None,
        running: Running,
        captured: Captured,
        want: Want,
        *,
        is_inside_another: bool,
    ) -> None:
        super().__init__()
        self._known, self._patterns, self._want = known, patterns, want
        self._running, self._captured = running, captured
        self._own = OwnAttention()
        self._told: set[str] = set()
        """Paths of modules that tell their weights themselves."""
        self._is_inside_another = is_inside_another
        self._special: dict[Any, Callable[..., Any]] = {
            **dict.fromkeys(RECORDED, self._call_recorded),
            **dict.fromkeys(SOFTMAX, self._call_softmax),
            **dict.fromkeys(PRODUCTS, self._call_product),
            **dict.fromkeys(BACKWARD, self._call_backward),
            observe_weights: self._call_observe_weights,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        special = self._special.get(func)
        if special is None:
            if type(func) is OpOverloadPacket or type(func) is OpOverload:
                return self._call_operator(func, args, kwargs or {})
            return func(*args, **kwargs) if kwargs else func(*args)
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        return special(func, args, kwargs or {})

    def _caller(self) -> str | None:
        """Return the path of the innermost module if its calls are recorded."""
        running = self._running
        if not running.modules or running.is_elsewhere() or not self._known.isdisjoint(running.modules):
            return None
        name = running.names[running.modules[-1]]
        return name if matches(name, self._patterns) else None

    def _call_recorded(self, func: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        name = self._caller()
        if name is not None:
            return self._record(RECORDED[func], name, func, args, settings)
        ends_here = func is FLEX and not self._is_inside_another
        return compute_flex(*args, **settings) if ends_here else func(*args, **settings)

    def _call_operator(self, func: Any, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Call an operator of `torch.ops`, which is recorded if it is known, and noted if its name says attention."""
        full_name = func._qualified_op_name if isinstance(func, OpOverloadPacket) else func.name()
        record = RECORDED_OPERATORS.get(full_name.removesuffix(".default"))
        if record is None and "attn" not in full_name and "attention" not in full_name:
            return func(*args, **settings)
        name = self._caller()
        if name is None:
            return func(*args, **settings)
        if record is not None:
            return self._record(record, name, func, args, settings)
        self._note(name, full_name)
        return func(*args, **settings)

    def _record(
        self,
        record: Callable[..., Any],
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        settings: dict[str, Any],
    ) -> Any:
        """Return what a function does, recorded.

        In the checkpoint of a function that is no module torch's own function makes the output, for its call in the
        backward pass can't be told from others. Facts come from a second call, whose tensors the checkpoint doesn't
        see, and whose dropout takes no random numbers from it. Raises ArgumentError if that is flex_attention, which
        alone and uncompiled loses gradients of what its `score_mod` refers to.
        """
        place = self._place(name)
        if not self._running.is_in_function_to_repeat():
            return record(place, *args, **settings)
        if func is FLEX and torch.is_grad_enabled():
            raise ArgumentError(
                f"{place.name} gives a checkpoint a function that calls flex_attention, which can't be recorded: give "
                "it a module, or choose other layers"
            )
        output = func(*args, **settings)
        if not in_backward():
            with saved_tensors_hooks(_as_it_is, _as_it_is), random_numbers_apart(output):
                record(place, *args, **settings)
        return output

    def _place(self, name: str) -> Place:
        """Return the place of the running module in the record, which is made at its first call."""
        if not self._captured.has(name):
            kind = type(self._running.modules[-1])
            names = self._running.names.items()
            kin = sum(type(module) is kind and matches(path, self._patterns) for module, path in names)
            self._captured.add_name(name, self._want, kin)
        return self._captured.place(name)

    def _call_softmax(self, func: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Tensor:
        output = func(*args, **settings)
        if (name := self._caller()) is not None:
            self._own.remember(output, name)
        return output

    def _call_product(self, func: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Tensor:
        if not in_backward() and (name := self._caller()) is not None and self._own.is_attention(args, name):
            self._note(name, "a softmax and a product of its own")
        return func(*args, **settings)

    def _call_observe_weights(self, func: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Observe the weights that a module has computed itself, and record them."""
        observation = func(*args, **settings)
        if (name := self._caller()) is not None:
            weights: Tensor = args[0]
            self._place(name)
            self._captured.add_weights(name, weights)
            self._told.add(name)
            self._captured.unseen.pop(name, None)
        return observation

    def _note(self, name: str, how: str) -> None:
        if name not in self._told:
            self._captured.unseen.setdefault(name, how)

    def _call_backward(self, func: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        self._running.suspended = self
        try:
            return func(*args, **settings)
        finally:
            self._running.suspended = None


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
