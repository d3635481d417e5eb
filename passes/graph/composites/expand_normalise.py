"""Normalisations of more elements than a machine holds as the plain layers that they consist of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.module import TARGET
from frustum.dialects.target import Target
from frustum.passes.analysis.module import element_bytes, sole_reader, target_of
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.expand_attention import without_pieces
from frustum.passes.graph.composites.plain_layers import PlainLayers, is_alone
from frustum.passes.plan.network.trials.plane_norms import PlaneNorm, is_of_channels, is_of_planes
from frustum.passes.weights import store_of

WORK_COPIES = 4
"""A part whose mean and variance are found by themselves is at most so small a share of a core's memory: it comes while
another is read, and waits for what reads it next."""
PARTS_IN_SRAM, PLANES_IN_SRAM = 256, 32
"""Parts, and planes that are one, that a cluster's SRAM holds at least: others come or wait there, and as much of a
group stays as may.  (Eight groups of 3.7 MB in f16 on `edge` move 1.5 times what they must with 256 parts, 2.0 times
with 128, 7.5 times with 32.)"""
CORES_OF_ROW, LARGE_ROW = 4, 64
"""Rows or groups that leave so many cores to each, and take a core's vector unit so many cycles for a pass, are plain
layers, which all cores share: 1 to 4 groups of 8,000 to 65,536 elements between two layers of one axis on `default`
take 0.26 to 0.65 of the cycles, 8 between convolutions of 3x3 take 1.06 to 1.2."""
PARTS_OF_CLUSTER = 8
"""Parts of a turn that a cluster has at most: a tile is one turn of all clusters, and a softmax of two rows of 900,000
in f16 on `default` reads them once so, not with one turn of 30 parts a cluster."""
PARTS_OF_LARGE = 4
"""The same of a group that leaves units little room beside it (`is_alone`): a tile, of which four or six copies have to
fit there, is a 64th of SRAM."""
SMALLER_PARTS = 8
"""Parts for which clusters have equal numbers are at least that part of the longest that there are."""


@dataclass(frozen=True)
class ExpandNormalise(ModulePass):
    """Write `fgraph.normalise` whose rows or groups have no pieces that fit the machine as sums and element by element
    layers.

    Also where there are far fewer rows or groups than cores: all cores share the plain layers.

    1. Elements that follow each other are cut into equal parts, planes of channels where a core holds one, rows of
       planes where other layers read the result; each part's mean and variance are found by themselves, which reads
       them once.
    2. The mean is the mean of the parts' means; the variance is the mean of their variances, plus that of their means.
    3. Then every element is scaled and shifted, which reads them again.
    4. Rows or groups that fit the SRAM of all clusters, and not of one, are normalised one after another, if not all of
       them do: they stay there, each cluster holding its share, send each other the parts' means and variances, and
       are read from DRAM once.
    5. A function of what a layer normalises goes into it, where there is a row or group for each core.

    All between the operand and the result is f32, as it is inside a core that holds a whole row: squares of f16 are
    infinite from 256 on, and means of large numbers that lie close together need more digits than their deviation.

    Before: any normalisation, in the types of the device.  After: where the module has a target, only such as fits it;
    what is new is simplified with all around it.
    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """

    name = "frustum-graph-expand-normalise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if TARGET not in op.attributes:
            return
        target, written = target_of(op), without_pieces(op, g.NormaliseOp)
        found = [each for each in op.walk() if isinstance(each, g.NormaliseOp)]
        written += [each for each in found if each not in written and leaves_cores_idle(each, target)]
        for each in written:
            _NormExpansion(each, store_of(op), target=target, most=most_of_part(target, element_bytes(each.x))).run()
        if written:
            Canonicalize().apply(ctx, op)
        for each in [o for o in op.walk() if isinstance(o, g.NormaliseOp)]:
            take_activation(each, target)


def most_of_part(target: Target, size: int, copies: int = WORK_COPIES, parts: int = PARTS_IN_SRAM) -> int:
    """Elements of so many bytes whose statistics are found at a time, so that a core holds so many copies and a cluster
    so many parts."""
    core, cluster = target.core.nram.capacity_bytes, target.cluster.sram.capacity_bytes
    return max(1, min(core // copies, cluster // parts) // size)


def rows_of(op: g.NormaliseOp) -> tuple[int, int]:
    """Rows or groups, and elements of each."""
    shape = g.shape_of(op.x)
    summed = math.prod(shape[axis] for axis in op.axes) // op.groups
    return math.prod(shape) // summed, summed


def leaves_cores_idle(op: g.NormaliseOp, target: Target) -> bool:
    """Whether there are far fewer rows or groups than cores, and each of them is much work."""
    (rows, summed), cores = rows_of(op), target.chip.clusters * target.cluster.cores
    return rows * CORES_OF_ROW <= cores and summed >= LARGE_ROW * target.core.vector.lanes


def take_activation(op: g.NormaliseOp, target: Target) -> None:
    """Let a normalisation do the function that alone reads it, where there is a row or group for each core: of fewer
    all cores share what is element by element."""
    user = sole_reader(op.result)
    if rows_of(op)[0] < target.chip.clusters * target.cluster.cores or op.act is not None:
        return
    if isinstance(user, g.UnaryOp) and user.scales is None:
        op.act = user.act
        Rewriter.replace_op(user, [], [op.result])


def parts_of(total: int, most: int, clusters: int, parts: int | None = PARTS_OF_CLUSTER) -> tuple[int, int, int]:
    """So many elements as turns, parts of each, and equal elements of a part, at most `most`.  Each cluster has as many
    parts of a turn, `parts` at most, where there are such parts that are not much smaller; all parts are one turn where
    that is None, or one cluster has all."""
    longest = longest_part(total, most)
    for part in range(longest, longest // SMALLER_PARTS, -1):
        count = total // part
        if clusters == 1 or total % part or count % clusters:
            continue
        share = longest_part(count // clusters, parts or count)
        return count // (share * clusters), share * clusters, part
    return 1, total // longest, longest


def longest_part(total: int, most: int) -> int:
    """Of so many elements in equal parts."""
    return next(n for n in range(min(most, total), 0, -1) if total % n == 0)


@dataclass
class _NormExpansion(PlainLayers):
    """The layers of one normalisation as they are made; `most`: elements of a part."""

    op: g.NormaliseOp
    target: Target = field(kw_only=True)
    most: int = field(kw_only=True)

    def run(self) -> None:
        if self.is_of_planes():
            x = self.of_planes()
        elif is_of_planes(self.op) and self.is_read_here():
            x = self.of_planes(is_by_rows=True)
        else:
            x = self.of_others()
        Rewriter.replace_op(self.op, self.made, [self.shaped(x, g.shape_of(self.op.x))])

    def of_others(self) -> SSAValue:
        """Rows or groups of elements that follow each other, or along any axes."""
        op, shape = self.op, g.shape_of(self.op.x)
        operands = [value for value in (op.scale, op.shift) if value is not None]
        if op.axes != tuple(range(op.axes[0], len(shape))):
            x = self.of_axes()
            x = self.scaled(self.shaped(x, shape) if operands else x, operands)
        else:
            split = self.split_of(operands)
            x = self.shaped(op.x, split)
            if all(self.is_seen(value, split) for value in operands):
                x = self.of_rows(x, split, operands)
            else:
                x = self.scaled(self.shaped(self.of_parts(x), shape), operands)
        return x if op.act is None else self.add(g.UnaryOp(op.act, x))

    def scaled(self, x: SSAValue, operands: Sequence[SSAValue]) -> SSAValue:
        """With scale and shift, in the operand's type again."""
        for operand, kind in zip(operands, ("mul", "add"), strict=False):
            x = self.binary(kind, x, operand)
        return self.narrowed(x)

    def narrowed(self, x: SSAValue) -> SSAValue:
        """In the operand's type again."""
        last = x.owner
        assert isinstance(last, g.BinaryOp)
        element = g.tensor_of(self.op.x).element_type
        Rewriter.replace_value_with_new_type(last.result, g.tensor_type(element, g.shape_of(last.result)))
        return last.result

    def is_of_planes(self) -> bool:
        """Channels of images, all of each, whose planes are parts by themselves; on several clusters, which hold the
        map.  On one, a unit reads a group at a time, and once: units of several layers are not cut by channels.
        (32 groups of 46 KB in f16 on `edge` move 1.00 times what they must so, 1.93 times by planes; behind a
        convolution 1.6 to 2.6 times instead of 2.8 to 2.9; 6 of 83 KB between activations 1.06 instead of 1.00.)"""
        if self.target.chip.clusters == 1:
            return False
        most = most_of_part(self.target, element_bytes(self.op.x), parts=PLANES_IN_SRAM)
        return is_of_planes(self.op) and math.prod(g.shape_of(self.op.x)[2:]) <= most

    def is_read_here(self) -> bool:
        """Whether other layers read the result, which then need not be whole."""
        return not any(isinstance(use.operation, g.OutputOp) for use in self.op.result.uses)

    def of_planes(self, *, is_by_rows: bool = False) -> SSAValue:
        """Images of channels, of which groups are normalised: the map is seen as those around it see it.  What is known
        of channels is there before the first element is changed: the map is read once more, no oftener."""
        norm = replace(self.by_planes, is_by_rows=is_by_rows)
        norm.find()
        return norm.normalised()

    @property
    def by_planes(self) -> PlaneNorm:
        """The same by what is known of channels, its layers put among these."""
        return PlaneNorm(self.op, self.add, self.constant)

    def of_axes(self) -> SSAValue:
        """Along any axes: x is read for the mean, for the variance, and for the result."""
        op, (images, *rest) = self.op, g.shape_of(self.op.x)
        x, axes = op.x, op.axes
        if op.groups > 1:
            x = self.shaped(x, (images, op.groups, rest[0] // op.groups, *rest[1:]))
            axes = tuple(axis + 1 for axis in axes)
        if not self.op.rms:
            x = self.binary("sub", x, self.mean(x, *axes))
        return self.binary("div", x, self.by_planes.root(self.mean(self.square(x), *axes)))

    def split_of(self, operands: Sequence[SSAValue]) -> Extents:
        """What is normalised together follows each other: [rows or groups, channels of one, parts, elements]."""
        op, shape = self.op, g.shape_of(self.op.x)
        first = op.axes[0]
        is_by_channels = op.groups > 1 or (first == 1 and any(is_of_channels(value, self.op.x) for value in operands))
        channels = shape[1] // op.groups if is_by_channels else 1
        rows = shape[0] * op.groups if op.groups > 1 else math.prod(shape[:first])
        clusters, total = self.target.chip.clusters, math.prod(shape) // (rows * channels)
        is_large = is_alone(total * channels * element_bytes(op.x), self.target)
        of_turn = PARTS_OF_LARGE if is_large else PARTS_OF_CLUSTER if channels == 1 else None
        turns, parts, part = parts_of(total, self.most, clusters, of_turn)
        return rows, channels * turns, parts, part

    def of_rows(self, x: SSAValue, split: Extents, operands: Sequence[SSAValue]) -> SSAValue:
        """Rows or groups [B, channels, parts, elements], with scale and shift."""

        def normalised(own: SSAValue, start: int, stop: int) -> SSAValue:
            return self.scaled(self.of_parts(own), [self.seen(value, split, start, stop) for value in operands])

        return self.in_turn(x, self.target, normalised)

    def of_parts(self, x: SSAValue) -> SSAValue:
        """Rows or groups [B, channels, parts, elements], without scale and shift."""
        if self.op.rms:
            return self.binary("mul", x, self.by_planes.inverse(self.mean(self.mean(self.square(x), 3), 1, 2)))
        means = self.mean(x, 3)
        mean, inside = self.mean(means, 1, 2), self.mean(self.variance(x, 3), 1, 2)
        between = self.mean(self.square(self.binary("sub", means, mean)), 1, 2)
        factor = self.by_planes.inverse(self.binary("add", inside, between))
        return self.binary("mul", self.binary("sub", x, mean), factor)

    def is_seen(self, value: SSAValue, split: Extents) -> bool:
        """A scale or shift in the shape of the parts: constants of channels, or one for each element of a row."""
        is_constant = is_of_channels(value, self.op.x) and isinstance(value.owner, g.WeightOp)
        return self.is_of_rows(value) or (is_constant and self.channels_in(split) is not None)

    def channels_in(self, split: Extents) -> Extents | None:
        """How all channels of all images are seen: as rows, or as those of rows, each perhaps several times, one for
        each turn; None where they are not."""
        images, channels, *_ = g.shape_of(self.op.x)
        return next((each for each in ((split[0], 1), split[:2]) if math.prod(each) % (images * channels) == 0), None)

    def seen(self, value: SSAValue, split: Extents, start: int, stop: int) -> SSAValue:
        """A scale or shift as rows [start, stop) need it."""
        if self.is_of_rows(value):
            return self.shaped(value, (1, *split[1:]))
        assert isinstance(value.owner, g.WeightOp)
        seen = self.channels_in(split) or ()
        array = np.tile(self.store[value.owner.key.data].ravel(), g.shape_of(self.op.x)[0])
        own = np.repeat(array, math.prod(seen) // len(array)).reshape(*seen, 1, 1)[start:stop]
        key = self.store.add(value.owner.key.data, own)
        return self.add(g.WeightOp(key, g.tensor_type(g.tensor_of(value).element_type, own.shape)))

    def is_of_rows(self, value: SSAValue) -> bool:
        """One element for each of a row."""
        return self.op.groups == 1 and g.shape_of(value) == g.shape_of(self.op.x)[self.op.axes[0] :]

    def mean(self, x: SSAValue, *axes: int) -> SSAValue:
        return self.reduced("mean", x, *axes)

    def variance(self, x: SSAValue, *axes: int) -> SSAValue:
        return self.reduced("variance", x, *axes)

    def square(self, x: SSAValue) -> SSAValue:
        return self.binary("mul", x, x)
