"""The graph, unit and tile levels, executed in numpy: what every later level must compute too.

    outputs = ReferenceExecutor(store_of(module)).run_graph(module, {"data": image})

Every layer is computed in f32 and its result rounded to the type the IR gives it, as the machine does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    ModuleOp,
    StringAttr,
)
from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph, tile, unit
from frustum.dialects.host_type import HostType
from frustum.dialects.module import MODEL_DTYPES
from frustum.runtime import kernels
from frustum.runtime.diagnostics import node_name
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.reference.layers import evaluated, numpy_type
from frustum.runtime.reference.tiles import SeeTile, run_tiles, side_by_side

Values = dict[SSAValue, Array]
Watch = Callable[[Operation, Array], Array | None]
"""Called with each layer and its result, in order; what it gives takes the place of the result."""


class ArraysDoNotFit(ValueError):
    """The arrays given do not fit the network's inputs."""


@dataclass(frozen=True)
class ReferenceExecutor:
    """Runs modules whose constants are in `weights`, by key."""

    weights: Mapping[str, Array]
    see_tile: SeeTile | None = None

    def run_graph(
        self, module: ModuleOp, inputs: Mapping[str, Array], watch: Watch | None = None
    ) -> dict[str, Array]:
        """The network's outputs by name; a layer's result is freed after its last use."""
        network = network_of(module)
        outputs = self._run_block(network.body.block, _checked(network, inputs), watch)
        wanted = _host_types(network)[len(network.inputs) :]
        return {
            name: _for_host(array, host)
            for name, array, host in zip(network.outputs, outputs, wanted, strict=True)
        }

    def _run_block(
        self,
        block: Block,
        arguments: Sequence[Array],
        watch: Watch | None,
        captured: Mapping[SSAValue, Array] | None = None,
    ) -> list[Array]:
        """The operands of the block's terminator; `captured`: the values that it reads from around it."""
        values: Values = dict(zip(block.args, arguments, strict=True)) | dict(captured or {})
        read = {op: _read_by(op) for op in block.ops}
        pending = Counter(operand for each in read.values() for operand in each)
        for op in block.ops:
            operands = [values[operand] for operand in read[op]]
            for operand in read[op]:
                pending[operand] -= 1
                if not pending[operand]:
                    values.pop(operand, None)
            if isinstance(op, (graph.OutputOp, graph.StepYieldOp, unit.YieldOp)):
                return operands
            for result, array in zip(op.results, self.execute_op(op, operands, watch), strict=True):
                is_layer = not isinstance(op, unit.UnitOp | graph.RecurrenceOp)
                other = watch(op, array) if watch and is_layer else None
                if pending[result]:
                    values[result] = array if other is None else other
        raise AssertionError("a network ends with fgraph.output")

    def layers(self, module: ModuleOp, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every layer's result by the name of its ONNX node, or `operation#number` where it has none."""
        found: dict[str, Array] = {}

        def keep(op: Operation, array: Array) -> None:
            if not isinstance(op, graph.WeightOp):
                name = node_name(op.location) or op.name
                found[name if name not in found else f"{name}#{len(found)}"] = array

        self.run_graph(module, inputs, keep)
        return found

    def execute_op(
        self, op: Operation, operands: Sequence[Array], watch: Watch | None = None
    ) -> Sequence[Array]:
        """The results of one operation, each in the type the IR gives it; of a unit those of its body. The operands of
        a recurrence are followed by what its body reads from around it."""
        if isinstance(op, graph.WeightOp):
            return (self._constant(op),)
        if isinstance(op, unit.UnitOp):
            return self._run_block(op.body.block, operands, watch)
        if isinstance(op, tile.UnitOp):
            weights = [inner for inner in op.body.block.ops if isinstance(inner, graph.WeightOp)]
            return run_tiles(op, operands, {weight.result: self._constant(weight) for weight in weights}, self.see_tile)
        if isinstance(op, tile.ConcatOp):
            return (side_by_side(op, operands),)  # type: ignore[return-value]  # buffers of each cluster
        if isinstance(op, graph.RecurrenceOp):
            return self._run_steps(op, operands, watch)
        return (evaluated(op, operands),)

    def _run_steps(
        self, op: graph.RecurrenceOp, operands: Sequence[Array], watch: Watch | None
    ) -> Sequence[Array]:
        """The outputs of a recurrence, and its last states."""
        values = dict(zip(_read_by(op), operands, strict=True))
        captured = {value: values[value] for value in graph.captured_by(op)}
        slices = [np.split(values[sequence], op.steps, op.dim) for sequence in op.sequences]
        states = [
            np.zeros(graph.shape_of(own), numpy_type(graph.tensor_of(own).element_type)) if start is None
            else values[start]
            for own, start in zip(op.states, op.state_starts, strict=True)
        ]  # fmt: skip
        outputs: list[list[Array]] = [[] for _ in op.outputs]
        for place in op.order:
            found = self._run_block(op.body.block, [*(own[place] for own in slices), *states], watch, captured)
            states = found[: len(states)]
            for own, array in zip(outputs, found[len(states) :], strict=True):
                own.append(array)
        return [*(np.concatenate(own[::-1] if op.is_reverse else own, op.dim) for own in outputs), *states]

    def _constant(self, op: graph.WeightOp) -> Array:
        array, type_ = self.weights[op.key.data], graph.tensor_of(op.result)
        assert array.shape == type_.get_shape(), f"{op}: the store has {array.shape}"
        return narrow(array, numpy_type(type_.element_type))


def _read_by(op: Operation) -> Sequence[SSAValue]:
    """The operands of an operation, and the values around it that its body reads if it is a recurrence."""
    return (*op.operands, *graph.captured_by(op)) if isinstance(op, graph.RecurrenceOp) else op.operands


def network_of(module: ModuleOp) -> graph.NetworkOp:
    """The module's network."""
    (network,) = (op for op in module.ops if isinstance(op, graph.NetworkOp))
    return network


def _host_types(network: graph.NetworkOp) -> list[HostType | None]:
    """How the host passes the inputs and wants the outputs, where the network tells."""
    noted = network.attributes.get(MODEL_DTYPES)
    if not isinstance(noted, ArrayAttr):
        return [None] * (len(network.inputs) + len(network.outputs))
    texts = [name.data for name in noted.data if isinstance(name, StringAttr)]
    return [HostType.parse(text) if text else None for text in texts]


def _for_host(array: Array, host: HostType | None) -> Array:
    if host is not None and host.scale is not None:
        return kernels.integer.dequantize(array, host.scale, host.zero)
    return kernels.integer.unsigned(array) if host is not None and host.dtype.startswith("uint") else array


def _for_device(array: Array, host: HostType | None, dtype: np.dtype[Any]) -> Array:
    if host is not None and host.scale is not None:
        return kernels.integer.quantize(array, host.scale, host.zero, dtype)
    return narrow(kernels.integer.signed(array), dtype)


def _checked(network: graph.NetworkOp, inputs: Mapping[str, Array]) -> list[Array]:
    """The inputs in the network's order and types; raises ArraysDoNotFit with everything that is wrong."""
    problems = [f"unknown input '{name}'" for name in inputs if name not in network.inputs]
    arrays = []
    hosts = _host_types(network)[: len(network.inputs)]
    for name, argument, host in zip(network.inputs, network.body.block.args, hosts, strict=True):
        type_ = graph.tensor_of(argument)
        is_float = _is_float(numpy_type(type_.element_type)) or (host is not None and host.scale is not None)
        if name not in inputs:
            problems.append(f"input '{name}' is missing")
        elif inputs[name].shape != type_.get_shape():
            problems.append(f"input '{name}' has shape {inputs[name].shape}, expected {type_.get_shape()}")
        elif _is_float(inputs[name].dtype) != is_float and not _is_kept(inputs[name], host):
            problems.append(
                f"input '{name}' has {inputs[name].dtype} elements, expected {type_.element_type}"
            )
        else:
            arrays.append(_for_device(inputs[name], host, numpy_type(type_.element_type)))
    if problems:
        raise ArraysDoNotFit("; ".join(problems) + f" (inputs: {', '.join(network.inputs)})")
    return arrays


def _is_kept(array: Array, host: HostType | None) -> bool:
    """Whether these are truth values or indices, which the device has as numbers in floating point."""
    return host is not None and host.dtype == array.dtype.name and host.dtype in ("bool", "int32", "int64")


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype == kernels.BFLOAT16 or np.issubdtype(dtype, np.floating)
