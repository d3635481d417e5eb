# Tests: test/passes/plan/network/test_hidden_chunks.py
"""Products whose hidden map goes through DRAM, made and read again some channels at a time.

An MLP makes a hidden map, wider than what comes in and goes out, and sums it up again.  Where the hidden map does not
fit SRAM beside both, some channels of it can be made, and their share of the sums added to the result, before the next
ones: it is then never whole, and the weights of both products are read once.  The result of each share takes the place
of the one before (`CutSearch.beside`), in its element type.

Source: as `passes/plan/rounds.py`, over two products: what both read and make stays, and both weights stream (Snowcat
and Orojenesis, ISCA 2024, call it fused tiling over the shared rank).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import aligned, ceil_div, replaced
from frustum.dialects.module import FORM, HELD_BYTES, HELD_RUN, JOINT, PART_OF_SUM
from frustum.passes.analysis.layer import layer_of
from frustum.passes.analysis.module import element_bytes, named_part, node_name, sole_reader, value_bytes
from frustum.passes.dequantised import Dequantised, follow, joined
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of, store_of

WIDE = 4
"""Bytes of f32."""
Range: TypeAlias = tuple[int, int]
"""Positions [first, stop)."""


@dataclass(frozen=True)
class Hidden:
    """A product that sums up a map that others make element by element of products: these, in order, and it."""

    makers: tuple[Operation, ...]
    sums: g.MatmulOp

    @property
    def products(self) -> list[g.MatmulOp]:
        return [op for op in self.makers if isinstance(op, g.MatmulOp)]

    @property
    def channels(self) -> int:
        return g.shape_of(self.sums.a)[-1]


@dataclass(frozen=True)
class InChunks:
    """Operations that make a map in chunks, instead of others, each with what stood behind it."""

    made: tuple[Operation, ...]
    instead_of: tuple[tuple[Operation, Operation], ...]

    def undo(self) -> None:
        """The network as it was."""
        for op, behind in reversed(self.instead_of):
            block = behind.parent
            assert block is not None
            block.insert_op_before(op, behind)
        self.made[-1].results[0].replace_all_uses_with(self.instead_of[0][0].results[0])
        for op in reversed(self.made):
            op.detach()
            op.erase()


def in_chunks(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int, *, or_large: bool = False
) -> list[InChunks]:
    """Make every hidden map that goes through DRAM in these units (`or_large`: or takes a good part of so many bytes of
    SRAM) in chunks, where what its products read and their sum fit beside one; what was done."""
    found = []
    for hidden in through_dram(order, units, model.HIDDEN_SHARE * sram_bytes if or_large else math.inf):
        channels = chunk_of(hidden, sram_bytes)
        if channels is not None:
            writer = PartWriter(hidden.sums, store_of(module))
            found.append(HiddenChunks(hidden, channels, writer).put())
    return found


def through_dram(order: LayerOrder, units: Sequence[UnitChoice], large_bytes: float = math.inf) -> list[Hidden]:
    """The hidden maps of an order that can be made in chunks, and of which something goes through DRAM in these units,
    or that are so large that others perhaps do for them."""
    out = made_in_dram(order, units)
    hidden = [found for node in order.nodes if (found := hidden_of(order, node.op)) is not None]
    return [each for each in hidden if out & set(each.makers) or value_bytes(each.sums.a) >= large_bytes]


def made_in_dram(order: LayerOrder, units: Sequence[UnitChoice]) -> set[Operation]:
    """The layers of these units whose maps other units read from DRAM."""
    return {order.nodes[k].op for unit in units for k in range(unit.first, unit.stop) if goes_out(order, unit, k)}


def goes_out(order: LayerOrder, unit: UnitChoice, k: int) -> bool:
    """Whether layer k of a unit makes a map that another unit reads from DRAM."""
    return order.maps[k].last_use >= unit.stop and all(each.map != k for each in unit.kept)


def hidden_of(order: LayerOrder, op: Operation) -> Hidden | None:
    """The hidden map that an operation makes, where chunks of it can be made alone; None where they cannot."""
    sums = sums_up(op)
    if sums is None:
        return None
    makers: dict[Operation, None] = {}
    shape = g.shape_of(sums.a)
    waiting: list[SSAValue] = [sums.a]
    while waiting:
        maker = waiting.pop().owner
        if maker in makers:
            continue
        if not isinstance(maker, Operation) or g.shape_of(maker.results[0]) != shape:
            return None
        makers[maker] = None
        if isinstance(maker, g.MatmulOp):
            if not has_weights(maker) or maker.trans_a or maker.residual is not None:
                return None
        elif isinstance(maker, g.UnaryOp | g.BinaryOp) and is_float(g.tensor_of(maker.results[0]).element_type):
            waiting += [value for value in maker.operands if not is_number(value)]
        else:
            return None
    users = {use.operation for maker in makers for use in maker.results[0].uses}
    if not users <= {*makers, sums}:
        return None
    return Hidden(tuple(node.op for node in order.nodes if node.op in makers), sums)


def sums_up(op: Operation) -> g.MatmulOp | None:
    """The product that alone reads what an operation makes and sums it up, if that can be done in parts."""
    sums = sole_reader(op.results[0])
    if not isinstance(sums, g.MatmulOp) or sums.a is not op.results[0] or not has_weights(sums) or sums.trans_a:
        return None
    return None if layer_of(sums).keeps_sums_wide and element_bytes(sums.result) < WIDE else sums


def is_number(value: SSAValue) -> bool:
    """Whether a value is one constant for all elements."""
    return isinstance(value.owner, g.WeightOp) and math.prod(g.shape_of(value)) == 1


def has_weights(product: g.MatmulOp) -> bool:
    """Whether a product is of floats, with a constant matrix and perhaps a constant bias."""
    return has_constants(product) and len(g.shape_of(product.b)) == 2


def has_constants(product: g.MatmulOp | g.ConvOp) -> bool:
    """Whether a product makes floats with constant weights, and perhaps a constant bias."""
    constants = [value for value in (product.operands[1], product.bias) if value is not None]
    is_constant = all(isinstance(value.owner, g.WeightOp) for value in constants)
    return is_constant and is_float(g.tensor_of(product.result).element_type)


def may_go_in_parts(op: g.ConvOp) -> bool:
    """Whether a convolution is one of all channels with constants, and not a part of another one already."""
    return op.groups == 1 and has_constants(op) and not {PART_OF_SUM, JOINT} & op.attributes.keys()


def chunk_of(hidden: Hidden, sram_bytes: int) -> int | None:
    """Channels of a chunk: the most that divide the hidden map and take at most `model.HIDDEN_SHARE` of what the maps
    around it leave of SRAM; None where too few do."""
    most, least = limits_of_chunks(hidden, sram_bytes, model.HIDDEN_SHARE)
    return next((c for c in range(min(most, hidden.channels // 2), least - 1, -1) if hidden.channels % c == 0), None)


def limits_of_chunks(hidden: Hidden, sram_bytes: int, share: float, part: float = 1.0) -> Range:
    """The most channels of a chunk that take at most a share of what the maps around it leave of SRAM, and the fewest
    that a chunk has; where all maps have this part of their rows."""
    read = dict.fromkeys([product.a for product in hidden.products])
    around = sum(aligned(math.ceil(part * value_bytes(value))) for value in (*read, hidden.sums.result))
    each = part * value_bytes(hidden.sums.a) / hidden.channels * len(hidden.products)
    return int(share * (sram_bytes - around) / each), ceil_div(hidden.channels, model.MOST_CHUNKS)


@dataclass
class PartWriter:
    """Puts parts of layers before the last of those whose place they take."""

    last: Operation
    store: WeightStore
    made: list[Operation] = field(default_factory=list)
    constants: dict[tuple[object, ...], SSAValue] = field(default_factory=dict)
    """Parts of constants that there are already."""

    def instead_of(self, result: SSAValue, ops: Sequence[Operation]) -> InChunks:
        """Take these layers out, the last one first, whose result is this one now."""
        self.last.results[0].replace_all_uses_with(result)
        old = []
        for op in ops:
            behind = op.next_op
            assert behind is not None  # a network ends with its outputs
            op.detach()
            old.append((op, behind))
        return InChunks(tuple(self.made), tuple(old))

    def share(
        self, sums: g.MatmulOp, part: SSAValue, channels: Range, before: SSAValue | None, *, is_last: bool
    ) -> SSAValue:
        """What some of the channels that a product sums up, [first, stop), add to what others have made `before` them;
        behind the last of them what is done with the sum."""
        first = channels[0]
        weights = self.constant([sums.b], 1 if sums.trans_b else 0, [channels])
        bias = sums.bias if before is None else None
        added = sums.residual if before is None else before
        act = sums.act if is_last else None
        made = g.MatmulOp(part, weights, bias, trans_b=sums.trans_b, residual=added, act=act)
        result = self.insert(made, sums, "" if is_last else f"/{first}")
        if not is_last:
            made.attributes[PART_OF_SUM] = UnitAttr()
        return result

    def part(self, hidden: Hidden, channels: Range) -> SSAValue:
        """Channels [first, stop) of a hidden map."""
        values: dict[SSAValue, SSAValue] = {}
        for op in hidden.makers:
            values[op.results[0]] = self.part_of(op, values, channels)
        return values[hidden.sums.a]

    def part_of(self, op: Operation, values: dict[SSAValue, SSAValue], channels: Range) -> SSAValue:
        """Channels [first, stop) of what one of its makers makes; `values`: of what others have made."""
        if isinstance(op, g.MatmulOp):
            weights = self.constant([op.b], 0 if op.trans_b else 1, [channels])
            bias = None if op.bias is None else self.constant([op.bias], 0, [channels])
            made: Operation = g.MatmulOp(op.a, weights, bias, trans_b=op.trans_b, act=op.act)
        elif isinstance(op, g.UnaryOp):
            made = g.UnaryOp(op.act, values[op.x])
        else:
            assert isinstance(op, g.BinaryOp)
            a, b = (values.get(x, x) for x in (op.a, op.b))
            made = g.BinaryOp(op.kind, a, b, op.act, element=op.element)
        return self.insert(made, op, f"/{channels[0]}")

    def constant(self, wholes: Sequence[SSAValue], axis: int, ranges: Sequence[Range]) -> SSAValue:
        """Some positions of constants along an axis, [first, stop) of each, behind each other."""
        number = (*wholes, axis, *ranges)
        if number not in self.constants:
            self.constants[number] = self.new_constant(wholes, axis, ranges)
        return self.constants[number]

    def new_constant(self, wholes: Sequence[SSAValue], axis: int, ranges: Sequence[Range]) -> SSAValue:
        """The same, put before the last layer."""
        keys, held, is_measured = [], 0, True
        for whole, (first, stop) in zip(wholes, ranges, strict=True):
            assert isinstance(whole.owner, g.WeightOp)
            keys.append(whole.owner.key.data)
            size = whole.owner.attributes.get(HELD_BYTES)
            is_measured &= isinstance(size, IntegerAttr)
            if isinstance(size, IntegerAttr):
                held += ceil_div(size.value.data * (stop - first), g.shape_of(whole)[axis])
        element, shape = g.tensor_of(wholes[0]).element_type, g.shape_of(wholes[0])
        taken = partial(parts_of, self.store, keys, axis, ranges, numpy_of(element))
        dims = replaced(shape, axis, sum(stop - first for first, stop in ranges))
        part = g.WeightOp(self.store.add(f"{keys[0]}/{ranges[0][0]}", taken), g.tensor_type(element, dims))
        owners = [whole.owner for whole in wholes if isinstance(whole.owner, g.WeightOp)]
        follow(part, owners, self.store, partial(joined_parts, axis, ranges))
        if (run := owners[0].attributes.get(HELD_RUN)) is not None:
            part.attributes[HELD_RUN] = run
        if is_measured:
            part.attributes[HELD_BYTES] = IntegerAttr(held, i64)
        return self.insert(part, self.last)

    def insert(self, op: Operation, like: Operation, chunk: str = "") -> SSAValue:
        """Put an operation before the last layer, with what stands on the one that it is part of, but for the form of
        other axes than its own; `chunk` is added to its name: what it makes is not what the model calls so."""
        if not isinstance(op, g.WeightOp):
            is_alike = rank_of(op) == rank_of(like)
            op.attributes.update((key, each) for key, each in like.attributes.items() if is_alike or key != FORM)
        name = node_name(like)
        op.location = named_part(like, name + chunk) if name and chunk else like.location
        block = self.last.parent
        assert isinstance(block, Block)
        block.insert_op_before(op, self.last)
        self.made.append(op)
        return op.results[0]


def rank_of(op: Operation) -> int:
    """Of the largest tensor that an operation reads or makes."""
    return max(len(g.shape_of(value)) for value in (*op.operands, *op.results))


@dataclass
class HiddenChunks:
    """The chunks of one hidden map, of so many channels, as they are made."""

    hidden: Hidden
    width: int
    writer: PartWriter

    def put(self) -> InChunks:
        """All chunks in the place of the whole."""
        sums = self.hidden.sums
        result: SSAValue | None = None
        for first in range(0, self.hidden.channels, self.width):
            stop = min(first + self.width, self.hidden.channels)
            part, is_last = self.writer.part(self.hidden, (first, stop)), stop == self.hidden.channels
            result = self.writer.share(sums, part, (first, stop), result, is_last=is_last)
        assert result is not None
        return self.writer.instead_of(result, (sums, *reversed(self.hidden.makers)))

def joined_parts(axis: int, ranges: Sequence[Range], *wholes: Dequantised) -> Dequantised | None:
    """What parts of constants along an axis, behind each other, were computed from."""
    return joined([whole.taken(axis, range(*each)) for whole, each in zip(wholes, ranges, strict=True)], axis)


def parts_of(
    store: WeightStore, keys: Sequence[str], axis: int, ranges: Sequence[Range], dtype: np.dtype
) -> Array:
    """Parts of constants along an axis, behind each other."""
    parts = [store[key].take(range(*each), axis) for key, each in zip(keys, ranges, strict=True)]
    return np.ascontiguousarray(np.concatenate(parts, axis) if len(parts) > 1 else parts[0], dtype)
