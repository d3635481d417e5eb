"""What must hold of a model so that the host can have a part in it: else it is refused, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import onnx

from frustum.passes.errors import Problem, Unsupported
from frustum.passes.onnx.loading import LoadedModel, element_name, node_name, problem_at
from frustum.passes.onnx.parts import ModelPart
from frustum.passes.onnx.walk import free_names


def check_names(model: LoadedModel) -> None:
    """Unsupported for a damaged file, in which a name is bytes that are no text."""
    graphs = [model.proto.graph]
    while graphs:
        graph = graphs.pop()
        names = [value.name for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info)]
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [attribute.name for attribute in node.attribute]
            graphs += [inner for attribute in node.attribute for inner in (attribute.g, *attribute.graphs)]
        if not all(isinstance(name, str) for name in names):
            raise Unsupported([Problem(model.file, "damaged: a name in it is not text")])


def check_types(model: LoadedModel) -> None:
    """Unsupported for a damaged file, in which a value has elements of a type that ONNX does not have."""
    graph = model.proto.graph
    kinds = (("input", graph.input), ("output", graph.output), ("value", graph.value_info))
    problems = [
        Problem(model.file, f"{kind} '{value.name}' has elements of {element_name(value.type.tensor_type.elem_type)}")
        for kind, values in kinds
        for value in values
        if value.type.tensor_type.elem_type not in onnx.TensorProto.DataType.values()
    ]
    if problems:
        raise Unsupported(problems)


def check_made_once(model: LoadedModel) -> None:
    """Unsupported where two nodes give a value of one name, or a node one of an input's or a constant's."""
    graph = model.proto.graph
    made = {name: "an input" for name in (value.name for value in graph.input)}
    made |= {tensor.name: "a constant" for tensor in graph.initializer}
    problems = []
    for node in graph.node:
        for output in filter(None, node.output):
            if output in made:
                message = f"it gives '{output}', which is {made[output]} already"
                problems.append(problem_at(model.file, message, node))
            made[output] = f"the result of node '{node_name(node)}'"
    if problems:
        raise Unsupported(problems)


def check_tensors(model: LoadedModel) -> None:
    """Unsupported where a constant does not hold the elements of its shape, or its file is not there."""
    for tensor in model.proto.graph.initializer:
        model.array(tensor)


def unmade_values(parts: Iterable[ModelPart], inputs: Iterable[str], outputs: Sequence[str]) -> list[Problem]:
    """Values that nodes read, or that the model gives, and that nothing makes before."""
    made = set(inputs)
    problems = []
    file = ""
    for part in parts:
        graph, file = part.model.proto.graph, part.model.file
        made.update(tensor.name for tensor in (*graph.initializer, *(s.values for s in graph.sparse_initializer)))
        for node in graph.node:
            problems += [
                problem_at(file, f"it uses '{read}', which nothing before it produces", node)
                for read in free_names(node)
                if read not in made
            ]
            made.update(node.output)
    lacking = (name for name in outputs if name not in made or not name)
    return problems + [Problem(file, f"no node produces the output '{name}'") for name in lacking]


def unknown_operators(model: LoadedModel) -> list[Problem]:
    """The nodes of a piece for the host that no evaluator knows."""
    functions = {(function.domain, function.name) for function in model.proto.functions}
    return [
        problem_at(model.file, "this operator is not supported: neither the device nor the host knows it", node)
        for node in model.proto.graph.node
        if (node.domain, node.op_type) not in functions and not _is_known_to_host(node)
    ]


def _is_known_to_host(node: onnx.NodeProto) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return (domain, node.op_type) in _defined_by_onnx() or (domain, node.op_type) in _known_to_onnxruntime()


@cache
def _defined_by_onnx() -> set[tuple[str, str]]:
    return {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}


@cache
def _known_to_onnxruntime() -> set[tuple[str, str]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as ort

    return {(schema.domain, schema.name) for schema in ort.get_all_operator_schema()}
