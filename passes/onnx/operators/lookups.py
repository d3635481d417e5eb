# Tests: test/passes/onnx/test_import_lookups.py
"""Gather by indices that are known only when running.

Addresses of the machine are affine in its loops: no number that it computes can reach one.  What can be done is to
compare each index with the number of every row, and to add up the rows times the truth: a product with a constant
table (an embedding), a choice of rows of a map.  Both give the row as it is: one term is the row, the others are 0.
"""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.graph import MatmulOp, ReduceOp, shape_of
from frustum.passes.errors import NotConstant, Refused
from frustum.passes.onnx.node import Converter, Node, Result
from frustum.passes.onnx.operators import moves
from frustum.passes.weights import Array, numpy_of

MOST_ROWS = 256
"""Of what is read whole for an index, unless there are more indices than rows."""
MOST_TABLE_BYTES = 1 << 21
"""Of a constant table of more rows: those of positions (8192 of 64 elements in f32) are on the device, those of words
on the host, from where one row crosses."""
MOST_INDICES = 64
"""Into a map: each is compared with all rows, and reads all of them."""


def gather(node: Node) -> Result:
    """By indices that are constant, or computed."""
    index = node.operands[1] if node.has(1) else None
    if isinstance(index, SSAValue) and index in node.network.whole:
        return looked_up(node, index, node.axis(node.get("axis", 0), len(node.shape(0))))
    return moves.gather(node)


def looked_up(node: Node, index: SSAValue, axis: int) -> SSAValue:
    """Rows of operand 0 along an axis, which stand in place of the indices."""
    rows, count, table, name = node.shape(0)[axis], math.prod(shape_of(index)), node.operands[0], node.proto.input[1]
    size_bytes = table.size * numpy_of(node.network.element).itemsize if isinstance(table, np.ndarray) else None
    if rows > max(MOST_ROWS, count) and (size_bytes is None or size_bytes > MOST_TABLE_BYTES):
        size = "" if size_bytes is None else f" of {size_bytes:,} bytes"
        most = f"{MOST_ROWS}, and than the {count} indices" + (f", and {MOST_TABLE_BYTES:,} bytes" if size else "")
        raise NotConstant(f"an index into {rows} rows{size} (more than {most})", name)
    if not isinstance(table, np.ndarray) and count > MOST_INDICES:
        raise NotConstant(f"{count} indices into a tensor that the network makes (more than {MOST_INDICES})", name)
    node.counts_to(rows)
    truth = _one_of(node, index, rows)
    if isinstance(table, np.ndarray):
        return _of_table(node, table, axis, truth)
    return _of_map(node, node.value(0), axis, truth)


def _one_of(node: Node, index: SSAValue, rows: int) -> SSAValue:
    """[.., rows]: 1 at the row of each index, which may count from the end, else 0."""
    from_end = node.binary("mul", node.binary("less", index, node.scalar(0.0, "zero")), node.scalar(rows, "rows"))
    place = node.binary("add", index, from_end)
    numbers = node.weight(np.arange(rows).astype(np.float32), "numbers")
    return node.binary("equal", node.reshape(place, (*shape_of(index), 1)), numbers)


def _of_table(node: Node, table: Array, axis: int, truth: SSAValue) -> SSAValue:
    """A product; the axes before `axis` come first."""
    if table.dtype.kind in "iubOUS":
        raise Refused(f"rows of {table.dtype} are not supported: floating point is")
    if not np.isfinite(table).all():
        raise Refused("a row has elements that are infinite or no numbers, which a product would spread")
    indices, rest = shape_of(truth)[:-1], (*table.shape[:axis], *table.shape[axis + 1 :])
    flat = np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
    weight = node.weight(np.ascontiguousarray(flat), "table")
    left = truth if indices else node.reshape(truth, (1, table.shape[axis]))
    found = node.reshape(node.emit(MatmulOp(left, weight)), (*indices, *rest))
    order = list(range(len(indices) + len(rest)))
    before, after = len(indices), len(indices) + axis
    return moves.turned(node, found, (*order[before:after], *order[:before], *order[after:]))


def _of_map(node: Node, x: SSAValue, axis: int, truth: SSAValue) -> SSAValue:
    """All rows for each index, of which one is kept: also where others are infinite."""
    shape, (*indices, rows) = shape_of(x), shape_of(truth)
    outer, inner, count = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]), math.prod(indices)
    kept = node.binary(
        "keep", node.reshape(x, (outer, 1, rows, inner)), node.reshape(truth, (1, count, rows, 1))
    )
    found = node.emit(ReduceOp("sum", kept, (2,), False))
    return node.like(node.reshape(found, (*shape[:axis], *indices, *shape[axis + 1 :])), x)


CONVERTERS: dict[str, Converter] = {"Gather": gather}
