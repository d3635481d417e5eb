# Tests: test/passes/lower/unit/test_attention.py
"""Attention as one layer: channels of the result are its heads, columns the rows of queries."""

from __future__ import annotations

import math
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.ir import SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, ceil_div
from frustum.dialects.module import CARRY, JOINT, STREAMED, VALUE_PARTS
from frustum.dialects.tile import SAME, Access, AnyAxis, AttentionLayer, Axis, TensorView, Whole
from frustum.passes.analysis.layer.nest import Layer, MapOperand, builds, contiguous, dense, scales_of

Map = tuple[Extents, TensorView]
"""Extents of the loops, and how a tensor lies in them."""


@builds(g.AttentionOp)
def attention(op: g.AttentionOp) -> Layer:
    """d1 are the heads of the result, one after the other, d3 the rows of queries; a piece has whole groups of heads
    that share keys and values."""
    (heads, groups), (size, value_size) = op.heads, op.sizes
    if op.is_of_planes:
        return attention_on_planes(op)
    (batch, rows, keys), share, is_first = op.extents, heads // groups, op.is_channels_first
    kind = AttentionLayer(
        keys, share, size, value_size, float(op.scale), float(op.softcap), op.causal_from,
        has_wide_scores=CARRY in op.attributes, scales=scales_of(op),
    )  # fmt: skip
    out_dims, out_view = seen(g.shape_of(op.result), heads, value_size, 0, is_first)
    whole = Whole(keys)
    of_keys = part(size, kind.group_channels)
    maps = [
        operand(0, op.q, heads, size, op.firsts[0], is_first, (SAME, part(size, value_size), Whole(1), SAME)),
        operand(1, op.k, groups, size, op.firsts[1], is_first, (SAME, of_keys, Whole(1), whole)),
        operand(2, op.v, groups, value_size, op.firsts[2], is_first, (SAME, part(1, share), Whole(1), whole)),
    ]
    if JOINT in op.attributes:
        maps = [joint(each, x, first) for each, x, first in zip(maps, (op.q, op.k, op.v), op.firsts, strict=True)]
    streamed: tuple[int, ...] = ()
    parts = op.attributes.get(VALUE_PARTS)
    if isinstance(parts, IntegerAttr):  # one head, some channels of the values at a time
        kind = replace(kind, value_size=value_size // parts.value.data)
        maps[:2] = (replace(each, access=(SAME, Whole(size), *each.access[2:])) for each in maps[:2])
    if STREAMED in op.attributes:
        views = ((v.offset, v.strides[0], v.strides[1], v.strides[3], v.block) for v in (m.view for m in maps[1:]))
        is_wide = op.attributes[STREAMED] == StringAttr("f32")
        kind = replace(kind, key_view=next(views), value_view=next(views), is_wide=is_wide)
        maps, streamed = maps[:1], (1, 2)
    if op.mask is not None:
        added = mask(op.mask, (batch, heads, rows, keys), value_size)
        maps.append(added if parts is None else replace(added, access=(added.access[0], Whole(1), *added.access[2:])))
    align = (1, kind.group_channels, 1, 1)
    return Layer(kind, out_dims, out_view, tuple(maps), macs=op.macs, align=align, streamed=streamed)


def attention_on_planes(op: g.AttentionOp) -> Layer:
    """The same of maps as convolutions make them: d2 and d3 are rows and columns of the plane, of which a piece has
    whole rows."""
    (heads, groups), (size, value_size), (_, _, keys) = op.heads, op.sizes, op.extents
    share, shapes = heads // groups, [g.shape_of(x) for x in (op.q, op.k, op.v, op.result)]
    (*_, width), (*_, key_height, key_width), _, out_dims = shapes
    kind = AttentionLayer(
        keys, share, size, value_size, float(op.scale), float(op.softcap), widths=(width, key_width),
        has_wide_scores=CARRY in op.attributes, scales=scales_of(op),
    )  # fmt: skip
    plane: Access = (SAME, Whole(width))
    of_keys: Access = (Whole(key_height), Whole(key_width))
    channels = (size, value_size), (size, kind.group_channels), (1, share)
    maps = [
        MapOperand(k, shape, contiguous(shape), (SAME, replace(part(*of), low=first), *axes))
        for k, (shape, of, first, axes) in enumerate(
            zip(shapes[:3], channels, op.firsts, (plane, of_keys, of_keys), strict=True)
        )
    ]
    align = (1, kind.group_channels, 1, 1)
    return Layer(kind, out_dims, contiguous(out_dims), tuple(maps), axes_all=(3,), macs=op.macs, align=align)


def operand(
    index: int, value: SSAValue, heads: int, size: int, first: int, is_channels_first: bool, access: Access
) -> MapOperand:
    return MapOperand(index, *seen(g.shape_of(value), heads, size, first, is_channels_first), access)


def joint(own: MapOperand, value: SSAValue, first: int) -> MapOperand:
    """The same of all channels of a tensor [B, rows, channels], of which those from `first` on are read: as a layer
    has made it."""
    dims, view = seen(shape := g.shape_of(value), shape[-1], 1, 0, is_channels_first=False)
    n, channels, *others = own.access
    assert isinstance(channels, Axis)
    return replace(own, dims=dims, view=view, access=(n, replace(channels, low=first), *others))


def seen(shape: Extents, heads: int, size: int, first: int, is_channels_first: bool) -> Map:
    """Heads as channels, rows as columns: of [B, rows, channels] or, with channels first, [B, channels, rows], from
    channel `first` on, and of [B, heads, rows, size]."""
    if is_channels_first:
        batch, channels, rows = shape
        return (batch, heads * size, 1, rows), TensorView(first * rows, (channels * rows, rows, 0, 1))
    if len(shape) == 3:
        batch, rows, channels = shape
        return (batch, heads * size, 1, rows), TensorView(first, (rows * channels, 1, 0, channels))
    batch, _, rows, _ = shape
    images, own, row, _ = dense(shape)
    if heads == 1:
        return (batch, size, 1, rows), TensorView(0, (images, 1, 0, row))
    return (batch, heads * size, 1, rows), TensorView(0, (images, own, 0, row), size)


def part(size: int, of: int) -> Axis:
    """Of pieces of whole groups of `of` channels: `size` channels for each."""
    common = math.gcd(size, of)
    num, den = size // common, of // common
    return Axis(num, den, 0, ceil_div(num, den) - 1)


def mask(value: SSAValue, whole: Extents, value_size: int) -> MapOperand:
    """What is added to scores: heads as channels, keys as rows, rows of queries as columns; it may have one of each."""
    shape = (1,) * (len(whole) - len(g.shape_of(value))) + g.shape_of(value)
    strides = tuple(0 if own == 1 else stride for own, stride in zip(shape, dense(shape), strict=True))
    (batch, heads, rows, keys), order = shape, (0, 1, 3, 2)
    access: tuple[AnyAxis, ...] = (
        SAME if batch == whole[0] else Whole(1),
        part(1, value_size) if heads == whole[1] else Whole(1),
        Whole(keys),
        SAME if rows == whole[2] else Whole(1),
    )
    return MapOperand(3, (batch, heads, keys, rows), TensorView(0, tuple(strides[d] for d in order)), access)
