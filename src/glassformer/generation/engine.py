"""The Transformer prepared for generation: the same results as the model's, weights laid out once, no gradients.

A step of B sources with W hypotheses each works on B * W rows; row b * W + w is hypothesis w of source b.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.attend import attend, attend_step
from glassformer.attention.kernels.products import PackedLinear
from glassformer.attention.kernels.weigh import weigh
from glassformer.device import mapped_memory
from glassformer.errors import RunError
from glassformer.generation.cache import BeamCache
from glassformer.generation.graph import FixedCache, StepGraph
from glassformer.generation.quantized import QuantizedLinear
from glassformer.generation.top import BLOCK
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer
from glassformer.transformer.positions import sinusoids

Ids = Int[Tensor, "batch length"]
Source = Int[Tensor, "batch source_len"]
TargetIds = Int[Tensor, "batch target_len"]
Keep = Bool[Tensor, "batch 1 1 source_len"]
Hidden = Float[Tensor, "batch length d_model"]
Memory = Float[Tensor, "batch source_len d_model"]
Target = Float[Tensor, "batch target_len d_model"]
Heads = Float[Tensor, "batch heads q_len d_head"]
Keys = Float[Tensor, "batch heads k_len d_head"]
READY_POSITIONS = 1024
FEW_ROWS = 8

Stack = Literal["encoder", "decoder", "source"]
Look = Callable[[Stack, int, Heads, Keys, Keys, Keep | None, bool], Heads]
"""How the attention of a stack's layer is computed, from q, k, v, keep, causal."""


def _attend(stack: Stack, layer: int, q: Heads, k: Keys, v: Keys, keep: Keep | None, causal: bool) -> Heads:
    return attend(q, k, v, keep=keep, causal=causal) if q.shape[1] else q


class Engine:
    """Encoder, decoder and output layer over prepared weights.

    `weights` are named as in a Transformer's state_dict and are read one after the other, so that a file's never
    lie in memory twice. `dtype` is that of weights and products; log-probabilities are computed from it in float32 or
    better. With `int8` the decoder has a second set of weights, of eight bits, for a single source with at most
    `FEW_ROWS` hypotheses: reading the weights is then what takes time.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        int8: bool = False,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        self.int8 = int8
        self.source_pad, self.target_pad = config.source_vocab_size - 1, config.target_vocab_size - 1
        self.cache_kind = FixedCache if self.device.type == "cuda" else BeamCache

        def take(name: str, dtype: torch.dtype = dtype) -> Tensor:
            weight = weights[name].detach()
            if not weight.isfinite().all():
                raise RunError(
                    f"the weights hold numbers that are not finite, first in {name}: train again with a lower "
                    "--learning-rate, or fetch the model again"
                )
            return weight.to(self.device, dtype, copy=True)

        with mapped_memory():
            self._lay_out(take)

    def _lay_out(self, take: Callable[..., Tensor]) -> None:
        config = self.config
        kit = _Kit(config, take, PackedLinear, self.dtype)
        target_embedding = take("target_embedding.weight")
        source_embedding = target_embedding if config.shared_vocab else take("source_embedding.weight")
        self._source_embedding = _Embedding(kit, source_embedding)
        self._encoder = [_EncoderLayer(kit, f"encoder.{n}.") for n in range(config.encoder_layers)]
        self._encoder_norm = _Norm(kit, "encoder_norm") if config.final_norm else _unchanged
        self._decoder = _Decoder(kit, target_embedding)
        self._decoder_of_one = None
        if self.int8:
            int8_kit = _Kit(config, partial(take, dtype=torch.float32), QuantizedLinear, torch.float32)
            self._decoder_of_one = _Decoder(int8_kit, target_embedding)

    @classmethod
    def of(cls, model: Transformer, dtype: torch.dtype | None = None, *, int8: bool = False) -> "Engine":
        """The engine of a model, with the model's own precision unless another is given."""
        weight = model.target_embedding.weight
        return cls(model.config, model.state_dict(), dtype or weight.dtype, weight.device, int8=int8)

    def encode(self, source: Source, keep: Keep | None = None, look: Look = _attend) -> Memory:
        """What the encoder makes of the source ids; `keep` is False on padding."""
        x = self._source_embedding(source)
        for n, layer in enumerate(self._encoder):
            x = layer(x, n, keep, look)
        return self._encoder_norm(x)

    def start(self, source: Source, keep: Keep | None, width: int) -> BeamCache:
        """The cache from which `width` hypotheses of each source are written."""
        hidden = self.encode(source, keep)
        memory = [layer.read(hidden) for layer in self._decoder.layers]
        int8 = self._decoder_of_one is not None and len(source) == 1 and width <= FEW_ROWS
        if int8:
            memory = [(keys.float(), values.float()) for keys, values in memory]
        blocked = None
        if keep is not None and not keep.all():
            blocked = memory[0][0].new_zeros(keep.shape).masked_fill_(~keep, -torch.inf)
        heads = [self.config.heads_of(f"decoder.{n}.self_attention") for n in range(len(memory))]
        return self.cache_kind(memory, blocked, width, heads=heads, int8=int8)

    def step(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache
    ) -> tuple[Float[Tensor, "rows classes"], Float[Tensor, "sources heads width d_head"]]:
        """Logits of what follows these newest tokens, which are added to the cache.

        Classes are every id but padding, then -inf up to a multiple of `BLOCK`. Also the queries of the last layer's
        attention over the source, for `alignment`.
        """
        decoder = self._decoder_of_one if cache.int8 and self._decoder_of_one else self._decoder
        cache.extend()
        if isinstance(cache, FixedCache) and self.device.type == "cuda" and cache.length <= READY_POSITIONS:
            if cache.graph is None:
                cache.graph = StepGraph(lambda newest: decoder.step(newest, cache, cache.place), tokens)
            return cache.graph.replay(tokens)
        return decoder.step(tokens, cache, cache.length - 1)

    def decode(
        self, target_in: TargetIds, source: Source, keep: Keep | None = None, look: Look = _attend
    ) -> Float[Tensor, "batch target_len classes"]:
        """Logits, as of `step`, at all positions of given targets, shifted by their start: teacher forcing."""
        return self._decoder.teach(target_in, self.encode(source, keep, look), keep, look)

    def alignment(self, query: Heads, cache: BeamCache) -> Float[Tensor, "sources width source_len"]:
        """How much of its attention each newest token pays to each source position: last layer, mean of the heads."""
        keys = cache.memory[-1][0]
        dtype = torch.promote_types(keys.dtype, torch.float32)
        return weigh(query.to(dtype), keys.to(dtype), bias=cache.blocked).mean(1)


@dataclass(frozen=True)
class _Kit:
    """What layers are made of: sizes, weights by name, the kind of linear map, and the type of what it takes."""

    config: ModelConfig
    take: Callable[[str], Tensor]
    linear: Callable[[Tensor, Tensor], PackedLinear | QuantizedLinear]
    dtype: torch.dtype

    def projection(self, weight: Tensor, bias: Tensor) -> "PackedLinear | QuantizedLinear | _NoLinear":
        """A linear map of an attention, which may have no heads."""
        return self.linear(weight, bias) if weight.numel() else _NoLinear(weight, bias)

    def heads(self, name: str) -> tuple[int, int]:
        """How many heads the attention of this name has, and how wide each is."""
        return self.config.heads_of(name), self.config.d_model // self.config.heads


class _NoLinear:
    """A linear map from or to no numbers."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], len(self._weight)) + self._bias.to(x.dtype)

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        return to + self._bias.to(to.dtype)


class _Decoder:
    """Embedding, layers and output layer."""

    def __init__(self, kit: _Kit, embedding: Tensor) -> None:
        config = kit.config
        self._embedding = _Embedding(kit, embedding)
        self.layers = [_DecoderLayer(kit, f"decoder.{n}.") for n in range(config.decoder_layers)]
        self._norm = _Norm(kit, "decoder_norm") if config.final_norm else _unchanged
        weight = embedding[:-1] if config.tied_output else kit.take("output.weight")
        bias = kit.take("output_bias") if config.output_bias else weight.new_zeros(len(weight))
        fill = -len(weight) % BLOCK
        weight = torch.cat([weight, weight.new_zeros(fill, weight.shape[1])])
        self._output = kit.linear(weight, torch.cat([bias, bias.new_full((fill,), -torch.inf)]))

    def step(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache, place: int | Int[Tensor, " one"]
    ) -> tuple[Tensor, Heads]:
        """See `Engine.step`; `place` is the tokens' position."""
        x = self._embedding.newest(tokens, place)
        query = x
        for n, layer in enumerate(self.layers):
            x, query = layer.step(x, n, cache)
        return self._output(self._norm(x)), query

    def teach(
        self, target_in: TargetIds, memory: Memory, keep: Keep | None, look: Look
    ) -> Float[Tensor, "batch target_len classes"]:
        """See `Engine.decode`."""
        x = self._embedding(target_in)
        for n, layer in enumerate(self.layers):
            x = layer.teach(x, n, *layer.read(memory), keep, look)
        return self._output(self._norm(x))


class _Embedding:
    """Ids to vectors, scaled, plus their positions."""

    def __init__(self, kit: _Kit, table: Tensor) -> None:
        self._table = table
        self._width = kit.config.d_model
        self._scale = math.sqrt(self._width) if kit.config.scale_embedding else 1.0
        self._dtype = kit.dtype
        self._positions = sinusoids(READY_POSITIONS, self._width, dtype=self._dtype).to(table.device)

    def __call__(self, ids: Ids) -> Hidden:
        length = ids.shape[1]
        if length <= READY_POSITIONS:
            return self._vectors(ids) + self._positions[:length]
        return self._vectors(ids) + self._computed(0, length)

    def newest(self, ids: Int[Tensor, " rows"], place: int | Int[Tensor, " one"]) -> Float[Tensor, "rows d_model"]:
        """Of ids that all stand at this place."""
        if isinstance(place, int) and place >= READY_POSITIONS:
            return self._vectors(ids) + self._computed(place, 1)
        return self._vectors(ids) + self._positions[place]

    def _vectors(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self._table).to(self._dtype)
        return x if self._scale == 1.0 else x * self._scale

    def _computed(self, start: int, length: int) -> Tensor:
        return sinusoids(length, self._width, start=start, dtype=self._dtype).to(self._table.device)


def _unchanged(x: Tensor) -> Tensor:
    return x


class _Norm:
    """Layer normalisation."""

    def __init__(self, kit: _Kit, name: str) -> None:
        self._weight, self._bias = kit.take(f"{name}.weight"), kit.take(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias)


class _SubLayer:
    """norm(x + f(x)), or with norm_first x + f(norm(x)); f is given both and returns the sum."""

    def __init__(self, kit: _Kit, name: str) -> None:
        self._norm = _Norm(kit, f"{name}_norm")
        self._norm_first = kit.config.norm_first

    def _before(self, x: Tensor) -> Tensor:
        return self._norm(x) if self._norm_first else x

    def _after(self, x: Tensor) -> Tensor:
        return x if self._norm_first else self._norm(x)


class _SelfAttention(_SubLayer):
    """Attention of a sequence to itself."""

    def __init__(self, kit: _Kit, name: str) -> None:
        super().__init__(kit, name)
        self._heads = kit.heads(name)
        self._project = kit.projection(kit.take(f"{name}.in_proj_weight"), kit.take(f"{name}.in_proj_bias"))
        self._output = kit.projection(kit.take(f"{name}.out_proj.weight"), kit.take(f"{name}.out_proj.bias"))

    def look(self, x: Hidden, attention: Callable[[Heads, Heads, Heads], Heads]) -> Hidden:
        """Whole sequences."""
        q, k, v = self._split(self._before(x), *x.shape[:2]).unbind(0)
        return self._after(self._output.added(_joined(attention(q, k, v), x.shape), x))

    def step(self, x: Float[Tensor, "rows d_model"], layer: int, cache: BeamCache) -> Float[Tensor, "rows d_model"]:
        """The newest token of each hypothesis, over what that hypothesis has written."""
        if not self._heads[0]:
            return self._after(self._output.added(x, x))
        heads = self._split(self._before(x), cache.sources, cache.width)
        keys, values = cache.write(layer, heads[1:])
        return self._after(self._output.added(_joined(attend_step(heads[0], keys, values, cache.sees), x.shape), x))

    def _split(self, x: Tensor, batch: int, length: int) -> Float[Tensor, "3 batch heads length d_head"]:
        return self._project(x).view(batch, length, 3, *self._heads).permute(2, 0, 3, 1, 4)


class _SourceAttention(_SubLayer):
    """The decoder's attention to the source."""

    def __init__(self, kit: _Kit, name: str) -> None:
        super().__init__(kit, name)
        self._heads = kit.heads(name)
        weight, bias = kit.take(f"{name}.in_proj_weight"), kit.take(f"{name}.in_proj_bias")
        width = math.prod(self._heads)
        self._query = kit.projection(weight[:width], bias[:width])
        self._memory = kit.projection(weight[width:], bias[width:])
        self._output = kit.projection(kit.take(f"{name}.out_proj.weight"), kit.take(f"{name}.out_proj.bias"))

    def read(self, memory: Memory) -> tuple[Keys, Keys]:
        """Keys and values of the source."""
        batch, length, _ = memory.shape
        heads = self._memory(memory).view(batch, length, 2, *self._heads).permute(2, 0, 3, 1, 4).contiguous()
        return heads[0], heads[1]

    def look(self, x: Target, attention: Callable[[Heads], Heads]) -> Target:
        """Whole sequences."""
        return self._after(self._output.added(_joined(attention(self._queries(x, len(x))), x.shape), x))

    def step(self, x: Float[Tensor, "rows d_model"], layer: int, cache: BeamCache) -> tuple[Tensor, Heads]:
        """The newest token of each hypothesis; also the queries."""
        q = self._queries(x, cache.sources)
        if not self._heads[0]:
            return self._after(self._output.added(x, x)), q
        heads = attend_step(q, *cache.memory[layer], cache.blocked)
        return self._after(self._output.added(_joined(heads, x.shape), x)), q

    def _queries(self, x: Tensor, batch: int) -> Heads:
        """x is (batch, length, d_model), or all its rows in a row."""
        length = x.shape[:-1].numel() // batch
        return self._query(self._before(x)).view(batch, length, *self._heads).transpose(1, 2)


class _FeedForward(_SubLayer):
    """Two linear maps with an activation between them."""

    def __init__(self, kit: _Kit, name: str) -> None:
        super().__init__(kit, name)
        self._activation = kit.config.activation
        self._inner = kit.linear(kit.take(f"{name}.inner.weight"), kit.take(f"{name}.inner.bias"))
        self._outer = kit.linear(kit.take(f"{name}.outer.weight"), kit.take(f"{name}.outer.bias"))

    def forward(self, x: Tensor) -> Tensor:
        return self._after(self._outer.added(self._inner.activated(self._before(x), self._activation), x))


class _EncoderLayer:
    def __init__(self, kit: _Kit, name: str) -> None:
        self._self = _SelfAttention(kit, f"{name}self_attention")
        self._feed_forward = _FeedForward(kit, f"{name}feed_forward")

    def __call__(self, x: Memory, number: int, keep: Keep | None, look: Look) -> Memory:
        x = self._self.look(x, lambda q, k, v: look("encoder", number, q, k, v, keep, False))
        return self._feed_forward.forward(x)


class _DecoderLayer:
    def __init__(self, kit: _Kit, name: str) -> None:
        self._self = _SelfAttention(kit, f"{name}self_attention")
        self._source = _SourceAttention(kit, f"{name}source_attention")
        self._feed_forward = _FeedForward(kit, f"{name}feed_forward")
        self.read = self._source.read

    def teach(self, x: Target, number: int, keys: Keys, values: Keys, keep: Keep | None, look: Look) -> Target:
        """Whole targets."""
        x = self._self.look(x, lambda q, k, v: look("decoder", number, q, k, v, None, True))
        x = self._source.look(x, lambda q: look("source", number, q, keys, values, keep, False))
        return self._feed_forward.forward(x)

    def step(self, x: Tensor, number: int, cache: BeamCache) -> tuple[Tensor, Heads]:
        """The newest token of each hypothesis; also the queries over the source."""
        x, query = self._source.step(self._self.step(x, number, cache), number, cache)
        return self._feed_forward.forward(x), query


def _joined(heads: Heads, shape: torch.Size) -> Tensor:
    """Heads side by side again, in this shape but for their width."""
    return heads.transpose(1, 2).reshape(*shape[:-1], heads.shape[1] * heads.shape[3])
