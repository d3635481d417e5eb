"""Who makes what, counted on the tile level: how often each element is stored, and what idle clusters work on; and on
the machine: how often cores put each element of a map into SRAM."""

from __future__ import annotations

from itertools import product

import numpy as np
from stops import executable, run_module

from frustum.backend.pipeline import Choices, Run
from frustum.dialects import tile as t
from frustum.dialects.isa.program import Copy
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count


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


def times_made(executable):
    """By number of the layer, how often each element of its map is put into SRAM by all cores together; of a map that
    several copies put there in parts each counts."""
    expanded, maps = Machine(executable).expanded, {}
    rows = expanded.core
    for number, each in enumerate(expanded.instructions):
        if isinstance(each, Copy) and each.engine == "mvdma" and each.src_view.memory == "nram":
            at = np.flatnonzero(rows.static == number)
            low, extent = (values[:, at].reshape(4, -1).T for values in (rows.lower, rows.extent))
            made = maps.setdefault(each.layer, np.zeros(each.box.bound, np.int8))
            for first, size in zip(low, extent, strict=True):
                if size.all():
                    made[tuple(slice(a, a + b) for a, b in zip(first, size, strict=True))] += 1
    return maps


def counted(module, inputs, tiles):
    """What the machine counts in checked mode, once the numbers of `tiles` (level `placed`) are those of the module,
    bit for bit, there and on the machine."""
    wanted = run_module(module, inputs)
    for name, array in run_module(tiles, inputs).items():
        np.testing.assert_array_equal(array, wanted[name])
    Run().advance(tiles, ["lowered"], Choices())
    made = executable(tiles)
    machine = Machine(made)
    for name, array in machine.run(inputs, mode="full", checked=True).outputs.items():
        np.testing.assert_array_equal(np.asarray(array, np.float32), wanted[name])
    return count(machine.expanded, machine.target, made.code.page_bytes)


__all__ = ["counted", "idle_work", "passes_of", "ranges_at", "times_made", "times_stored"]
