"""Classes that clusters deal, layer by layer: against every other choice of small networks, and costs by hand."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
import random_plans
from axis_networks import mlp, network, windows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recurrent_nets import lstm

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import classes_apart, why_not
from frustum.dialects.axes.recurrence import recurrences_of
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.target import Engine
from frustum.passes.plan.tree.spans import Dealt, Reads
from frustum.passes.plan.tree.zone_choice import (
    NONE,
    ZoneChoice,
    cuts,
    has_all_ranges,
    may_be_dealt,
    shortness,
    tensor_rest,
)

TARGET = targets.load("default")
CLUSTERS = TARGET.chip.clusters
RESTART = 2 * 2 * (20 + 4)
"""What the links of a cluster wait for before and after they send: of SRAM and NRAM the latency, each way."""
MAPS = (1, 4, 64, 64), (8, 4, 3, 3), (4, 8, 3, 3)


def choice_of(net, clusters=CLUSTERS, target=TARGET):
    return ZoneChoice(Reads(net), clusters, target)


def class_of(layers, name):
    return next(group for group in classes_apart(layers) if any(axis.name == name for axis in group))


def links_of(bytes_per_cycle):
    """The target with links so fast."""
    cluster = replace(TARGET.cluster, cdma=Engine(bytes_per_cycle=bytes_per_cycle))
    return replace(TARGET, chip=replace(TARGET.chip, cluster=cluster))


def named(choice, k, *ends):
    """Of a group of layers the class with an axis whose name ends so; the one of no axes without an end."""
    classes = choice.groups[k].classes
    return next(c for c, own in enumerate(classes) if not ends or any(axis.name.endswith(ends) for axis in own))


# ------------------------------------------------------------ the least of all choices


def cost(choice, chosen):
    """Of all groups alone, and between each two of which one reads the other."""
    pairs = [(a, b) for a, own in enumerate(choice.neighbours) for b in own if a < b]
    alone = sum(group.cycles[c] for group, c in zip(choice.groups, chosen, strict=True))
    return alone + sum(choice.between(a, chosen[a], b, chosen[b]) for a, b in pairs)


def least(choice):
    return min(cost(choice, chosen) for chosen in product(*(range(len(own.classes)) for own in choice.groups)))


@st.composite
def chains(draw):
    """Convolutions, pools and functions of maps, one to three of them, then a fully connected layer, in a chain."""
    height, width = draw(st.sampled_from([8, 9, 30, 64])), draw(st.sampled_from([8, 40]))
    kinds = draw(st.lists(st.sampled_from(["conv", "pool", "unary"]), min_size=1, max_size=3))
    channels = [draw(st.sampled_from([4, 24, 64])) for _ in range(kinds.count("conv") + 1)]
    kernels = [draw(st.sampled_from([1, 3])) for _ in channels[1:]]
    weights = [(made, read, k, k) for (read, made), k in zip(pairwise(channels), kernels, strict=True)]
    pools = kinds.count("pool")
    summed = channels[-1] * (height >> pools) * (width >> pools)

    def build(x, *weights):
        ops, rest = [], iter(weights)
        for kind in kinds:
            ops.append(step(kind, ops[-1].results[0] if ops else x, rest))
        flat = g.ReshapeOp(ops[-1].results[0], (1, summed))
        return *ops, flat, g.MatmulOp(flat.result, *rest)

    return network(build, (1, channels[0], height, width), *weights, (summed, draw(st.sampled_from([4, 300]))))


def step(kind, x, weights):
    if kind == "conv":
        w = next(weights)
        return g.ConvOp(x, w, None, (1, 1), (g.shape_of(w)[-1] // 2,) * 4)
    return g.UnaryOp("gelu", x) if kind == "unary" else g.PoolOp("max", x, kernel=(2, 2), strides=(2, 2))


@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(chains(), st.sampled_from([2, 3, 4]), st.sampled_from([1, 64]))
def test_of_a_chain_no_other_choice_takes_less(net, clusters, bytes_per_cycle):
    choice = choice_of(net, clusters, links_of(bytes_per_cycle))
    found = choice.along([0] * len(choice.groups))
    assert cost(choice, found) == pytest.approx(least(choice))
    assert choice.along(found) == found


def residual(x, w, v, u):
    """A convolution in two steps, added to what it reads."""
    entry = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
    first = g.ConvOp(entry.result, v, None, (1, 1), (1, 1, 1, 1))
    second = g.ConvOp(first.result, u, None, (1, 1), (1, 1, 1, 1))
    return entry, first, second, g.BinaryOp("add", entry.result, second.result)


def squeezed(x, w, v, _):
    """A map times a product of its means."""
    entry = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
    mean = g.ReduceOp("mean", entry.result, (2, 3))
    gate = g.ConvOp(mean.result, v, None, (1, 1), (1, 1, 1, 1))
    return entry, mean, gate, g.BinaryOp("mul", entry.result, gate.result)


@pytest.mark.parametrize(
    ("build", "rows"), [(residual, 64), (residual, 9), (residual, 4), (squeezed, 64), (squeezed, 4)]
)
def test_what_is_read_from_further_back_counts_too(build, rows):
    choice = choice_of(network(build, (1, 4, rows, 64), (8, 4, 3, 3), (8, 8, 3, 3), (8, 8, 3, 3)))
    chosen = choice.along(choice.along([0] * len(choice.groups)))
    assert choice.along(chosen) == chosen
    assert cost(choice, chosen) == pytest.approx(least(choice))


# ------------------------------------------------------------ zones


def test_layers_of_rows_are_one_zone():
    net = network(windows, *MAPS)
    (group,) = choice_of(net).best().classes
    assert {axis.name for axis in group} == {"x0.2", "conv.y", "conv#2.y"}


def test_where_borders_are_dear_each_cluster_makes_what_others_need():
    """Over links of a byte in 64 cycles two rows of the first convolution take longer than to make it."""
    dealing = choice_of(network(windows, *MAPS), target=links_of(1 / 64)).best()
    first, second = (dealing.classes[number] for number in dealing.number.values())
    assert first == NONE and {axis.name for axis in second} >= {"conv#2.y"}


def head(x, w, v):
    """Layers `conv` and `matmul`."""
    maps = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
    flat = g.ReshapeOp(maps.result, (1, 8 * 32 * 32))
    return maps, flat, g.MatmulOp(flat.result, v)


def test_a_long_product_has_another_class_than_the_rows_that_it_sums():
    net = network(head, (1, 64, 32, 32), (8, 64, 3, 3), (8 * 32 * 32, 1000))
    dealing = choice_of(net).best()
    rows, columns = (dealing.classes[dealing.number[layer]] for layer in net.layers)
    assert {axis.name for axis in rows} == {"x0.2", "conv.y"}
    assert {axis.name for axis in columns} == {"x2.1", "matmul.c"}


def test_a_short_product_is_made_by_all():
    """A cluster's channels take the matrix unit as many passes as all of them."""
    net = network(mlp, (2, 48), (48, 1024), (1024, 48))
    dealing = choice_of(net).best()
    assert [bool(dealing.classes[dealing.number[layer]]) for layer in net.layers] == [True, True, False]


def test_groups_that_hand_each_other_ranges_are_a_zone():
    choice = choice_of(network(windows, *MAPS))
    rows, columns = ([named(choice, k, axis) for k in (0, 1)] for axis in (".y", ".x"))
    assert [len(choice.dealing(chosen).classes) for chosen in ([0, 0], rows, columns)] == [1, 1, 1]
    apart = [[0, rows[1]], [rows[0], 0], [rows[0], columns[1]], [named(choice, 0, ".c"), rows[1]]]
    assert [len(choice.dealing(chosen).classes) for chosen in apart] == [2, 2, 2, 2]


def test_groups_with_an_axis_in_common_are_a_zone_wherever_they_are():
    """Rows of a perceptron, but for the function in the middle, of which every cluster makes all."""
    choice = choice_of(network(mlp, (64, 48), (48, 192), (192, 48)))
    rows = [named(choice, k, "x0.0") for k in range(3)]
    dealing = choice.dealing([rows[0], 0, rows[2]])
    assert [*dealing.number.values()] == [0, 1, 0]
    assert [{axis.name for axis in group} for group in dealing.classes] == [{"x0.0"}, set()]


def check_zones(choice):
    """No layer has two axes that are dealt, and no product sums over one."""
    dealing = choice.best()
    for layer in choice.reads.network.layers:
        group = dealing.classes[dealing.number[layer]]
        assert len(group & set(layer.axes)) <= 1
        assert not layer.macs or group.isdisjoint(layer.combine)
        assert group.isdisjoint(layer.axes) or not why_not(group, [layer])


def test_a_sum_over_rows_is_no_zone_with_the_columns_behind():
    """Each cluster sums a quarter of the rows, and makes two of five columns of the function at most."""

    def build(x):
        mean = g.ReduceOp("mean", x, (0,), False)
        return mean, g.UnaryOp("gelu", mean.result)

    check_zones(choice_of(network(build, (64, 5, 100))))


@settings(max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.networks(), st.sampled_from([2, 3, 4]))
def test_zones_of_random_networks(drawn, clusters):
    check_zones(choice_of(drawn.axes, clusters))


# ------------------------------------------------------------ what may be dealt


def test_every_cluster_has_something_of_an_axis_or_not():
    for extent, clusters in product(range(1, 40), range(1, 7)):
        step = -(-extent // clusters)
        parts = [range(k * step, min((k + 1) * step, extent)) for k in range(clusters)]
        assert has_all_ranges(Axis("y", extent), clusters) is all(parts)


def test_neither_a_sum_nor_a_short_axis_is_dealt():
    net = network(mlp, (3, 48), (48, 192), (192, 40))
    found = [
        group for group in classes_apart(net.layers)
        if may_be_dealt(group, net.layers, Reads(net), CLUSTERS)
    ]  # fmt: skip
    assert {axis.name for group in found for axis in group} == {"matmul#2.c", "x2.1"}, "of three rows one has none"


def test_no_class_is_one_that_no_layer_has():
    net = network(mlp, (16, 48), (48, 192), (192, 40))
    assert not may_be_dealt(class_of(net.layers, "x0.0"), net.layers[:0], Reads(net), CLUSTERS)


@pytest.mark.parametrize(("rows", "is_dealt"), [(8, True), (9, False), (10, True), (13, True)])
def test_of_windows_every_cluster_has_rows(rows, is_dealt):
    """Of nine rows, in threes, the last of four clusters has none: it has no borders to send."""
    net = network(windows, (1, 4, rows, 64), *MAPS[1:])
    group = class_of(net.layers, "conv.y")
    assert may_be_dealt(group, net.layers, Reads(net), CLUSTERS) is is_dealt
    plain = network(lambda x: (g.UnaryOp("relu", x),), (rows, 64))
    assert may_be_dealt(class_of(plain.layers, "x0.0"), plain.layers, Reads(plain), CLUSTERS)


@pytest.mark.parametrize(("rows", "is_dealt"), [(3, False), (8, True), (9, False), (11, False), (12, True)])
def test_of_joined_sums_all_parts_are_of_one_size(rows, is_dealt):
    net = network(lambda x: (g.ReduceOp("mean", x, (0,), False),), (rows, 64))
    assert may_be_dealt(class_of(net.layers, "x0.0"), net.layers, Reads(net), CLUSTERS) is is_dealt


def test_no_range_needs_states_of_another_one():
    """Sequences may be dealt; steps, and channels of what is carried, not."""
    net = lstm(6, 8, batch=4).network
    (recurrence,) = recurrences_of(net.layers)
    inside = {axis for layer in recurrence.layers for axis in layer.axes}
    groups = [group for group in classes_apart(net.layers) if group & inside]
    assert {axis.extent for group in groups if not cuts(group, recurrence) for axis in group} == {4}
    assert not any(cuts(group, recurrence) for group in classes_apart(net.layers) if not group & inside)
    choice = choice_of(net)
    dealt = choice.groups[choice.place[recurrence.layers[0]]].classes
    assert [{axis.extent for axis in group} for group in dealt] == [set(), {4}]


# ------------------------------------------------------------ costs


@pytest.mark.parametrize(("axis", "longer"), [(None, 1), (0, 1), (1, 1), (2, 4), (3, 32)])
def test_short_runs_take_as_long_as_the_port_s_shortest(axis, longer):
    """A cluster's columns are 8, of two bytes each, and the shortest run 64 bytes."""
    axes = [Axis(name, extent) for name, extent in zip("cyxb", (4, 64, 32, 4), strict=True)]
    own = axes if axis == 3 else axes[:3]
    tensor = Tensor("x", tuple((each,) for each in own), 16, Kind.INPUT)
    dealt = Dealt(frozenset() if axis is None else frozenset({axes[axis]}), 4)
    assert shortness(tensor, dealt, 64) == longer


@pytest.mark.parametrize(("extent", "rest"), [(16, 12), (9, 6), (3, 2)])
def test_what_a_cluster_has_not(extent, rest):
    axis = Axis("y", extent)
    assert tensor_rest(axis, Dealt(frozenset({axis}), 4)) == rest
    assert tensor_rest(axis, Dealt()) == 0


def test_borders_are_rows_that_windows_read_beyond_the_ranges():
    """One row of 8 channels, of 64 columns of two bytes, from the neighbour at either side; a column comes in runs of
    two bytes, which take as long as 16."""
    choice = choice_of(network(windows, *MAPS))
    size, speed = 8 * 64 * 2, TARGET.cluster.cdma.bytes_per_cycle
    rows, columns = ([named(choice, k, axis) for k in (0, 1)] for axis in (".y", ".x"))
    assert choice.between(0, rows[0], 1, rows[1]) == RESTART + 2 * size / speed
    assert choice.between(0, columns[0], 1, columns[1]) == RESTART + 2 * 8 * size / speed


def test_what_is_read_in_another_class_is_sent():
    choice = choice_of(network(windows, *MAPS))
    size, speed = 8 * 64 * 64 * 2, TARGET.cluster.cdma.bytes_per_cycle
    sent = RESTART + size / CLUSTERS * (CLUSTERS - 1) / speed
    for made, read in ((".y", ".x"), (".c", ".y"), (".y", "#2.c")):
        assert choice.between(0, named(choice, 0, made), 1, named(choice, 1, read)) == sent
    assert choice.between(0, named(choice, 0, ".y"), 1, 0) == sent
    assert choice.between(0, 0, 1, named(choice, 1, "#2.y")) == 0, "every cluster has made all"


def test_ranges_without_windows_cost_nothing_between():
    choice = choice_of(network(mlp, (64, 48), (48, 192), (192, 48)))
    rows = [named(choice, k, "x0.0") for k in range(3)]
    assert [choice.between(a, rows[a], b, rows[b]) for a, b in pairwise(range(3))] == [0, 0]


def test_several_readers_pay_for_one_sending():
    def build(x, w):
        made = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
        return made, g.ReduceOp("mean", made.result, (2, 3)), g.ReduceOp("max", made.result, (2, 3))

    choice = choice_of(network(build, *MAPS[:2]))
    rows, size = named(choice, 0, ".y"), 8 * 64 * 64 * 2
    found = sum(choice.between(0, rows, k, named(choice, k, ".c")) for k in (1, 2))
    assert found == RESTART + size / CLUSTERS * (CLUSTERS - 1) / TARGET.cluster.cdma.bytes_per_cycle


def test_columns_of_an_input_take_the_dram_port_longer():
    """Of 16 rows and 64 columns a cluster has runs of 32 bytes: as many bytes again cross the port."""
    net = network(lambda x: (g.UnaryOp("relu", x),), (16, 64))
    choice = choice_of(net)
    (group,) = choice.groups
    rows, columns = (group.cycles[named(choice, 0, axis)] for axis in ("x0.0", "x0.1"))
    assert columns - rows == pytest.approx(16 * 64 * 2 / TARGET.chip.dram.port_bytes_per_cycle)
    assert rows < group.cycles[0], "all of it"
