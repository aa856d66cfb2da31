"""Which module is at work: nested, after errors, in other threads, in passes that a checkpoint computes again."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils.checkpoint import checkpoint

from glassformer.capture.running import Running, attributes_set, hooks_of_saved_tensors, in_backward


class Leaf(nn.Module):
    """Tells which modules are running while it is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []
        self.running: list[Running] = []
        self.failing = False

    def forward(self, x: Tensor) -> Tensor:
        (running,) = self.running
        self.seen.append([running.names[module] for module in running.modules])
        if self.failing:
            raise ZeroDivisionError
        return x * 2


class Careless(nn.Module):
    """Goes on after an error of the module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.after = Leaf(), Leaf()

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(ZeroDivisionError):
            self.leaf(x)
        return self.after(x)


def followed(model: nn.Module) -> tuple[Running, Any]:
    running = Running(model)
    for module in model.modules():
        if isinstance(module, Leaf):
            module.running = [running]
    return running, running.followed()


def test_paths_of_the_modules_that_run_outermost_first():
    model = nn.Sequential(nn.Sequential(nn.Identity(), Leaf()), Leaf())
    running, context = followed(model)
    with context:
        model(torch.ones(1))
        model[0](torch.ones(1))
        assert running.modules == []
    assert model[0][1].seen == [["", "0", "0.1"], ["0", "0.1"]]
    assert model[1].seen == [["", "1"]]
    assert running.passes == 2
    assert running.names == {}


def test_a_module_whose_parts_are_called_is_at_work():
    model = nn.Sequential(nn.Sequential(nn.Identity()), Leaf())
    running, context = followed(model)
    with context:
        with running.at_work("0.0"):
            model[1](torch.ones(1))
        assert running.modules == []
    assert model[1].seen == [["0.0", "1"]]


def test_modules_of_other_models_do_not_count():
    model, other = nn.Sequential(Leaf()), nn.Sequential(Leaf())
    running, context = followed(model)
    other[0].running = [running]
    with context:
        other(torch.ones(1))
    assert other[0].seen == [[]]
    assert running.passes == 0


def test_nothing_is_left_after_an_error():
    model = nn.Sequential(Careless(), Leaf())
    running, context = followed(model)
    model[0].leaf.failing = True
    with context:
        model(torch.ones(1))
        assert model[0].after.seen == [["", "0", "0.after"]]
        model[1].failing = True
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(1))
        assert running.modules == []
    with pytest.raises(KeyError), followed(model)[1]:
        raise KeyError
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks


def test_other_threads_do_not_count():
    model = nn.Sequential(Leaf())
    running, context = followed(model)
    with context, ThreadPoolExecutor(1) as pool:
        pool.submit(model, torch.ones(1)).result()
        assert pool.submit(running.is_elsewhere).result()
        assert not running.is_elsewhere()
    assert model[0].seen == [[]]
    assert running.passes == 0


def test_a_pass_that_is_computed_again_is_known():
    found: list[bool] = []

    class Asking(Leaf):
        def forward(self, x: Tensor) -> Tensor:
            found.append(in_backward())
            return super().forward(x).sin()

    model = nn.Sequential(Asking())
    _, context = followed(model)
    with context:
        checkpoint(model, torch.ones(1, requires_grad=True), use_reentrant=False).backward()
        assert not in_backward()
    assert found == [False, True]
    assert model[0].seen == [["", "0"], ["", "0"]]


def test_a_function_that_a_checkpoint_will_call_again_is_known():
    found: list[tuple[bool, bool]] = []

    class Asking(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.again = again

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.ask, x, use_reentrant=False) if self.again else self.ask(x)

        def ask(self, x: Tensor) -> Tensor:
            found.append((self.again, running.is_in_function_to_repeat()))
            return x.sin()

    model = nn.Sequential(Asking(False), Asking(True))
    running, context = followed(model)
    with context:
        checkpoint(model, torch.ones(1, requires_grad=True), use_reentrant=False)
    assert found == [(False, False), (True, True)]
    assert not running.is_in_function_to_repeat()


def test_torch_tells_the_hooks_of_saved_tensors():
    before = hooks_of_saved_tensors()
    with torch.autograd.graph.saved_tensors_hooks(Tensor.sin, Tensor.cos):
        assert hooks_of_saved_tensors() == (Tensor.sin, Tensor.cos)
    assert hooks_of_saved_tensors() == before


def test_attributes_are_as_before():
    module = Leaf()
    before = dict(module.__dict__)
    with attributes_set(module, failing=True, other=3):
        assert module.failing
        assert module.other == 3
    assert module.__dict__ == before
    with pytest.raises(ZeroDivisionError), attributes_set(module, failing=True):
        raise ZeroDivisionError
    assert module.__dict__ == before
