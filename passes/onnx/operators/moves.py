# Tests: test/passes/onnx/test_import_operators.py
"""Operators that move elements: those that take tensors apart and put them together, Pad (a border that is constant
or made of the tensor's own elements), and those that only rename elements by new shapes and new orders of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import ConcatOp, PadOp, SliceOp, TransposeOp, bounds, shape_of, tensor_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.images import reshape_target
from frustum.passes.onnx.node import Converter, Ints, Node, Result, check_size

MOST_EXTENT = 1 << 20
"""Of an axis whose every element is looked up."""


def pad(node: Node) -> Result:
    x = node.value(0)
    low, high = _both_ends(node, len(shape_of(x)))
    if not any(low) and not any(high):
        return x
    mode = node.get("mode", "constant")
    if mode == "constant":
        value = node.constant(2, "the value")
        number = float(value.reshape(())) if value is not None else float(node.get("value", 0.0))
        if x in node.network.unsigned:
            number += bounds(tensor_of(x).element_type)[0]
        return bordered(node, x, low, high, number)
    if mode not in POSITIONS:
        raise Refused(f"mode is '{mode}'")
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        if before or after:
            x = _extended(node, x, axis, before, after, mode)
    return x


def bordered(node: Node, x: SSAValue, low: Ints, high: Ints, number: float) -> SSAValue:
    """A border of one number.  Where a tensor has more dimensions than the machine counts, its axes without a border
    are joined, and as many of the others as that leaves room for have theirs at a time."""
    if len(shape_of(x)) <= COUNTED:
        return node.emit(PadOp(x, low, high, number))
    left = [axis for axis, ends in enumerate(zip(low, high, strict=True)) if any(ends)]
    while left:
        own = shape_of(x)
        now = left[:1]
        while now != left and len(joined_axes(own, left[: len(now) + 1])) <= COUNTED:
            now = left[: len(now) + 1]
        shape = [extent + (axis in now) * (low[axis] + high[axis]) for axis, extent in enumerate(own)]
        joint = joined_axes(own, now)
        x = node.reshape(x, tuple(math.prod(own[axis] for axis in axes) for axes in joint))
        before, after = ([ends[axes[0]] if axes[0] in now else 0 for axes in joint] for ends in (low, high))
        x = node.reshape(node.emit(PadOp(x, tuple(before), tuple(after), number)), tuple(shape))
        left = left[len(now) :]
    return x


def joined_axes(shape: Ints, apart: Sequence[int]) -> list[list[int]]:
    """All axes in order, neighbours together but for those that stay apart."""
    found: list[list[int]] = []
    for axis in range(len(shape)):
        if axis in apart or not found or found[-1][0] in apart:
            found.append([axis])
        else:
            found[-1].append(axis)
    return found


def _both_ends(node: Node, rank: int) -> tuple[Ints, Ints]:
    pads = node.ints("pads", 1)
    axes = node.ints("axes", 3)
    if pads is None:
        raise Refused("the pads are missing")
    chosen = [node.axis(axis, rank) for axis in axes] if axes is not None else list(range(rank))
    if len(pads) != 2 * len(chosen):
        raise Refused(f"expected {2 * len(chosen)} pads, found {pads}")
    low, high = [0] * rank, [0] * rank
    for place, axis in enumerate(chosen):
        low[axis], high[axis] = pads[place], pads[place + len(chosen)]
    return tuple(low), tuple(high)


def _extended(node: Node, x: SSAValue, axis: int, before: int, after: int, mode: str) -> SSAValue:
    """One axis longer by elements of its own: each run of them is a slice."""
    extent = shape_of(x)[axis]
    if mode == "reflect" and extent == 1:
        raise Refused("reflect needs more than one element to reflect")
    total = extent + before + after
    if total > MOST_EXTENT:
        raise Refused(f"mode '{mode}' would make an extent of {total}: at most {MOST_EXTENT} is supported")
    positions = [POSITIONS[mode](index, extent) for index in range(-before, extent + after)]
    pieces = runs(positions)
    if len(pieces) > MOST_PIECES:
        raise Refused(f"mode '{mode}' makes {len(pieces)} pieces of axis {axis}: at most {MOST_PIECES} are supported")
    return joined(node, [cut(node, x, axis, *run) for run in pieces], axis)


def _reflected(index: int, extent: int) -> int:
    period = 2 * (extent - 1)
    place = index % period
    return min(place, period - place)


POSITIONS: dict[str, Callable[[int, int], int]] = {
    "edge": lambda index, extent: min(max(index, 0), extent - 1),
    "reflect": _reflected,
    "wrap": lambda index, extent: index % extent,
}



COUNTED = 4
"""Dimensions of a border that the machine counts at a time."""
MOST_PIECES = 256  # a gather of more runs of indices, or a tile of more copies, is refused


def concat(node: Node) -> Result:
    full = [index for index in range(len(node)) if all(node.shape(index))]
    values = [node.value(index) for index in full]
    return joined(node, values, node.axis(node.get("axis"), len(node.shape(0))))


def joined(node: Node, values: Sequence[SSAValue], axis: int) -> SSAValue:
    return values[0] if len(values) == 1 else node.emit(ConcatOp(values, axis))


def cut(node: Node, x: SSAValue, axis: int, start: int, size: int, step: int = 1) -> SSAValue:
    """`size` elements along one axis."""
    shape = shape_of(x)
    if (start, size, step) == (0, shape[axis], 1):
        return x
    starts, steps, sizes = [0] * len(shape), [1] * len(shape), list(shape)
    starts[axis], steps[axis], sizes[axis] = start if size else 0, step, size
    return node.emit(SliceOp(x, tuple(starts), tuple(sizes), tuple(steps)))


def split(node: Node) -> Result:
    x = node.value(0)
    shape = shape_of(x)
    axis = node.axis(node.get("axis", 0), len(shape))
    sizes = node.ints("split", 1)
    if sizes is None:
        count = node.get("num_outputs", len(node.proto.output))
        size = ceil_div(shape[axis], count)
        sizes = tuple(min(size, shape[axis] - index * size) for index in range(count))
    if sum(sizes) != shape[axis] or min(sizes) < 0:
        raise Refused(f"parts of {sizes} do not make up an extent of {shape[axis]}")
    starts = np.cumsum((0, *sizes[:-1])).tolist()
    return [cut(node, x, axis, start, size) for start, size in zip(starts, sizes, strict=True)]


def slice_(node: Node) -> Result:
    x = node.value(0)
    shape = shape_of(x)
    starts, ends = node.ints("starts", 1), node.ints("ends", 2)
    if starts is None or ends is None:
        raise Refused("starts and ends are missing")
    axes = node.ints("axes", 3) or tuple(range(len(starts)))
    steps = node.ints("steps", 4) or (1,) * len(starts)
    first, step_by_axis, sizes = [0] * len(shape), [1] * len(shape), list(shape)
    for start, end, given, step in zip(starts, ends, axes, steps, strict=True):
        axis = node.axis(given, len(shape))
        extent = shape[axis]
        stop = None if step < 0 and end < -extent else end
        chosen = range(extent)[slice(start, stop, step)]
        first[axis], step_by_axis[axis], sizes[axis] = chosen.start if chosen else 0, step, len(chosen)
    if tuple(sizes) == shape and all(step == 1 for step in step_by_axis):
        return x
    return node.emit(SliceOp(x, tuple(first), tuple(sizes), tuple(step_by_axis)))


def gather(node: Node) -> Result:
    """Constant indices: a slice for every run of equally spaced ones."""
    indices = node.constant(1, "the index")
    if indices is None:
        raise Refused("the index is missing")
    x = node.value(0)
    shape = shape_of(x)
    axis = node.axis(node.get("axis", 0), len(shape))
    flat = [int(index) % shape[axis] for index in indices.reshape(-1)]
    if any(not -shape[axis] <= index < shape[axis] for index in indices.reshape(-1)):
        raise Refused(f"indices are not inside [{-shape[axis]}, {shape[axis]})")
    pieces = runs(flat)
    if len(pieces) > MOST_PIECES:
        raise Refused(f"its indices make {len(pieces)} runs: at most {MOST_PIECES} are supported")
    parts = [cut(node, x, axis, start, size, step) for start, size, step in pieces]
    result = joined(node, parts, axis) if parts else cut(node, x, axis, 0, 0)
    return node.reshape(result, (*shape[:axis], *indices.shape, *shape[axis + 1 :]))


def runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, length, step) of maximal runs of equally spaced indices, in order."""
    found: list[tuple[int, int, int]] = []
    for index in indices:
        if found:
            start, length, step = found[-1]
            distance = index - (start + (length - 1) * step)
            if distance and (length == 1 or distance == step):
                found[-1] = (start, length + 1, distance)
                continue
        found.append((index, 1, 1))
    return found


def expand(node: Node) -> Result:
    """A product with ones, which are stored only along the axes that grow."""
    target = node.ints("shape", 1)
    if target is None:
        raise Refused("the target shape is missing")
    x = node.value(0)
    shape = shape_of(x)
    result = np.broadcast_shapes(shape, target)
    own = (1,) * (len(result) - len(shape)) + shape
    ones: Ints = tuple(new if old == 1 else 1 for old, new in zip(own, result, strict=True))
    if result == shape:
        return x
    return node.like(node.binary("mul", x, node.weight(np.broadcast_to(np.float32(1), ones), "ones")), x)


def tile(node: Node) -> Result:
    repeats = node.ints("repeats", 1)
    if repeats is None:
        raise Refused("the repeats are missing")
    if max(repeats, default=1) > MOST_PIECES or min(repeats, default=1) < 0:
        raise Refused(f"repeats are {repeats}: 0 to {MOST_PIECES} are supported")
    x = node.value(0)
    check_size(f"node '{node.name}'", tuple(np.multiply(shape_of(x), repeats).tolist()))
    for axis, count in enumerate(repeats):
        x = joined(node, [x] * count, axis) if count else cut(node, x, axis, 0, 0)
    return x




def reshape(node: Node) -> Result:
    target = node.ints("shape", 1)
    if target is None:
        raise Refused("the target shape is missing")
    x = node.value(0)
    return node.reshape(x, reshape_target(shape_of(x), target, bool(node.get("allowzero", 0))))


def flatten(node: Node) -> Result:
    x = node.value(0)
    shape = shape_of(x)
    axis = node.get("axis", 1)
    split = axis if axis == len(shape) else node.axis(axis, len(shape))
    return node.reshape(x, (math.prod(shape[:split]), math.prod(shape[split:])))


def squeeze(node: Node) -> Result:
    x = node.value(0)
    shape = shape_of(x)
    given = node.ints("axes", 1)
    ones = [axis for axis, extent in enumerate(shape) if extent == 1]
    axes = [node.axis(axis, len(shape)) for axis in given] if given is not None else ones
    kept = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
    if math.prod(kept) != math.prod(shape):
        raise Refused(f"axes {axes} of {shape} are not all of extent 1")
    return node.reshape(x, kept)


def unsqueeze(node: Node) -> Result:
    x = node.value(0)
    given = node.ints("axes", 1) or ()
    rank = len(shape_of(x)) + len(given)
    axes = {node.axis(axis, rank) for axis in given}
    if len(axes) != len(given):
        raise Refused(f"axes {given} name one axis twice")
    extents = iter(shape_of(x))
    return node.reshape(x, tuple(1 if axis in axes else next(extents) for axis in range(rank)))


def transpose(node: Node) -> Result:
    x = node.value(0)
    perm = node.ints("perm") or tuple(reversed(range(len(shape_of(x)))))
    return turned(node, x, perm)


def turned(node: Node, x: SSAValue, perm: Ints) -> SSAValue:
    return x if perm == tuple(range(len(perm))) else node.emit(TransposeOp(x, perm))


def depth_to_space(node: Node) -> Result:
    x = node.value(0)
    size = int(node.get("blocksize"))
    n, c, h, w = _block_shape(x, size * size, 1)
    inner = c // (size * size)
    if node.get("mode", "DCR") == "DCR":
        blocks, perm = (n, size, size, inner, h, w), (0, 3, 4, 1, 5, 2)
    else:
        blocks, perm = (n, inner, size, size, h, w), (0, 1, 4, 2, 5, 3)
    turned_blocks = turned(node, node.reshape(x, blocks), perm)
    return node.reshape(turned_blocks, (n, inner, h * size, w * size))


def space_to_depth(node: Node) -> Result:
    x = node.value(0)
    size = int(node.get("blocksize"))
    n, c, h, w = _block_shape(x, 1, size)
    blocks = node.reshape(x, (n, c, h // size, size, w // size, size))
    depth_first = node.get("mode", "DCR") == "DCR"
    turned_blocks = turned(node, blocks, (0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4))
    return node.reshape(turned_blocks, (n, c * size * size, h // size, w // size))


def _block_shape(x: SSAValue, channel_divisor: int, plane_divisor: int) -> Ints:
    shape = shape_of(x)
    if len(shape) != 4:
        raise Refused(f"expected 4 dimensions, found {shape}")
    if shape[1] % channel_divisor or shape[2] % plane_divisor or shape[3] % plane_divisor:
        raise Refused(f"{shape} does not divide into blocks of its blocksize")
    return shape


CONVERTERS: dict[str, Converter] = {
    "Pad": pad,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Expand": expand,
    "Tile": tile,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}
