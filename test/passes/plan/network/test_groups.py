"""Groups of all lengths against `project` and `footprint`, one unit and one partition at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fusion_networks import Case, grown
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from xdsl.dialects.builtin import DenseArrayBase, i64

from frustum.backend import targets
from frustum.dialects import graph
from frustum.dialects.module import FORM
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import project
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.cost import CutUnit, vector_bytes, weight_bytes
from frustum.passes.plan.cut_bytes import loaded_elements
from frustum.passes.plan.network.groups import GroupsBefore
from frustum.passes.plan.network.layer_order import ops_of_section, order_of
from frustum.passes.plan.network.needs import Intervals, below
from frustum.passes.plan.network.tile_shapes import BY_IMAGES, Mode, shapes_of
from frustum.passes.plan.partitions import candidates
from frustum.runtime.reference.graph import network_of

DEFAULT, EDGE, MANYCORE = (targets.load(name) for name in ("default", "edge", "manycore"))
UNBOUNDED = 1 << 40
SRAM = replace(EDGE.cluster.sram, capacity_bytes=2048)
SMALL = replace(EDGE, chip=replace(EDGE.chip, cluster=replace(EDGE.cluster, sram=SRAM)))


@st.composite
def networks(draw, layers):
    """Windows, branches that are added or joined along channels, moves between them."""
    net = Net()
    size = draw(st.sampled_from([8, 12, 16, 24]))
    maps = [net.input(draw(st.integers(1, 2)), draw(st.sampled_from([2, 4])), size, size)]
    for _ in range(draw(st.integers(1, layers))):
        x = maps[-1 - draw(st.integers(0, min(2, len(maps) - 1)))]
        maps.append(grown(draw, net, x, maps))
    return Case(net.module(maps[-1])[0])


@pytest.fixture(autouse=True, scope="module")
def held_constants():
    """None: small constants too are counted tile by tile here, as projection has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("frustum.passes.plan.network.groups.HELD_CONSTANT", 0)
        yield


def listed(module):
    network = network_of(module)
    return order_of(ops_of_section(network), network.terminator.values)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=40)
@given(networks(6))
def test_every_shape_of_every_group_is_what_projection_says(case):
    for _ in checked(case, EDGE, lambda shapes: True):
        pass


def checked(case, target, wanted, clusters=1):
    """The groups of a network, one for each of their shapes that is wanted, which is checked first."""
    order = listed(case.module)
    for stop in range(1, len(order.nodes) + 1):
        node = order.nodes[stop - 1]
        for group in GroupsBefore(order, target, stop).within(UNBOUNDED) if node.layer is not None else ():
            for k in np.flatnonzero(group.valid & wanted(group.shapes)):
                check(order, group, int(k), node.layer.out_dims[1], clusters)
                yield group


def check(order, group, k, channels, clusters=1):
    ops = [n.op for n in order.nodes[group.first : group.stop]]
    unit = layers_of(ops, [order.nodes[b.map].op.results[0] for b in group.outputs])
    shapes = group.shapes
    late = max([int(group.late[k]), *(int(b.late[k]) for b in group.inputs)])
    steps = late + int(group.behind[k]) if shapes.is_roll[k] else int(shapes.counts[1][k])
    partition = shapes.partition(k, channels, steps * int(group.across[k]))
    projection = project(unit, partition, clusters)
    assert projection.counts[2:] == (steps, group.across[k])
    needs = CutUnit(unit, partition, projection, EDGE).footprint()
    own = needs.total_bytes - needs.weight_bytes
    boundary = sum(int(b.buffer[k]) for b in (*group.inputs, *group.outputs))
    assert int(group.inside[k]) + boundary == own
    order = (1, 0, 3, 2) if partition.borders == "exchange" else (1, 0, 2, 3)
    moved = sum(
        loaded_elements(region, own.dims, projection.counts, clusters, order) * own.element_bytes
        for own, region in zip(unit.inputs, projection.inputs, strict=True)
    )
    assert sum(int(b.moved[k]) for b in group.inputs) == moved
    assert sum(group.weights) == sum(weight_bytes(x, x.out_dims[1]) for x in unit.layers)
    assert group.vector_bytes == sum(vector_bytes(x, x.out_dims[1]) for x in unit.layers)


@st.composite
def with_constants(draw, layers):
    """Images that are multiplied by constants with some of their dimensions, between other layers."""
    net = Net()
    side = draw(st.sampled_from([6, 8, 16]))
    maps = [net.input(draw(st.integers(1, 4)), 2, side, side)]
    for _ in range(draw(st.integers(1, layers))):
        x = maps[-1 - draw(st.integers(0, min(2, len(maps) - 1)))]
        if draw(st.booleans()):
            shape = (extent if draw(st.booleans()) else 1 for extent in graph.shape_of(x))
            maps.append(net.binary("mul", x, net.weight(*shape)))
        else:
            maps.append(grown(draw, net, x, maps))
    return Case(net.module(maps[-1])[0])


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=30)
@given(with_constants(4), st.sampled_from([EDGE, DEFAULT]))
def test_constants_are_loaded_tile_by_tile_as_projection_says(case, target):
    for _ in checked(case, target, lambda shapes: True, target.chip.clusters):
        pass


@given(st.integers(-20, 20), st.integers(1, 9), st.integers(1, 12), st.integers(1, 9), st.integers(1, 40))
def test_clipped_intervals_are_summed_in_closed_form(base, step, extent, count, size):
    boxes = [(base + i * step, base + i * step + extent) for i in range(count)]
    expected = sum(max(0, min(high, size) - max(low, 0)) for low, high in boxes)
    if all(low < size and high > 0 for low, high in boxes):
        as_array = [np.array([v]) for v in (base, step, extent, count)]
        assert Intervals(*as_array[:3]).covered(as_array[3], size)[0] == expected
    assert below(np.array([base]), np.array([step]), np.array([count]))[0] == sum(
        max(0, base - i * step) for i in range(count)
    )


def test_no_group_is_longer_than_one_that_cannot_be_a_unit():
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), 4)
    y = net.layer(graph.TransposeOp(x, (0, 1, 3, 2)))
    order = listed(net.module(net.conv(y, 4))[0])
    assert [g.first for g in GroupsBefore(order, EDGE, 3).within(UNBOUNDED)] == [2]


def test_rolling_rows_hold_what_the_windows_need():
    """Two 3x3 windows, one row at a time: two rows of each map before, and the row that comes."""
    net = Net()
    x = net.conv(net.conv(net.input(1, 4, 16, 16), 4, bias=False), 4, bias=False)
    group = list(GroupsBefore(listed(net.module(x)[0]), EDGE, 2).within(UNBOUNDED))[-1]
    k = next(
        k
        for k in range(len(group.valid))
        if group.shapes.mode[k] == Mode.ROLL and group.shapes.rows[k] == 1 and group.shapes.columns[k] == 16
    )
    row = 4 * 16 * 4
    assert group.inside[k] == 3 * row
    assert group.inputs[0].buffer[k] == 4 * row  # one more is loaded meanwhile
    assert group.outputs[0].buffer[k] == 2 * row
    assert group.inputs[0].moved[k] == 16 * row


def test_borders_can_be_restricted():
    net = Net()
    order = listed(net.module(net.conv(net.input(1, 4, 16, 16), 4))[0])
    modes = {
        borders: set(GroupsBefore(order, EDGE, 1, borders).shapes.mode)
        for borders in ("overlap", "exchange", "auto")
    }
    assert modes["overlap"] & {Mode.OVERLAP, Mode.ROLL} == {Mode.OVERLAP}
    assert modes["exchange"] & {Mode.OVERLAP, Mode.ROLL} == {Mode.ROLL}
    assert modes["auto"] >= {Mode.OVERLAP, Mode.ROLL}


def test_a_partition_that_projection_refuses_is_not_in_a_group():
    """A stride of 2 beside none: no rate of rows goes for both."""
    net = Net()
    x = net.input(1, 4, 16, 16)
    a = net.conv(net.conv(x, 4, strides=(2, 2)), 4)
    b = net.layer(graph.SliceOp(net.conv(x, 4), (0, 0, 0, 0), (1, 4, 8, 8)))
    order = listed(net.module(net.binary("add", a, b))[0])
    for stop in range(1, len(order.nodes) + 1):
        if order.nodes[stop - 1].layer is None:
            continue
        for group in GroupsBefore(order, EDGE, stop).within(UNBOUNDED):
            for k in np.flatnonzero(group.valid):
                check(order, group, int(k), 4)


@st.composite
def batches(draw, layers):
    net = Net()
    maps = [net.input(draw(st.sampled_from([2, 4, 5, 8])), 4, 16, 16)]
    for _ in range(draw(st.integers(1, layers))):
        maps.append(grown(draw, net, maps[-1 - draw(st.integers(0, min(2, len(maps) - 1)))], maps))
    return Case(net.module(maps[-1])[0])


@pytest.mark.slow
@settings(max_examples=15)
@given(batches(4))
def test_images_dealt_to_clusters_are_what_projection_says(case):
    for _ in checked(case, DEFAULT, lambda shapes: shapes.dealt == BY_IMAGES, DEFAULT.chip.clusters):
        pass


@pytest.mark.slow
@settings(max_examples=15)
@given(networks(4), st.sampled_from([DEFAULT, MANYCORE]))
def test_rows_and_columns_dealt_to_clusters_are_what_projection_says(case, target):
    order = listed(case.module)
    for stop in range(1, len(order.nodes) + 1):
        node = order.nodes[stop - 1]
        for group in GroupsBefore(order, target, stop).within(UNBOUNDED) if node.layer is not None else ():
            for k in np.flatnonzero(group.valid):
                check(order, group, int(k), node.layer.out_dims[1], target.chip.clusters)


def test_clusters_without_rows_load_borders_too():
    """Twelve rows, one for each of sixteen clusters: the border of the last row is loaded by one that makes none."""
    net = Net()
    order = listed(net.module(net.conv(net.input(1, 4, 12, 16), 4))[0])
    (group,) = GroupsBefore(order, MANYCORE, 1).within(UNBOUNDED)
    k = int(np.flatnonzero(group.valid & (group.shapes.rows == 1) & (group.shapes.dealt == 2))[0])
    assert group.inputs[0].moved[k] == 4 * 16 * 4 * (2 + 10 * 3 + 2 + 1)


def test_each_cluster_has_images_that_follow_each_other():
    net = Net()
    order = listed(net.module(net.conv(net.input(8, 4, 16, 16), 4))[0])
    unit = layers_of([order.nodes[0].op], [order.nodes[0].op.results[0]])
    (region,) = project(unit, Partition((1, 4, 16, 16), 0, 2, "overlap"), 4).outputs
    assert (region.start[0].cluster, region.start[0].loops[0]) == (2, 1)


def test_clusters_that_share_an_input_read_it_once():
    """Rows of a 3x3 window over 16 x 16: boxes with borders on four clusters, or the whole map once."""
    net = Net()
    order = listed(net.module(net.conv(net.input(1, 4, 16, 16), 8))[0])
    (group,) = GroupsBefore(order, DEFAULT, 1).within(UNBOUNDED)
    shapes, own = group.shapes, group.inputs[0]
    by_rows = group.valid & (shapes.mode == Mode.SINGLE) & (shapes.dealt == 2)
    (boxes,), (whole,) = np.flatnonzero(by_rows & ~shapes.shared), np.flatnonzero(by_rows & shapes.shared)
    row = 4 * 16 * 4
    assert (own.moved[boxes], own.buffer[boxes]) == ((5 + 6 + 6 + 5) * row, 6 * row)
    assert (own.moved[whole], own.buffer[whole]) == (16 * row, 16 * row)
    assert shapes.partition(whole, 8, 1).shared
    check(order, group, int(whole), 8, DEFAULT.chip.clusters)


def test_parts_of_a_concatenation_are_not_shared():
    net = Net()
    x, y = net.input(1, 4, 16, 16), net.input(1, 4, 16, 16)
    order = listed(net.module(net.conv(net.layer(graph.ConcatOp([x, y], 1)), 4))[0])
    group = list(GroupsBefore(order, DEFAULT, len(order.nodes)).within(UNBOUNDED))[-1]
    assert group.first == 0 and group.valid.any() and not (group.valid & group.shapes.shared).any()


def test_one_cluster_has_nothing_to_share():
    net = Net()
    order = listed(net.module(net.conv(net.input(1, 4, 16, 16), 4))[0])
    assert not GroupsBefore(order, EDGE, 1).shapes.shared.any()


def test_of_equal_shapes_the_first_is_dealt_along_most_positions():
    """There borders are the smallest share of a tile: ties go to columns of maps that are wider than high."""
    for dims, dealt in (((1, 4, 8, 160), 3), ((1, 4, 160, 8), 2), ((1, 4, 8, 8), 2)):
        assert shapes_of(dims, (), "overlap", 4).dealt[0] == dealt
        net = Net()
        unit = layers_of(ops_of_section(network_of(net.module(net.conv(net.input(*dims), 4, 5))[0])), [])
        assert candidates(unit, 4)[0].clusters == dealt


@st.composite
def wide_networks(draw, layers):
    """Windows, branches that are added or joined along channels, moves between them, on maps two tiles wide."""
    net = Net()
    height, width = draw(st.sampled_from([8, 12])), draw(st.sampled_from([17, 24, 31, 40]))
    maps = [net.input(1, draw(st.sampled_from([2, 4])), height, width)]
    for _ in range(draw(st.integers(1, layers))):
        maps.append(grown(draw, net, maps[-1 - draw(st.integers(0, min(2, len(maps) - 1)))], maps))
    return Case(net.module(maps[-1])[0])


@pytest.mark.slow
def test_every_raster_shape_of_every_group_is_what_projection_says():
    seen = []

    @settings(max_examples=40)
    @given(wide_networks(5))
    def each(case):
        seen.extend(group.stop - group.first for group in checked(case, SMALL, lambda shapes: shapes.is_raster))

    each()
    assert max(seen) >= 3


def test_images_that_are_picked_are_all_that_is_loaded():
    """One of eight groups of a map is asked for, in rows of one image: no tile has the others."""
    net = Net()
    op = graph.PickOp(net.input(8, 4, 16, 16), (3, 0, 0, 0), (2, 4, 16, 16), (1, 1, 1, 1))
    order = listed(net.module(net.layer(op))[0])
    (read,) = order.nodes[0].reads
    assert read.dims == (2, 4, 16, 16)
    assert read.by_image and not read.images_mix
    (group,) = GroupsBefore(order, targets.load("default"), 1).within(1 << 30)
    assert set(group.inputs[0].moved[group.valid].tolist()) == {read.bytes}


def test_few_columns_are_short_runs_only_where_columns_are_neighbours():
    """Few columns of a map, and of tokens whose channels follow each other."""
    maps, rows = Net(), Net()
    plain = listed(maps.module(maps.unary("relu", maps.input(1, 64, 16, 16)))[0])
    product = graph.MatmulOp(rows.input(1, 64, 64), rows.weight(64, 64))
    product.attributes[FORM] = DenseArrayBase.from_list(i64, (0, 3, 1))
    tokens = listed(rows.module(rows.layer(product))[0])
    for order, has_short in ((plain, True), (tokens, False)):
        (group,) = GroupsBefore(order, targets.load("default"), 1).within(1 << 30)
        few = group.valid & (group.inputs[0].columns.extent <= 8) & ~group.shapes.shared
        assert few.any()
        for side in (group.inputs[0], group.outputs[0]):
            assert (side.short[few] > 0).all() == (side.short[few] > 0).any() == has_short
