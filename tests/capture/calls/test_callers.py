"""The modules that may call attention, told by their classes and code."""

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.capture.calls.callers import matches, names_a_call, possible_callers


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
    assert list(possible_callers(Holding(), ["known"])) == ["calling"], "what only holds known attention calls none"
    assert list(possible_callers(Both(), ["known"])) == ["", "calling"]
    assert list(possible_callers(nn.Sequential(Holding(), Calling()), [])) == ["0", "0.calling", "1"]
    assert list(possible_callers(nn.Linear(2, 2), [])) == []


def test_the_name_of_a_call_is_in_the_code():
    assert all(map(names_a_call, (Calling(), Inheriting(), Both())))
    assert not any(map(names_a_call, (Holding(), nn.MultiheadAttention(4, 2))))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [(None, True), (["h.1.attn"], True), (["h.*.attn"], True), (["h.1"], False), (["mlp", "h.*"], True), ([], False)],
)
def test_paths_match_patterns(patterns, expected):
    assert matches("h.1.attn", patterns) is expected
