"""Operators that ONNX defines by a function of others: the function's body for one node.

An operator's meaning may change with the opset (the scales of GroupNormalization were one for each group before they
were one for each channel; the axes of reductions became an operand), and so may its body.  A node gets the body of
its own version of the operator: of those that ONNX wrote for this version the newest not above the model's opset.
Where all of them are above (ThresholdedRelu of opset 10 has one in the words of opset 18) it is the oldest, which says
the same: a body belongs to one version of the operator, whatever the opset of the nodes in it.
"""

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
def has_body(op_type: str, opset: int) -> bool:
    """Whether ONNX defines the operator, as it is in this opset, by others."""
    schema = _schema(op_type, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def function_body(node: Node) -> Body:
    """The nodes for an operator that `has_body`."""
    schema = _schema(node.op_type, node.opset)
    if schema.has_function:
        version = _version(schema.function_opset_versions, node.opset)
        content = schema.get_function_with_opset_version(version)
    else:
        version = _version(schema.context_dependent_function_opset_versions, node.opset)
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


def _version(versions: Sequence[int], opset: int) -> int:
    """The newest not above the opset, or else the oldest."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _schema(op_type: str, opset: int) -> Any:
    """The operator as it is in an opset, None where there is none: of any type, as the members about functions are
    missing in the stubs of `onnx`."""
    if not isinstance(op_type, str) or not onnx.defs.has(op_type):  # a damaged file has bytes for a name
        return None
    try:
        return onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None


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
