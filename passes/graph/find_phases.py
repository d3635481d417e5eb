"""Name phases of maps as channels, and back, so that they can be layers of a unit; phases of a transposed convolution
are made by as few convolutions as that is worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, ceil_div
from frustum.passes.analysis.module import target_of
from frustum.passes.dequantised import mark_expanded
from frustum.passes.graph.patterns.phase_slices import find_phase_slices
from frustum.passes.weights import Array, WeightStore, store_of

CHANNELS = 1  # the axis of channels
JOINED = "~phases"
"""Marks the keys of weights of several phases."""


@dataclass(frozen=True)
class FindPhases(ModulePass):
    """Write what deals phases of a map to channels, or back, as one layer.

    Before: `reshape`, `transpose`, `reshape` between [N, C, H, W] and the phases of its rows and columns, or their
    slices side by side; `interleave` of the results of convolutions.  After: `depth_to_space`, `space_to_depth`.

    Convolutions of the same map that make neighbouring phases from the same positions are one with all their outputs;
    those of a transposed convolution whose sub-kernels differ are, where that takes the matrix unit no longer than one
    after the other, one whose kernels have zeros where others have taps.  What is made by several lies side by side.
    Source: Shi et al., Is the deconvolution layer the same as a convolutional layer?, 2016.
    """

    name = "frustum-graph-find-phases"
    of_one: bool = False
    """Only interleaved results: of convolutions that become one, all of one size, or one for each block of phases with
    the same window.  A tree has the rest as views."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not self.of_one:
            self.find_all(op)
        woven = [each for each in op.walk() if isinstance(each, g.InterleaveOp)]
        if woven:
            store, width = store_of(op), target_of(op).core.matrix.channels
            for each in woven:
                if not self.of_one or becomes_one(each, store, width):
                    weave(each, store, width)
                else:
                    weave_blocks(each, store)

    def find_all(self, op: ModuleOp) -> None:
        """Writes phases that operations on shapes deal as layers."""
        for last in [each for each in op.walk() if isinstance(each, g.ReshapeOp)]:
            find(last)
        find_phase_slices(op)


# --- reshapes and transpositions -----------------------------------------------------------------------------


def find(last: g.ReshapeOp) -> None:
    """Replace a reshape behind a transposition of a reshape, if these deal phases."""
    turned = last.x.owner
    if not isinstance(turned, g.TransposeOp) or not turned.result.has_one_use():
        return
    first = turned.x.owner
    if not isinstance(first, g.ReshapeOp) or not first.result.has_one_use():
        return
    new = phases_of(first.x, g.shape_of(first.result), turned.perm, g.shape_of(last.result))
    if new is None:
        return
    new.location = turned.location
    Rewriter.replace_op(last, new)
    for unused in (turned, first):
        Rewriter.erase_op(unused)


def phases_of(x: SSAValue, split: Extents, perm: Extents, result: Extents) -> g.PhasesOp | None:
    """The layer that a reshape to `split`, a transposition and a reshape are; None where they are none."""
    shape = g.shape_of(x)
    if not len(shape) == len(result) == 4 or len(split) != 6 or shape[0] != result[0] or 0 in shape:
        return None
    down, across = (ceil_div(max(a, b), min(a, b)) for a, b in zip(shape[2:], result[2:], strict=True))
    if down * across == 1:
        return None
    merging = result[2] > shape[2] or result[3] > shape[3]
    n, own, h, w = (result[0], result[1], shape[2], shape[3]) if merging else (shape[0], shape[1], *result[2:])
    ways: dict[tuple[Extents, Extents], int] = {
        ((n, own, down, across, h, w), (0, 1, 4, 2, 5, 3)): 1,
        ((n, down, across, own, h, w), (0, 3, 4, 1, 5, 2)): own,
    } if merging else {
        ((n, own, h, down, w, across), (0, 1, 3, 5, 2, 4)): 1,
        ((n, own, h, down, w, across), (0, 3, 5, 1, 2, 4)): own,
    }  # fmt: skip
    apart = ways.get((split, tuple(perm)))
    if apart is None:
        return None
    if merging:
        return g.DepthToSpaceOp(x, (down, across), apart, result)
    return g.SpaceToDepthOp(x, (down, across), apart)


# --- interleaved convolutions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taps:
    """Along rows or columns: the first input position that output 0 reads, taps, and how far they are apart."""

    first: int
    count: int
    apart: int

    @property
    def last(self) -> int:
        return self.first + (self.count - 1) * self.apart

    def place_in(self, other: Taps) -> slice:
        """Where these taps are among others."""
        step = self.apart // other.apart if self.count > 1 else 1
        begin = (self.first - other.first) // other.apart
        return slice(begin, begin + (self.count - 1) * step + 1, step)


def taps_of(conv: g.ConvOp, axis: int) -> Taps:
    count = conv.kernel[axis]
    return Taps(-conv.pads[axis], count, conv.dilations[axis] if count > 1 else 1)


def cover(parts: Sequence[Taps]) -> Taps:
    """The fewest taps evenly apart that have all of these."""
    first = min(part.first for part in parts)
    apart = math.gcd(*(part.first - first for part in parts), *(part.apart for part in parts if part.count > 1))
    last = max(part.last for part in parts)
    return Taps(first, 1 + (last - first) // apart if apart else 1, apart or 1)


def becomes_one(op: g.InterleaveOp, store: WeightStore, width: int) -> bool:
    """Whether interleaved parts, all of one size, are made by convolutions that `weave` makes one."""
    convs = [part.owner for part in op.parts if isinstance(part.owner, g.ConvOp)]
    are_free = all(conv.residual is None and conv.result.has_one_use() for conv in convs)
    if len(convs) < len(op.parts) or not are_free or len({g.shape_of(part) for part in op.parts}) > 1:
        return False
    return len(runs_of(convs, store, width)) == 1


def weave(op: g.InterleaveOp, store: WeightStore, width: int) -> None:
    """Replace interleaved parts by the map of phases that lie side by side; parts that are smaller than the first are
    made as large, or all stay as they are."""
    convs = [part.owner for part in op.parts]
    shapes = [g.shape_of(part) for part in op.parts]
    own, size = shapes[0][CHANNELS], shapes[0][2:]
    can_grow = all(isinstance(c, g.ConvOp) and c.residual is None and c.result.has_one_use() for c in convs)
    if len(set(shapes)) > 1 and not can_grow:
        return
    made, apart = list(op.parts), own
    if can_grow:
        runs = runs_of([c for c in convs if isinstance(c, g.ConvOp)], store, width)
        apart = 1 if len(runs) == 1 else own
        joined = [one_conv(run, size, store, near=apart == 1) for run in runs]
        Rewriter.insert_op([each for ops in joined for each in ops], InsertPoint.before(op))
        made = [ops[-1].results[0] for ops in joined]
    side = made[0]
    if len(made) > 1:
        concat = g.ConcatOp(made, CHANNELS)
        concat.location = op.location
        Rewriter.insert_op(concat, InsertPoint.before(op))
        side = concat.result
    whole = g.DepthToSpaceOp(side, tuple(op.factor), apart, g.shape_of(op.result))
    whole.location = op.location
    Rewriter.replace_op(op, whole)
    for each in convs if can_grow else ():
        assert isinstance(each, g.ConvOp)
        weights = [value.owner for value in each.operands[1:]]
        Rewriter.erase_op(each)
        erase_unread(weights)


def erase_unread(weights: Iterable[Operation | Block]) -> None:
    """Constants that nobody reads any more."""
    for weight in weights:
        if isinstance(weight, g.WeightOp) and not weight.result.uses and weight.parent is not None:
            Rewriter.erase_op(weight)


def weave_blocks(op: g.InterleaveOp, store: WeightStore) -> None:
    """Replace interleaved parts by those of one convolution for each block of phases, some rows and columns of them,
    that read the same window; where each phase has its own they stay."""
    convs = [part.owner for part in op.parts if isinstance(part.owner, g.ConvOp)]
    are_free = all(conv.residual is None and conv.result.has_one_use() for conv in convs)
    if len(convs) < len(op.parts) or not are_free or not all(is_alike(c, convs[0], store) for c in convs):
        return
    down, across = op.factor
    windows = [[window(convs[r * across + c]) for c in range(across)] for r in range(down)]
    rows, columns = (neighbours(lines) for lines in (windows, [*zip(*windows, strict=True)]))
    if len(rows) * len(columns) == len(convs) or convs[0].groups > 1:
        return
    (n, own, *size), ops = g.shape_of(convs[0].result), list[Operation]()

    def added(made: Operation) -> SSAValue:
        made.location = op.location
        ops.append(made)
        return made.results[0]

    bands = list[SSAValue]()
    for r in rows:
        blocks = list[SSAValue]()
        for c in columns:
            ops += one_conv([convs[i * across + j] for i in r for j in c], size, store, near=True)
            phases = added(g.ReshapeOp(ops[-1].results[0], (n, own, len(r), len(c), *size)))
            blocks.append(added(g.TransposeOp(phases, (0, 1, 4, 2, 5, 3))))
        bands.append(blocks[0] if len(blocks) == 1 else added(g.ConcatOp(blocks, 5)))
    whole = bands[0] if len(bands) == 1 else added(g.ConcatOp(bands, 3))
    shape, full = g.shape_of(op.result), (n, own, size[0] * down, size[1] * across)
    made = added(g.ReshapeOp(whole, full))
    made = made if shape == full else added(g.SliceOp(made, (0,) * 4, shape))
    Rewriter.insert_op(ops, InsertPoint.before(op))
    Rewriter.replace_op(op, [], [made])
    for each in convs:
        weights = [value.owner for value in each.operands[1:]]
        Rewriter.erase_op(each)
        erase_unread(weights)


def neighbours(lines: Sequence[Sequence[object]]) -> list[range]:
    """Neighbouring lines that are alike."""
    starts = [k for k, line in enumerate(lines) if k == 0 or [*line] != [*lines[k - 1]]]
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True)]


def runs_of(convs: Sequence[g.ConvOp], store: WeightStore, width: int) -> list[list[g.ConvOp]]:
    """Convolutions that are to be one, in the order of their phases: all of them, where that takes no more passes of a
    matrix unit that makes `width` channels at a time."""
    first = convs[0]
    if not all(is_alike(conv, first, store) for conv in convs):
        return [[conv] for conv in convs]
    runs: list[list[g.ConvOp]] = []
    for conv in convs:
        if runs and window(conv) == window(runs[-1][0]) and first.groups == 1:
            runs[-1].append(conv)
        else:
            runs.append([conv])
    if len({window(conv) for conv in convs}) == 1:
        return [list(convs)]
    taps = math.prod(cover([taps_of(conv, axis) for conv in convs]).count for axis in (0, 1))
    apart = sum(passes(run, width) * math.prod(run[0].kernel) for run in runs)
    return [list(convs)] if passes(convs, width) * taps <= apart else runs


def passes(convs: Sequence[g.ConvOp], width: int) -> int:
    """Of the matrix unit, for the outputs of all convolutions together."""
    groups = convs[0].groups
    return groups * ceil_div(sum(g.shape_of(conv.w)[0] for conv in convs) // groups, width)


def window(conv: g.ConvOp) -> tuple[Taps, Taps]:
    return taps_of(conv, 0), taps_of(conv, 1)


def is_alike(conv: g.ConvOp, other: g.ConvOp, store: WeightStore) -> bool:
    """The same but for weights in the store and windows, which lie side by side."""
    windows = ("pads", "dilations", "operandSegmentSizes")
    own, its = ({k: v for k, v in c.properties.items() if k not in windows} for c in (conv, other))
    weights = [(value.owner, g.tensor_of(value).element_type) for value in conv.operands[1:]]
    are_stored = all(isinstance(w, g.WeightOp) and w.key.data in store for w, _ in weights)
    kinds = [g.tensor_of(value).element_type for value in other.operands[1:]]
    has_same = [v is None for v in vectors(conv)] == [v is None for v in vectors(other)]
    is_plain = conv.strides == (1, 1) and conv.x is other.x and own == its
    return is_plain and are_stored and has_same and [kind for _, kind in weights] == kinds


def vectors(conv: g.ConvOp) -> tuple[SSAValue | None, SSAValue | None, SSAValue | None]:
    """What it has per output channel."""
    return conv.bias, conv.w_zero, conv.multiplier


def one_conv(
    convs: Sequence[g.ConvOp], size: Sequence[int], store: WeightStore, *, near: bool
) -> list[Operation]:
    """The convolution of these sizes that makes the outputs of all, those of one channel beside each other (`near`) or
    those of one convolution, behind its weights."""
    first, parts = convs[0], [[taps_of(conv, axis) for conv in convs] for axis in (0, 1)]
    rows, columns = (cover(each) for each in parts)
    ops: list[Operation] = []

    def joined(values: Sequence[SSAValue | None], build: partial[Array], shape: Extents) -> SSAValue | None:
        if values[0] is None:
            return None
        owner = values[0].owner
        assert isinstance(owner, g.WeightOp)
        new = g.WeightOp(
            store.add(owner.key.data + JOINED, build), g.tensor_type(g.tensor_of(values[0]).element_type, shape)
        )
        new.location = first.location
        mark_expanded(new, [value.owner for value in values if value is not None], "are kernels put together")
        ops.append(new)
        return new.result

    def keys(values: Sequence[SSAValue | None]) -> list[str]:
        return [v.owner.key.data for v in values if v is not None and isinstance(v.owner, g.WeightOp)]

    extents = g.shape_of(first.x)[2:]
    ends = [count + taps.last - extent for count, taps, extent in zip(size, (rows, columns), extents, strict=True)]
    pads = -rows.first, -columns.first, *ends
    if len(convs) == 1:
        grown = first.clone()
        grown.pads = pads
        kind = g.tensor_type(g.tensor_of(first.result).element_type, (*g.shape_of(first.result)[:2], *size))
        Rewriter.replace_value_with_new_type(grown.result, kind)
        return [grown]
    shape = g.shape_of(first.w)
    outputs = len(convs) * shape[0]
    places = [(a.place_in(rows), b.place_in(columns)) for a, b in zip(*parts, strict=True)]
    zeros = keys([conv.w_zero for conv in convs])
    kernel = (outputs, shape[1], rows.count, columns.count)
    build = partial(kernel_of, store, keys([conv.w for conv in convs]), zeros, places, kernel, near=near)
    w = joined([conv.w for conv in convs], build, kernel)
    own = [
        joined(same, partial(stacked, store, keys(same), near=near), (outputs,))
        for same in zip(*map(vectors, convs), strict=True)
    ]
    assert w is not None
    conv = g.ConvOp(
        first.x, w, own[0], w_zero=own[1], multiplier=own[2], strides=(1, 1),
        pads=pads, dilations=(rows.apart, columns.apart), groups=first.groups,
    )  # fmt: skip
    kept = {k: v for k, v in first.properties.items() if k not in conv.properties}
    conv.properties.update(kept)
    conv.attributes.update(first.attributes)
    conv.location = first.location
    return [*ops, conv]


def stacked(store: WeightStore, keys: Sequence[str], *, near: bool) -> Array:
    """The vectors of several convolutions."""
    return np.ascontiguousarray(np.stack([store[key] for key in keys], axis=int(near)).reshape(-1))


def kernel_of(
    store: WeightStore, keys: Sequence[str], zeros: Sequence[str], places: Sequence[tuple[slice, slice]],
    shape: Extents, *, near: bool,
) -> Array:  # fmt: skip
    """The kernels of several convolutions, each with its taps in its place and zeros around them."""
    own = [store[key] for key in keys]
    made = np.zeros((len(keys), shape[0] // len(keys), *shape[1:]), own[0].dtype)
    for k, (kernel, place) in enumerate(zip(own, places, strict=True)):
        if zeros:
            made[k] = store[zeros[k]].reshape(-1, 1, 1, 1)
        made[k][(..., *place)] = kernel
    return np.ascontiguousarray((made.swapaxes(0, 1) if near else made).reshape(shape))
