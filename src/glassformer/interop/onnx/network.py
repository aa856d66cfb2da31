"""The encoder's graph and the decoder's, with the names of inputs and outputs that transformers.js and optimum know."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from glassformer.errors import RunError
from glassformer.interop.huggingface import filled_up, logits_bias, marian_size
from glassformer.interop.onnx.graph import Graph, Shape
from glassformer.interop.onnx.parts import BATCH, Parts
from glassformer.interop.onnx.precision import Precision
from glassformer.transformer.model import Transformer

Seen = Literal["cross", "all"]
"""Attention weights that the graphs return: those of target over source, or of all attentions."""
SOURCE, TARGET, PAST_SOURCE, PAST_TARGET, WHOLE_TARGET = (
    "encoder_sequence_length",
    "decoder_sequence_length",
    "past_encoder_sequence_length",
    "past_decoder_sequence_length",
    "past_decoder_sequence_length + decoder_sequence_length",
)
"""Names of dynamic axes."""


class KeysAndValues(NamedTuple):
    """Keys and values of one attention, each (batch, heads, length, d_head)."""

    keys: str
    values: str


def encoder_graph(model: Transformer, precision: Precision, seen: Seen | None) -> bytes:
    """Return the encoder: from ids and their mask to its states, and with "all" the weights of its attention."""
    graph = Graph("encoder")
    ids = graph.input("input_ids", torch.int64, [BATCH, SOURCE])
    mask = graph.input("attention_mask", torch.int64, [BATCH, SOURCE])
    parts, tables = _parts(graph, model, precision), _Tables.of(model)
    positions, _ = parts.positions(ids, graph.scalar(0, torch.int64))
    x = parts.embed(ids, tables.source_name, tables.source, positions)
    keep = parts.keep_bias(mask)
    weights: dict[int, str] = {}

    for n in range(model.config.encoder_layers):
        name = f"encoder.{n}.self_attention"

        def attend(x: str, n: int = n, name: str = name) -> str:
            values, weights[n] = parts.attend(*parts.project(x, name, slice(0, 3)), name=name, bias=keep)
            return values

        x = parts.attention(x, name, attend)
        x = parts.feed_forward(x, f"encoder.{n}.feed_forward")
    if model.config.final_norm:
        x = parts.norm(x, "encoder_norm")
    states = [BATCH, SOURCE, model.config.d_model]
    graph.output(precision.outside(graph, x), "last_hidden_state", torch.float32, states)
    if seen == "all":
        for n, of_layer in weights.items():
            shape = [BATCH, parts.heads_of(f"encoder.{n}.self_attention"), SOURCE, SOURCE]
            graph.output(precision.outside(graph, of_layer), f"encoder_attentions.{n}", torch.float32, shape)
    return graph.model()


def decoder_graph(model: Transformer, precision: Precision, seen: Seen | None) -> bytes:
    """Return the decoder, one graph for the first step and all others.

    Its inputs are the newest ids, the source's mask and the encoder's states, and of each layer the keys and values of
    what is written already and those of the source. At the first step these have the length zero; the graph then
    computes those of the source. Outputs are the logits, all keys and values, and the wanted weights of attention. An
    attention that has lost all its heads has no keys and values, and no weights.
    """
    graph, config = Graph("decoder"), model.config
    parts, tables = _parts(graph, model, precision), _Tables.of(model)
    ids = graph.input("input_ids", torch.int64, [BATCH, TARGET])
    mask = graph.input("encoder_attention_mask", torch.int64, [BATCH, SOURCE])
    memory = graph.input("encoder_hidden_states", torch.float32, [BATCH, SOURCE, config.d_model])
    own = {n: f"decoder.{n}.self_attention" for n in range(config.decoder_layers)}
    cross = {n: f"decoder.{n}.source_attention" for n in range(config.decoder_layers)}
    past: dict[int, KeysAndValues] = {}
    source: dict[int, KeysAndValues] = {}
    for n in range(config.decoder_layers):  # in the order of optimum, which goes by it
        for kind, of_layer, name, length in (
            ("decoder", past, own[n], PAST_TARGET),
            ("encoder", source, cross[n], PAST_SOURCE),
        ):
            if parts.heads_of(name):
                of_layer[n] = _past(parts, n, kind, name, length)
    if not past:
        raise RunError(
            "no layer of this run's decoder has a head left in its attention to the target, and the graph reads from "
            "such keys how much is written: export it --to ctranslate2"
        )
    if source:
        source = _source_keys(parts, source, cross, precision.inside(graph, memory))
    positions, end = parts.positions(ids, parts.length(past[min(past)].keys, 2))
    x = parts.embed(ids, tables.target_name, tables.target, positions)
    keep, causal = parts.keep_bias(mask), parts.causal_bias(positions, end)
    own_weights: dict[int, str] = {}
    cross_weights: dict[int, str] = {}

    for n in range(config.decoder_layers):

        def attend_target(x: str, n: int = n) -> str:
            q, k, v = parts.project(x, own[n], slice(0, 3))
            inside = (precision.inside(graph, one) for one in past[n])
            k, v = (graph.node("Concat", old, new, axis=2) for old, new in zip(inside, (k, v), strict=True))
            past[n] = KeysAndValues(k, v)
            values, own_weights[n] = parts.attend(q, k, v, own[n], causal)
            return values

        def attend_source(x: str, n: int = n) -> str:
            (q,) = parts.project(x, cross[n], slice(0, 1))
            values, cross_weights[n] = parts.attend(q, *source[n], cross[n], keep)
            return values

        x = parts.attention(x, own[n], attend_target)
        x = parts.attention(x, cross[n], attend_source)
        x = parts.feed_forward(x, f"decoder.{n}.feed_forward")
    if config.final_norm:
        x = parts.norm(x, "decoder_norm")
    with graph.part("logits"):
        logits = parts.precision.logits(graph, x, tables.output_name, tables.output, tables.bias)

    def output(x: str, name: str, shape: Shape) -> None:
        graph.output(precision.outside(graph, x), name, torch.float32, shape)

    output(logits, "logits", [BATCH, TARGET, len(tables.bias)])
    for n in range(config.decoder_layers):
        for kind, of_layer, name, length in (
            ("decoder", past, own[n], WHOLE_TARGET),
            ("encoder", source, cross[n], SOURCE),
        ):
            if n in of_layer:
                shape = [BATCH, parts.heads_of(name), length, parts.d_head]
                for which, x in zip(("key", "value"), of_layer[n], strict=True):
                    output(x, f"present.{n}.{kind}.{which}", shape)
    wanted = {"cross_attentions": (cross_weights, cross, SOURCE)} if seen else {}
    if seen == "all":
        wanted["decoder_attentions"] = own_weights, own, WHOLE_TARGET
    for kind, (weights, names, length) in wanted.items():
        for n, x in weights.items():
            output(x, f"{kind}.{n}", [BATCH, parts.heads_of(names[n]), TARGET, length])
    return graph.model()


class _Tables(NamedTuple):
    """Embeddings and output projection with rows for all ids of the Marian layout; those of one name are the same."""

    source_name: str
    source: Float[Tensor, "ids d_model"]
    target_name: str
    target: Float[Tensor, "ids d_model"]
    output_name: str
    output: Float[Tensor, "ids d_model"]
    bias: Float[Tensor, " ids"]

    @classmethod
    def of(cls, model: Transformer) -> "_Tables":
        size, weights = marian_size(model.config), _weights(model)
        target_name, source_name = "target_embedding", "source_embedding"
        target = filled_up(weights["target_embedding.weight"], size)
        source = target
        if model.config.shared_vocab:
            source_name = target_name
        else:
            source = filled_up(weights["source_embedding.weight"], size)
        output_name, output = target_name, target
        if not model.config.tied_output:
            output_name, output = "output", pad(weights["output.weight"], (0, 0, 0, size - model.target_pad))
        return cls(source_name, source, target_name, target, output_name, output, logits_bias(model))


def _weights(model: Transformer) -> dict[str, Tensor]:
    return {name: weight.detach().float().cpu() for name, weight in model.state_dict().items()}


def _parts(graph: Graph, model: Transformer, precision: Precision) -> Parts:
    return Parts(graph, model.config, _weights(model), precision)


def _past(parts: Parts, n: int, kind: str, name: str, length: str) -> KeysAndValues:
    """Declare the inputs of a layer's keys and values."""
    shape = [BATCH, parts.heads_of(name), length, parts.d_head]
    inputs = (
        parts.graph.input(f"past_key_values.{n}.{kind}.{which}", torch.float32, shape) for which in ("key", "value")
    )
    return KeysAndValues(*inputs)


def _source_keys(
    parts: Parts, past: Mapping[int, KeysAndValues], names: Mapping[int, str], memory: str
) -> dict[int, KeysAndValues]:
    """Return the keys and values of the source: those that came in, or if they are empty those of the states."""
    graph = parts.graph
    with graph.part("source"):
        first = graph.node("Equal", parts.length(past[min(past)].keys, 2), graph.scalar(0, torch.int64))
    computed, given = graph.branch("computed"), graph.branch("given")
    shape = [BATCH, "heads", SOURCE, parts.d_head]
    dtype = parts.precision.dtype
    for n, pair in past.items():
        made = parts.inside(computed).project(memory, names[n], slice(1, 3))
        for which, x, old in zip(("key", "value"), made, pair, strict=True):
            computed.output(x, f"computed.{n}.{which}", dtype, shape)
            given.output(given.node("Identity", parts.precision.inside(given, old)), f"given.{n}.{which}", dtype, shape)
    with graph.part("source"):
        chosen = iter(graph.choose(first, computed, given))
    return {n: KeysAndValues(next(chosen), next(chosen)) for n in past}
