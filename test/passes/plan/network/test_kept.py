"""Maps that stay in SRAM between units: what clusters hold of them, and what it takes to send the rest."""

from __future__ import annotations

import pytest
from networks import Net

from frustum.backend import targets
from frustum.dialects import graph
from frustum.passes.plan.network.candidates import Candidates, Setting
from frustum.passes.plan.network.cuts import CutSearch
from frustum.passes.plan.network.groups import FAR
from frustum.passes.plan.network.kept import (
    TWO_FORMS,
    WHOLE,
    KeptMap,
    as_made,
    has_reader,
    in_place,
    is_read_whole,
    send_cycles,
    shares_of,
)
from frustum.passes.plan.network.layer_order import ops_of_section, order_of
from frustum.passes.plan.network.tile_shapes import BY_CHANNELS, BY_COLUMNS, BY_ROWS
from frustum.runtime.reference.graph import network_of

DEFAULT = targets.load("default")
CLUSTERS = DEFAULT.chip.clusters
LATENCY = 2 * DEFAULT.cluster.sram.latency_cycles


def listed(module):
    network = network_of(module)
    return order_of(ops_of_section(network), network.terminator.values)


def pooled(size, strides=(2, 2), kernel=(3, 3)):
    """A convolution and a pooling of its map."""
    net = Net()
    x = net.conv(net.input(1, 4, size, size), 64)
    return listed(net.module(net.layer(graph.PoolOp("max", x, kernel=kernel, strides=strides)))[0])


def test_forms_say_their_dimension():
    assert KeptMap(0, WHOLE).dimension is None
    assert [KeptMap(0, in_place(d)).dimension for d in range(4)] == [0, 1, 2, 3]
    assert KeptMap(0, BY_ROWS).dimension == BY_ROWS
    assert KeptMap(0, in_place(BY_ROWS)).is_in_place
    assert not KeptMap(0, BY_CHANNELS).is_in_place
    assert all(KeptMap(0, in_place(d)).made is None for d in range(4))
    both = [KeptMap(0, as_made(d, made)) for d, made in TWO_FORMS]
    assert [(kept.dimension, kept.made) for kept in both] == list(TWO_FORMS)
    assert all(kept.is_in_place for kept in both)


def two_readers():
    """A convolution of which one layer reads whole channels, another rows."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 64)
    pooled = net.layer(graph.PoolOp("avg", x, kernel=(16, 16)))
    return listed(net.module(pooled, net.conv(x, 64, 1, pads=(0, 0, 0, 0)))[0])


def test_a_map_stays_as_it_was_made_for_one_reader_and_in_other_shares_for_another():
    order, both = two_readers(), KeptMap(0, as_made(BY_CHANNELS, BY_ROWS))
    setting = Setting(order, DEFAULT, DEFAULT.cluster.sram.capacity_bytes)
    assert setting.send_cycles(both) == setting.send_cycles(KeptMap(0, in_place(BY_CHANNELS)))
    groups = setting.groups_before(1), setting.groups_before(3)
    assert frozenset({both}) in Candidates(next(groups[0].within(FAR)), setting).stays
    (by_rows,) = [g for g in groups[1].within(FAR) if g.first == 2]
    assert Candidates(by_rows, setting).allowed([both], are_made=False)
    assert Candidates(setting.by_channels(2), setting).allowed([both], are_made=False)
    assert not has_reader(order, both, 2), "of the two readers one is left"


def test_of_what_is_made_in_turn_nobody_is_sent_shares():
    """A cluster with its channels makes rows in passes; which are another's is not the same in all of them."""
    order = two_readers()
    setting = Setting(order, DEFAULT, DEFAULT.cluster.sram.capacity_bytes)
    group = setting.by_channels(1)
    found = Candidates(group, setting)
    fits = found.masks([frozenset({KeptMap(0, in_place(BY_ROWS))})], are_made=True)[0]
    assert fits.any()
    assert not (fits & (found.is_roll | (found.rows > 1))).any()


def test_shares_that_no_layer_can_read_do_not_stay():
    """A mean needs all rows."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 64)
    order = listed(net.module(net.layer(graph.ReduceOp("mean", x, (2, 3))))[0])
    assert not has_reader(order, KeptMap(0, BY_ROWS), 1)
    assert has_reader(order, KeptMap(0, in_place(BY_CHANNELS)), 1)
    assert has_reader(order, KeptMap(0, WHOLE), 1)


def test_a_map_of_one_position_has_no_rows_to_share():
    """A mean over all of a map is in every cluster, or by channels; the map itself has all forms."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 64)
    order = listed(net.module(net.layer(graph.ReduceOp("mean", x, (2, 3))))[0])
    forms = {number: {kept.dealt for kept in shares_of(order, CLUSTERS) if kept.map == number} for number in (0, 1)}
    assert {BY_ROWS, BY_COLUMNS} < forms[0]
    assert forms[1] == {WHOLE, BY_CHANNELS, in_place(BY_CHANNELS)}


@pytest.mark.parametrize("size", [16, 17, 27, 33])
def test_borders_are_what_readers_need_in_their_own_steps(size):
    held, own = shares_of(pooled(size), CLUSTERS)[KeptMap(0, BY_ROWS)], -(-size // CLUSTERS)
    step = 2 * -(-((size - 3) // 2 + 1) // CLUSTERS)
    assert held.share == own
    for k in range(CLUSTERS):
        first, end = step * k, min(size, step * (k + 1) + 1)
        assert first >= end or first >= own * k - held.before
        assert first >= end or end <= own * (k + 1) + held.behind


def test_rows_that_are_read_in_other_steps_are_held_where_they_are_read():
    """7 of 27 rows, of which 9 are read from row 8 k on."""
    assert shares_of(pooled(27), CLUSTERS)[KeptMap(0, BY_ROWS)][:3] == (7, 0, 4)


@pytest.mark.parametrize(("operand", "borders"), [((16, 1, 1), (2, 2)), ((16, 16, 16), (0, 0))])
def test_borders_are_also_those_of_what_is_made_channel_by_channel(operand, borders):
    """A factor and a shift of each channel, and a convolution of that, run in one unit on a map that stays."""
    net = Net()
    x = net.layer(graph.UnaryOp(graph.ActAttr.of("relu"), net.input(1, 16, 16, 16)))
    for kind in ("mul", "add"):
        x = net.layer(graph.BinaryOp(kind, x, net.input(*operand)))
    order = listed(net.module(net.conv(x, 16, 5, pads=(2, 2, 2, 2)))[0])
    assert shares_of(order, CLUSTERS)[KeptMap(0, BY_ROWS)][1:3] == borders
    assert shares_of(order, CLUSTERS)[KeptMap(0, BY_COLUMNS)][1:3] == borders


def test_what_is_sent_takes_the_time_of_its_bytes():
    order = pooled(64, (1, 1))
    shares, size = shares_of(order, CLUSTERS), 64 * 64 * 64 * 4
    rate = DEFAULT.chip.cluster.cdma.bytes_per_cycle

    def sent(form):
        kept = KeptMap(0, form)
        return send_cycles(order, kept, shares[kept], DEFAULT)

    assert sent(WHOLE) == size * 3 // 4 // rate + LATENCY
    assert sent(BY_CHANNELS) == 0
    assert sent(BY_ROWS) == sent(BY_COLUMNS) == size * 2 // 64 // rate + LATENCY
    # of its quarter each sends a quarter, and two rows more, to each of three others
    assert sent(in_place(BY_ROWS)) == size * 3 * 18 // (16 * 16) // rate + LATENCY
    assert sent(in_place(BY_CHANNELS)) == size * 3 // 16 // rate + LATENCY


def test_an_average_reads_the_channels_that_its_cluster_has():
    """Much is made of few positions: the last convolution is dealt by channels, and nobody sends its map."""
    net = Net()
    x = net.conv(net.input(1, 512, 7, 7), 1024)
    module, _ = net.module(net.layer(graph.PoolOp("avg", x, kernel=(7, 7))))
    setting = Setting(listed(module), DEFAULT, DEFAULT.cluster.sram.capacity_bytes)
    choices = CutSearch(setting).solve().choices
    assert [set(choice.kept) for choice in choices] == [{KeptMap(0, BY_CHANNELS)}, set()]
    assert all(choice.by_channels for choice in choices)


def test_channels_of_a_depthwise_convolution_are_dealt():
    """Rows dealt to clusters would be read again at every border: each cluster reads its own channels instead."""
    net = Net()
    order = listed(net.module(net.conv(net.input(1, 32, 40, 40), 32, 7, pads=(3, 3, 3, 3), groups=32))[0])
    setting = Setting(order, DEFAULT, DEFAULT.cluster.sram.capacity_bytes)
    group = setting.by_channels(1)
    assert group is not None
    assert group.shares == CLUSTERS
    (choice,) = CutSearch(setting).solve().choices
    assert choice.by_channels
    assert choice.bytes == order.compulsory_bytes


def test_queries_stay_in_shares_beside_keys_and_values_that_stay_whole():
    net, rows, channels = Net(), 64, 32
    x = net.input(1, rows, channels)
    made = [net.layer(graph.MatmulOp(x, net.weight(channels, channels))) for _ in range(3)]
    numbers = {"heads": (2, 2), "sizes": (16, 16), "scale": 0.25, "is_merged": True}
    order = listed(net.module(net.layer(graph.AttentionOp(*made, None, **numbers)))[0])
    assert [is_read_whole(order, m, BY_COLUMNS, 3) for m in range(3)] == [False, True, True]
    setting = Setting(order, DEFAULT, DEFAULT.cluster.sram.capacity_bytes)
    group = next(group for group in setting.groups_before(3).within(FAR) if group.first == 0)
    forms = frozenset({KeptMap(0, BY_COLUMNS), KeptMap(1, WHOLE), KeptMap(2, WHOLE)})
    assert forms in Candidates(group, setting).stays


def test_a_depthwise_convolution_behind_another_layer_shares_its_rows():
    """Dealt by channels it could not follow a shuffle in a core."""
    net = Net()
    x = net.layer(graph.ShuffleOp(net.conv(net.input(1, 16, 20, 20), 32, 1), 4))
    order = listed(net.module(net.conv(x, 32, groups=32))[0])
    setting = Setting(order, DEFAULT, DEFAULT.cluster.sram.capacity_bytes)
    assert setting.by_channels(len(order.nodes)) is None
