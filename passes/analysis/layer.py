"""Every graph operation as a nest of four loops: what the tile level needs to know of a layer, and nothing else.

A `Layer` says how its output and each operand lie in their tensors (four dimensions, strides in elements), which
positions of an operand a piece of the output needs (`Access`), and the layer's own numbers (`params`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr, NameLoc
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.isa.program import ACCUMULATORS, ELEMENT_BYTES
from frustum.dialects.tile import SAME, Access, AnyAxis, Axis, Plain, TensorView, Whole
from frustum.dialects.unit import Extents
from frustum.passes.analysis.module import element_bytes, element_of
from frustum.passes.errors import Problem, Unsupported

RANK = 4
WORD_BYTES = 4
"""Of a bias, of a multiplier."""
MATRIX = "conv"
"""Kind of the layers that run on the matrix unit."""
CONCAT = "concat"
"""Kind of a concatenation inside a unit, which is a place and no work."""


@dataclass(frozen=True)
class MapOperand:
    """An operand that is loaded tile by tile: number of the operand, its size and place, what a piece needs of it."""

    index: int
    dims: Extents
    view: TensorView
    access: Access
    fill: float | None = None
    element_bytes: int = 4


@dataclass(frozen=True)
class Layer:
    """One graph operation. `out_dims`: extents of the loops; `axes_all`: dimensions that a piece must hold whole."""

    kind: str
    out_dims: Extents
    out_view: TensorView
    maps: tuple[MapOperand, ...]
    params: Mapping[str, Plain] = field(default_factory=dict)
    weight: int | None = None
    bias: int | None = None
    axes_all: tuple[int, ...] = ()
    macs: int = 0
    align: Extents = (1, 1, 1, 1)
    multiplier: int | None = None
    weight_zero: int | None = None
    out_bytes: int = 4
    """Of an element; those of its operands are in `maps`."""
    accumulator_bytes: int = 4

    @cached_property
    def work_dims(self) -> Extents:
        """What the pieces divide: the output, of reductions the input."""
        return self.maps[0].dims if self.kind == "reduce" else self.out_dims

    @cached_property
    def weight_bytes(self) -> int:
        """Of an element of the weights, which have the type of the first map."""
        return self.maps[0].element_bytes

    @cached_property
    def channel_bytes(self) -> tuple[int, ...]:
        """Element bytes of each vector of one number per output channel: bias, zero points, multipliers."""
        kinds = (self.bias, WORD_BYTES), (self.weight_zero, self.weight_bytes), (self.multiplier, WORD_BYTES)
        return tuple(size for place, size in kinds if place is not None)

    @property
    def vectors(self) -> tuple[int, ...]:
        """The operands of `channel_bytes`, in their order."""
        return tuple(p for p in (self.bias, self.weight_zero, self.multiplier) if p is not None)

    @cached_property
    def is_matrix(self) -> bool:
        return self.kind == MATRIX


def dense(dims: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor."""
    strides = [1] * len(dims)
    for i in reversed(range(len(dims) - 1)):
        strides[i] = strides[i + 1] * dims[i + 1]
    return tuple(strides)


def four(values: Sequence[int], fill: int) -> Extents:
    padded = [fill] * (RANK - len(values)) + list(values)
    n, c, h, w = padded
    return (n, c, h, w)


SAME4: Access = (SAME, SAME, SAME, SAME)


def layer_of(op: Operation) -> Layer:
    """The layer of a graph operation; raises `Unsupported` for one that has no engine."""
    build = BUILDERS.get(type(op)) or JOINS.get(type(op))
    if build is None:
        raise refused(op, "no engine of the device runs this operation")
    return sized(build(op), op)


def sized(layer: Layer, op: Operation) -> Layer:
    """The layer with the bytes of its elements."""
    maps = tuple(replace(m, element_bytes=element_bytes(op.operands[m.index])) for m in layer.maps)
    accumulator = ACCUMULATORS.get(element_of(g.tensor_of(op.operands[0]).element_type), "f32")
    return replace(
        layer,
        maps=maps,
        out_bytes=element_bytes(op.results[0]),
        accumulator_bytes=ELEMENT_BYTES[accumulator],
    )


def refused(op: Operation, reason: str) -> Unsupported:
    """The error for an operation that the device cannot run, naming the model's node."""
    location = op.location
    node = location.desc.data if isinstance(location, NameLoc) else ""
    return Unsupported([Problem("model", reason, node, op.name)])


def window(kernel: int, stride: int, pad: int, dilation: int) -> Axis:
    return Axis(stride, 1, -pad, (kernel - 1) * dilation)


def act_params(op: Operation) -> dict[str, Plain]:
    act = op.properties.get("act")
    if not isinstance(act, g.ActAttr):
        return {}
    return {"act": str(act.kind), "act_params": (float(act.alpha), float(act.beta))}


def scales_params(op: Operation) -> dict[str, Plain]:
    """What integers stand for, of each operand and the result: scale and zero point by turns."""
    scales = op.properties.get("scales")
    return scales_of(*scales.data) if isinstance(scales, ArrayAttr) else {}


def scales_of(*scales: g.ScaleAttr) -> dict[str, Plain]:
    return {"scales": tuple(float(number) for each in scales for number in (each.scale, each.zero))}


def product_params(op: g.ConvOp | g.MatmulOp) -> dict[str, Plain]:
    """How a product leaves the matrix unit; `vectors` names what follows the weights where it is not a bias alone."""
    params: dict[str, Plain] = {**act_params(op), **scales_params(op)}
    if op.zeros is not None:
        params["in_zero"], params["out_zero"] = op.zeros
    named = ("bias", op.bias), ("weight_zero", op.w_zero), ("multiplier", op.multiplier)
    vectors = " ".join(name for name, value in named if value is not None)
    return {**params, "vectors": vectors} if vectors not in ("", "bias") else params


def place_of(op: Operation, value: SSAValue | None) -> int | None:
    """Number of an operand that may be absent."""
    return None if value is None else next(i for i, operand in enumerate(op.operands) if operand is value)


def residual_of(op: g.ConvOp | g.MatmulOp, dims: Extents, view: TensorView) -> tuple[MapOperand, ...]:
    """What is added on the way out: it lies as the result does."""
    place = place_of(op, op.residual)
    return () if place is None else (MapOperand(place, dims, view, SAME4),)


def conv(op: g.ConvOp) -> Layer:
    n, c, h, w = g.shape_of(op.x)
    out = g.shape_of(op.result)
    m, per_group, kh, kw = g.shape_of(op.w)
    top, left, _, _ = op.pads
    per_group_out = m // op.groups
    channels: AnyAxis = Whole(c) if op.groups == 1 else Axis(per_group, per_group_out, 0, per_group - 1)
    access: Access = (
        SAME,
        channels,
        window(kh, op.strides[0], top, op.dilations[0]),
        window(kw, op.strides[1], left, op.dilations[1]),
    )
    params: dict[str, Plain] = {
        "kernel": (kh, kw),
        "strides": op.strides,
        "dilations": op.dilations,
        "groups": op.groups,
        "channels": per_group,
        "weight_strides": (per_group * kh * kw, kh * kw, kw, 1),
        "weight_batch": 0,
        **product_params(op),
    }
    out_view = TensorView(0, four(dense(out), 0))
    return Layer(
        MATRIX,
        four(out, 1),
        out_view,
        (
            MapOperand(0, (n, c, h, w), TensorView(0, four(dense((n, c, h, w)), 0)), access),
            *residual_of(op, four(out, 1), out_view),
        ),
        params,
        weight=1,
        bias=place_of(op, op.bias),
        multiplier=place_of(op, op.multiplier),
        weight_zero=place_of(op, op.w_zero),
        macs=math.prod(out) * per_group * kh * kw,
    )


def matmul(op: g.MatmulOp) -> Layer:
    """Positions (d3) are the rows of a, channels (d1) the columns of b, d0 the batch of products."""
    a, b, out = g.shape_of(op.a), g.shape_of(op.b), g.shape_of(op.result)
    if len(a) == 1 or len(b) == 1:
        raise refused(op, "vectors must be given as matrices")
    k = a[-2] if op.trans_a else a[-1]
    rows, columns = out[-2], out[-1]
    batch = math.prod(out[:-2])
    b_batch = math.prod(b[:-2])
    a_batch = math.prod(a[:-2])
    if b_batch == 1 and not op.trans_a and a_batch == batch:
        rows, batch = rows * batch, 1
    elif a_batch not in (1, batch) or b_batch not in (1, batch):
        raise refused(op, f"batches {a[:-2]} and {b[:-2]} broadcast dimension by dimension")
    row, column = (1, a[-1]) if not op.trans_a else (a[-1], 1)  # strides of k, of rows
    a_view = TensorView(0, (a[-2] * a[-1] if batch > 1 and a_batch > 1 else 0, row, 0, column))
    access: Access = (SAME if a_batch > 1 or batch == 1 else Whole(1), Whole(k), SAME, SAME)
    co, ci = (b[-1], 1) if op.trans_b else (1, b[-1])
    params: dict[str, Plain] = {
        "kernel": (1, 1),
        "strides": (1, 1),
        "dilations": (1, 1),
        "groups": 1,
        "channels": k,
        "weight_strides": (co, ci, 0, 0),
        "weight_batch": b[-2] * b[-1] if b_batch > 1 else 0,
        **product_params(op),
    }
    a_dims = (batch if a_batch > 1 else 1, k, 1, rows)
    out_dims, out_view = (batch, columns, 1, rows), TensorView(0, (rows * columns, 1, 0, columns))
    return Layer(
        MATRIX,
        out_dims,
        out_view,
        (MapOperand(0, a_dims, a_view, access), *residual_of(op, out_dims, out_view)),
        params,
        weight=1,
        bias=place_of(op, op.bias),
        multiplier=place_of(op, op.multiplier),
        weight_zero=place_of(op, op.w_zero),
        macs=batch * rows * columns * k,
    )


def spatial(
    op: Operation,
    x: SSAValue,
    kind: str,
    access: Access,
    params: Mapping[str, Plain],
    align: Extents = (1, 1, 1, 1),
    cropped: Extents = (0, 0, 0, 0),
) -> Layer:
    """A layer on one 4-D map with windows; `cropped`: how much of the map's end it never sees."""
    shape, out = g.shape_of(x), g.shape_of(op.results[0])
    dims = four([extent - c for extent, c in zip(shape, cropped, strict=True)], 1)
    return Layer(
        kind,
        four(out, 1),
        TensorView(0, four(dense(out), 0)),
        (MapOperand(0, dims, TensorView(0, four(dense(shape), 0)), access),),
        params,
        align=align,
    )


def pool(op: g.PoolOp) -> Layer:
    top, left, bottom, right = op.pads
    (kh, kw), (sh, sw), (dh, dw) = op.kernel, op.strides, op.dilations
    access = (SAME, SAME, window(kh, sh, top, dh), window(kw, sw, left, dw))
    return spatial(
        op,
        op.x,
        "pool",
        access,
        {
            "kind": str(op.kind),
            "kernel": op.kernel,
            "strides": op.strides,
            "dilations": op.dilations,
            "include_pad": int(op.count_include_pad),
            "pad_low": (max(0, top), max(0, left)),
            "pad_high": (max(0, bottom), max(0, right)),
            **act_params(op),
            **scales_params(op),
        },
        cropped=(0, 0, max(0, -bottom), max(0, -right)),
    )


def lrn(op: g.LrnOp) -> Layer:
    access = (SAME, Axis(1, 1, -((op.size - 1) // 2), op.size - 1), SAME, SAME)
    return spatial(
        op,
        op.x,
        "lrn",
        access,
        {"size": op.size, "alpha": op.alpha, "beta": op.beta, "bias": op.bias, **scales_params(op)},
    )


MAX_DENOMINATOR = 64


def resize_axis(scale: float, offset: float, size: int, out: int) -> tuple[AnyAxis, int]:
    """The rows a piece needs, and what its starts must be multiples of; the whole axis for uneven scales."""
    ratio = Fraction(scale).limit_denominator(MAX_DENOMINATOR)
    if out == size and scale == 1.0 and offset == 0.0:
        return SAME, 1
    if abs(float(ratio) - scale) * out > 1e-3 or ratio.denominator >= out or ratio.numerator == 0:
        return Whole(size), 1
    low = math.floor(offset) - 1  # one more on either side: rounding, the second tap
    return Axis(ratio.numerator, ratio.denominator, low, 4), ratio.denominator


def resize(op: g.ResizeOp) -> Layer:
    x, out = g.shape_of(op.x), g.shape_of(op.result)
    (rows, align_h), (cols, align_w) = (
        resize_axis(op.scale[i], op.offset[i], x[2 + i], out[2 + i]) for i in (0, 1)
    )
    return spatial(
        op,
        op.x,
        "resize",
        (SAME, SAME, rows, cols),
        {
            "mode": str(op.mode),
            "rounding": str(op.rounding),
            "scale": op.scale,
            "offset": op.offset,
            **scales_params(op),
        },
        align=(1, 1, align_h, align_w),
    )


def merge(
    op: Operation, shape: Sequence[int], operands: Sequence[Sequence[int]], limit: int = RANK
) -> list[tuple[int, ...]]:
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
    return [four([d[k] for d in dims], 1) for k in range(len(padded) + 1)]


def elementwise(op: Operation, kind: str, operands: Sequence[SSAValue], params: Mapping[str, Plain]) -> Layer:
    out, *shapes = merge(op, g.shape_of(op.results[0]), [g.shape_of(o) for o in operands])
    out_dims = four(out, 1)
    maps = []
    for index, shape in enumerate(shapes):
        # broadcast along what the result has more of; else the operand lies as any map of its shape does
        near = dense(four(shape, 1))
        strides = tuple(0 if s != o else t for s, o, t in zip(four(shape, 1), out_dims, near, strict=True))
        access = tuple(SAME if s == o else Whole(1) for s, o in zip(shape, out_dims, strict=True))
        maps.append(MapOperand(index, four(shape, 1), TensorView(0, four(strides, 0)), _access(access)))
    return Layer(kind, out_dims, TensorView(0, four(dense(out_dims), 0)), tuple(maps), params)


def _access(axes: Sequence[AnyAxis]) -> Access:
    a, b, c, d = axes
    return (a, b, c, d)


def unary(op: g.UnaryOp) -> Layer:
    params = {"kind": str(op.kind), "alpha": float(op.alpha), "beta": float(op.beta), **scales_params(op)}
    return elementwise(op, "unary", [op.x], params)


def quantize(op: g.QuantizeOp) -> Layer:
    return conversion(op, scales_of(g.ScaleAttr.of(1.0), op.to))


def dequantize(op: g.DequantizeOp) -> Layer:
    return conversion(op, scales_of(op.from_, g.ScaleAttr.of(1.0)))


def conversion(op: g.QuantizeOp | g.DequantizeOp, scales: Mapping[str, Plain]) -> Layer:
    """Between integers and the numbers they stand for; the scale of a floating-point side says nothing."""
    return elementwise(op, "unary", [op.x], {"kind": "identity", "alpha": 0.0, "beta": 0.0, **scales})


def binary(op: g.BinaryOp) -> Layer:
    return elementwise(op, "binary", [op.a, op.b], {"kind": str(op.kind), **act_params(op), **scales_params(op)})


def around(shape: Sequence[int], axis: int) -> tuple[Extents, int]:
    """The shape as four dimensions with `axis` one of them, and its place."""
    if len(shape) <= RANK:
        return four(shape, 1), axis + RANK - len(shape)
    return (1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])), 2


def softmax(op: g.SoftmaxOp) -> Layer:
    dims, axis = around(g.shape_of(op.x), op.axis)
    view = TensorView(0, four(dense(dims), 0))
    access = list(SAME4)
    access[axis] = Whole(dims[axis])
    params = {"axis": axis, **scales_params(op)}
    maps = (MapOperand(0, dims, view, _access(access)),)
    return Layer("softmax", dims, view, maps, params, axes_all=(axis,))


def reduce(op: g.ReduceOp) -> Layer:
    shape = g.shape_of(op.x)
    reduced = [i in op.axes for i in range(len(shape))]
    is_plane = reduced == [False, False, True, True]  # a global pool reads maps as other layers make them
    groups: list[tuple[int, bool]] = []  # extent, is reduced: neighbours of a kind are one dimension
    for extent, flag in zip(shape, reduced, strict=True):
        if not is_plane and groups and groups[-1][1] == flag:
            groups[-1] = (groups[-1][0] * extent, flag)
        else:
            groups.append((extent, flag))
    if len(groups) > RANK:
        raise refused(op, f"axes {op.axes} of shape {shape} do not make four dimensions")
    dims = four([e for e, _ in groups], 1)
    flags = [False] * (RANK - len(groups)) + [f for _, f in groups]
    out_dims = four([1 if f else e for e, f in zip(dims, flags, strict=True)], 1)
    strides = tuple(0 if f else s for f, s in zip(flags, dense(out_dims), strict=True))
    access = _access([Whole(e) if f else SAME for e, f in zip(dims, flags, strict=True)])
    count = math.prod(e for e, f in zip(dims, flags, strict=True) if f)
    params: dict[str, Plain] = {
        "kind": str(op.kind),
        "axes": tuple(i for i, f in enumerate(flags) if f),
        "scale": 1.0 / count if str(op.kind) == "mean" else 1.0,
        **scales_params(op),
    }
    return Layer(
        "reduce",
        out_dims,
        TensorView(0, four(strides, 0)),
        (MapOperand(0, dims, TensorView(0, four(dense(dims), 0)), access),),
        params,
    )


@dataclass(frozen=True)
class Move:
    """One copy of a moving layer: which operand, its view in the loops' coordinates, where it goes in the result."""

    operand: int
    dims: Extents
    source: TensorView
    target: TensorView
    fill: float | None = None
    low: Extents = (0, 0, 0, 0)
    bound: Extents = (0, 0, 0, 0)


def is_move(ops: Iterable[Operation]) -> bool:
    """Whether the operations of a unit (weights and its yield may be among them) are one that only moves data."""
    found = [type(op) in MOVES for op in ops if type(op) in MOVES or type(op) in BUILDERS]
    return found == [True]


def moves_of(op: Operation) -> list[Move] | None:
    """The copies that a moving operation consists of; None for operations that compute."""
    build = MOVES.get(type(op))
    return build(op) if build else None


def _move(
    operand: int,
    dims: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
    source_offset: int = 0,
    target_offset: int = 0,
) -> Move:
    d = four(dims, 1)
    return Move(
        operand,
        d,
        TensorView(source_offset, four(source, 0)),
        TensorView(target_offset, four(target, 0)),
        bound=d,
    )


def shuffle(op: g.ShuffleOp) -> Layer:
    """Channels in another order: every piece has all of them."""
    dims = four(g.shape_of(op.x), 1)
    view = TensorView(0, four(dense(dims), 0))
    maps = (MapOperand(0, dims, view, (SAME, Whole(dims[1]), SAME, SAME)),)
    return Layer("shuffle", dims, view, maps, {"groups": op.groups}, axes_all=(1,))


def side_by_side(op: g.ConcatOp) -> Layer:
    """A concatenation along the channels of maps, in a unit; raises `Unsupported` for any other."""
    out = g.shape_of(op.result)
    if len(out) != RANK or op.axis != 1:
        raise refused(op, f"axis {op.axis} of {len(out)} is concatenated; in a unit it must be axis 1 of {RANK}")
    maps = []
    for index, x in enumerate(op.xs):
        dims = four(g.shape_of(x), 1)
        access: Access = (SAME, Whole(dims[1]), SAME, SAME)
        maps.append(MapOperand(index, dims, TensorView(0, four(dense(dims), 0)), access))
    return Layer(CONCAT, four(out, 1), TensorView(0, four(dense(out), 0)), tuple(maps), axes_all=(1,))


def concat(op: g.ConcatOp) -> list[Move]:
    out = g.shape_of(op.result)
    result, moves = [], 0
    inner = math.prod(out[op.axis + 1 :])
    for index, x in enumerate(op.xs):
        extent = g.shape_of(x)[op.axis]
        dims = (math.prod(out[: op.axis]), extent, inner)
        result.append(_move(index, dims, dense(dims), (out[op.axis] * inner, inner, 1), 0, moves * inner))
        moves += extent
    return result


def slices(op: g.SliceOp) -> list[Move]:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    strides = dense(shape)
    offset = sum(b * s for b, s in zip(op.starts, strides, strict=True))
    source = [s * t for s, t in zip(strides, op.steps, strict=True)]
    dims, source_strides, target_strides = collapse(out, source, dense(out))
    return [_move(0, dims, source_strides, target_strides, offset)]


def collapse(dims: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Dimensions and strides with neighbours merged wherever every stride allows it, and ones dropped."""
    kept: list[tuple[int, ...]] = []
    for entry in zip(dims, *strides, strict=True):
        if entry[0] == 1:
            continue
        if kept and all(a == b * entry[0] for a, b in zip(kept[-1][1:], entry[1:], strict=True)):
            kept[-1] = (kept[-1][0] * entry[0], *entry[1:])
        else:
            kept.append(entry)
    if not kept:
        kept = [(1, *(0 for _ in strides))]
    return tuple(zip(*kept, strict=True))


def pad(op: g.PadOp) -> list[Move]:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    if len(shape) > RANK:
        raise refused(op, f"{len(shape)} dimensions, at most {RANK} run on the device")
    low = four([-p for p in op.low], 0)
    view = TensorView(0, four(dense(shape), 0))
    return [
        Move(0, four(out, 1), view, TensorView(0, four(dense(out), 0)), float(op.value), low, four(shape, 1))
    ]


def transpose(op: g.TransposeOp) -> list[Move]:
    shape, out = g.shape_of(op.x), g.shape_of(op.result)
    strides = dense(shape)
    dims, source, target = collapse(out, [strides[p] for p in op.perm], dense(out))
    return nest(dims, source, target)


def nest(dims: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[Move]:
    """Copies of at most four dimensions; further outer ones become copies of their own."""
    if len(dims) <= RANK:
        return [_move(0, dims, source, target)]
    smallest = min(range(len(dims)), key=lambda i: dims[i])
    rest = [[v for i, v in enumerate(values) if i != smallest] for values in (dims, source, target)]
    result = []
    for i in range(dims[smallest]):
        for move in nest(*rest):
            result.append(
                Move(
                    0,
                    move.dims,
                    TensorView(move.source.offset + i * source[smallest], move.source.strides),
                    TensorView(move.target.offset + i * target[smallest], move.target.strides),
                    bound=move.bound,
                )
            )
    return result


def interleave(op: g.InterleaveOp) -> list[Move]:
    out = g.shape_of(op.result)
    n, c, h, w = dense(out)
    fh, fw = op.factor
    return [
        _move(i, g.shape_of(x), dense(g.shape_of(x)), (n, c, h * fh, w * fw), 0, (i // fw) * h + (i % fw) * w)
        for i, x in enumerate(op.parts)
        if math.prod(g.shape_of(x))
    ]


BUILDERS: dict[type[Operation], Callable[..., Layer]] = {
    g.ConvOp: conv,
    g.MatmulOp: matmul,
    g.PoolOp: pool,
    g.LrnOp: lrn,
    g.ResizeOp: resize,
    g.UnaryOp: unary,
    g.BinaryOp: binary,
    g.SoftmaxOp: softmax,
    g.ReduceOp: reduce,
    g.QuantizeOp: quantize,
    g.DequantizeOp: dequantize,
    g.ShuffleOp: shuffle,
}
JOINS: dict[type[Operation], Callable[..., Layer]] = {g.ConcatOp: side_by_side}
"""What also moves data where it stands alone, and is a layer among others in a unit."""
MOVES: dict[type[Operation], Callable[..., list[Move]]] = {
    g.ConcatOp: concat,
    g.SliceOp: slices,
    g.PadOp: pad,
    g.TransposeOp: transpose,
    g.InterleaveOp: interleave,
}
