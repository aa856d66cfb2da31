"""Weights of the step-by-step forms to the fast forms and back.

Each function fills its target, the last argument, in place. What the target cannot hold is an InputError, raised before
anything is copied. A fast attention is any module with the parameters of `torch.nn.MultiheadAttention`; a fast model is
a `glassformer.Transformer`.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from glassformer.reference import multi_head, self_attention, transformer
from glassformer.reference.errors import InputError


@torch.no_grad()
def self_attention_to_fast(source: self_attention.SelfAttention, target: Any) -> None:
    """Fill `target`, which has one head, and make its output projection the identity.

    >>> self_attention_to_fast(self_attention.SelfAttention(8, 8, 8), torch.nn.MultiheadAttention(8, 1))
    """
    width = target.embed_dim
    if not source.dim_q == source.dim_k == source.dim_v == width:
        raise InputError(
            f"dim_q, dim_k and dim_v must all be the target's embed_dim = {width}: queries, keys and values of another "
            f"width than the input can't be held, got {source.dim_q}, {source.dim_k}, {source.dim_v}"
        )
    if target.num_heads != 1:
        raise InputError(f"target must have 1 head, as SelfAttention has, got {target.num_heads}")
    weights = [source.linear_q.weight, source.linear_k.weight, source.linear_v.weight]
    _fill(target, weights, [], torch.eye(width), None)


@torch.no_grad()
def self_attention_from_fast(source: Any, target: self_attention.SelfAttention) -> None:
    """Fill `target` from a module with one head, no biases, and the identity as its output projection.

    >>> fast = torch.nn.MultiheadAttention(8, 1, bias=False)
    >>> _ = torch.nn.init.eye_(fast.out_proj.weight)
    >>> self_attention_from_fast(fast, self_attention.SelfAttention(8, 8, 8))
    """
    if source.num_heads != 1:
        raise InputError(f"source must have 1 head: SelfAttention would lose the other {source.num_heads - 1}")
    weights, biases, output, output_bias = _read(source)
    if not torch.equal(output, torch.eye(len(output)).to(output)):
        raise InputError("source has an output projection (out_proj.weight isn't the identity): SelfAttention has none")
    _must_be_zero("in_proj_bias", biases, "SelfAttention's projections have no bias")
    _must_be_zero("out_proj.bias", [output_bias], "SelfAttention has no output projection")
    into = [target.linear_q.weight, target.linear_k.weight, target.linear_v.weight]
    _copy_all(zip(into, weights, strict=True))


@torch.no_grad()
def multi_head_to_fast(source: multi_head.MultiHeadAttention, target: Any) -> None:
    """Fill `target`; where queries and keys have no bias, its bias is zero.

    >>> source, fast = multi_head.MultiHeadAttention(2, 8, dropout_prob=0.0), torch.nn.MultiheadAttention(8, 2)
    >>> multi_head_to_fast(source, fast)
    >>> x = torch.ones(3, 1, 8)  # length, batch, width
    >>> torch.allclose(source(x, x, x), fast(x, x, x)[0], atol=1e-6)
    True
    """
    if source.heads != target.num_heads:
        raise InputError(f"target must have {source.heads} heads, got {target.num_heads}")
    linears = [source.query.linear, source.key.linear, source.value.linear]
    biases = [torch.zeros(len(x.weight)) if x.bias is None else x.bias for x in linears]
    _fill(target, [x.weight for x in linears], biases, source.output.weight, source.output.bias)


@torch.no_grad()
def multi_head_from_fast(source: Any, target: multi_head.MultiHeadAttention) -> None:
    """Fill `target` from a module with as many heads.

    >>> multi_head_from_fast(torch.nn.MultiheadAttention(8, 2), multi_head.MultiHeadAttention(2, 8))
    """
    if source.num_heads != target.heads:
        raise InputError(f"target must have {source.num_heads} heads, got {target.heads}")
    weights, biases, output, output_bias = _read(source)
    if target.query.linear.bias is None:
        _must_be_zero("in_proj_bias of queries and keys", biases[:2], "target has none: make it with bias=True")
    linears = [target.query.linear, target.key.linear, target.value.linear]
    pairs = [(linear.weight, weight) for linear, weight in zip(linears, weights, strict=True)]
    pairs += [(x.bias, bias) for x, bias in zip(linears, biases, strict=True) if x.bias is not None]
    _copy_all([*pairs, (target.output.weight, output), (target.output.bias, output_bias)])


@torch.no_grad()
def per_head_to_fast(source: transformer.MultiHeadAttention, target: Any) -> None:
    """Put the matrices of all heads side by side into `target`; its projections' biases are zero.

    >>> per_head_to_fast(transformer.MultiHeadAttention(8, 2), torch.nn.MultiheadAttention(8, 2))
    """
    if source.h != target.num_heads:
        raise InputError(f"target must have {source.h} heads, got {target.num_heads}")
    weights = [w.permute(0, 2, 1).flatten(0, 1) for w in (source.W_q, source.W_k, source.W_v)]
    _fill(target, weights, [], source.linear.weight, source.linear.bias)


@torch.no_grad()
def per_head_from_fast(source: Any, target: transformer.MultiHeadAttention) -> None:
    """Fill `target` from a module with as many heads and no biases of projections.

    >>> per_head_from_fast(torch.nn.MultiheadAttention(8, 2), transformer.MultiHeadAttention(8, 2))
    """
    if source.num_heads != target.h:
        raise InputError(f"target must have {source.num_heads} heads, got {target.h}")
    weights, biases, output, output_bias = _read(source)
    _must_be_zero("in_proj_bias", biases, "the per-head projections have no bias")
    by_head = [weight.unflatten(0, (target.h, -1)).permute(0, 2, 1) for weight in weights]
    pairs = zip((target.W_q, target.W_k, target.W_v), by_head, strict=True)
    _copy_all([*pairs, (target.linear.weight, output), (target.linear.bias, output_bias)])


@torch.no_grad()
def transformer_to_fast(
    encoder: transformer.TransformerEncoder, decoder: transformer.TransformerDecoder, target: Any
) -> None:
    """Fill `target`, a `glassformer.Transformer`, from an encoder and a decoder.

    Embeddings are divided by sqrt(d_model), which `target` multiplies by. The width is reordered, because the sinusoids
    of `target` are not interleaved.

    >>> from glassformer import ModelConfig, Transformer
    >>> sizes = dict(d_model=8, heads=2, d_ff=16, encoder_layers=2, decoder_layers=2, shared_vocab=False)
    >>> fast = Transformer(ModelConfig(source_vocab_size=10, target_vocab_size=12, **sizes))
    >>> paper = dict(max_len=50, d_model=8, N=2, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    >>> encoder = transformer.TransformerEncoder(10, pad_idx=9, **paper)  # padding is the last id there
    >>> decoder = transformer.TransformerDecoder(12, pad_idx=11, **paper)
    >>> transformer_to_fast(encoder, decoder, fast)
    """
    _check_models(encoder, decoder, target)
    order = _order(target.config.d_model)
    scale = math.sqrt(target.config.d_model)
    source_table, target_table = encoder.embedding.embedding.weight, decoder.embedding.embedding.weight
    if target.source_embedding is None and not torch.equal(source_table, target_table):
        raise InputError(
            "encoder and decoder have different embeddings, and target shares one between both: make it with "
            "shared_vocab=False"
        )
    _copy(target.target_embedding.weight, target_table[:, order] / scale)
    if target.source_embedding is not None:
        _copy(target.source_embedding.weight, source_table[:, order] / scale)
    for ours, theirs in _layer_pairs(encoder, decoder, target):
        for ours_attention, theirs_attention in _attention_pairs(ours, theirs):
            per_head_to_fast(ours_attention, theirs_attention)
            _reorder_attention(theirs_attention, order)
        for mine, other, axis in _rest_of_layer(ours, theirs):
            _copy(other, mine if axis is None else mine.index_select(axis, order))


@torch.no_grad()
def transformer_from_fast(
    source: Any, encoder: transformer.TransformerEncoder, decoder: transformer.TransformerDecoder
) -> None:
    """Fill an encoder and a decoder from `source`, a `glassformer.Transformer`, the reverse of `transformer_to_fast`.

    >>> from glassformer import ModelConfig, Transformer
    >>> sizes = dict(d_model=8, heads=2, d_ff=16, encoder_layers=2, decoder_layers=2, shared_vocab=False)
    >>> fast = Transformer(ModelConfig(source_vocab_size=10, target_vocab_size=12, **sizes))
    >>> paper = dict(max_len=50, d_model=8, N=2, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    >>> encoder = transformer.TransformerEncoder(10, pad_idx=9, **paper)  # padding is the last id there
    >>> decoder = transformer.TransformerDecoder(12, pad_idx=11, **paper)
    >>> transformer_from_fast(fast, encoder, decoder)
    """
    _check_models(encoder, decoder, source)
    for layers in _layer_pairs(encoder, decoder, source):
        for _, attention in _attention_pairs(*layers):
            _must_be_zero("in_proj_bias", _read(attention)[1], "the per-head projections have no bias")
    order = _order(source.config.d_model)
    back = order.argsort()
    scale = math.sqrt(source.config.d_model)
    target_table = source.target_embedding.weight
    source_table = target_table if source.source_embedding is None else source.source_embedding.weight
    _copy(decoder.embedding.embedding.weight, target_table[:, back] * scale)
    _copy(encoder.embedding.embedding.weight, source_table[:, back] * scale)
    for ours, theirs in _layer_pairs(encoder, decoder, source):
        for ours_attention, theirs_attention in _attention_pairs(ours, theirs):
            per_head_from_fast(theirs_attention, ours_attention)
            for weight in (ours_attention.W_q, ours_attention.W_k, ours_attention.W_v):
                weight.copy_(weight[:, back])
            ours_attention.linear.weight.copy_(ours_attention.linear.weight[back])
            ours_attention.linear.bias.copy_(ours_attention.linear.bias[back])
        for mine, other, axis in _rest_of_layer(ours, theirs):
            _copy(mine, other if axis is None else other.index_select(axis, back))


def _check_models(encoder: transformer.TransformerEncoder, decoder: transformer.TransformerDecoder, fast: Any) -> None:
    """Raise InputError unless all settings agree."""
    config = fast.config
    for setting, only in (
        ("activation", "relu"),
        ("scale_embedding", True),
        ("tied_output", True),
        ("output_bias", False),
        ("norm_first", False),
        ("final_norm", False),
    ):
        if getattr(config, setting) != only:
            raise InputError(
                f"{setting} must be {only}, which the reference always has, got {getattr(config, setting)}"
            )
    for name, model, vocab, pad in (
        ("encoder", encoder, config.source_vocab_size, fast.source_pad),
        ("decoder", decoder, config.target_vocab_size, fast.target_pad),
    ):
        table = model.embedding.embedding
        sizes = {"vocab_size": table.num_embeddings, "d_model": table.embedding_dim, "pad_idx": table.padding_idx}
        for size, other in (("vocab_size", vocab), ("d_model", config.d_model), ("pad_idx", pad)):
            if sizes[size] != other:
                raise InputError(f"{size} of the {name} must be the other model's {other}, got {sizes[size]}")
    for ours, theirs in _layer_pairs(encoder, decoder, fast):
        for attention, other in _attention_pairs(ours, theirs):
            if attention.h != other.num_heads:
                raise InputError(f"heads_num must be the other model's {other.num_heads}, got {attention.h}")
        if ours.ffn.linear1.out_features != config.d_ff:
            raise InputError(f"d_ff must be the other model's {config.d_ff}, got {ours.ffn.linear1.out_features}")
        for ours_norm, theirs_norm in _norm_pairs(ours, theirs):
            if ours_norm.eps != theirs_norm.eps:
                raise InputError(f"layer_norm_eps must be the other model's {theirs_norm.eps}, got {ours_norm.eps}")


def _order(d_model: int) -> Tensor:
    """Return where each number of the fast model's width stands in the reference's: all sines, then all cosines."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def _reorder_attention(attention: Any, order: Tensor) -> None:
    attention.in_proj_weight.copy_(attention.in_proj_weight[:, order])
    attention.out_proj.weight.copy_(attention.out_proj.weight[order])
    if attention.out_proj.bias is not None:
        attention.out_proj.bias.copy_(attention.out_proj.bias[order])


def _layer_pairs(
    encoder: transformer.TransformerEncoder, decoder: transformer.TransformerDecoder, fast: Any
) -> Iterator[tuple[Any, Any]]:
    for name, ours, theirs in (
        ("encoder", encoder.encoder_layers, fast.encoder),
        ("decoder", decoder.decoder_layers, fast.decoder),
    ):
        if len(ours) != len(theirs):
            raise InputError(f"{name} must have as many layers as the other model's, got {len(ours)} and {len(theirs)}")
        yield from zip(ours, theirs, strict=True)


def _attention_pairs(ours: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(ours, transformer.TransformerEncoderLayer):
        yield ours.multi_head_attention, theirs.self_attention
    else:
        yield ours.self_attention, theirs.self_attention
        yield ours.src_tgt_attention, theirs.source_attention


def _norm_pairs(ours: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    yield ours.layer_norm_self_attention, theirs.self_attention_norm
    if isinstance(ours, transformer.TransformerDecoderLayer):
        yield ours.layer_norm_src_tgt_attention, theirs.source_attention_norm
    yield ours.layer_norm_ffn, theirs.feed_forward_norm


def _rest_of_layer(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor, int | None]]:
    """Yield a layer's parameters but attention's: in either model, and which of the axes is d_model wide."""
    for ours_norm, theirs_norm in _norm_pairs(ours, theirs):
        yield ours_norm.weight, theirs_norm.weight, 0
        yield ours_norm.bias, theirs_norm.bias, 0
    yield ours.ffn.linear1.weight, theirs.feed_forward.inner.weight, 1
    yield ours.ffn.linear1.bias, theirs.feed_forward.inner.bias, None
    yield ours.ffn.linear2.weight, theirs.feed_forward.outer.weight, 0
    yield ours.ffn.linear2.bias, theirs.feed_forward.outer.bias, 0


def _read(fast: Any) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return the weights of the three projections, their biases, and the output's weight and bias, zero if absent."""
    if fast.bias_k is not None or fast.add_zero_attn:
        raise InputError("source adds keys (add_bias_kv or add_zero_attn), which the step-by-step forms don't have")
    if fast.in_proj_weight is None:
        raise InputError(f"source has kdim {fast.kdim} and vdim {fast.vdim}: the step-by-step forms have one width")
    output = fast.out_proj.weight
    biases = output.new_zeros(3 * fast.embed_dim) if fast.in_proj_bias is None else fast.in_proj_bias
    output_bias = output.new_zeros(fast.embed_dim) if fast.out_proj.bias is None else fast.out_proj.bias
    return list(fast.in_proj_weight.chunk(3)), list(biases.chunk(3)), output, output_bias


def _fill(fast: Any, weights: list[Tensor], biases: list[Tensor], output: Tensor, output_bias: Tensor | None) -> None:
    """Write the parts that `_read` returns into a fast module; biases that are not given are zero."""
    if fast.bias_k is not None or fast.add_zero_attn:
        raise InputError("target must not add keys (add_bias_kv, add_zero_attn): the step-by-step forms don't")
    if fast.in_proj_weight is None:
        raise InputError(f"target must have one width, got kdim {fast.kdim} and vdim {fast.vdim}")
    if fast.in_proj_bias is None:
        _must_be_zero("biases of the projections", biases, "target has none: make it with bias=True")
        _must_be_zero(
            "output.bias", [] if output_bias is None else [output_bias], "target has none: make it with bias=True"
        )
    pairs = [(fast.in_proj_weight, torch.cat(weights)), (fast.out_proj.weight, output)]
    if fast.in_proj_bias is not None:
        in_bias, out_bias = torch.zeros_like(fast.in_proj_bias), torch.zeros_like(fast.out_proj.bias)
        pairs += [
            (fast.in_proj_bias, torch.cat([x.to(in_bias) for x in biases]) if biases else in_bias),
            (fast.out_proj.bias, out_bias if output_bias is None else output_bias),
        ]
    _copy_all(pairs)


def _must_be_zero(name: str, biases: list[Tensor], why: str) -> None:
    if any(x.count_nonzero() for x in biases):
        raise InputError(f"{name} holds numbers that would be lost: {why}")


def _copy(into: Tensor, values: Tensor) -> None:
    _copy_all([(into, values)])


def _copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each tensor into its parameter, or none if the shapes of one pair differ."""
    pairs = list(pairs)
    for into, values in pairs:
        if into.shape != values.shape:
            raise InputError(
                f"the sizes differ: a parameter of shape {tuple(values.shape)} can't be held by {tuple(into.shape)}"
            )
    for into, values in pairs:
        into.copy_(values)
