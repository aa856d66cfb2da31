"""Attention and the Transformer step by step, in the form that the papers' equations have: the tests' oracle.

It imports torch and nothing of ours, so that it can be read, copied and trusted alone; its one error, `InputError`, is
therefore a ValueError and an AssertionError, but not a GlassformerError. Open `self_attention` first (one head), then
`multi_head` (sequence first), then `transformer` (encoder and decoder); `weights` converts to the fast forms and back.

`MultiHeadAttention` is that of `multi_head`, which takes the number of heads first; that of `transformer`, which takes
d_model first, is `TransformerMultiHeadAttention` here.
"""

from glassformer.reference.errors import InputError
from glassformer.reference.multi_head import MultiHeadAttention, PrepareForMultiHeadAttention
from glassformer.reference.scaled_dot_product import scaled_dot_product_attention
from glassformer.reference.self_attention import SelfAttention
from glassformer.reference.transformer import (
    FFN,
    AddPositionalEncoding,
    Embedding,
    ScaledDotProductAttention,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    causal_mask,
    decoder_mask,
    greedy,
    padding_mask,
)
from glassformer.reference.transformer import MultiHeadAttention as TransformerMultiHeadAttention

__all__ = [
    "FFN",
    "AddPositionalEncoding",
    "Embedding",
    "InputError",
    "MultiHeadAttention",
    "PrepareForMultiHeadAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerMultiHeadAttention",
    "causal_mask",
    "decoder_mask",
    "greedy",
    "padding_mask",
    "scaled_dot_product_attention",
]
