from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.kernels import products
from glassformer.transformer.config import ACTIVATIONS
from glassformer.transformer.layers import DecoderLayer, EncoderLayer, FeedForward

B, H, Q, K, D, FF = 2, 3, 5, 7, 11, 13  # distinct primes: a swapped axis cannot pass
E = H * D
FUTURE = torch.ones(Q, Q, dtype=torch.bool).triu(1)

NAMES = {"feed_forward.inner": "linear1", "feed_forward.outer": "linear2", "self_attention.": "self_attn."}
ENCODER_NAMES = NAMES | {"self_attention_norm": "norm1", "feed_forward_norm": "norm2"}
DECODER_NAMES = NAMES | {
    "source_attention.": "multihead_attn.",
    "self_attention_norm": "norm1",
    "source_attention_norm": "norm2",
    "feed_forward_norm": "norm3",
}
THEIRS: dict[type, tuple[type, dict[str, str]]] = {
    EncoderLayer: (nn.TransformerEncoderLayer, ENCODER_NAMES),
    DecoderLayer: (nn.TransformerDecoderLayer, DECODER_NAMES),
}
"""For each layer torch's, and its names of the weights."""


def torch_name(name: str, names: dict[str, str]) -> str:
    (prefix,) = (prefix for prefix in names if name.startswith(prefix))
    return names[prefix] + name.removeprefix(prefix)


def both(kind: type, norm_first: bool) -> tuple[Any, Any]:
    """Ours and torch's with the same weights; biases and norms too are drawn, so that losing one shows."""
    their_kind, names = THEIRS[kind]
    ours = kind(E, H, FF, 0.0, 0.0, norm_first=norm_first).double()
    theirs = their_kind(E, H, FF, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64)
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    weights = theirs.state_dict()
    assert len(ours.state_dict()) == len(weights)
    ours.load_state_dict({name: weights[torch_name(name, names)] for name in ours.state_dict()})
    return ours, theirs


def apply(layer: Any, source: Tensor, target: Tensor, keep: Tensor | None = None) -> Tensor:
    """An encoder layer's states of the source, or a decoder layer's of the target."""
    if isinstance(layer, EncoderLayer):
        return layer(source, keep)
    return layer(target, layer.start(source), keep)[0]


def sequence(length: int) -> Tensor:
    return torch.randn(B, length, E, dtype=torch.float64, requires_grad=True)


KIND = pytest.mark.parametrize("kind", THEIRS)
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


@KIND
@NORM_FIRST
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_outputs_and_gradients_are_those_of_torchs_layer(kind, norm_first, padded, training):
    ours, theirs = both(kind, norm_first)
    ours.train(training)
    source, target = sequence(K), sequence(Q)
    keep = torch.arange(K) < torch.tensor([[K], [3]])
    blocked = ~keep if padded else None
    output = apply(ours, source, target, keep[:, None, None] if padded else None)
    if kind is EncoderLayer:
        expected = theirs(source, src_key_padding_mask=blocked)
    else:
        expected = theirs(target, source, tgt_mask=FUTURE, memory_key_padding_mask=blocked)
    assert_close(output, expected)
    towards = torch.randn_like(output)
    output.backward(towards)
    expected.backward(towards)
    parameters = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, parameters[torch_name(name, THEIRS[kind][1])].grad)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_one_table_and_each_the_same_numbers_in_place(name):
    assert products.ACTIVATIONS.keys() == products.ACTIVATIONS_IN_PLACE.keys() == set(ACTIVATIONS)
    module, x = FeedForward(E, FF, name), torch.randn(B, K, E)
    assert torch.equal(products.ACTIVATIONS_IN_PLACE[name](x.clone()), products.ACTIVATIONS[name](x))
    assert torch.equal(module(x), module.outer(products.ACTIVATIONS[name](module.inner(x))))


@KIND
@NORM_FIRST
def test_dropout_acts_on_what_a_sublayer_adds_and_on_nothing_else(kind, norm_first):
    layer, _ = both(kind, norm_first)
    source, target, dropped = sequence(K), sequence(Q), []

    def drop_everything(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        dropped.append(inputs[0])
        return torch.zeros_like(output)

    layer.dropout.register_forward_hook(drop_everything)
    output = apply(layer, source, target)
    x, future = (source, None) if kind is EncoderLayer else (target, FUTURE)
    sublayers = {
        "self_attention": lambda x: layer.self_attention(x, x, x, attn_mask=future)[0],
        "source_attention": lambda x: layer.source_attention(x, source, source)[0],
        "feed_forward": layer.feed_forward,
    }
    if kind is EncoderLayer:
        del sublayers["source_attention"]
    for (name, sublayer), added in zip(sublayers.items(), dropped, strict=True):
        normed = getattr(layer, f"{name}_norm")(x)
        assert_close(added, sublayer(normed if norm_first else x))
        x = x if norm_first else normed
    assert_close(output, x)
