"""Moves: each is a view of its operand wherever an access relation says where elements come from."""

from __future__ import annotations

import math
from collections.abc import Iterable

from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine, Bend, Guard, View, beside
from frustum.dialects.axes.axis import Dim, align, dim, extent_of, leaves, regroup
from frustum.dialects.graph.axes.reader import NEEDS_ALL, Reader, reads


@reads(g.ReshapeOp)
def reshape(reader: Reader, op: g.ReshapeOp) -> View | None:
    x = reader.view(op.x)
    axes = tuple(axis for own in x.dims for axis in own)
    dims = regroup(axes, op.shape)
    if dims is not None:
        return x.with_dims(dims)
    dims = tuple(dim(str(k), extent) for k, extent in enumerate(op.shape))
    place = Affine.along(axis for own in dims for axis in own)
    return copied_if_rounded(reader, x.with_dims((axes,)).at([place], dims=dims), op, dims)


@reads(g.TransposeOp)
@reads(g.TurnOp)
def transpose(reader: Reader, op: g.TransposeOp | g.TurnOp) -> View:
    x = reader.view(op.x)
    return x.with_dims(x.dims[k] for k in op.perm)


@reads(g.VolumeOp)
def volume(reader: Reader, op: g.VolumeOp) -> View:
    x = reader.view(op.x)
    return x.with_dims((x.dims[1], x.dims[0], *x.dims[2:]))


@reads(g.PartOp)
def part(reader: Reader, op: g.PartOp) -> View | None:
    x = reader.view(op.x)
    return moved(x, (op.start, *(0 for _ in x.dims[1:])), (op.count, *x.shape[1:]))


@reads(g.SliceOp)
@reads(g.PickOp)
def slice_(reader: Reader, op: g.SliceOp | g.PickOp) -> View | None:
    x = reader.view(op.x)
    found = moved(x, op.starts, op.sizes, op.steps)
    cut = [] if found is None else [made for made, own in zip(found.dims, x.dims, strict=True) if made != own]
    return copied_if_rounded(reader, found, op, cut)


def copied_if_rounded(reader: Reader, view: View | None, op: Operation, dims: Iterable[Dim]) -> View | None:
    """The view, or a copy of what is read at rounded positions along these dimensions: a part of a tensor that is
    spread over all of it."""
    cut = set(leaves(axis for own in dims for axis in own))
    positions = [position for piece in view.pieces for _, position in piece.index] if view is not None else []
    is_rounded = any(not each.is_linear and any(axis in cut for axis, _ in each.refined().terms) for each in positions)
    return reader.copied(view, op, view.dims, op.results[0]) if view is not None and is_rounded else view


def moved(
    view: View, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...] | None = None
) -> View | None:
    """Every steps-th position from starts on of each dimension; where a part has all of its innermost axes, these as
    they are."""
    dims, positions = list[Dim](), list[Affine]()
    for own, start, size, step in zip(view.dims, starts, sizes, steps or (1,) * len(starts), strict=True):
        inner = inner_axes(own, start, size) if step == 1 else ()
        reach = extent_of(inner)
        outer = dim("part", size // reach)
        dims.append((*outer, *inner))
        positions.append(Affine.along(outer, step * reach, start) + Affine.along(inner))
    return view.at(positions, dims=tuple(dims))


def inner_axes(own: Dim, start: int, size: int) -> Dim:
    """The innermost axes of a dimension of which a part has all positions."""
    axes = leaves(own)
    if size == extent_of(own):
        return axes
    ways = (axes[k:] for k in range(1, len(axes) + 1))
    return next(rest for rest in ways if not start % extent_of(rest) and not size % extent_of(rest))


@reads(g.PadOp)
def pad(reader: Reader, op: g.PadOp) -> View | None:
    x, dims, positions, guards = reader.view(op.x), [], [], []
    for own, low, size in zip(x.dims, op.low, g.shape_of(op.result), strict=True):
        is_same = not low and size == extent_of(own)
        dims.append(own if is_same else dim("pad", size))
        positions.append(Affine.along(dims[-1], 1, -low))
        if not is_same and (low > 0 or size - low > extent_of(own)):
            guards.append(Guard(positions[-1], 0, extent_of(own), op.value))
    return x.at(positions, tuple(guards), tuple(dims))


@reads(g.BorderOp)
def border(reader: Reader, op: g.BorderOp) -> View | None:
    x, out = reader.view(op.x), g.shape_of(op.result)
    dims, positions = list(x.dims), [Affine.along(own) for own in x.dims]
    for k, at in enumerate((2, 3)):
        if out[at] == extent_of(x.dims[at]):
            continue
        dims[at] = dim("yx"[k], out[at])
        bend: Bend = str(op.mode)  # type: ignore[assignment]  # the words are the same
        found = Affine.along(dims[at], 1, -op.low[k])
        positions[at] = Affine(found.terms, found.offset, 1, bend, extent_of(x.dims[at]))
    return x.at(positions, dims=tuple(dims))


@reads(g.ConcatOp)
def concat(reader: Reader, op: g.ConcatOp) -> View | None:
    """Operands side by side: each keeps its own storage."""
    axis, shape = op.axis % len(g.shape_of(op.result)), g.shape_of(op.result)
    views = [reader.view(value) for value in op.xs]
    dims, start, parts = list(views[-1].dims), 0, []
    dims[axis] = dim("side", shape[axis])
    for view in views:
        position, stop = Affine.along(dims[axis], 1, -start), start + view.shape[axis]
        read = at_places(view, {k: own for k, own in enumerate(dims) if k != axis}, {axis: position})
        if read is None:
            return None
        parts.append((read, Guard(Affine.along(dims[axis]), start, stop, None)))
        start = stop
    return View(tuple(dims), beside(parts))


@reads(g.ShuffleOp)
def shuffle(reader: Reader, op: g.ShuffleOp) -> View | None:
    x = reader.view(op.x)
    split = regroup(x.dims[1], (op.groups, extent_of(x.dims[1]) // op.groups))
    return None if split is None else x.with_dims((x.dims[0], (*split[1], *split[0]), *x.dims[2:]))


@reads(g.StackOp)
def stack(reader: Reader, op: g.StackOp) -> View | None:
    """Slices of a window beside each other, as further channels."""
    x = reader.view(op.x)
    depth, channels, *plane = (x.dims[1], x.dims[0], *x.dims[2:]) if op.volume else x.dims
    made, tap = dim("z", g.shape_of(op.result)[0]), dim("kz", op.kernel)
    position = Affine.along(made, op.stride, -op.pads[0])
    if tap:
        position += Affine.along(tap, op.dilation)
    guards = (Guard(position, 0, extent_of(depth)),) if any(op.pads) else ()
    positions = [position, Affine.along(channels), *map(Affine.along, plane)]
    if op.volume:
        positions[:2] = reversed(positions[:2])
    return x.at(positions, guards, (made, (*channels, *tap), *plane))


@reads(g.SpaceToDepthOp)
def space_to_depth(reader: Reader, op: g.SpaceToDepthOp) -> View | None:
    x = reader.view(op.x)
    images, channels, *plane = x.dims
    split = [regroup(own, (extent_of(own) // f, f)) for own, f in zip(plane, op.factor, strict=True)]
    if None in split:
        return None
    (rows, down), (columns, across) = (each for each in split if each is not None)
    phases = (*down, *across)
    return x.with_dims(
        (images, (*channels, *phases) if op.apart == 1 else (*phases, *channels), rows, columns)
    )


@reads(g.DepthToSpaceOp)
def depth_to_space(reader: Reader, op: g.DepthToSpaceOp) -> View | None:
    x = reader.view(op.x)
    images, channels, rows, columns = x.dims
    count = math.prod(op.factor)
    inner = extent_of(channels) // count
    shape = (inner, *op.factor) if op.apart == 1 else (*op.factor, inner)
    split = regroup(channels, shape)
    if split is None:
        return None
    own, down, across = split if op.apart == 1 else (split[2], *split[:2])
    whole = x.with_dims((images, own, (*rows, *down), (*columns, *across)))
    shape = g.shape_of(op.result)
    return whole if whole.shape == shape else moved(whole, (0,) * 4, shape)


@reads(g.InterleaveOp)
def interleave(reader: Reader, op: g.InterleaveOp) -> View | None:
    """Phases of a tensor: row `factor * i + a` of the result is row i of phase a."""
    views = [reader.view(value) for value in op.parts]
    images, channels = views[0].dims[:2]
    places: list[tuple[Dim, Dim]] = []
    for k, factor in enumerate(op.factor):
        places.append((dim("yx"[k], max(view.shape[2 + k] for view in views)), dim("phase", factor)))
    dims = (images, channels, *((*own, *phase) for own, phase in places))
    parts = []
    for k, view in enumerate(views):
        phases = divmod(k, op.factor[1])
        read = at_places(
            view, {0: images, 1: channels}, {2 + k: Affine.along(own) for k, (own, _) in enumerate(places)}
        )
        if read is None:
            return None
        guards = [
            Guard(Affine.along(own), at, at + 1, None) for (_, own), at in zip(places, phases, strict=True)
        ]
        parts.append((View((), beside([(read, guards[1])])), guards[0]))
    whole = View(dims, beside(parts))
    shape = g.shape_of(op.result)
    return whole if whole.shape == shape else moved(whole, (0,) * 4, shape)


def at_places(view: View, dims: dict[int, Dim], positions: dict[int, Affine]) -> View | None:
    """The view where some dimensions are others of the same extent, and the rest at positions."""
    for k, own in dims.items():
        align(view.dims[k], own)
    return view.at(positions[k] if k in positions else Affine.along(dims[k]) for k in range(len(view.dims)))


NEEDS_ALL[g.RearrangeOp] = (
    "a layout pass makes it of slices and concatenations, which are views before it runs"
)
