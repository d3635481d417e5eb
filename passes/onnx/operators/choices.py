# Tests: test/passes/onnx/test_import_choices.py
"""Comparisons, logic and choices: truth values are 1 and 0 in the network's type.

Where(c, a, b) is keep(a, c) + drop(b, c): what is not taken is -0.0, which changes no sum, not even the sign of a 0; so
infinities and what is no number do no harm in the operand that is not taken, and nothing is rounded.

The place of the largest element along an axis of n: each element that is not less than the maximum weighs n minus its
place, the others 0, and the largest weight says the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from frustum.dialects.graph import ConcatOp, ReduceOp, is_integer, shape_of, tensor_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result, is_exact
from frustum.passes.onnx.operators.conversions import from_integers
from frustum.passes.weights import Array

NOTHING = np.float32(-0.0)
MOST_PAIRS = 64
"""Of an axis whose elements are each compared with each other."""
MOST_TAKEN = 16
"""Of the largest elements of a longer axis, which are taken out one by one."""


def comparison(kind: str, *, is_swapped: bool = False) -> Converter:
    def convert(node: Node) -> Result:
        a, b = (compared(node, index) for index in (0, 1))
        return node.boolean(node.binary(kind, b, a) if is_swapped else node.binary(kind, a, b))

    return convert


def compared(node: Node, index: int) -> SSAValue:
    """An operand as numbers in floating point, in which all integers of 8 and 16 bits are."""
    operand = node.operands[index] if node.has(index) else None
    if not isinstance(operand, SSAValue) or not is_integer(operand):
        return node.value(index)
    if tensor_of(operand).element_type == i32:
        raise Refused("comparisons of integers of 32 bits are not supported")
    return from_integers(node, index, onnx.TensorProto.INT32)


def _number(node: Node, index: int) -> SSAValue:
    """An operand as numbers, or truth values, in floating point."""
    x = node.value(index)
    if is_integer(x):
        raise Refused("a choice between integers is not supported")
    return x


def both(node: Node) -> Result:
    return node.boolean(node.binary("mask", node.value(0), node.value(1)))


def either(node: Node) -> Result:
    return node.boolean(node.binary("max", node.value(0), node.value(1)))


def one_of_two(node: Node) -> Result:
    return node.negated(node.binary("equal", node.value(0), node.value(1)))


def opposite(node: Node) -> Result:
    return node.negated(node.value(0))


def is_nan(node: Node) -> Result:
    x = _number(node, 0)
    return node.negated(node.binary("equal", x, x))


def is_infinite(node: Node) -> Result:
    x = _number(node, 0)
    low, high = bool(node.get("detect_negative", 1)), bool(node.get("detect_positive", 1))
    if low and high:
        x = node.unary("abs", x)
    end = node.scalar(math.inf if high or not low else -math.inf, "infinity")
    found = node.binary("equal", x, end)
    return node.boolean(found if low or high else node.binary("less", found, found))


def where(node: Node) -> Result:
    """An operand that is 0 needs no sum."""
    if not node.has(0):
        raise Refused("the condition is missing")
    shape = tuple(np.broadcast_shapes(*(node.shape(index) for index in (0, 1, 2))))
    condition = node.operands[0]
    if isinstance(condition, np.ndarray):
        return _where_known(node, condition, shape)
    taken = _number(node, 0)
    for zero, other in ((2, 1), (1, 2)):
        if _is_zero(node, zero) and np.broadcast_shapes(node.shape(0), node.shape(other)) == shape:
            mask = taken if other == 1 else node.negated(taken)
            x = _number(node, other)
            return node.like(node.binary("mask", x, mask), x)
    a, b = _number(node, 1), _number(node, 2)
    return node.like(chosen(node, taken, a, b), a, b)


def chosen(node: Node, taken: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
    return node.binary("add", node.binary("keep", a, taken), node.binary("drop", b, taken))


def _is_zero(node: Node, index: int) -> bool:
    """Whether an operand is the constant +0."""
    array = node.operands[index]
    return isinstance(array, np.ndarray) and not array.any() and not np.signbit(array.astype(np.float32)).any()


def _where_known(node: Node, condition: Array, shape: Ints) -> SSAValue:
    """With a constant condition the one operand, or the other's numbers, may be in a constant of the sum."""
    a, b = (node.operands[index] if node.has(index) else None for index in (1, 2))
    if isinstance(b, np.ndarray):
        found = _otherwise(node, _masked(node, 1, condition), condition, b)
    elif isinstance(a, np.ndarray):
        found = _otherwise(node, _masked(node, 2, ~condition), ~condition, a)
    else:
        x, y = _masked(node, 1, condition), _masked(node, 2, ~condition)
        found = node.like(node.binary("add", x, y), x, y)
    return node.reshape(found, shape)


def _masked(node: Node, index: int, taken: Array) -> SSAValue:
    """The operand where it is `taken`, else what changes no sum."""
    x = _number(node, index)
    return node.like(node.binary("keep", x, node.weight(taken.astype(np.float32), "mask")), x)


def _otherwise(node: Node, x: SSAValue, taken: Array, constant: Array) -> SSAValue:
    """The constant in place of what is not `taken`."""
    if constant.dtype.kind != "f" and not is_exact(constant, node.network.element):
        raise Refused(f"it chooses among integers that {node.network.element} does not have")
    other = node.weight(np.where(taken, NOTHING, constant).astype(np.float32), "otherwise")
    return node.like(node.binary("add", x, other), x)


# --- places -----------------------------------------------------------------------------------------------


def place_of_most(kind: str) -> Converter:
    """ArgMax and ArgMin."""

    def convert(node: Node) -> Result:
        x = _number(node, 0)
        axis = node.axis(int(node.get("axis", 0)), len(shape_of(x)))
        place = place_of(node, x, axis, kind, is_last=bool(node.get("select_last_index", 0)))
        if node.get("keepdims", 1):
            return place
        shape = shape_of(place)
        return node.reshape(place, (*shape[:axis], *shape[axis + 1 :]))

    return convert


def place_of(
    node: Node, x: SSAValue, axis: int, kind: str, *, is_last: bool = False, taken: SSAValue | None = None
) -> SSAValue:
    """Where along an axis the most (`max` or `min`) is, the first or the last of equal ones; the axis stays as 1.
    Elements that are `taken` count as less than all others."""
    count = shape_of(x)[axis]
    node.counts_to(count)
    most = node.emit(ReduceOp(kind, x, (axis,), True))
    is_less = node.binary("less", x, most) if kind == "max" else node.binary("less", most, x)
    weights = np.arange(1, count + 1) if is_last else np.arange(count, 0, -1)
    weight = node.weight(_along(weights, axis, len(shape_of(x))), "places")
    left = node.binary("drop", weight, is_less)
    left = left if taken is None else node.binary("drop", left, taken)
    largest = node.emit(ReduceOp("max", left, (axis,), True))
    return node.whole(node.unary("affine", largest, *((1.0, -1.0) if is_last else (-1.0, float(count)))), True)


def _along(values: Array, axis: int, rank: int) -> Array:
    return values.astype(np.float32).reshape([-1 if place == axis else 1 for place in range(rank)])


def top_k(node: Node) -> Result:
    """The largest or smallest k along an axis, in order, and their places: by ranks where the axis is short, else one
    after the other."""
    given = node.constant(1, "k")
    if given is None:
        raise Refused("k is missing")
    x, k = _number(node, 0), int(given.reshape(()))
    shape = shape_of(x)
    axis = node.axis(int(node.get("axis", -1)), len(shape))
    if not 0 < k <= shape[axis]:
        raise Refused(f"k is {k} of {shape[axis]} elements")
    kind = "max" if node.get("largest", 1) else "min"
    if shape[axis] <= MOST_PAIRS:
        results = _by_ranks(node, x, axis, k, kind)
    elif k <= MOST_TAKEN:
        results = _one_by_one(node, x, axis, k, kind)
    else:
        raise Refused(f"{k} of an axis of {shape[axis]} elements are not supported: at most {MOST_TAKEN} of more than"
                      f" {MOST_PAIRS}")  # fmt: skip
    return [node.like(results[0], x), node.whole(results[1], True)]


def _one_by_one(node: Node, x: SSAValue, axis: int, k: int, kind: str) -> Sequence[SSAValue]:
    """Each time the first of the most, which is then less than all others."""
    shape = shape_of(x)
    numbers = node.weight(_along(np.arange(shape[axis]), axis, len(shape)), "numbers")
    least = node.scalar(-math.inf if kind == "max" else math.inf, "least")
    values, places = [], []
    taken: SSAValue | None = None
    rest = x
    for _ in range(k):
        values.append(node.emit(ReduceOp(kind, rest, (axis,), True)))
        places.append(place_of(node, rest, axis, kind, taken=taken))
        is_it = node.binary("equal", numbers, places[-1])
        taken = is_it if taken is None else node.binary("max", taken, is_it)
        rest = chosen(node, taken, least, x)
    return [values[0], places[0]] if k == 1 else [node.emit(ConcatOp(parts, axis)) for parts in (values, places)]


def _by_ranks(node: Node, x: SSAValue, axis: int, k: int, kind: str) -> Sequence[SSAValue]:
    """An element's rank is how many are before it: all greater ones, and equal ones of lower places.  The elements of
    each rank are what is left where the ranks are equal."""
    shape = shape_of(x)
    ranks = _ranks(node, x, axis, kind == "max")
    rank = len(shape) + 1
    # [.., place, k, ..]: whether the element at a place is the one of rank k
    wanted = node.weight(_along(np.arange(k), axis + 1, rank), "ranks")
    is_it = node.binary("equal", node.reshape(ranks, (*shape[: axis + 1], 1, *shape[axis + 1 :])), wanted)
    values = node.binary("keep", node.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :])), is_it)
    places = node.binary("mask", node.weight(_along(np.arange(shape[axis]), axis, rank), "places"), is_it)
    return [node.emit(ReduceOp("sum", part, (axis,), False)) for part in (values, places)]


def _ranks(node: Node, x: SSAValue, axis: int, is_largest: bool) -> SSAValue:
    """How many elements come before each along the axis."""
    shape = shape_of(x)
    count, rank = shape[axis], len(shape) + 1
    one = node.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    other = node.reshape(x, (*shape[:axis], 1, *shape[axis:]))
    is_before = node.binary("less", one, other) if is_largest else node.binary("less", other, one)
    lower = np.tril(np.ones((count, count), np.float32), -1)
    lower = lower.reshape([count if place in (axis, axis + 1) else 1 for place in range(rank)])
    is_tie = node.binary("mask", node.binary("equal", one, other), node.weight(lower, "lower"))
    return node.emit(ReduceOp("sum", node.binary("add", is_before, is_tie), (axis + 1,), False))


CONVERTERS: dict[str, Converter] = {
    "Equal": comparison("equal"),
    "Less": comparison("less"),
    "LessOrEqual": comparison("less_equal"),
    "Greater": comparison("less", is_swapped=True),
    "GreaterOrEqual": comparison("less_equal", is_swapped=True),
    "And": both,
    "Or": either,
    "Xor": one_of_two,
    "Not": opposite,
    "IsNaN": is_nan,
    "IsInf": is_infinite,
    "Where": where,
    "ArgMax": place_of_most("max"),
    "ArgMin": place_of_most("min"),
    "TopK": top_k,
}
