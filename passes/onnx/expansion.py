"""Operators that ONNX defines by a function of others: the function's body for one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from xdsl.ir import SSAValue

from frustum.dialects.graph import shape_of
from frustum.passes.onnx.element_types import DEVICE_TYPES
from frustum.passes.onnx.node import Network, Node, Value

__all__ = ["Body", "function_body", "has_body"]


@dataclass(frozen=True)
class Body:
    """Nodes in place of one."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Sequence[str]
    outputs: Sequence[str]
    opset: int


@cache
def has_body(op_type: str) -> bool:
    """Whether ONNX defines the operator by others."""
    if not isinstance(op_type, str) or not onnx.defs.has(op_type):  # a damaged file has bytes for a name
        return False
    schema = _schema(op_type)
    return schema.has_function or schema.has_context_dependent_function


def function_body(node: Node) -> Body:
    schema = _schema(node.op_type, max(node.opset, _schema(node.op_type).since_version))
    if schema.has_function:
        version = max(schema.function_opset_versions)
        content = schema.get_function_with_opset_version(version)
    else:
        version = max(schema.context_dependent_function_opset_versions)
        types = [_type(operand, node.network).SerializeToString() for operand in node.operands]
        content = schema.get_context_dependent_function_with_opset_version(
            version, node.proto.SerializeToString(), types
        )
    function = onnx.FunctionProto.FromString(content)
    attributes = {attribute.name: attribute for attribute in function.attribute_proto}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type:
            attributes.setdefault(name, attribute.default_value)
    attributes.update((attribute.name, attribute) for attribute in node.proto.attribute)
    nodes = [_with_attributes(inner, attributes) for inner in function.node]
    return Body(nodes, list(function.input), list(function.output), version)


def _schema(op_type: str, version: int | None = None) -> Any:
    """Of any type: the members about functions are missing in the stubs of `onnx`."""
    return onnx.defs.get_schema(op_type) if version is None else onnx.defs.get_schema(op_type, version)


def _type(operand: Value | None, network: Network) -> onnx.TypeProto:
    if operand is None:
        return onnx.TypeProto()
    if isinstance(operand, SSAValue):
        data_type = next(key for key, element in DEVICE_TYPES.items() if element == network.element)
        return onnx.helper.make_tensor_type_proto(data_type, list(shape_of(operand)))
    return onnx.helper.make_tensor_type_proto(
        onnx.helper.np_dtype_to_tensor_dtype(operand.dtype), list(operand.shape)
    )


def _with_attributes(node: onnx.NodeProto, attributes: dict[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A body's node with references to the function's attributes replaced; one without a value is left out."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            result.attribute.append(attribute)
        elif attribute.ref_attr_name in attributes:
            copy = result.attribute.add()
            copy.CopyFrom(attributes[attribute.ref_attr_name])
            copy.name = attribute.name
    return result
