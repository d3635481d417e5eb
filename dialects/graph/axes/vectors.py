"""Layers of the vector unit: windows, reductions, norms, functions of elements."""

from __future__ import annotations

import math
from fractions import Fraction

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine, Guard, View
from frustum.dialects.axes.axis import Axis, Dim, dim, extent_of, leaves, regroup
from frustum.dialects.axes.network import Combine
from frustum.dialects.functions import Interpolation, Pooling, Reduction, Rounding
from frustum.dialects.graph.axes.reader import (
    STATISTICS_BITS,
    Reader,
    act_of,
    gone,
    least_of,
    passes_of,
    reads,
    window,
    zero_of,
)


@reads(g.PoolOp)
def pool(reader: Reader, op: g.PoolOp) -> View | None:
    """Windows over rows and columns, or over slices."""
    x, out = reader.view(op.x), g.shape_of(op.result)
    cut = {0: "z"} if op.is_of_slices else {2: "y", 3: "x"}
    dims, guards, taps = list(x.dims), list[Guard](), list[Axis]()
    positions = [Affine.along(own) for own in x.dims]
    fill = least_of(op.x) if op.kind == Pooling.MAX else zero_of(op)
    for k, (at, name) in enumerate(cut.items()):
        own, dims[at] = x.dims[at], dim(name, out[at])
        positions[at], guard, tap = window(
            f"k{name}", own, dims[at], op.kernel[k], op.strides[k], op.pads[k], op.dilations[k], fill
        )
        guards += guard
        taps += tap
    combine = Combine.MAX if op.kind == Pooling.MAX else Combine.SUM
    read = x.at(positions, tuple(guards))
    return reader.add(op, dims, [read], reduced=dict.fromkeys(taps, combine), passes=1)


@reads(g.LrnOp)
def lrn(reader: Reader, op: g.LrnOp) -> View | None:
    """Sums of squares of neighbouring channels, and what they make of every element."""
    x = reader.view(op.x)
    position, guards, taps = window("tap", x.dims[1], x.dims[1], op.size, 1, (op.size - 1) // 2, fill=zero_of(op))
    positions = [Affine.along(own) for own in x.dims]
    around = x.at([positions[0], position, *positions[2:]], guards)
    squares = reader.add(
        op, x.dims, [around], role="squares", reduced=dict.fromkeys(taps, Combine.SUM), passes=1, bits=32
    )
    return _of_each(reader, op, x, squares, 2 * passes_of("exp"))


@reads(g.ReduceOp)
def reduce(reader: Reader, op: g.ReduceOp) -> View | None:
    """Sums, means, extremes; a variance is sums of x and of its square."""
    x = reader.view(op.x)
    reduced, kept = gone(x, op.axes)
    if not op.keepdims:
        kept = tuple(own for k, own in enumerate(kept) if k not in op.axes)
    combine = Combine.MAX if op.kind in (Reduction.MAX, Reduction.MIN) else Combine.SUM
    passes = 2 if op.kind == Reduction.VARIANCE else 1
    read = x.at(map(Affine.along, x.dims))
    return reader.add(op, kept, [read], reduced=dict.fromkeys(reduced, combine), passes=passes)


@reads(g.SoftmaxOp)
def softmax(reader: Reader, op: g.SoftmaxOp) -> View | None:
    """Maximum and sum of powers, which parts have too; then every element."""
    x = reader.view(op.x)
    reduced, kept = gone(x, (op.axis % len(x.dims),))
    read = x.at(map(Affine.along, x.dims))
    known = reader.add(
        op, kept, [read], role="sums", reduced=dict.fromkeys(reduced, Combine.SUM),
        passes=3 + passes_of("exp"), bits=STATISTICS_BITS,
    )  # fmt: skip
    return _of_each(reader, op, x, known, 1 + passes_of("exp") + passes_of("reciprocal"))


@reads(g.NormaliseOp)
def normalise(reader: Reader, op: g.NormaliseOp) -> View | None:
    """Sums of x and of its square, and what they make of every element."""
    x = reader.view(op.x)
    dims = list(x.dims)
    if op.groups > 1:
        split = regroup(dims[1], (op.groups, extent_of(dims[1]) // op.groups))
        if split is None:
            return None
        within, groups = split[1], split[0]
    else:
        within, groups = dims[1] if len(dims) > 1 else (), ()
    reduced = [axis for k in op.axes for axis in (within if k == 1 else dims[k])]
    kept = tuple((groups if k == 1 else ()) if k in op.axes else own for k, own in enumerate(dims))
    read = x.at(map(Affine.along, x.dims))
    known = reader.add(
        op,
        kept,
        [read],
        role="sums",
        reduced=dict.fromkeys(leaves(reduced), Combine.SUM),
        passes=2,
        bits=STATISTICS_BITS,
    )
    if known is None:
        return None
    by_group = known.with_dims(tuple(() if k in op.axes and k != 1 else own for k, own in enumerate(kept)))
    extra = [view for value in (op.scale, op.shift) for view in reader.optional(value, dims)]
    return _of_each(
        reader, op, x, by_group, 2 + passes_of(act_of(op)), extra, groups if op.groups > 1 else None
    )


def _of_each(
    reader: Reader, op: Operation, x: View, known: View | None, passes: int,
    extra: list[View | None] | None = None, groups: Dim | None = None,
) -> View | None:  # fmt: skip
    """The second half of a norm: an element and what is known of its neighbourhood."""
    if known is None:
        return None
    positions = [Affine.along(own) if extent_of(own) > 1 else Affine() for own in known.dims]
    if groups is not None:
        positions[1] = Affine.along(groups)
    read = [x.at(map(Affine.along, x.dims)), known.at(positions)]
    return reader.add(op, x.dims, [*read, *(extra or [])], passes=passes, storage_of=0)


@reads(g.UnaryOp)
def unary(reader: Reader, op: g.UnaryOp) -> View | None:
    return _pointwise(reader, op, [op.x], passes_of(str(op.kind)))


@reads(g.BinaryOp)
def binary(reader: Reader, op: g.BinaryOp) -> View | None:
    return _pointwise(reader, op, [op.a, op.b], passes_of(op.kind, act_of(op)))


@reads(g.QuantizeOp)
def quantize(reader: Reader, op: g.QuantizeOp) -> View | None:
    return _pointwise(reader, op, [op.x], 1)


@reads(g.DequantizeOp)
def dequantize(reader: Reader, op: g.DequantizeOp) -> View | None:
    return _pointwise(reader, op, [op.x], 1)


def _pointwise(reader: Reader, op: Operation, values: list[SSAValue], passes: int) -> View | None:
    """Element by element; a dimension is that of the first operand that has all of it, intermediates first."""
    shape, views = g.shape_of(op.results[0]), [reader.view(value) for value in values]
    made = {layer.result for layer in reader.layers}
    ranked = sorted(views, key=lambda view: not any(piece.tensor in made for piece in view.pieces))
    dims = []
    for k, extent in enumerate(shape, -len(shape)):
        own = [view.dims[k] for view in ranked if -k <= len(view.dims)]
        dims.append(next(each for each in own if extent_of(each) == extent))
    if len({axis for own in dims for axis in leaves(own)}) < sum(len(leaves(own)) for own in dims):
        dims = [dim("p", extent) for extent in shape]  # one operand is the other turned: axes of its own
    whole = [k for k, view in enumerate(views) if view.shape == shape]
    return reader.add(
        op,
        dims,
        [reader.along(view, dims) for view in views],
        passes=passes,
        storage_of=whole[0] if whole else None,
    )


@reads(g.ResizeOp)
def resize(reader: Reader, op: g.ResizeOp) -> View | None:
    """Every position reads one of the operand's, or the two on its sides.  Of several tensors there is a copy."""
    x, out = reader.view(op.x), g.shape_of(op.result)
    if len(x.pieces) > 1:
        return None
    dims, positions, taps = list(x.dims), [Affine.along(own) for own in x.dims], []
    for k in (0, 1):
        at, extent = 2 + k, extent_of(x.dims[2 + k])
        if out[at] == extent and op.scale[k] == 1 and op.offset[k] == 0:
            continue
        dims[at] = dim("yx"[k], out[at])
        tap = Axis(f"k{k}", 2, is_tap=True) if op.mode == Interpolation.LINEAR else None
        found = _rounded(op, k, dims[at], extent, tap)
        if found is None:
            return None
        positions[at] = found
        taps += [tap] if tap else []
    passes = 1 if op.mode == Interpolation.NEAREST else passes_of("exp")
    return reader.add(op, dims, [x.at(positions)], reduced=dict.fromkeys(taps, Combine.SUM), passes=passes)


def _rounded(op: g.ResizeOp, k: int, made: Dim, extent: int, tap: Axis | None) -> Affine | None:
    """The position that a resize reads, exactly: None if no fraction gives it at each of the result's."""
    scale = Fraction(op.scale[k]).limit_denominator(MOST_DENOMINATOR)
    offset = Fraction(op.offset[k]).limit_denominator(MOST_DENOMINATOR)
    half = {
        Rounding.CEIL: Fraction(1),
        Rounding.ROUND_PREFER_FLOOR: Fraction(1, 2),
        Rounding.ROUND_PREFER_CEIL: Fraction(1, 2),
    }
    rounding = Rounding.FLOOR if tap else Rounding(op.rounding)
    divisor = math.lcm(scale.denominator, offset.denominator, 2)
    shift = offset * divisor + half.get(rounding, Fraction(0)) * divisor
    if rounding in (Rounding.CEIL, Rounding.ROUND_PREFER_FLOOR):
        shift -= 1  # a position that is whole, or halfway, goes down
    terms = Affine.along(made, int(scale * divisor), int(shift))
    if tap:
        terms += Affine.of(tap, divisor)
    return Affine(terms.terms, terms.offset, divisor, "edge", extent)


MOST_DENOMINATOR = 1 << 16
"""Ratios of extents are fractions of 16-bit numbers; a scale that is none is a float of the file."""
