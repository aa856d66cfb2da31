"""The parts of the Transformer as ONNX nodes: embeddings, positions, attention, feed-forward and their sums."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.interop.onnx.graph import Graph
from glassformer.interop.onnx.precision import Precision
from glassformer.transformer.config import ModelConfig

STRIDE = 64
POSITIONS = STRIDE * STRIDE
"""Most tokens of a source or of a target."""
EPSILON = 1e-5
BATCH = "batch_size"
"""The name of the first axis. transformers.js looks for this one, and takes any other dynamic axis of a cache for an
empty one at first."""


class Attended(NamedTuple):
    """Values of attention, side by side, and the weights that they were summed by."""

    values: str
    weights: str


@dataclass(frozen=True)
class Parts:
    """Adds parts of a network to a graph; a part's weights are those of its name in a Transformer's state_dict."""

    graph: Graph
    config: ModelConfig
    weights: Mapping[str, Tensor]
    precision: Precision

    def heads_of(self, name: str) -> int:
        """Return how many heads the attention of this name has."""
        return self.config.heads_of(name)

    @property
    def d_head(self) -> int:
        """The width of a head."""
        return self.config.d_model // self.config.heads

    def inside(self, graph: Graph) -> "Parts":
        """Return the same parts for a branch of the graph."""
        return replace(self, graph=graph)

    def embed(self, ids: str, name: str, table: Tensor, positions: str) -> str:
        """Return the vectors of ids, scaled, plus those of their positions."""
        graph, d_model = self.graph, self.config.d_model
        with graph.part(name):
            x = self.precision.vectors(graph, ids, name, table)
            if self.config.scale_embedding:
                x = graph.node("Mul", x, graph.scalar(math.sqrt(d_model), self.precision.dtype))
            return graph.node("Add", x, self.precision.inside(graph, self._sinusoids(positions)))

    def positions(self, ids: str, start: str) -> tuple[str, str]:
        """Return the positions of ids of which the first stands at `start`, and the next one after them."""
        graph = self.graph
        with graph.part("positions"):
            end = graph.node("Add", start, self.length(ids, 1))
            return graph.node("Range", start, end, graph.scalar(1, torch.int64)), end

    def length(self, x: str, axis: int) -> str:
        """Return how long an axis is, as a number without axes."""
        return self.graph.node("Squeeze", self.graph.node("Shape", x, start=axis, end=axis + 1))

    def attention(self, x: str, name: str, attend: Callable[[str], str]) -> str:
        """Return x after a sub-layer of attention: `attend` returns the heads' values, side by side."""

        def function(x: str) -> str:
            if not self.heads_of(name):
                return self.graph.weight(f"{name}.out_proj.bias", self._weight(f"{name}.out_proj.bias"))
            return self.linear(attend(x), f"{name}.out_proj")

        return self.sub_layer(x, name, function)

    def sub_layer(self, x: str, name: str, function: Callable[[str], str]) -> str:
        """Return norm(x + function(x)), or with norm_first x + function(norm(x))."""
        if self.config.norm_first:
            added = function(self.norm(x, f"{name}_norm"))
            with self.graph.part(name):
                return self.graph.node("Add", x, added)
        added = function(x)
        with self.graph.part(name):
            x = self.graph.node("Add", x, added)
        return self.norm(x, f"{name}_norm")

    def norm(self, x: str, name: str) -> str:
        """Return x normalised."""
        weight, bias = (
            self.graph.weight(f"{name}.{kind}", self._weight(f"{name}.{kind}")) for kind in ("weight", "bias")
        )
        with self.graph.part(name):
            return self.graph.node("LayerNormalization", x, weight, bias, axis=-1, epsilon=EPSILON)

    def linear(self, x: str, name: str) -> str:
        """Return a linear map of x."""
        with self.graph.part(name):
            weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
            return self.precision.linear(self.graph, x, name, weight, bias)

    def feed_forward(self, x: str, name: str) -> str:
        """Return x after a sub-layer of two linear maps with an activation between them."""

        def function(x: str) -> str:
            inner = self.linear(x, f"{name}.inner")
            with self.graph.part(f"{name}.activation"):
                inner = self._activated(inner)
            return self.linear(inner, f"{name}.outer")

        return self.sub_layer(x, name, function)

    def project(self, x: str, name: str, parts: slice) -> list[str]:
        """Return those of an attention's queries, keys and values, each (batch, heads, length, d_head).

        `parts` are the places in that order of the ones that are wanted. The queries are scaled by 1 / sqrt(d_head).
        """
        graph = self.graph
        rows = self.heads_of(name) * self.d_head
        scale = torch.tensor([self.d_head**-0.5, 1.0, 1.0])
        weight = (self.weights[f"{name}.in_proj_weight"].unflatten(0, (3, rows)) * scale[:, None, None])[parts]
        bias = (self.weights[f"{name}.in_proj_bias"].unflatten(0, (3, rows)) * scale[:, None])[parts]
        count = len(weight)
        which = f"{name}.in_proj.{'qkv'[parts]}"
        with graph.part(which):
            x = self.precision.linear(graph, x, which, weight.flatten(0, 1), bias.flatten())
            heads = graph.node("Reshape", x, graph.numbers(0, 0, count, self.heads_of(name), self.d_head))
            heads = graph.node("Transpose", heads, perm=[2, 0, 3, 1, 4])
            return [graph.node("Gather", heads, graph.scalar(n, torch.int64), axis=0) for n in range(count)]

    def attend(self, q: str, k: str, v: str, name: str, bias: str) -> Attended:
        """Return softmax(q kᵀ + bias) v, the heads side by side, and the weights."""
        graph = self.graph
        with graph.part(name):
            scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
            weights = graph.node("Softmax", graph.node("Add", scores, bias), axis=-1)
            heads = graph.node("Transpose", graph.node("MatMul", weights, v), perm=[0, 2, 1, 3])
            return Attended(
                graph.node("Reshape", heads, graph.numbers(0, 0, self.heads_of(name) * self.d_head)), weights
            )

    def keep_bias(self, mask: str) -> str:
        """Return what is added to scores of sources, (batch, 1, 1, length): 0 where the mask is 1, else the least."""
        graph = self.graph
        with graph.part("source_mask"):
            return graph.node("Unsqueeze", self._bias(graph.cast(mask, torch.bool)), graph.numbers(1, 2))

    def causal_bias(self, positions: str, end: str) -> str:
        """Return what is added to scores of targets, (length, end): the least number where a key comes later."""
        graph = self.graph
        with graph.part("target_mask"):
            keys = graph.node("Range", graph.scalar(0, torch.int64), end, graph.scalar(1, torch.int64))
            queries = graph.node("Unsqueeze", positions, graph.numbers(1))
            return self._bias(graph.node("LessOrEqual", keys, queries))

    def _weight(self, name: str) -> Tensor:
        return self.weights[name].to(self.precision.dtype)

    def _bias(self, keep: str) -> str:
        dtype = self.precision.dtype
        zero, least = (self.graph.scalar(value, dtype) for value in (0.0, torch.finfo(dtype).min))
        return self.graph.node("Where", keep, zero, least)

    def _activated(self, x: str) -> str:
        graph, kind = self.graph, self.config.activation
        if kind == "relu":
            return graph.node("Relu", x)
        if kind == "swish":
            return graph.node("Mul", x, graph.node("Sigmoid", x))
        assert kind == "gelu"
        half, one, root = (graph.scalar(value, self.precision.dtype) for value in (0.5, 1.0, math.sqrt(2)))
        raised = graph.node("Add", graph.node("Erf", graph.node("Div", x, root)), one)
        return graph.node("Mul", graph.node("Mul", x, raised), half)

    def _sinusoids(self, positions: str) -> str:
        """Return the sinusoids of positions below `POSITIONS`, from two short tables.

        With position = 64 a + b, sin(64 a w + b w) = sin(64 a w) cos(b w) + cos(64 a w) sin(b w), and so on.
        """
        graph = self.graph
        coarse, fine = rotation_tables(self.config.d_model)
        stride = graph.scalar(STRIDE, torch.int64)
        rows = [
            graph.node("Gather", graph.weight(f"positions.{name}", table), graph.node(kind, positions, stride), axis=0)
            for name, table, kind in (("coarse", coarse, "Div"), ("fine", fine, "Mod"))
        ]
        return graph.node("ReduceSum", graph.node("Mul", *rows), graph.numbers(1), keepdims=0)


def rotation_tables(d_model: int) -> tuple[Float[Tensor, "64 2 d_model"], Float[Tensor, "64 2 d_model"]]:
    """Return two tables whose rows a and b give, multiplied and summed over the second axis, position 64 a + b.

    >>> coarse, fine = rotation_tables(6)
    >>> angle = 197 / 10000 ** (torch.arange(0, 6, 2) / 6)  # 197 = 3 * 64 + 5
    >>> torch.allclose((coarse[3] * fine[5]).sum(0), torch.cat([angle.sin(), angle.cos()]), atol=1e-5)
    True
    """
    place = torch.arange(STRIDE, dtype=torch.float64)[:, None]
    angle = place / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    cosines = d_model // 2  # of an odd width there is one sine more

    def table(angle: Tensor, tops: tuple[Tensor, Tensor], bottoms: tuple[Tensor, Tensor]) -> Tensor:
        rows = [torch.cat([sines, others[:, :cosines]], dim=1) for sines, others in (tops, bottoms)]
        return torch.stack(rows, dim=1).float()

    a, b = angle * STRIDE, angle
    coarse = table(a, (a.sin(), a.cos()), (a.cos(), a.sin()))
    fine = table(b, (b.cos(), b.cos()), (b.sin(), -b.sin()))
    return coarse, fine
