"""An ONNX graph while it is put together: nodes in their order, weights by name, inputs and outputs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import RunError

try:
    from onnx import GraphProto, TensorProto, ValueInfoProto, helper
except ImportError as error:
    raise ImportError("exporting to ONNX needs the package onnx: pip install 'glassformer[onnx]'") from error

OPSET, IR_VERSION = 17, 8
"""The operators are those of opset 17 (LayerNormalization came with it): onnxruntime has read it since 1.12."""
MOST_BYTES = (1 << 31) - (1 << 20)
"""Most bytes of one file: protobuf's limit is 2 GiB."""
TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}
Shape = Sequence[int | str]
"""A number for an axis of fixed size, a name for a dynamic one."""


class Graph:
    """Nodes that are added one after the other. Tensors are known by their names, which the methods return.

    >>> graph = Graph("double")
    >>> x = graph.input("x", torch.float32, ["length"])
    >>> graph.output(graph.node("Add", x, x), "y", torch.float32, ["length"])
    >>> len(graph.model()) > 0
    True
    """

    def __init__(self, name: str, within: "Graph | None" = None) -> None:
        """Begin a graph; one `within` another is a branch of it, which sees its tensors and shares its weights."""
        self._name = name
        self._root: Graph = self if within is None else within._root
        self._nodes: list[tuple[str, Sequence[str], Sequence[str], dict[str, Any]]] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[tuple[str, str, torch.dtype, Shape]] = []
        self._weights: dict[str, Tensor] = {}
        self._public: dict[str, str] = {}
        self._part = ""
        self._count = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Name the nodes that are added meanwhile after a part of the network."""
        root, before = self._root, self._root._part
        root._part = name
        try:
            yield
        finally:
            root._part = before

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        (output,) = self.nodes(kind, 1, *inputs, **attributes)
        return output

    def nodes(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node of several outputs and return them."""
        root = self._root
        root._count += 1
        stem = f"{root._part}/{kind}_{root._count}"
        names = [stem] if outputs == 1 else [f"{stem}.{n}" for n in range(outputs)]
        self._nodes.append((kind, inputs, names, attributes))
        return names

    def branch(self, name: str) -> "Graph":
        """Begin a branch of an `If` node: a graph without inputs, for `branches`."""
        return Graph(name, within=self)

    def choose(self, condition: str, then: "Graph", otherwise: "Graph") -> list[str]:
        """Add the node that takes one of two branches, and return what its outputs are outside."""
        return self.nodes("If", len(then._outputs), condition, then_branch=then, else_branch=otherwise)

    def weight(self, name: str, values: Tensor) -> str:
        """Return the weight of this name, stored once however often it is asked for."""
        self._root._weights.setdefault(name, values)
        return name

    def numbers(self, *values: int) -> str:
        """Return a vector of whole numbers, such as a shape."""
        return self.weight(f"[{', '.join(map(str, values))}]", torch.tensor(values, dtype=torch.int64))

    def scalar(self, value: float | int, dtype: torch.dtype) -> str:
        """Return a constant without axes."""
        return self.weight(f"{value!r} {str(dtype).removeprefix('torch.')}", torch.tensor(value, dtype=dtype))

    def cast(self, x: str, dtype: torch.dtype) -> str:
        """Return a tensor in another type of numbers."""
        return self.node("Cast", x, to=TYPES[dtype])

    def input(self, name: str, dtype: torch.dtype, shape: Shape) -> str:
        """Declare an input."""
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def output(self, x: str, name: str, dtype: torch.dtype, shape: Shape) -> None:
        """Declare a tensor, which a node makes, an output of this name."""
        self._root._public[x] = name
        self._outputs.append((x, name, dtype, shape))

    def model(self) -> bytes:
        """Return the graph as the bytes of a file, the same for the same graph; RunError where they are too many."""
        size = sum(weight.numel() * weight.element_size() for weight in self._weights.values())
        if size > MOST_BYTES:
            raise RunError(
                f"the {self._name} has {size / 2**30:.1f} GiB of weights, and an ONNX file holds less than 2: export "
                "it with --quantization fp16 or int8"
            )
        model = helper.make_model(
            self._proto(),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="glassformer",
        )
        return model.SerializeToString(deterministic=True)

    def _proto(self) -> GraphProto:
        public = self._root._public
        made = []
        for kind, inputs, outputs, attributes in self._nodes:
            given: dict[str, Any] = {
                name: one._proto() if isinstance(one, Graph) else one for name, one in attributes.items()
            }
            into, out = ([public.get(name, name) for name in names] for names in (inputs, outputs))
            made.append(helper.make_node(kind, into, out, name=outputs[0], **given))
        outputs = [helper.make_tensor_value_info(name, TYPES[dtype], shape) for _, name, dtype, shape in self._outputs]
        return helper.make_graph(
            made, self._name, self._inputs, outputs, [_tensor(name, values) for name, values in self._weights.items()]
        )


def _tensor(name: str, values: Tensor) -> TensorProto:
    """Return a weight as ONNX stores it: little-endian, row by row."""
    data = values.contiguous().numpy()
    return helper.make_tensor(
        name, TYPES[values.dtype], values.shape, data.astype(data.dtype.newbyteorder("<")).tobytes(), raw=True
    )
