"""Whether a batch that takes the place of a static 1 keeps its images apart, and where they lie.

The model says what happens to one image.  With N of them each value of the network either does not depend on the
inputs that carry them, or one of its axes is N times as long as for one image, with the images one after the other
along it: axis 0 of an input, another one after a transposition, the product of batch and rows after a reshape.
`Images` follows that axis from operation to operation.  What would bring images together (a softmax, a reduction, a
slice along the axis; a product of values whose images lie differently) raises `MixesImages`, which names the axis;
what is not known to keep them apart does, too.

Constants computed from shapes may depend on N.  Their value for one image is kept beside them (`alone`): it says
what a shape in the model means for one image, and whether a constant is the same for each.  `TARGETS` are the shapes
that nodes give to the elements of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.passes.errors import MixesImages, Refused
from frustum.passes.weights import Array

Ints: TypeAlias = tuple[int, ...]


def reshape_target(shape: Sequence[int], target: Sequence[int], allow_zero: bool) -> tuple[int, ...]:
    """A Reshape's target with its zeros and its -1 filled in."""
    filled = [
        shape[axis] if extent == 0 and not allow_zero and axis < len(shape) else extent
        for axis, extent in enumerate(target)
    ]
    if filled.count(-1) == 1:
        known = int(np.prod([extent for extent in filled if extent != -1], dtype=np.int64))
        total = int(np.prod(shape, dtype=np.int64))
        if known == 0 or total % known:
            raise Refused(f"{tuple(shape)} does not reshape to {tuple(target)}")
        filled[filled.index(-1)] = total // known
    return tuple(filled)


def _reshape_target(shape: Ints, target: list[int] | None, attributes: Mapping[str, Any]) -> Ints:
    if target is None:
        raise Refused("the target shape is missing")
    return reshape_target(shape, target, bool(attributes.get("allowzero", 0)))


def _flatten_target(shape: Ints, _: list[int] | None, attributes: Mapping[str, Any]) -> Ints:
    axis = attributes.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def _squeeze_target(shape: Ints, axes: list[int] | None, _: Mapping[str, Any]) -> Ints:
    gone = [a % len(shape) for a in axes] if axes is not None else [a for a, e in enumerate(shape) if e == 1]
    return tuple(extent for axis, extent in enumerate(shape) if axis not in gone)


def _unsqueeze_target(shape: Ints, axes: list[int] | None, _: Mapping[str, Any]) -> Ints:
    rank = len(shape) + len(axes or ())
    new = [axis % rank for axis in axes or ()]
    extents = iter(shape)
    return tuple(1 if axis in new else next(extents) for axis in range(rank))


TARGETS: dict[str, Callable[[Ints, list[int] | None, Mapping[str, Any]], Ints]] = {
    "Reshape": _reshape_target, "Flatten": _flatten_target, "Squeeze": _squeeze_target, "Unsqueeze": _unsqueeze_target,
}  # fmt: skip
"""By operator: of an operand's shape, the numbers of its second operand, and its attributes."""


CHANNELS, ROWS = 1, 2
PLANE = (2, 3)
NEXT_TO_NOTHING = 2.0**-10
"""A resize that moves by less reads where it writes."""


@dataclass
class Images:
    """`count` images along an axis of values of the network (`axes`; others do not depend on them)."""

    count: int
    axes: dict[SSAValue, int] = field(default_factory=dict)
    constants: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    """Constants that depend on the count, by id: themselves, and what they are for one image."""

    def refuse(self, why: str) -> MixesImages:
        """The error of a node that `why`."""
        return MixesImages(
            f"{why}: --batch {self.count} (or --shape) cannot change the batch of 1 that the model has; run the images"
            " one by one, or export the model with an open batch"
        )

    def along(self, axis: int, shape: Ints) -> MixesImages:
        return self.refuse(f"works along axis {axis} of {shape}, along which the {self.count} images lie")

    def axis_of(self, value: SSAValue | Array | None) -> int | None:
        """The images' axis; `MixesImages` for a constant that depends on their count in another way."""
        if isinstance(value, np.ndarray):
            return self._axis_of_constant(value)
        return self.axes.get(value) if value is not None else None

    def shape_alone(self, value: SSAValue | Array) -> Ints:
        """The shape for one image."""
        if isinstance(value, np.ndarray):
            return self.alone(value).shape
        return self.divided(g.shape_of(value), self.axes.get(value))

    def divided(self, shape: Ints, axis: int | None) -> Ints:
        return tuple(extent // self.count if place == axis else extent for place, extent in enumerate(shape))

    def times(self, shape: Ints, axis: int | None) -> Ints:
        return tuple(extent * self.count if place == axis else extent for place, extent in enumerate(shape))

    # --- constants

    def alone(self, array: Array) -> Array:
        """A constant as it is for one image."""
        found = self.constants.get(id(array))
        return array if found is None else found[1]

    def depends(self, value: object) -> bool:
        """Whether it is a constant that is another one for one image."""
        return isinstance(value, np.ndarray) and id(value) in self.constants

    def keep(self, array: Array, alone: Array) -> None:
        """Remember what a constant is for one image, if it is another one."""
        if array.shape != alone.shape or not np.array_equal(array, alone):
            self.constants[id(array)] = (array, alone)

    def _axis_of_constant(self, array: Array) -> int | None:
        if not self.depends(array):
            return None
        alone = self.alone(array)
        for axis in range(alone.ndim):
            if self.times(alone.shape, axis) == array.shape:
                parts = np.split(array, self.count, axis)
                if all(np.array_equal(part, alone) for part in parts):
                    return axis
        raise self.refuse("one of its constants is computed from the size of the batch")

    # --- operations of the network

    def note(self, op: Operation) -> None:
        """Where the images are in an operation's result; `MixesImages` where it brings them together."""
        axes = [self.axes.get(operand) for operand in op.operands]
        if all(axis is None for axis in axes):
            return
        if isinstance(op, g.RecurrenceOp):
            self._note_recurrence(op)
            return
        rule = RULES.get(type(op))
        if rule is None:
            raise self.refuse(f"is not known to keep {self.count} images apart")
        self.axes[op.results[0]] = rule(self, op)

    def enter(self, pairs: Iterable[tuple[SSAValue, SSAValue]]) -> None:
        """The arguments of a body have their images where values around it have them."""
        self.axes.update((own, self.axes[source]) for own, source in pairs if source in self.axes)

    def _note_recurrence(self, op: g.RecurrenceOp) -> None:
        """The images of its results lie where they do in what a step gives, and are in no slice alone."""
        for value, result in zip((*op.end.outputs, *op.end.states), op.results, strict=True):
            if value in self.axes:
                self.axes[result] = self.axes[value]
        cut = [x for x in (*op.sequences, *op.outputs) if op.steps > 1 and self.axes.get(x) == op.dim]
        if cut:
            raise self.along(op.dim, g.shape_of(cut[0]))

    def split_of(self, shape: Ints, axis: int, result: Ints) -> int:
        """The images' axis after a reshape: the one that has as many elements before it, if they divide it."""
        before = math.prod(shape[:axis])
        for place, extent in enumerate(result):
            if math.prod(result[:place]) == before and extent > 1:
                if extent % self.count == 0:
                    return place
                break
        raise self.refuse(f"puts {shape} into {result}, where the {self.count} images of axis {axis} have no axis")

    # --- nodes whose target is that of one image

    def target(
        self, proto: onnx.NodeProto, given: object, shape: Ints, axis: int, attributes: Mapping[str, Any]
    ) -> Ints | None:
        """The shape that a node of TARGETS, or an Expand, has for all images, from what it says of one; `given` is
        its second operand, `shape` its first one's.  None where it does not fit for one image either."""
        alone = self.divided(shape, axis)
        numbers: list[int] | None
        if isinstance(given, np.ndarray):
            numbers = [int(each) for each in self.alone(given).reshape(-1)]
        else:
            numbers = attributes.get("axes")
        if proto.op_type == "Expand":
            return self._expanded(shape, axis, numbers or [])
        try:
            result = TARGETS[proto.op_type](alone, numbers, attributes)
        except (Refused, ArithmeticError, LookupError, TypeError, ValueError):
            return None
        if math.prod(result) != math.prod(alone):
            return None
        if proto.op_type == "Reshape" and isinstance(given, np.ndarray) and self.depends(given):
            return self._as_told(alone, axis, result, shape, given, attributes)
        if proto.op_type == "Unsqueeze" and alone[axis] == 1:  # the axis is that of the images alone: it stays one
            new = {number % len(result) for number in numbers or []}
            return self.times(result, [place for place in range(len(result)) if place not in new][axis])
        before = math.prod(alone[:axis])
        places = [place for place in range(len(result)) if math.prod(result[:place]) == before]
        if not places:
            raise self.refuse(f"puts {alone} into {result}, where {self.count} images of axis {axis} have no axis")
        return self.times(result, places[0])

    def sizes(self, given: Array, shape: Ints, axis: int, axes: Sequence[int] | None) -> Ints | None:
        """The extents that a Resize names (of its `axes`, or of all), with the images' own."""
        found = [int(each) for each in self.alone(given).reshape(-1)]
        chosen = [each % len(shape) for each in axes] if axes else list(range(len(shape)))
        if len(found) != len(chosen):
            return None
        for place, each in enumerate(chosen):
            if each == axis:
                if found[place] != shape[axis] // self.count:
                    raise self.along(axis, shape)
                found[place] = shape[axis]
        return tuple(found)

    def _as_told(
        self, alone: Ints, axis: int, result: Ints, shape: Ints, given: Array, attributes: Mapping[str, Any]
    ) -> Ints:
        """A target computed from the batch: as it is, if that is one image's but for the images' axis."""
        told = TARGETS["Reshape"](shape, [int(each) for each in given.reshape(-1)], attributes)
        before = math.prod(alone[:axis])
        for place in range(len(result)):
            if told == self.times(result, place) and math.prod(result[:place]) == before:
                return told
        raise self.refuse(f"puts {shape} into {told}, and one image's {alone} into {result}")

    def _expanded(self, shape: Ints, axis: int, target: Sequence[int]) -> Ints:
        alone = self.divided(shape, axis)
        result = np.broadcast_shapes(alone, tuple(target))
        place = axis + len(result) - len(shape)
        if result[place] != alone[axis]:
            raise self.along(axis, shape)
        return self.times(result, place)


def joined_axis(images: Images, shapes: Sequence[Ints], axes: Sequence[int | None]) -> int:
    """The images' axis of an element-wise result of operands that are broadcast."""
    rank = max(len(shape) for shape in shapes)
    operands = list(zip(shapes, axes, strict=True))
    given = {(axis + rank - len(shape), shape[axis]) for shape, axis in operands if axis is not None}
    if len(given) > 1:
        raise images.refuse(f"brings together operands of {_listed(shapes)}, whose images lie along other axes")
    ((place, _),) = given
    for shape, axis in operands:
        own = place - (rank - len(shape))
        if axis is None and own >= 0 and shape[own] != 1:
            raise images.refuse(f"brings together operands of {_listed(shapes)}, of which one is not of images")
    return place


def _listed(shapes: Sequence[Ints]) -> str:
    return " and ".join(map(str, shapes))


# --- what each operation does with the axis of its images ---------------------------------------------------


def _same(images: Images, op: Any) -> int:
    return images.axes[op.operands[0]]


def _along(axes: Callable[[Any], Iterable[int]]) -> Callable[[Images, Any], int]:
    """The rule of an operation that works along some axes of its first operand and keeps them all."""

    def rule(images: Images, op: Any) -> int:
        axis = images.axes[op.operands[0]]
        if axis in axes(op):
            raise images.along(axis, g.shape_of(op.operands[0]))
        return axis

    return rule


def _elementwise(images: Images, op: Any) -> int:
    operands = list(op.operands)
    return joined_axis(images, [g.shape_of(x) for x in operands], [images.axes.get(x) for x in operands])


def _conv(images: Images, op: Any) -> int:
    if any(x in images.axes for x in op.operands[1:]) or op.x not in images.axes:
        raise images.refuse("has weights that are others for each image")
    return _along(lambda op: (CHANNELS, *PLANE))(images, op)


def _resized(op: Any) -> list[int]:
    """The axes along which a resize moves elements."""
    x, result = g.shape_of(op.x), g.shape_of(op.result)
    moves = zip(PLANE, op.scale, op.offset, strict=True)
    return [a for a, scale, offset in moves if x[a] != result[a] or scale != 1 or abs(offset) > NEXT_TO_NOTHING]


def _reduce(images: Images, op: Any) -> int:
    axis = _along(lambda op: op.axes)(images, op)
    return axis if op.keepdims else axis - sum(each < axis for each in op.axes)


def _concat(images: Images, op: Any) -> int:
    found = {images.axes.get(x) for x in op.operands}
    if op.axis in found:
        raise images.along(op.axis, g.shape_of(op.operands[0]))
    if len(found) > 1:
        shapes = [g.shape_of(x) for x in op.operands]
        raise images.refuse(f"brings together operands of {_listed(shapes)}, whose images lie along other axes")
    return images.axes[op.operands[0]]


def _interleave(images: Images, op: Any) -> int:
    found = {images.axes.get(x) for x in op.operands}
    if found not in ({0}, {CHANNELS}):
        raise images.along(ROWS, g.shape_of(op.operands[0]))
    return images.axes[op.operands[0]]


def _cut(op: Any) -> list[int]:
    x, result = g.shape_of(op.x), g.shape_of(op.result)
    return [k for k in range(len(x)) if (op.starts[k], op.steps[k]) != (0, 1) or result[k] != x[k]]


def _padded(op: Any) -> list[int]:
    return [axis for axis, ends in enumerate(zip(op.low, op.high, strict=True)) if any(ends)]


def _transpose(images: Images, op: Any) -> int:
    return int(op.perm.index(images.axes[op.x]))


def _reshape(images: Images, op: Any) -> int:
    return images.split_of(g.shape_of(op.x), images.axes[op.x], g.shape_of(op.result))


def _matmul(images: Images, op: Any) -> int:
    """Images are rows of the first factor, columns of the second, or products of a batch."""
    a, b = images.axes.get(op.a), images.axes.get(op.b)
    if any(x in images.axes for x in op.operands[2:]):
        raise images.refuse("has a bias that is another one for each image")
    left, right, rank = g.shape_of(op.a), g.shape_of(op.b), len(g.shape_of(op.result))
    row = len(left) - (1 if op.trans_a else 2)
    column = len(right) - (2 if op.trans_b else 1)
    for axis, shape, own in ((a, left, row), (b, right, column)):
        if axis is not None and axis >= len(shape) - 2 and axis != own:
            raise images.along(axis, shape)
    if a == row or b == column:
        if a is not None and b is not None:
            raise images.refuse(f"brings together operands of {left} and {right}, in which each image meets all")
        return rank - 2 if a is not None else rank - 1
    fronts = [left[:-2], right[:-2]]
    return joined_axis(images, [(*front, 1, 1) for front in fronts], [a, b])


RULES: dict[type[Operation], Callable[[Images, Any], int]] = {
    g.UnaryOp: _same, g.QuantizeOp: _same, g.DequantizeOp: _same, g.WeightOp: _same,
    g.PoolOp: _along(lambda op: PLANE), g.ResizeOp: _along(_resized), g.LrnOp: _along(lambda op: (CHANNELS,)),
    g.NormaliseOp: _along(lambda op: op.axes),
    g.SoftmaxOp: _along(lambda op: (op.axis,)), g.SliceOp: _along(_cut), g.PadOp: _along(_padded),
    g.BinaryOp: _elementwise, g.ConvOp: _conv, g.MatmulOp: _matmul, g.ReduceOp: _reduce, g.ConcatOp: _concat,
    g.InterleaveOp: _interleave, g.TransposeOp: _transpose, g.ReshapeOp: _reshape,
}  # fmt: skip
