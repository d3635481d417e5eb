"""Shape arithmetic of the graph level: result shapes from operand shapes, as pure functions.

Every function raises VerifyException with what it found and what it allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.utils.exceptions import VerifyException

from frustum.dialects.functions import Border

Ints = tuple[int, ...]
SPATIAL_RANK = 4  # n, c, h, w
MAX_RANK = 6


def check(holds: bool, message: str) -> None:
    if not holds:
        raise VerifyException(message)


def window_count(extent: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """How many windows fit into `extent + pad` elements."""
    return (extent + pad - (dilation * (kernel - 1) + 1)) // stride + 1


def window_shape(
    plane: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, extra: Ints = (0, 0)
) -> Ints:
    """The height and width of a convolution's or pool's result; pads are [top, left, bottom, right]."""
    for name, values, length in (
        ("kernel", kernel, 2), ("strides", strides, 2), ("pads", pads, 4), ("dilations", dilations, 2),
        ("ceil_pads", extra, 2),
    ):  # fmt: skip
        check(len(values) == length, f"expected {length} {name}, found {len(values)}")
    check(min(*kernel, *strides, *dilations) > 0, "kernel, strides and dilations must be positive")
    shape = tuple(
        window_count(plane[i], kernel[i], strides[i], pads[i] + pads[i + 2] + extra[i], dilations[i])
        for i in (0, 1)
    )
    check(
        min(shape) > 0,
        f"a kernel of {kernel} with dilations {dilations} does not fit into {plane}, padded {pads}",
    )
    return shape


def conv_shape(x: Ints, w: Ints, strides: Ints, pads: Ints, dilations: Ints, groups: int) -> Ints:
    check(len(x) == SPATIAL_RANK and len(w) == SPATIAL_RANK, f"expected 4-D operands, found {x} and {w}")
    check(groups > 0 and x[1] == w[1] * groups, f"{x[1]} channels, but {groups} groups of {w[1]}")
    check(w[0] % groups == 0, f"{w[0]} output channels do not divide into {groups} groups")
    return (x[0], w[0], *window_shape(x[2:], w[2:], strides, pads, dilations))


def pool_shape(x: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_pads: Ints) -> Ints:
    check(len(x) == SPATIAL_RANK, f"expected a 4-D operand, found {x}")
    return (*x[:2], *window_shape(x[2:], kernel, strides, pads, dilations, ceil_pads))


def broadcast_shape(a: Ints, b: Ints) -> Ints:
    rank = max(len(a), len(b))
    check(rank <= MAX_RANK, f"at most {MAX_RANK} dimensions are supported, found {rank}")
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    shape = []
    for left, right in pairs:
        check(left == right or 1 in (left, right), f"shapes {a} and {b} do not broadcast")
        shape.append(right if left == 1 else left)
    return tuple(shape)


def matmul_shape(a: Ints, b: Ints, trans_a: bool = False, trans_b: bool = False) -> Ints:
    check(len(a) >= 2 and len(b) >= 2, f"expected operands of two or more dimensions, found {a} and {b}")
    rows, inner_a = a[:-3:-1] if trans_a else a[-2:]
    inner_b, columns = b[:-3:-1] if trans_b else b[-2:]
    check(inner_a == inner_b, f"inner extents {inner_a} and {inner_b} differ")
    return (*broadcast_shape(a[:-2], b[:-2]), rows, columns)


def reduce_shape(x: Ints, axes: Ints, keepdims: bool) -> Ints:
    check(len(set(axes)) == len(axes), f"axes {axes} repeat")
    for axis in axes:
        check_axis(axis, len(x))
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(x))
    return tuple(extent for axis, extent in enumerate(x) if axis not in axes)


def concat_shape(shapes: Sequence[Ints], axis: int) -> Ints:
    check(bool(shapes), "expected at least one operand")
    check_axis(axis, len(shapes[0]))
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    check(len(others) == 1, f"shapes {list(shapes)} differ outside axis {axis}")
    total = sum(shape[axis] for shape in shapes)
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


def check_slice(x: Ints, starts: Ints, steps: Ints, result: Ints) -> None:
    lengths = {len(x), len(starts), len(steps), len(result)}
    check(len(lengths) == 1, f"expected {len(x)} starts, steps and sizes")
    for axis, (extent, start, step, size) in enumerate(zip(x, starts, steps, result, strict=True)):
        check(step != 0, "a step must not be 0")
        last = start + (size - 1) * step
        inside = size == 0 or (0 <= start < extent and 0 <= last < extent)
        check(inside, f"axis {axis}: elements {start} to {last} are not inside [0, {extent})")


def pad_shape(x: Ints, low: Ints, high: Ints) -> Ints:
    check(len(low) == len(high) == len(x), f"expected {len(x)} low and high pads")
    shape = tuple(extent + before + after for extent, before, after in zip(x, low, high, strict=True))
    check(min(shape, default=1) >= 0, f"pads {low} and {high} leave nothing of {x}")
    return shape


def border_shape(x: Ints, low: Ints, high: Ints, mode: str) -> Ints:
    is_map = len(x) == SPATIAL_RANK and len(low) == len(high) == 2
    check(is_map, f"expected a map and two pads, found {x}, {low}, {high}")
    for extent, before, after in zip(x[2:], low, high, strict=True):
        most = {Border.REFLECT: extent - 1, Border.EDGE: max(before, after), Border.WRAP: extent}[Border(mode)]
        check(min(before, after) >= 0 and max(before, after) <= most, f"{x} has no borders of {before} and {after}")
    return (*x[:2], *(a + b + c for a, b, c in zip(low, x[2:], high, strict=True)))


def transpose_shape(x: Ints, perm: Ints) -> Ints:
    check(sorted(perm) == list(range(len(x))), f"{perm} is not a permutation of {len(x)} axes")
    return tuple(x[axis] for axis in perm)


def check_reshape(x: Ints, result: Ints) -> None:
    check(
        math.prod(x) == math.prod(result),
        f"{x} has {math.prod(x)} elements, {result} has {math.prod(result)}",
    )


def interleave_shape(parts: Sequence[Ints], factor: Ints) -> Ints:
    """result[n, c, s_h*i + a, s_w*j + b] = parts[a*s_w + b][n, c, i, j]"""
    check(len(factor) == 2 and min(factor) > 0, f"expected two positive factors, found {factor}")
    check(len(parts) == factor[0] * factor[1], f"expected {factor[0] * factor[1]} parts, found {len(parts)}")
    check(all(len(part) == SPATIAL_RANK for part in parts), "expected 4-D parts")
    check(len({part[:2] for part in parts}) == 1, "parts differ in batch or channels")
    grid = [parts[row * factor[1] : (row + 1) * factor[1]] for row in range(factor[0])]
    height = sum(row[0][2] for row in grid)
    width = sum(part[3] for part in grid[0])
    for a, row in enumerate(grid):
        for b, part in enumerate(row):
            expected = (_share(height, factor[0], a), _share(width, factor[1], b))
            check(part[2:] == expected, f"part {a * factor[1] + b} is {part[2:]}, expected {expected}")
    return (*parts[0][:2], height, width)


def check_phases(whole: Ints, parts: Ints, factor: Ints, apart: int) -> None:
    """`parts` has the phases of `whole` as channels, `apart` so far from each other."""
    check(len(factor) == 2 and min(factor) > 0, f"expected two positive factors, found {factor}")
    check(len(whole) == len(parts) == SPATIAL_RANK, f"expected 4-D maps, found {whole} and {parts}")
    check(apart in (1, whole[1]), f"phases of {whole[1]} channels are 1 or {whole[1]} apart, found {apart}")
    down, across = factor
    expected = whole[0], whole[1] * down * across, -(-whole[2] // down), -(-whole[3] // across)
    check(parts == expected, f"the phases of {whole} are {expected}, found {parts}")
    check(down <= whole[2] and across <= whole[3], f"{whole} has fewer positions than phases")


def check_axis(axis: int, rank: int) -> None:
    check(0 <= axis < rank, f"axis {axis} is not inside [0, {rank})")


def _share(total: int, parts: int, index: int) -> int:
    """How many of `total` elements dealt out in turn to `parts` go to part `index`."""
    return (total - index + parts - 1) // parts
