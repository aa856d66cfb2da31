from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.kernels import products
from glassformer.transformer.config import ACTIVATIONS
from glassformer.transformer.dropout import Dropout
from glassformer.transformer.layers import DecoderLayer, EncoderLayer, FeedForward

B, H, Q, K, D, FF = 2, 3, 5, 7, 11, 13  # distinct primes: a swapped axis cannot pass
E = H * D

NAMES = {"feed_forward.inner": "linear1", "feed_forward.outer": "linear2", "self_attention.": "self_attn."}
ENCODER_NAMES = NAMES | {"self_attention_norm": "norm1", "feed_forward_norm": "norm2"}
DECODER_NAMES = NAMES | {
    "source_attention.": "multihead_attn.",
    "self_attention_norm": "norm1",
    "source_attention_norm": "norm2",
    "feed_forward_norm": "norm3",
}


SAME: dict[str, Any] = dict(dropout=0.0, batch_first=True, dtype=torch.float64)
FUTURE = torch.ones(Q, Q, dtype=torch.bool).triu(1)


def torch_name(name: str, names: dict[str, str]) -> str:
    (prefix,) = (prefix for prefix in names if name.startswith(prefix))
    return names[prefix] + name.removeprefix(prefix)


def share_weights(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    """Biases and norms too are drawn, so that losing one shows."""
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    weights = theirs.state_dict()
    assert len(ours.state_dict()) == len(weights)
    ours.double().load_state_dict({name: weights[torch_name(name, names)] for name in ours.state_dict()})


NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


def encoder_layers(norm_first: bool = False) -> tuple[EncoderLayer, nn.Module]:
    """Ours and torch's with the same weights."""
    ours = EncoderLayer(E, H, FF, 0.0, 0.0, norm_first=norm_first)
    theirs = nn.TransformerEncoderLayer(E, H, FF, norm_first=norm_first, **SAME)
    share_weights(ours, theirs, ENCODER_NAMES)
    return ours, theirs


def decoder_layers(norm_first: bool = False) -> tuple[DecoderLayer, nn.Module]:
    """Ours and torch's with the same weights."""
    ours = DecoderLayer(E, H, FF, 0.0, 0.0, norm_first=norm_first)
    theirs = nn.TransformerDecoderLayer(E, H, FF, norm_first=norm_first, **SAME)
    share_weights(ours, theirs, DECODER_NAMES)
    return ours, theirs


def padding() -> Tensor:
    """Keys of the source that are there: all of the first sentence, three of the second."""
    return torch.tensor([[True] * K, [True] * 3 + [False] * (K - 3)])


def sequence(length: int) -> Tensor:
    return torch.randn(B, length, E, dtype=torch.float64, requires_grad=True)


def assert_same(output: Tensor, expected: Tensor, ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    """The outputs and, backwards from them, the gradients of all weights."""
    assert_close(output, expected)
    towards = torch.randn_like(output)
    output.backward(towards)
    expected.backward(towards)
    parameters = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, parameters[torch_name(name, names)].grad)


# Against torch's layers


def test_feed_forward_is_two_products_around_a_relu():
    module = FeedForward(E, FF).double()
    x = sequence(K)
    inner = x @ module.inner.weight.T + module.inner.bias
    expected = torch.where(inner > 0, inner, 0.0) @ module.outer.weight.T + module.outer.bias
    assert_close(module(x), expected)
    assert (inner < 0).any()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_one_table_and_each_the_same_numbers_in_place(name):
    assert products.ACTIVATIONS.keys() == products.ACTIVATIONS_IN_PLACE.keys() == set(ACTIVATIONS)
    module, x = FeedForward(E, FF, name), torch.randn(B, K, E)
    assert torch.equal(products.ACTIVATIONS_IN_PLACE[name](x.clone()), products.ACTIVATIONS[name](x))
    assert torch.equal(module(x), module.outer(products.ACTIVATIONS[name](module.inner(x))))


@NORM_FIRST
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_encoder_layer_is_torchs(norm_first, padded, training):
    ours, theirs = encoder_layers(norm_first)
    ours.train(training)
    x, keep = sequence(K), padding()
    output = ours(x, keep[:, None, None] if padded else None)
    expected = theirs(x, src_key_padding_mask=~keep if padded else None)
    assert_same(output, expected, ours, theirs, ENCODER_NAMES)


@NORM_FIRST
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_decoder_layer_is_torchs(norm_first, padded, training):
    ours, theirs = decoder_layers(norm_first)
    ours.train(training)
    x, memory, keep = sequence(Q), sequence(K), padding()
    output, _ = ours(x, ours.start(memory), keep[:, None, None] if padded else None)
    expected = theirs(x, memory, tgt_mask=FUTURE, memory_key_padding_mask=~keep if padded else None)
    assert_same(output, expected, ours, theirs, DECODER_NAMES)


# The decoder layer's cache


def test_decoder_layer_returns_the_cache_with_the_new_positions():
    layer, _ = decoder_layers()
    x, memory = sequence(Q), sequence(K)
    empty = layer.start(memory)
    assert empty.keys is None
    assert empty.values is None
    assert empty.memory_keys.shape == empty.memory_values.shape == (B, H, K, D)
    _, first = layer(x[:, :2], empty, None)
    _, both = layer(x[:, 2:], first, None)
    assert first.keys.shape == first.values.shape == (B, H, 2, D)
    _, k, v = layer.self_attention.project(x)
    assert_close(both.keys, k)
    assert_close(both.values, v)
    assert both.memory_keys is empty.memory_keys
    assert both.memory_values is empty.memory_values
    assert empty.keys is None  # caches are never changed in place
    assert first.keys.shape[2] == 2


# Where dropout acts: on what a sub-layer adds, and on nothing else


def drop_everything(layer: EncoderLayer | DecoderLayer) -> list[Tensor]:
    """What is given to dropout, which from now on drops all of it."""
    given: list[Tensor] = []

    def drop(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        given.append(inputs[0])
        return torch.zeros_like(output)

    layer.dropout.register_forward_hook(drop)
    return given


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x)


def unchanged(norm: nn.Module, x: Tensor) -> Tensor:
    return x


@NORM_FIRST
def test_encoder_layer_drops_what_sublayers_add_and_nothing_else(norm_first):
    layer, _ = encoder_layers(norm_first)
    given, x = drop_everything(layer), sequence(K)
    output = layer(x, None)
    before, after = (normed, unchanged) if norm_first else (unchanged, normed)
    attended = before(layer.self_attention_norm, x)
    middle = after(layer.self_attention_norm, x)
    assert_close(output, after(layer.feed_forward_norm, middle))
    expected = [layer.self_attention(attended, attended, attended)[0]]
    assert_close(given, [*expected, layer.feed_forward(before(layer.feed_forward_norm, middle))])


@NORM_FIRST
def test_decoder_layer_drops_what_sublayers_add_and_nothing_else(norm_first):
    layer, _ = decoder_layers(norm_first)
    given, x, memory = drop_everything(layer), sequence(Q), sequence(K)
    output, _ = layer(x, layer.start(memory), None)
    before, after = (normed, unchanged) if norm_first else (unchanged, normed)
    attended = before(layer.self_attention_norm, x)
    second = after(layer.self_attention_norm, x)
    third = after(layer.source_attention_norm, second)
    assert_close(output, after(layer.feed_forward_norm, third))
    expected = [
        layer.self_attention(attended, attended, attended, attn_mask=FUTURE)[0],
        layer.source_attention(before(layer.source_attention_norm, second), memory, memory)[0],
        layer.feed_forward(before(layer.feed_forward_norm, third)),
    ]
    assert_close(given, expected)


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_dropout_rates_reach_their_places(kind):
    layer = kind(E, H, FF, 0.3, 0.2)
    assert {module.p for module in layer.modules() if isinstance(module, Dropout)} == {0.3}
    assert {module.dropout for name, module in layer.named_modules() if name.endswith("_attention")} == {0.2}
