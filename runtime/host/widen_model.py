"""An ONNX model in 16-bit floats as the same model in f32: same weights, no rounding in between."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TYPE_ATTRIBUTES = {
    "Cast": "to",
    "RandomNormal": "dtype",
    "EyeLike": "dtype",
    "QuantizeLinear": "output_dtype",
}
"""Operations that name an element type, and the attribute in which they do."""


def has_narrow_floats(model: ModelProto) -> bool:
    """Whether any tensor of the model is f16 or bf16."""
    for graph in _graphs(model.graph):
        values = (*graph.input, *graph.output, *graph.value_info)
        if any(value.type.tensor_type.elem_type in NARROW for value in values):
            return True
        if any(tensor.data_type in NARROW for tensor in graph.initializer):
            return True
        if any(attribute.i in NARROW for node in graph.node for attribute in _type_attributes(node)):
            return True
    return False


def widened(model: ModelProto) -> ModelProto:
    """A copy in which every f16 or bf16 tensor is f32; the model's tensors must be loaded."""
    wide = ModelProto()
    wide.CopyFrom(model)
    for graph in _graphs(wide.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _widen_type(value.type)
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for node in graph.node:
            _widen_node(node)
    return wide


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _type_attributes(node: NodeProto) -> Iterator[AttributeProto]:
    name = TYPE_ATTRIBUTES.get(node.op_type)
    return (attribute for attribute in node.attribute if attribute.name == name)


def _widen_type(type_: TypeProto) -> None:
    if type_.tensor_type.elem_type in NARROW:
        type_.tensor_type.elem_type = TensorProto.FLOAT


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _widen_node(node: NodeProto) -> None:
    for attribute in _type_attributes(node):
        if attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
