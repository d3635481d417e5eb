"""Regions against brute force: a tile of the output depends on no input element outside, and no region is too large.

What an output depends on is found by running the network with NaN in all other places.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import Net

from frustum.dialects import graph
from frustum.dialects.graph import shape_of
from frustum.dialects.isa.program import Affine
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import (
    Region,
    Unprojectable,
    hull,
    layers_of,
    project,
    tile_counts,
    whole_input,
)
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor, network_of


def stack(draw, is_plain):
    """A network of windows on one map, perhaps with a detour that is added again; (module, inputs)."""
    net = Net()
    x = net.input(1, 2, draw(st.integers(6, 14)), draw(st.integers(6, 14)))
    for _ in range(draw(st.integers(1, 3))):
        x = layer(draw, net, x, is_plain)
    if not is_plain and draw(st.booleans()):
        y = net.conv(x, shape_of(x)[1], 3)
        x = net.binary("add", y, net.unary("neg", x))
    return net.module(x)


def layer(draw, net, x, is_plain):
    """A convolution or pool; a plain one has neither gaps between its taps nor cropped borders."""
    plane = shape_of(x)[2:]
    kernel = draw(st.integers(1, 3))
    stride = draw(st.integers(1, kernel if is_plain else 3))
    dilation = 1 if is_plain else draw(st.integers(1, 2))
    if (kernel - 1) * dilation >= min(plane):
        kernel, stride, dilation = 1, 1, 1
    pad = st.integers(0 if is_plain or min(plane) < 5 else -1, (kernel - 1) * dilation // 2)
    rest = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": tuple(draw(pad) for _ in range(4))}
    if draw(st.booleans()):
        return net.layer(graph.PoolOp("max", x, kernel=(kernel,) * 2, **rest))
    return net.conv(x, 2, kernel, bias=False, **rest)


class Case:
    """A network as one unit, and how its output is cut."""

    def __init__(self, module, inputs, unit, partition, clusters):
        self.all = module, inputs, unit, partition, clusters

    def __repr__(self):
        return f"\n{self.all[0]}\n{self.all[3]} on {self.all[4]} clusters"


@st.composite
def cases(draw, is_plain):
    module, inputs = stack(draw, is_plain)
    ops = [op for op in network_of(module).body.block.ops if not isinstance(op, graph.OutputOp)]
    unit = layers_of(ops)
    n, c, *plane = unit.out.out_dims
    clusters = draw(st.integers(1, 3))
    h, w = (draw(st.integers(1, extent)) for extent in plane)
    return Case(module, inputs, unit, Partition((n, c, h, w), draw(st.sampled_from([2, 3])), 1), clusters)


def clipped(region, dims, indices, cluster):
    """The region's box in the map as slices."""
    starts = [start.at(indices, cluster) for start in region.start]
    return tuple(
        slice(max(0, a), max(0, min(a + e, size)))
        for a, e, size in zip(starts, region.extent, dims, strict=True)
    )


def tiles(unit, partition, clusters):
    """(indices, cluster) of all tiles."""
    counts = tile_counts(unit.out.out_dims, partition, clusters)
    return product(product(*map(range, counts)), range(clusters))


def outer_boxes(unit, projection, indices, cluster):
    """The boxes of the network's input that the layers read."""
    for layer, regions, sources in zip(unit.layers, projection.operands, unit.sources, strict=True):
        for operand, region, source in zip(layer.maps, regions, sources, strict=True):
            if source.layer is None:
                yield clipped(region, operand.dims, indices, cluster)


def computed_from(module, array):
    with np.errstate(invalid="ignore"):
        return ReferenceExecutor(store_of(module)).run_graph(module, {"x0": array})["y0"]


@pytest.mark.slow
@given(cases(is_plain=False))
def test_a_tile_needs_nothing_outside_of_its_regions(case):
    module, inputs, unit, partition, clusters = case.all
    projection = project(unit, partition, clusters)
    seen = np.zeros(unit.out.out_dims, int)
    for indices, cluster in tiles(unit, partition, clusters):
        poisoned = np.full_like(inputs["x0"], np.nan)
        for box in outer_boxes(unit, projection, indices, cluster):
            poisoned[box] = inputs["x0"][box]
        place = clipped(projection.outputs[-1], unit.out.out_dims, indices, cluster)
        assert np.isfinite(computed_from(module, poisoned)[place]).all()
        seen[place] += 1
    assert (seen == 1).all()  # the tiles are a partition of the output


@pytest.mark.slow
@given(cases(is_plain=True))
def test_no_row_or_column_of_a_region_is_superfluous(case):
    """For windows without gaps: each border of the clipped region is read by the tile (but the end for a last tile
    that is cut: its region keeps the extents of the others)."""
    module, inputs, unit, partition, clusters = case.all
    projection = project(unit, partition, clusters)
    for indices, cluster in tiles(unit, partition, clusters):
        place = clipped(projection.outputs[-1], unit.out.out_dims, indices, cluster)
        (box,) = outer_boxes(unit, projection, indices, cluster)
        if any(p.start >= p.stop for p in place):
            continue
        for axis in (2, 3):
            is_whole = place[axis].stop - place[axis].start == partition.tile[axis]
            for border in {box[axis].start, box[axis].stop - 1 if is_whole else box[axis].start}:
                poisoned = inputs["x0"].copy()
                poisoned[(*box[:axis], border)] = np.nan
                assert np.isnan(computed_from(module, poisoned)[place]).any(), (axis, border, box)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 8))
def test_dealt_tiles_cover_and_no_pass_is_empty(extent, tile, clusters):
    *_, passes = tile_counts((1, 1, 1, extent), Partition((1, 1, 1, tile), 3, 1), clusters)
    assert passes * tile * clusters >= extent > (passes - 1) * tile * clusters


@pytest.mark.parametrize(
    ("a", "b", "start", "extent"),
    [
        (Affine(-1, (4,)), Affine(1, (4,)), Affine(-1, (4,)), 8),
        (Affine(3, (2,), 5), Affine(0, (2,), 5), Affine(0, (2,), 5), 9),
        (Affine(0, (2,)), Affine(0, (3,)), Affine(), 50),  # they move at different speeds: the whole dimension
    ],
)
def test_hull(a, b, start, extent):
    fixed = Affine()
    joined = hull(Region((fixed, fixed, a, fixed), (1, 1, 6, 1)),
                  Region((fixed, fixed, b, fixed), (1, 1, 6, 1)), (1, 1, 50, 1))  # fmt: skip
    assert joined == Region((fixed, fixed, start, fixed), (1, 1, extent, 1))


def test_an_input_that_all_clusters_share_is_loaded_whole_unless_it_lies_in_sram():
    """What is resident stays as it is there: the region that the tile needs."""
    region = Region((Affine(1), Affine(2), Affine(3), Affine(4)), (1, 5, 6, 7))

    def unit(*, resident):
        own = SimpleNamespace(resident=resident, dims=(2, 9, 30, 40))
        return SimpleNamespace(inputs=[own], layers=[None], root=lambda place: place)

    assert whole_input(unit(resident=True), 0, region) == region
    whole = Region((Affine(1), Affine(2), Affine(), Affine()), (1, 5, 30, 40))
    assert whole_input(unit(resident=False), 0, region) == whole


def test_equal_units_of_different_networks_know_the_same_regions_and_others_do_not():
    def unit(channels=3, rows=9, **said):
        net = Net()
        y = net.conv(net.input(1, 2, rows, 9), channels, 3)
        module, _ = net.module(y)
        ops = [op for op in network_of(module).body.block.ops if isinstance(op, graph.ConvOp)]
        return layers_of(ops, resident={ops[0].operands[0]} if said else ())

    one, other = unit(), unit()
    whole = Partition((1, 3, 4, 9), 0, 1)
    assert one.ops != other.ops
    assert project(one, whole, 1) is project(other, whole, 1)
    for different in (unit(channels=4), unit(rows=11), unit(resident=True)):
        assert different.projected is not one.projected


def test_what_is_normalised_is_whole_where_shares_of_clusters_are_as_long_as_the_map():
    """A window over the share of a cluster, borders and all, is as long as the map and moves over its border."""
    net = Net()
    x = net.input(1, 4, 6, 4)
    y = net.conv(net.layer(graph.NormaliseOp(x, axes=(1, 2, 3), groups=2, epsilon=1e-5)), 4, 3)
    module, _ = net.module(y)
    ops = [op for op in network_of(module).body.block.ops if isinstance(op, graph.ConvOp | graph.NormaliseOp)]
    found = project(layers_of(ops), Partition((1, 4, 6, 2), 3, 1), 2)
    assert found.outputs[1].parts[3] == (Affine(0, (), 2), 2)
    assert found.outputs[0].parts[3] == (Affine(), 4)


def test_what_is_normalised_does_not_go_in_steps_of_rows_though_its_input_is_there():
    net = Net()
    x = net.input(1, 4, 11, 7)
    y = net.conv(net.layer(graph.NormaliseOp(x, axes=(1, 2, 3), groups=2, epsilon=1e-5)), 4, 1)
    net.module(y)
    ops = [y.owner.operands[0].owner, y.owner]
    with pytest.raises(Unprojectable, match="needs all 11 positions of d2 at once, a tile has 6"):
        project(layers_of(ops, resident={ops[0].operands[0]}), Partition((1, 4, 6, 7), 2, 1, borders="exchange"), 1)
