"""What the notes do with their classes, and what they say comes out, with imports from `glassformer.reference`."""

import torch

from glassformer.reference import (
    MultiHeadAttention,
    PrepareForMultiHeadAttention,
    SelfAttention,
    TransformerDecoder,
    TransformerEncoder,
    causal_mask,
    padding_mask,
)


def test_sequence_first_attention():
    assert PrepareForMultiHeadAttention(512, 8, 64, bias=True)(torch.randn(10, 32, 512)).shape == (10, 32, 8, 64)
    attention = MultiHeadAttention(heads=8, d_model=512)
    assert attention.get_score(torch.randn(2, 1, 2, 4), torch.randn(3, 1, 2, 4)).shape == (2, 3, 1, 2)
    x, padding = torch.randn(10, 32, 512), torch.ones(1, 10, 32)
    padding[:, 7:, :16] = 0
    for mask in (None, padding, torch.ones(10, 10, 1).tril()):
        assert attention(query=x, key=x, value=x, mask=mask).shape == (10, 32, 512)
        assert attention.attn is not None
        assert attention.attn.shape == (10, 10, 32, 8)


def test_single_head_attention_whose_second_half_is_blocked():
    attention, x = SelfAttention(dim_q=512, dim_k=64, dim_v=64), torch.randn(2, 16, 512)
    mask = torch.ones(2, 16, 16)
    mask[:, :, 8:] = 0
    attended, weights = attention(x, mask)
    assert (attended.shape, weights.shape) == ((2, 16, 64), (2, 16, 16))
    assert f"{weights[:, :, 8:].mean():.6f}" == "0.000000"
    assert torch.allclose(weights.sum(-1), torch.ones(2, 16))


def test_the_transformer_of_the_paper_from_words_to_states():
    base = dict(max_len=20, pad_idx=0, d_model=512, N=2, d_ff=64, heads_num=8, dropout_rate=0.1, layer_norm_eps=1e-5)
    encoder, decoder = TransformerEncoder(vocab_size=17, **base), TransformerDecoder(tgt_vocab_size=19, **base)
    source, target = torch.tensor([[5, 3, 9, 0], [4, 0, 0, 0]]), torch.tensor([[1, 7, 8], [1, 2, 6]])
    mask = padding_mask(source, 0)
    memory = encoder(source, mask)
    states = decoder(target, memory, mask, causal_mask(3))  # the lengths differ: 3 and 4
    assert (memory.shape, states.shape) == ((2, 4, 512), (2, 3, 512))
    assert len(encoder.encoder_layers) == len(decoder.decoder_layers) == 2
