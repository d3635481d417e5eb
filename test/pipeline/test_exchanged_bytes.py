"""What the report says of recomputing and exchanging, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plain_machine
import pytest
from networks import Net
from stops import executable, machine_of
from units import Group, as_units, placed

from frustum.backend.pipeline import Choices, Run
from frustum.dialects.isa.program import MEMORIES, Copy
from frustum.dialects.tile import INPUTS, MapAttr
from frustum.dialects.unit import Partition
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

SIZE, CHANNELS, TAPS = 16, 4, 9


def built(groups, cores):
    """The executable of two convolutions, grouped and cut as said."""
    net = Net(3)
    a = net.conv(net.input(1, CHANNELS, SIZE, SIZE), CHANNELS, 3)
    module, _ = net.module(net.conv(a, CHANNELS, 3))
    tiles = placed(as_units(module, machine_of(cores), groups))
    Run().advance(tiles, ["lowered"], Choices())
    return executable(tiles)


def counted(groups, cores):
    made = built(groups, cores)
    machine = Machine(made)
    return count(machine.expanded, machine.target, made.code.page_bytes).units


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 4, 8])
def test_tiles_that_overlap_compute_two_rows_again_at_each_border(rows):
    (unit,) = counted([Group((0, 1), Partition((1, CHANNELS, rows, SIZE), 2, 2))], 1)
    again = 2 * (SIZE // rows - 1) * SIZE * CHANNELS
    assert unit.recomputed_bytes == 4 * again
    assert unit.recomputed_macs == again * CHANNELS * TAPS
    assert unit.chip == 0


@pytest.mark.slow
def test_rows_that_roll_are_kept_in_rings_and_not_computed_again():
    (unit,) = counted([Group((0, 1), Partition((1, CHANNELS, 2, SIZE), 0, 2, "exchange"))], 1)
    assert unit.recomputed_bytes == unit.recomputed_macs == unit.chip == 0
    assert unit.core > 0 and unit.cluster == 0  # one core takes back what it gave


@pytest.mark.slow
def test_clusters_send_their_border_rows_layer_by_layer():
    part = Partition((1, CHANNELS, SIZE // 4, SIZE), 2, 1)
    first, second = counted([Group((0,), part, keeps=(0,)), Group((1,), part)], 16)
    row = SIZE * CHANNELS * 4
    assert first.chip == 2 * 3 * row  # one row in each direction over each of three borders
    assert second.chip == 0
    assert first.recomputed_macs == second.recomputed_macs == first.recomputed_bytes == 0


PART = Partition((1, CHANNELS, SIZE // 4, SIZE), 2, 1)
CASES = {
    "overlap": ([Group((0, 1), Partition((1, CHANNELS, 4, SIZE), 2, 2))], 4),
    "rolling": ([Group((0, 1), Partition((1, CHANNELS, 2, SIZE), 0, 2, "exchange"))], 4),
    "one core": ([Group((0, 1), Partition((1, CHANNELS, 2, SIZE), 0, 2, "exchange"))], 1),
    "clusters": ([Group((0,), PART, keeps=(0,)), Group((1,), PART)], 16),
}


def owners(made, monkeypatch):
    """Bytes that cores take of what they gave themselves, and of what others gave, unit by unit: every byte of SRAM
    holds 1 + the core of the cluster that gave it, or 0."""
    machine = Machine(made)
    clusters, cores = machine.target.chip.clusters, machine.target.cluster.cores
    taken = {}

    def follow(copy, unit):
        into, out = copy.dst_view.memory, copy.src_view.memory
        if copy.expand is not None or "sram" not in (into, out):
            return
        targets = range(clusters) if copy.multicast else [None if copy.peer is None else unit.at(copy.peer)]
        mine = 0 if copy.engine in ("gdma", "cdma") else 1 + unit.core
        takers = range(cores) if copy.engine == "bus" else [unit.core]
        for position in unit.positions():
            inside = all(0 <= p < bound for p, bound in zip(position, copy.box.bound, strict=True))
            if out == "sram" and into in ("nram", "wram") and inside:
                for owner in unit.element(copy.src_view, position).view(np.uint8).tolist():
                    for core in takers if owner else ():
                        own, others = taken.get(copy.unit, (0, 0))
                        taken[copy.unit] = (own + 1, others) if owner == 1 + core else (own, others + 1)
            elif into == "sram":
                for target in targets:
                    unit.element(copy.dst_view, position, where=target).view(np.uint8)[:] = mine

    for name in ("conv", "pool", "unary", "binary", "softmax", "reduce", "lrn", "resize"):
        monkeypatch.setattr(plain_machine, f"_{name}", lambda instruction, unit: None)
    monkeypatch.setattr(plain_machine, "_copy", follow)
    sizes = dict(zip(MEMORIES, machine.capacities, strict=True))
    memories = {"sram": [np.zeros(sizes["sram"], np.uint8) for _ in range(clusters)]}
    plain_machine.run(made.program, memories, clusters, cores)
    return [taken.get(number, (0, 0)) for number in range(len(made.program.units))]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_cores_take_of_each_other_is_what_following_every_byte_gives(name, monkeypatch):
    made = built(*CASES[name])
    machine = Machine(made)
    found = count(machine.expanded, machine.target, made.code.page_bytes).units
    assert [(unit.core, unit.cluster) for unit in found] == owners(made, monkeypatch)
    assert sum(unit.core + unit.cluster for unit in found) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_clusters_exchange_is_what_cdma_moves(name):
    made = built(*CASES[name])
    machine = Machine(made)
    line = machine.run({}, mode="timing").timeline
    moved = sum(int(n) for engine, n in zip(line.engines, line.engine_bytes, strict=True) if engine.kind == "cdma")
    units = count(machine.expanded, machine.target, made.code.page_bytes, line.tables).units
    assert sum(unit.chip for unit in units) == moved
    assert (moved > 0) == (name == "clusters")


@pytest.mark.parametrize("rows", [4, 8])
def test_sums_that_cores_add_up_are_no_results_made_again(rows):
    """Each of four cores sums two of the eight input channels of the first convolution for the whole piece, and adds up
    its share; tiles of four rows of the second make two rows of the first again, one of a whole map none."""
    net = Net(3)
    a = net.conv(net.input(1, 8, 8, 8), CHANNELS, 3)
    module, _ = net.module(net.conv(a, CHANNELS, 3))
    tiled = as_units(module, machine_of(4), [Group((0, 1), Partition((1, CHANNELS, rows, 8), 2, 2))])
    first = next(op for op in tiled.walk() if op.name == "fgraph.conv")
    dealt = replace(first.attributes["frustum.map"].data, extent=(1, CHANNELS, 5, 8), cores=INPUTS, channels=2)
    first.attributes["frustum.map"] = MapAttr(dealt)
    tiles = placed(tiled)
    Run().advance(tiles, ["lowered"], Choices())
    made = executable(tiles)
    machine = Machine(made)
    sums = [op for op in machine.expanded.instructions if isinstance(op, Copy) and op.box.bound == (4, CHANNELS, 8, 8)]
    assert len(sums) == 2  # there and back
    (unit,) = count(machine.expanded, machine.target, made.code.page_bytes).units
    assert unit.recomputed_bytes == (2 * 8 * CHANNELS * 4 if rows == 4 else 0)
