"""Units in bands of columns, and layers made again: the same numbers, and made twice is just what bands share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from raster_networks import chains, one_unit, vgg_like
from stops import executable, run_module
from units import layers_in
from xdsl.context import Context
from xdsl.parser import Parser
from xdsl.utils.exceptions import PassFailedException, VerifyException

from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph, tile, unit
from frustum.dialects.graph import shape_of
from frustum.dialects.unit import Partition, PartitionAttr
from frustum.passes.analysis.layer import layer_of
from frustum.passes.analysis.project import Unprojectable
from frustum.runtime.machine import Machine
from frustum.runtime.reference.tiles import clipped
from frustum.runtime.report.counters import count


@st.composite
def banded(draw):
    """A unit in two or more bands, with rows or rows and columns kept, or computed again; some layers made again."""
    drawn = draw(chains())
    module, (c, h, w) = drawn.module, shape_of(layers_in(drawn.module)[-1].results[0])[1:]
    bands = draw(st.integers(1, max(1, w - 1)))
    borders = draw(st.sampled_from(["overlap", "exchange", "raster", "raster"]))
    rows, columns = draw(st.integers(1, min(h, 3))), draw(st.integers(1, min(bands, 4)))
    inside = len(layers_in(module)) - 1
    again = draw(st.sets(st.integers(0, inside - 1), max_size=2)) if inside and borders != "overlap" else ()
    partition = Partition(
        (1, c, rows, columns), 0, draw(st.integers(1, 2)), borders, False, bands, tuple(sorted(again))
    )
    return replace(drawn, partition=partition)


@pytest.mark.slow
def test_bands_and_layers_made_again_give_the_same_numbers():
    done = []

    @settings(max_examples=25)
    @given(banded())
    def check(drawn):
        try:
            lowered = one_unit(drawn.module, drawn.target, drawn.partition)
        except (Unprojectable, PassFailedException):
            return
        wanted, found = run_module(drawn.module, drawn.inputs), run_module(lowered, drawn.inputs)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
        done.append((drawn.partition.borders, bool(drawn.partition.again)))

    check()
    assert len(done) >= 12 and {("raster", True), ("exchange", True), ("overlap", False)} <= set(done), done


@pytest.mark.slow
@pytest.mark.parametrize(("borders", "again"), [("raster", ()), ("raster", (0,)), ("exchange", (1,))])
def test_the_machine_makes_twice_just_what_bands_share(borders, again):
    """Multiplications and bytes of results made twice, counted by the machine, against those counted with numpy from
    the regions of the tile level; the columns that two bands load worked out by hand."""
    module, inputs = vgg_like(32)
    columns = 2 if borders == "raster" else 4
    lowered = one_unit(module, "df", Partition((1, 5, 1, columns), 0, 1, borders, False, 4, again))
    layers = [layer_of(op) for op in layers_in(module)]
    times = [made_times(lowered, j, layer.out_dims) for j, layer in enumerate(layers)]
    assert all(t.min() >= 1 for t in times)
    twice = [int((t - 1).sum()) for t in times]
    Run().advance(lowered, ["lowered"], Choices())
    made = executable(lowered)
    machine = Machine(made)
    result = machine.run(inputs, mode="full", checked=True)
    for name, array in run_module(module, inputs).items():
        np.testing.assert_allclose(np.asarray(result.outputs[name], np.float32), array, rtol=1e-4, atol=1e-4)
    found = count(machine.expanded, machine.target, made.code.page_bytes)
    macs = sum(n * layer.macs // t.size for n, layer, t in zip(twice, layers, times, strict=True))
    assert sum(unit.recomputed_macs for unit in found.units) == found.recomputed_macs == macs > 0
    assert found.useful_macs == sum(layer.macs for layer in layers)
    assert sum(unit.recomputed_bytes for unit in found.units) == 4 * sum(twice)
    # columns [0, 4) of the output need 5 of the map before, then 10, 11, 12, 24, 25, and 26 of 32 of the input
    assert found.dram_bytes_by_class["input"] == 4 * 2 * 16 * 2 * 26


def made_times(lowered, layer, dims):
    """How often each element of a layer's map is made, over two bands: the second ends where the map does."""
    total = np.zeros(dims, np.int32)
    left, right = [op for op in lowered.walk() if isinstance(op, tile.UnitOp)]
    for own in (left, right):
        op = [o for o in own.body.block.ops if isinstance(o, tile.ComputeOp)][layer]
        box = op.region.data
        times = np.zeros(box.bound, np.int32)
        for *indices, cluster in np.ndindex(*own.tile_counts, 1):
            times[tuple(slice(low, high) for low, high in clipped(box, indices, cluster))] += 1
        first = 0 if own is left else dims[3] - box.bound[3]
        total[..., first : first + box.bound[3]] += times
    return total


def test_steps_make_what_is_not_kept_again():
    """A layer of which no rows are kept makes two rows more in each step for the 3x3 window behind it; nothing of it
    lies in a ring of rows, and the one before keeps two rows more."""
    module, inputs = vgg_like()
    kept = one_unit(module, "df", Partition((1, 5, 1, 2), 0, 1, "raster"))
    again = one_unit(module, "df", Partition((1, 5, 1, 2), 0, 1, "raster", again=(0,)))
    tiles = [
        [op.result.type.data for op in each.walk() if isinstance(op, tile.LoadOp | tile.ComputeOp)][:2]
        for each in (kept, again)
    ]
    (x, y), (x_again, y_again) = tiles
    assert (y.raster.kept, y.extents[2]) == (2, 4) and (y_again.raster.kept, y_again.extents[2]) == (0, 6)
    assert (x.raster.kept, x_again.raster.kept) == (2, 4)
    wanted, found = run_module(module, inputs), run_module(again, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", [
    "#funit.partition<tile [1, 5, 1, 2], clusters 0, depth 1, borders raster, bands 28, again [0, 2]>",
    "#funit.partition<tile [1, 5, 1, 2], clusters 0, depth 1, trimmed, bands 28>",
    "#funit.partition<tile [1, 5, 1, 2], clusters 3, depth 2>",
])  # fmt: skip
def test_a_partition_says_its_bands_and_what_is_made_again(text):
    context = Context()
    context.load_dialect(unit.FUnit)
    assert str(Parser(context, text).parse_attribute()) == text


def test_a_partition_counts_from_zero():
    with pytest.raises(VerifyException, match="bands and again"):
        PartitionAttr(Partition((1, 5, 1, 2), 0, 1, "raster", bands=-1))


def test_what_cannot_go_in_bands_is_refused_by_name():
    net = Net()
    x = net.input(1, 2, 8, 8)
    module, _ = net.module(net.layer(graph.SoftmaxOp(net.conv(x, 2, 3), 3)))
    with pytest.raises(Unprojectable, match=r"softmax.*not cut into bands"):
        one_unit(module, "df", Partition((1, 2, 8, 4), 0, 1, bands=4))
    module, _ = vgg_like()
    with pytest.raises(Unprojectable, match="dealt to clusters"):
        one_unit(module, "tiny", Partition((1, 5, 1, 2), 3, 1, "raster", bands=2))
    with pytest.raises(Unprojectable, match="narrower than a tile of 4"):
        one_unit(module, "df", Partition((1, 5, 1, 4), 0, 1, "raster", bands=2))
    with pytest.raises(Unprojectable, match="leaves the unit"):
        one_unit(module, "df", Partition((1, 5, 1, 2), 0, 1, "raster", again=(6,)))
    with pytest.raises(Unprojectable, match="there are 7"):
        one_unit(module, "df", Partition((1, 5, 1, 2), 0, 1, "raster", again=(9,)))
    with pytest.raises(Unprojectable, match="none is named"):
        one_unit(module, "df", Partition((1, 5, 1, 2), 0, 1, "overlap", again=(0,)))
