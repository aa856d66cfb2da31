"""Models that are copied inside a capture, and calls of other threads."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from glassformer import MultiheadAttention, capture
from glassformer.errors import ArgumentError
from glassformer.reference import multi_head, self_attention, transformer

B, L, D, H = 2, 5, 12, 3


def torch_model() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, 17, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    )


class Ours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Steps(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many = not isinstance(self.attention, self_attention.SelfAttention)
        found = self.attention(query=x, key=x, value=x) if many else self.attention(x)
        return found[0] if isinstance(found, tuple) else found


class Calls(nn.Module):
    """Calls torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.linear(x), x, x)


MODELS = {
    "calls": lambda: nn.Sequential(Calls(), Calls()),
    "torch": torch_model,
    "ours": Ours,
    "labml's": lambda: Steps(multi_head.MultiHeadAttention(H, D, 0.0)),
    "one head": lambda: Steps(self_attention.SelfAttention(D, D, D)),
    "many heads": lambda: transformer.TransformerEncoderLayer(D, 17, H, 0.0, 1e-5),
}


@pytest.mark.parametrize("copied", [deepcopy, saved])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_copy_made_inside_is_a_plain_model(make: Callable[[], nn.Module], copied: Callable[[nn.Module], nn.Module]):
    model, x = make().eval(), torch.randn(B, L, D)
    expected = model(x)
    with capture(model) as captured:
        model(x)
        copy, fresh = copied(model), copied(model)
        assert_close(copy(x), expected)
    assert {name: len(captured.calls(name)) for name in captured} == dict.fromkeys(captured, 1), "not those of the copy"
    assert_close(copy(x), expected)
    for again in (copy, fresh):
        with capture(again) as recaptured:
            assert_close(again(x), expected)
        assert list(recaptured) == list(captured)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_calls_of_other_threads_are_computed_and_not_recorded(make: Callable[[], nn.Module]):
    model, x = make().eval(), torch.randn(B, L, D)
    expected = model(x)
    with capture(model) as captured, ThreadPoolExecutor(1) as pool:
        model(x)
        assert_close(pool.submit(model, x).result(), expected)
    assert {len(captured.calls(name)) for name in captured} == {1}


def test_two_threads_capture_a_model_each():
    models, x = [torch_model().eval(), torch_model().eval()], torch.randn(B, L, D)

    def record(model: nn.Module) -> list[torch.Tensor]:
        with torch.no_grad(), capture(model) as captured:
            for _ in range(9):
                model(x)
        return [call.entropy for name in captured for call in captured.calls(name)]

    alone = [record(model) for model in models]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(record, models))
    assert_close(together, alone)


def test_an_inner_capture_is_told():
    model = torch_model().eval()
    with capture(model), pytest.raises(ArgumentError, match="is being captured already"), capture(model):
        pass
