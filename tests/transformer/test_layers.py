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


@pytest.fixture
def encoder_layers() -> tuple[EncoderLayer, nn.Module]:
    """Ours and torch's with the same weights."""
    ours = EncoderLayer(E, H, FF, 0.0, 0.0)
    theirs = nn.TransformerEncoderLayer(E, H, FF, dropout=0.0, batch_first=True, dtype=torch.float64)
    share_weights(ours, theirs, ENCODER_NAMES)
    return ours, theirs


@pytest.fixture
def decoder_layers() -> tuple[DecoderLayer, nn.Module]:
    """Ours and torch's with the same weights."""
    ours = DecoderLayer(E, H, FF, 0.0, 0.0)
    theirs = nn.TransformerDecoderLayer(E, H, FF, dropout=0.0, batch_first=True, dtype=torch.float64)
    share_weights(ours, theirs, DECODER_NAMES)
    return ours, theirs


def padding() -> Tensor:
    """Keys of the source that are there: all of the first sentence, three of the second."""
    return torch.tensor([[True] * K, [True] * 3 + [False] * (K - 3)])


def sequence(length: int) -> Tensor:
    return torch.randn(B, length, E, dtype=torch.float64, requires_grad=True)


def assert_same_gradients(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, expected[torch_name(name, names)].grad)


# Against torch's post-norm layers


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


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_encoder_layer_is_torchs(encoder_layers, padded, training):
    ours, theirs = encoder_layers
    ours.train(training)
    x, keep = sequence(K), padding()
    output = ours(x, keep[:, None, None] if padded else None)
    expected = theirs(x, src_key_padding_mask=~keep if padded else None)
    assert_close(output, expected)
    towards = torch.randn_like(output)
    output.backward(towards)
    expected.backward(towards)
    assert_same_gradients(ours, theirs, ENCODER_NAMES)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_decoder_layer_is_torchs(decoder_layers, padded, training):
    ours, theirs = decoder_layers
    ours.train(training)
    x, memory, keep = sequence(Q), sequence(K), padding()
    output, _ = ours(x, ours.start(memory), keep[:, None, None] if padded else None)
    future = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    expected = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=~keep if padded else None)
    assert_close(output, expected)
    towards = torch.randn_like(output)
    output.backward(towards)
    expected.backward(towards)
    assert_same_gradients(ours, theirs, DECODER_NAMES)


# Pre-norm


def plain(module: nn.Module) -> tuple:
    """The parts of a layer by their names in the formula: attention, norms, feed-forward."""
    return module.self_attention, module.self_attention_norm, module.feed_forward, module.feed_forward_norm


@pytest.mark.parametrize("padded", [False, True])
def test_pre_norm_encoder_layer_is_the_formula(encoder_layers, padded):
    # x + sublayer(LayerNorm(x)), and so twice
    ours, _ = encoder_layers
    ours.norm_first = True
    attention, attention_norm, feed_forward, feed_forward_norm = plain(ours)
    x, keep = sequence(K), padding()
    normed = attention_norm(x)
    middle = x + attention(normed, normed, normed, key_padding_mask=~keep if padded else None)[0]
    expected = middle + feed_forward(feed_forward_norm(middle))
    assert_close(ours(x, keep[:, None, None] if padded else None), expected)


@pytest.mark.parametrize("padded", [False, True])
def test_pre_norm_decoder_layer_is_the_formula(decoder_layers, padded):
    # The source's memory is looked at as it is: the encoder's last norm, not the layer's, is its own
    ours, _ = decoder_layers
    ours.norm_first = True
    attention, attention_norm, feed_forward, feed_forward_norm = plain(ours)
    x, memory, keep = sequence(Q), sequence(K), padding()
    normed = attention_norm(x)
    first = x + attention(normed, normed, normed, attn_mask=torch.ones(Q, Q, dtype=torch.bool).triu(1))[0]
    padded_keys = ~keep if padded else None
    normed = ours.source_attention_norm(first)
    second = first + ours.source_attention(normed, memory, memory, key_padding_mask=padded_keys)[0]
    expected = second + feed_forward(feed_forward_norm(second))
    output, _ = ours(x, ours.start(memory), keep[:, None, None] if padded else None)
    assert_close(output, expected)


@pytest.mark.parametrize("training", [False, True])
def test_pre_norm_layers_are_torchs(training):
    settings = dict(dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64)
    encoder = EncoderLayer(E, H, FF, 0.0, 0.0, norm_first=True).train(training)
    decoder = DecoderLayer(E, H, FF, 0.0, 0.0, norm_first=True).train(training)
    their_encoder = nn.TransformerEncoderLayer(E, H, FF, **settings)
    their_decoder = nn.TransformerDecoderLayer(E, H, FF, **settings)
    share_weights(encoder, their_encoder, ENCODER_NAMES)
    share_weights(decoder, their_decoder, DECODER_NAMES)
    source, x, keep = sequence(K), sequence(Q), padding()
    memory, their_memory = encoder(source, keep[:, None, None]), their_encoder(source, src_key_padding_mask=~keep)
    output, _ = decoder(x, decoder.start(memory), keep[:, None, None])
    future = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    expected = their_decoder(x, their_memory, tgt_mask=future, memory_key_padding_mask=~keep)
    assert_close(output, expected)
    towards = torch.randn_like(output)
    output.backward(towards)
    expected.backward(towards)
    assert_same_gradients(encoder, their_encoder, ENCODER_NAMES)
    assert_same_gradients(decoder, their_decoder, DECODER_NAMES)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_pre_norm_layer_that_drops_everything_changes_nothing(kind, encoder_layers, decoder_layers):
    layer, _ = encoder_layers if kind == "encoder" else decoder_layers
    layer.norm_first = True
    given, x, memory = drop_everything(layer), sequence(Q), sequence(K)
    output = layer(x, None) if kind == "encoder" else layer(x, layer.start(memory), None)[0]
    assert torch.equal(output, x)
    assert len(given) == (2 if kind == "encoder" else 3)
    assert_close(given[-1], layer.feed_forward(layer.feed_forward_norm(x)))


# The decoder layer's cache


def test_decoder_layer_returns_the_cache_with_the_new_positions(decoder_layers):
    layer, _ = decoder_layers
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


# Where dropout acts: LayerNorm(x + Dropout(sublayer(x)))


def drop_everything(layer: EncoderLayer | DecoderLayer) -> list[Tensor]:
    """What is given to dropout, which from now on drops all of it."""
    given: list[Tensor] = []

    def drop(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        given.append(inputs[0])
        return torch.zeros_like(output)

    layer.dropout.register_forward_hook(drop)
    return given


def test_encoder_layer_drops_sublayer_outputs_and_nothing_else(encoder_layers):
    layer, _ = encoder_layers
    given, x = drop_everything(layer), sequence(K)
    output = layer(x, None)
    middle = layer.self_attention_norm(x)
    assert_close(output, layer.feed_forward_norm(middle))
    assert len(given) == 2
    assert_close(given[0], layer.self_attention(x, x, x)[0])
    assert_close(given[1], layer.feed_forward(middle))


def test_decoder_layer_drops_sublayer_outputs_and_nothing_else(decoder_layers):
    layer, _ = decoder_layers
    given, x, memory = drop_everything(layer), sequence(Q), sequence(K)
    output, _ = layer(x, layer.start(memory), None)
    second = layer.self_attention_norm(x)
    third = layer.source_attention_norm(second)
    assert_close(output, layer.feed_forward_norm(third))
    assert len(given) == 3
    assert_close(given[0], layer.self_attention(x, x, x, attn_mask=torch.ones(Q, Q, dtype=torch.bool).triu(1))[0])
    assert_close(given[1], layer.source_attention(second, memory, memory)[0])
    assert_close(given[2], layer.feed_forward(third))


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_dropout_rates_reach_their_places(kind):
    layer = kind(E, H, FF, 0.3, 0.2)
    assert {module.p for module in layer.modules() if isinstance(module, Dropout)} == {0.3}
    assert {module.dropout for name, module in layer.named_modules() if name.endswith("_attention")} == {0.2}
