"""Models made of torch.nn's modules: their weights in our Transformer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from glassformer.attention.multihead import MultiheadAttention
from glassformer.errors import ArgumentError, ConfigError, shown
from glassformer.generation.batches import search_all
from glassformer.generation.config import SearchConfig, as_config
from glassformer.generation.engines.engine import Engine
from glassformer.generation.search import Hypothesis
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

POSITIONS = ("interleaved", "split")
_EPS = 1e-5  # what each of our LayerNorms has
# A kind of part: of which class it must be, and which axis of each of its parameters is as wide as the model.
_ATTENTION = (
    (nn.MultiheadAttention, MultiheadAttention),
    {"in_proj_weight": 1, "in_proj_bias": None, "out_proj.weight": 0, "out_proj.bias": 0},
)
_NORM = ((nn.LayerNorm,), {"weight": 0, "bias": 0})
_INNER = ((nn.Linear,), {"weight": 1, "bias": None})
_OUTER = ((nn.Linear,), {"weight": 0, "bias": 0})
# The parts of a layer, ours and torch's.
_ENCODER_LAYER = {
    "self_attention": ("self_attn", _ATTENTION),
    "self_attention_norm": ("norm1", _NORM),
    "feed_forward.inner": ("linear1", _INNER),
    "feed_forward.outer": ("linear2", _OUTER),
    "feed_forward_norm": ("norm2", _NORM),
}
_DECODER_LAYER = {
    **_ENCODER_LAYER,
    "source_attention": ("multihead_attn", _ATTENTION),
    "source_attention_norm": ("norm2", _NORM),
    "feed_forward_norm": ("norm3", _NORM),
}
_STACKS = (
    ("encoder", nn.TransformerEncoder, nn.TransformerEncoderLayer, _ENCODER_LAYER),
    ("decoder", nn.TransformerDecoder, nn.TransformerDecoderLayer, _DECODER_LAYER),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Converted:
    """The result of `from_torch`: the model, and the way from the caller's ids to its ids and back.

    Ids may have any shape, and the result is on their device; one outside the vocabulary is an ArgumentError.
    """

    model: Transformer
    """The model in eval mode, with the dtype and device of the embeddings it was made from. If it is trained further,
    dropout acts where our model has it, which is not inside the feed-forward layers."""
    source_map: Int[Tensor, " caller_source_vocab"]
    """The model's id of each of the caller's source ids."""
    target_map: Int[Tensor, " target_vocab"]
    """The caller's id of each of the model's target ids: `end`, all others in the caller's order, `start`."""

    def generate(self, sources: Sequence[Sequence[int]], config: SearchConfig | None = None) -> list[list[Hypothesis]]:
        """Return up to `config.n_best` targets for each source, best first: beam search, greedy search or sampling.

        Sources and targets are the caller's ids. A source is what the model was trained to read, symbols around it
        included, and isn't cut, whatever `config.max_source_tokens` is; a target has neither `start` nor `end`. Sources
        of like length are searched together, with a cache. Raises ArgumentError for what is no source, and ConfigError
        for settings that need text.
        """
        config = as_config(config)
        if config.consensus:
            raise ConfigError("generate can't choose by consensus, which compares words: it has ids alone")
        if config.replace_unknown:
            raise ConfigError("generate can't replace_unknown, which takes words from the source: it has ids alone")
        engine = Engine.of(self.model)
        ours = [self.source_ids(_ids_of(source, n)).tolist() for n, source in enumerate(sources)]
        for number, ids in enumerate(ours):
            if ids and set(ids) == {self.model.source_pad}:
                raise ArgumentError(f"source {number} is nothing but padding: leave padding out")
        found = search_all(engine, ours, config)
        return [
            [replace(best, ids=self.target_ids(torch.tensor(best.ids, dtype=torch.long)).tolist()) for best in all_best]
            for all_best in found
        ]

    def source_ids(self, ids: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Return the model's source ids for the caller's; `source_pad` becomes `model.source_pad`."""
        return _translated("source ids", ids, self.source_map)

    def target_ids(self, ids: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Return the caller's target ids for the model's, `end` and `start` among them."""
        return _translated("target ids", ids, self.target_map)


def _ids_of(source: Any, number: int) -> Int[Tensor, " ids"]:
    """Return a source as a tensor; ArgumentError where it is no sequence of ids."""
    try:
        ids = torch.as_tensor(source)
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if ids is None or ids.ndim == 0:
        raise ArgumentError(f"sources[{number}] must be a sequence of ids, got {shown(source)}: for one give [source]")
    if ids.numel() and (ids.ndim != 1 or ids.is_floating_point() or ids.dtype == torch.bool):
        raise ArgumentError(f"sources[{number}] must be ids in one axis, got {ids.dtype} of shape {tuple(ids.shape)}")
    return ids.long()


def from_torch(
    encoder: nn.Module,
    decoder: nn.Module,
    *,
    source_embedding: nn.Module,
    target_embedding: nn.Module,
    output: nn.Module,
    start: int,
    end: int,
    source_pad: int | None,
    target_pad: int | None,
    scale_embedding: bool,
    positions: str,
) -> Converted:
    """Return the `Transformer` that computes what a model around `torch.nn.Transformer` does, and decodes with a cache.

    >>> theirs = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)  # attention, feed-forward and norms alone
    >>> source_embedding, target_embedding = nn.Embedding(20, 8), nn.Embedding(30, 8)
    >>> converted = from_torch(
    ...     theirs.encoder, theirs.decoder, source_embedding=source_embedding, target_embedding=target_embedding,
    ...     output=nn.Linear(8, 30), start=2, end=3, source_pad=1, target_pad=1, scale_embedding=True,
    ...     positions="interleaved",
    ... )
    >>> source = converted.source_ids(torch.tensor([[5, 9, 3], [7, 3, 1]]))  # (batch, source_len)
    >>> first = converted.model(source, torch.full((2, 1), converted.model.target_pad)).argmax(-1)
    >>> converted.target_ids(first).shape  # each target's first id, in the ids of `theirs`
    torch.Size([2, 1])

    encoder, decoder: `nn.TransformerEncoder` and `nn.TransformerDecoder`, an `nn.Transformer`'s or not; pre-norm or
        post-norm, relu, gelu or silu, with and without biases, with both final norms or neither, `batch_first` or not.
    source_embedding, target_embedding: `nn.Embedding`, which may be one and the same.
    output: `nn.Linear` from the decoder to the logits of every target id; its weight may be the target embedding's.
    start, end: the target ids of the symbol that decoding starts from and of the one that ends a target.
    source_pad: the id that `src_key_padding_mask` and `memory_key_padding_mask` are made of, or None if nothing masks
        the source.
    target_pad: the id that fills targets up, or None if there is none. It may be `start`.
    scale_embedding: whether embeddings are multiplied by sqrt(d_model).
    positions: how the sinusoids lie in the width that are then added: "interleaved" (sin, cos, sin, cos, as in the
        paper and PyTorch's tutorials) or "split" (all sines, then all cosines). Sine and cosine number i are those of
        p / 10000^(2i / d_model), p counted from 0. Our model's are split: interleaved ones become so by one
        permutation of the width throughout the weights.

    The weights don't show these ids and conventions, and nothing warns if one is wrong. So none has a default: compare
    the logits of both models once.

    Neither `start` nor `target_pad` can follow anything in a target, so the model predicts neither. Its target ids are
    `end`, then all others except these two in the caller's order, then `start`. Decoding starts from `start`, as it
    starts from padding in our other models. Logits of predicted ids are the caller's; probabilities are over these ids
    alone. The model's source ids are the caller's, except for `source_pad`, which comes last. Source and target have
    embeddings of their own even if the caller's share one, because source padding and `start` are both the last id.

    Weights are copied. ArgumentError says what our model can't hold.
    """
    settings = _settings(encoder, decoder)
    source, target = (
        _embedding(name, module, settings["d_model"])
        for name, module in (("source_embedding", source_embedding), ("target_embedding", target_embedding))
    )
    linear = _output(output, target)
    dtypes = {parameter.dtype for part in (encoder, decoder, source, target, linear) for parameter in part.parameters()}
    if len(dtypes) > 1:
        raise ArgumentError(
            f"all weights must have one dtype, got {' and '.join(sorted(map(str, dtypes)))}: convert the whole model "
            "with .to(dtype) first"
        )
    source_order = _source_order(source.num_embeddings, source_pad)
    target_order = _target_order(target.num_embeddings, start, end, target_pad)
    columns = _columns(settings["d_model"], positions)
    config = ModelConfig(
        source_vocab_size=source.num_embeddings + (source_pad is None),
        target_vocab_size=len(target_order),
        shared_vocab=False,
        scale_embedding=scale_embedding,
        tied_output=linear.weight is target.weight,
        output_bias=linear.bias is not None,
        **settings,
    )
    model = Transformer(config).to(target.weight).eval()
    weights = dict(_layer_weights(encoder, decoder, columns))
    source_rows = source.weight.detach()[source_order][:, columns]
    weights["source_embedding.weight"] = source_rows if source_pad is not None else F.pad(source_rows, (0, 0, 0, 1))
    weights["target_embedding.weight"] = target.weight.detach()[target_order][:, columns]
    if not config.tied_output:
        weights["output.weight"] = linear.weight.detach()[target_order[:-1]][:, columns]
    if config.output_bias:
        weights["output_bias"] = linear.bias.detach()[target_order[:-1]]
    model.load_state_dict({**model.state_dict(), **weights})  # biases that torch's model lacks are zero in ours
    return Converted(model=model, source_map=source_order.argsort(), target_map=target_order)


def _settings(encoder: Any, decoder: Any) -> dict[str, Any]:
    """Return the settings of ModelConfig that the layers, which must agree, and the final norms show."""
    settings: dict[str, Any] = {}
    places: dict[str, str] = {}
    for setting, place, value in _settings_by_place(encoder, decoder):
        places.setdefault(setting, place)
        if settings.setdefault(setting, value) != value:
            raise ArgumentError(
                f"{setting} must be the same in all layers, got {settings[setting]!r} in {places[setting]} and "
                f"{value!r} in {place}"
            )
    norms = {"encoder.norm": encoder.norm, "decoder.norm": decoder.norm}
    for place, norm in norms.items():
        if norm is not None:
            _check_norm(place, norm)
            _check_names(place, norm, _NORM[1])
    if (encoder.norm is None) != (decoder.norm is None):
        missing, there = sorted(norms, key=lambda place: norms[place] is not None)
        raise ArgumentError(
            f"encoder.norm and decoder.norm must be both a LayerNorm or both None, got {missing} None and {there} a "
            "LayerNorm: our model has both or neither"
        )
    first = encoder.layers[0]
    return settings | {
        "encoder_layers": len(encoder.layers),
        "decoder_layers": len(decoder.layers),
        "dropout": first.dropout1.p,
        "attention_dropout": first.self_attn.dropout,
        "final_norm": encoder.norm is not None,
    }


def _settings_by_place(encoder: Any, decoder: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, place and value of each layer's settings; ArgumentError for a part of a class we don't know."""
    for (name, kind, layer_kind, parts), stack in zip(_STACKS, (encoder, decoder), strict=True):
        _check_class(name, stack, (kind,))
        if not stack.layers:
            raise ArgumentError(f"{name} must have at least 1 layer, got none")
        for n, layer in enumerate(stack.layers):
            place = f"{name}.layers[{n}]"
            _check_class(place, layer, (layer_kind,))
            for theirs, (classes, axes) in parts.values():
                part = getattr(layer, theirs)
                _check_class(f"{place}.{theirs}", part, classes)
                if classes is _NORM[0]:
                    _check_norm(f"{place}.{theirs}", part)
                elif classes is _ATTENTION[0]:
                    _check_attention(f"{place}.{theirs}", part)
                    yield "d_model", f"{place}.{theirs}", part.embed_dim
                    yield "heads", f"{place}.{theirs}", part.num_heads
                _check_names(f"{place}.{theirs}", part, axes)
            yield "d_ff", f"{place}.linear1", layer.linear1.out_features
            yield "activation", place, _activation(place, layer.activation)
            yield "norm_first", place, layer.norm_first


def _check_class(place: str, module: Any, classes: tuple[type, ...]) -> None:
    """Raise ArgumentError unless the module is of exactly one of these: a subclass may compute something else."""
    if type(module) in classes:
        return
    fix = (
        "give its encoder and its decoder"
        if isinstance(module, nn.Transformer)
        else "what another class computes, a custom one, a subclass or a wrapper, can't be read from its weights"
    )
    raise ArgumentError(f"{place} must be a torch.nn.{classes[0].__name__}, got {type(module).__name__}: {fix}")


def _check_names(place: str, part: nn.Module, known: Mapping[str, int | None]) -> None:
    """Raise ArgumentError where a part keeps its weights by other names, as under torch.nn.utils.prune."""
    if unknown := sorted(set(part.state_dict()) - set(known)):
        raise ArgumentError(
            f"{place} must have its weights as they are used, got {unknown[0]}: first call "
            "torch.nn.utils.prune.remove, remove_weight_norm or remove_spectral_norm"
        )


def _check_norm(place: str, norm: Any) -> None:
    _check_class(place, norm, (nn.LayerNorm,))
    if norm.eps != _EPS:
        raise ArgumentError(
            f"{place} must have layer_norm_eps = {_EPS}, torch's default and the only one of our model, got {norm.eps}"
        )


def _check_attention(place: str, attention: Any) -> None:
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise ArgumentError(
            f"{place} must have one width and add no keys, got kdim {attention.kdim}, vdim {attention.vdim}, "
            f"add_bias_kv {attention.bias_k is not None} and add_zero_attn {attention.add_zero_attn}: our model has "
            "no place for these"
        )


def _activation(place: str, function: Any) -> str:
    """Return our name of an activation, which torch's layers keep as a function or a module."""
    if function in (F.relu, torch.relu) or type(function) is nn.ReLU:
        return "relu"
    if function is F.gelu or (type(function) is nn.GELU and function.approximate == "none"):
        return "gelu"
    if function is F.silu or type(function) is nn.SiLU:
        return "swish"
    name = repr(function) if isinstance(function, nn.Module) else getattr(function, "__name__", repr(function))
    raise ArgumentError(f"activation must be relu, gelu (the exact one) or silu, got {name} in {place}")


def _embedding(name: str, module: Any, width: int) -> nn.Embedding:
    _check_class(name, module, (nn.Embedding,))
    if module.embedding_dim != width:
        raise ArgumentError(
            f"{name} must be as wide as the layers, {width}, got nn.Embedding({module.num_embeddings}, "
            f"{module.embedding_dim})"
        )
    if module.max_norm is not None:
        raise ArgumentError(f"{name} must have max_norm=None, got {module.max_norm}: our model uses rows as they are")
    return module


def _output(module: Any, target: nn.Embedding) -> nn.Linear:
    _check_class("output", module, (nn.Linear,))
    size, width = target.weight.shape
    if module.weight.shape != target.weight.shape:
        raise ArgumentError(
            f"output must be nn.Linear({width}, {size}), from the layers' width to a logit for each id of "
            f"target_embedding, got nn.Linear({module.in_features}, {module.out_features})"
        )
    return module


def _source_order(size: int, pad: int | None) -> Tensor:
    """Return the caller's id of each of our source ids: all in order, but padding last."""
    if pad is None:
        return torch.arange(size)
    _check_id("source_pad", pad, size, "source_embedding")
    return torch.tensor([*(i for i in range(size) if i != pad), pad])


def _target_order(size: int, start: int, end: int, pad: int | None) -> Tensor:
    """Return the caller's id of each of our target ids: the end, the others in order, the start."""
    for name, i in (("start", start), ("end", end), ("target_pad", pad)):
        if i is not None:
            _check_id(name, i, size, "target_embedding")
    if start == end:
        raise ArgumentError(f"start and end must be two ids, got {start} for both: end is predicted and start never")
    if end == pad:
        raise ArgumentError(
            f"target_pad must be another id than end = {end}, which is predicted and padding never: if your model was "
            "trained to predict it, give target_pad=None"
        )
    others = (i for i in range(size) if i not in (start, end, pad))
    return torch.tensor([end, *others, start])


def _check_id(name: str, i: int, size: int, table: str) -> None:
    if not 0 <= i < size:
        raise ArgumentError(f"{name} must be an id of {table}, 0 to {size - 1}, got {i}")


def _columns(width: int, positions: str) -> Tensor:
    """Return where each number of our width stands in the caller's."""
    if positions not in POSITIONS:
        raise ArgumentError(
            f"positions must be one of {', '.join(POSITIONS)}, got {positions!r}: our model adds sinusoids and "
            "can hold no others"
        )
    ordered = torch.arange(width)
    return ordered if positions == "split" else torch.cat([ordered[::2], ordered[1::2]])


def _layer_weights(encoder: Any, decoder: Any, columns: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield our name and the value of each weight of the layers and final norms."""
    for (name, _, _, parts), stack in zip(_STACKS, (encoder, decoder), strict=True):
        for n, layer in enumerate(stack.layers):
            for ours, (theirs, (_, axes)) in parts.items():
                yield from _part_weights(f"{name}.{n}.{ours}", getattr(layer, theirs), axes, columns)
        if stack.norm is not None:
            yield from _part_weights(f"{name}_norm", stack.norm, _NORM[1], columns)


def _part_weights(
    ours: str, part: nn.Module, axes: Mapping[str, int | None], columns: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield a part's weights with the model's width in our order; the width of the heads stays in theirs."""
    for name, value in part.state_dict().items():
        axis = axes[name]
        yield f"{ours}.{name}", value if axis is None else value.index_select(axis, columns.to(value.device))


def _translated(name: str, ids: Tensor, by: Tensor) -> Tensor:
    """Return each id's entry in `by`; ArgumentError for ids that have none."""
    if ids.numel() and not 0 <= ids.min() <= ids.max() < len(by):
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise ArgumentError(f"{name} must be 0 to {len(by) - 1}, got {worst.item()}")
    return by.to(ids.device)[ids.long()]
