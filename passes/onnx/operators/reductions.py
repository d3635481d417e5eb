# Tests: test/passes/onnx/test_import_operators.py
"""Reductions over axes, and what is made of sums and element-wise operations: normalisations and softmax."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import f16
from xdsl.ir import SSAValue

from frustum.dialects.graph import LrnOp, NormaliseOp, ReduceOp, SoftmaxOp, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result, Value
from frustum.passes.weights import Array


def batch_normalization(node: Node) -> Result:
    """x * scale + shift, per channel, with what training has found."""
    if node.get("training_mode", 0) or any(node.wants(output) for output in range(1, 5)):
        raise Refused("training is not supported")
    names = ("scale", "B", "mean", "variance")
    parameters = [_float64(node.constant(index, name)) for index, name in enumerate(names, 1)]
    gamma, beta, mean, variance = parameters
    scale = gamma / np.sqrt(variance + float(node.get("epsilon", 1e-5)))
    shift = beta - mean * scale
    x = node.value(0)
    shape = (1, -1, *(1,) * (len(shape_of(x)) - 2))
    scaled = node.binary("mul", x, node.weight(_per_channel(scale, shape), "scale"))
    return node.binary("add", scaled, node.weight(_per_channel(shift, shape), "shift"))


def _float64(array: Array | None) -> Array:
    if array is None:
        raise Refused("a parameter is missing")
    return array.astype(np.float64)


def _per_channel(values: Array, shape: Ints) -> Array:
    return values.reshape(shape)


def centred(node: Node, x: SSAValue, axes: Ints) -> tuple[SSAValue, SSAValue, SSAValue]:
    """x minus its mean over axes; the mean; sqrt(variance + epsilon)."""
    mean = node.emit(ReduceOp("mean", x, axes))
    difference = node.binary("sub", x, mean)
    square = node.binary("mul", difference, difference)
    variance = node.emit(ReduceOp("mean", square, axes))
    epsilon = node.scalar(node.get("epsilon", 1e-5), "epsilon")
    return difference, mean, node.unary("sqrt", node.binary("add", variance, epsilon))


def normalised(
    node: Node, axes: Ints, names: Ints, shape: Ints = (), *, groups: int = 1, rms: bool = False
) -> SSAValue:
    """x by its deviation over axes, times operand `names[0]`, plus operand `names[1]`; these are seen in a shape, if
    one is given.  What is not known yet multiplies and adds afterwards."""
    x = node.value(0)
    given = [node.operands[k] for k in names if node.has(k)]
    are_known = all(isinstance(each, np.ndarray) for each in given)
    operands = [_operand(node, k, shape) for k in names if node.has(k)]
    epsilon = float(node.get("epsilon", 1e-5))
    own = operands if are_known else []
    result = node.emit(NormaliseOp(x, *own, axes=axes, epsilon=epsilon, groups=groups, rms=rms))
    for operand, kind in zip(() if are_known else operands, ("mul", "add"), strict=False):
        result = node.binary(kind, result, operand)
    return result


def _operand(node: Node, index: int, shape: Ints) -> SSAValue:
    array = node.operands[index]
    if isinstance(array, np.ndarray) and shape:
        return node.weight(array.reshape(shape), ("scale", "shift")[index - 1])
    if not shape:
        return node.value(index)
    channels = node.shape(index)[0]
    return node.reshape(node.value(index), tuple(channels if extent == -1 else extent for extent in shape))


def instance_normalization(node: Node) -> Result:
    rank = len(node.shape(0))
    return normalised(node, tuple(range(2, rank)), (1, 2), (1, -1, *(1,) * (rank - 2)))


def group_normalization(node: Node) -> Result:
    """Scale and shift are of channels, before opset 21 of groups."""
    shape, groups = node.shape(0), int(node.get("num_groups"))
    if groups < 1 or shape[1] % groups:
        raise Refused(f"{shape[1]} channels are no {groups} groups")
    of_channels = (1, -1, *(1,) * (len(shape) - 2))
    if node.shape(1)[0] == shape[1]:
        return grouped(node, groups, (1, 2), of_channels)
    each = [node.constant(k, "scale") for k in (1, 2)]
    result = grouped(node, groups, (), ())
    for values, kind in zip(each, ("mul", "add"), strict=True):
        assert values is not None
        whole = np.repeat(values, shape[1] // groups).reshape(of_channels)
        result = node.binary(kind, result, node.weight(whole, kind))
    return result


def grouped(node: Node, groups: int, names: Ints, of_channels: Ints) -> SSAValue:
    """One channel in a group is what it is without groups."""
    shape = node.shape(0)
    axes = tuple(range(1 if groups < shape[1] else 2, len(shape)))
    return normalised(node, axes, names, of_channels, groups=groups if groups < shape[1] else 1)


def layer_normalization(node: Node) -> Result:
    """The mean and what it was divided by are made only where somebody reads them."""
    x = node.value(0)
    rank = len(shape_of(x))
    axes = tuple(range(node.axis(node.get("axis", -1), rank), rank))
    results: list[Value] = [normalised(node, axes, (1, 2))]
    if node.wants(1) or node.wants(2):
        _, mean, deviation = centred(node, x, axes)
        results += [mean, node.unary("reciprocal", deviation)]
    return results


def rms_normalization(node: Node) -> Result:
    rank = len(node.shape(0))
    axes = tuple(range(node.axis(node.get("axis", -1), rank), rank))
    return normalised(node, axes, (1,), rms=True)


def softmax(node: Node) -> Result:
    x = node.value(0)
    return node.emit(SoftmaxOp(x, node.axis(node.get("axis", -1), len(shape_of(x)))))


def log_softmax(node: Node) -> Result:
    """x - max - log(sum(exp(x - max))): unlike the logarithm of a softmax it loses nothing to underflow."""
    x = node.value(0)
    axes = (node.axis(node.get("axis", -1), len(shape_of(x))),)
    shifted = node.binary("sub", x, node.emit(ReduceOp("max", x, axes)))
    total = node.emit(ReduceOp("sum", node.unary("exp", shifted), axes))
    return node.binary("sub", shifted, node.unary("log", total))


def lrn(node: Node) -> Result:
    alpha, beta, bias = (node.get(name, default) for name, default in LRN_DEFAULTS.items())
    return node.emit(LrnOp(node.value(0), int(node.get("size")), alpha, beta, bias))


LRN_DEFAULTS = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}

def reduction(kind: str, before: str = "", after: str = "") -> Converter:
    """A reduction of x, of |x| or of x * x (`before`), and a function of the result (`after`)."""

    def convert(node: Node) -> Result:
        x, axes = node.value(0), _axes(node)
        if before == "square":
            x = node.binary("mul", x, x)
        elif before:
            x = node.unary(before, x)
        result = node.emit(ReduceOp(kind, x, axes, bool(node.get("keepdims", 1)))) if axes else x
        if not before and not after and kind != "mean":
            node.like(result, x)
        return node.unary(after, result) if after else result

    return convert


def log_sum_exp(node: Node) -> Result:
    """max + log(sum(exp(x - max))), so that no exponential overflows; the maximum of infinities counts as 0."""
    x, axes = node.value(0), _axes(node)
    if not axes:
        return x
    largest = node.emit(ReduceOp("max", x, axes, True))
    end = LARGEST_F16 if node.network.element == f16 else LARGEST
    finite = node.unary("clip", largest, -end, end)
    total = node.emit(ReduceOp("sum", node.unary("exp", node.binary("sub", x, finite)), axes, True))
    result = node.binary("add", node.unary("log", total), finite)
    shape = shape_of(result)
    if node.get("keepdims", 1):
        return result
    return node.reshape(result, tuple(extent for axis, extent in enumerate(shape) if axis not in axes))


def _axes(node: Node) -> Ints:
    """From the front, in order; all where none are given."""
    rank = len(node.shape(0))
    given = node.ints("axes", 1) or ()
    axes = tuple(sorted({node.axis(axis, rank) for axis in given}))
    return tuple(range(rank)) if not axes and not node.get("noop_with_empty_axes", 0) else axes


LARGEST, LARGEST_F16 = 3.3e38, 65504.0
"""Numbers that f32 and bf16, and that f16 just hold."""

CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "Softmax": softmax,
    "LogSoftmax": log_softmax,
    "LRN": lrn,
    "ReduceMean": reduction("mean"),
    "ReduceSum": reduction("sum"),
    "ReduceMax": reduction("max"),
    "ReduceMin": reduction("min"),
    "ReduceL1": reduction("sum", before="abs"),
    "ReduceL2": reduction("sum", before="square", after="sqrt"),
    "ReduceSumSquare": reduction("sum", before="square"),
    "ReduceLogSum": reduction("sum", after="log"),
    "ReduceLogSumExp": log_sum_exp,
}
