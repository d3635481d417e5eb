"""Operators that only rename elements: new shapes, new orders of axes."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from frustum.dialects.graph import TransposeOp, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.images import reshape_target
from frustum.passes.onnx.node import Converter, Ints, Node, Result


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
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}
