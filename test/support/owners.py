"""Who makes what, counted on the tile level: how often each element is stored, and what idle clusters work on."""

from __future__ import annotations

from itertools import product

import numpy as np

from frustum.dialects import tile as t


def passes_of(unit, cluster):
    """The tile indices (i0, i1, i2, i3) of all passes of a cluster, those beyond the grid too."""
    n, c, rows, columns = unit.tile_counts
    if unit.sweeps is None:
        yield from product(range(n), range(c), range(rows), range(columns))
        return
    for image, channel in product(range(n), range(c)):
        for sweep in unit.sweeps.data:
            for row, column in sweep.positions(cluster):
                yield image, channel, row, column


def ranges_at(box, indices, cluster):
    """The positions of a box in one pass, along each dimension."""
    return [range(*span.clip(indices, cluster)) for span in box.spans]


def times_stored(unit, clusters):
    """Of each result in DRAM, how often each element is stored by all clusters together."""
    found = []
    for op in [op for op in unit.body.block.ops if isinstance(op, t.StoreOp)]:
        times = np.zeros(op.region.data.bound, int)
        for cluster in range(clusters):
            for indices in passes_of(unit, cluster):
                times[np.ix_(*ranges_at(op.region.data, indices, cluster))] += 1
        found.append(times)
    return found


def idle_work(unit, clusters):
    """Elements that clusters load or compute in passes in which they store nothing, of regions that move with the
    tile."""
    ops = [op for op in unit.body.block.ops if isinstance(op, (t.LoadOp, t.ComputeOp))]
    stores = [op.region.data for op in unit.body.block.ops if isinstance(op, t.StoreOp)]
    total = 0
    for cluster in range(clusters):
        for indices in passes_of(unit, cluster):
            if any(all(ranges_at(box, indices, cluster)) for box in stores):
                continue
            for box in [op.region.data for op in ops if any(any(start.loops[2:]) for start in op.region.data.start)]:
                total += int(np.prod([len(r) for r in ranges_at(box, indices, cluster)]))
    return total


__all__ = ["idle_work", "passes_of", "ranges_at", "times_stored"]
