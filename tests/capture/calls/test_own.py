"""Attention that is computed without torch's functions: never left out without a word."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture, observe
from glassformer.attention.observe import observe_weights

B, H, L, D = 2, 3, 5, 11
E = H * D


class Own(nn.Module):
    """Attention of a softmax and a product; `form` are the weights times the values."""

    def __init__(self, form: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.form, self.qkv, self.dropout = form, nn.Linear(E, 3 * E), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return self.form(self.dropout((q @ k.mT).softmax(-1)), v).transpose(1, 2).flatten(2)


class Mixed(nn.Module):
    def __init__(self, form: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.known, self.own = nn.MultiheadAttention(E, H, batch_first=True), Own(form)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.known(x, x, x, need_weights=False)[0])


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda weights, v: weights @ v,
    "matmul": torch.matmul,
    "method": lambda weights, v: weights.matmul(v),
    "einsum": lambda weights, v: torch.einsum("bhij,bhjd->bhid", weights, v),
    "bmm": lambda weights, v: torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).unflatten(0, (-1, H)),
    "values first": lambda weights, v: (v.mT @ weights.mT).mT,
}


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.softmax(x, -1)


class Below(Own):
    """Has its softmax in a module of its own, by the newer name."""

    def __init__(self) -> None:
        super().__init__(torch.matmul)
        self.attend = Softmax()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return (self.attend(q @ k.mT) @ v).transpose(1, 2).flatten(2)


def test_a_softmax_may_have_its_other_name():
    model = Mixed(torch.matmul)
    model.own = Below()
    with pytest.warns(UserWarning, match=r"not record the attention of own"), capture(model) as captured:
        model(torch.randn(B, L, E))
    assert list(captured.unseen) == ["own"]


@pytest.mark.parametrize("name", FORMS)
def test_a_warning_names_the_module(name):
    model, x = Mixed(FORMS[name]), torch.randn(B, L, E)
    message = r"not record the attention of own \(a softmax and a product of its own\): call observe\(q, k, v\) there"
    with pytest.warns(UserWarning, match=message) as warned, capture(model) as captured:
        model(torch.cat([x, x]))
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert list(captured) == ["known"]
    assert captured.unseen == {"own": "a softmax and a product of its own"}
    assert "could not record the attention of own" in repr(captured)
    with pytest.raises(KeyError, match=r"nothing was captured of 'own': capture could not record the attention of own"):
        _ = captured["own"]


@pytest.mark.parametrize("after", [False, True])
def test_a_module_that_observes_its_weights_is_recorded(after):
    class Telling(Own):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
            weights = (q @ k.mT).softmax(-1)
            y = weights @ v if after else None
            self.seen = observe_weights(weights, Want(entropy=True))
            return (weights @ v if y is None else y).transpose(1, 2).flatten(2)

    model, x = nn.Sequential(Telling(torch.matmul)), torch.randn(B, L, E)
    with capture(model, Want(weights=True, lse=True)) as captured:
        model(x)
    q, k, _ = model[0].qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
    assert_close(captured["0"].weights, (q @ k.mT).softmax(-1))
    assert captured.dropped == {"0": "lse is not known from weights alone"}
    assert set(model[0].seen.tensors()) == {"entropy"}
    assert not captured.unseen


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_module_that_calls_observe_is_recorded(dropout):
    class Observing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            output, self.seen = observe(x, x, x, causal=True, dropout=dropout, want=Want(weights=True))
            return output

    model, x = nn.Sequential(Observing()), torch.randn(B, H, L, D)
    torch.manual_seed(3)
    plain, number = model(x), torch.rand(1)
    torch.manual_seed(3)
    with capture(model, Want(weights=True, entropy=True)) as captured:
        assert_close(model(x), plain)
    assert torch.equal(torch.rand(1), number), "no more random numbers were taken"
    assert_close(captured["0"].weights, model[0].seen.weights)
    assert set(captured["0"].tensors()) == {"weights", "entropy"}


def test_layers_that_were_not_asked_for_are_not_warned_of():
    model, x = Mixed(torch.matmul), torch.randn(B, L, E)
    with capture(model, layers="known") as captured:
        model(x)
    assert not captured.unseen


def test_many_modules_are_counted():
    model, x = nn.Sequential(*(Own(torch.matmul) for _ in range(7))), torch.randn(B, L, E)
    with pytest.warns(UserWarning, match=r"of 0 \(.*\), 1 .*, 4 \(a softmax .*\) and 2 more: call"), capture(model):
        model(x)


def test_classes_experts_and_other_products_are_no_attention():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.expert, self.out = nn.Linear(E, 4), nn.Linear(E, E), nn.Linear(E, 7)

        def forward(self, x: Tensor) -> Tensor:
            shares = F.softmax(self.router(x.flatten(0, 1)), dim=-1)
            x = (self.expert(x.flatten(0, 1)) * shares[:, :1]) @ torch.eye(E)
            return self.out(x).softmax(-1)

    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    class Far(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Sequential(nn.Sequential(Gate()))

        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x) @ torch.eye(E)

    model = nn.ModuleList([Experts(), Far(), nn.MultiheadAttention(E, H)])
    with capture(model) as captured:
        for one in model[:2]:
            one(torch.randn(B, L, E))
    assert not captured.unseen


def test_operators_that_are_not_recorded_are_named():
    class Own(nn.Module):
        def __init__(self, operator: Callable[..., tuple[Tensor, ...]]) -> None:
            super().__init__()
            self.operator = operator

        def forward(self, x: Tensor) -> Tensor:
            return self.operator(x, x, x)[0]

    packet = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for operator in (packet, packet.default):
        model = nn.Sequential(Own(operator))
        with (
            pytest.warns(UserWarning, match=r"attention of 0 \(aten::_scaled_dot_product_flash_attention_for_cpu\)"),
            capture(model),
        ):
            model(torch.randn(B, H, L, D))
