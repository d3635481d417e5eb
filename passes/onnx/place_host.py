"""A model cut into pieces for the device and pieces for the host.

1. a dry run of the import says which nodes can be layers, and why others cannot (`dry_run.py`)
2. mode `auto`: device nodes that hang together between nodes of the host, an *island*, go to the host too where that is
   faster by a tenth, the ways over the host link counted
3. nodes are grouped into as few pieces of the device as possible: alternately all that can run now on one side, then on
   the other; what the device does not need of the host runs at the end (`parts.py`)
4. each group becomes a model of its own (`Cutter`); values that cross keep their names

Nodes whose operands are constants take part in every piece that needs them.

Whether an island is worth moving its data for is a comparison of times, which the host must win by a tenth: its own by
its rates (`host_work.py`, keys `host` of the target), the device's by a roofline: doubts are decided for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from frustum.dialects.choices import HostMode
from frustum.dialects.target import Target
from frustum.passes.errors import ModelError, Problem, Unsupported
from frustum.passes.onnx.binding import BoundInputs, bind_inputs, with_constants
from frustum.passes.onnx.doubles import Doubles
from frustum.passes.onnx.dry_run import (
    ROUNDED,
    DryRun,
    HostValue,
    ImportStep,
    Kind,
    device_tensor,
    no_elements,
    no_tensor,
    static_shape,
)
from frustum.passes.onnx.host_work import NO_WORK, HostWork, host_work, inferred_types
from frustum.passes.onnx.images import Images
from frustum.passes.onnx.import_onnx import import_onnx, output_problems
from frustum.passes.onnx.loading import (
    LoadedModel,
    free_names,
    load_model,
    network_type,
    node_name,
    operator_of,
)
from frustum.passes.onnx.node import Network
from frustum.passes.onnx.opset import Unified, unify
from frustum.passes.onnx.parts import (
    HostNode,
    ModelPart,
    check_made_once,
    check_names,
    check_tensors,
    check_types,
    parts_of,
    unknown_operators,
    unmade_values,
)
from frustum.passes.onnx.walk import UNAVAILABLE, Known, Unavailable, needed_nodes
from frustum.passes.onnx.whole_numbers import whole_inputs
from frustum.passes.weights import Array, WeightStore


@dataclass(frozen=True)
class ModelInput:
    """An input: its numpy type (`object` for text, empty for what is no tensor), its shape (None: any)."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Placement:
    """The pieces in the order in which they run, and the interface of the whole."""

    parts: tuple[ModelPart, ...]
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]


def import_or_place(
    source: str | Path | onnx.ModelProto | LoadedModel,
    target: Target,
    mode: HostMode,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
    constants: Mapping[str, Array] | None = None,
    refused: Mapping[str, str] | None = None,
    exact: bool = True,
) -> ModuleOp | Placement:
    """The model at stop `imported` where all of it is for the device, else its pieces; ModelError for neither.

    `name`, `batch` and `shapes` as for the import; `constants` are values of inputs; the rest as for `place`.
    """
    model = load_model(source)
    model.file = name or model.file
    if mode != "never":
        check_names(model)
    check_types(model)
    check_made_once(model)
    model = with_constants(model, constants or {})
    if mode == "only":
        check_tensors(model)
        return _known(whole_on_host(model, "the host was asked for", batch, shapes))
    if exact and mode == "never" and has_double(model):
        check_exact(model, batch, shapes)
    if not refused and not (exact and mode == "auto" and has_double(model)):
        try:
            return import_onnx(model, batch=batch, shapes=shapes)
        except Unsupported:
            if mode == "never":
                raise
    return _known(place(model, target, batch=batch, shapes=shapes, refused=refused, exact=exact))


def check_exact(model: LoadedModel, batch: int | None, shapes: Mapping[str, Sequence[int]] | None) -> None:
    """Raises Unsupported for nodes of which the device would round elements of DOUBLE."""
    unified = unify(model)
    steps = _dry_run(model, unified, _bind(model, unified.graph, unified.tensors, batch, shapes), {}, True).steps
    rounded = [step for step in steps if step.kind == "host" and ROUNDED in step.reason]
    if rounded:
        raise Unsupported([Problem(model.file, step.reason, step.name, step.operator) for step in rounded])


def _known(placement: Placement) -> Placement:
    """The placement; Unsupported where a node is for nobody, or reads what nobody makes."""
    problems = [p for part in placement.parts if part.kind == "host" for p in unknown_operators(part.model)]
    problems += unmade_values(placement.parts, (each.name for each in placement.inputs), placement.outputs)
    if problems:
        raise Unsupported(problems)
    return placement


def place(
    model: LoadedModel,
    target: Target,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    refused: Mapping[str, str] | None = None,
    exact: bool = True,
) -> Placement:
    """The pieces of a model, for mode `auto`; ModelError where an input's shape is open.

    `refused`: nodes (by name) that a later pass could not make layers of, and why.  `exact`: elements of DOUBLE stay
    on the host; without it they become f32 on the device.
    """
    try:
        unified = unify(model)
    except Unsupported as error:
        return whole_on_host(model, "; ".join(problem.message for problem in error.problems), batch, shapes)
    bound = _bind(model, unified.graph, unified.tensors, batch, shapes)
    outputs, refused = [output.name for output in unified.graph.output], dict(refused or {})
    while (run := _dry_run(model, unified, bound, refused, exact)) and (
        found := {**run.sequences(outputs), **run.open_at_host(outputs)}
    ):
        refused |= found
    _check_images(run, unified)
    # with a changed batch nodes were shown to be right where they are, as layers
    steps = settled(run, target) if run.network.images is None else run.steps
    return Placement(
        tuple(parts_of(model, unified, run, steps)),
        tuple(_interface(value, run) for value in _inputs(unified.graph, unified.tensors)),
        tuple(value.name for value in unified.graph.output),
    )


def constant_inputs(
    source: onnx.ModelProto,
    arrays: Mapping[str, Array],
    *,
    bound: Mapping[str, Array] | None = None,
    exact: bool = True,
) -> dict[str, Array]:
    """Those of a run's inputs that must be constants for more nodes to run on the device, `bound` ones included.

    An operand is bound where its operator asks for a constant, or where the device lacks its type, and another
    operand of the same node still depends on inputs: weights, shapes, axes, indices.
    """
    found = dict(bound or {})
    best, best_count = found, -1
    while True:
        try:
            count, asked = _layers_with(load_model(source), found, arrays, exact)
        except ModelError:
            return best
        if count >= best_count:  # with equal counts what is bound gives the better reason
            best, best_count = dict(found), count
        new = {name: arrays[name] for name in asked if name in arrays and name not in found}
        if not new:
            return best
        found |= new


def _layers_with(
    model: LoadedModel, constants: Mapping[str, Array], arrays: Mapping[str, Array], exact: bool
) -> tuple[int, set[str]]:
    """How many nodes can be layers, and which operands would have to be constants for more."""
    model = with_constants(model, constants)
    unified = unify(model)
    shapes = {name: array.shape for name, array in arrays.items() if name not in constants}
    bound = _bind(model, unified.graph, unified.tensors, None, shapes)
    run = _dry_run(model, unified, bound, {}, exact)
    layers = sum(step.kind == "device" for step in run.steps)
    return layers, {name for step in run.steps for name in step.open_operands}


def whole_on_host(
    model: LoadedModel,
    why: str,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Placement:
    """One piece on the host: the model as it is.  Its inputs have the shapes given, and may have open ones."""
    graph = model.proto.graph
    values = _inputs(graph, {tensor.name for tensor in graph.initializer})
    bound = _bind(model, graph, {t.name for t in graph.initializer}, batch, shapes) if batch or shapes else None
    if bound is not None and bound.rebatched != 1:
        message = (
            f"--batch (or --shape) cannot change the batch of 1 of what runs on the host as a whole, because {why};"
            " run the images one by one, or export the model with an open batch"
        )
        raise Unsupported([Problem(model.file, message)])
    given = {value.name: list(shape) for value in values if (shape := bound.shapes.get(value.name) if bound else None)}
    types = inferred_types(model.proto, given)
    fallbacks = [
        HostNode(node_name(node, node.op_type), operator_of(node), why, host_work(node, types)) for node in graph.node
    ]
    return Placement(
        (ModelPart("host", model, tuple(fallbacks)),),
        tuple(_input(_with_shape(value, bound.shapes.get(value.name) if bound else None)) for value in values),
        tuple(value.name for value in graph.output),
    )


def has_double(model: LoadedModel) -> bool:
    """Whether anything in the model may be of DOUBLE: then only the dry run knows where."""
    graph, double = model.proto.graph, onnx.TensorProto.DOUBLE
    types = [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)]
    types += [tensor.data_type for tensor in graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            types.append(attribute.i if attribute.name in ("to", "dtype", "output_datatype") else 0)
            types.append(attribute.t.data_type)
    return double in types


# --- what can be a layer -----------------------------------------------------------------------------------


def _dry_run(
    model: LoadedModel, unified: Unified, bound: BoundInputs, refused: Mapping[str, str], exact: bool
) -> DryRun:
    graph = unified.graph
    nodes = needed_nodes(graph)
    inputs = _inputs(graph, unified.tensors)
    images = Images(bound.rebatched) if bound.rebatched > 1 else None
    element = network_type(inputs, unified.tensors.values(), nodes)
    network = Network(Block(), WeightStore(), element, images)
    names = {name for node in nodes for name in free_names(node)} | {output.name for output in graph.output}
    constants: dict[str, Known] = {
        name: model.array(tensor) for name, tensor in unified.tensors.items() if name in names
    }
    opsets = [onnx.helper.make_opsetid("", unified.opset), *(o for o in model.proto.opset_import if o.domain)]
    run = DryRun(model.file, network, constants, kept=unified.kept, refused=refused, exact=exact, opsets=opsets)
    run.doubles = Doubles.of(nodes, (output.name for output in graph.output))
    if bound.rebatched == 1:
        run.types.update((value.name, value.type) for value in (*graph.value_info, *graph.output))
    for name, array in constants.items():
        assert isinstance(array, np.ndarray)
        run.types[name] = onnx.helper.make_tensor_type_proto(unified.tensors[name].data_type, array.shape)
    whole = whole_inputs(inputs, graph.output, nodes)
    for value in inputs:
        value = _with_shape(value, bound.shapes.get(value.name))
        run.types[value.name] = value.type
        why = no_tensor(value.type)
        axis = 0 if images is not None and value.name in bound.batched else None
        if images is None and (empty := no_elements(value.type)) is not None:
            run.values[value.name] = empty
            run.fixed.add(value.name)
            continue
        known = HostValue(why, static_shape(value.type), axis) if why else None
        run.values[value.name] = known or device_tensor(network, value.type, axis, whole.get(value.name))
    run.run(nodes, unified.opset)
    return run


def _bind(
    model: LoadedModel,
    graph: onnx.GraphProto,
    constants: Iterable[str],
    batch: int | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> BoundInputs:
    """Static shapes for the tensors among the inputs; those of other kinds have none, nor have members of sequences
    (`name/0`)."""
    inputs = _inputs(graph, constants)
    tensors = [value for value in inputs if value.type.WhichOneof("value") == "tensor_type"]
    others = {value.name for value in inputs} - {value.name for value in tensors}
    own = {name: shape for name, shape in (shapes or {}).items() if name.rpartition("/")[0] not in others}
    return bind_inputs(model.file, tensors, batch, own, on_host=True)


# --- small ones --------------------------------------------------------------------------------------------


def _inputs(graph: onnx.GraphProto, constants: Iterable[str]) -> list[onnx.ValueInfoProto]:
    known = set(constants)
    return [value for value in graph.input if value.name not in known]


def _interface(value: onnx.ValueInfoProto, run: DryRun) -> ModelInput:
    return _input(onnx.helper.make_value_info(value.name, run.types[value.name]))


def _input(value: onnx.ValueInfoProto) -> ModelInput:
    element = value.type.tensor_type.elem_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element).name if element else ""
    return ModelInput(value.name, dtype, static_shape(value.type))


def _with_shape(value: onnx.ValueInfoProto, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    if shape is None:
        return value
    element = value.type.tensor_type.elem_type
    return onnx.helper.make_tensor_value_info(value.name, element, list(shape))


def _check_images(run: DryRun, unified: Unified) -> None:
    """Unsupported where a changed batch does not keep its images apart, or the outputs do not have them in front."""
    images = run.network.images
    if images is None:
        return
    problems = list(run.problems)
    for step in run.steps:  # the shapes in their graphs are those of one image
        if step.node.op_type in ("If", "Loop", "Scan") and run.values.get(step.node.output[0]) is not UNAVAILABLE:
            error = images.refuse(f"is not known to keep {images.count} images apart")
            problems.append(Problem(run.file, str(error), step.name, step.operator))
    for output in unified.graph.output:
        value = run.values.get(output.name)
        if isinstance(value, HostValue):
            problems += output_problems(run.file, images, output.name, None, value.axis)
        elif value is not None and not isinstance(value, Unavailable):
            problems += output_problems(run.file, images, output.name, value)
    if problems:
        raise Unsupported(problems)


F32_BYTES = 4
START_LATENCIES = 3
"""What a program takes before and after its work, in latencies of the DRAM: its code, its first load, its last store.
(Measured: programs of one layer on 8 elements take 3.3 to 4 latencies on all shipped targets.)"""
FASTER = 0.9
"""Of the device's time: what the host must not take more of where the device could run an island."""


@dataclass(frozen=True)
class Island:
    """Device nodes between host nodes: `members` are their places in the model's order."""

    members: tuple[int, ...]
    from_host_bytes: int
    """Of values that the host makes for it."""
    to_host_bytes: int
    """Of values that it makes for the host."""
    weight_bytes: int
    macs: int
    work: HostWork
    """Its nodes on the host."""


def host_is_cheaper(island: Island, target: Target) -> str:
    """Why the island should run on the host; nothing where it should not.

    Only one that stands between nodes of the host saves a way there and back; where the host gives or takes alone, the
    device is what the network is for.
    """
    if not island.from_host_bytes or not island.to_host_bytes:
        return ""
    device, host = device_cycles(island, target), target.host_cycles(island.work.macs, island.work.bytes)
    if host > FASTER * device:
        return ""
    moved = island.from_host_bytes + island.to_host_bytes
    there = f"between nodes of the host it takes {host:,} cycles there"
    return f"{there}, and {device:,.0f} here, with {moved:,} bytes moved"


def device_cycles(island: Island, target: Target) -> float:
    """The way over the host link or through the DRAM's port, whichever is slower; the start; the slower of arithmetic
    and weights.  No program takes less, so doubts are decided for the device."""
    chip = target.chip
    cores = chip.clusters * chip.cluster.cores
    port = chip.dram.port_bytes_per_cycle
    moves = (island.from_host_bytes + island.to_host_bytes) / min(target.host_link_bytes_per_cycle, port)
    arithmetic = island.macs / (cores * chip.cluster.core.matrix.macs_per_cycle(F32_BYTES))
    start = START_LATENCIES * chip.dram.latency_cycles
    return start + moves + max(arithmetic, island.weight_bytes / port)


def settled(run: DryRun, target: Target) -> list[ImportStep]:
    """The steps, with islands that are not worth their moves on the host."""
    if not any(step.kind == "host" for step in run.steps):
        return run.steps
    steps = list(run.steps)
    for island in _islands(run):
        why = host_is_cheaper(island, target)
        for index in island.members if why else ():
            steps[index] = replace(steps[index], kind="host", reason=why)
    return steps


def _islands(run: DryRun) -> list[Island]:
    """Device nodes joined by values between them, with the bytes that go to and from the host."""
    maker = {name: index for index, step in enumerate(run.steps) for name in step.node.output if name}
    root = list(range(len(run.steps)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    kinds = ["device" if step.kind == "members" else step.kind for step in run.steps]
    readers: dict[str, list[int]] = {}
    for index, step in enumerate(run.steps):
        for name in free_names(step.node):
            readers.setdefault(name, []).append(index)
            before = maker.get(name)
            if before is not None and kinds[index] == kinds[before] == "device":
                root[find(index)] = find(before)
    members: dict[int, list[int]] = {}
    for index, kind in enumerate(kinds):
        if kind == "device":
            members.setdefault(find(index), []).append(index)
    return [_island(run, found, readers, kinds, maker) for found in members.values()]


def _island(
    run: DryRun, members: list[int], readers: Mapping[str, Sequence[int]], kinds: Sequence[Kind],
    maker: Mapping[str, int],
) -> Island:  # fmt: skip
    nodes = [run.steps[index].node for index in members]
    read = dict.fromkeys(name for node in nodes for name in free_names(node))
    given = (name for name in read if name in maker and kinds[maker[name]] == "host")
    taken = (name for node in nodes for name in node.output if any(kinds[k] == "host" for k in readers.get(name, ())))
    return Island(
        tuple(members),
        sum(map(run.size_bytes, given)),
        sum(map(run.size_bytes, taken)),
        sum(run.size_bytes(name) for name in read if name in run.fixed),
        sum(run.steps[index].macs for index in members),
        sum((host_work(node, run.types) for node in nodes), NO_WORK),
    )
