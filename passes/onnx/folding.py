"""Values that are known when importing: constants, shapes, and what is computed from them.

Frequent operators are numpy one-liners that copy nothing they need not (a splat stays one element
under a shape); the rest is computed by the implementations in `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from frustum.passes.errors import Refused
from frustum.passes.onnx.images import reshape_target
from frustum.passes.onnx.node import Node, Value
from frustum.passes.weights import Array

Fold = Callable[[Node, Sequence[Array]], "Array | Sequence[Array]"]

NOT_FOLDED = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "If", "Loop", "Scan", "DequantizeLinear", "QuantizeLinear",
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "SplitToSequence",  # sequences are lists of members
    # right and fast as layers of the network, neither as constants
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "LRN", "MaxPool", "Resize", "Upsample",
}  # fmt: skip


def fold(node: Node) -> Sequence[Value] | None:
    """The node's outputs where they are known now; None where they are not.

    Of what depends on the size of a changed batch, the value for one image is kept too.
    """
    images = node.network.images
    if node.op_type in ("Shape", "Size") and node.has(0):
        results = [_shape_or_size(node, node.shape(0))]
        if images is not None:
            operand = node.operands[0]
            assert operand is not None
            images.keep(results[0], _shape_or_size(node, images.shape_alone(operand)))
        return results
    if node.op_type in NOT_FOLDED or not _all_constant(node):
        return None
    results = computed(node)
    if images is not None and any(images.depends(operand) for operand in node.operands):
        alone = [images.alone(each) if isinstance(each, np.ndarray) else None for each in node.operands]
        for found, of_one in zip(results, computed(replace(node, operands=alone)), strict=True):
            images.keep(found, of_one)
    return results


def _shape_or_size(node: Node, shape: Sequence[int]) -> Array:
    if node.op_type == "Size":
        return np.asarray(np.prod(shape, dtype=np.int64))
    return np.asarray(shape[node.get("start", 0) : node.get("end", len(shape))], np.int64)


def computed(node: Node) -> list[Array]:
    """The outputs of a node of constants."""
    arrays = [operand for operand in node.operands if isinstance(operand, np.ndarray)]
    frequent = FREQUENT.get(node.op_type)
    if node.op_type == "ReduceMean" and not all(array.size for array in arrays[:1]):
        raise Refused("ONNX does not say what the mean of no elements is")
    try:
        with np.errstate(all="ignore"):
            quick = frequent is not None and len(arrays) == len(node.operands)
            result = frequent(node, arrays) if frequent and quick else _by_reference(node)
    except FAILURES as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"its value cannot be computed: {reason}") from error
    results = result if isinstance(result, list | tuple) else [result]
    return [_plain(np.asarray(array)) for array in results]


def _plain(array: Array) -> Array:
    """Text as objects, which is how onnx has it."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "U" else array


MOST_COMPUTED = 1 << 31
"""Elements of a range that is computed."""
FAILURES = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What numpy and onnx.reference raise where a node does not fit its operands."""


def _all_constant(node: Node) -> bool:
    return all(operand is None or isinstance(operand, np.ndarray) for operand in node.operands)


def _by_reference(node: Node) -> Sequence[Array]:
    from onnx.reference.ops import (
        load_op,  # a fifth of all that `frustum.passes.onnx` imports; few networks fold so
    )

    implementation = load_op("", node.op_type, node.opset)
    settings = {"log": lambda *_: None, "opsets": {"": node.opset}, "verbose": 0, "new_ops": None}
    return implementation(node.proto, settings).run(*node.operands)


def _constant(node: Node, _: Sequence[Array]) -> Array:
    for attribute in node.proto.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name == "value":
            return numpy_helper.to_array(value)
        if attribute.name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if attribute.name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
        if attribute.name in ("value_string", "value_strings"):
            return np.asarray(value)
    raise Refused("only dense constants are supported")


def _constant_of_shape(node: Node, arrays: Sequence[Array]) -> Array:
    tensor = node.get("value")
    value = numpy_helper.to_array(tensor).reshape(()) if tensor is not None else np.float32(0)
    return np.broadcast_to(value, tuple(int(extent) for extent in arrays[0]))


def _reshape(node: Node, arrays: Sequence[Array]) -> Array:
    data, target = arrays
    return data.reshape(reshape_target(data.shape, [int(e) for e in target], bool(node.get("allowzero", 0))))


def _unsqueeze(node: Node, arrays: Sequence[Array]) -> Array:
    axes = node.ints("axes", 1) or ()
    return np.expand_dims(arrays[0], axes)


def _squeeze(node: Node, arrays: Sequence[Array]) -> Array:
    return np.squeeze(arrays[0], node.ints("axes", 1))


def _slice(node: Node, arrays: Sequence[Array]) -> Array:
    index = [slice(None)] * arrays[0].ndim
    starts, ends = arrays[1], arrays[2]
    axes = arrays[3] if len(arrays) > 3 else range(len(starts))
    steps = arrays[4] if len(arrays) > 4 else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        start, end, step = int(start), int(end), int(step)
        extent = arrays[0].shape[int(axis)]
        stop = None if step < 0 and end < -extent else end
        index[int(axis)] = slice(start, stop, step)
    return arrays[0][tuple(index)]


def _cast(node: Node, arrays: Sequence[Array]) -> Array:
    return arrays[0].astype(onnx.helper.tensor_dtype_to_np_dtype(node.get("to")))


def _range(start: Array, stop: Array, step: Array) -> Array:
    if (stop.item() - start.item()) / step.item() > MOST_COMPUTED:
        raise Refused(f"a range from {start.item()} to {stop.item()} by {step.item()} is too long")
    return np.arange(start.item(), stop.item(), step.item(), dtype=start.dtype)


def _divide(_: Node, arrays: Sequence[Array]) -> Array:
    a, b = arrays
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    quotient = np.abs(a) // np.abs(b)  # ONNX rounds towards zero, numpy down
    return np.asarray(np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype))


def _ufunc(function: Callable[[Array, Array], Array]) -> Fold:
    return lambda _, arrays: np.asarray(function(arrays[0], arrays[1]))


FREQUENT: dict[str, Fold] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Identity": lambda _, arrays: arrays[0],
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Cast": _cast,
    "Transpose": lambda node, arrays: np.transpose(arrays[0], node.get("perm")),
    "Gather": lambda node, arrays: np.take(arrays[0], arrays[1], axis=node.get("axis", 0)),
    "Concat": lambda node, arrays: np.concatenate(arrays, axis=node.get("axis", 0)),
    "Expand": lambda _, arrays: np.broadcast_to(
        arrays[0], np.broadcast_shapes(arrays[0].shape, tuple(int(extent) for extent in arrays[1]))
    ),
    "Range": lambda _, arrays: _range(*arrays),
    "Where": lambda _, arrays: np.where(*arrays),
    "Add": _ufunc(np.add),
    "Sub": _ufunc(np.subtract),
    "Mul": _ufunc(np.multiply),
    "Div": _divide,
    "Equal": _ufunc(np.equal),
    "Sqrt": lambda _, arrays: np.asarray(np.sqrt(arrays[0])),
}
