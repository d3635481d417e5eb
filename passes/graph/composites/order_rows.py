"""Layers that work row by row take the order of rows in which attention within windows reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.graph import shape_of, tensor_of, tensor_type
from frustum.dialects.graph.declaration import LayerOp
from frustum.passes.analysis.module import value_bytes
from frustum.passes.graph.patterns.rows import MovedRows, boxes_of, moves_rows, rows_of

LEAST_MOVES = 2
"""So many moves in a chain become one."""


@dataclass(frozen=True)
class OrderRows(ModulePass):
    """Move rows once before a block and once behind it, not within it.

    Before: what is added to a map was made in another order of its rows (windows of a map, also rolled around its
    ends), in which the map, or what layers that work row by row made of it, was put before, and is put back.
    After:
    1. the map itself is put into that order; those layers and the addition work in it, and so do the layers behind that
       work row by row, as long as no more has to be put back;
    2. a chain of moves of whole rows, rolled ones among them, is one `fgraph.rearrange`, where that is few boxes.

    So the layers of a block of windowed attention follow each other without moves between, and can be one unit.
    Source: Liu et al., Swin transformer, 2021, section 3.2.
    """

    name = "frustum-graph-order-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for network in g.networks_of(op):
            block = network.body.block
            sums = [each for addition in additions(block) if (each := reordered(addition, block)) is not None]
            for addition, back in sums:
                sink(addition, back, block)
            erase_unused(block)
            for move in [each for each in block.ops if moves_rows(each)]:
                rearrange(move)
            erase_unused(block)


def additions(block: Block) -> list[g.BinaryOp]:
    found = [op for op in block.ops if isinstance(op, g.BinaryOp) and op.kind == "add"]
    return [op for op in found if (maps := row_maps(op)) is not None and len(maps) == 2]


def row_maps(op: Operation) -> list[SSAValue] | None:
    """The maps that a layer of floats works on row by row (its other operands are constants for all rows); None for
    others."""
    match op:
        case g.UnaryOp() if op.scales is None:
            return [op.x]
        case g.NormaliseOp() if op.axes == (len(shape_of(op.x)) - 1,) and op.groups == 1:
            maps = [op.x]
        case g.BinaryOp() if op.scales is None:
            maps = [x for x in op.operands if shape_of(x) == shape_of(op.result) and not is_constant(x)]
        case g.MatmulOp() if not op.trans_a and op.multiplier is None and len(shape_of(op.b)) == 2:
            maps = [op.a] if op.residual is None else [op.a, op.residual]
        case _:
            return None
    others = [x for x in op.operands if all(x is not each for each in maps)]
    most = 2 if isinstance(op, g.MatmulOp) else 1
    is_plain = all(is_constant(x) and len(shape_of(x)) <= most for x in others)
    return maps if maps and is_plain and len(shape_of(maps[0])) > 1 and not any(map(g.is_integer, maps)) else None


def is_constant(value: SSAValue) -> bool:
    return isinstance(value.owner, g.WeightOp)


# -------------------------------------------------------------------- in the order of windows


Sum = tuple[g.BinaryOp, MovedRows]


def reordered(addition: g.BinaryOp, block: Block) -> tuple[g.BinaryOp, MovedRows] | None:
    """The addition in the order in which one of its operands was made, and how its rows are put back; None where the
    other operand is not put into that order."""
    for place in (0, 1):
        back = rows_of(addition.operands[place])
        if back is None or np.array_equal(back.places, np.arange(len(back.places))):
            continue
        x = addition.operands[1 - place]
        for into, rows in list(rows_into(block, back)):
            path = row_path(rows, x) if is_before(into, addition) else None
            if path is not None:
                return in_order(addition, place, back, into, rows, path), back
    return None


def is_before(value: SSAValue, op: Operation) -> bool:
    """Whether a value is there before an operation of the same block."""
    block, owner = op.parent, value.owner
    assert block is not None and isinstance(owner, Operation)
    return block.get_operation_index(owner) < block.get_operation_index(op)


def rows_into(block: Block, back: MovedRows) -> Iterator[tuple[SSAValue, MovedRows]]:
    """Values whose rows are in the order from which others are put back."""
    wanted = np.argsort(back.places)
    for op in block.ops:
        if not moves_rows(op) or all(moves_rows(use.operation) for use in op.results[0].uses):
            continue
        rows = rows_of(op.results[0])
        if rows is not None and np.array_equal(rows.places, wanted):
            yield op.results[0], rows


def row_path(rows: MovedRows, x: SSAValue) -> list[Operation] | None:
    """The layers, first to last, that make what is moved of x, row by row, for nobody else; None where others do."""
    path: list[Operation] = []
    value, users = rows.root, set(rows.chain)
    while value is not x:
        op = value.owner
        maps = row_maps(op) if isinstance(op, Operation) else None
        if maps is None or len(maps) != 1 or not {use.operation for use in value.uses} <= users:
            return None
        assert isinstance(op, Operation)
        path.insert(0, op)
        users, value = {op}, maps[0]
    return path if shape_of(x)[-1] <= shape_of(rows.root)[-1] else None


def in_order(
    addition: g.BinaryOp, place: int, back: MovedRows, into: SSAValue, rows: MovedRows, path: Sequence[Operation]
) -> g.BinaryOp:
    """Put x, not what the path makes of it, into the order, and add there; what read the sum reads it put back."""
    x = addition.operands[1 - place]
    before = into.owner
    assert isinstance(before, Operation)
    moved = made = again(rows, x, into, before)
    for op in path:
        made = in_shape(op, {row_maps(op)[0]: made}, before)  # type: ignore[index]  # a path has layers of rows alone
    into.replace_all_uses_with(made)
    shape = shape_of(back.root)
    if shape_of(moved) != shape:
        moved = added(g.ReshapeOp(moved, (*shape[:-1], shape_of(moved)[-1])), addition, addition)
    values = {addition.operands[1 - place]: moved, addition.operands[place]: back.root}
    result = in_shape(addition, values, addition)
    new = result.owner
    assert isinstance(new, g.BinaryOp)
    addition.result.replace_all_uses_with(again(back, result, addition.operands[place], addition))
    Rewriter.erase_op(addition)
    return new


def again(rows: MovedRows, root: SSAValue, value: SSAValue, before: Operation) -> SSAValue:
    """What a chain of moves makes of rows of another tensor, also of other widths, where it gave a value."""
    width = shape_of(root)[-1]
    lead = shape_of(rows.root)[:-1]
    if shape_of(root)[:-1] != lead:
        root = added(g.ReshapeOp(root, (*lead, width)), before, before)
    known: dict[SSAValue, SSAValue] = {rows.root: root}
    for op in rows.chain:
        shape = (*shape_of(op.results[0])[:-1], width)
        match op:
            case g.ReshapeOp():
                new: Operation = g.ReshapeOp(known[op.x], shape)
            case g.TransposeOp():
                new = g.TransposeOp(known[op.x], op.perm)
            case g.SliceOp():
                new = g.SliceOp(known[op.x], op.starts, shape, op.steps)
            case g.ConcatOp():
                new = g.ConcatOp([known[x] for x in op.xs], op.axis)
            case _:
                raise AssertionError(f"{op.name} moves no rows")
        known[op.results[0]] = added(new, op, before)
    return known[value]


def in_shape(op: Operation, maps: Mapping[SSAValue, SSAValue], before: Operation) -> SSAValue:
    """A layer that works row by row, of other maps of as many rows."""
    lead = shape_of(next(iter(maps.values())))[:-1]
    new = op.clone(dict(maps))
    if isinstance(new, g.NormaliseOp):
        new.axes = (len(lead),)
    kind = tensor_of(op.results[0])
    Rewriter.replace_value_with_new_type(
        new.results[0], tensor_type(kind.element_type, (*lead, shape_of(op.results[0])[-1]))
    )
    return added(new, op, before)


def added(new: Operation, like: Operation, before: Operation) -> SSAValue:
    new.location = like.location
    block = before.parent
    assert block is not None
    block.insert_op_before(new, before)
    return new.results[0]


# -------------------------------------------------------------------- further down


def sink(addition: g.BinaryOp, back: MovedRows, block: Block) -> None:
    """Let the layers behind an addition work in its order too, and put back what they make instead of what it makes:
    as many of them as leave fewest bytes to be put back."""
    put_back = [use.operation for use in addition.result.uses]
    value = next((v for v in ends_of(put_back) if same_rows(v, back, addition.result)), None)
    if value is None:
        return
    inside: list[Operation] = []
    maps = {value}
    for op in behind(value, block):
        own = row_maps(op)
        if own is not None and all(x in maps for x in own):
            inside.append(op)
            maps.add(op.results[0])
    left = [bytes_left(value, inside[:count]) for count in range(len(inside) + 1)]
    count = max(k for k, size in enumerate(left) if size == min(left))
    reorder(inside[:count], {value: addition.result}, back)


def reorder(ops: Sequence[Operation], known: dict[SSAValue, SSAValue], back: MovedRows) -> None:
    """Let layers work in an order in which what they read is `known`; what others read of them is put back."""
    for op in ops:
        known[op.results[0]] = in_shape(op, {x: known[x] for x in row_maps(op) or ()}, op)
    for op in ops:
        value = op.results[0]
        if any(use.operation not in ops for use in value.uses):
            restored = again(back, known[value], chain_end(back), op)
            if shape_of(restored) != shape_of(value):
                restored = added(g.ReshapeOp(restored, shape_of(value)), op, op)
            value.replace_all_uses_with(restored)
    for op in reversed(ops):
        Rewriter.erase_op(op)


def chain_end(rows: MovedRows) -> SSAValue:
    return rows.chain[-1].results[0]


def ends_of(ops: Sequence[Operation]) -> Iterator[SSAValue]:
    """What chains of moves that begin with these give to others."""
    for op in ops:
        if moves_rows(op):
            users = [use.operation for use in op.results[0].uses]
            if any(not moves_rows(user) for user in users):
                yield op.results[0]
            yield from ends_of(users)


def same_rows(value: SSAValue, back: MovedRows, root: SSAValue) -> bool:
    rows = rows_of(value)
    return rows is not None and rows.root is root and np.array_equal(rows.places, back.places)


def behind(value: SSAValue, block: Block) -> Iterator[Operation]:
    """The operations of a block behind the one that gives a value."""
    seen = False
    for op in block.ops:
        if seen:
            yield op
        seen = seen or op is value.owner


def bytes_left(value: SSAValue, inside: Sequence[Operation]) -> int:
    """Bytes of what layers outside read of a value and of what those inside make."""
    values = [value, *(op.results[0] for op in inside)]
    return sum(value_bytes(v) for v in values if any(use.operation not in inside for use in v.uses))


# -------------------------------------------------------------------- chains of moves


def rearrange(move: Operation) -> None:
    """One rearrangement in the place of a chain that ends here, where it has several moves, one of them of parts."""
    value = move.results[0]
    if not value.uses or all(moves_rows(use.operation) for use in value.uses):
        return
    rows = rows_of(value)
    if rows is None or rows.moves < LEAST_MOVES or is_constant(rows.root):
        return
    if np.array_equal(rows.places, np.arange(len(rows.places))):
        value.replace_all_uses_with(added(g.ReshapeOp(rows.root, shape_of(value)), move, move))
        return
    if not any(isinstance(op, g.ConcatOp) for op in rows.chain):
        return
    boxes = boxes_of(rows, shape_of(value)[-1])
    if boxes is not None:
        value.replace_all_uses_with(added(g.RearrangeOp(rows.root, tuple(boxes), shape_of(value)), move, move))


def erase_unused(block: Block) -> None:
    """Layers that nobody reads any more."""
    for op in reversed(list(block.ops)):
        if isinstance(op, LayerOp) and not isinstance(op, g.WeightOp) and not any(each.uses for each in op.results):
            Rewriter.erase_op(op)
