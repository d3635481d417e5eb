# Tests: test/passes/onnx/test_import_onnx.py
"""One set of operators: functions inlined, operators older than opset 13 converted to it.

From 13 on the operators read here keep their meaning; what changed is only whether an argument comes as
an attribute or as an input, and the converters of operators read both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import checker, inliner, shape_inference, version_converter

from frustum.passes.errors import Problem, Unsupported
from frustum.passes.onnx.loading import DEFAULT_DOMAINS, LoadedModel, node_lists, problem_at
from frustum.passes.onnx.old_meanings import keep_old_meanings

OPSET = 13
FREE_INITIALIZERS = 4  # the first IR version whose initializers need not be inputs
CAST_LIKE = "CastLike"
KEPT = "frustum.kept"
"""The domain of nodes that the converter must leave as they are."""
FAILURES = (
    LookupError,  # of onnx 1.22, for a name that nothing makes
    RuntimeError,
    ValueError,
    checker.ValidationError,
    shape_inference.InferenceError,
    version_converter.ConvertError,
)
NAMES = {number: name for name, number in onnx.AttributeProto.AttributeType.items()}
BIG_ELEMENTS = 1024  # larger tensors do not go through the C++ tools, which copy a model several times


@dataclass(frozen=True)
class Unified:
    """A graph of known operators, and its constant tensors by name."""

    graph: onnx.GraphProto
    opset: int
    tensors: dict[str, onnx.TensorProto]
    kept: Kept | None = None


@dataclass(frozen=True)
class Kept:
    """Nodes that nobody converts: they stay in the model's own opset, for the host."""

    opset: int
    outputs: Mapping[str, str]
    """Their results, and why they were not converted."""

    def why(self, node: onnx.NodeProto) -> str:
        """Why a node was not converted; nothing where it was."""
        return next((self.outputs[name] for name in node.output if name in self.outputs), "")


def unify(model: LoadedModel) -> Unified:
    """The model's graph at opset 13 or newer, without functions; the model itself is left as it is."""
    proto = model.proto
    if proto.graph.sparse_initializer:
        raise Unsupported([Problem(model.file, "sparse initializers are not supported")])
    has_likes = any(node.op_type == CAST_LIKE for node in proto.graph.node)
    if not proto.functions and not has_likes and model.opset >= OPSET:
        tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        return Unified(proto.graph, model.opset, tensors)
    _check_attributes(model)
    heavy = _heavy_tensors(proto.graph)
    light = _without(proto, heavy)
    if light.functions:
        light = _inline(light, model)
    kept = None
    if model.opset < OPSET:
        light, kept = _convert(light, model)
    if any(node.op_type == CAST_LIKE for node in light.graph.node):
        light = _with_casts(light)
    tensors = heavy | {tensor.name: tensor for tensor in light.graph.initializer}
    return Unified(light.graph, max(model.opset, OPSET), tensors, kept)


def _check_attributes(model: LoadedModel) -> None:
    """Unsupported for attributes of another type than their operator has: the C++ tools end the process there."""
    problems = []
    for node in (node for nodes in node_lists(model.proto) for node in nodes):
        known = _attribute_types(node.op_type, model.opset, node.domain)
        for each in node.attribute:
            wanted = known.get(each.name, each.type)
            if each.type not in (wanted, onnx.AttributeProto.UNDEFINED) and not each.ref_attr_name:
                found, allowed = (NAMES.get(kind, str(kind)) for kind in (each.type, wanted))
                message = f"attribute '{each.name}' is {found}, it has to be {allowed}"
                problems.append(problem_at(model.file, message, node))
    if problems:
        raise Unsupported(problems)


def _attribute_types(op_type: str, opset: int, domain: str) -> dict[str, int]:
    """By name; nothing for an operator that ONNX does not have."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return {}
    declared: Mapping[str, Any] = schema.attributes  # whose stubs lack members
    return {name: int(each.type.value) for name, each in declared.items()}


def _heavy_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Big initializers and the values of big Constant nodes, by name."""
    heavy = {tensor.name: tensor for tensor in graph.initializer if _is_big(tensor)}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors = (value.t for value in node.attribute if value.name == "value")
            heavy.update((node.output[0], tensor) for tensor in tensors if _is_big(tensor))
    return heavy


def _is_big(tensor: onnx.TensorProto) -> bool:
    return math.prod(tensor.dims) > BIG_ELEMENTS


def _without(proto: onnx.ModelProto, heavy: dict[str, onnx.TensorProto]) -> onnx.ModelProto:
    """The model with each heavy tensor only declared as an input."""
    graph = proto.graph
    inputs = {value.name: value for value in graph.input}
    for name, tensor in heavy.items():
        if name not in inputs:
            inputs[name] = onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
    light = onnx.helper.make_graph(
        [node for node in graph.node if not set(node.output) & heavy.keys()],
        graph.name or "graph",
        list(inputs.values()),
        list(graph.output),
        [tensor for tensor in graph.initializer if tensor.name not in heavy],
        value_info=list(graph.value_info),
    )
    used = {node.domain for function in proto.functions for node in function.node}
    used |= {node.domain for node in graph.node} | set(DEFAULT_DOMAINS)
    return onnx.helper.make_model(
        light,
        opset_imports=[entry for entry in proto.opset_import if entry.domain in used],
        functions=list(proto.functions),
        ir_version=max(proto.ir_version, FREE_INITIALIZERS),
    )


def _inline(light: onnx.ModelProto, model: LoadedModel) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(light, convert_version=True)
    except FAILURES as error:
        message = f"its functions cannot be inlined: {str(error).strip().splitlines()[0]}"
        raise Unsupported([Problem(model.file, message)]) from error


def _convert(light: onnx.ModelProto, model: LoadedModel) -> tuple[onnx.ModelProto, Kept | None]:
    """The model at OPSET, but for nodes that the converter refuses each by itself; node by node where it does not take
    the others together, or gives a model of other inputs (Scan had a batch axis once)."""
    kept = None
    try:
        converted = version_converter.convert_version(light, OPSET)
    except FAILURES:
        kept = Kept(model.opset, {})
    if kept is not None or _interface(converted.graph) != _interface(light.graph):
        each = _each_alone(light, model.opset)
        reasons = {name: why for node, why in each if isinstance(why, str) for name in node.output if name}
        kept = Kept(model.opset, reasons)
        try:
            converted = _convert_others(light, kept)
            is_same = _interface(converted.graph) == _interface(light.graph)
        except FAILURES:
            is_same = False
        if not is_same:
            converted = _put_together(light, each)
    keep_old_meanings(converted.graph, model.opset, {} if kept is None else kept.outputs)
    return converted, kept


def _each_alone(light: onnx.ModelProto, opset: int) -> list[tuple[onnx.NodeProto, onnx.GraphProto | str]]:
    """Every node, and what the converter makes of it alone, or why it does not."""
    types = _known_types(light)
    tensors = {tensor.name: tensor for tensor in light.graph.initializer}
    found: list[tuple[onnx.NodeProto, onnx.GraphProto | str]] = []
    for node in light.graph.node:
        if node.domain not in DEFAULT_DOMAINS:
            found.append((node, onnx.helper.make_graph([node], "node", [], [])))
            continue
        read = dict.fromkeys(filter(None, node.input))
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [onnx.helper.make_value_info(name, types.get(name, onnx.TypeProto())) for name in read],
            [onnx.helper.make_value_info(name, types.get(name, onnx.TypeProto())) for name in node.output if name],
            [tensors[name] for name in read if name in tensors],
        )
        own = [onnx.helper.make_opsetid("", opset)]
        alone = onnx.helper.make_model(graph, opset_imports=own, ir_version=light.ir_version)
        try:
            converted = version_converter.convert_version(alone, OPSET).graph
        except FAILURES as error:
            why = f"cannot be converted from opset {opset} to {OPSET}: {_reason(error)}"
            if not onnx.defs.has(node.op_type):
                why = f"is of opset {opset}, and no operator of ONNX any more"
            found.append((node, why))
        else:
            changed = f"cannot be converted from opset {opset} to {OPSET}: its inputs would change"
            found.append((node, converted if _interface(converted) == _interface(graph) else changed))
    return found


def _put_together(
    light: onnx.ModelProto, each: Sequence[tuple[onnx.NodeProto, onnx.GraphProto | str]]
) -> onnx.ModelProto:
    """The model of what became of its nodes; values that the converter added get names of their own."""
    result = onnx.ModelProto()
    result.CopyFrom(light)
    del result.graph.node[:]
    known = {tensor.name for tensor in light.graph.initializer}
    for number, (node, graph) in enumerate(each):
        if isinstance(graph, str):
            result.graph.node.append(node)
            continue
        own = {*node.input, *node.output, ""}
        for tensor in graph.initializer:
            if tensor.name not in known:
                added = result.graph.initializer.add()
                added.CopyFrom(tensor)
                added.name = tensor.name if tensor.name in own else f"{tensor.name}/{number}"
        for inner in graph.node:
            copy = result.graph.node.add()
            copy.CopyFrom(inner)
            for names in (copy.input, copy.output):
                names[:] = [name if name in own else f"{name}/{number}" for name in names]
    return result


def _known_types(light: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    with suppress(*FAILURES):  # then what the file itself says is left
        light = shape_inference.infer_shapes(light)
    graph = light.graph
    types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def _convert_others(light: onnx.ModelProto, kept: Kept) -> onnx.ModelProto:
    """All nodes converted but those kept, which the converter is shown as of a domain that it does not know."""
    hidden = onnx.ModelProto()
    hidden.CopyFrom(light)
    hidden.opset_import.append(onnx.helper.make_opsetid(KEPT, 1))
    for node in hidden.graph.node:
        if kept.why(node):
            node.domain = KEPT
    converted = version_converter.convert_version(hidden, OPSET)
    for node in converted.graph.node:
        if node.domain == KEPT:
            node.domain = ""
    return converted


def _with_casts(light: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a Cast for every CastLike whose example has a known type: the network keeps one type alone."""
    types, result = _known_types(light), onnx.ModelProto()
    result.CopyFrom(light)
    for node in result.graph.node:
        like = types.get(node.input[1]) if node.op_type == CAST_LIKE and len(node.input) > 1 else None
        if like is not None and like.tensor_type.elem_type:
            node.op_type = "Cast"
            node.attribute.append(onnx.helper.make_attribute("to", like.tensor_type.elem_type))
            del node.input[1:]
    return result


def _reason(error: BaseException) -> str:
    """What the converter says, without the place in its own code."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.rpartition("` failed: ")[2]


def _interface(graph: onnx.GraphProto) -> list[tuple[str, int]]:
    """Name and rank of every input."""
    return [(value.name, len(value.type.tensor_type.shape.dim)) for value in graph.input]


