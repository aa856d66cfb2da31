"""The Transformer prepared for generation: the same results as the model's, weights laid out once, no gradients.

A step of B sources with W hypotheses each works on B * W rows; row b * W + w is hypothesis w of source b.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.attend import attend
from glassformer.attention.kernels.products import PackedLinear
from glassformer.attention.kernels.topk import BLOCK
from glassformer.attention.kernels.weigh import weigh
from glassformer.device import mapped_memory
from glassformer.errors import RunError
from glassformer.generation.engines.cache import BeamCache
from glassformer.generation.engines.graph import FixedCache, StepGraph
from glassformer.generation.kernels import passes
from glassformer.generation.kernels.quantized import QuantizedLinear
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
LOGITS_AT_ONCE = 1 << 21  # 8 MiB, from which on glibc maps memory anew

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Stack = Literal["encoder", "decoder", "source"]
AttentionFunction = Callable[[Stack, int, Heads, Keys, Keys, Keep | None, bool], Heads]
"""Computes the attention of a stack's layer, from stack, layer, q, k, v, keep, causal."""


def unobserved(stack: Stack, layer: int, q: Heads, k: Keys, v: Keys, keep: Keep | None, causal: bool) -> Heads:
    """Compute attention without observing it."""
    if not causal and passes.attend_compiled_serves(q) and q.shape[1]:
        bias = None if keep is None else q.new_zeros(keep.shape).masked_fill_(~keep, -torch.inf)
        return passes.attend(q, k, v, bias)
    return attend(q, k, v, keep=keep, causal=causal) if q.shape[1] else q


class Engine:
    """Encoder, decoder and output layer over prepared weights.

    `weights` are named as in a Transformer's state_dict and are read one after the other, so that a file's never
    lie in memory twice. `dtype` is that of weights and products; log-probabilities are computed from it in float32 or
    better. With `int8` the weights of linear maps have eight bits, and so have what they are multiplied by; all else is
    float32, and so must `dtype` be.
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
        assert not int8 or dtype == torch.float32
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        self.int8 = int8
        self.source_pad, self.target_pad = config.source_pad, config.target_pad
        self.cache_kind = FixedCache if self.device.type == "cuda" else BeamCache

        def prepared(name: str, dtype: torch.dtype = dtype) -> Tensor:
            weight = weights[name].detach()
            if not weight.isfinite().all():
                raise RunError(
                    f"the weights hold numbers that are not finite, first in {name}: train again with a lower "
                    "--learning-rate, or fetch the model again"
                )
            return weight.to(self.device, dtype, copy=True)

        with mapped_memory():
            self._lay_out(prepared)

    def _lay_out(self, weight: Callable[..., Tensor]) -> None:
        config = self.config
        kit = _Kit(config, weight, QuantizedLinear if self.int8 else PackedLinear, self.dtype)
        target_embedding = weight("target_embedding.weight")
        source_embedding = target_embedding if config.shared_vocab else weight("source_embedding.weight")
        self._source_embedding = _Embedding(kit, source_embedding)
        self._encoder = [_EncoderLayer(kit, f"encoder.{n}.") for n in range(config.encoder_layers)]
        self._encoder_norm = _Norm(kit, "encoder_norm") if config.final_norm else _unchanged
        self._decoder = _Decoder(kit, target_embedding)

    @classmethod
    def of(cls, model: Transformer, dtype: torch.dtype | None = None, *, int8: bool = False) -> "Engine":
        """Make the engine of a model, in the model's own precision unless another is given."""
        weight = model.target_embedding.weight
        return cls(model.config, model.state_dict(), dtype or weight.dtype, weight.device, int8=int8)

    def encode(self, source: Source, keep: Keep | None = None, attention: AttentionFunction = unobserved) -> Memory:
        """Return the encoder's output for the source ids; `keep` is False on padding."""
        x = self._source_embedding(source)
        for n, layer in enumerate(self._encoder):
            x = layer(x, n, keep, attention)
        return self._encoder_norm(x)

    def start(self, source: Source, keep: Keep | None, width: int) -> BeamCache:
        """Return the cache with which `width` hypotheses of each source begin."""
        hidden = self.encode(source, keep)
        memory = [layer.keys_and_values(hidden) for layer in self._decoder.layers]
        source_bias = None
        if keep is not None and not keep.all():
            source_bias = memory[0][0].new_zeros(keep.shape).masked_fill_(~keep, -torch.inf)
        heads = [self.config.heads_of(f"decoder.{n}.self_attention") for n in range(len(memory))]
        return self.cache_kind(memory, source_bias, width, heads=heads)

    def step(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache
    ) -> tuple[Float[Tensor, "rows classes"], Float[Tensor, "sources heads width d_head"]]:
        """Return the logits of what follows these newest tokens, and the queries that `alignment` takes.

        The tokens are added to the cache. Classes are every id but padding, then -inf up to a multiple of `BLOCK`. The
        queries are those of the last layer's attention over the source.
        """
        cache.extend()
        if isinstance(cache, FixedCache) and self.device.type == "cuda" and cache.length <= READY_POSITIONS:
            if cache.graph is None:
                cache.graph = StepGraph(lambda newest: self._decoder.step(newest, cache, cache.position), tokens)
            return cache.graph.replay(tokens)
        return self._decoder.step(tokens, cache, cache.length - 1)

    def step_best(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache, k: int, forbidden: int | None
    ) -> tuple[Float[Tensor, "rows {k}"], Int[Tensor, "rows {k}"], Heads]:
        """Return each row's k highest log-probabilities after `step`, highest first, their classes, and the queries.

        The class `forbidden` isn't among them. The first tokens of a source's hypotheses must be alike: on a CPU they
        are computed once.
        """
        if self.device.type != "cpu":
            logits, query = self.step(tokens, cache)
            return *passes.best_classes(logits, k, forbidden), query
        is_first = cache.length == 0
        cache.extend()
        newest = tokens[:: cache.width] if is_first else tokens
        states, query = self._decoder.step_states(newest, cache, cache.length - 1)
        log_probs, classes = self._decoder.best_classes(states, k, forbidden)
        if is_first:
            log_probs, classes = (best.repeat_interleave(cache.width, 0) for best in (log_probs, classes))
            query = query.expand(-1, -1, cache.width, -1)
        return log_probs, classes, query

    @property
    def classes(self) -> int:
        """The number of classes of `step`."""
        return self._decoder.classes

    def decode(
        self, target_in: TargetIds, source: Source, keep: Keep | None = None, attention: AttentionFunction = unobserved
    ) -> Float[Tensor, "batch target_len classes"]:
        """Return the logits at all positions of given targets, shifted by their start: teacher forcing.

        Classes are those of `step`.
        """
        return self._decoder.forward(target_in, self.encode(source, keep, attention), keep, attention)

    def alignment(self, query: Heads, cache: BeamCache) -> Float[Tensor, "sources width source_len"]:
        """Return how much of its attention each newest token pays to each source position.

        It is that of the last layer, mean of its heads.
        """
        keys = cache.memory[-1][0]
        dtype = torch.promote_types(keys.dtype, torch.float32)
        return weigh(query.to(dtype), keys.to(dtype), bias=cache.source_bias).mean(1)


@contextmanager
def inference(device: torch.device) -> Iterator[None]:
    """Compute without gradients, and in the engine's own precision: a caller's autocast would choose another."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield


def inferring(
    function: Callable[Concatenate[Engine, Arguments], Result],
) -> Callable[Concatenate[Engine, Arguments], Result]:
    """Let a function, whose first argument is an engine, compute in `inference`."""

    @wraps(function)
    def computed(engine: Engine, *arguments: Arguments.args, **settings: Arguments.kwargs) -> Result:
        with inference(engine.device):
            return function(engine, *arguments, **settings)

    return computed


@dataclass(frozen=True)
class _Kit:
    """The parts that layers are made of: sizes, weights by name, the kind of linear map, and its numbers' type."""

    config: ModelConfig
    weight: Callable[[str], Tensor]
    linear: Callable[[Tensor, Tensor], PackedLinear | QuantizedLinear]
    dtype: torch.dtype

    def projection(self, weight: Tensor, bias: Tensor) -> "PackedLinear | QuantizedLinear | _NoLinear":
        """Make a linear map of an attention, which may have no heads."""
        return self.linear(weight, bias) if weight.numel() else _NoLinear(weight, bias)

    def heads(self, name: str) -> tuple[int, int]:
        """Return how many heads the attention of this name has, and how wide each is."""
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
        weight = embedding[:-1] if config.tied_output else kit.weight("output.weight")
        bias = kit.weight("output_bias") if config.output_bias else weight.new_zeros(len(weight))
        fill = -len(weight) % BLOCK
        weight = torch.cat([weight, weight.new_zeros(fill, weight.shape[1])])
        self.classes = len(weight)
        self._output = kit.linear(weight, torch.cat([bias, bias.new_full((fill,), -torch.inf)]))

    def step(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache, position: int | Int[Tensor, " one"]
    ) -> tuple[Tensor, Heads]:
        """Compute `Engine.step` for tokens at this position."""
        states, query = self.step_states(tokens, cache, position)
        return self.logits(states), query

    def step_states(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache, position: int | Int[Tensor, " one"]
    ) -> tuple[Float[Tensor, "rows d_model"], Heads]:
        """Return the states of tokens at this position, for `logits`, and the queries over the source."""
        x = self._embedding.newest(tokens, position)
        query = x
        for n, layer in enumerate(self.layers):
            x, query = layer.step(x, n, cache)
        return self._norm(x), query

    def logits(self, states: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows classes"]:
        """Return the logits of what follows these states."""
        return self._output(states)

    def best_classes(
        self, states: Float[Tensor, "rows d_model"], k: int, forbidden: int | None
    ) -> tuple[Float[Tensor, "rows {k}"], Int[Tensor, "rows {k}"]]:
        """Compute `passes.best_classes` of the logits.

        If they are computed first, then those of a few rows at a time: all of them would leave the cache, and in blocks
        that large glibc maps their memory anew at each step.
        """
        if isinstance(self._output, QuantizedLinear) and self._output.is_compiled_for(states):
            return self._output.best_classes(states, k, forbidden)
        few = states.split(max(1, LOGITS_AT_ONCE // self.classes))
        parts = [passes.best_classes(self.logits(rows), k, forbidden) for rows in few]
        return torch.cat([best for best, _ in parts]), torch.cat([classes for _, classes in parts])

    def forward(
        self, target_in: TargetIds, memory: Memory, keep: Keep | None, attention: AttentionFunction
    ) -> Float[Tensor, "batch target_len classes"]:
        """Compute `Engine.decode` over the encoder's output."""
        x = self._embedding(target_in)
        for n, layer in enumerate(self.layers):
            x = layer.forward(x, n, *layer.keys_and_values(memory), keep, attention)
        return self.logits(self._norm(x))


class _Embedding:
    """Vectors of ids, scaled, plus their positions."""

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

    def newest(self, ids: Int[Tensor, " rows"], position: int | Int[Tensor, " one"]) -> Float[Tensor, "rows d_model"]:
        """Return the vectors of ids that all stand at this position."""
        if isinstance(position, int) and position >= READY_POSITIONS:
            return self._vectors(ids) + self._computed(position, 1)
        return self._vectors(ids) + self._positions[position]

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
        self._weight, self._bias = kit.weight(f"{name}.weight"), kit.weight(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias)


class _SubLayer:
    """A sum with its normalisation: norm(x + f(x)), or with norm_first x + f(norm(x))."""

    def __init__(self, kit: _Kit, name: str) -> None:
        self._norm = _Norm(kit, f"{name}_norm")
        self._norm_first = kit.config.norm_first

    def _pre_norm(self, x: Tensor) -> Tensor:
        return self._norm(x) if self._norm_first else x

    def _post_norm(self, x: Tensor) -> Tensor:
        return x if self._norm_first else self._norm(x)


class _SelfAttention(_SubLayer):
    """Attention from a sequence to itself."""

    def __init__(self, kit: _Kit, name: str) -> None:
        super().__init__(kit, name)
        self._heads = kit.heads(name)
        self._project = kit.projection(kit.weight(f"{name}.in_proj_weight"), kit.weight(f"{name}.in_proj_bias"))
        self._output = kit.projection(kit.weight(f"{name}.out_proj.weight"), kit.weight(f"{name}.out_proj.bias"))

    def forward(self, x: Hidden, attention: Callable[[Heads, Heads, Heads], Heads]) -> Hidden:
        """Compute whole sequences."""
        q, k, v = self._split_heads(self._pre_norm(x), *x.shape[:2]).unbind(0)
        return self._post_norm(self._output.added(_join_heads(attention(q, k, v), x.shape), x))

    def step(self, x: Float[Tensor, "rows d_model"], layer: int, cache: BeamCache) -> Float[Tensor, "rows d_model"]:
        """Compute the newest token of each hypothesis, over what that hypothesis has written."""
        if not self._heads[0]:
            return self._post_norm(self._output.added(x, x))
        width = len(x) // cache.sources  # 1 at the first step, where hypotheses are alike
        heads = self._split_heads(self._pre_norm(x), cache.sources, width)
        keys, values = cache.write(layer, heads[1:])
        bias = None if cache.slot_bias is None else cache.slot_bias[:, :, :width]
        output = passes.attend(heads[0], keys, values, bias)
        return self._post_norm(self._output.added(_join_heads(output, x.shape), x))

    def _split_heads(self, x: Tensor, batch: int, length: int) -> Float[Tensor, "3 batch heads length d_head"]:
        return self._project(x).view(batch, length, 3, *self._heads).permute(2, 0, 3, 1, 4)


class _SourceAttention(_SubLayer):
    """Attention from the target to the source."""

    def __init__(self, kit: _Kit, name: str) -> None:
        super().__init__(kit, name)
        self._heads = kit.heads(name)
        weight, bias = kit.weight(f"{name}.in_proj_weight"), kit.weight(f"{name}.in_proj_bias")
        width = math.prod(self._heads)
        self._query = kit.projection(weight[:width], bias[:width])
        self._memory = kit.projection(weight[width:], bias[width:])
        self._output = kit.projection(kit.weight(f"{name}.out_proj.weight"), kit.weight(f"{name}.out_proj.bias"))

    def keys_and_values(self, memory: Memory) -> tuple[Keys, Keys]:
        """Return the keys and the values of the source."""
        batch, length, _ = memory.shape
        heads = self._memory(memory).view(batch, length, 2, *self._heads).permute(2, 0, 1, 3, 4).contiguous()
        keys, values = heads.transpose(2, 3).unbind(0)
        return keys, values

    def forward(self, x: Target, attention: Callable[[Heads], Heads]) -> Target:
        """Compute whole sequences."""
        return self._post_norm(self._output.added(_join_heads(attention(self._queries(x, len(x))), x.shape), x))

    def step(self, x: Float[Tensor, "rows d_model"], layer: int, cache: BeamCache) -> tuple[Tensor, Heads]:
        """Compute the newest token of each hypothesis; also return the queries."""
        q = self._queries(x, cache.sources)
        if not self._heads[0]:
            return self._post_norm(self._output.added(x, x)), q
        heads = passes.attend(q, *cache.memory[layer], cache.source_bias)
        return self._post_norm(self._output.added(_join_heads(heads, x.shape), x)), q

    def _queries(self, x: Tensor, batch: int) -> Heads:
        """Return the queries of x, which is (batch, length, d_model), or all rows of that below one another."""
        length = x.shape[:-1].numel() // batch
        return self._query(self._pre_norm(x)).view(batch, length, *self._heads).transpose(1, 2)


class _FeedForward(_SubLayer):
    """Two linear maps with an activation between them."""

    def __init__(self, kit: _Kit, name: str) -> None:
        super().__init__(kit, name)
        self._activation = kit.config.activation
        self._inner = kit.linear(kit.weight(f"{name}.inner.weight"), kit.weight(f"{name}.inner.bias"))
        self._outer = kit.linear(kit.weight(f"{name}.outer.weight"), kit.weight(f"{name}.outer.bias"))

    def forward(self, x: Tensor) -> Tensor:
        """Compute any number of positions."""
        return self._post_norm(self._outer.added(self._inner.activated(self._pre_norm(x), self._activation), x))


class _EncoderLayer:
    """A layer of the encoder."""

    def __init__(self, kit: _Kit, name: str) -> None:
        self._self = _SelfAttention(kit, f"{name}self_attention")
        self._feed_forward = _FeedForward(kit, f"{name}feed_forward")

    def __call__(self, x: Memory, number: int, keep: Keep | None, attention: AttentionFunction) -> Memory:
        x = self._self.forward(x, lambda q, k, v: attention("encoder", number, q, k, v, keep, False))
        return self._feed_forward.forward(x)


class _DecoderLayer:
    """A layer of the decoder."""

    def __init__(self, kit: _Kit, name: str) -> None:
        self._self = _SelfAttention(kit, f"{name}self_attention")
        self._source = _SourceAttention(kit, f"{name}source_attention")
        self._feed_forward = _FeedForward(kit, f"{name}feed_forward")
        self.keys_and_values = self._source.keys_and_values

    def forward(
        self, x: Target, number: int, keys: Keys, values: Keys, keep: Keep | None, attention: AttentionFunction
    ) -> Target:
        """Compute whole targets."""
        x = self._self.forward(x, lambda q, k, v: attention("decoder", number, q, k, v, None, True))
        x = self._source.forward(x, lambda q: attention("source", number, q, keys, values, keep, False))
        return self._feed_forward.forward(x)

    def step(self, x: Tensor, number: int, cache: BeamCache) -> tuple[Tensor, Heads]:
        """Compute the newest token of each hypothesis; also return the queries over the source."""
        x, query = self._source.step(self._self.step(x, number, cache), number, cache)
        return self._feed_forward.forward(x), query


def _join_heads(heads: Heads, shape: torch.Size) -> Tensor:
    """Put heads side by side again, in this shape but for their width."""
    return heads.transpose(1, 2).reshape(*shape[:-1], heads.shape[1] * heads.shape[3])
