"""Borders of inputs come from DRAM to one cluster, and from there to the cluster next to it: the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import check_agreement
from hypothesis import given
from hypothesis import strategies as st
from networks import Net
from stops import executable, modules_at_stops, run_module

from frustum.backend.pipeline import Choices, Edit
from frustum.dialects import graph
from frustum.dialects import tile as t
from frustum.dialects.isa.program import Affine
from frustum.dialects.unit import PartitionAttr
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.strips import own_strip
from frustum.passes.plan.unit_ops import units_of
from frustum.passes.tile.hand_inputs import saved_bytes
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

ALL = Choices(dtype="f16", policy="none", optimise="bytes")


def blurred(height=37, width=64, kernel=3, stride=1, images=1):
    """One convolution, whose input has borders between whatever parts of it are made apart."""
    net, pad = Net(), kernel // 2
    x = net.input(images, 8, height, width)
    return net.module(net.conv(x, 8, kernel, strides=(stride, stride), pads=(pad,) * 4))


def handed(modules):
    return [unit for unit in units_of(modules["tiled"]) if unit.partition is not None and unit.partition.data.handed]


def counted(modules, choices):
    made = executable(modules["fixed"], choices)
    machine = Machine(made)
    return count(machine.expanded, machine.target, made.code.page_bytes)


def check_numbers(modules, inputs):
    stops = ("typed", "tiled", "placed", "fixed")
    check_agreement({stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in stops}, "f16")


def upscaled():
    """Three times as many rows and columns, in rows that roll through each cluster's strip of columns."""
    net = Net()
    x = net.conv(net.input(1, 56, 120, 160), 9)
    return net.module(net.layer(graph.DepthToSpaceOp(x, (3, 3), 1, (1, 1, 360, 480))))


def side_by_side():
    """Two convolutions of one input, which another one reads together: more than fits all clusters, so one unit."""
    net = Net()
    x = net.input(1, 4, 160, 160)
    both = net.layer(graph.ConcatOp([net.conv(x, 96, kernel, pads=(kernel // 2,) * 4) for kernel in (3, 1)], 1))
    return net.module(net.conv(both, 4, 1, pads=(0,) * 4))


@pytest.mark.slow
def test_a_concatenation_in_a_unit_is_no_obstacle():
    module, inputs = side_by_side()
    choices = Choices(dtype="f16", policy="optimal", optimise="bytes")
    modules = modules_at_stops(module, "default", choices)
    (unit,) = handed(modules)
    assert any(isinstance(op, graph.ConcatOp) for op in unit.body.block.ops)
    (whole,) = inputs.values()
    assert counted(modules, choices).dram_bytes_by_class["input"] == 2 * whole.size
    check_agreement({stop: run_module(modules[stop], inputs) for stop in ("tiled", "fixed")}, "f16")


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("network, borders", [(blurred, "overlap"), (upscaled, "exchange")])
def test_an_input_is_loaded_once(network, borders):
    module, inputs = network()
    choices = ALL if borders == "overlap" else Choices(dtype="f16", policy="optimal")
    without = replace(choices, edits=(Edit("without", "frustum-tile-hand-inputs"),))
    before = counted(modules_at_stops(module.clone(), "default", without), without)
    modules = modules_at_stops(module, "default", choices)
    (unit,) = handed(modules)
    assert unit.partition.data.borders == borders
    sends = [op for op in modules["placed"].walk() if isinstance(op, t.SendOp)]
    assert [op.by.value.data for op in sends] == [1, -1]
    after, (whole,) = counted(modules, choices), inputs.values()
    assert after.dram_bytes_by_class["input"] == 2 * whole.size < before.dram_bytes_by_class["input"]
    check_numbers(modules, inputs)


def test_for_time_nothing_is_handed_that_is_a_small_part():
    module, _ = blurred(height=512, width=16)
    assert not handed(modules_at_stops(module.clone(), "default", Choices(dtype="f16", policy="none")))
    assert handed(modules_at_stops(module, "default", ALL))


def test_nothing_is_saved_where_rows_roll():
    modules = modules_at_stops(blurred(18, 16)[0], "default", Choices(dtype="f16", policy="none"))
    machine = target_of(modules["tiled"])
    (unit,) = units_of(modules["tiled"])
    plain = replace(unit.partition.data, handed=False)
    for borders, is_saved in ((plain.borders, True), ("raster", False)):
        unit.properties["partition"] = PartitionAttr(replace(plain, borders=borders))
        assert (saved_bytes(unit, machine) > 0) == is_saved


def test_one_cluster_has_nobody_to_hand_to():
    assert not handed(modules_at_stops(blurred()[0], "edge", ALL))


@pytest.mark.slow
@given(st.data())
def test_random_convolutions_agree(data):
    height, width = (data.draw(st.integers(9, 70)) for _ in range(2))
    kernel, stride = data.draw(st.sampled_from([3, 5])), data.draw(st.integers(1, 2))
    module, inputs = blurred(height, width, kernel, stride, data.draw(st.integers(1, 2)))
    borders = data.draw(st.sampled_from(["overlap", "exchange", "auto"]))
    policy = data.draw(st.sampled_from(["none", "optimal"]))
    choices = Choices(dtype="f16", policy=policy, optimise="bytes", borders=borders)
    check_numbers(modules_at_stops(module, "default", choices), inputs)


@given(st.integers(-6, 6), st.integers(1, 12), st.integers(1, 20), st.integers(1, 60), st.integers(2, 5))
def test_own_strips_have_each_position_once_and_the_next_cluster_has_the_rest(base, width, extent, size, clusters):
    start, own = own_strip(Affine(base, cluster=width), extent, size, clusters)
    if (start, own) == (Affine(base, cluster=width), extent):
        return

    def positions(first, length):
        return set(range(max(first, 0), min(first + length, size)))

    loaded = [positions(start.base + k * width, own) for k in range(clusters)]
    needed = [positions(base + k * width, extent) for k in range(clusters)]
    assert sum(map(len, loaded)) == len(set.union(*loaded))
    for k, wanted in enumerate(needed):
        beside = [loaded[j] for j in (k - 1, k + 1) if 0 <= j < clusters]
        assert wanted <= loaded[k].union(*beside)
