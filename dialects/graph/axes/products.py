"""Convolutions, matrix products and attention."""

from __future__ import annotations

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine, Guard, View
from frustum.dialects.axes.axis import Axis, Dim, align, dim, extent_of, leaves, regroup
from frustum.dialects.axes.network import Combine
from frustum.dialects.graph.axes.reader import SUM_BITS, Reader, carried, passes_of, reads, window, zero_of


@reads(g.ConvOp)
def conv(reader: Reader, op: g.ConvOp) -> View | None:
    """Channels of a group, rows and columns of the kernel are summed."""
    x, w, out = reader.view(op.x), reader.view(op.w), g.shape_of(op.result)
    (images, channels, *plane), kernel = x.dims, op.kernel
    grouped = regroup(channels, (op.groups, extent_of(channels) // op.groups))
    if grouped is None:
        return None
    groups, summed = grouped
    made = (*groups, *dim("c", out[1] // op.groups))
    positions, guards, taps, dims = [], list[Guard](), [], [images, made]
    for k, own in enumerate(plane):
        is_same = (kernel[k], op.strides[k], op.pads[k], op.pads[k + 2]) == (1, 1, 0, 0)
        dims.append(own if is_same else dim("yx"[k], out[2 + k]))
        position, guard, tap = window(
            ["kh", "kw"][k], own, dims[-1], kernel[k], op.strides[k], op.pads[k], op.dilations[k], zero_of(op)
        )
        positions.append(position)
        guards += guard
        taps.append(tap)
    align(w.dims[0], made)
    align(w.dims[1], summed)
    weight = w.at((Affine.along(made), Affine.along(summed), *(Affine.along(tap) for tap in taps)))
    image = x.at((Affine.along(images), Affine.along(channels), *positions), tuple(guards))
    inner = [*leaves(summed), *(axis for tap in taps for axis in tap)]
    return product(reader, op, dims, [image, weight], made, inner)


@reads(g.MatmulOp)
def matmul(reader: Reader, op: g.MatmulOp) -> View | None:
    """The common dimension is summed; the columns of the result are axes of its own."""
    a, b = reader.view(op.a), reader.view(op.b)
    if len(a.dims) < 2 or len(b.dims) < 2:
        return None
    (rows, summed), (of_b, columns) = _turned(a.dims, op.trans_a), _turned(b.dims, op.trans_b)
    align(of_b, summed)
    made = tuple(Axis("c", leaf.extent) for leaf in leaves(columns))
    batch = _broadcast(a.dims[:-2], b.dims[:-2])
    first = reader.along(a.with_dims((*a.dims[:-2], rows, summed)), (*batch, rows, summed))
    second = reader.along(b.with_dims((*b.dims[:-2], of_b, columns)), (*batch, summed, made))
    return product(reader, op, [*batch, rows, made], [first, second], made, list(leaves(summed)))


def product(
    reader: Reader,
    op: g.ConvOp | g.MatmulOp,
    dims: list[Dim],
    factors: list[View | None],
    made: Dim,
    summed: list[Axis],
) -> View | None:
    """What both have on the way out: a vector of one number per output channel each, a residual, an activation.  Sums
    of integers do not begin with the residual, and so cannot wait where it is."""
    vectors = [v for value in (op.bias, op.w_zero, op.multiplier) for v in reader.optional(value, [made])]
    residual = reader.optional(op.residual, dims)
    return reader.add(
        op,
        dims,
        [*factors, *vectors, *residual],
        role="",
        reduced=dict.fromkeys(summed, Combine.SUM),
        macs=1,
        passes=0,
        storage_of=len(factors) + len(vectors) if residual and op.zeros is None else None,
    )


def _turned(dims: tuple[Dim, ...], is_turned: bool) -> tuple[Dim, Dim]:
    return (dims[-1], dims[-2]) if is_turned else (dims[-2], dims[-1])


def _broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> list[Dim]:
    """The dimensions of both, aligned at their ends: those of the first where it has positions there."""
    rank = max(len(a), len(b))
    a, b = ((),) * (rank - len(a)) + a, ((),) * (rank - len(b)) + b
    return [mine or theirs for mine, theirs in zip(a, b, strict=True)]


@reads(g.AttentionOp)
def attention(reader: Reader, op: g.AttentionOp) -> View | None:
    """Scores (summed over a head's channels), their powers of e (online along the keys), and what these weigh (summed
    along the keys).  Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018."""
    (queries, keys), (size, value_size) = op.heads, op.sizes
    parts = (
        (op.q, queries, size, op.firsts[0]),
        (op.k, keys, size, op.firsts[1]),
        (op.v, keys, value_size, op.firsts[2]),
    )
    found = [_heads(reader, op, *part) for part in parts]
    if any(part is None for part in found):
        return None
    q, k, v = (part for part in found if part is not None)
    batch, heads, rows, depth = q.dims
    if queries != keys:
        grouped = regroup(heads, (keys, queries // keys))
        if grouped is None:
            return None
        inner: Dim = grouped[0]
    else:
        inner = heads
    along = tuple(Axis("key", leaf.extent) for leaf in leaves(k.dims[2]))
    scores_dims = (batch, heads, rows, along)
    scores = reader.add(
        op, scores_dims, [q.at(map(Affine.along, q.dims)), reader.along(k, (batch, inner, along, depth))],
        role="scores", reduced=dict.fromkeys(leaves(depth), Combine.SUM), macs=1,
        bits=SUM_BITS if carried(op) else None,
    )  # fmt: skip
    if scores is None:
        return None
    masked = (
        () if op.causal_from is None else (Affine.along(rows, 1, op.causal_from) + Affine.along(along, -1),)
    )
    powers = reader.add(
        op, scores_dims, [scores.at(map(Affine.along, scores_dims)), *reader.optional(op.mask, scores_dims)],
        role="softmax", reduced=dict.fromkeys(along, Combine.ONLINE), passes=SOFTMAX_PASSES,
        storage_of=0, domain=masked,
    )  # fmt: skip
    if powers is None:
        return None
    context = tuple(Axis("d", leaf.extent) for leaf in leaves(v.dims[3]))
    weighed = reader.add(
        op, _merged(op, batch, heads, rows, context),
        [powers.at(map(Affine.along, scores_dims)), reader.along(v, (batch, inner, along, context))],
        role="context", reduced=dict.fromkeys(along, Combine.SUM), macs=1, domain=masked,
    )  # fmt: skip
    if weighed is None or not op.is_of_planes:
        return weighed
    return weighed.with_dims((*weighed.dims[:2], *reader.view(op.q).dims[2:]))


SOFTMAX_PASSES = 1 + 1 + passes_of("exp") + 1
"""Maximum, difference, power, sum; the division is one of every result (docs/techniques/machine.md)."""


def _heads(
    reader: Reader, op: g.AttentionOp, value: object, heads: int, size: int, first: int
) -> View | None:
    """q, k or v as [batch, heads, rows, size]."""
    view = reader.view(value)  # type: ignore[arg-type]
    if not op.is_channels_first and len(view.dims) == 4:
        return view
    at = 1 if op.is_channels_first else 2
    rows = tuple(axis for own in view.dims[2:] for axis in own) if op.is_channels_first else view.dims[1]
    channels = view.dims[at]
    if first or heads * size != extent_of(channels):
        part = dim("part", heads * size)
        positions = [Affine.along(own) for own in view.dims]
        positions[at] = Affine.along(part, 1, first)
        dims = list(view.dims)
        dims[at] = part
        cut = view.at(positions, dims=tuple(dims))
        if cut is None:
            return None
        view, channels = cut, part
    split = regroup(channels, (heads, size))
    return None if split is None else view.with_dims((view.dims[0], split[0], rows, split[1]))


def _merged(op: g.AttentionOp, batch: Dim, heads: Dim, rows: Dim, context: Dim) -> tuple[Dim, ...]:
    channels = (*heads, *context)
    if op.is_channels_first:
        return batch, channels, rows
    return (batch, rows, channels) if op.is_merged else (batch, heads, rows, context)
