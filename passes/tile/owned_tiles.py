"""Single tiles with owners: layer by layer, each map everywhere, each tile made by the cluster that an order says.

Where in an order owners would have to wait for each other in the middle of a unit, its layers run one after the other.
Behind each, owners send what they have made to those whose tiles of the next layers read it.
Source: docs/techniques/frustum.md, "Borders" and "Orders".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import Affine, Box
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.project import UnitLayers, Unprojectable
from frustum.passes.analysis.roll import COLUMNS, ROWS, rates_of
from frustum.passes.plan.cost import stored_bytes
from frustum.passes.tile.force_partition import ForcePartition
from frustum.passes.tile.partition import write

Positions = NDArray[np.bool_]
"""Rows and columns of a map, all of whose channels are meant."""


def cut_by_grid(parts: Sequence[UnitOp], layers: UnitLayers, partition: Partition, target: Target) -> bool:
    """Cut units of one layer each into the tiles that belong to those of a unit with this partition; whether that goes:
    for one image on several clusters, all maps at a time in the SRAM of each, no concatenations, nothing that earlier
    units have left at a fixed place."""
    clusters = target.chip.clusters
    if clusters == 1 or target.cluster.cdma is None or layers.groups or layers.out.out_dims[0] > 1:
        return False
    if any(own.resident for own in layers.inputs) or any(is_move(own.body.block.ops) for own in parts):
        return False
    kept = [layer for own, layer in zip(parts, layers.layers, strict=True) if own.kept]
    if 2 * sum(map(stored_bytes, kept)) > target.cluster.sram.capacity_bytes or not kept:
        return False
    try:
        rates = [rates_of(layers, d) for d in (ROWS, COLUMNS)]
        plans = []
        for j, (own, layer) in enumerate(zip(parts, layers.layers, strict=True)):
            rows, columns = (partition.tile[d] * rates[d - ROWS][j] for d in (ROWS, COLUMNS))
            if rows.denominator != 1 or columns.denominator != 1:
                return False
            tile = (0, 0, min(int(rows), layer.out_dims[ROWS]), min(int(columns), layer.out_dims[COLUMNS]))
            plans.append(ForcePartition(tile, clusters=ROWS, depth=1, owners="clusters").plan(own, target))
    except (Unprojectable, DoesNotFit, PassFailedException):
        return False
    for own, plan in zip(parts, plans, strict=True):
        write(own, plan)
    return True


def has_owned_tiles(unit: t.UnitOp) -> bool:
    """Whether the order says who makes which tile of maps that are everywhere."""
    return unit.owners is not None and unit.owners.data == "clusters"


# -------------------------------------------------------------------- what owners send each other


def hand_over(unit: t.UnitOp, clusters: int) -> None:
    """Let the clusters send what they make of a unit's kept maps to those that read it, behind all tiles."""
    end = unit.body.block.last_op
    assert end is not None
    results = [r for r in unit.results if isinstance(r.type, t.TileType)]
    for value, result in zip(end.operands, results, strict=True):
        op = value.owner
        assert isinstance(op, t.ComputeOp)
        made = [seen(unit, k, [op.region.data]) for k in range(clusters)]
        needed = [needs_of(result, k, made[k].shape) for k in range(clusters)]
        for here, there in product(range(clusters), range(clusters)):
            if here != there:
                wanted = needed[there] & made[here] & ~made[there]
                for rows, columns in rectangles(wanted):
                    box = box_on(here, op.region.data, rows, columns)
                    unit.body.block.insert_op_before(t.SendOp(value, there - here, box), end)


def needs_of(result: SSAValue, cluster: int, shape: tuple[int, ...]) -> Positions:
    """What the tiles of a cluster in all units that read a map need of it."""
    found = np.zeros(shape, bool)
    for use in result.uses:
        reader = use.operation
        if not isinstance(reader, t.UnitOp):
            raise PassFailedException(f"{reader.name} reads a map whose tiles have owners: it is in no one place")
        argument = reader.body.block.args[use.index]
        for op in (each.operation for each in argument.uses):
            if isinstance(op, t.ComputeOp):
                accesses = [op.access.data[k].data for k, tile in enumerate(op.tiles) if tile is argument]
                bound = (*op.region.data.bound[:2], *shape)
                found |= seen(reader, cluster, [read(op, access, bound) for access in accesses])
            elif isinstance(op, t.StoreOp):
                found |= seen(reader, cluster, [op.region.data])
    return found


def read(op: t.ComputeOp, access: t.Access, bound: tuple[int, ...]) -> Box:
    """What a layer reads of an operand of this size in a pass."""
    region = op.region.data
    starts = tuple(axis.start(start) for axis, start in zip(access, region.start, strict=True))
    extents = tuple(axis.extent(extent) for axis, extent in zip(access, region.extent, strict=True))
    return Box(starts, extents, bound)


def seen(unit: t.UnitOp, cluster: int, boxes: Sequence[Box]) -> Positions:
    """The rows and columns of these boxes of a map in all passes of a cluster."""
    found: Any = np.zeros(boxes[0].bound[ROWS:], bool)
    for indices in passes_of(unit, cluster):
        for box in boxes:
            rows, columns = (box.spans[d].clip(indices, cluster) for d in (ROWS, COLUMNS))
            found[rows[0] : max(rows), columns[0] : max(columns)] = True
    return np.asarray(found)


def passes_of(unit: t.UnitOp, cluster: int) -> Iterator[tuple[int, int, int, int]]:
    """The tile indices of all passes of a cluster, those beyond the grid too."""
    _, _, rows, columns = unit.tile_counts
    if unit.sweeps is None:
        yield from ((0, 0, row, column) for row, column in product(range(rows), range(columns)))
        return
    for sweep in unit.sweeps.data:
        yield from ((0, 0, row, column) for row, column in sweep.positions(cluster))


def rectangles(wanted: Positions) -> Iterator[tuple[range, range]]:
    """Rectangles that together are these positions, each once: runs of equal rows, each cut where it has gaps."""
    top = 0
    while top < len(wanted):
        stop = top + 1
        while stop < len(wanted) and (wanted[stop] == wanted[top]).all():
            stop += 1
        edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted[top].astype(np.int8), [0]])))
        for left, right in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield range(top, stop), range(left, right)
        top = stop


def box_on(cluster: int, whole: Box, rows: range, columns: range) -> Box:
    """A box of a map on one cluster; on all others it lies beyond the map, and is empty."""
    far = whole.bound[ROWS]
    starts = (Affine(), Affine(), Affine(rows.start - far * cluster, cluster=far), Affine(columns.start))
    extents = replaced(replaced(whole.bound, ROWS, len(rows)), COLUMNS, len(columns))
    return Box(starts, extents, whole.bound)
