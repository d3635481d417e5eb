"""What the report says of recomputing and exchanging, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from networks import Net
from stops import executable, machine_of
from units import Group, as_units, placed

from frustum.backend.pipeline import Choices, Run
from frustum.dialects.unit import Partition
from frustum.runtime.counters import count
from frustum.runtime.machine import Machine

SIZE, CHANNELS, TAPS = 16, 4, 9


def counted(groups, cores):
    net = Net(3)
    a = net.conv(net.input(1, CHANNELS, SIZE, SIZE), CHANNELS, 3)
    module, _ = net.module(net.conv(a, CHANNELS, 3))
    tiles = placed(as_units(module, machine_of(cores), groups))
    Run().advance(tiles, ["lowered"], Choices())
    made = executable(tiles)
    machine = Machine(made)
    machine.run({}, mode="timing")
    return count(machine.expanded, machine.target, made.code.page_bytes).units


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_tiles_that_overlap_compute_two_rows_again_at_each_border(rows):
    (unit,) = counted([Group((0, 1), Partition((1, CHANNELS, rows, SIZE), 2, 2))], 1)
    again = 2 * (SIZE // rows - 1) * SIZE * CHANNELS
    assert unit.recomputed_bytes == 4 * again
    assert unit.recomputed_macs == again * CHANNELS * TAPS
    assert unit.chip == 0


def test_rows_that_roll_are_kept_in_rings_and_not_computed_again():
    (unit,) = counted([Group((0, 1), Partition((1, CHANNELS, 2, SIZE), 0, 2, "exchange"))], 1)
    assert unit.recomputed_bytes == unit.recomputed_macs == unit.chip == 0
    assert unit.core > 0


def test_clusters_send_their_border_rows_layer_by_layer():
    part = Partition((1, CHANNELS, SIZE // 4, SIZE), 2, 1)
    first, second = counted([Group((0,), part, keeps=(0,)), Group((1,), part)], 16)
    row = SIZE * CHANNELS * 4
    assert first.chip == 2 * 3 * row  # one row in each direction over each of three borders
    assert second.chip == 0
    assert first.recomputed_macs == second.recomputed_macs == first.recomputed_bytes == 0
