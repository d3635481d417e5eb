"""An ONNX model as a module of the graph level, with its weights beside it.

    module = import_onnx("resnet50.onnx", batch=4)

1. load the file; external data is mapped, not read (`onnx/loading.py`)
2. inline functions, convert operators older than opset 13 (`onnx/opset.py`)
3. give every input a static shape (`onnx/binding.py`)
4. walk the nodes in order: what depends on constants and shapes only is computed (`onnx/folding.py`), the
   rest is converted, operator by operator (`onnx/operators/`); nodes that no output needs are left out

Shapes need no pass of their own: every operation of the graph level derives its result's.
All problems are collected and raised at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from frustum.dialects.graph import (
    DequantizeOp,
    NetworkOp,
    OutputOp,
    QuantizeOp,
    is_integer,
    tensor_type,
)
from frustum.dialects.host_type import MODEL_DTYPE, HostType
from frustum.dialects.module import COUNTS, DTYPE, MODEL, MODEL_DTYPES
from frustum.passes.errors import Problem, Unsupported
from frustum.passes.weights import WeightStore, attach

if TYPE_CHECKING:
    import onnx

    from frustum.passes.onnx.images import Images
    from frustum.passes.onnx.loading import LoadedModel
    from frustum.passes.onnx.node import IntegerBound, Network, Value
    from frustum.passes.onnx.walk import ImportWalk, Known

INT8 = "int8"
"""The type of a module with layers of integers: those where the IR says so, f32 elsewhere."""


def import_onnx(
    source: str | Path | onnx.ModelProto | LoadedModel,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
    network: str = "",
    whole: Mapping[str, IntegerBound | None] | None = None,
) -> ModuleOp:
    """The model at stop `imported`; ModelError, with all problems, where it cannot be.

    `batch` binds a dynamic batch, or re-batches a static batch of 1; `shapes` binds shapes by input;
    `name` is what messages and the report call a model that comes without a file, `network` the network's name
    where it is not the file's.  `whole`: of a piece of a model, the inputs of integers that the device has in floating
    point, and how large they are.
    """
    from frustum.passes.onnx.loading import load_model

    model = load_model(source)
    model.file = name or model.file
    return _import(model, batch, shapes, network or Path(model.file).stem, whole)


def _import(
    model: LoadedModel, batch: int | None, shapes: Mapping[str, Sequence[int]] | None, name: str,
    whole: Mapping[str, IntegerBound | None] | None,
) -> ModuleOp:  # fmt: skip
    from frustum.passes.onnx.binding import bind_inputs
    from frustum.passes.onnx.images import Images
    from frustum.passes.onnx.loading import BOOL, UNSIGNED
    from frustum.passes.onnx.node import Network
    from frustum.passes.onnx.opset import unify
    from frustum.passes.onnx.walk import ImportWalk, needed_nodes
    from frustum.passes.onnx.whole_numbers import whole_inputs

    unified = unify(model)
    graph = unified.graph
    inputs = [value for value in graph.input if value.name not in unified.tensors]
    bound = bind_inputs(model.file, inputs, batch, shapes)
    nodes = needed_nodes(graph)
    is_piece, whole = whole is not None, whole_inputs(inputs, graph.output, nodes) if whole is None else whole
    element = _element_type(model.file, inputs, unified.tensors.values(), nodes, whole)
    types = [element if value.name in whole else _device_type(value, element) for value in inputs]
    signature = [
        (value.name, tensor_type(own, bound.shapes[value.name])) for value, own in zip(inputs, types, strict=True)
    ]
    operation = NetworkOp(re.sub(r"\W", "_", name), signature, [value.name for value in graph.output])
    images = Images(bound.rebatched) if bound.rebatched > 1 else None
    network = Network(operation.body.block, WeightStore(), element, images)
    walk = ImportWalk(model.file, network, _constants(model, unified.tensors, nodes, graph), kept=unified.kept)
    for value, argument in zip(inputs, operation.body.block.args, strict=True):
        walk.values[value.name] = argument
        if images is not None and value.name in bound.batched:
            images.axes[argument] = 0
        if value.type.tensor_type.elem_type in UNSIGNED:
            network.unsigned.add(argument)
        if value.type.tensor_type.elem_type == BOOL:
            network.boolean.add(argument)
        if value.name in whole:
            network.keep_whole(argument, whole[value.name])
    walk.run(nodes, unified.opset)
    outputs = _outputs(walk, graph)
    walk.problems += [] if is_piece else _open_outputs(walk, graph)
    if walk.problems:
        raise Unsupported(walk.problems)
    operation.body.block.add_op(OutputOp(outputs))
    ends = [*operation.body.block.args, *outputs]
    operation.attributes[MODEL_DTYPES] = _host_types(model.file, [*inputs, *graph.output], ends, network)
    if network.counts:
        operation.attributes[COUNTS] = StringAttr(json.dumps(network.counts, sort_keys=True))
    dtype = INT8 if has_integers(operation) else str(element)
    attributes = {MODEL: StringAttr(model.file), DTYPE: StringAttr(dtype)}
    module = ModuleOp([operation], dict(attributes))
    attach(module, network.store)
    return module


def has_integers(network: NetworkOp) -> bool:
    """Whether any layer computes with integers: more than moving them, and making numbers of them."""
    return any(isinstance(op, QuantizeOp) or _computes_with_integers(op) for op in network.body.block.ops)


def _computes_with_integers(op: Operation) -> bool:
    from frustum.passes.onnx.node import MOVES

    only_reads = isinstance(op, DequantizeOp | OutputOp) or (op.name in MOVES and getattr(op, "scales", None) is None)
    return not only_reads and any(map(is_integer, op.operands))


def _element_type(
    file: str,
    inputs: Sequence[onnx.ValueInfoProto],
    tensors: Iterable[onnx.TensorProto],
    nodes: Sequence[onnx.NodeProto],
    whole: Container[str],
) -> Attribute:
    """The network's floating-point type, f32 where integers stand for it; Unsupported for inputs of other types."""
    from frustum.passes.onnx.loading import BOOL, FLOATS, INTEGERS, element_name, network_type

    types = {value.name: value.type.tensor_type.elem_type for value in inputs}
    problems = [
        Problem(file, f"input '{name}' has elements of {element_name(found)}: FLOAT, FLOAT16, "
                      "BFLOAT16, DOUBLE, INT8, UINT8, INT16, UINT16, INT32 and BOOL are supported")
        for name, found in types.items()
        if found not in FLOATS and found not in INTEGERS and found != BOOL and name not in whole
    ]  # fmt: skip
    if problems:
        raise Unsupported(problems)
    return network_type(inputs, tensors, nodes)


def _device_type(value: onnx.ValueInfoProto, element: Attribute) -> Attribute:
    from frustum.passes.onnx.loading import INTEGERS

    return INTEGERS.get(value.type.tensor_type.elem_type, element)


def _host_types(
    file: str, values: Sequence[onnx.ValueInfoProto], found: Sequence[SSAValue], network: Network
) -> ArrayAttr[StringAttr]:
    """The numpy types of inputs and outputs, those of the device where the file does not tell.

    Unsupported for types that are not exchanged with the device.
    """
    from onnx.helper import tensor_dtype_to_np_dtype

    from frustum.passes.onnx.walk import model_element

    names = []
    for value, own in zip(values, found, strict=True):
        dtype = tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type or model_element(own, network))
        if not MODEL_DTYPE.fullmatch(dtype.name):
            message = f"'{value.name}' has elements of {dtype.name}, which the device does not exchange"
            raise Unsupported([Problem(file, message)])
        held = network.held.get(value.name) if isinstance(own, BlockArgument) else None
        names.append(str(HostType(dtype.name, times=held.times, plus=held.plus)) if held else dtype.name)
    return ArrayAttr([StringAttr(name) for name in names])


def _constants(
    model: LoadedModel,
    tensors: Mapping[str, onnx.TensorProto],
    nodes: Sequence[onnx.NodeProto],
    graph: onnx.GraphProto,
) -> dict[str, Known]:
    """The tensors that nodes or outputs use, as arrays; each that cannot be read is a problem."""
    from frustum.passes.onnx.loading import used_names

    used = {output.name for output in graph.output}.union(*(used_names(node) for node in nodes))
    return {name: model.array(tensor) for name, tensor in tensors.items() if name in used}


def output_problems(
    file: str, images: Images | None, name: str, value: Value | None, axis: int | None = None
) -> list[Problem]:
    """What is wrong with an output of a changed batch: its images do not lie one after the other along axis 0."""
    from frustum.passes.errors import MixesImages

    if images is None:
        return []
    try:
        axis = images.axis_of(value) if axis is None else axis
    except MixesImages as error:
        return [Problem(file, f"output '{name}': {error}")]
    if not axis:
        return []
    return [Problem(file, f"output '{name}': {images.refuse(f'has the images along axis {axis}, not along axis 0')}")]


def _open_outputs(walk: ImportWalk, graph: onnx.GraphProto) -> list[Problem]:
    """Outputs that are integers of inputs, of which the device has not all."""
    from frustum.passes.onnx.whole_numbers import OPEN_OUTPUT, is_open

    return [
        Problem(walk.file, f"output '{output.name}' {OPEN_OUTPUT}")
        for output in graph.output
        if isinstance(value := walk.values.get(output.name), SSAValue) and is_open(walk.network.bounds.get(value))
    ]


def _outputs(walk: ImportWalk, graph: onnx.GraphProto) -> list[SSAValue]:
    """The network's results; a constant one becomes a weight."""
    from frustum.passes.onnx.node import SequenceValue
    from frustum.passes.onnx.walk import Unavailable

    outputs: list[SSAValue] = []
    for output in graph.output:
        value = walk.values.get(output.name)
        if isinstance(value, SSAValue | np.ndarray):
            walk.problems += output_problems(walk.file, walk.network.images, output.name, value)
        if isinstance(value, SSAValue):
            outputs.append(value)
        elif isinstance(value, Unavailable):
            continue
        elif value is None:
            walk.problems.append(Problem(walk.file, f"no node produces the output '{output.name}'"))
        elif isinstance(value, SequenceValue):
            walk.problems.append(Problem(walk.file, f"output '{output.name}' is a sequence, which the device lacks"))
        elif not value.size:
            found = f"output '{output.name}' is {'x'.join(map(str, value.shape))}"
            walk.problems.append(Problem(walk.file, f"{found}, which is no tensor of the device"))
        elif value.dtype.kind == "f":
            outputs.append(walk.network.weight(value, output.name))
        else:
            message = (
                f"output '{output.name}' is a constant of {value.dtype}: only floating point is supported"
            )
            walk.problems.append(Problem(walk.file, message))
    return outputs
