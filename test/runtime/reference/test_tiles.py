"""The tile level's executor sees what is wrong with tiles: its checks, each with IR that breaks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import run_module
from units import Group, as_units
from units import placed as lowered
from xdsl.rewriter import Rewriter

from frustum.dialects import tile
from frustum.dialects.isa.attributes import BoxAttr
from frustum.dialects.unit import Partition
from frustum.runtime.reference.layers import Held


def placed():
    """Two fused convolutions in tiles of a few rows, and the inputs."""
    net = Net()
    x = net.conv(net.conv(net.input(1, 4, 12, 12), 4, act="relu"), 4)
    module, inputs = net.module(x)
    units = as_units(module, "tiny", [Group((0, 1), Partition((1, 4, 3, 12), 2, 2))])
    return lowered(units), inputs


def only(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)]


def with_height(region, change):
    """The region with `change` more rows at its end."""
    box = region.data
    n, c, h, w = box.extent
    return BoxAttr(replace(box, extent=(n, c, h + change, w)))


def test_the_chain_is_fused_and_cut():
    module, _ = placed()
    (store,) = only(module, tile.StoreOp)
    assert len(only(module, tile.ComputeOp)) == 2
    assert store.region.data.extent[2] < store.region.data.bound[2]


@pytest.mark.parametrize(
    ("kind", "number", "change", "message"),
    [
        (tile.LoadOp, 0, -1, "is read, the tile has"),
        (tile.ComputeOp, 0, -1, "is read, the tile has"),
        (tile.ComputeOp, 1, -1, "is read, the tile has"),  # by the store
        (tile.StoreOp, 0, -1, "elements are not stored exactly once"),
    ],
)
def test_a_region_too_small_is_found(kind, number, change, message):
    module, inputs = placed()
    op = only(module, kind)[number]
    op.properties["region"] = with_height(op.region, change)
    if not isinstance(op, tile.StoreOp):
        held = op.result.type.data
        shrunk = tile.TileType(replace(held, extents=op.region.data.extent))
        Rewriter.replace_value_with_new_type(op.result, shrunk)
    with pytest.raises(AssertionError, match=message):
        run_module(module, inputs)


def test_a_region_of_other_extents_than_its_tile_is_found():
    module, inputs = placed()
    load = only(module, tile.LoadOp)[0]
    load.properties["region"] = with_height(load.region, 1)
    with pytest.raises(AssertionError, match=r"a region of .* is not a tile of"):
        run_module(module, inputs)


def test_storing_twice_is_found():
    module, inputs = placed()
    (store,) = only(module, tile.StoreOp)
    store.parent.insert_op_after(store.clone(), store)
    with pytest.raises(AssertionError, match="576 of 576 elements are not stored exactly once"):
        run_module(module, inputs)


def test_a_view_that_leaves_its_tensor_is_found():
    module, inputs = placed()
    load = only(module, tile.LoadOp)[0]
    load.properties["view"] = tile.ViewAttr(replace(load.view.data, offset=1))
    with pytest.raises(AssertionError, match="leaves the tensor"):
        run_module(module, inputs)


def test_a_window_is_filled_outside_of_the_map_only():
    rows = Held(np.arange(12.0).reshape(1, 1, 4, 3), ((0, 1), (0, 1), (2, 6), (0, 3)), (1, 1, 6, 3))
    window = rows.window(((0, 1), (0, 1), (4, 8), (-1, 2)), fill=-7.0)
    np.testing.assert_array_equal(window[0, 0], [[-7, 6, 7], [-7, 9, 10], [-7, -7, -7], [-7, -7, -7]])
    with pytest.raises(AssertionError, match="is read, the tile has"):
        rows.window(((0, 1), (0, 1), (1, 3), (0, 3)))
