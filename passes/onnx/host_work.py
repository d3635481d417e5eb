# Tests: test/passes/onnx/test_host_work.py
"""What a node does on the host: its multiply-accumulates, and the bytes that it reads and writes.

A node reads each operand once and writes each result once, in the model's types; of what it takes elements from, it
reads as many as it takes.  What has a shape that is known at run time only counts as its node's largest operand.
Source: docs/techniques/machine.md, "Host".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from frustum.passes.onnx.loading import free_names

Shape = tuple[int, ...]
Types = Mapping[str, onnx.TypeProto]


@dataclass(frozen=True)
class HostWork:
    """Of one node or several."""

    macs: int = 0
    bytes: int = 0

    def __add__(self, other: HostWork) -> HostWork:
        return HostWork(self.macs + other.macs, self.bytes + other.bytes)


NO_WORK = HostWork()
NOTHING_READ = frozenset({"Shape", "Size"})
TAKES = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""They read as much of their first operand as they give."""


def host_work(node: onnx.NodeProto, types: Types) -> HostWork:
    """Of a node, where `types` knows what it reads and makes."""
    read = [_size(types.get(name)) for name in free_names(node)]
    known = [size for size in read if size is not None]
    most = max(known, default=0)
    made = sum(most if (size := _size(types.get(name))) is None else size for name in node.output if name)
    if node.op_type in NOTHING_READ:
        return HostWork(0, made)
    if node.op_type in TAKES and read and read[0] is not None:
        read[0] = min(read[0], made)
    return HostWork(_macs(node, types), made + sum(most if size is None else size for size in read))


def inferred_types(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, onnx.TypeProto]:
    """What ONNX says of the values of a whole model whose inputs have these shapes; as far as it gets."""
    graph = model.graph
    bare = onnx.ModelProto()
    bare.CopyFrom(onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import))
    bare.functions.extend(model.functions)
    bare.graph.node.extend(graph.node)
    bare.graph.output.extend(graph.output)
    constants = {t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    bare.graph.initializer.extend(t for t in graph.initializer if math.prod(t.dims) <= MOST_PROPAGATED)
    small = {t.name for t in bare.graph.initializer}
    for value in graph.input:
        if value.name not in small:
            found = bare.graph.input.add()
            found.CopyFrom(value)
            if value.name in shapes:
                element = value.type.tensor_type.elem_type
                found.type.CopyFrom(onnx.helper.make_tensor_type_proto(element, list(shapes[value.name])))
    given = {value.name for value in bare.graph.input}
    for name in constants.keys() - small - given:
        bare.graph.input.append(onnx.helper.make_value_info(name, constants[name]))
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        inferred = bare.graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return constants | {value.name: value.type for value in values}


MOST_PROPAGATED = 256
"""Elements of constants that may say shapes."""


def _size(type_: onnx.TypeProto | None) -> int | None:
    """Bytes of a tensor; None where its shape is open, 0 for what is none."""
    if type_ is None or type_.WhichOneof("value") not in (None, "tensor_type"):
        return None if type_ is None else 0
    shape, element = _shape(type_), type_.tensor_type.elem_type
    if shape is None or not element or element == onnx.TensorProto.STRING:
        return None
    return math.prod(shape) * onnx.helper.tensor_dtype_to_np_dtype(element).itemsize


def _shape(type_: onnx.TypeProto | None) -> Shape | None:
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


# --- multiply-accumulates ----------------------------------------------------------------------------------


def _macs(node: onnx.NodeProto, types: Types) -> int:
    """Of products and convolutions; 0 for other operators, and where a shape is open."""
    count = COUNTS.get(node.op_type)
    inputs = [_shape(types.get(name)) for name in node.input]
    made = _shape(types.get(node.output[0])) if node.output else None
    if count is None or made is None:
        return 0
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    try:
        return count(inputs, made, attributes)
    except (IndexError, KeyError, TypeError, ValueError):  # a shape is open, or the node is not as ONNX says
        return 0


Count = Callable[[Sequence[Any], Shape, Mapping[str, Any]], int]


def _product(inputs: Sequence[Any], made: Shape, attributes: Mapping[str, Any]) -> int:
    return math.prod(made) * int(inputs[0][-1])


def _gemm(inputs: Sequence[Any], made: Shape, attributes: Mapping[str, Any]) -> int:
    return math.prod(made) * int(inputs[0][0 if attributes.get("transA", 0) else 1])


def _conv(place: int) -> Count:
    return lambda inputs, made, attributes: math.prod(made) * math.prod(inputs[place][1:])


def _transposed(inputs: Sequence[Any], made: Shape, attributes: Mapping[str, Any]) -> int:
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])


def _recurrent(inputs: Sequence[Any], made: Shape, attributes: Mapping[str, Any]) -> int:
    steps, batch = inputs[0][:2] if not attributes.get("layout", 0) else inputs[0][1::-1]
    return int(steps * batch) * (math.prod(inputs[1]) + math.prod(inputs[2]))


def _einsum(inputs: Sequence[Any], made: Shape, attributes: Mapping[str, Any]) -> int:
    left = attributes["equation"].decode().replace(" ", "").partition("->")[0].split(",")
    extents = {letter: extent for word, shape in zip(left, inputs, strict=True)
               for letter, extent in zip(word, shape, strict=True)}  # fmt: skip
    return math.prod(extents.values()) if len(left) > 1 else 0


def _attention(inputs: Sequence[Any], made: Shape, attributes: Mapping[str, Any]) -> int:
    """Scores and the mixture of values: each query with each key, twice."""
    past = next((shape[-2] for shape in inputs[3:] if shape is not None and len(shape) == 4 and len(inputs) > 4), 0)
    return 2 * math.prod(inputs[0]) * (int(inputs[1][-2]) + int(past))


COUNTS: dict[str, Count] = {
    "MatMul": _product, "MatMulInteger": _product, "QLinearMatMul": _product, "FusedMatMul": _product,
    "MatMulNBits": _product, "Gemm": _gemm, "Conv": _conv(1), "ConvInteger": _conv(1), "FusedConv": _conv(1),
    "DeformConv": _conv(1), "QLinearConv": _conv(3), "ConvTranspose": _transposed, "LSTM": _recurrent,
    "GRU": _recurrent, "RNN": _recurrent, "Einsum": _einsum, "Attention": _attention,
    "MultiHeadAttention": _attention, "GroupQueryAttention": _attention,
}  # fmt: skip
