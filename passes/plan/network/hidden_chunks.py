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

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, NameLoc, StringAttr, UnitAttr, UnknownLoc, i64
from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import aligned, ceil_div, replaced
from frustum.dialects.module import HELD_BYTES, PART_OF_SUM
from frustum.passes.analysis.layer import layer_of
from frustum.passes.analysis.module import element_bytes, node_name, value_bytes
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of, store_of

WIDE = 4
"""Bytes of f32."""


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


def in_chunks(order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int) -> list[InChunks]:
    """Make every hidden map that goes through DRAM in these units in chunks, where what its products read and their sum
    fit so many bytes of SRAM beside one; what was done."""
    through = {k for unit in units for k in range(unit.first, unit.stop) if goes_out(order, unit, k)}
    found = []
    for k in sorted(through):
        hidden = hidden_in(order, k)
        channels = None if hidden is None else chunk_of(hidden, sram_bytes)
        if hidden is not None and channels is not None:
            found.append(Chunks(hidden, channels, store_of(module)).put())
    return found


def goes_out(order: LayerOrder, unit: UnitChoice, k: int) -> bool:
    """Whether layer k of a unit makes a map that another unit reads from DRAM."""
    return order.maps[k].last_use >= unit.stop and all(each.map != k for each in unit.kept)


def hidden_in(order: LayerOrder, k: int) -> Hidden | None:
    """What sums up the map of layer k, where chunks of it can be made alone; None where they cannot."""
    sums = sole_reader(order.nodes[k].op)
    if not isinstance(sums, g.MatmulOp) or sums.a is not order.nodes[k].op.results[0] or not has_weights(sums):
        return None
    if sums.trans_a or (layer_of(sums).keeps_sums_wide and element_bytes(sums.result) < WIDE):
        return None
    makers: dict[Operation, None] = {}
    shape = g.shape_of(sums.a)
    waiting: list[SSAValue] = [sums.a]
    while waiting:
        op = waiting.pop().owner
        if op in makers:
            continue
        if not isinstance(op, Operation) or g.shape_of(op.results[0]) != shape:
            return None
        makers[op] = None
        if isinstance(op, g.MatmulOp):
            if not has_weights(op) or op.trans_a or op.residual is not None:
                return None
        elif isinstance(op, g.UnaryOp | g.BinaryOp) and is_float(g.tensor_of(op.results[0]).element_type):
            waiting += [value for value in op.operands if not is_number(value)]
        else:
            return None
    if any(use.operation not in makers and use.operation is not sums for op in makers for use in op.results[0].uses):
        return None
    return Hidden(tuple(node.op for node in order.nodes if node.op in makers), sums)


def is_number(value: SSAValue) -> bool:
    """Whether a value is one constant for all elements."""
    return isinstance(value.owner, g.WeightOp) and math.prod(g.shape_of(value)) == 1


def sole_reader(op: Operation) -> Operation | None:
    users = {use.operation for use in op.results[0].uses}
    return users.pop() if len(users) == 1 else None


def has_weights(product: g.MatmulOp) -> bool:
    """Whether a product is of floats, with a constant matrix and perhaps a constant bias."""
    constants = [value for value in (product.b, product.bias) if value is not None]
    is_constant = all(isinstance(value.owner, g.WeightOp) for value in constants)
    return is_constant and len(g.shape_of(product.b)) == 2 and is_float(g.tensor_of(product.result).element_type)


def chunk_of(hidden: Hidden, sram_bytes: int) -> int | None:
    """Channels of a chunk: the most that divide the hidden map and take at most `model.HIDDEN_SHARE` of what the maps
    around it leave of SRAM; None where too few do."""
    read = dict.fromkeys([product.a for product in hidden.products])
    around = sum(aligned(value_bytes(value)) for value in (*read, hidden.sums.result))
    each = value_bytes(hidden.sums.a) // hidden.channels * len(hidden.products)
    most = int(model.HIDDEN_SHARE * (sram_bytes - around)) // each
    least = ceil_div(hidden.channels, model.MOST_CHUNKS)
    return next((c for c in range(min(most, hidden.channels // 2), least - 1, -1) if hidden.channels % c == 0), None)


@dataclass
class Chunks:
    """The chunks of one hidden map, as they are made."""

    hidden: Hidden
    width: int
    store: WeightStore
    made: list[Operation] = field(default_factory=list)

    def put(self) -> InChunks:
        """All chunks in the place of the whole."""
        sums = self.hidden.sums
        result: SSAValue | None = None
        for first in range(0, self.hidden.channels, self.width):
            values: dict[SSAValue, SSAValue] = {}
            for op in self.hidden.makers:
                values[op.results[0]] = self.part(op, values, first)
            result = self.share(values[sums.a], first, result)
        assert result is not None
        sums.result.replace_all_uses_with(result)
        old = []
        for op in (sums, *reversed(self.hidden.makers)):
            behind = op.next_op
            assert behind is not None  # a network ends with its outputs
            op.detach()
            old.append((op, behind))
        return InChunks(tuple(self.made), tuple(old))

    def part(self, op: Operation, values: dict[SSAValue, SSAValue], first: int) -> SSAValue:
        """Channels [first, first + width) of what one of the makers makes."""
        if isinstance(op, g.MatmulOp):
            axis = 0 if op.trans_b else 1
            weights = self.constant(op.b, axis, first)
            bias = None if op.bias is None else self.constant(op.bias, 0, first)
            made: Operation = g.MatmulOp(op.a, weights, bias, trans_b=op.trans_b, act=op.act)
        elif isinstance(op, g.UnaryOp):
            made = g.UnaryOp(op.act, values[op.x])
        else:
            assert isinstance(op, g.BinaryOp)
            a, b = (values.get(x, x) for x in (op.a, op.b))
            made = g.BinaryOp(op.kind, a, b, op.act, element=op.element)
        return self.insert(made, op, f"/{first}")

    def share(self, part: SSAValue, first: int, before: SSAValue | None) -> SSAValue:
        """What these channels add to the sums."""
        sums, is_last = self.hidden.sums, first + self.width == self.hidden.channels
        weights = self.constant(sums.b, 1 if sums.trans_b else 0, first)
        bias = sums.bias if before is None else None
        added = sums.residual if before is None else before
        act = sums.act if is_last else None
        made = g.MatmulOp(part, weights, bias, trans_b=sums.trans_b, residual=added, act=act)
        result = self.insert(made, sums, "" if is_last else f"/{first}")
        if not is_last:
            made.attributes[PART_OF_SUM] = UnitAttr()
        return result

    def constant(self, whole: SSAValue, axis: int, first: int) -> SSAValue:
        """Some positions of a constant along an axis."""
        assert isinstance(whole.owner, g.WeightOp)
        element, shape = g.tensor_of(whole).element_type, g.shape_of(whole)
        key = whole.owner.key.data
        taken = partial(part_of, self.store, key, axis, first, self.width, numpy_of(element))
        part = g.WeightOp(
            self.store.add(f"{key}/{first}", taken), g.tensor_type(element, replaced(shape, axis, self.width))
        )
        if isinstance(held := whole.owner.attributes.get(HELD_BYTES), IntegerAttr):
            own = ceil_div(held.value.data * self.width, shape[axis])
            part.attributes[HELD_BYTES] = IntegerAttr(own, i64)
        return self.insert(part, self.hidden.sums)

    def insert(self, op: Operation, like: Operation, chunk: str = "") -> SSAValue:
        """Put an operation before the sums, with what stands on the one that it is part of; `chunk` is added to its
        name: what it makes is not what the model calls so."""
        if not isinstance(op, g.WeightOp):
            op.attributes.update(like.attributes)
        name = node_name(like)
        op.location = NameLoc(StringAttr(name + chunk), UnknownLoc()) if name and chunk else like.location
        block = self.hidden.sums.parent
        assert isinstance(block, Block)
        block.insert_op_before(op, self.hidden.sums)
        self.made.append(op)
        return op.results[0]


def part_of(store: WeightStore, key: str, axis: int, first: int, width: int, dtype: np.dtype) -> Array:
    """Part of a constant along an axis."""
    return np.ascontiguousarray(store[key].take(range(first, first + width), axis), dtype)
