"""The numbers that weights are stored in, and how linear maps, embeddings and logits are computed from them."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.interop.onnx.graph import Graph

Weight = Float[Tensor, "width_out width_in"]
Bias = Float[Tensor, " width_out"]
Table = Float[Tensor, "ids d_model"]


class Precision(ABC):
    """How a graph computes what has weights. All other numbers are of the type `dtype`."""

    suffix = ""
    """What a file's name ends with, before .onnx."""
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
        self.suffix = "" if dtype == torch.float32 else "_fp16"

    def linear(self, graph: Graph, x: str, name: str, weight: Weight, bias: Bias) -> str:
        product = graph.node("MatMul", x, graph.weight(f"{name}.weight", weight.T.to(self.dtype)))
        return graph.node("Add", product, graph.weight(f"{name}.bias", bias.to(self.dtype)))

    def vectors(self, graph: Graph, ids: str, name: str, table: Table) -> str:
        return graph.node("Gather", graph.weight(f"{name}.weight", table.to(self.dtype)), ids, axis=0)

    def logits(self, graph: Graph, x: str, name: str, table: Table, bias: Bias) -> str:
        # onnxruntime transposes a weight once, as it loads the graph.
        across = graph.node("Transpose", graph.weight(f"{name}.weight", table.to(self.dtype)), perm=[1, 0])
        return graph.node("Add", graph.node("MatMul", x, across), graph.weight("logits.bias", bias.to(self.dtype)))


PRECISIONS = {None: Floats(), "fp16": Floats(torch.float16)}
"""The precisions by the names that --quantization has for them."""
