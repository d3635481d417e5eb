"""Owners that hand borders over: in every direction the same numbers, nothing made twice, and as many bytes between
them as counted by hand."""

from __future__ import annotations

import pytest
from integer_networks import IntegerNet
from owners import counted, times_made
from stops import aimed, executable, machine_of
from units import placed
from xdsl.context import Context
from xdsl.utils.exceptions import PassFailedException

from frustum.backend.pipeline import Choices, Run
from frustum.dialects import tile as t
from frustum.dialects.target.fit import OrderDoesNotFit
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.project import unit_layers
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.tile.assign_order import AssignOrder
from frustum.passes.tile.assign_owners import AssignOwners, makes_twice
from frustum.passes.tile.force_partition import ForcePartition
from frustum.passes.tile.orders import Bands, Grid, are_strips

SIZE, CHANNELS = 16, 8
WAYS = ("down", "up", "right", "left")


def network(rows=SIZE, columns=SIZE):
    """Three products with windows of 3 x 3 and a pool of 2 x 2, of integers."""
    net = IntegerNet(1)
    x = net.integer_input(1, 3, rows, columns)
    for _ in range(3):
        x = net.product(x, CHANNELS, kernel=3)
    return net.module(net.pool("max", x, 2, 2))


def cut(module, cores, way, owners, step=1):
    """All layers in one unit, in strips of owners that go in a direction, `step` positions of the output at once."""
    machine = machine_of(cores)
    module = aimed(module, machine)
    FuseLayers(cuts="").apply(Context(), module)
    share = SIZE // 2 // machine.chip.clusters
    tile, beside = ((1, 0, step, share), 3) if way in ("down", "up") else ((1, 0, share, step), 2)
    ForcePartition(tile, borders="exchange", clusters=beside, owners=owners, way=way).apply(Context(), module)
    return module


@pytest.mark.slow
@pytest.mark.soak(but=8)
@pytest.mark.parametrize("cores", [1, 2, 4, 16])
@pytest.mark.parametrize("owners", ["clusters", "cores"])
@pytest.mark.parametrize("way", WAYS)
def test_owners_hand_borders_over_in_every_direction(way, owners, cores):
    module, inputs = network()
    machine = machine_of(cores)
    found = counted(module, inputs, placed(cut(module, cores, way, owners)))
    (unit,) = found.units
    clusters = machine.chip.clusters
    assert unit.recomputed_macs == unit.recomputed_bytes == 0
    # of the results of the first two products, one position in each direction over each border
    assert unit.chip == 2 * 2 * (clusters - 1) * SIZE * CHANNELS
    assert found.dram_bytes_by_class.get("intermediate", 0) == 0
    assert found.dram_bytes_by_class["output"] == SIZE * SIZE // 4 * CHANNELS


@pytest.mark.slow
@pytest.mark.parametrize("way", ["down", "right"])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_cores_take_of_each_other_what_their_windows_read_beyond_their_strips(way, step):
    """Of the results of the first two products: in each step two columns at each of three borders, of all rows that the
    step reads: two more than it makes, of those that are in the map."""
    module, inputs = network()
    tiles = placed(cut(module, 4, way, "cores", step))
    (unit,) = [op for op in tiles.walk() if isinstance(op, t.UnitOp)]
    along = 2 if way == "down" else 3
    rows = 0
    for op in [op for op in unit.body.block.ops if isinstance(op, t.ComputeOp)][1:3]:
        axis, span = op.access.data[0].data[along], op.region.data.spans[along]
        for index in range(unit.tile_counts[along]):
            low = span.start.at((0, 0, index, index), 0) + axis.low
            rows += max(0, min(low + span.extent + axis.reach, SIZE) - max(low, 0))
    (counted_unit,) = counted(module, inputs, tiles).units
    assert counted_unit.cluster == 2 * 3 * CHANNELS * rows
    assert counted_unit.chip == 0 < counted_unit.core


@pytest.mark.parametrize("cores", [4, 16])
def test_tiles_of_cores_are_disjoint(cores):
    """What each core puts into SRAM of a map: together the map, once."""
    module, _ = network()
    tiles = placed(cut(module, cores, "down", "cores"))
    assert [op.owners.data for op in tiles.walk() if isinstance(op, t.UnitOp)] == ["cores"]
    Run().advance(tiles, ["lowered"], Choices())
    maps = times_made(executable(tiles))
    assert len(maps) == 4 and all((made == 1).all() for made in maps.values())


@pytest.mark.slow
@pytest.mark.soak(but=6)
@pytest.mark.parametrize(
    ("order", "rolls"), [("row-major", True), ("serpentine", True), ("column-major", True), ("mirrored", True),
                         ("quadrants", True), ("checkerboard", False)],
)  # fmt: skip
@pytest.mark.parametrize("owners", ["clusters", "cores"])
def test_orders_get_strips_with_owners(order, rolls, owners):
    module, inputs = network()
    tiles = aimed(module, machine_of(16))
    FuseLayers(cuts="").apply(Context(), tiles)
    ForcePartition((1, 0, 2, 0)).apply(Context(), tiles)
    if owners == "cores" and not rolls:
        with pytest.raises(OrderDoesNotFit, match="a core goes in another way in this order"):
            AssignOwners(order=order, owners=owners).apply(Context(), tiles)
        return
    AssignOwners(order=order, owners=owners).apply(Context(), tiles)
    (unit,) = [op for op in tiles.walk() if isinstance(op, UnitOp)]
    partition = unit.partition.data
    assert (partition.owners == owners) == rolls
    assert makes_twice(unit_layers(unit), partition, 4) != rolls
    if rolls:
        tiles = placed(tiles)
        AssignOrder(order=order).apply(Context(), tiles)
        assert counted(module, inputs, tiles).recomputed_macs == 0


def test_an_order_without_strips_is_refused_where_rows_roll():
    tiles = aimed(network()[0], machine_of(16))
    FuseLayers(cuts="").apply(Context(), tiles)
    ForcePartition((1, 0, 2, 0)).apply(Context(), tiles)
    AssignOwners(order="row-major", owners="clusters").apply(Context(), tiles)
    tiles = placed(tiles)
    with pytest.raises(PassFailedException, match="owners have no such strips in order checkerboard"):
        AssignOrder(order="checkerboard").apply(Context(), tiles)


def test_strips_are_what_orders_say():
    """Four owners; a serpentine of one column each goes as rows do; quadrants are strips where a grid has an odd number
    of rows, for then strips leave fewer idle than squares."""
    bands = Bands(2, "right-left")
    assert are_strips("bands", Grid(8, 5, 4), bands, "left") and not are_strips("bands", Grid(8, 5, 4), bands, "right")
    assert are_strips("bands", Grid(4, 5, 4), bands, "left")  # two owners are idle
    assert are_strips("serpentine", Grid(6, 4, 4), Bands(), "down")
    assert are_strips("quadrants", Grid(7, 4, 4), Bands(), "down")
    assert not are_strips("quadrants", Grid(6, 4, 4), Bands(), "down")
    assert not are_strips("row-major", Grid(6, 8, 4), Bands(), "down")


@pytest.mark.parametrize(("rows", "said"), [(2, "one row or column alone"), (SIZE, "B of SRAM for all maps of a step")])
def test_why_cores_own_no_strips(rows, said):
    """A map of one row behind the pool, in one column; and no SRAM at all."""
    module, _ = network(rows, rows)
    tiles = aimed(module, machine_of(16))
    FuseLayers(cuts="").apply(Context(), tiles)
    ForcePartition((1, 0, 1, 0)).apply(Context(), tiles)
    with pytest.raises(OrderDoesNotFit, match=said):
        AssignOwners(owners="cores", sram=0.0).apply(Context(), tiles)
