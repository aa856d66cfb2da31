"""The numbers that weights are stored in, and how linear maps, embeddings and logits are computed from them."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from jaxtyping import Int8 as Int8Tensor
from torch import Tensor

from glassformer.interop.onnx.graph import Graph

LARGEST = 63
"""Largest whole number of a weight. Seven bits: processors without dot products of eight bits add two products, of up
to 255 x 63 each, in sixteen bits, where eight would overflow; so results are the same on all."""
Weight = Float[Tensor, "width_out width_in"]
Bias = Float[Tensor, " width_out"]
Table = Float[Tensor, "ids d_model"]


class Precision(ABC):
    """A way for a graph to store weights and to compute with them. All other numbers are of the type `dtype`."""

    dtype = torch.float32

    @abstractmethod
    def linear(self, graph: Graph, x: str, name: str, weight: Weight, bias: Bias) -> str:
        """Return x weightᵀ + bias."""

    @abstractmethod
    def vectors(self, graph: Graph, ids: str, name: str, table: Table) -> str:
        """Return the rows of a table of embeddings."""

    @abstractmethod
    def logits(self, graph: Graph, x: str, name: str, table: Table, bias: Bias) -> str:
        """Return x tableᵀ + bias; a table that has the same name as one of embeddings is stored once."""

    def inside(self, graph: Graph, x: str) -> str:
        """Return what comes from outside, in float32, in the graph's own numbers."""
        return x if self.dtype == torch.float32 else graph.cast(x, self.dtype)

    def outside(self, graph: Graph, x: str) -> str:
        """Return what the graph returns, in float32."""
        return x if self.dtype == torch.float32 else graph.cast(x, torch.float32)


class Floats(Precision):
    """Weights and sums in float32 or float16."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def linear(self, graph: Graph, x: str, name: str, weight: Weight, bias: Bias) -> str:
        product = graph.node("MatMul", x, graph.weight(f"{name}.weight", weight.T.to(self.dtype)))
        return graph.node("Add", product, graph.weight(f"{name}.bias", bias.to(self.dtype)))

    def vectors(self, graph: Graph, ids: str, name: str, table: Table) -> str:
        return graph.node("Gather", graph.weight(f"{name}.weight", table.to(self.dtype)), ids, axis=0)

    def logits(self, graph: Graph, x: str, name: str, table: Table, bias: Bias) -> str:
        # onnxruntime transposes a weight once, as it loads the graph.
        across = graph.node("Transpose", graph.weight(f"{name}.weight", table.to(self.dtype)), perm=[1, 0])
        return graph.node("Add", graph.node("MatMul", x, across), graph.weight("logits.bias", bias.to(self.dtype)))


class Int8(Precision):
    """Whole numbers of eight bits in linear maps, embeddings and logits, and float32 in all sums between them.

    Each row of a weight has a scale. What it is multiplied by has one scale for the whole batch, found as it comes.
    """

    def linear(self, graph: Graph, x: str, name: str, weight: Weight, bias: Bias) -> str:
        whole, scale = quantized(weight)
        product = self._product(graph, x, graph.weight(f"{name}.weight", whole.T), graph.weight(f"{name}.scale", scale))
        return graph.node("Add", product, graph.weight(f"{name}.bias", bias))

    def vectors(self, graph: Graph, ids: str, name: str, table: Table) -> str:
        whole, scale = quantized(table)
        rows = graph.cast(graph.node("Gather", graph.weight(f"{name}.weight", whole), ids, axis=0), torch.float32)
        scales = graph.node("Gather", graph.weight(f"{name}.scale", scale), ids, axis=0)
        return graph.node("Mul", rows, graph.node("Unsqueeze", scales, graph.numbers(-1)))

    def logits(self, graph: Graph, x: str, name: str, table: Table, bias: Bias) -> str:
        whole, scale = quantized(table)
        across = graph.node("Transpose", graph.weight(f"{name}.weight", whole), perm=[1, 0])
        product = self._product(graph, x, across, graph.weight(f"{name}.scale", scale))
        return graph.node("Add", product, graph.weight("logits.bias", bias))

    def _product(self, graph: Graph, x: str, weight: str, scale: str) -> str:
        """Return the product of x and a weight of whole numbers; onnxruntime makes one operator of these nodes."""
        whole, x_scale, x_zero = graph.nodes("DynamicQuantizeLinear", 3, x)
        sums = graph.cast(graph.node("MatMulInteger", whole, weight, x_zero), torch.float32)
        return graph.node("Mul", sums, graph.node("Mul", x_scale, scale))


def quantized(
    weight: Float[Tensor, "rows width"],
) -> tuple[Int8Tensor[Tensor, "rows width"], Float[Tensor, " rows"]]:
    """Return whole numbers from -LARGEST to LARGEST and a scale for each row, whose product is nearly the weight."""
    scale = weight.abs().amax(1).clamp_(min=torch.finfo(torch.float32).tiny) / LARGEST
    return (weight / scale[:, None]).round_().to(torch.int8), scale


PRECISIONS: dict[str | None, Precision] = {None: Floats(), "fp16": Floats(torch.float16), "int8": Int8()}
"""The precisions by the names that --quantization has for them."""
