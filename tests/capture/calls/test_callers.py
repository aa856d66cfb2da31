"""The modules that may call attention, told by their classes and code."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from glassformer.capture.calls.callers import matches, names_a_call, possible_callers
from glassformer.capture.capture import capture


class Calling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.known, self.calling, self.linear = nn.MultiheadAttention(4, 2), Calling(), nn.Linear(4, 4)


class Both(Holding):
    """Holds known attention and calls it itself."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Inheriting(Calling):
    """Has the code of its class's base."""


def test_callers_are_modules_of_other_peoples_code():
    assert list(possible_callers(Holding(), ["known"])) == ["", "calling"]  # its code may call what calls attention
    assert list(possible_callers(nn.Sequential(nn.MultiheadAttention(4, 2)), ["0"])) == []
    assert list(possible_callers(nn.Sequential(Holding(), Calling()), [])) == ["0", "0.calling", "1"]
    assert list(possible_callers(nn.Linear(2, 2), [])) == []


def pool(query: Tensor, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, x, x)


class Pooling(nn.Module):
    """Holds known attention, and calls attention in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.query, self.way = nn.Parameter(torch.randn(1, 1, 1, 16)), way

    @staticmethod
    def pooled(query: Tensor, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, x, x)

    def forward(self, x: Tensor) -> Tensor:
        def nested(query: Tensor, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, x, x)

        x = self.encoder(x)[:, None]
        query = self.query.expand(len(x), 1, 1, 16)
        if self.way == "its own softmax":
            return (query @ x.mT).softmax(-1) @ x
        if self.way == "other name":
            return sdpa(query, x, x)
        return {"helper": pool, "nested": nested, "static": self.pooled}[self.way](query, x)


@pytest.mark.parametrize("way", ["helper", "nested", "static", "other name"])
def test_a_module_that_holds_attention_may_call_it_in_any_way(way):
    model = Pooling(way).eval()
    with torch.no_grad(), capture(model) as captured:
        model(torch.randn(2, 5, 16))
    assert list(captured) == ["encoder.self_attn", ""]
    assert captured[""].entropy.shape == (2, 1, 1)


def test_a_module_that_holds_attention_is_named_if_it_computes_its_own():
    model = Pooling("its own softmax").eval()
    said = r"could not record the attention of model \(a softmax and a product of its own\)"
    with pytest.warns(UserWarning, match=said), torch.no_grad(), capture(model) as captured:
        model(torch.randn(2, 5, 16))
    assert captured.unseen == {"": "a softmax and a product of its own"}


def test_the_name_of_a_call_is_in_the_code():
    assert all(map(names_a_call, (Calling(), Inheriting(), Both())))
    assert not any(map(names_a_call, (Holding(), nn.MultiheadAttention(4, 2))))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [(None, True), (["h.1.attn"], True), (["h.*.attn"], True), (["h.1"], False), (["mlp", "h.*"], True), ([], False)],
)
def test_paths_match_patterns(patterns, expected):
    assert matches("h.1.attn", patterns) is expected
