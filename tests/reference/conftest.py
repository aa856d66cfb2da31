"""The three forms of attention, driven alike: batch first, one list of inputs, and `keep`, True = may look, as mask."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.reference import multi_head, self_attention, transformer, weights

B, H, D = 2, 3, 11  # with the lengths 5 and 7 distinct primes: a swapped axis cannot pass
E = H * D
Pairs = Iterator[tuple[Tensor, Tensor]]


class SequenceFirst:
    """System A."""

    heads, lengths, projections_have_biases, has_output = H, (5, 7, 7), True, True
    to_fast, from_fast = staticmethod(weights.multi_head_to_fast), staticmethod(weights.multi_head_from_fast)

    def __init__(self, bias: bool = True) -> None:
        self.bias = bias

    def make(self, width: int = E, heads: int = H) -> Any:
        return multi_head.MultiHeadAttention(heads, width, bias=self.bias)

    def mask(self, keep: Tensor) -> Tensor:
        return keep.permute(1, 2, 0)

    def attend(self, module: Any, inputs: list[Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The output (batch, q_len, width), and where there are, the weights (batch, heads, q_len, k_len)."""
        output = module(*(x.transpose(0, 1) for x in inputs), mask)
        return output.transpose(0, 1), module.attn.permute(2, 3, 0, 1)

    def project(self, module: Any, inputs: list[Tensor]) -> list[Tensor]:
        """Queries, keys and values of each head, (batch, heads, length, d)."""
        linears = [part.linear for part in (module.query, module.key, module.value)]
        biases = [0.0 if linear.bias is None else linear.bias for linear in linears]
        flat = [x @ y.weight.T + bias for x, y, bias in zip(inputs, linears, biases, strict=True)]
        return [x.unflatten(-1, (H, D)).transpose(1, 2) for x in flat]

    def output(self, module: Any, heads: Tensor) -> Tensor:
        return heads @ module.output.weight.T + module.output.bias

    def pairs(self, module: Any, fast: Any, read: Callable[[Tensor], Tensor]) -> Pairs:
        """Every parameter, and where the fast form has it, both as `read` reads them."""
        for n, part in enumerate((module.query, module.key, module.value)):
            yield read(part.linear.weight), read(fast.in_proj_weight).chunk(3)[n]
            if part.linear.bias is not None:
                yield read(part.linear.bias), read(fast.in_proj_bias).chunk(3)[n]
        yield read(module.output.weight), read(fast.out_proj.weight)
        yield read(module.output.bias), read(fast.out_proj.bias)


class SingleHead:
    """System C."""

    heads, lengths, projections_have_biases, has_output = 1, (5,), False, False
    to_fast, from_fast = staticmethod(weights.self_attention_to_fast), staticmethod(weights.self_attention_from_fast)

    def make(self, width: int = E, heads: int = 1) -> Any:
        return self_attention.SelfAttention(width, width, width)

    def mask(self, keep: Tensor) -> Tensor:
        return keep

    def attend(self, module: Any, inputs: list[Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        output, attention_weights = module(*inputs, mask)
        return output, attention_weights[:, None]

    def project(self, module: Any, inputs: list[Tensor]) -> list[Tensor]:
        return [(inputs[0] @ x.weight.T)[:, None] for x in (module.linear_q, module.linear_k, module.linear_v)]

    def output(self, module: Any, heads: Tensor) -> Tensor:
        return heads

    def pairs(self, module: Any, fast: Any, read: Callable[[Tensor], Tensor]) -> Pairs:
        for n, linear in enumerate((module.linear_q, module.linear_k, module.linear_v)):
            yield read(linear.weight), read(fast.in_proj_weight).chunk(3)[n]


class PerHead:
    """System D."""

    heads, lengths, projections_have_biases, has_output = H, (5, 7, 7), False, True
    to_fast, from_fast = staticmethod(weights.per_head_to_fast), staticmethod(weights.per_head_from_fast)

    def make(self, width: int = E, heads: int = H) -> Any:
        return transformer.MultiHeadAttention(width, heads)

    def mask(self, keep: Tensor) -> Tensor:
        return ~keep

    def attend(self, module: Any, inputs: list[Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return module(*inputs, mask), None

    def project(self, module: Any, inputs: list[Tensor]) -> list[Tensor]:
        return [x[:, None] @ weight for x, weight in zip(inputs, (module.W_q, module.W_k, module.W_v), strict=True)]

    def output(self, module: Any, heads: Tensor) -> Tensor:
        return heads @ module.linear.weight.T + module.linear.bias

    def pairs(self, module: Any, fast: Any, read: Callable[[Tensor], Tensor]) -> Pairs:
        for n, weight in enumerate((module.W_q, module.W_k, module.W_v)):
            yield read(weight).mT.flatten(0, 1), read(fast.in_proj_weight).chunk(3)[n]
        yield read(module.linear.weight), read(fast.out_proj.weight)
        yield read(module.linear.bias), read(fast.out_proj.bias)


FORMS = {
    "sequence first": SequenceFirst(),
    "without bias": SequenceFirst(bias=False),
    "single head": SingleHead(),
    "per head": PerHead(),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return FORMS[request.param]


MASKS: dict[str, Callable[[int, int], Tensor | None]] = {
    "none": lambda q_len, k_len: None,
    "open": lambda q_len, k_len: torch.ones(B, q_len, k_len, dtype=torch.bool),
    "padding": lambda q_len, k_len: (torch.arange(k_len) < torch.tensor([k_len, 3])[:, None])[:, None],
    "causal": lambda q_len, k_len: torch.ones(1, q_len, k_len, dtype=torch.bool).tril(),
    "one for all": lambda q_len, k_len: torch.tensor([True, False, True, True, False, True, False])[None, None, :k_len],
    "random": lambda q_len, k_len: torch.rand(B, q_len, k_len) < 0.5,
    # one query of every sentence, and every query of the second
    "blocked rows": lambda q_len, k_len: (
        (torch.rand(B, q_len, k_len) < 0.5)
        & (torch.arange(q_len) != 2)[:, None]
        & torch.tensor([True, False])[:, None, None]
    ),
    "nothing": lambda q_len, k_len: torch.zeros(1, 1, k_len, dtype=torch.bool),
}
"""What broadcasts to (batch, q_len, k_len), True = may look."""


@pytest.fixture(params=MASKS)
def keep(request: pytest.FixtureRequest, form: Any) -> Tensor | None:
    return MASKS[request.param](form.lengths[0], form.lengths[-1])


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The default dtype while the test runs."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def close(dtype: torch.dtype) -> dict[str, float]:
    """How equal two ways to compute the same are in that dtype: in float32, torch's own tolerance."""
    return {"atol": 1e-10, "rtol": 1e-10} if dtype == torch.float64 else {}
