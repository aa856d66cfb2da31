"""Training: checkpoints of functions that are no modules, whose pass is computed again, and replicas."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from glassformer import Want, capture

B, H, L, D = 2, 3, 5, 11
E = H * D


class Heads(nn.Module):
    """Attention of which a checkpoint gets a function of its own."""

    def __init__(self, again: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.again, self.dropout, self.qkv, self.out = again, dropout, nn.Linear(E, 3 * E), nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.attend, x, use_reentrant=False) if self.again else self.attend(x)
        return x + self.out(y)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout).transpose(1, 2).flatten(2)
        return F.dropout(y, self.dropout)


class Flash(Heads):
    """The same through multi_head_attention_forward."""

    def attend(self, x: Tensor) -> Tensor:
        settings = (E, H, self.qkv.weight, self.qkv.bias, None, None, False, self.dropout)
        return F.multi_head_attention_forward(x, x, x, *settings, self.out.weight, self.out.bias)[0]


class Nested(nn.Module):
    """A checkpoint of modules that have checkpoints of functions themselves."""

    def __init__(self, again: bool, kind: Callable[..., nn.Module] = Heads, **settings: Any) -> None:
        super().__init__()
        self.again, self.layers = again, nn.Sequential(*(kind(again, **settings) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers, x, use_reentrant=False) if self.again else self.layers(x)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """The gradients of the parameters, which are set to None again."""
    loss.backward()
    found = [x.grad for x in model.parameters() if x.grad is not None]
    model.zero_grad()
    return found


@pytest.mark.parametrize("make", [lambda again: nn.Sequential(Heads(again), Flash(again)), Nested])
def test_a_checkpointed_function_has_facts_and_gradients(make):
    model, x = make(True), torch.randn(B, L, E)
    expected = gradients(model, model(x).square().sum())
    plain = make(False)
    plain.load_state_dict(model.state_dict())
    of_both = []
    for one in (model, plain):
        with capture(one, Want(entropy=True)) as captured:
            output = one(x)
            found = gradients(one, output.square().sum())
        assert_close(found, expected)
        assert [len(captured.calls(name)) for name in captured] == [1, 1]
        of_both.append([seen.entropy for seen in captured.values()])
        with capture(one, Want(entropy=True)) as captured:
            one(x)
            facts = gradients(one, sum((seen.entropy.sum() for seen in captured.values()), torch.zeros(())))
        of_both.append(facts)
    assert_close(of_both[0], of_both[2])
    assert_close(of_both[1], of_both[3])
    assert any(x.abs().sum() > 0 for x in of_both[1])


def test_a_checkpoints_random_numbers_are_as_without_a_capture():
    model, x = Nested(True, dropout=0.3), torch.randn(B, L, E)
    results = []
    for again in (False, True):
        torch.manual_seed(3)
        if again:
            with capture(model) as captured:
                output = model(x)
                results.append([output, *gradients(model, output.square().sum())])
            assert len(captured) == 2
        else:
            output = model(x)
            results.append([output, *gradients(model, output.square().sum())])
    assert_close(*results)


def test_a_reentrant_checkpoint():
    class Reentrant(Heads):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.out(checkpoint(self.attend, x, use_reentrant=True))

    model, x = Reentrant(False), torch.randn(B, L, E, requires_grad=True)
    expected = gradients(model, model(x).square().sum())
    with capture(model) as captured:
        assert_close(gradients(model, model(x).square().sum()), expected)
    assert [len(captured.calls(name)) for name in captured] == [1]


def test_tensors_saved_elsewhere():
    class Moved(Heads):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autograd.graph.save_on_cpu():
                return x + self.out(self.attend(x))

    model, x = Moved(False), torch.randn(B, L, E)
    expected = gradients(model, model(x).square().sum())
    with capture(model) as captured:
        assert_close(gradients(model, model(x).square().sum()), expected)
    assert [len(captured.calls(name)) for name in captured] == [1]


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_data_parallel_replicas_of_processes(alone):
    layers: list[nn.Module] = [Heads(True), nn.TransformerEncoderLayer(E, H, 17, batch_first=True, dropout=0.0)]
    inner, x = nn.Sequential(*layers, Heads(False)), torch.randn(B, L, E)
    model = DistributedDataParallel(inner)
    plain = model(x)
    expected = gradients(model, plain.square().sum())
    with capture(model, Want(weights=True)) as captured:
        output = model(x)
        assert_close(gradients(model, output.square().sum()), expected)
    assert_close(output, plain)
    names = ["module.1.self_attn", "module.0", "module.2"]
    assert sorted(captured) == sorted(names)
    with torch.no_grad(), capture(inner, Want(weights=True)) as alone_captured:
        inner(x)
    for name in names:
        assert_close(captured[name].weights, alone_captured[name.removeprefix("module.")].weights)
        assert len(captured.calls(name)) == 1
