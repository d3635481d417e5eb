"""Zones of small networks: where they end, what a cluster makes in each, and what clusters send each other between."""

import math
from itertools import pairwise

import pytest
import random_plans
from axis_networks import mlp, network
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frustum.dialects import graph as g
from frustum.dialects.axes.classes import classes_apart
from frustum.passes.plan.tree.intervals import LayerInterval
from frustum.passes.plan.tree.spans import Reads
from frustum.passes.plan.tree.zones import Dealing, Zones

CLUSTERS = 4
SHAPES = (1, 4, 16, 16), (8, 4, 3, 3), (8, 8, 3, 3), (8 * 16 * 16, 40)
MAP, RESULT = 8 * 16 * 16 * 2, 40 * 2
"""Bytes of what both convolutions make, and of the last layer's result."""


def head(x, w, v, last):
    """Layers `conv`, `conv#2` and `matmul`."""
    first = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
    second = g.ConvOp(first.result, v, None, (1, 1), (1, 1, 1, 1))
    flat = g.ReshapeOp(second.result, (1, 8 * 16 * 16))
    return first, second, flat, g.MatmulOp(flat.result, last)


def group_of(layers, name):
    """The class of an axis."""
    return next(group for group in classes_apart(layers) if any(axis.name == name for axis in group))


def zones_of(net, *classes, numbers):
    """Zones with such classes, named by an axis of each; of each layer the number of its own."""
    layers = tuple(net.layers)
    by_number = [[layer for layer, own in zip(layers, numbers, strict=True) if own == k] for k in range(len(classes))]
    groups = tuple(
        group_of(own, name) if name else frozenset() for own, name in zip(by_number, classes, strict=True)
    )
    dealing = Dealing(CLUSTERS, groups, dict(zip(layers, numbers, strict=True)))
    return Zones(Reads(net), layers, dealing, {})


def rows_then_channels():
    """Both convolutions in rows, the product behind them in its channels; and tensors by their names."""
    net = network(head, *SHAPES)
    found = zones_of(net, "conv#2.y", "matmul.c", numbers=(0, 0, 1))
    return found, {tensor.name: tensor for tensor in net.tensors}


# ------------------------------------------------------------ layers


def test_layers_of_one_zone_may_be_a_unit():
    found, _ = rows_then_channels()
    assert found.ends == [2, 2, 3]
    assert found.of(0, 2) is found.of(1, 2) is found.zone(found.layers[0]) is found.zones[0]
    assert found.of(2, 3) is found.zone(found.layers[2]) is found.zones[1]
    assert found.of(0, 3) is None and found.of(1, 3) is None


def test_a_zone_that_comes_again_is_no_unit_across_another_one():
    found = zones_of(network(mlp, (16, 8), (8, 16), (16, 8)), "", "matmul.c", numbers=(0, 1, 0))
    assert found.ends == [1, 2, 3]
    assert found.of(0, 3) is None and found.of(0, 1) is found.of(2, 3) is found.zones[0]


def test_one_class_of_all_layers_is_one_zone():
    layers = network(head, *SHAPES).layers
    dealing = Dealing.of_one(layers)
    assert (dealing.clusters, dealing.classes, {*dealing.number.values()}) == (1, (frozenset(),), {0})
    found = zones_of(network(head, *SHAPES), "conv#2.c", numbers=(0, 0, 0))
    assert found.ends == [3, 3, 3] and found.of(0, 3) is found.zones[0]


def test_a_cluster_has_its_share_of_the_class_of_the_zone_alone():
    found, _ = rows_then_channels()
    (first, second), axes = found.zones, {axis.name: axis for axis in found.extents}
    assert [first.extents[axes[name]] for name in ("x0.2", "conv.y", "conv#2.y")] == [4, 4, 4]
    assert [second.extents[axes[name]] for name in ("conv#2.y", "matmul.c", "x3.1")] == [16, 10, 10]
    assert all(found.extents[axis] == axis.extent for axis in found.extents)


def test_a_zone_without_a_class_is_made_by_all():
    found = zones_of(network(mlp, (16, 8), (8, 16), (16, 8)), "", numbers=(0, 0, 0))
    assert found.zones[0].extents == found.extents and not found.zones[0].dealt.steps


def test_ranges_in_a_zone_are_where_windows_begin():
    """Of 49 rows a pool reads 48: a cluster makes 6 of its 24, and has 12, the last one 13."""
    net = network(lambda x: (g.PoolOp("max", x, kernel=(2, 1), strides=(2, 1)),), (1, 2, 49, 4))
    found = zones_of(net, "x0.2", numbers=(0,))
    assert {axis.extent: found.zones[0].extents[axis] for axis in found.zones[0].dealt.axes} == {49: 13, 24: 6}
    assert found.held(net.tensors[0]) == 2 * 13 * 4 * 2


def test_keys_tell_zones_apart_that_deal_something_else():
    """Three products of one shape: the first two in rows, which are alike, and one in channels."""

    def build(x, *weights):
        ops = []
        for w in weights:
            ops.append(g.MatmulOp(ops[-1].result if ops else x, w))
        return ops

    net = network(build, (16, 16), *[(16, 16)] * 3)
    found = zones_of(net, "x0.0", "matmul#3.c", numbers=(0, 0, 1))
    keys = [
        zone.keys.of(k, LayerInterval(net, zone.reads, (layer,)), zone.extents)
        for k, layer in enumerate(found.layers) for zone in [found.zone(layer)]
    ]  # fmt: skip
    assert keys[0] == keys[1] != keys[2]


# ------------------------------------------------------------ tensors


def test_only_what_all_make_and_read_in_ranges_is_held_in_ranges():
    found, named = rows_then_channels()
    assert {tensor.name for tensor in found.shared} == {"x0", "conv", "x3", "matmul"}
    assert found.shared[named["conv"]].name == "conv.y" and found.shared[named["x3"]].name == "x3.1"
    assert {name: found.held(named[name]) for name in ("conv", "conv#2", "matmul")} == {
        "conv": MAP / CLUSTERS, "conv#2": MAP, "matmul": RESULT / CLUSTERS,
    }  # fmt: skip


def test_one_lies_where_another_lay_if_clusters_hold_both_alike():
    found, named = rows_then_channels()
    assert found.lie_alike(named["conv"], named["x0"]) and found.lie_alike(named["conv#2"], named["x1"])
    assert not found.lie_alike(named["conv"], named["conv#2"])


def test_ranges_of_a_tensor_are_of_the_class_of_any_zone():
    found, named = rows_then_channels()
    assert {name for name, tensor in named.items() if found.is_dealt(tensor)} == {
        "x0", "conv", "conv#2", "x3", "matmul",
    }  # fmt: skip


def test_what_another_zone_reads_each_cluster_sends_to_the_others():
    found, named = rows_then_channels()
    assert found.sent(named["conv#2"]) == MAP / CLUSTERS * (CLUSTERS - 1)
    assert not any(found.sent(tensor) for name, tensor in named.items() if name != "conv#2")


def test_what_every_cluster_makes_is_not_sent():
    found = zones_of(network(mlp, (16, 8), (8, 16), (16, 8)), "", "matmul#2.c", numbers=(0, 0, 1))
    assert not any(map(found.sent, found.reads.network.tensors))


def test_what_a_layer_of_the_zone_reads_in_whole_is_sent_too():
    """Keys are made in rows of the same class as queries, and all of them are read."""

    def build(x, w, v):
        queries, keys = g.MatmulOp(x, w), g.MatmulOp(x, v)
        return queries, keys, g.MatmulOp(queries.result, keys.result, trans_b=True)

    net = network(build, (16, 8), (8, 8), (8, 8))
    found = zones_of(net, "x0.0", numbers=(0, 0, 0))
    queries, keys, _ = (layer.result for layer in found.layers)
    assert queries in found.shared and not found.sent(queries)
    assert keys not in found.shared and found.held(keys) == 16 * 8 * 2
    assert found.sent(keys) == pytest.approx(16 * 8 * 2 / CLUSTERS * (CLUSTERS - 1))


# ------------------------------------------------------------ random networks


@st.composite
def dealings(draw):
    """Random runs of layers, each with a class, or none."""
    net = draw(random_plans.networks()).axes
    layers, clusters = tuple(net.layers), draw(st.sampled_from([2, 3, 4]))
    cuts = sorted(draw(st.sets(st.integers(1, len(layers) - 1)))) if len(layers) > 1 else []
    number, classes = {}, []
    for k, (first, stop) in enumerate(zip([0, *cuts], [*cuts, len(layers)], strict=True)):
        number.update(dict.fromkeys(layers[first:stop], k))
        classes.append(draw(st.sampled_from([frozenset(), *classes_apart(layers[first:stop])])))
    return net, Dealing(clusters, tuple(classes), number), [0, *cuts, len(layers)]


@settings(max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(dealings())
def test_all_clusters_together_hold_everything(drawn):
    net, dealing, cuts = drawn
    found = Zones(Reads(net), tuple(net.layers), dealing, {})
    assert found.ends == [stop for first, stop in pairwise(cuts) for _ in range(first, stop)]
    for tensor in net.tensors:
        size = math.prod(axis.extent for axis in tensor.axes) * tensor.element_bits / 8
        assert size / dealing.clusters <= found.held(tensor) <= size
        assert found.held(tensor) == size or tensor in found.shared
        maker = net.maker.get(tensor)
        is_in_ranges = maker is not None and not found.zone(maker).dealt.axes.isdisjoint(tensor.axes)
        is_sent = is_in_ranges and tensor not in found.shared
        assert found.sent(tensor) == pytest.approx(size * (1 - 1 / dealing.clusters) if is_sent else 0)
    for number, zone in enumerate(found.zones):
        others = {axis for own in dealing.classes for axis in own} - dealing.classes[number]
        assert all(zone.extents[axis] == axis.extent for axis in others if axis in zone.extents)
