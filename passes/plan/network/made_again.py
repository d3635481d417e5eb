# Tests: test/passes/plan/network/test_made_again.py
"""Maps that are read again behind something that needs all of them, and are made again there instead of stored.

Squeeze and excite is such a case: a map is pooled, and multiplied with what comes of that.  Where it does not fit SRAM
until then, to make it twice from a smaller map moves fewer bytes than to write and read it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.module import FORM
from frustum.dialects.tile import TensorView, Whole
from frustum.passes.analysis.layer import RANK, can_join, layer_of
from frustum.passes.analysis.layer.nest import chosen_form, formed
from frustum.passes.analysis.module import readers_in_network, value_bytes
from frustum.passes.analysis.unit_layers import same_form
from frustum.passes.plan.model import AGAIN_AT_MOST, HELD_FAR_AT_LEAST, MOST_RECOMPUTED
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.layer_order import COLUMNS, NEARBY, ROWS, LayerNode, LayerOrder


@dataclass(frozen=True)
class Remade:
    """Copies of layers, in order, and the map that the last of them makes again, with the map itself."""

    copies: tuple[Operation, ...]
    original: SSAValue

    def undo(self) -> None:
        """The network as it was."""
        self.copies[-1].results[0].replace_all_uses_with(self.original)
        for op in reversed(self.copies):
            op.detach()
            op.erase()


def make_again(order: LayerOrder, units: Sequence[UnitChoice]) -> list[Remade]:
    """Let readers behind a sum over all of a map that goes through DRAM read a copy of it that is made from a smaller
    one; what was done, in order."""
    found = []
    most_macs = (MOST_RECOMPUTED - 1) * sum(node.layer.macs for node in order.nodes if node.layer is not None)
    for unit in units:
        in_sram = {each.map for each in unit.kept}
        for k in range(unit.first, unit.stop):
            map_ = order.maps[k]
            later = [user for user in map_.users if user >= unit.stop]
            if map_.is_output or map_.needs_dram or k in in_sram or not later:
                continue
            readers = [user for user in behind_sums(order, k) if user >= unit.stop]
            if not readers:
                continue
            layers = chain(order, k, 2 * AGAIN_AT_MOST * map_.bytes, unit.first)
            macs = sum(order.layer(each).macs for each in layers)
            if layers and macs <= most_macs:
                most_macs -= macs
                found.append(remade(order, layers, readers))
    return found


def behind_sums(order: LayerOrder, k: int) -> list[int]:
    """The readers of a map that also need something for which all of its rows or columns must be there."""
    plain, summed = {k}, set[int]()
    for number in range(k + 1, len(order.nodes)):
        node = order.nodes[number]
        read = {each.map for each in node.reads}
        if read & summed or (read & plain and needs_all(node, plain)):
            summed.add(number)
        elif read & plain:
            plain.add(number)
    return [user for user in order.maps[k].users if user in summed and not needs_all(order.nodes[user], {k})]


def needs_all(node: LayerNode, maps: Container[int]) -> bool:
    """Whether it reads all rows or columns of one of these maps at once."""
    reads = [read for read in node.reads if read.map in maps]
    axes = [(read.rows, read.dims[ROWS]) for read in reads] + [
        (read.columns, read.dims[COLUMNS]) for read in reads
    ]
    return node.layer is None or any(isinstance(axis, Whole) and size > 1 for axis, size in axes)


def chain(order: LayerOrder, k: int, most_bytes: float, first: int) -> list[int]:
    """The layers that make a map from one smaller map, reading the fewest bytes, in order; none where that is more
    than `most_bytes`.  Maps of layers from `first` on are not in DRAM by themselves: they would be written, too."""
    best: list[int] = []
    taken: list[int] = []
    needed, weights = {k}, 0
    while True:
        last = max(needed)
        node = order.nodes[last] if last < len(order.nodes) else None
        if (
            node is None
            or node.layer is None
            or node.is_concat
            or node.batched_weights
            or not can_join(node.op)
        ):
            return best
        if any(not read.joins and order.maps[read.map].producer is not None for read in node.reads):
            return best
        taken.append(last)
        weights += node.weight_bytes + node.vector_bytes
        needed.remove(last)
        needed |= {read.map for read in node.reads if not order.maps[read.map].is_constant}
        if len(needed) > len(order.nodes) or not needed:
            return best
        if len(needed) == 1:
            source = order.maps[next(iter(needed))]
            is_made_here = source.producer is not None and source.producer >= first
            cost = weights + source.bytes * (2 if is_made_here else 1)
            if cost <= most_bytes:
                best, most_bytes = sorted(taken), cost
    return best


def remade(order: LayerOrder, layers: Sequence[int], readers: Sequence[int]) -> Remade:
    """Copy layers in front of the first of these readers of what the last makes, and let all of them read the copy."""
    ops = [order.nodes[k].op for k in layers]
    original = ops[-1].results[0]
    own = {order.nodes[k].op for k in readers}
    block = original.owner.parent
    assert block is not None
    before = next(op for op in block.ops if op in own)
    mapping: dict[SSAValue, SSAValue] = {}
    copies = []
    for op in ops:
        copy = op.clone(mapping)
        copy.location = op.location
        mapping[op.results[0]] = copy.results[0]
        block.insert_op_before(copy, before)
        copies.append(copy)
    original.replace_uses_with_if(copies[-1].results[0], lambda use: use.operation in own)
    return Remade(tuple(copies), original)


@dataclass(frozen=True)
class HeldInput:
    """A copy of an input of the network, which can stay in SRAM, and the input."""

    copy: g.UnaryOp
    original: SSAValue

    def undo(self) -> None:
        """The network as it was."""
        self.copy.result.replace_all_uses_with(self.original)
        self.copy.detach()
        self.copy.erase()


def hold_inputs(
    order: LayerOrder, units: Sequence[UnitChoice], sram_bytes: int, least_bytes: float
) -> list[HeldInput]:
    """Let all readers of an input of the network that several units load read a copy of it, which may stay in SRAM,
    where it takes fewer than `sram_bytes` and saves `least_bytes` at least; what was done."""
    unit_of = {order.nodes[k].op: unit for unit in units for k in range(unit.first, unit.stop)}
    layers = {node.op for node in order.nodes if node.layer is not None}
    inputs = [
        x
        for op in unit_of
        for x in op.operands
        if is_input(x)
    ]
    found = []
    for x in dict.fromkeys(inputs):
        users = dict.fromkeys(readers_in_network(x))
        form = form_of(x, users) if users.keys() <= layers else None
        if form is None or value_bytes(x) >= sram_bytes:
            continue
        if (len({unit_of[user] for user in users}) - 1) * value_bytes(x) >= least_bytes:
            found.append(held(x, form))
    return found


def is_input(x: SSAValue) -> bool:
    """Whether a value is an input of the network, in its shape or in another one."""
    while isinstance(x.owner, g.ReshapeOp):
        x = x.owner.x
    return not isinstance(x.owner, Operation)


def form_of(x: SSAValue, users: Collection[Operation]) -> Extents | None:
    """The loop that each axis of an input is part of in all layers that read it; None where these differ, and of
    integers, of which a copy would need their scale."""
    if g.is_integer(x):
        return None
    shape = g.shape_of(x)
    last = (COLUMNS,) * (len(shape) - 1) + (1,)
    reads = [m for user in users for m in layer_of(user).maps if user.operands[m.index] is x]
    for form in dict.fromkeys([*(chosen_form(user) for user in users), last, tuple(range(len(shape)))]):
        if not form or len(form) != len(shape) or max(form) >= RANK:
            continue
        dims, strides = formed(shape, form)
        if reads and all(same_form(m.dims, m.view, dims, TensorView(0, strides)) for m in reads):
            return form
    return None


def hold_far_inputs(order: LayerOrder, most_bytes: float, between_bytes: float) -> list[HeldInput]:
    """Let all readers of an input of the network read a copy of it where it takes at most `most_bytes`, layers between
    the first and the last of them have weights of more than `between_bytes`, and it is a good part of what must be
    moved; what was done."""
    least = HELD_FAR_AT_LEAST * order.compulsory_bytes
    readers: dict[SSAValue, list[int]] = {}
    for k, node in enumerate(order.nodes):
        for x in node.op.operands:
            if not isinstance(x.owner, Operation) and value_bytes(x) <= most_bytes:
                readers.setdefault(x, []).append(k)
    found = []
    for x, users in readers.items():
        between = sum(node.weight_bytes for node in order.nodes[users[0] : users[-1]])
        is_far = users[-1] - users[0] > NEARBY and between > between_bytes
        if not is_far or (len(users) - 1) * value_bytes(x) < least:
            continue
        ops = dict.fromkeys(use.operation for use in x.uses)
        own = {order.nodes[k].op for k in users if order.nodes[k].layer is not None}
        form = form_of(x, ops) if ops.keys() <= own else None
        if form is not None:
            found.append(held(x, form))
    return found


def held(original: SSAValue, form: Extents) -> HeldInput:
    """Put a copy behind an input of the network, whose axes are part of these loops."""
    copy = g.UnaryOp(g.ActAttr.of("identity"), original)
    block = original.owner if isinstance(original.owner, Block) else original.owner.parent
    assert block is not None
    first = next(op for op in block.ops if any(value is original for value in op.operands))
    copy.location = first.location
    if form != tuple(range(RANK)):
        copy.attributes[FORM] = DenseArrayBase.from_list(i64, form)
    block.insert_op_before(copy, first)
    original.replace_uses_with_if(copy.result, lambda use: use.operation is not copy)
    return HeldInput(copy, original)
