"""Capture of the step-by-step forms: the weights that they compute, and nothing left behind."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.errors import ArgumentError
from glassformer.reference import (
    MultiHeadAttention,
    SelfAttention,
    TransformerDecoder,
    TransformerEncoder,
    TransformerMultiHeadAttention,
    padding_mask,
)

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
E = H * D


def test_the_sequence_first_form_has_its_own_weights_after_dropout_and_with_gradients():
    module = MultiHeadAttention(H, E, dropout_prob=0.5)
    query, key = torch.randn(Q, B, E), torch.randn(K, B, E)
    with capture(module, Want(weights=True, entropy=True)) as captured:
        module(query, key, key)
    weights = captured[""].weights
    assert module.attn is not None
    assert_close(weights, module.attn.permute(2, 3, 0, 1))
    assert (weights == 0).any(), "some were dropped"
    assert weights.requires_grad
    assert_close(captured[""].entropy, torch.special.entr(weights).sum(-1))
    assert not module.dropout._forward_hooks


def test_the_single_head_has_one():
    module, x, mask = SelfAttention(E, D, 13), torch.randn(B, Q, E), torch.tensor([1, 1, 0, 1, 0])
    with capture(module, Want(weights=True, received=True)) as captured:
        _, weights = module(x, mask)
    assert_close(captured[""].weights, weights[:, None])
    assert_close(captured[""].received, weights.sum(1)[:, None])
    assert not module._forward_hooks


class Model(nn.Module):
    """The whole Transformer of the notes."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (17, 19, 0, E, 2, 13, H, 0.0, 1e-5)
        self.encoder, self.decoder = TransformerEncoder(*sizes), TransformerDecoder(*sizes)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = padding_mask(source, 0)
        return self.decoder(target, self.encoder(source, mask), mask, None)


def by_hand(module: TransformerMultiHeadAttention, query: Tensor, key: Tensor) -> Tensor:
    q, k = (x[:, None] @ weight for x, weight in ((query, module.W_q), (key, module.W_k)))
    return (q @ k.mT / D**0.5).softmax(-1)


def test_every_attention_of_the_whole_transformer():
    model = Model()
    source, target = torch.tensor([[5, 3, 9, 0], [4, 1, 0, 0]]), torch.tensor([[1, 7, 8], [1, 2, 6]])
    expected = model(source, target)
    with capture(model, Want(weights=True)) as captured:
        assert_close(model(source, target), expected)
    layers = [f"encoder.encoder_layers.{n}.multi_head_attention" for n in range(2)]
    layers += [f"decoder.decoder_layers.{n}.{part}_attention" for n in range(2) for part in ("self", "src_tgt")]
    assert list(captured) == layers
    y = model.decoder.positional_encoding(model.decoder.embedding(target))
    own = captured["decoder.decoder_layers.0.self_attention"].weights
    assert_close(own, by_hand(model.decoder.decoder_layers[0].self_attention, y, y))
    cross = captured["decoder.decoder_layers.1.src_tgt_attention"].weights
    assert cross.shape == (2, H, 3, 4)
    assert (cross[0, :, :, 3] == 0).all()
    assert (cross[1, :, :, 2:] == 0).all()
    assert not any("get_weights" in module.__dict__ for module in model.modules())


def test_a_method_that_somebody_has_replaced_is_there_again():
    model = TransformerMultiHeadAttention(6, 2)
    attention = model.scaled_dot_product_attention
    attention.get_weights = mine = lambda scores, mask: scores.softmax(-1) / 2
    with capture(model) as captured:
        model(*[torch.randn(3, 5, 6)] * 3)
    assert attention.get_weights is mine
    assert len(captured) == 1


def test_what_weights_do_not_tell_is_said_and_two_captures_are_refused():
    module, x = TransformerMultiHeadAttention(E, H), torch.randn(B, Q, E)
    with capture(module) as captured:
        module(x, x, x)
        with pytest.raises(ArgumentError, match="model is being captured already"), capture(module):
            pass
    assert captured.dropped == {"": "lse is not known from weights alone"}
    assert captured[""].entropy.shape == (B, H, Q)
