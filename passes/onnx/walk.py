# Tests: test/passes/onnx/test_import_onnx.py
"""The walk over a graph's nodes: each is computed, converted, expanded, or a problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.graph import shape_of, tensor_of
from frustum.passes.errors import MixesImages, ModelError, Problem, Refused
from frustum.passes.onnx.folding import fold
from frustum.passes.onnx.images import TARGETS, Images
from frustum.passes.onnx.loading import (
    BOOL,
    DEFAULT_DOMAINS,
    element_name,
    node_name,
    operator_of,
    used_names,
)
from frustum.passes.onnx.loops import unrolled
from frustum.passes.onnx.node import Converter, Network, Node, Value
from frustum.passes.onnx.operators import CONVERTERS, MICROSOFT, plugged_converter
from frustum.passes.onnx.opset import Kept
from frustum.passes.onnx.whole_numbers import note_results
from frustum.passes.weights import Array, numpy_of

MICROSOFT_DOMAIN = "com.microsoft"
MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Python and numpy raise on attributes that are missing, or of another type or length than ONNX says."""


SIZES = 3
"""The operand of Resize that says the extents of the result."""
OF_DEPENDENT_CONSTANTS = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Concat", "MatMul", "PRelu"}
)
"""Operators that compute with constants whatever they depend on: where they enter the network is looked at there."""


LOOPS = ("Loop", "Scan")
FLOAT = onnx.TensorProto.FLOAT


class Unavailable:
    """Stands for a value that a refused node would have given."""


UNAVAILABLE = Unavailable()
Known: TypeAlias = "Value | Unavailable | None"
"""What a name may stand for."""


@dataclass
class ImportWalk:
    """Values by name, as far as the walk has come, and what went wrong on the way."""

    file: str
    network: Network
    values: dict[str, Known]
    problems: list[Problem] = field(default_factory=list)
    kept: Kept | None = None
    """The nodes that are of another opset than the rest."""

    def run(self, nodes: Sequence[onnx.NodeProto], opset: int, name: str = "") -> None:
        """Imports nodes in order, under `name` or their own; what follows from a problem is not reported."""
        for proto in self.written_out(nodes):
            own = name or node_name(proto, proto.op_type)
            try:
                results = self._results(self.for_all_images(proto), own, opset)
            except (Refused, VerifyException, ModelError) as error:
                message = f"{error}{self._with_images(proto, error)}"
                self.problems.append(Problem(self.file, message, own, operator_of(proto)))
                results = ()
            for index, output in enumerate(proto.output):
                self.values[output] = results[index] if index < len(results) else UNAVAILABLE

    def written_out(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        """The nodes, those of the branch in place of an If whose condition is known when it is its turn."""
        for node in nodes:
            is_if = node.op_type == "If" and node.domain in DEFAULT_DOMAINS and len(node.input) == 1
            condition = self.values.get(node.input[0]) if is_if else None
            if isinstance(condition, np.ndarray):
                branch = "then_branch" if condition.all() else "else_branch"
                graphs = (attribute.g for attribute in node.attribute if attribute.name == branch)
                yield from self.written_out(branch_nodes(node, next(graphs, onnx.GraphProto())))
            else:
                yield node

    def _results(self, proto: onnx.NodeProto, name: str, opset: int) -> Sequence[Value | None]:
        if self.kept is not None and (why := self.kept.why(proto)):
            raise Refused(f"it {why}")
        found = [self._operand(input) for input in proto.input]
        operands = [operand for operand in found if not isinstance(operand, Unavailable)]
        if len(operands) < len(found):
            if is_known(proto, opset):
                return ()
            raise Refused(lacking(proto))
        node = Node(proto, operands, self.network, opset, name)
        folded = fold(node) if proto.domain in DEFAULT_DOMAINS else None
        if folded is not None:
            return folded
        if self.network.images is not None and proto.op_type not in OF_DEPENDENT_CONSTANTS:
            self._refuse_dependent(node, self.network.images)
        controlled = self._controlled(node) if proto.domain in DEFAULT_DOMAINS else None
        if controlled is not None:
            return controlled
        if not is_known(proto, opset):
            raise Refused(lacking(proto))
        converter = _converter(proto)
        if converter is None:
            return self._expanded(node, function_body(node))
        try:
            result = converter(node)
        except MISFITS as error:
            raise Refused(f"its attributes and operands do not fit together: {error}") from error
        results = [result] if isinstance(result, np.ndarray | SSAValue) else result
        note_results(node, results)
        return [self._known_if_empty(each, name) for each in results]

    def _known_if_empty(self, value: Value, name: str) -> Value:
        """A value of no elements as the constant that it is: what reads it is computed now, or reads the rest."""
        if not isinstance(value, SSAValue) or all(shape_of(value)):
            return value
        if self.network.images is not None:
            raise Refused(f"its result is {'x'.join(map(str, shape_of(value)))}, which is no tensor of the device")
        self.network.drop(value)
        return np.zeros(shape_of(value), onnx.helper.tensor_dtype_to_np_dtype(model_element(value, self.network)))

    def for_all_images(self, proto: onnx.NodeProto) -> onnx.NodeProto:
        """The node with the shape that it names changed from one image's to that of a changed batch."""
        images = self.network.images
        if images is None or proto.domain not in DEFAULT_DOMAINS or proto.op_type not in (*TARGETS, "Expand", "Resize"):
            return proto
        shape, axis = self.images_in(proto.input[0]) if proto.input else (None, None)
        if shape is None or axis is None:
            return proto
        place = SIZES if proto.op_type == "Resize" else 1
        given = self.values.get(proto.input[place]) if len(proto.input) > place and proto.input[place] else None
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in proto.attribute}
        if isinstance(given, SSAValue | Unavailable) or (given is None and proto.op_type in ("Expand", "Resize")):
            return proto
        if proto.op_type == "Resize":
            assert isinstance(given, np.ndarray)
            target = images.sizes(given, shape, axis, attributes.get("axes"))
        else:
            target = images.target(proto, given, shape, axis, attributes)
        if target is None:
            return proto
        name = f"{next(iter(proto.output), '')}/all_images"
        self.know(name, np.asarray(target, np.int64))
        result = onnx.NodeProto()
        result.CopyFrom(proto)
        if proto.op_type in TARGETS:
            result.op_type = "Reshape"
            del result.attribute[:], result.input[1:]
            result.input.append(name)
        else:
            result.input[place] = name
        return result

    def _with_images(self, proto: onnx.NodeProto, error: Exception) -> str:
        """What an error has to say of a changed batch, if it does not and its node has the images."""
        images = self.network.images
        if images is None or isinstance(error, MixesImages) or all(self.images_in(x)[1] is None for x in proto.input):
            return ""
        return f" (with {images.count} images of --batch in place of the 1 that the model has)"

    def images_in(self, name: str) -> tuple[tuple[int, ...] | None, int | None]:
        """The shape of a value and the axis of its images, where it has them."""
        value, images = self.values.get(name), self.network.images
        if images is None or not isinstance(value, SSAValue):
            return None, None
        return shape_of(value), images.axes.get(value)

    def know(self, name: str, array: Array) -> None:
        """A new constant."""
        self.values[name] = array

    def _refuse_dependent(self, node: Node, images: Images) -> None:
        """What is no number to compute with, but a size, an index, an end, would be another one for one image."""
        for name, operand in zip(node.proto.input, node.operands, strict=False):
            if images.depends(operand) and (_converter(node.proto) is not None or node.op_type == "If"):
                raise images.refuse(f"needs '{name}', which is computed from the size of the batch")

    def _operand(self, name: str) -> Value | Unavailable | None:
        if not name:
            return None
        if name not in self.values:
            raise Refused(f"it uses '{name}', which nothing before it produces")
        return self.values[name]

    def _controlled(self, node: Node) -> Sequence[Value | None] | None:
        """The outputs of control flow that is known; None for other operators."""
        if node.op_type in LOOPS:
            return unrolled(node, lambda graph, inputs: self._body(node, graph, inputs))
        return None

    def _body(self, node: Node, graph: onnx.GraphProto, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The outputs of a graph inside a node, whose nodes see what is around them; Refused where it computes in a
        type that the network does not have."""
        casts = {a.i for each in graph.node if each.op_type == "Cast" for a in each.attribute if a.name == "to"}
        own = model_type(self.network)
        if own != FLOAT and FLOAT in casts:
            raise Refused(f"its steps compute in FLOAT, the network in {element_name(own)}")
        inner = ImportWalk(self.file, self.network, dict(self.values), kept=self.kept)
        inner.values.update((tensor.name, onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer)
        inner.values.update(zip((value.name for value in graph.input), inputs, strict=True))
        inner.run(graph.node, node.opset, node.name)
        if inner.problems:
            operators = ", ".join(sorted({problem.operator for problem in inner.problems}))
            raise Refused(f"this operator is not supported (it would need {operators})")
        found = [inner._available(output.name) for output in graph.output]
        return [value for value in found if value is not None]

    def _expanded(self, node: Node, body: FunctionBody) -> Sequence[Value | None]:
        """The outputs of an operator that ONNX defines by a function."""
        names = dict.fromkeys(body.inputs, None) | dict(zip(body.inputs, node.operands, strict=False))
        inner = ImportWalk(self.file, self.network, dict(names))
        inner.run(body.nodes, body.opset, node.name)
        if inner.problems:
            operators = ", ".join(sorted({problem.operator for problem in inner.problems}))
            raise Refused(f"this operator is not supported (it would need {operators})")
        return [inner._available(output) for output in body.outputs]

    def _available(self, name: str) -> Value | None:
        value = self.values.get(name)
        if isinstance(value, Unavailable):
            raise Refused(f"'{name}' is not available")
        return value


def model_type(network: Network) -> int:
    """The type of ONNX that the network's floating point is."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(numpy_of(network.element)))


def lacking(proto: onnx.NodeProto) -> str:
    """Why there is no converter for an operator."""
    if proto.op_type == "If":
        return "which branch it takes depends on the network's inputs (--bind makes a scalar one a constant)"
    return "this operator is not supported"


def is_known(proto: onnx.NodeProto, opset: int) -> bool:
    """Whether there is a converter for the operator, or a function of others, or it is a loop to be written out."""
    is_ours = proto.domain in DEFAULT_DOMAINS and (proto.op_type in LOOPS or has_body(proto.op_type, opset))
    return _converter(proto) is not None or is_ours


def _converter(proto: onnx.NodeProto) -> Converter | None:
    if proto.domain == MICROSOFT_DOMAIN:
        return MICROSOFT.get(proto.op_type) or plugged_converter(proto.domain, proto.op_type)
    ours = CONVERTERS.get(proto.op_type) if proto.domain in DEFAULT_DOMAINS else None
    return ours or plugged_converter(proto.domain, proto.op_type)


def branch_nodes(node: onnx.NodeProto, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a branch, under their names, with the results of the If in place of those of the graph; its other
    values are named after the If."""
    made = {name for each in graph.node for name in each.output if name}
    names = {name: f"{next(iter(node.output), '')}/{name}" for name in made.union(t.name for t in graph.initializer)}
    given = dict(zip((value.name for value in graph.output), node.output, strict=False))
    names |= {inner: outer for inner, outer in given.items() if inner in made and outer}
    for tensor in graph.initializer:
        yield onnx.helper.make_node("Constant", [], [names[tensor.name]], value=tensor)
    for each in needed_nodes(graph):
        yield _renamed(each, names)
    for value, outer in zip(graph.output, node.output, strict=False):
        if outer and names.get(value.name) != outer:
            yield onnx.helper.make_node("Identity", [names.get(value.name, value.name)], [outer])


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy with other names of values, in the graphs inside it too."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = node_name(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    for attribute in copy.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            inner = [_renamed(each, names) for each in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
            for value in graph.output:
                value.name = names.get(value.name, value.name)
    return copy


def needed_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that some output of the graph depends on, in order."""
    needed = {output.name for output in graph.output}
    chosen = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            chosen.append(node)
            needed.update(used_names(node))
    return chosen[::-1]


@dataclass(frozen=True)
class FunctionBody:
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


def function_body(node: Node) -> FunctionBody:
    """The nodes for an operator that `has_body`.

    An operator's meaning may change with the opset (the scales of GroupNormalization were one for each group before
    they were one for each channel; the axes of reductions became an operand), and so may its body.  A node gets the
    body of its own version of the operator: of those that ONNX wrote for this version the newest not above the model's
    opset.  Where all of them are above (ThresholdedRelu of opset 10 has one in the words of opset 18) it is the oldest,
    which says the same: a body belongs to one version of the operator, whatever the opset of the nodes in it.
    """
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
    return FunctionBody(nodes, list(function.input), list(function.output), version)


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


def model_element(value: SSAValue, network: Network) -> int:
    """The element type that a value of the network has in the model."""
    if value in network.boolean:
        return BOOL
    if value in network.whole:
        return onnx.TensorProto.INT64
    dtype = numpy_of(tensor_of(value).element_type)
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(f"u{dtype}") if value in network.unsigned else dtype))


def _type(operand: Value | None, network: Network) -> onnx.TypeProto:
    if operand is None:
        return onnx.TypeProto()
    if isinstance(operand, SSAValue):
        return onnx.helper.make_tensor_type_proto(model_element(operand, network), list(shape_of(operand)))
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
