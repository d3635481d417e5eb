"""Planes that are pooled in two steps, by windows of half a fill of the matrix unit's lines at most.

A window is the least that a piece of the first step has.  Large ones (`frustum-graph-pool-in-steps`) leave few pieces,
or one, of a tile for each core: then the units of a core make the layers of a run in turn, not at a time
(`passes/plan/runs.py`), and tiles of few rows are not to be had.  Small ones make the second step longer.

Source: docs/techniques/tfu.md, "Running a unit": pieces follow each other through the units of a core.
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.target import Target
from frustum.passes.analysis.windows import window_of
from frustum.passes.plan.model import WINDOWS_OF_LINES
from frustum.passes.plan.network.hidden_chunks import InChunks, PartWriter
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.weights import is_float, store_of

PLANE = (2, 3)


def finer_windows(order: LayerOrder, module: ModuleOp, target: Target) -> list[InChunks]:
    """Pool planes by smaller windows where they are pooled by larger ones before they are reduced; what was done."""
    found = []
    for op in [node.op for node in order.nodes]:
        rest = reduction_behind(op)
        if not isinstance(op, g.PoolOp) or rest is None:
            continue
        height, width = g.shape_of(op.x)[2:]
        most = target.core.matrix.lines // WINDOWS_OF_LINES
        window = window_of(height, width, target.chip.clusters, most, is_tall=True)
        if 1 < math.prod(window) < math.prod(op.kernel):
            writer = PartWriter(rest, store_of(module))
            pooled = writer.insert(g.PoolOp(op.kind, op.x, kernel=window, strides=window), op)
            result = writer.insert(g.ReduceOp(rest.kind, pooled, rest.axes, rest.keepdims), rest)
            found.append(writer.instead_of(result, [rest, op]))
    return found


def reduction_behind(op: Operation) -> g.ReduceOp | None:
    """What reduces the planes of floats that windows side by side give, and alone reads them, in the same type; None
    where that is not so."""
    if not isinstance(op, g.PoolOp) or not op.result.has_one_use():
        return None
    (use,) = op.result.uses
    rest = use.operation
    if not isinstance(rest, g.ReduceOp) or tuple(rest.axes) != PLANE or rest.scales is not None:
        return None
    is_tiled = not op.is_of_slices and op.kernel == op.strides and not any((*op.pads, *op.ceil_pads))
    is_tiled &= all(size % part == 0 for size, part in zip(g.shape_of(op.x)[2:], op.kernel, strict=False))
    kinds = {"mean": "avg", "max": "max"}
    is_plain = op.act is None and op.scales is None and kinds.get(rest.kind) == op.kind
    types = {g.tensor_of(value).element_type for value in (op.x, op.result, rest.result)}
    return rest if is_tiled and is_plain and len(types) == 1 and is_float(types.pop()) else None
