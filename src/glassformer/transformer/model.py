"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.attention.masks import keep_from_ids
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.packing import Packing
from glassformer.errors import ArgumentError
from glassformer.memory import check_room
from glassformer.transformer.cache import Cache
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.dropout import Dropout
from glassformer.transformer.layers import DecoderLayer, EncoderLayer
from glassformer.transformer.positions import Positions

Ids = Int[Tensor, "batch length"]
Hidden = Float[Tensor, "batch length d_model"]
SourceKeep = Bool[Tensor, "sources 1 1 source_len"]


class Transformer(nn.Module):
    """softmax(decode(target so far, encode(source)) Eᵀ), E the target embeddings.

    Conventions of the Marian layout: embeddings times sqrt(d_model), plus sinusoids; post-norm layers, no final
    norm (unless `norm_first` and `final_norm` say otherwise); the decoder starts from the padding id. The embedding of
    padding is zero and stays so, and padding, the last id, is never predicted: logits are `target_pad` wide.
    Source padding comes last in a row.

    >>> model = Transformer(ModelConfig.tiny(source_vocab_size=100, target_vocab_size=100)).eval()
    >>> source = torch.tensor([[7, 5, 9, 0], [8, 0, 99, 99]])  # </s> = 0 ends a source, <pad> = 99 fills it up
    >>> keep = (source != model.source_pad)[:, None, None]  # (batch, 1, 1, source_len), True = may be attended to
    >>> cache = model.start(model.encode(source, keep), keep)
    >>> states, cache = model.decode(torch.full((2, 1), model.target_pad), cache)
    >>> next_token = model.logits(states[:, -1]).argmax(-1)
    >>> states, cache = model.decode(next_token[:, None], cache)
    >>> states.shape, cache.length
    (torch.Size([2, 1, 128]), 2)
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c = self.config = config
        self.source_pad, self.target_pad = c.source_pad, c.target_pad
        self.target_embedding = nn.Embedding(c.target_vocab_size, c.d_model, padding_idx=self.target_pad)
        self.source_embedding = (  # None: the target's serves both
            None if c.shared_vocab else nn.Embedding(c.source_vocab_size, c.d_model, padding_idx=self.source_pad)
        )
        self.positions = Positions(c.d_model)
        sizes = (c.d_model, c.heads, c.d_ff, c.dropout, c.attention_dropout, c.activation, c.norm_first)
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(c.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(c.decoder_layers))
        self.encoder_norm = nn.LayerNorm(c.d_model) if c.final_norm else None
        self.decoder_norm = nn.LayerNorm(c.d_model) if c.final_norm else None
        self.dropout = Dropout(c.dropout)
        self.output = None if c.tied_output else nn.Linear(c.d_model, c.target_pad, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(c.target_pad)) if c.output_bias else None
        self._initialise()
        for name, left in c.heads_left.items():
            self.attentions[name].keep_heads(range(left))

    def forward(
        self, source: Int[Tensor, "batch source_len"], target_in: Int[Tensor, "batch target_len"]
    ) -> Float[Tensor, "batch target_len predictable"]:
        """Return the logits of the token after each position of `target_in`, a target that padding starts."""
        keep = keep_from_ids(source, self.source_pad)
        states, _ = self.decode(target_in, self.start(self.encode(source, keep), keep))
        return self.logits(states)

    def encode(self, source: Ids, keep: SourceKeep | None = None, packing: Packing | None = None) -> Hidden:
        """Return the encoder's states of the source ids; `keep` is False on padding.

        With `packing` the sources are one row, side by side, and `keep` is the packing's.
        """
        keep = keep if packing is None else packing.keep
        x = self._embed(source, self.source_embedding or self.target_embedding, start=0, packing=packing)
        for layer in self.encoder:
            x = layer(x, keep, packing)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def start(self, memory: Hidden, keep: SourceKeep | None = None, packing: Packing | None = None) -> Cache:
        """Return the cache from which decoding starts: every layer's keys and values of the source."""
        layers = cast(Iterable[DecoderLayer], self.decoder)
        keep = keep if packing is None else packing.keep
        return Cache(tuple(layer.start(memory, packing) for layer in layers), keep)

    def decode(
        self, target_in: Int[Tensor, "rows length"], cache: Cache, packing: Packing | None = None
    ) -> tuple[Float[Tensor, "rows length d_model"], Cache]:
        """Return the states of the next positions, and the cache with them added.

        Rows may be several per source: with B sources and W hypotheses of each, row b * W + w is hypothesis w of
        source b. Teacher forcing decodes all positions at once, generation one after the other; both give the same
        states. With `packing` the targets, one for each source, are one row.
        """
        sources = cache.layers[0].memory_keys.shape[0]
        if packing is None and (target_in.shape[0] % sources if sources else target_in.shape[0]):
            raise ArgumentError(
                f"target_in must have as many rows as the cache has sources, {sources}, or a multiple of it, got "
                f"{target_in.shape[0]}"
            )
        if packing is not None and cache.length:
            raise ArgumentError(
                f"packing is for whole targets, but the cache has {cache.length} positions of each already: start from "
                "model.start(memory, packing=packing)"
            )
        x = self._embed(target_in, self.target_embedding, start=cache.length, packing=packing)
        layers = []
        for layer, layer_cache in zip(self.decoder, cache.layers, strict=True):
            x, layer_cache = layer(x, layer_cache, cache.memory_keep, packing)
            layers.append(layer_cache)
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        return x, Cache(tuple(layers), cache.memory_keep)

    @property
    def attentions(self) -> dict[str, MultiheadAttention]:
        """Every attention by its path, layer by layer."""
        return {name: cast(MultiheadAttention, self.get_submodule(name)) for name in self.config.attentions}

    @property
    def output_weight(self) -> Float[Tensor, "predictable d_model"]:
        """The output projection to every id but padding; unless the output is untied, the target embeddings."""
        return self.target_embedding.weight[: self.target_pad] if self.output is None else self.output.weight

    def logits(self, states: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch predictable"]:
        """Return the unnormalised log-probabilities of every id but padding."""
        return F.linear(states, self.output_weight, self.output_bias)

    def _embed(self, ids: Ids, embedding: nn.Embedding, start: int, packing: Packing | None) -> Hidden:
        x = embedding(ids)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.d_model)
        x = self.positions(x, start) if packing is None else self.positions.add_packed(x, packing)
        device = x.device.type
        if x.dtype == torch.float32 and device != "meta" and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))  # so the sums are as short as the products
        return self.dropout(x)

    @torch.no_grad()
    def _initialise(self) -> None:
        """Draw every matrix from Xavier uniform, and embeddings from normal(0, d_model^-0.5), padding's being zero."""
        for name, parameter in self.named_parameters():
            if "embedding" in name:
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
                parameter[-1] = 0.0
            elif parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each weight of a Transformer of this config, without building one."""
    d = config.d_model
    norm = {"weight": (d,), "bias": (d,)}

    def attention(name: str) -> dict[str, tuple[int, ...]]:
        inner = config.heads_of(name) * (d // config.heads)
        return {
            "in_proj_weight": (3 * inner, d),
            "in_proj_bias": (3 * inner,),
            "out_proj.weight": (d, inner),
            "out_proj.bias": (d,),
        }

    feed_forward = {
        "inner.weight": (config.d_ff, d),
        "inner.bias": (config.d_ff,),
        "outer.weight": (d, config.d_ff),
        "outer.bias": (d,),
    }
    shapes: dict[str, tuple[int, ...]] = {"target_embedding.weight": (config.target_vocab_size, d)}
    if not config.shared_vocab:
        shapes["source_embedding.weight"] = (config.source_vocab_size, d)
    parts = {name: attention(name) for name in config.attentions}
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        parts |= {f"{stack}.{n}.feed_forward": feed_forward for n in range(layers)}
        if config.final_norm:
            shapes |= {f"{stack}_norm.{name}": shape for name, shape in norm.items()}
    for part, weights in parts.items():
        shapes |= {f"{part}.{name}": shape for name, shape in weights.items()}
        shapes |= {f"{part}_norm.{name}": shape for name, shape in norm.items()}
    if not config.tied_output:
        shapes["output.weight"] = (config.target_pad, d)
    if config.output_bias:
        shapes["output_bias"] = (config.target_pad,)
    return shapes


def count_parameters(config: ModelConfig) -> int:
    """Return how many weights a Transformer of this config has; tied ones count once."""
    return sum(map(math.prod, weight_shapes(config).values()))


def check_memory(*configs: ModelConfig, fix: str, bytes_each: int = 4) -> None:
    """Raise OutOfMemoryError where models of these configs, with so many bytes for each weight, have no room in memory.

    `fix` says what to do. Nothing is built.
    """
    parameters = sum(map(count_parameters, configs))
    what = "a model" if len(configs) == 1 else f"{len(configs)} models"
    check_room(bytes_each * parameters, f"{what} of {parameters:,} parameters, {bytes_each} bytes each,", fix)
