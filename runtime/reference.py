"""The graph, unit and tile levels, executed in numpy: what every later level must compute too.

    outputs = ReferenceExecutor(store_of(module)).run_graph(module, {"data": image})

Every layer is computed in f32 and its result rounded to the type the IR gives it, as the machine does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    ModuleOp,
    Signedness,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from frustum.dialects import graph, tile, unit
from frustum.runtime import kernels
from frustum.runtime.diagnostics import node_name
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.tile_reference import run_tiles

Values = dict[SSAValue, Array]
Watch = Callable[[Operation, Array], None]
"""Called with each layer and its result, in order."""


class InputError(ValueError):
    """The arrays given do not fit the network's inputs."""


@dataclass(frozen=True)
class ReferenceExecutor:
    """Runs modules whose constants are in `weights`, by key."""

    weights: Mapping[str, Array]

    def run_graph(
        self, module: ModuleOp, inputs: Mapping[str, Array], watch: Watch | None = None
    ) -> dict[str, Array]:
        """The network's outputs by name; a layer's result is freed after its last use."""
        network = network_of(module)
        outputs = self._run_block(network.body.block, _checked(network, inputs), watch)
        return dict(zip(network.outputs, outputs, strict=True))

    def _run_block(self, block: Block, arguments: Sequence[Array], watch: Watch | None) -> list[Array]:
        """The operands of the block's terminator."""
        values: Values = dict(zip(block.args, arguments, strict=True))
        pending = Counter(operand for op in block.ops for operand in op.operands)
        for op in block.ops:
            operands = [values[operand] for operand in op.operands]
            for operand in op.operands:
                pending[operand] -= 1
                if not pending[operand]:
                    values.pop(operand, None)
            if isinstance(op, (graph.OutputOp, unit.YieldOp)):
                return operands
            for result, array in zip(op.results, self.execute_op(op, operands, watch), strict=True):
                if watch and not isinstance(op, unit.UnitOp):
                    watch(op, array)
                if pending[result]:
                    values[result] = array
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
        """The results of one operation, each in the type the IR gives it; of a unit those of its body."""
        if isinstance(op, graph.WeightOp):
            return (self._constant(op),)
        if isinstance(op, unit.UnitOp):
            return self._run_block(op.body.block, operands, watch)
        if isinstance(op, tile.UnitOp):
            weights = [inner for inner in op.body.block.ops if isinstance(inner, graph.WeightOp)]
            return run_tiles(op, operands, {weight.result: self._constant(weight) for weight in weights})
        computed = OPERATIONS[type(op)](op, *operands)
        act = getattr(op, "act", None)
        if act is not None and not isinstance(op, graph.UnaryOp):
            computed = kernels.unary(act.kind, computed, act.alpha, act.beta)
        type_ = graph.tensor_of(op.results[0])
        assert computed.shape == type_.get_shape(), f"{op}: computed {computed.shape}"
        return (narrow(computed, numpy_type(type_.element_type)),)

    def _constant(self, op: graph.WeightOp) -> Array:
        array, type_ = self.weights[op.key.data], graph.tensor_of(op.result)
        assert array.shape == type_.get_shape(), f"{op}: the store has {array.shape}"
        return narrow(array, numpy_type(type_.element_type))


def network_of(module: ModuleOp) -> graph.NetworkOp:
    """The module's network."""
    (network,) = (op for op in module.ops if isinstance(op, graph.NetworkOp))
    return network


def numpy_type(element_type: Attribute) -> np.dtype[Any]:
    """The numpy type of a tensor's elements."""
    if isinstance(element_type, IntegerType):
        width, unsigned = element_type.width.data, element_type.signedness.data is Signedness.UNSIGNED
        return np.dtype(bool) if width == 1 else np.dtype(f"{'u' if unsigned else ''}int{width}")
    return FLOATS[type(element_type)]


FLOATS: dict[type[Attribute], np.dtype[Any]] = {
    Float16Type: np.dtype(np.float16),
    BFloat16Type: kernels.BFLOAT16,
    Float32Type: np.dtype(np.float32),
    Float64Type: np.dtype(np.float64),
}


def _checked(network: graph.NetworkOp, inputs: Mapping[str, Array]) -> list[Array]:
    """The inputs in the network's order and types; raises InputError with everything that is wrong."""
    problems = [f"unknown input '{name}'" for name in inputs if name not in network.inputs]
    arrays = []
    for name, argument in zip(network.inputs, network.body.block.args, strict=True):
        type_ = graph.tensor_of(argument)
        if name not in inputs:
            problems.append(f"input '{name}' is missing")
        elif inputs[name].shape != type_.get_shape():
            problems.append(f"input '{name}' has shape {inputs[name].shape}, expected {type_.get_shape()}")
        elif _is_float(inputs[name].dtype) != _is_float(numpy_type(type_.element_type)):
            problems.append(
                f"input '{name}' has {inputs[name].dtype} elements, expected {type_.element_type}"
            )
        else:
            arrays.append(narrow(inputs[name], numpy_type(type_.element_type)))
    if problems:
        raise InputError("; ".join(problems) + f" (inputs: {', '.join(network.inputs)})")
    return arrays


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype == kernels.BFLOAT16 or np.issubdtype(dtype, np.floating)


def _result_shape(op: Operation) -> tuple[int, ...]:
    return graph.shape_of(op.results[0])


def _conv(op: graph.ConvOp, x: Array, w: Array, bias: Array | None = None) -> Array:
    result = kernels.conv(x, w, strides=op.strides, pads=op.pads, dilations=op.dilations, groups=op.groups)
    if bias is not None:
        result += bias.astype(result.dtype)[:, None, None]
    return result


def _matmul(op: graph.MatmulOp, a: Array, b: Array, bias: Array | None = None) -> Array:
    result = kernels.matmul(a, b, trans_a=op.trans_a, trans_b=op.trans_b)
    if bias is not None:
        result += bias.astype(result.dtype)
    return result


def _pool(op: graph.PoolOp, x: Array) -> Array:
    pool = kernels.max_pool
    if op.kind == graph.Pooling.AVG:
        pool = partial(kernels.average_pool, count_include_pad=op.count_include_pad)
    return pool(
        x, op.kernel, strides=op.strides, pads=op.pads, dilations=op.dilations, ceil_pads=op.ceil_pads
    )


def _lrn(op: graph.LrnOp, x: Array) -> Array:
    maps = x.reshape(*x.shape[:2], -1, 1)
    return kernels.lrn(maps, op.size, op.alpha, op.beta, op.bias).reshape(x.shape)


def _resize(op: graph.ResizeOp, x: Array) -> Array:
    rows, columns = (
        kernels.Axis(scale, offset, extent)
        for scale, offset, extent in zip(op.scale, op.offset, x.shape[-2:], strict=True)
    )
    size = _result_shape(op)[-2:]
    return kernels.resize(x, size, (rows, columns), mode=op.mode, rounding=op.rounding)


OPERATIONS: dict[type[Operation], Callable[..., Array]] = {
    graph.ConvOp: _conv,
    graph.MatmulOp: _matmul,
    graph.PoolOp: _pool,
    graph.ReduceOp: lambda op, x: kernels.reduce(op.kind, x, op.axes, keepdims=op.keepdims),
    graph.SoftmaxOp: lambda op, x: kernels.softmax(x, op.axis),
    graph.LrnOp: _lrn,
    graph.ResizeOp: _resize,
    graph.UnaryOp: lambda op, x: kernels.unary(op.kind, x, op.alpha, op.beta),
    graph.BinaryOp: lambda op, a, b: kernels.binary(op.kind, a, b),
    graph.ConcatOp: lambda op, *xs: np.concatenate(xs, op.axis),
    graph.SliceOp: lambda op, x: kernels.slice_elements(x, op.starts, op.steps, _result_shape(op)),
    graph.PadOp: lambda op, x: kernels.pad(x, op.low, op.high, op.value),
    graph.ReshapeOp: lambda op, x: x.reshape(_result_shape(op)),
    graph.TransposeOp: lambda op, x: x.transpose(op.perm),
    graph.InterleaveOp: lambda op, *parts: kernels.interleave(parts, op.factor),
}
"""Operation -> function of it and its operands, as wide as it computes; `execute_op` rounds."""
