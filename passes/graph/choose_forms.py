"""The pass that chooses which axes of a tensor are images, channels, rows and columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, ceil_div
from frustum.dialects.graph.views import CHANNELS_LAST
from frustum.dialects.module import FORM, TARGET
from frustum.dialects.target import Target
from frustum.passes.analysis.layer import RANK, is_side_by_side
from frustum.passes.analysis.layer.nest import chosen_form
from frustum.passes.analysis.module import target_of, value_bytes

IMAGES, CHANNELS, ROWS, COLUMNS = range(RANK)
Elementwise: TypeAlias = g.UnaryOp | g.BinaryOp | g.QuantizeOp | g.DequantizeOp
Flexible: TypeAlias = Elementwise | g.SoftmaxOp | g.NormaliseOp | g.ReduceOp | g.MatmulOp
FIXED = g.ConvOp | g.PoolOp | g.ResizeOp | g.LrnOp | g.ShuffleOp | g.PickOp | g.InterleaveOp | g.PhasesOp | g.BorderOp


@dataclass(frozen=True)
class ChooseForms(ModulePass):
    """See tensors of any rank as four dimensions so that layers beside each other see them alike.

    Before: an element by element layer sees its tensors with neighbouring axes merged in their order, a product sees
    its last axis as channels.  After: layers that pass tensors of one rank to each other have `frustum.form`, which
    says of each axis the loop (images, channels, rows, columns) that it is part of, wherever most of what stands
    around them has its channels last.

    1. Layers are flexible if they can be seen in several ways: element by element, sums and softmax along axes,
       products.  Those that share a tensor of the same rank are decided on together.
    2. Convolutions and windows want their maps as they are; products, and transpositions that put channels last, want
       the last axis as channels.  The larger maps decide; without either, sums along the last axis alone do.
    3. The other axes are all columns, or images and columns, or images, rows and columns: the first that every layer
       can be written in.
    4. Products beside attention see its images, apart from others of their group that would read weights more often.
    5. Some images of a tensor are seen as their readers see them, where each axis is a loop of its own.

    Source: docs/ir-graph.md, "Forms"; docs/techniques/machine.md, "Matrix unit".
    """

    name = "frustum-graph-choose-forms"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op) if TARGET in op.attributes else None
        for network in [each for each in op.walk() if isinstance(each, g.NetworkOp)]:
            groups = [part for group in groups_of(network) for part in parted(group, target)]
            for group in groups:
                form = form_for(group, target)
                if form is None:
                    continue
                for layer in group:
                    if not is_usual(layer, form):
                        layer.attributes[FORM] = DenseArrayBase.from_list(i64, form)
            for pick in [each for each in network.walk() if isinstance(each, g.PickOp) and is_of_images(each)]:
                form = form_of_readers(pick)
                if form is not None:
                    pick.attributes[FORM] = DenseArrayBase.from_list(i64, form)


def is_of_images(op: g.PickOp) -> bool:
    """Some of the first axis with all that is in them: in any form a run of elements."""
    return g.shape_of(op.x)[1:] == g.shape_of(op.result)[1:] and op.steps[0] == 1


def form_of_readers(op: g.PickOp) -> Extents | None:
    """The form in which all readers of a pick see it, where each axis is a loop of its own."""
    found = {chosen_form(use.operation) for use in op.result.uses}
    form = found.pop() if len(found) == 1 else None
    return form if form is not None and sorted(form) == list(range(RANK)) else None


def tensors_of(op: Flexible) -> Iterator[SSAValue]:
    """The maps of the rank of its largest one that it reads and makes."""
    rank = len(g.shape_of(op.operands[0]))
    if isinstance(op, g.MatmulOp):
        operands: Sequence[SSAValue | None] = (op.a, op.residual)
    else:
        operands = op.operands
        rank = max(len(g.shape_of(value)) for value in operands)
    for value in (*operands, op.results[0]):
        if value is not None and not isinstance(value.owner, g.WeightOp) and len(g.shape_of(value)) == rank:
            yield value


def groups_of(network: g.NetworkOp) -> list[list[Flexible]]:
    """Flexible layers that share tensors, in the order of the network."""
    known: dict[SSAValue, list[Flexible]] = {}
    groups: dict[int, list[Flexible]] = {}
    for op in network.walk():
        if not isinstance(op, Flexible) or not is_flexible(op):
            continue
        joined: list[Flexible] = [op]
        tensors = list(tensors_of(op))
        for value in tensors:
            other = known.get(value)
            if other is not None and other is not joined:
                small, large = sorted((joined, other), key=len)
                large += small
                for each in small:
                    known.update(dict.fromkeys(tensors_of(each), large))
                groups.pop(id(small), None)
                joined = large
        known.update(dict.fromkeys(tensors, joined))
        groups[id(joined)] = joined
    return list(groups.values())


def is_flexible(op: Flexible) -> bool:
    """A layer of tensors of two axes or more; of products those whose channels are the last axis."""
    if isinstance(op, g.MatmulOp):
        return (
            not op.trans_a
            and len(g.shape_of(op.a)) >= 2
            and len(g.shape_of(op.a)) == len(g.shape_of(op.result))
        )
    return max(len(g.shape_of(value)) for value in op.operands) >= 2 and not is_grouped(op)


def is_grouped(op: Operation) -> bool:
    """Normalised by groups of channels: of the second axis."""
    return isinstance(op, g.NormaliseOp) and op.groups > 1


def is_batched(op: g.MatmulOp) -> bool:
    """A product of which every entry has weights of its own."""
    return math.prod(g.shape_of(op.b)[:-2]) > 1


def form_for(group: Sequence[Flexible], target: Target | None) -> Extents | None:
    """The form of all layers of a group; None where they are best seen as they are."""
    last, plain, is_turned, is_attended = 0, 0, False, False
    for value in dict.fromkeys(value for op in group for value in tensors_of(op)):
        users = [use.operation for use in value.uses]
        for op in (value.owner, *users):
            if isinstance(op, g.MatmulOp):
                last += value_bytes(value)
            elif isinstance(op, g.AttentionOp) and not op.is_channels_first:
                last, is_attended = last + value_bytes(value), True
            elif isinstance(op, g.TurnOp):
                is_last = (op.perm == CHANNELS_LAST) == (value.owner is op)
                last, plain = (
                    last + is_last * value_bytes(value),
                    plain + (not is_last) * value_bytes(value),
                )
                is_turned |= is_last
            elif isinstance(op, g.PickOp) and is_of_images(op):
                pass
            elif isinstance(op, FIXED) or is_grouped(op) or (isinstance(op, g.ConcatOp) and is_side_by_side(op)):
                plain += value_bytes(value)
    if last == plain == 0 and any(sums_last(op) for op in group):
        last = 1
    if last <= plain:
        return as_it_is(group)
    rank = max(len(g.shape_of(value)) for value in tensors_of(group[0]))
    is_attended = is_attended and (target is None or may_go_by_images(group, target))
    found = forms(rank, group, is_turned, is_attended)
    return next((form for form in found if all(fits(op, form) for op in group)), None)


def as_it_is(group: Sequence[Flexible]) -> Extents | None:
    """Each axis a loop of its own, where a sum or norm would merge axes that what stands around it sees apart; else
    None."""
    form = tuple(range(RANK))
    sums = [op for op in group if isinstance(op, g.ReduceOp | g.NormaliseOp)]
    is_plain = all(len(g.shape_of(value)) == RANK for op in group for value in tensors_of(op))
    is_plain = is_plain and not any(isinstance(op, g.MatmulOp) for op in group)  # whose channels are the last axis
    is_plain = is_plain and not any(isinstance(op, g.NormaliseOp) and 0 in op.axes for op in group)  # pieces are images
    return form if sums and is_plain and all(fits(op, form) for op in group) else None


def parted(group: list[Flexible], target: Target | None) -> list[list[Flexible]]:
    """A group, or apart from it the products that make what attention reads, or read what it makes, and what those
    alone read: where all together read weights more often if each image is by itself, and these do not."""
    around: set[Operation] = {op for op in group if isinstance(op, g.MatmulOp) and is_beside_attention(op)}
    if target is None or not around or may_go_by_images(group, target):
        return [group]
    for op in reversed(group):
        if {use.operation for use in op.results[0].uses} <= around:
            around.add(op)
    own, rest = ([op for op in group if (op in around) == inside] for inside in (True, False))
    return [own, rest] if rest and may_go_by_images(own, target) else [group]


def is_beside_attention(op: g.MatmulOp) -> bool:
    """Whether attention made what a product reads, or reads what it makes."""
    values = {op.a.owner, *(use.operation for use in op.result.uses)}
    return any(isinstance(each, g.AttentionOp) and not each.is_channels_first for each in values)


def may_go_by_images(group: Sequence[Flexible], target: Target) -> bool:
    """Whether products whose images are loops of their own read their weights no more often for that: each cluster
    has one image, or all of its own at a time, or the weights stay."""
    products = [op for op in group if isinstance(op, g.MatmulOp)]
    images = max((math.prod(g.shape_of(op.a)[:-2]) for op in products), default=1)
    weights = max((value_bytes(op.b) for op in products), default=0)
    share = ceil_div(images, target.chip.clusters)
    maps = max((value_bytes(op.result) for op in products), default=0) // images * share
    return share == 1 or 2 * min(weights, maps) <= target.cluster.sram.capacity_bytes


def sums_last(op: Flexible) -> bool:
    """A sum or softmax along the last axis alone."""
    match op:
        case g.SoftmaxOp():
            return op.axis == len(g.shape_of(op.x)) - 1
        case g.ReduceOp() | g.NormaliseOp():
            return op.axes == (len(g.shape_of(op.x)) - 1,)
        case _:
            return False


def forms(rank: int, group: Sequence[Flexible], is_turned: bool, is_attended: bool) -> Iterator[Extents]:
    """Ways to see a tensor whose last axis is the channels, the best first; rows that attention reads or makes are of
    one image each."""
    positions = (COLUMNS,) * (rank - 1)
    batched = (IMAGES,) * (rank - 2) + (COLUMNS,) * (rank > 1)
    map_ = (IMAGES,) * (rank - 3) + (ROWS, COLUMNS) if rank > 3 else batched
    products = [op for op in group if isinstance(op, g.MatmulOp)]
    found = [positions, map_, batched] if products and not is_turned else [map_, batched, positions]
    if is_attended or any(is_batched(op) for op in products):
        found = [batched]
    yield from ((*each, CHANNELS) for each in dict.fromkeys(found))


def fits(op: Flexible, form: Extents) -> bool:
    """Whether a layer can be written in a form: of the axes that are one loop an operand has all or none, and a sum
    is along all of them or none."""
    rank = len(form)
    shapes = [(1,) * (rank - len(s)) + s for s in map(g.shape_of, (op.results[0], *read_by(op)))]
    whole = tuple(map(max, zip(*shapes, strict=True))) if isinstance(op, g.BinaryOp | g.NormaliseOp) else shapes[-1]
    summed = (op.axis,) if isinstance(op, g.SoftmaxOp) else getattr(op, "axes", ())
    for loop in range(RANK):
        axes = [axis for axis in range(rank) if form[axis] == loop and (whole[axis] > 1 or axis in summed)]
        match op:
            case g.SoftmaxOp() if op.axis in axes:
                if axes != [op.axis]:
                    return False
            case g.ReduceOp():
                is_both = rank - 1 in op.axes and len(op.axes) > 1
                if is_both or {axis in op.axes for axis in axes} == {True, False}:
                    return False
            case g.NormaliseOp() if {axis in op.axes for axis in axes} == {True, False}:
                return False
            case g.BinaryOp() | g.NormaliseOp():
                if any({shape[axis] == 1 for axis in axes} == {True, False} for shape in shapes):
                    return False
            case _:
                pass
    return True


def read_by(op: Flexible) -> Sequence[SSAValue]:
    return (op.a,) if isinstance(op, g.MatmulOp) else tuple(op.operands)


def is_usual(op: Flexible, form: Extents) -> bool:
    """A product that is seen so in any case."""
    if not isinstance(op, g.MatmulOp):
        return False
    return is_batched(op) or set(form[:-1]) <= {COLUMNS}
