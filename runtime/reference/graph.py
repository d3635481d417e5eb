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
    ArrayAttr,
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    ModuleOp,
    Signedness,
    StringAttr,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from frustum.dialects import graph, tile, unit
from frustum.dialects.host_type import HostType
from frustum.dialects.module import MODEL_DTYPES
from frustum.runtime import kernels
from frustum.runtime.diagnostics import node_name
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.reference.tiles import run_tiles, side_by_side

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
        wanted = _host_types(network)[len(network.inputs) :]
        return {
            name: _for_host(array, host)
            for name, array, host in zip(network.outputs, outputs, wanted, strict=True)
        }

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
        if isinstance(op, tile.ConcatOp):
            return (side_by_side(op, operands),)  # type: ignore[return-value]  # buffers of each cluster
        type_ = graph.tensor_of(op.results[0])
        scales = getattr(op, "scales", None)
        if scales is not None and not _is_product(op):
            reals = (kernels.integer.dequantize(q, *s.data) for q, s in zip(operands, scales, strict=False))
            computed = _activated(op, OPERATIONS[type(op)](op, *reals))
            computed = _quantized(computed, scales[-1], op.results[0])
        else:
            computed = _activated(op, OPERATIONS[type(op)](op, *operands))
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


def _activated(op: Operation, x: Array) -> Array:
    """`x` after the operation's activation; products of integers have applied theirs."""
    act = getattr(op, "act", None)
    if act is None or isinstance(op, graph.UnaryOp) or getattr(op, "zeros", None) is not None:
        return x
    return kernels.unary(act.kind, x, act.alpha, act.beta)


def _is_product(op: Operation) -> bool:
    """Products of integers do their own requantising."""
    return isinstance(op, graph.ConvOp | graph.MatmulOp)


def _quantized(x: Array, to: graph.ScaleAttr, result: SSAValue) -> Array:
    return kernels.integer.quantize(x, to.scale, to.zero, numpy_type(graph.tensor_of(result).element_type))


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
    """The inputs in the network's order and types; raises InputError with everything that is wrong."""
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
        elif _is_float(inputs[name].dtype) != is_float:
            problems.append(
                f"input '{name}' has {inputs[name].dtype} elements, expected {type_.element_type}"
            )
        else:
            arrays.append(_for_device(inputs[name], host, numpy_type(type_.element_type)))
    if problems:
        raise InputError("; ".join(problems) + f" (inputs: {', '.join(network.inputs)})")
    return arrays


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype == kernels.BFLOAT16 or np.issubdtype(dtype, np.floating)


def _result_shape(op: Operation) -> tuple[int, ...]:
    return graph.shape_of(op.results[0])


def _conv(op: graph.ConvOp, x: Array, w: Array, *rest: Array) -> Array:
    settings: dict[str, Any] = {
        "strides": op.strides, "pads": op.pads, "dilations": op.dilations, "groups": op.groups
    }  # fmt: skip
    bias, w_zero, multiplier, residual = _extras(op, rest)
    column = (slice(None), None, None)
    if op.zeros is not None:
        acc = kernels.integer.conv(x, w, x_zero=op.zeros[0], w_zero=w_zero, **settings)
        return _finished(op, acc, op.zeros[1], (bias, multiplier, residual), x.dtype, column)
    result = kernels.conv(x, w, **settings)
    if bias is not None:
        result += bias.astype(result.dtype)[column]
    return result if residual is None else result + residual.astype(result.dtype)


def _matmul(op: graph.MatmulOp, a: Array, b: Array, *rest: Array) -> Array:
    bias, w_zero, multiplier, residual = _extras(op, rest)
    if op.zeros is not None:
        acc = kernels.integer.matmul(
            a, b, a_zero=op.zeros[0], b_zero=w_zero, trans_a=op.trans_a, trans_b=op.trans_b
        )
        return _finished(op, acc, op.zeros[1], (bias, multiplier, residual), a.dtype, (slice(None),))
    result = kernels.matmul(a, b, trans_a=op.trans_a, trans_b=op.trans_b)
    if bias is not None:
        result += bias.astype(result.dtype)
    return result if residual is None else result + residual.astype(result.dtype)


def _extras(op: graph.ConvOp | graph.MatmulOp, rest: Sequence[Array]) -> Sequence[Array | None]:
    """bias, w_zero, multiplier, residual, None where the operation has none."""
    given = iter(rest)
    return [None if value is None else next(given) for value in (op.bias, op.w_zero, op.multiplier, op.residual)]


def _finished(
    op: graph.ConvOp | graph.MatmulOp,
    acc: Array,
    zero: int,
    extras: tuple[Array | None, Array | None, Array | None],
    dtype: np.dtype[Any],
    column: tuple[slice | None, ...],
) -> Array:
    """The accumulators as the operation's result, with bias, multiplier and residual as far as there are any.

    `column` makes one number per channel broadcast.
    """
    bias, multiplier, residual = extras
    bias = None if bias is None else bias[column]
    multiplier = None if multiplier is None else multiplier[column]
    if residual is None:
        clip = None if op.act is None else (op.act.alpha, op.act.beta)
        return kernels.integer.finished(acc, bias, multiplier, zero, dtype, clip)
    assert op.scales is not None
    first, own, to = op.scales
    made = kernels.integer.finished(acc, bias, multiplier, zero, dtype)
    total = kernels.integer.dequantize(made, *first.data) + kernels.integer.dequantize(residual, *own.data)
    if op.act is not None:
        total = kernels.unary(op.act.kind, total, op.act.alpha, op.act.beta)
    return _quantized(total, to, op.result)


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
        kernels.ResizedAxis(scale, offset, extent)
        for scale, offset, extent in zip(op.scale, op.offset, x.shape[-2:], strict=True)
    )
    size = _result_shape(op)[-2:]
    return kernels.resize(x, size, (rows, columns), mode=op.mode, rounding=op.rounding)


OPERATIONS: dict[type[Operation], Callable[..., Array]] = {
    graph.QuantizeOp: lambda op, x: _quantized(x, op.to, op.result),
    graph.DequantizeOp: lambda op, q: kernels.integer.dequantize(q, *op.from_.data),
    graph.ConvOp: _conv,
    graph.MatmulOp: _matmul,
    graph.PoolOp: _pool,
    graph.ReduceOp: lambda op, x: kernels.reduce(op.kind, x, op.axes, keepdims=op.keepdims),
    graph.SoftmaxOp: lambda op, x: kernels.softmax(x, op.axis),
    graph.LrnOp: _lrn,
    graph.ResizeOp: _resize,
    graph.UnaryOp: lambda op, x: kernels.unary(op.kind, x, op.act.alpha, op.act.beta),
    graph.BinaryOp: lambda op, a, b: kernels.binary(op.kind, a, b),
    graph.ConcatOp: lambda op, *xs: np.concatenate(xs, op.axis),
    graph.SliceOp: lambda op, x: kernels.slice_elements(x, op.starts, op.steps, _result_shape(op)),
    graph.PadOp: lambda op, x: kernels.pad(x, op.low, op.high, op.value),
    graph.ReshapeOp: lambda op, x: x.reshape(_result_shape(op)),
    graph.TransposeOp: lambda op, x: x.transpose(op.perm),
    graph.ShuffleOp: lambda op, x: kernels.shuffle(x, op.groups),
    graph.PickOp: lambda op, x: kernels.slice_elements(x, op.starts, op.steps, _result_shape(op)),
    graph.TurnOp: lambda op, x: x.transpose(op.perm),
    graph.InterleaveOp: lambda op, *parts: kernels.interleave(parts, op.factor),
}
"""Operation -> function of it and its operands, as wide as it computes; `execute_op` rounds."""
