"""Units of which rows and columns are kept: nothing is loaded or computed twice, and the numbers are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from networks import Net
from raster_networks import chains, one_unit, vgg_like
from stops import run_module
from xdsl.context import Context
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from frustum.dialects import graph, tile
from frustum.dialects.isa.program import Affine
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import Unprojectable
from frustum.runtime.reference.tiles import clipped


@pytest.mark.slow
@pytest.mark.soak
def test_steps_along_rows_and_columns_give_the_same_numbers():
    """In the tile reference every slot of a ring knows its row and column."""
    done = []

    @settings(max_examples=30)
    @given(chains())
    def check(drawn):
        module, inputs = drawn.module, drawn.inputs
        try:
            lowered = one_unit(module, drawn.target, drawn.partition)
        except Unprojectable:
            return
        wanted, found = run_module(module, inputs), run_module(lowered, inputs)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
        assert_once(lowered)
        tiles = [op.result.type.data for op in lowered.walk() if isinstance(op, tile.LoadOp | tile.ComputeOp)]
        done.append(any(t.raster for t in tiles))

    check()
    assert len(done) >= 20 and sum(done) >= 12, (len(done), sum(done))


def assert_once(lowered):
    """No element of any map is loaded or computed in two passes; counted with numpy, not with the compiler."""
    for unit in [op for op in lowered.walk() if isinstance(op, tile.UnitOp)]:
        for op in unit.body.block.ops:
            if isinstance(op, tile.LoadOp | tile.ComputeOp):
                box, times = op.region.data, np.zeros(op.region.data.bound, np.int32)
                clusters = 4 if any(start.cluster for start in box.start) else 1
                for *indices, cluster in np.ndindex(*unit.tile_counts, clusters):
                    ranges = clipped(box, indices, cluster)
                    times[tuple(slice(low, high) for low, high in ranges)] += 1
                assert times.max() <= 1, f"{op.name} makes some elements {times.max()} times"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2), (2, 1), (2, 3), (4, 4)])
def test_rings_hold_just_the_rows_and_columns_that_are_read_again(rows, columns):
    """Storage beyond a step's own rows and columns, by a formula of its own: of the rows that a 3x3 window reads
    again all columns, of the other rows two columns, and two columns more at the end of the ring."""
    module, inputs = vgg_like()
    lowered = one_unit(module, "df", Partition((1, 5, rows, columns), 0, 1, "raster"))
    wanted, found = run_module(module, inputs), run_module(lowered, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)
    tiles = [op.result.type.data for op in lowered.walk() if isinstance(op, tile.LoadOp | tile.ComputeOp)]
    held = sum(t.raster.elements(t.extents) for t in tiles if t.raster)
    channels_width_times = [(2, 16, 4), (3, 16, 4), (3, 8, 2), (4, 8, 2), (4, 4, 1)]
    asked = 0
    for channels, width, times in channels_width_times:
        made, across = rows * times, columns * times
        kept, back = min(2, made), -(-2 // made)
        asked += channels * (kept * (back * width + across + 2) + (made - kept) * (across + 2))
    assert held == asked


def test_the_type_of_a_tile_says_how_it_lies():
    raster = tile.Raster(2, 1, 26, 16)
    kind = tile.TileType(tile.Tile("f32", (1, 3, 4, 10), (0, 1, 2, 3), (Affine(),) * 4, raster=raster))
    text = "!ftile.tile<f32, [1, 3, 4, 10], [0, 1, 2, 3], origin [0, 0, 0, 0], raster [2, 1, 26, 16]>"
    assert str(kind) == text
    context = Context()
    context.load_dialect(tile.FTile)
    assert Parser(context, text).parse_type() == kind


@pytest.mark.parametrize("raster", [(5, 1, 26, 16), (2, 0, 26, 16), (2, 1, 16, 16)])
def test_rings_that_cannot_hold_what_is_read_are_refused(raster):
    with pytest.raises(VerifyException, match="raster"):
        tile.TileType(tile.Tile("f32", (1, 3, 4, 10), (0, 1, 2, 3), (Affine(),) * 4, raster=tile.Raster(*raster)))


def test_what_cannot_go_in_steps_along_both_is_refused_by_name():
    net = Net()
    x = net.input(1, 2, 8, 8)
    module, _ = net.module(net.layer(graph.ConcatOp([net.conv(x, 2, 3), net.conv(x, 2, 1)], 1)))
    with pytest.raises(Unprojectable, match="raster"):
        one_unit(module, "edge", Partition((1, 4, 2, 2), 0, 1, "raster"))
    module, _ = vgg_like()
    with pytest.raises(Unprojectable, match="only images"):
        one_unit(module, "tiny", Partition((1, 5, 2, 2), 3, 1, "raster"))
