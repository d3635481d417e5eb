# Tests: test/runtime/host/test_judge.py
"""Models in 16-bit floats as models in f32 that round where theirs ask for it.

    Cast(x, to=FLOAT16)  ->  Cast(Cast(x, to=FLOAT16), to=FLOAT)

What the operators between Casts lose is the business of whoever computes them; a Cast is one that the model asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper
from onnx import shape_inference as inference

from frustum.runtime.host.evaluators import DEFAULT_DOMAINS, graphs_of

NARROW: dict[int, str] = {TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16"}
"""The types that are widened, as the device calls them."""
CASTS = ("Cast", "CastLike")
TYPE_ATTRIBUTES = {
    "Bernoulli": "dtype", "BlackmanWindow": "output_datatype", "Cast": "to", "DequantizeLinear": "output_dtype",
    "EyeLike": "dtype", "HammingWindow": "output_datatype", "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype", "QuantizeLinear": "output_dtype", "RandomNormal": "dtype",
    "RandomNormalLike": "dtype", "RandomUniform": "dtype", "RandomUniformLike": "dtype", "SequenceEmpty": "dtype",
}  # fmt: skip
"""Operations that name an element type, and the attribute in which they do."""


def has_narrow_floats(model: ModelProto) -> bool:
    """Whether any tensor of the model is f16 or bf16."""
    if any(attribute.i in NARROW for each in model.functions for node in each.node
           for attribute in _type_attributes(node)):  # fmt: skip
        return True
    for graph in graphs_of(model.graph):
        values = (*graph.input, *graph.output, *graph.value_info)
        types = [value.type.tensor_type.elem_type for value in values]
        types += [tensor.data_type for tensor in graph.initializer]
        types += [attribute.i for node in graph.node for attribute in _type_attributes(node)]
        if any(each in NARROW for each in types):
            return True
    return False


def rounded_to(model: ModelProto) -> set[str]:
    """The 16-bit types that Casts of the model round to, as the device calls them."""
    nodes = [node for graph in graphs_of(model.graph) for node in graph.node]
    nodes += [node for each in model.functions for node in each.node]
    likes = _likes(model)
    return {NARROW[target] for node in nodes if (target := _cast_to(node, likes)) in NARROW}


def widened(model: ModelProto) -> ModelProto:
    """A copy in which every f16 or bf16 tensor is f32; the model's tensors must be loaded."""
    wide = ModelProto()
    wide.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    likes = _likes(wide)
    for graph in graphs_of(wide.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _widen_type(value.type)
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        _round_at_casts(graph, likes)
    return wide


def _likes(model: ModelProto) -> dict[str, int]:
    """The element types of what CastLike takes for an example, by name."""
    if not any(node.op_type == "CastLike" for graph in graphs_of(model.graph) for node in graph.node):
        return {}
    try:
        graph = inference.infer_shapes(model).graph
    except (inference.InferenceError, RuntimeError, ValueError):  # then what the file itself says is left
        graph = model.graph
    values = (*graph.input, *graph.value_info, *graph.output)
    known = {value.name: value.type.tensor_type.elem_type for value in values}
    return known | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _round_at_casts(graph: GraphProto, likes: dict[str, int]) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        target = _cast_to(node, likes)
        _widen_node(node)
        if target not in NARROW:
            nodes.append(node)
            continue
        result, narrow = node.output[0], f"{node.output[0]}/{NARROW[target]}"
        nodes += [
            helper.make_node("Cast", node.input[:1], [narrow], f"{node.name or result}/{NARROW[target]}", to=target),
            helper.make_node("Cast", [narrow], [result], node.name, to=TensorProto.FLOAT),
        ]
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _cast_to(node: NodeProto, likes: dict[str, int]) -> int:
    """The type that a Cast casts to; 0 for other nodes."""
    if node.op_type not in CASTS or node.domain not in DEFAULT_DOMAINS:
        return 0
    if node.op_type == "CastLike":
        return likes.get(node.input[1], 0)
    return next((int(attribute.i) for attribute in _type_attributes(node)), 0)


def _type_attributes(node: NodeProto) -> Iterator[AttributeProto]:
    name = TYPE_ATTRIBUTES.get(node.op_type)
    return (attribute for attribute in node.attribute if attribute.name == name)


def _widen_type(type_: onnx.TypeProto) -> None:
    while type_.HasField("sequence_type") or type_.HasField("optional_type"):
        inner = type_.sequence_type if type_.HasField("sequence_type") else type_.optional_type
        type_ = inner.elem_type
    if type_.tensor_type.elem_type in NARROW:
        type_.tensor_type.elem_type = TensorProto.FLOAT


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _widen_node(node: NodeProto) -> None:
    for attribute in _type_attributes(node):
        if attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
