"""Tiles with owners, layer by layer: what clusters send each other on a grid of 4 x 4 tiles, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from integer_networks import IntegerNet
from owners import counted
from stops import aimed, machine_of
from units import placed
from xdsl.context import Context

from frustum.dialects import tile as t
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.tile.assign_order import AssignOrder
from frustum.passes.tile.force_partition import ForcePartition
from frustum.passes.tile.orders import ORDERS
from frustum.passes.tile.owned_tiles import rectangles
from frustum.passes.tile.partition import PartitionUnits
from frustum.passes.tile.split_breadth_first import SplitBreadthFirst

CHANNELS, GRID = 4, 4


def counted_of(order, rows, columns, cores=16, bands=2):
    """What the machine counts in checked mode for two products with windows of 3 x 3, on 4 x 4 tiles, once the numbers
    are those of the module at tile level and on the machine, bit for bit."""
    net = IntegerNet(1)
    x = net.integer_input(1, 3, rows, columns)
    module, inputs = net.module(net.product(net.product(x, CHANNELS), CHANNELS))
    tiles = aimed(module, machine_of(cores))
    FuseLayers(cuts="").apply(Context(), tiles)
    ForcePartition((1, 0, rows // GRID, columns // GRID)).apply(Context(), tiles)
    SplitBreadthFirst(borders="exchange", order=order, bands=bands).apply(Context(), tiles)
    PartitionUnits().apply(Context(), tiles)
    tiles = placed(tiles)
    AssignOrder(order=order, bands=bands).apply(Context(), tiles)
    assert all(op.owners.data == "clusters" for op in tiles.walk() if isinstance(op, t.UnitOp))
    return counted(module, inputs, tiles)


def by_hand(order, rows, columns):
    """Positions of the map between the products: on both sides of each border between owners a line of it, and where
    four owners meet the four corners."""
    across, down = {
        "row-major": (3, 0),  # A B C D in each row: three borders from top to bottom
        "serpentine": (3, 0),
        "column-major": (0, 3),
        "bands": (0, 1),  # A over B, of two rows each; C and D are idle
        "quadrants": (1, 1),
        "z-order": (1, 1),
        "mirrored": (2, 2),  # A|B B|A and so on: none between portions
        "checkerboard": (3, 3),
    }[order]
    meeting = {"quadrants": 1, "z-order": 1, "mirrored": 4}.get(order, 0)
    # of a checkerboard one diagonal has one owner, which is sent two positions once that are in two of its lines, and
    # two corners across the other diagonal: none more
    corners = 4 * meeting
    return 2 * (across * rows + down * columns) + corners


@pytest.mark.slow(but=1)
@pytest.mark.soak(but=6)
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (64, 16)])
@pytest.mark.parametrize("order", ORDERS)
def test_clusters_send_what_counting_by_hand_says(order, rows, columns):
    found = counted_of(order, rows, columns)
    first, second = found.units
    assert first.chip == CHANNELS * by_hand(order, rows, columns) and second.chip == 0
    assert found.recomputed_macs == sum(unit.recomputed_bytes for unit in found.units) == 0
    assert found.dram_bytes_by_class.get("intermediate", 0) == 0


@pytest.mark.slow
@pytest.mark.soak
def test_fewer_borders_lie_between_owners_in_bands_of_two_rows_and_mirrored():
    """In row-major order all neighbours along a row have different owners: three borders from top to bottom.  Bands of
    two rows have one border, from side to side, mirrored portions two and two: fewer bytes where maps are more than
    twice as high as wide."""
    sent = {order: counted_of(order, 64, 16).units[0].chip for order in ("row-major", "mirrored", "bands")}
    assert sent["bands"] < sent["mirrored"] < sent["row-major"]
    assert counted_of("bands", 16, 16).units[0].chip < counted_of("row-major", 16, 16).units[0].chip


def test_positions_are_cut_into_rectangles():
    rng = np.random.default_rng(0)
    for _ in range(20):
        wanted, times = rng.random((5, 6)) < 0.5, np.zeros((5, 6), int)
        for rows, columns in rectangles(wanted):
            times[rows.start : rows.stop, columns.start : columns.stop] += 1
        np.testing.assert_array_equal(times, wanted)
