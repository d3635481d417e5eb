# Tests: test/runtime/time/test_timing_model.py
"""Layers of the vector unit: element by element, windows, sums along dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, replaced
from frustum.dialects.functions import Arithmetic, Function, Interpolation, Pooling, Reduction, Rounding
from frustum.dialects.tile import (
    SAME,
    Access,
    AnyAxis,
    Axis,
    BinaryLayer,
    LayerKind,
    LrnLayer,
    NormaliseLayer,
    PoolLayer,
    ReduceLayer,
    ResizeLayer,
    Scaling,
    SoftmaxLayer,
    TensorView,
    UnaryLayer,
    Whole,
)
from frustum.passes.analysis.layer.nest import (
    RANK,
    SAME4,
    Layer,
    MapOperand,
    act_of,
    builds,
    chosen_form,
    contiguous,
    dense,
    formed,
    loops,
    refused,
    scales_of,
    scaling,
    window,
)

MAX_DENOMINATOR = 64
CHANNELS, ROWS = 1, 2

# --- element by element, with broadcasting -------------------------------------------------------------------


def merge(
    op: Operation, shape: Sequence[int], operands: Sequence[Sequence[int]], limit: int = RANK
) -> list[Extents]:
    """The shapes (result first) with neighbouring dimensions merged where all are dense or all broadcast."""
    ranks = len(shape)
    padded = [tuple([1] * (ranks - len(s)) + list(s)) for s in operands]
    dims = [(shape[i], *(p[i] for p in padded)) for i in range(ranks)]
    while len(dims) > limit:
        for i in range(len(dims) - 1):
            a, b = dims[i], dims[i + 1]
            if all(
                (x == a[0]) == (y == b[0]) or (x * y in (1, a[0] * b[0]) and {x, y} <= {1, a[0] * b[0]})
                for x, y in zip(a, b, strict=True)
            ):
                dims[i : i + 2] = [tuple(x * y for x, y in zip(a, b, strict=True))]
                break
        else:
            raise refused(
                op, f"shapes {[tuple(shape), *operands]} have more than {limit} dimensions that differ"
            )
    return [loops(d[k] for d in dims) for k in range(len(padded) + 1)]


def elementwise(op: Operation, kind: LayerKind, operands: Sequence[SSAValue]) -> Layer:
    form = chosen_form(op)
    if form is not None:
        return elementwise_in(form, op, kind, operands)
    out, *shapes = merge(op, g.shape_of(op.results[0]), [g.shape_of(o) for o in operands])
    maps = []
    for index, shape in enumerate(shapes):
        # broadcast along what the result has more of; else the operand lies as any map of its shape does
        strides = tuple(0 if s != o else t for s, o, t in zip(shape, out, dense(shape), strict=True))
        access = tuple(SAME if s == o else Whole(1) for s, o in zip(shape, out, strict=True))
        maps.append(MapOperand(index, shape, TensorView(0, strides), access))
    return Layer(kind, out, contiguous(out), tuple(maps))


def elementwise_in(form: Extents, op: Operation, kind: LayerKind, operands: Sequence[SSAValue]) -> Layer:
    """The same, where the loops are chosen."""
    out, strides = formed(g.shape_of(op.results[0]), form)
    maps = []
    for index, operand in enumerate(operands):
        extents, own = formed(g.shape_of(operand), form)
        access = tuple(SAME if e == o else Whole(1) for e, o in zip(extents, out, strict=True))
        maps.append(MapOperand(index, extents, TensorView(0, own), access))
    return Layer(kind, out, TensorView(0, strides), tuple(maps))


@builds(g.UnaryOp, shares=True)
def unary(op: g.UnaryOp) -> Layer:
    kind = UnaryLayer(Function(op.kind), op.act.alpha, op.act.beta, scales_of(op))
    return elementwise(op, kind, [op.x])


@builds(g.QuantizeOp, shares=True)
def quantize(op: g.QuantizeOp) -> Layer:
    return conversion(op, scaling(g.ScaleAttr.of(1.0), op.to))


@builds(g.DequantizeOp, shares=True)
def dequantize(op: g.DequantizeOp) -> Layer:
    return conversion(op, scaling(op.from_, g.ScaleAttr.of(1.0)))


def conversion(op: g.QuantizeOp | g.DequantizeOp, scales: Scaling) -> Layer:
    """Between integers and the numbers they stand for; the scale of a floating-point side says nothing."""
    return elementwise(op, UnaryLayer(Function.IDENTITY, scales=scales), [op.x])


@builds(g.BinaryOp, shares=True)
def binary(op: g.BinaryOp) -> Layer:
    return elementwise(op, BinaryLayer(Arithmetic(op.kind), act_of(op), scales_of(op)), [op.a, op.b])


# --- windows -------------------------------------------------------------------------------------------------


def windows(
    op: Operation,
    x: SSAValue,
    kind: LayerKind,
    access: Access,
    align: Extents = (1,) * RANK,
    cropped: Extents = (0,) * RANK,
) -> Layer:
    """A layer on one 4-D map with windows; `cropped`: how much of the map's end it never sees."""
    shape, out = g.shape_of(x), g.shape_of(op.results[0])
    dims = loops(extent - c for extent, c in zip(shape, cropped, strict=True))
    return Layer(
        kind, loops(out), contiguous(out), (MapOperand(0, dims, contiguous(shape), access),), align=align
    )


@builds(g.PoolOp, shares=True)
def pool(op: g.PoolOp) -> Layer:
    if op.is_of_slices:
        return pool_of_slices(op)
    top, left, bottom, right = op.pads
    (kh, kw), (sh, sw), (dh, dw) = op.kernel, op.strides, op.dilations
    kind = PoolLayer(
        Pooling(op.kind),
        op.kernel,
        op.strides,
        op.dilations,
        bool(op.count_include_pad),
        (max(0, top), max(0, left)),
        (max(0, bottom), max(0, right)),
        act_of(op),
        scales_of(op),
    )
    access = (SAME, SAME, window(kh, sh, top, dh), window(kw, sw, left, dw))
    return windows(op, op.x, kind, access, cropped=(0, 0, max(0, -bottom), max(0, -right)))


def pool_of_slices(op: g.PoolOp) -> Layer:
    """Windows over images; along the columns of one."""
    (kernel,), (stride,), (dilation,), (low, high) = op.kernel, op.strides, op.dilations, op.pads
    kind = PoolLayer(
        Pooling(op.kind), (kernel, 1), (stride, 1), (dilation, 1), bool(op.count_include_pad), (max(0, low), 0),
        (max(0, high), 0), act_of(op), scales_of(op), True,
    )  # fmt: skip
    access = (window(kernel, stride, low, dilation), SAME, SAME, SAME)
    return windows(op, op.x, kind, access, cropped=(max(0, -high), 0, 0, 0))


@builds(g.LrnOp, shares=True)
def lrn(op: g.LrnOp) -> Layer:
    access = (SAME, Axis(1, 1, -((op.size - 1) // 2), op.size - 1), SAME, SAME)
    return windows(op, op.x, LrnLayer(op.size, op.alpha, op.beta, op.bias, scales_of(op)), access)


@builds(g.ResizeOp, shares=True)
def resize(op: g.ResizeOp) -> Layer:
    x, out = g.shape_of(op.x), g.shape_of(op.result)
    (rows, align_h), (cols, align_w) = (
        resize_axis(op.scale[i], op.offset[i], x[2 + i], out[2 + i]) for i in (0, 1)
    )
    mode, rounding = Interpolation(op.mode), Rounding(op.rounding)
    kind = ResizeLayer(mode, rounding, op.scale, op.offset, scales_of(op))
    return windows(op, op.x, kind, (SAME, SAME, rows, cols), align=(1, 1, align_h, align_w))


def resize_axis(scale: float, offset: float, size: int, out: int) -> tuple[AnyAxis, int]:
    """The rows a piece needs, and what its starts must be multiples of; the whole axis for uneven scales."""
    ratio = Fraction(scale).limit_denominator(MAX_DENOMINATOR)
    if out == size and scale == 1.0 and offset == 0.0:
        return SAME, 1
    if abs(float(ratio) - scale) * out > 1e-3 or ratio.denominator >= out or ratio.numerator == 0:
        return Whole(size), 1
    low = math.floor(offset) - 1  # one more on either side: rounding, the second tap
    return Axis(ratio.numerator, ratio.denominator, low, 4), ratio.denominator


# --- sums along dimensions -----------------------------------------------------------------------------------


@builds(g.SoftmaxOp)
def softmax(op: g.SoftmaxOp) -> Layer:
    shape, axis = g.shape_of(op.x), op.axis
    form = chosen_form(op)
    if form is not None:
        dims, strides = formed(shape, form)
        loop, view = form[axis], TensorView(0, strides)
        operand = MapOperand(0, dims, view, replaced(SAME4, loop, Whole(dims[loop])))
        return Layer(SoftmaxLayer(loop, scales_of(op)), dims, view, (operand,), axes_all=(loop,))
    if len(shape) > RANK:  # the axis between all before and all after it
        shape, axis = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])), 1
    dims, axis = loops(shape), axis + RANK - len(shape)
    view = contiguous(dims)
    maps = (MapOperand(0, dims, view, replaced(SAME4, axis, Whole(dims[axis]))),)
    return Layer(SoftmaxLayer(axis, scales_of(op)), dims, view, maps, axes_all=(axis,))


@builds(g.NormaliseOp)
def normalise(op: g.NormaliseOp) -> Layer:
    """Loops are those of the chosen form; of groups the second axis as channels, those behind it as rows and columns;
    else neighbouring axes of which all or none are normalised are one loop."""
    shape = g.shape_of(op.x)
    operands = [value for value in (op.x, op.scale, op.shift) if value is not None]
    shapes, form = [(1,) * (len(shape) - len(own)) + own for own in map(g.shape_of, operands)], chosen_form(op)
    if form is None:
        form = plane_form(op) if op.groups > 1 else merged_form(op, shapes)
    axes, group = tuple(sorted({form[axis] for axis in op.axes if shape[axis] > 1 or op.groups > 1})), 0
    if op.groups > 1:
        axes, group = tuple(d for d in axes if d != CHANNELS), shape[1] // op.groups
    if not axes and not group:
        axes = loop_of_one(op, formed(shape, form)[0])
    layer = elementwise_in(form, op, NormaliseLayer(axes, op.epsilon, group, op.rms, act_of(op)), operands)
    maps = tuple(replace(each, access=held_whole(each.access, each.dims, axes)) for each in layer.maps)
    align = (1, group or 1, 1, 1)
    return replace(layer, maps=maps, axes_all=axes, align=align)


def loop_of_one(op: g.NormaliseOp, dims: Extents) -> Extents:
    """Where each element is normalised by itself: a loop of one position, which no other axis is part of."""
    if 1 not in dims:
        raise refused(op, f"each element is normalised by itself in four loops of {dims}: none is left for that")
    return (dims.index(1),)


def held_whole(access: Access, dims: Extents, axes: Extents) -> Access:
    return tuple(Whole(dims[d]) if d in axes else axis for d, axis in enumerate(access))


def plane_form(op: g.NormaliseOp) -> Extents:
    """[N, C, ...]: the last axis is the columns, those between it and the channels are the rows."""
    rank = len(g.shape_of(op.x))
    return (0, CHANNELS, *(ROWS,) * (rank - 3), *(RANK - 1,) * (rank > 2))


def merged_form(op: g.NormaliseOp, shapes: Sequence[Extents]) -> Extents:
    """Axes of whom the same operands have more than one position, and that are normalised alike, are one loop."""
    kinds = [(axis in op.axes, *(own[axis] > 1 for own in shapes[1:])) for axis in range(len(shapes[0]))]
    form: list[int] = []
    last: tuple[bool, ...] | None = None
    loop = RANK
    for axis in reversed(range(len(kinds))):
        if shapes[0][axis] > 1 and kinds[axis] != last:
            last, loop = kinds[axis], loop - 1
        form.append(min(loop, RANK - 1))
    if loop < 0:
        raise refused(op, f"axes {op.axes} of shape {shapes[0]} do not make four dimensions")
    return tuple(reversed(form))


@builds(g.ReduceOp)
def reduce(op: g.ReduceOp) -> Layer:
    shape = g.shape_of(op.x)
    form = chosen_form(op)
    if form is not None:
        dims, strides = formed(shape, form)
        left = tuple(1 if i in op.axes else extent for i, extent in enumerate(shape))
        return reduction(op, dims, strides, tuple(sorted({form[i] for i in op.axes})), formed(left, form)[1])
    reduced = [i in op.axes for i in range(len(shape))]
    # a global pool reads maps as other layers make them
    is_plane = len(shape) == RANK and reduced[CHANNELS:] == [False, True, True]
    groups: list[tuple[int, bool]] = []  # extent, is reduced: neighbours of a kind are one dimension
    for extent, flag in zip(shape, reduced, strict=True):
        if not is_plane and groups and groups[-1][1] == flag:
            groups[-1] = (groups[-1][0] * extent, flag)
        else:
            groups.append((extent, flag))
    if len(groups) > RANK:
        raise refused(op, f"axes {op.axes} of shape {shape} do not make four dimensions")
    dims = loops(e for e, _ in groups)
    axes = tuple(i + RANK - len(groups) for i, (_, flag) in enumerate(groups) if flag)
    left = tuple(1 if d in axes else e for d, e in enumerate(dims))
    strides = tuple(0 if d in axes else s for d, s in enumerate(dense(left)))
    return reduction(op, dims, dense(dims), axes, strides)


def reduction(op: g.ReduceOp, dims: Extents, lie: Extents, axes: tuple[int, ...], made: Extents) -> Layer:
    """A reduction over loops `axes` of an operand that lies with strides `lie`; the result's strides are `made`."""
    out_dims = tuple(1 if d in axes else e for d, e in enumerate(dims))
    access = tuple(Whole(e) if d in axes else SAME for d, e in enumerate(dims))
    scale = 1.0 / math.prod(dims[d] for d in axes) if op.kind == "mean" else 1.0
    kind = ReduceLayer(Reduction(op.kind), axes, scale, scales_of(op))
    operand = MapOperand(0, dims, TensorView(0, lie), access)
    whole = () if kind.kind.is_of_parts else axes
    return Layer(kind, out_dims, TensorView(0, made), (operand,), axes_all=whole)
