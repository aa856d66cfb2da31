import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.reference.multi_head import MultiHeadAttention, PrepareForMultiHeadAttention

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
E = H * D
each = pytest.mark.parametrize


@pytest.fixture
def inputs() -> list[Tensor]:
    """Query, key and value, sequence first."""
    return [torch.randn(length, B, E, dtype=torch.float64) for length in (Q, K, K)]


@pytest.fixture
def mask() -> Tensor:
    return torch.rand(Q, K, B) < 0.5


@each(("leading", "heads", "d_k"), [((10, 32), 8, 64), ((), H, D), ((Q,), H, D), ((Q, B), H, D), ((Q, B, 2), H, D)])
def test_the_last_axis_is_split_into_heads_behind_any_leading_axes(leading, heads, d_k):
    prepare = PrepareForMultiHeadAttention(heads * d_k, heads=heads, d_k=d_k, bias=True).double()
    x = torch.randn(*leading, heads * d_k, dtype=torch.float64)
    result = prepare(x)
    assert result.shape == (*leading, heads, d_k)
    for h in range(heads):
        rows = slice(h * d_k, (h + 1) * d_k)
        assert_close(result[..., h, :], x @ prepare.linear.weight[rows].T + prepare.linear.bias[rows])


@each("bias", [True, False])
def test_what_a_module_has(bias):
    module = MultiHeadAttention(8, 512, bias=bias)  # heads first
    parameters = [name.removesuffix(".bias") for name, _ in module.named_parameters() if name.endswith("bias")]
    assert parameters == ["query.linear", "key.linear"] * bias + ["value.linear", "output"]
    assert (module.heads, module.d_k, module.scale, module.attn) == (8, 64, 1 / 8, None)
    assert module.dropout.p == 0.1
    assert module.softmax.dim == 1


def test_arguments_may_be_named(inputs, mask):
    module = MultiHeadAttention(heads=H, d_model=E, dropout_prob=0.0, bias=True).double()
    query, key, value = inputs
    assert torch.equal(module(mask=mask, value=value, key=key, query=query), module(query, key, value, mask))


# Steps replaced


class NearestKeys(MultiHeadAttention):
    """Scores that are high for keys near the query, not for those in its direction."""

    def get_score(self, query: Tensor, key: Tensor) -> Tensor:
        return -(query[:, None] - key[None]).square().sum(-1)


def test_a_subclass_may_replace_the_scores(inputs):
    module = NearestKeys(H, E).double().eval()
    query, key, value = inputs
    module(query, key, value)
    q, k = module.query(query).permute(1, 2, 0, 3), module.key(key).permute(1, 2, 0, 3)  # (B, H, length, D)
    expected = (-(torch.cdist(q, k) ** 2) / math.sqrt(D)).softmax(-1)
    assert_close(module.attn, expected.permute(2, 3, 0, 1))


class BlockedIsTrue(MultiHeadAttention):
    def prepare_mask(self, mask: Tensor, query_shape: torch.Size, key_shape: torch.Size) -> Tensor:
        return super().prepare_mask(~mask, query_shape, key_shape)


def test_a_subclass_may_replace_the_mask(inputs, mask):
    module, other = MultiHeadAttention(H, E).double().eval(), BlockedIsTrue(H, E).double().eval()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(*inputs, ~mask), module(*inputs, mask))


class Evenly(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        return torch.full_like(scores, 1 / scores.shape[1])


def test_the_softmax_may_be_replaced(inputs):
    module = MultiHeadAttention(H, E).double().eval()
    module.softmax = Evenly()
    mean = module.value(inputs[2]).mean(0).flatten(-2)
    assert_close(module(*inputs), module.output(mean).expand(Q, B, E))


class Loudest(MultiHeadAttention):
    """Attention to the key with the largest score alone, twice its value, the heads in reverse."""

    def block(self, scores: Tensor, blocked: Tensor) -> Tensor:
        return scores.masked_fill(blocked, -1000.0)

    def get_weights(self, scores: Tensor) -> Tensor:
        return (scores == scores.amax(1, keepdim=True)).to(scores)

    def get_sum(self, weights: Tensor, value: Tensor) -> Tensor:
        return 2 * super().get_sum(weights, value)

    def concatenate(self, heads: Tensor) -> Tensor:
        return heads.flip(2).flatten(-2)


def test_a_subclass_may_replace_every_other_step(inputs, mask):
    module = Loudest(H, E).double().eval()
    mask[:, 0] = True
    query, key, value = inputs
    output = module(query, key, value, mask)
    scores = torch.einsum("ibhd,jbhd->ijbh", module.query(query), module.key(key)) / math.sqrt(D)
    best = scores.masked_fill(~mask[..., None], -1000.0).argmax(1)  # (i, b, h)
    heads = 2 * module.value(value)[best, torch.arange(B)[:, None], torch.arange(H)]
    assert_close(output, module.output(heads.flip(2).flatten(-2)))


@each(("query_batch", "key_batch", "value_batch"), [(1, B, B), (B, 1, 1), (B, B, 1), (1, 1, B)])
def test_a_batch_of_one_stands_for_all(query_batch, key_batch, value_batch, mask):
    module = MultiHeadAttention(H, E).double().eval()
    sizes = zip((Q, K, K), (query_batch, key_batch, value_batch), strict=True)
    x = [torch.randn(length, batch, E, dtype=torch.float64) for length, batch in sizes]
    whole = [part.expand(-1, B, -1) for part in x]
    assert_close(module(*x), module(*whole))
    if max(query_batch, key_batch) > 1:
        assert_close(module(*x, mask), module(*whole, mask))


# The weights that are kept, and dropout


def test_the_last_weights_are_kept_without_their_graph(inputs):
    module = MultiHeadAttention(H, E, dropout_prob=0.0).double()
    query, key, value = inputs
    module(query, key, value)
    first = module.attn
    assert first.shape == (Q, K, B, H)
    assert not first.requires_grad
    assert_close(first.sum(1), torch.ones(Q, B, H, dtype=torch.float64))
    module(query[:3], key, value)
    assert_close(module.attn, first[:3], rtol=1e-12, atol=1e-12)  # sums of fewer rows may come in another order
    assert not any("attn" in name for name in module.state_dict())
    assert torch.equal(copy.deepcopy(module).attn, module.attn)


def test_dropout_acts_on_the_weights_and_shows_in_them_in_training_only(inputs):
    module = MultiHeadAttention(H, E, dropout_prob=0.5).double()
    output, dropped = module(*inputs), module.attn
    assert not torch.equal(module(*inputs), output)
    module.eval()
    whole_output, whole = module(*inputs), module.attn
    assert torch.equal(module(*inputs), whole_output)
    assert (whole > 0).all()
    assert 0.4 < (dropped == 0).double().mean() < 0.6
    assert_close(dropped[dropped > 0], 2 * whole[dropped > 0])  # what stays is scaled by 1 / (1 - 0.5)
    heads = (dropped[..., None] * module.value(inputs[2])[None]).sum(1)
    assert_close(output, module.output(heads.flatten(-2)))


def test_the_axes_are_query_key_batch_even_where_all_are_as_long():
    n = 5  # batch = length, where a mask of axes (batch, key, query) would pass every check
    x, mask = torch.randn(n, n, E), torch.ones(n, n, n)
    query, key, sentence = 1, 2, 3
    mask[query, key, sentence] = 0
    module = MultiHeadAttention(H, E).eval()
    module(x, x, x, mask)
    assert (module.attn == 0).nonzero().tolist() == [[query, key, sentence, h] for h in range(H)]
