# Tests: test/passes/graph/composites/test_join_products.py
"""The pass that makes one product of several small ones of the same operand, as the gates of a recurrence are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.dequantised import mark_expanded
from frustum.passes.graph.find_phases import erase_unread
from frustum.passes.weights import Array, WeightStore, is_float, store_of

JOINED = "~joined"
"""Marks the keys of weights of several products."""


@dataclass(frozen=True)
class JoinProducts(ModulePass):
    """One product instead of several of the same operand that are one node of the model.

    Before: products of floats with constant weights, of fewer positions than a cluster has cores, so that cores can
    share columns alone, and of fewer columns than all their matrix units make at a time.  After: one product with all
    columns; slices of its result; behind these the activations, one of all neighbours that have the same.  Where that
    takes the matrix units no fewer passes, products stay as they are.
    """

    name = "frustum-graph-join-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store, target = store_of(op), target_of(op)
        for block in list(dict.fromkeys(each.parent for each in op.walk() if isinstance(each, g.MatmulOp))):
            assert block is not None
            for products in alike(block, target):
                join(products, store)


def alike(block: Block, target: Target) -> list[list[g.MatmulOp]]:
    """Products of a block that are to be one."""
    found = dict[object, list[g.MatmulOp]]()
    place = {op: number for number, op in enumerate(block.ops)}
    for op in block.ops:
        if isinstance(op, g.MatmulOp) and is_small(op, target):
            kind = op.bias is None, op.residual is None, op.trans_a, op.trans_b, g.tensor_of(op.b).element_type
            own = found.setdefault((op.a, op.location, *kind), [])
            if not own or op.residual is None or is_before(op.residual, own[0], place):
                own.append(op)
    width = width_of(target)
    return [own for own in found.values() if ceil_div(sum(map(columns, own)), width) < sum(passes(own, width))]


def is_small(op: g.MatmulOp, target: Target) -> bool:
    """Whether cores can share its columns alone, and one matrix unit has some without any."""
    constants = [value for value in (op.b, op.bias) if value is not None]
    are_known = all(isinstance(value.owner, g.WeightOp) for value in constants) and len(g.shape_of(op.b)) == 2
    rows = math.prod(g.shape_of(op.result)[:-1])
    is_plain = are_known and op.multiplier is None and is_float(g.tensor_of(op.a).element_type)
    return is_plain and rows < target.cluster.cores and columns(op) < width_of(target)


def width_of(target: Target) -> int:
    """Columns that the matrix units of a cluster make at a time."""
    return target.cluster.cores * target.core.matrix.channels


def columns(op: g.MatmulOp) -> int:
    return g.shape_of(op.result)[-1]


def passes(products: Sequence[g.MatmulOp], width: int) -> list[int]:
    """Of the matrix units, of each product."""
    return [ceil_div(columns(op), width) for op in products]


def is_before(value: SSAValue, op: Operation, place: dict[Operation, int]) -> bool:
    """Whether a value is there before an operation of the block."""
    return not isinstance(value.owner, Operation) or place.get(value.owner, -1) < place[op]


def join(products: Sequence[g.MatmulOp], store: WeightStore) -> None:
    """One product in the place of the first, with those that have the same activation side by side."""
    first = products[0]
    acts = list(dict.fromkeys(op.act for op in products))
    ordered = sorted(products, key=lambda op: acts.index(op.act))
    ops = list[Operation]()

    def added(op: Operation) -> SSAValue:
        op.location = first.location
        ops.append(op)
        return op.results[0]

    def constant(values: Sequence[SSAValue | None], axis: int) -> SSAValue | None:
        own = [value.owner for value in values if value is not None and isinstance(value.owner, g.WeightOp)]
        if not own:
            return None
        shape = list(g.shape_of(own[0].result))
        shape[axis] = sum(g.shape_of(each.result)[axis] for each in own)
        key = store.add(own[0].key.data + JOINED, partial(beside, store, [each.key.data for each in own], axis))
        made = g.WeightOp(key, g.tensor_type(g.tensor_of(own[0].result).element_type, tuple(shape)))
        mark_expanded(made, own, "are columns put together")
        made.location = own[0].location
        Rewriter.insert_op(made, InsertPoint.before(own[0]))  # constants are the network's, also of what steps read
        return made.result

    b = constant([op.b for op in ordered], 0 if first.trans_b else 1)
    bias = constant([op.bias for op in ordered], 0)
    residuals = [op.residual for op in ordered if op.residual is not None]
    last = len(g.shape_of(first.result)) - 1
    residual = added(g.ConcatOp(residuals, last)) if residuals else None
    assert b is not None
    whole = added(g.MatmulOp(first.a, b, bias, first.trans_a, first.trans_b, residual=residual))
    made = dict[g.MatmulOp, SSAValue]()
    start = 0
    for act, group in groupby(ordered, key=lambda op: op.act):
        own = list(group)
        widths = [columns(op) for op in own]
        part = whole if sum(widths) == g.shape_of(whole)[-1] else added(sliced(whole, start, sum(widths)))
        part = part if act is None else added(g.UnaryOp(act, part))
        for op, begin, width in zip(own, accumulate(widths, initial=0), widths, strict=False):
            made[op] = added(sliced(part, begin, width)) if len(own) > 1 else part
        start += sum(widths)
    Rewriter.insert_op(ops, InsertPoint.before(first))
    for op, value in made.items():
        constants = [each.owner for each in (op.b, op.bias) if each is not None]
        Rewriter.replace_op(op, [], [value])
        erase_unread(constants)


def sliced(x: SSAValue, start: int, width: int) -> g.SliceOp:
    """Columns of a product."""
    *before, _ = g.shape_of(x)
    return g.SliceOp(x, (*[0] * len(before), start), (*before, width))


def beside(store: WeightStore, keys: Sequence[str], axis: int) -> Array:
    """Constants side by side along an axis."""
    return np.ascontiguousarray(np.concatenate([store[key] for key in keys], axis))
