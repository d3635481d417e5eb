"""Partitions that somebody asks for: taken as they are, or refused with numbers."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module
from units import placed
from xdsl.context import Context
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import UnitOp
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.tile.force_partition import ForcePartition
from frustum.passes.tile.partition import PartitionUnits


def cut(target="tiny", channels=4, policy=None, **options):
    """Two convolutions and a pool, in one unit or each alone, cut as asked; the module before too."""
    net = Net()
    x = net.input(1, 2, 12, 16)
    module, inputs = net.module(net.pool("max", net.conv(net.conv(x, channels, 3), channels, 3), 2))
    module = aimed(module, target)
    given = module.clone()
    (FuseLayers(policy=policy) if policy else FuseLayers(cuts="")).apply(Context(), module)
    ForcePartition(**options).apply(Context(), module)
    PartitionUnits().apply(Context(), module)
    return given, inputs, module


def partitions(module):
    return [op.partition.data for op in module.walk() if isinstance(op, UnitOp)]


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("columns", [3, 4])
@pytest.mark.parametrize("borders", ["overlap", "exchange", "raster"])
@pytest.mark.parametrize("target", ["tiny", "df"])
def test_units_are_cut_as_asked(target, borders, columns):
    if borders == "raster" and target == "tiny":
        return
    given, inputs, module = cut(target, tile=(1, 0, 2, columns), borders=borders, clusters=3, depth=1)
    (partition,) = partitions(module)
    assert (partition.tile, partition.borders, partition.depth) == ((1, 4, 2, columns), borders, 1)
    found, wanted = run_module(placed(module), inputs), run_module(given, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("again", ["", "conv_2"])
def test_bands_of_columns_are_cut_as_asked(again):
    given, inputs, module = cut(
        "df", tile=(1, 0, 2, 2), borders="raster", clusters=0, depth=1, bands=4, again=again
    )
    (partition,) = partitions(module)
    assert (partition.bands, partition.again) == (4, (1,) if again else ())
    found, wanted = run_module(placed(module), inputs), run_module(given, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def test_a_band_as_wide_as_the_output_is_none():
    _, _, module = cut("df", tile=(1, 0, 2, 2), borders="raster", clusters=0, bands=8)
    assert partitions(module)[0].bands == 0


def test_only_the_named_unit_is_cut_as_asked():
    _, _, module = cut(policy="none", tile=(1, 0, 2, 0), only="u1")
    rows = [partition.tile[2] for partition in partitions(module)]
    assert rows[1] == 2 and 2 not in (rows[0], rows[2])


@pytest.mark.parametrize(("options", "words"), [
    ({"tile": (1, 4, 7, 8)}, ["u0", "7 rows", "has 6"]),
    ({"tile": (1, 4, 6)}, ["u0", "four extents", "found 3"]),
    ({"tile": (1, 2, 6, 8)}, ["u0", "layers holds all 4 channels"]),
    ({"tile": (1, 4, 6, 8), "borders": "exchange", "clusters": 2}, ["u0", "rows are not dealt"]),
    ({"tile": (1, 4, 6, 8), "only": "u9"}, ["'u9'", "there are 1"]),
    ({"tile": (1, 0, 2, 2), "borders": "raster", "again": "Conv_7"}, ["no layer is called 'Conv_7'", "there are 3"]),
    ({"tile": (1, 0, 2, 2), "borders": "raster", "bands": 4}, ["u0", "columns are dealt to clusters (3)"]),
    ({"tile": (1, 0, 2, 4), "borders": "raster", "bands": 3, "clusters": 0}, ["u0", "narrower than a tile of 4"]),
    ({"tile": (1, 0, 6, 5), "bands": 5, "clusters": 0, "target": "df"}, ["u0", "differ in their pieces"]),
])  # fmt: skip
def test_what_cannot_be_cut_so_is_refused(options, words):
    with pytest.raises(PassFailedException) as error:
        cut(**options)
    text = str(error.value)
    for word in words:
        assert word in text, text


def test_what_does_not_fit_says_by_how_much():
    with pytest.raises(DoesNotFit) as error:
        cut(channels=64, tile=(1, 0, 0, 0), clusters=0)
    needed, available = int(error.value.needed.split()[0]), int(error.value.available.split()[0])
    assert needed > available and "u0" in str(error.value)
