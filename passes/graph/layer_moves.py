"""Write moves of maps as layers, so that they can be in units with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects.graph import (
    ActAttr,
    ConcatOp,
    PickOp,
    ReshapeOp,
    SliceOp,
    StackOp,
    TransposeOp,
    TurnOp,
    UnaryOp,
    VolumeOp,
    is_integer,
    root_of,
    shape_of,
)
from frustum.dialects.graph.views import CHANNELS_FIRST, CHANNELS_LAST, SLICES_FIRST
from frustum.passes.analysis.layer.moves import is_side_by_side
from frustum.passes.graph.patterns.borders import find_borders
from frustum.passes.graph.patterns.moves import fold_moves
from frustum.passes.graph.patterns.positions import see_positions_alike
from frustum.passes.graph.patterns.transpositions import cancel_transpositions

RANK = 4  # of a map: n, c, h, w
MOST_PLACES = 1 << 25
"""A map of more elements stays a slice: every element's place is looked at."""
Dims = list[tuple[int, int]]
"""How a tensor lies in another's elements: size and stride of each dimension."""


@dataclass(frozen=True)
class LayerMoves(ModulePass):
    """Slices of maps become `fgraph.pick`, transpositions of channels `fgraph.turn`.

    Before: slices and transpositions, with reshapes around them.  After, where that gives the same elements (and the
    moves that `cancel_transpositions` and `fold_moves` know are left out):
    1. a transposition of a concatenation is a concatenation of transpositions, if each of these is of a map;
    2. a transposition that puts a map's channels last (behind its rows and columns, together or apart), or those of
       [N, H, W, C] first, is a turn;
    3. one between a volume and its slices is a volume, or what the windows of slices behind it read;
    4. a slice with steps above 0 of a map, also behind reshapes and a transposition of its channels (a shuffle that is
       split), is a pick; but not one of an input that is only put beside others in DRAM (a window of a cache), for that
       needs no copy of it (`frustum-lower-load-parts`);
    5. norms, products and what is element by element beside them see positions by the axes (tokens; rows and columns)
       by which most around them does, and a transposition of these is a turn (`see_positions_alike`);
    6. what channels are put beside twice is a layer's copy the second time, for a map has one place in another one.
    """

    name = "frustum-graph-layer-moves"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        cancel_transpositions(op)
        fold_moves(op)
        find_borders(op)
        for each in [o for o in op.walk() if isinstance(o, TransposeOp)]:
            if isinstance(each.x.owner, ConcatOp):
                transpose_parts(each, each.x.owner)
        for each in [o for o in op.walk() if isinstance(o, TransposeOp)]:
            turned(each)
        for cut in [o for o in op.walk() if isinstance(o, SliceOp)]:
            picked(cut)
        see_positions_alike(op)
        for concat in [o for o in op.walk() if isinstance(o, ConcatOp) and is_side_by_side(o)]:
            copy_repeated(concat)


def copy_repeated(op: ConcatOp) -> None:
    """Copies of the operands of a concatenation that are among those before them."""
    for k, x in enumerate(op.xs):
        if x in op.xs[:k] and not is_integer(x):
            copy = UnaryOp(ActAttr.of("identity"), x)
            copy.location = op.location
            Rewriter.insert_op(copy, InsertPoint.before(op))
            op.operands[k] = copy.result


def transpose_parts(op: TransposeOp, concat: ConcatOp) -> None:
    """Transpose what is concatenated, where each part is a map whose channels are put last."""
    if not concat.result.has_one_use() or not all(map_with_channels_last(x, op.perm) for x in concat.xs):
        return
    parts = [TransposeOp(x, op.perm) for x in concat.xs]
    for part in parts:
        part.location = op.location
    joined = ConcatOp([part.result for part in parts], op.perm.index(concat.axis))
    joined.location = concat.location
    Rewriter.replace_op(op, [*parts, joined], [joined.result])
    erase_unused(concat)


def turned(op: TransposeOp) -> None:
    if op.perm == SLICES_FIRST:
        as_volume(op)
        return
    source = map_with_channels_last(op.x, op.perm)
    if source is not None:
        replace(op, TurnOp(source, CHANNELS_LAST))
    elif op.perm == CHANNELS_FIRST:
        replace(op, TurnOp(op.x, CHANNELS_FIRST))


def as_volume(op: TransposeOp) -> None:
    """Between a volume and its slices: windows of slices read a volume as it lies; of what a network is given the
    result is made as slices, of other maps as a volume."""
    for use in tuple(op.result.uses):
        reader = use.operation
        if isinstance(reader, StackOp) and not reader.volume:
            stack = StackOp(op.x, reader.kernel, reader.stride, reader.pads, reader.dilation, True)
            stack.location = reader.location
            Rewriter.replace_op(reader, stack)
    if not op.result.uses:
        Rewriter.erase_op(op)
    elif isinstance(root_of(op.x), BlockArgument):
        replace(op, StackOp(op.x, 1, volume=True))
    else:
        replace(op, VolumeOp(op.x))


def map_with_channels_last(x: SSAValue, perm: tuple[int, ...]) -> SSAValue | None:
    """The map [N, C, H, W] of which a transposition of x puts the channels behind all else."""
    root = map_behind(x)
    shape = shape_of(root)
    if len(shape) != RANK:
        return None
    wanted = [(s, t) for s, t in reordered(dense(shape), CHANNELS_LAST) if s > 1]
    found = [(s, t) for s, t in reordered(dense(shape_of(x)), perm) if s > 1]
    return root if merged(wanted) == merged(found) else None


def picked(op: SliceOp) -> None:
    """A pick of a map instead, where the elements are every so many-th of one along each dimension."""
    if isinstance(root_of(op.x), BlockArgument) and all(is_put_in_dram(use.operation) for use in op.result.uses):
        return
    chain: list[SliceOp | ReshapeOp | TransposeOp] = [op]
    while True:
        x = chain[-1].x
        if len(shape_of(x)) == RANK and (found := pick_of(x, chain)) is not None:
            replace(op, found)
            return
        before = x.owner
        if not isinstance(before, (ReshapeOp, TransposeOp)):
            return
        chain.append(before)


def is_put_in_dram(reader: Operation) -> bool:
    """A concatenation that is no layer of a unit."""
    return isinstance(reader, ConcatOp) and not is_side_by_side(reader)


def pick_of(x: SSAValue, chain: Sequence[SliceOp | ReshapeOp | TransposeOp]) -> PickOp | None:
    """The pick of a map that a slice, behind what stands before it, comes to; None where it is none."""
    shape = shape_of(x)
    if any(step < 1 for op in chain if isinstance(op, SliceOp) for step in op.steps):
        return None
    if prod(shape) > MOST_PLACES:
        return None
    places = np.arange(prod(shape)).reshape(shape)
    whole = places
    for op in reversed(chain):
        places = moved(op, places)
    along = [np.unique(index) for index in np.unravel_index(places.ravel(), shape)]
    starts = [int(a[0]) for a in along]
    steps = [int(a[1] - a[0]) if len(a) > 1 else 1 for a in along]
    sizes = [len(a) for a in along]
    cut = tuple(slice(s, s + t * (n - 1) + 1, t) for s, t, n in zip(starts, steps, sizes, strict=True))
    same = whole[cut].size == places.size and np.array_equal(whole[cut].ravel(), places.ravel())
    return PickOp(x, tuple(starts), tuple(sizes), tuple(steps)) if same else None


def moved(op: SliceOp | ReshapeOp | TransposeOp, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which element is where behind a move."""
    match op:
        case ReshapeOp():
            return places.reshape(shape_of(op.result))
        case TransposeOp():
            return places.transpose(op.perm)
        case SliceOp():
            each = zip(op.starts, op.steps, shape_of(op.result), strict=True)
            return places[tuple(slice(s, s + t * (n - 1) + 1, t) for s, t, n in each)]


def dense(shape: Sequence[int]) -> Dims:
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    return list(zip(shape, strides, strict=True))


def reordered(dims: Dims, perm: Sequence[int]) -> Dims:
    return [dims[p] for p in perm]


def merged(dims: Dims) -> Dims:
    """Neighbours that lie one behind the other as one."""
    found: Dims = []
    for size, stride in dims:
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found


def map_behind(value: SSAValue) -> SSAValue:
    """The map behind reshapes; the value itself where it is one."""
    while len(shape_of(value)) != RANK and isinstance(value.owner, ReshapeOp):
        value = value.owner.x
    return value


def replace(op: TransposeOp | SliceOp, new: PickOp | TurnOp | StackOp | VolumeOp) -> None:
    """Put the layer, with a reshape where it has another shape, in the place of a move."""
    new.location, before = op.location, op.x.owner
    if shape_of(new.result) == shape_of(op.result):
        Rewriter.replace_op(op, new)
    else:
        shaped = ReshapeOp(new.result, shape_of(op.result))
        shaped.location = op.location
        again = [u.operation for u in op.result.uses if isinstance(u.operation, ReshapeOp)]
        Rewriter.replace_op(op, [new, shaped], [shaped.result])
        for back in again:
            if shape_of(back.result) == shape_of(new.result):
                Rewriter.replace_op(back, [], [new.result])
        erase_unused(shaped)
    if isinstance(before, Operation):
        erase_unused(before)


def erase_unused(op: Operation) -> None:
    """What a move was made of, if nobody needs it now."""
    if isinstance(op, (ReshapeOp, TransposeOp, ConcatOp)) and not op.results[0].uses:
        owners = [operand.owner for operand in op.operands]
        Rewriter.erase_op(op)
        for owner in owners:
            if isinstance(owner, Operation):
                erase_unused(owner)
