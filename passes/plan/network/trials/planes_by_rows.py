# Tests: test/passes/plan/network/trials/test_planes_by_rows.py
"""Reductions of planes as those of their rows, and of what these give.

Whoever reduces whole planes needs all rows of them.  Of a map whose rows are dealt to clusters each of these then sends
its rows to all others, and all hold the whole map.  Reduced row by row where the rows are, only one element of each row
and channel is left to be sent; the map stays where it was made, for those that read it again (squeeze and excitation).
What is found of rows is f32.

Source: a reduction of parts by those who hold them, before their results are exchanged (Thakur, Rabenseifner and Gropp,
Optimization of collective communication operations in MPICH, 2005, "reduce").
"""

from __future__ import annotations

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, f32, i64

from frustum.dialects import graph as g
from frustum.dialects.extents import ceil_div
from frustum.dialects.functions import Reduction
from frustum.dialects.module import FORM
from frustum.dialects.target import Target
from frustum.passes.plan import model
from frustum.passes.plan.network.hidden_chunks import InChunks, PartWriter
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.weights import is_float, store_of

ROWS, COLUMNS = 2, 3
"""Axes of a map [N, C, H, W]."""


def planes_by_rows(
    order: LayerOrder, module: ModuleOp, target: Target, cycles: int
) -> list[InChunks]:
    """Let reductions of planes be made row by row where clusters would take a good part of so many cycles to send each
    other the whole map; what was done."""
    found = []
    for op in [node.op for node in order.nodes]:
        if not isinstance(op, g.ReduceOp) or not is_of_planes(op) or order.number_of(op.x) is None:
            continue
        if sending_cycles(order, op, target) >= model.SENT_SHARE * cycles:
            found.append(by_rows(op, PartWriter(op, store_of(module))))
    return found


def by_rows(op: g.ReduceOp, writer: PartWriter) -> InChunks:
    """Reduce the rows of planes, and then what they give, instead of all at once; seen as the planes are."""
    element, x = g.tensor_of(op.result).element_type, op.x
    for axis, result, name in ((COLUMNS, f32, "/rows"), (ROWS, element, "")):
        step = g.ReduceOp(op.kind, x, (axis,), element=result)
        x = writer.insert(step, op, name)
        step.attributes[FORM] = DenseArrayBase.from_list(i64, range(len(g.shape_of(x))))
    return writer.instead_of(x, [op])


def is_of_planes(op: g.ReduceOp) -> bool:
    """Whether planes of floats are reduced, of several rows, each of which can be reduced before."""
    shape = g.shape_of(op.x)
    is_whole = len(shape) == COLUMNS + 1 and tuple(sorted(op.axes)) == (ROWS, COLUMNS) and op.keepdims
    is_plain = op.scales is None and FORM not in op.attributes
    is_plain &= is_float(g.tensor_of(op.x).element_type)
    return is_whole and is_plain and min(shape[ROWS:]) > 1 and Reduction(op.kind).is_of_parts


def sending_cycles(order: LayerOrder, op: g.ReduceOp, target: Target) -> int:
    """Cycles in which every cluster sends its share of what is reduced to all others."""
    cdma, clusters = target.cluster.cdma, target.chip.clusters
    number = order.number_of(op.x)
    assert number is not None
    if cdma is None:
        return 0
    return ceil_div(order.maps[number].bytes * (clusters - 1), clusters * cdma.bytes_per_cycle)
