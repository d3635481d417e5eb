# Tests: test/passes/onnx/test_place_host.py
"""A placed model as parts: nodes grouped into as few pieces as possible, each a model of its own.

A model that the host can have no part in is refused first, in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper
from xdsl.ir import SSAValue

from frustum.passes.errors import Problem, Unsupported
from frustum.passes.onnx.dry_run import DryRun, ImportStep
from frustum.passes.onnx.host_work import NO_WORK, HostWork, host_work
from frustum.passes.onnx.loading import (
    DEFAULT_DOMAINS,
    LoadedModel,
    element_name,
    free_names,
    node_name,
    problem_at,
)
from frustum.passes.onnx.node import IntegerBound
from frustum.passes.onnx.opset import FREE_INITIALIZERS, Kept, Unified


@dataclass(frozen=True)
class Cutter:
    """Cuts nodes out of a model: `tensors` and `arrays` are its constants by name, `types` what its values are."""

    model: LoadedModel
    opset: int
    tensors: Mapping[str, onnx.TensorProto]
    arrays: Mapping[str, np.ndarray]
    types: Mapping[str, onnx.TypeProto]
    shared: Mapping[str, onnx.NodeProto]
    """Nodes that depend on constants only, by each of their results: they come along where they are needed."""

    def cut(self, nodes: Sequence[onnx.NodeProto], wanted: Iterable[str], name: str) -> LoadedModel:
        """A model of these nodes whose outputs are the `wanted` of their results, in order.

        Its inputs are the values that the nodes use and neither make nor know.
        """
        nodes = self._with_shared(nodes)
        made = {output for node in nodes for output in node.output if output}
        used = dict.fromkeys(name for node in nodes for name in free_names(node) if name not in made)
        constants = [name for name in used if name in self.tensors or name in self.arrays]
        inputs = [name for name in used if name not in constants]
        graph = onnx.helper.make_graph(
            nodes,
            name,
            [self._value(name) for name in inputs],
            [self._value(name) for name in wanted if name in made],
            [self._constant(name) for name in constants],
        )
        proto = onnx.helper.make_model(
            graph, opset_imports=self.opsets(), ir_version=max(self.model.proto.ir_version, FREE_INITIALIZERS)
        )
        return LoadedModel(self.model.file, proto, self.model.folder, self.model.maps)

    def opsets(self) -> list[onnx.OperatorSetIdProto]:
        """Those of the model, the default one as it was unified."""
        others = [o for o in self.model.proto.opset_import if o.domain not in DEFAULT_DOMAINS]
        return [onnx.helper.make_opsetid("", self.opset), *others]

    def _with_shared(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes, each after those shared ones that it needs and that nobody brought yet."""
        found: list[onnx.NodeProto] = []
        made: set[str] = set()

        def add(node: onnx.NodeProto) -> None:
            for name in free_names(node):
                if name in self.shared and name not in made:
                    add(self.shared[name])
            made.update(node.output)
            found.append(node)

        for node in nodes:
            add(node)
        return found

    def _value(self, name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_value_info(name, self.types.get(name, onnx.TypeProto()))

    def _constant(self, name: str) -> onnx.TensorProto:
        tensor = self.tensors.get(name)
        if tensor is None:
            array = self.arrays[name]
            return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        if tensor.name == name:
            return tensor
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)  # the value of a Constant node has a name of its own
        copy.name = name
        return copy


@dataclass(frozen=True)
class HostNode:
    """A node on the host, and why it is there."""

    name: str
    op: str
    reason: str
    work: HostWork = NO_WORK


@dataclass(frozen=True)
class ModelPart:
    """A piece: a model whose inputs and outputs have the names that they have in the whole."""

    kind: Literal["device", "host"]
    model: LoadedModel
    fallbacks: tuple[HostNode, ...] = ()
    whole: Mapping[str, IntegerBound | None] = field(default_factory=dict)
    """Of a piece of the device: the inputs of integers that are in floating point there."""

    @property
    def inputs(self) -> list[str]:
        constants = {tensor.name for tensor in self.model.proto.graph.initializer}
        return [value.name for value in self.model.proto.graph.input if value.name not in constants]

    @property
    def outputs(self) -> list[str]:
        return [value.name for value in self.model.proto.graph.output]


def parts_of(model: LoadedModel, unified: Unified, run: DryRun, steps: Sequence[ImportStep]) -> Iterable[ModelPart]:
    """Groups of equal level; a value's readers on the other side are one level up."""
    arrays = {name: value for name, value in run.values.items() if isinstance(value, np.ndarray)}
    shared = {name: s.node for s in steps if s.kind in ("shared", "members") for name in s.node.output if name}
    cutter = Cutter(model, unified.opset, unified.tensors, arrays, run.types, shared)
    outputs = [value.name for value in unified.graph.output]
    groups = [run for group in _levels(steps, shared) for run in _of_one_opset(group, unified.kept)]
    later: list[set[str]] = [set(outputs)]
    for group in reversed(groups):
        later.append(later[-1] | {name for step in group for name in _reads(step.node, shared)})
    for number, group in enumerate(groups):
        wanted = later[len(groups) - number - 1]
        nodes = [step.node for step in group]
        made = [name for node in nodes for name in node.output if name in wanted and name not in arrays]
        fallbacks = tuple(
            HostNode(s.name, s.operator, s.reason, host_work(s.node, run.types)) for s in group if s.kind == "host"
        )
        kind: Literal["device", "host"] = "host" if group[0].kind == "host" else "device"
        is_kept = unified.kept is not None and bool(unified.kept.why(nodes[0]))
        own = replace(cutter, opset=unified.kept.opset) if is_kept and unified.kept else cutter
        part = ModelPart(kind, own.cut(nodes, made, f"piece{number}"), fallbacks)
        yield part if kind == "host" else replace(part, whole=_whole(part.inputs, run))
    yield from _constant_outputs(cutter, outputs, arrays, shared)


def _reads(node: onnx.NodeProto, shared: Mapping[str, onnx.NodeProto]) -> Iterable[str]:
    """Names that a node reads, those of shared nodes in place of what these give."""
    for name in free_names(node):
        if name in shared:
            yield from _reads(shared[name], shared)
        else:
            yield name


def _whole(names: Iterable[str], run: DryRun) -> dict[str, IntegerBound | None]:
    """Those of the values that the whole model keeps as integers in floating point, as it knows them."""
    values = ((name, run.values.get(name)) for name in names)
    network = run.network
    return {
        name: network.bounds.get(value)
        for name, value in values
        if isinstance(value, SSAValue) and value in network.whole
    }


def _constant_outputs(
    cutter: Cutter,
    outputs: Sequence[str],
    arrays: Mapping[str, np.ndarray],
    shared: Mapping[str, onnx.NodeProto],
) -> Iterable[ModelPart]:
    """A piece on the host that hands out those outputs of the model that depend on constants only."""
    known = list(dict.fromkeys(name for name in outputs if name in arrays or name in shared))
    if not known:
        return
    inner = {name: f"{name}/constant" for name in known}
    part = cutter.cut([onnx.helper.make_node("Identity", [n], [inner[n]]) for n in known], inner.values(), "constants")
    for node in part.proto.graph.node:  # the results get the names of the outputs, the constants others
        swap = {**{v: k for k, v in inner.items()}, **inner}
        node.input[:] = [swap.get(name, name) for name in node.input]
        node.output[:] = [swap.get(name, name) for name in node.output]
    for tensor in part.proto.graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    for value in part.proto.graph.output:
        value.CopyFrom(onnx.helper.make_value_info(_outer(value.name), cutter.types[_outer(value.name)]))
    why = "it is constant"
    yield ModelPart("host", part, tuple(HostNode(name, "Identity", why) for name in known))


def _outer(name: str) -> str:
    return name.removesuffix("/constant")


def _levels(steps: Sequence[ImportStep], shared: Mapping[str, onnx.NodeProto]) -> list[list[ImportStep]]:
    """Nodes in groups that alternate between device and host; every node as early as it can, but nodes of the host that
    no later node of the device needs at the end.  The device begins, or the host where that makes fewer groups.

    So a piece of the device ends only where later ones wait for the host.
    Source: docs/techniques/output-split.md, "The host".
    """
    reads = [set(_reads(step.node, shared)) for step in steps]
    return min((_levels_from(first, steps, reads) for first in ("device", "host")), key=len)


def _levels_from(
    first: Literal["device", "host"], steps: Sequence[ImportStep], reads: Sequence[set[str]]
) -> list[list[ImportStep]]:
    """Even levels are of the side that begins, odd ones of the other."""
    sides = ["host", "device"] if first == "host" else ["device", "host"]
    level: dict[str, int] = {}
    own: list[int] = []
    for step, names in zip(steps, reads, strict=True):
        least = max((level[name] for name in names if name in level), default=0)
        own.append(least + (sides[least % 2] != ("host" if step.kind == "host" else "device")))
        if _is_placed(step):
            level.update(dict.fromkeys(filter(None, step.node.output), own[-1]))
    last = max((number for number, step in zip(own, steps, strict=True) if _is_placed(step)), default=0)
    last += sides[last % 2] != "host"
    needed: set[str] = set()
    """By nodes of the device, also through the host."""
    groups: dict[int, list[ImportStep]] = {}
    for number, step, names in zip(reversed(own), reversed(steps), reversed(reads), strict=True):
        if not _is_placed(step):
            continue
        is_needed = step.kind == "device" or not needed.isdisjoint(step.node.output)
        if is_needed:
            needed.update(names)
        groups.setdefault(number if is_needed else last, []).append(step)
    return [groups[number][::-1] for number in sorted(groups)]


def _is_placed(step: ImportStep) -> bool:
    return step.kind in ("device", "host")


def _of_one_opset(group: Sequence[ImportStep], kept: Kept | None) -> list[list[ImportStep]]:
    """A group cut where nodes begin or end that nobody converted."""
    if kept is None:
        return [list(group)]
    return [list(run) for _, run in groupby(group, lambda step: bool(kept.why(step.node)))]


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
