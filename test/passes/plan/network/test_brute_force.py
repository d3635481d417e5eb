"""Policy optimal on random networks with products, softmax, norms, residuals, attention and moves: brute force finds no
cheaper plan, and no preset moves less (more of both: test/soak/soak_brute_force.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from networks import Net
from plan_cases import GRAPHS_ON_MACHINES, check_least, check_presets
from random_network import Drawn
from stops import target

from frustum.dialects import graph

HEALTH = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=settings().max_examples // 4, derandomize=True, suppress_health_check=HEALTH)
@given(GRAPHS_ON_MACHINES)
def test_no_way_through_is_cheaper(case):
    check_least(case, most_layers=5)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=settings().max_examples // 8, derandomize=True, suppress_health_check=HEALTH)
@given(GRAPHS_ON_MACHINES)
def test_no_preset_moves_less(case):
    check_presets(case)


def added_to_its_input():
    """A map is an operand of a convolution, and added to it: three images, one for each of three clusters."""
    net = Net()
    x = net.input(3, 4, 7, 6)
    return net, [net.binary("add", x, net.conv(x, 4))]


def beside_what_it_reads():
    """The weights fit beside the map in SRAM; rows of all channels of the result do not."""
    net = Net()
    x = net.input(2, 4, 6, 6)
    a = net.unary("identity", net.layer(graph.ConcatOp([x, x], 2)))
    some = net.layer(graph.SliceOp(a, (1, 0, 0, 4), (1, 1, 6, 2), (2, 2, 2, -2)))
    made = net.layer(graph.ReshapeOp(net.conv(a, 27, 1), (2, 27, 72)))
    numbers = {"heads": (3, 3), "sizes": (3, 3), "scale": 3**-0.5, "is_merged": False, "is_channels_first": True}
    y = net.layer(graph.AttentionOp(made, made, made, firsts=(0, 9, 18), **numbers))
    return net, [some, a, net.layer(graph.ReshapeOp(y, (2, 9, 12, 6)))]


def pooled_with_gaps():
    """Windows of one column, of which every second one is read."""
    net = Net()
    x = net.layer(graph.SpaceToDepthOp(net.input(1, 2, 10, 12), (2, 1), 2))
    y = net.layer(graph.SoftmaxOp(net.layer(graph.MatmulOp(x, x, trans_b=True)), 3))
    numbers = {"kernel": (4, 1), "strides": (3, 2), "pads": (1, 0, 0, 0), "ceil_pads": (1, 0)}
    return net, [net.layer(graph.PoolOp("max", net.layer(graph.MatmulOp(y, x)), **numbers))]


def read_twice_in_a_tile():
    """Attention and a convolution read one map: a tile of both needs some rows of it and all."""
    net = Net()
    x = net.input(1, 2, 4, 4)
    scores = net.binary("mul", net.layer(graph.MatmulOp(x, x, trans_b=True)), net.weight())
    y = net.layer(graph.MatmulOp(net.layer(graph.SoftmaxOp(scores, 3)), x))
    return net, [y, net.binary("add", x, net.conv(x, 2))]


def rows_behind_rows():
    """A concatenation of rows that two layers of one unit make in their places."""
    net = Net()
    x = net.input(1, 2, 4, 4)
    doubled, some = net.binary("add", x, x), net.layer(graph.SliceOp(x, (0,) * 4, (1,) * 4))
    made = net.layer(graph.MatmulOp(some, net.weight(1, 1)))
    both = graph.ConcatOp([net.binary("add", made, net.conv(made, 1)), some], 2)
    return net, [doubled, net.layer(both)]


def picked_from_channels():
    """Every second channel of a map: a box with both holds one that nobody needs."""
    net = Net()
    x = net.layer(graph.TransposeOp(net.input(1, 2, 4, 4), (0, 2, 1, 3)))
    return net, [net.layer(graph.SliceOp(x, (0,) * 4, (1, 2, 2, 1), (1, 2, 1, 1)))]


@pytest.mark.slow
@pytest.mark.soak(but=3)
@pytest.mark.parametrize(
    ("build", "machine", "kib", "dtype"),
    [
        (added_to_its_input, "default", 3, "f32"),
        (beside_what_it_reads, "edge", 3, "f32"),
        (pooled_with_gaps, "default", 3, "f16"),
        (read_twice_in_a_tile, "edge", 3, "f32"),
        (rows_behind_rows, "edge", 3, "f32"),
        (picked_from_channels, "edge", 3, "f32"),
    ],
)
def test_ways_that_the_search_once_lacked(build, machine, kib, dtype):
    net, outputs = build()
    where = target(machine)
    sram = replace(where.cluster.sram, capacity_bytes=kib * 1024)
    where = replace(where, chip=replace(where.chip, cluster=replace(where.cluster, sram=sram)))
    case = Drawn(*net.module(*outputs)), (where, dtype)
    check_least(case, most_layers=5)
    check_presets(case)
