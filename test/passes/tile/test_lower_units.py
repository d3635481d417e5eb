"""Units cut by hand give the network's outputs at tile level, whatever the layers, the borders and the clusters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from stops import run_module, sending
from units import Group, as_units, layers_in, placed
from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph, tile
from frustum.dialects.graph import shape_of
from frustum.dialects.unit import Partition, PartitionAttr, UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.project import Unprojectable


class Drawn:
    """What was drawn: the network is shown, its weights and inputs are not."""

    def __init__(self, module, inputs, target, how):
        self.all = module, inputs, target, how

    def __repr__(self):
        module, _, target, how = self.all
        return f"\n{module}\n{how} on {target}"


def same_outputs(module, inputs, lowered):
    wanted, found = run_module(module, inputs), run_module(lowered, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


def only(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)]


@st.composite
def networks(draw, layers=6, kinds=None):
    """A network whose layers can all be in one unit: windows, sums, concatenations, doubled rows, pools."""
    net = Net(draw(st.integers(0, 9)))
    plane = [draw(st.integers(7, 14)) for _ in range(2)]
    maps = [net.input(draw(st.integers(1, 2)), draw(st.sampled_from([2, 3])), *plane)]
    for _ in range(draw(st.integers(1, layers))):
        x = maps[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(maps))
        maps.append(draw(st.sampled_from(kinds or KINDS))(draw, net, x, maps))
    made = [value for value in dict.fromkeys(maps) if value is not maps[0]]
    if not made:
        made = [net.unary("relu", maps[0])]
    outputs = [value for value in made if not value.uses]
    if draw(st.booleans()):
        outputs = list(dict.fromkeys([draw(st.sampled_from(made)), *outputs]))
    return (*net.module(*outputs), shape_of(made[-1]))


def windowed(draw, net, x, maps):
    windows = [window(draw, size) for size in shape_of(x)[2:]]
    (kh, sh, dh, top, bottom), (kw, sw, dw, left, right) = windows
    rest = {"strides": (sh, sw), "dilations": (dh, dw), "pads": (top, left, bottom, right)}
    if draw(st.booleans()):
        return net.conv(x, draw(st.integers(1, 4)), (kh, kw), bias=draw(st.booleans()), **rest)
    return net.layer(graph.PoolOp(draw(st.sampled_from(["max", "avg"])), x, kernel=(kh, kw), **rest))


def window(draw, size):
    kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2])), draw(st.integers(1, 2))
    if (kernel - 1) * dilation >= size:
        kernel = dilation = 1
    low, high = (draw(st.integers(-1 if size > 6 else 0, (kernel - 1) * dilation // 2)) for _ in range(2))
    return kernel, stride, dilation, low, high


def added(draw, net, x, maps):
    return net.binary("add", x, draw(st.sampled_from([v for v in maps if shape_of(v) == shape_of(x)])))


def joined(draw, net, x, maps):
    fitting = [v for v in maps if (shape_of(v)[0], *shape_of(v)[2:]) == (shape_of(x)[0], *shape_of(x)[2:])]
    return net.layer(graph.ConcatOp([x, draw(st.sampled_from(fitting))], 1)) if shape_of(x)[1] < 9 else x


def shuffled(draw, net, x, maps):
    channels = shape_of(x)[1]
    groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    return net.layer(graph.ShuffleOp(x, groups))


def picked(draw, net, x, maps):
    """Every so many-th position of channels, rows and columns, from one on."""
    shape = shape_of(x)
    steps = (1, *(draw(st.integers(1, 2)) for _ in range(3)))
    starts = (0, *(draw(st.integers(0, min(2, size - 1))) for size in shape[1:]))
    sizes = tuple(-(-(n - first) // step) for n, first, step in zip(shape, starts, steps, strict=True))
    return net.layer(graph.PickOp(x, starts, sizes, steps))


def doubled(draw, net, x, maps):
    _, _, h, w = shape_of(x)
    mode = draw(st.sampled_from(["nearest", "linear"]))
    return x if max(h, w) > 16 else net.layer(
        graph.ResizeOp(mode, x, (2 * h, 2 * w), scale=(0.5, 0.5), offset=(0.0, 0.0)))


def forked(draw, net, x, maps):
    """Convolutions of one map beside each other, perhaps again."""
    if shape_of(x)[1] > 8:
        return net.conv(x, 2, 1)
    branches = [net.conv(x, draw(st.integers(1, 3)), draw(st.sampled_from([1, 3]))) for _ in range(2)]
    y = net.layer(graph.ConcatOp(branches, 1))
    return net.layer(graph.ConcatOp([net.conv(x, 2), y], 1)) if draw(st.booleans()) else y


KINDS = [windowed, windowed, windowed, added, joined, joined, doubled, shuffled, picked]


@st.composite
def cut(draw, borders):
    """A network in one unit, cut at random."""
    module, inputs, (n, c, _, w) = draw(networks())
    target = draw(st.sampled_from(["tiny", "edge"]))
    dealt = draw(st.sampled_from([0, 3] if borders == "exchange" else [0, 2, 3]))
    rows, columns = draw(st.integers(1, 6)), draw(st.sampled_from([w, -(-w // 2), 4, 3]))
    partition = Partition((draw(st.integers(1, n)), c, rows, columns), dealt, draw(st.integers(1, 2)), borders)
    return Drawn(module, inputs, target, partition)


@pytest.mark.slow
@pytest.mark.parametrize("borders", ["overlap", "exchange"])
def test_a_unit_of_any_layers_gives_the_same_numbers(borders):
    done = []

    @given(cut(borders))
    def check(drawn):
        module, inputs, target, partition = drawn.all
        group = Group(tuple(range(len(layers_in(module)))), partition)
        try:
            units = as_units(module, target, [group])
        except Unprojectable:
            return
        same_outputs(module, inputs, placed(units))
        done.append(True)

    check()
    assert len(done) >= 2 * settings().max_examples // 5  # not all are refused


@st.composite
def sequences(draw):
    """A network in several units, each cut at random, of which some maps stay in SRAM."""
    module, inputs, _ = draw(networks(layers=7))
    target = draw(st.sampled_from(sorted(CLUSTERS)))
    layers = layers_in(module)
    ends = sorted(draw(st.sets(st.integers(1, len(layers)), max_size=4)) | {len(layers)})
    groups, first = [], 0
    for end in ends:
        numbers = tuple(range(first, end))
        partition = draw(partitions(shape_of(layers[end - 1].results[0]), CLUSTERS[target], len(numbers)))
        keeps = [] if is_move(layers[i] for i in numbers) else [i for i in numbers if draw(st.integers(0, 3))]
        groups.append(Group(numbers, partition, tuple(keeps)))
        first = end
    return Drawn(module, inputs, target, groups)


@st.composite
def breadth_first(draw):
    """Every layer a unit of its own; all maps stay in SRAM but those that are outputs."""
    module, inputs, _ = draw(networks(layers=4, kinds=[windowed, forked, forked, added]))
    target, groups = draw(st.sampled_from(sorted(CLUSTERS))), []
    for number, op in enumerate(layers_in(module)):
        partition = draw(partitions(shape_of(op.results[0]), CLUSTERS[target], 1))
        is_output = any(isinstance(use.operation, graph.OutputOp) for use in op.results[0].uses)
        groups.append(Group((number,), partition, () if is_output else (number,)))
    return Drawn(module, inputs, target, groups)


@st.composite
def partitions(draw, dims, clusters, layers):
    """Often one tile for each cluster; a single layer may be cut along its channels."""
    borders = draw(st.sampled_from(["overlap", "exchange"]))
    dealt = draw(st.sampled_from([3, 3, 0] if borders == "exchange" else [2, 3, 2, 3, 0]))
    if layers == 1 and draw(st.booleans()):
        dealt = 1
    n, c, h, w = dims
    tile_ = [draw(st.integers(1, n)), c, draw(st.sampled_from([h, -(-h // 2), 1, 2, 3])), w]
    if dealt > 0:
        share = -(-dims[dealt] // clusters)
        tile_[dealt] = draw(st.sampled_from([share, share, share, -(-share // 2)]))
    return Partition(tuple(tile_), dealt, draw(st.integers(1, 2)), borders)


CLUSTERS = {"tiny": 2, "default": 4}


@pytest.mark.slow
@pytest.mark.soak
def test_units_with_resident_maps_give_the_same_numbers():
    kept, sent = [], []

    @settings(max_examples=100)
    @given(sequences())
    def check(drawn):
        module, inputs, target, groups = drawn.all
        try:
            lowered = placed(as_units(module, sending(target), groups))
        except Unprojectable:
            return
        except PassFailedException as error:
            assert "overlap in turns" in str(error)
            return
        same_outputs(module, inputs, lowered)
        kept.append(any(op.tiles for op in only(lowered, tile.YieldOp)))
        sent.append(bool(only(lowered, tile.SendOp)))

    check()
    assert sum(kept) >= 25
    assert sum(sent) >= 10


@pytest.mark.slow
def test_layers_one_by_one_give_the_same_numbers_with_all_maps_in_sram():
    joined_in_sram = []

    @settings(max_examples=100)
    @given(breadth_first())
    def check(drawn):
        module, inputs, target, groups = drawn.all
        try:
            lowered = placed(as_units(module, sending(target), groups))
        except Unprojectable:
            return
        except PassFailedException as error:  # concatenations of inputs, of maps in two places, for outputs
            assert "keeps a map" in str(error) or "overlap in turns" in str(error)
            return
        same_outputs(module, inputs, lowered)
        joined_in_sram.append(bool(only(lowered, tile.ConcatOp)))

    check()
    assert sum(joined_in_sram) >= 5


def branches(*, keeps, batch=1, axis=1):
    """Two branches that are concatenated and read again, every layer a unit: (module, inputs, tiles)."""
    net = Net()
    x = net.input(batch, 2, 8, 8)
    y = net.layer(graph.ConcatOp([net.conv(x, 4), net.conv(x, 3 if axis == 1 else 4, 1)], axis))
    module, inputs = net.module(net.conv(y, 5))
    groups = []
    for number, op in enumerate(layers_in(module)):
        n, c, h, w = shape_of(op.results[0])
        groups.append(Group((number,), Partition((n, c, h, -(-w // 4)), 3, 1), (number,) if keeps else ()))
    return module, inputs, placed(as_units(module, "default", groups))


@pytest.mark.slow
def test_branches_are_written_side_by_side_in_sram():
    module, inputs, lowered = branches(keeps=True)
    (joined_,) = only(lowered, tile.ConcatOp)
    assert [t.type.data.extents[1] for t in joined_.tiles] == [4, 3]
    assert not only(lowered, tile.MoveOp)
    assert len(only(lowered, tile.LoadOp)) == 2  # of the network's input
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "axis"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_branches_are_written_side_by_side_in_dram(batch, axis):
    module, inputs, lowered = branches(keeps=False, batch=batch, axis=axis)
    is_alias = axis == 1  # else rows of one lie between rows of the other
    assert len(only(lowered, graph.ConcatOp)) == is_alias
    assert len(only(lowered, tile.MoveOp)) == (0 if is_alias else 2)
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_what_is_needed_in_two_places_in_dram_is_moved():
    net = Net()
    x = net.conv(net.input(1, 2, 8, 8), 4)
    y = net.conv(x, 4)
    module, inputs = net.module(x, net.layer(graph.ConcatOp([x, y], 1)), net.layer(graph.ConcatOp([y, y], 1)))
    groups = [Group((i,), Partition((1, 4, 8, 8), 0, 1)) for i in range(4)]
    lowered = placed(as_units(module, "tiny", groups))
    assert len(only(lowered, graph.ConcatOp)) == 0
    assert len(only(lowered, tile.MoveOp)) == 4
    same_outputs(module, inputs, lowered)


def two_convolutions(first, second, target="default"):
    """Two 3x3 convolutions as units of their own, the map between them kept: (module, inputs, tiles of both)."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 8)
    module, inputs = net.module(net.conv(x, 8))
    lowered = placed(as_units(module, target, [Group((0,), first, (0,)), Group((1,), second)]))
    return module, inputs, lowered


def sent_by(lowered, clusters=4):
    """Elements that each cluster sends to each other in all passes: {(from, to): elements}."""
    found = {}
    for unit in only(lowered, tile.UnitOp):
        for op in only(unit, tile.SendOp):
            for cluster in range(clusters):
                for indices in np.ndindex(*unit.tile_counts):
                    low = [span.clip(indices, cluster) for span in op.region.data.spans]
                    size = int(np.prod([max(0, b - a) for a, b in low]))
                    if size:
                        key = (cluster, cluster + op.by.value.data)
                        found[key] = found.get(key, 0) + size
    return found


@pytest.mark.slow
def test_columns_at_the_borders_of_clusters_are_sent_to_the_neighbours():
    columns = Partition((1, 8, 16, 4), 3, 1)
    module, inputs, lowered = two_convolutions(columns, columns)
    column = 8 * 16
    assert sent_by(lowered) == {(k, k + d): column for k in range(4) for d in (1, -1) if 0 <= k + d < 4}
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_rolling_rows_send_their_columns_step_by_step():
    steps = Partition((1, 8, 2, 4), 3, 2, "exchange")
    module, inputs, lowered = two_convolutions(steps, steps)
    assert sent_by(lowered)[1, 2] == 8 * 16
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_all_clusters_get_all_channels_after_a_split_along_them():
    module, inputs, lowered = two_convolutions(Partition((1, 2, 16, 16), 1, 1), Partition((1, 2, 16, 16), 1, 1))
    assert sent_by(lowered) == {(a, b): 2 * 16 * 16 for a in range(4) for b in range(4) if a != b}
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_rows_that_are_dealt_anew_are_sent_as_far_as_they_are_read():
    """13 of 27 rows: clusters make 7 each and read 9 from row 8 k on."""
    net = Net()
    x = net.conv(net.input(1, 2, 27, 27), 4)
    module, inputs = net.module(net.layer(graph.PoolOp("max", x, kernel=(3, 3), strides=(2, 2))))
    made, read = Partition((1, 4, 7, 27), 2, 1), Partition((1, 4, 4, 13), 2, 1)
    lowered = placed(as_units(module, "default", [Group((0,), made, (0,)), Group((1,), read)]))
    row = 4 * 27
    assert sent_by(lowered) == {(1, 0): 4 * row, (2, 1): 4 * row, (3, 2): 4 * row}
    kept = only(lowered, tile.UnitOp)[0].results[0].type.data
    assert kept.extents == (1, 4, 11, 27)
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [8, 6])
def test_channels_stay_where_they_are_made(channels):
    """A global average of a map whose channels are dealt."""
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), channels)
    module, inputs = net.module(net.layer(graph.PoolOp("avg", x, kernel=(8, 8))))
    first, second = Partition((1, 2, 8, 8), 1, 1), Partition((1, 2, 1, 1), 1, 1)
    lowered = placed(as_units(module, "default", [Group((0,), first, (0,)), Group((1,), second)]))
    assert not sent_by(lowered)
    assert only(lowered, tile.UnitOp)[0].results[0].type.data.extents == (1, 2, 8, 8)
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_rows_go_to_clusters_by_channels():
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), 8)
    module, inputs = net.module(net.layer(graph.PoolOp("avg", x, kernel=(8, 8))))
    rows, channels = Partition((1, 8, 2, 8), 2, 1), Partition((1, 2, 1, 1), 1, 1)
    lowered = placed(as_units(module, "default", [Group((0,), rows, (0,)), Group((1,), channels)]))
    assert sent_by(lowered) == {(a, b): 2 * 2 * 8 for a in range(4) for b in range(4) if a != b}
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_who_reads_what_its_cluster_has_made_asks_for_nothing():
    """Rows are sent by channels to one reader; another one reads them as they were made."""
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), 8)
    pooled, plain = net.layer(graph.PoolOp("avg", x, kernel=(8, 8))), net.conv(x, 4, 1, pads=(0, 0, 0, 0))
    module, inputs = net.module(pooled, plain)
    rows, channels, own = (Partition(*each) for each in (
        ((1, 8, 2, 8), 2, 1), ((1, 2, 1, 1), 1, 1), ((1, 4, 2, 8), 2, 1),
    ))  # fmt: skip
    lowered = placed(as_units(module, "default", [Group((0,), rows, (0,)), Group((1,), channels), Group((2,), own)]))
    assert sent_by(lowered) == {(a, b): 2 * 2 * 8 for a in range(4) for b in range(4) if a != b}
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_send_that_is_missing_is_found(number):
    columns = Partition((1, 8, 16, 4), 3, 1)
    module, inputs, lowered = two_convolutions(columns, columns)
    only(lowered, tile.SendOp)[number].detach()
    with pytest.raises(AssertionError, match="are not in"):
        same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_a_kept_map_that_is_an_output_too_is_stored():
    net = Net()
    x = net.conv(net.input(1, 2, 8, 8), 4)
    module, inputs = net.module(x, net.conv(x, 4))
    whole = Partition((1, 4, 8, 8), 0, 1)
    lowered = placed(as_units(module, sending("tiny"), [Group((0,), whole, (0,)), Group((1,), whole)]))
    assert len(only(lowered, tile.StoreOp)) == 2
    assert len(only(lowered, tile.LoadOp)) == 1
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
def test_what_is_in_two_concatenations_is_copied_once():
    net = Net()
    x = net.conv(net.input(1, 2, 8, 8), 2)
    y = net.layer(graph.ConcatOp([x, net.unary("relu", x)], 1))
    module, inputs = net.module(net.layer(graph.ConcatOp([net.conv(y, 2), x], 1)))
    group = Group(tuple(range(5)), Partition((1, 4, 2, 8), 0, 2, "exchange"))
    lowered = placed(as_units(module, "tiny", [group]))
    copies = [op for op in only(lowered, tile.ComputeOp) if op.layer == tile.UnaryLayer("identity")]
    assert len(copies) == 1
    same_outputs(module, inputs, lowered)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition((1, 4, 3, 8), 0, 1, "exchange"), r"unit u0 cannot be cut as .*3 rows of the output are no whole"),
        (Partition((1, 4, 3, 8), 2, 1, "exchange"), r"with exchanged borders rows are not dealt to clusters"),
        (Partition((1, 4, 3, 8), 0, 1), r"layer 1 \(resize\) is made in steps of 2 along d2, a tile starts at 3\*i2"),
    ],
)
def test_a_partition_that_does_not_go_is_refused_by_name(partition, message):
    net = Net()
    x = net.conv(net.input(1, 2, 4, 4), 4)
    y = net.layer(graph.ResizeOp("nearest", x, (8, 8), scale=(0.5, 0.5), offset=(0.0, 0.0)))
    module, _ = net.module(y)
    good = Group((0, 1), Partition((1, 4, 2, 8), 0, 1, "exchange"))
    units = as_units(module, "tiny", [good])
    only(units, UnitOp)[0].properties["partition"] = PartitionAttr(partition)
    with pytest.raises(PassFailedException, match=message):
        placed(units)


@pytest.mark.slow
def test_moves_cannot_keep_their_result():
    net = Net()
    module, _ = net.module(net.layer(graph.TransposeOp(net.input(1, 2, 4, 4), (0, 2, 3, 1))))
    units = as_units(module, "tiny", [Group((0,), None)])
    only(units, UnitOp)[0].properties["keeps"] = DenseArrayBase.from_list(i64, [0])
    with pytest.raises(PassFailedException, match="unit u0 only moves data: its result goes to DRAM, it cannot stay"):
        placed(units)
