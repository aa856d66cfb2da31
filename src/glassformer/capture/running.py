"""The modules of a model while they run: which is at work, and attributes that they have meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch._C import _autograd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.module_tracker import ModuleTracker

_TRACKER = ModuleTracker()


def hooks_of_saved_tensors() -> object:
    """Return the functions that tensors are given to which autograd saves now, those of the innermost checkpoint.

    Torch tells only by a private name. Where it has it no longer, checkpoints can't be told.
    """
    top = getattr(_autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(False)


def in_backward() -> bool:
    """Return whether autograd is at work in this thread, so that a forward pass is one computed again."""
    return _TRACKER.is_bw


@contextmanager
def attributes_set(module: nn.Module, **values: Any) -> Iterator[None]:
    """Give the module these attributes inside the context."""
    before = {name: module.__dict__[name] for name in values if name in module.__dict__}
    module.__dict__.update(values)
    try:
        yield
    finally:
        for name in values:
            del module.__dict__[name]
        module.__dict__.update(before)


class Running:
    """The modules of a model that are running in the thread that made this, outermost first.

    Two hooks of torch.nn that are called for every module keep it. The model itself gets none, so that a copy of it is
    as it would be elsewhere.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.modules: list[nn.Module] = []
        self._hooks: list[object] = []
        """The hooks of saved tensors that each of the modules found."""
        self.passes = 0
        """Number of forward passes that have begun: calls of a module while no other was running."""
        self.suspended: TorchFunctionMode | None = None
        """A mode that torch switched off for a backward pass: it is on while a checkpoint computes a forward pass."""
        self._resumed: TorchFunctionMode | None = None
        self._thread = threading.get_ident()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Keep the list inside the context."""
        with register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave, always_call=True):
            try:
                yield
            finally:
                self.modules.clear()
                self._hooks.clear()
                self.names = {}  # the record that outlives the context must not keep the model alive

    @contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        """Let the module of a path be the innermost one inside the context, where its parts are called, and not it."""
        self.modules.append(next(module for module, path in self.names.items() if path == name))
        self._hooks.append(hooks_of_saved_tensors())
        try:
            yield
        finally:
            self.modules.pop()
            self._hooks.pop()

    def is_elsewhere(self) -> bool:
        """Return whether another thread is at work, and not for this one, as autograd's threads are."""
        return threading.get_ident() != self._thread and not in_backward()

    def is_in_function_to_repeat(self) -> bool:
        """Return whether the innermost module gave a function to a checkpoint, which will call it again without it."""
        return bool(self.modules) and hooks_of_saved_tensors() != self._hooks[-1]

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if module in self.names and not self.is_elsewhere():
            if not self.modules:
                self.passes += 1
                if self.suspended is not None:
                    self._resumed = self.suspended
                    self._resumed.__enter__()
            self.modules.append(module)
            self._hooks.append(hooks_of_saved_tensors())

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module in self.modules and not self.is_elsewhere():
            last = len(self.modules) - 1 - self.modules[::-1].index(module)
            del self.modules[last:], self._hooks[last:]
            if not self.modules and self._resumed is not None:
                self._resumed.__exit__(None, None, None)
                self._resumed = None
