"""DRAM bytes are counted honestly: the emulator's counters against a second formula, layer by layer and fused."""

from __future__ import annotations

import pytest
from every_operation import NETWORKS, network
from networks import Net
from stops import executable, modules_at_stops
from traffic import bytes_of, traffic_of

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.zoo import zoo_model
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import network_of
from frustum.runtime.report.counters import count

pytestmark = pytest.mark.slow

NO_LAYERS = (graph.WeightOp, graph.ReshapeOp, graph.OutputOp)


def counted(modules, choices):
    """The emulator's counters."""
    made = executable(modules["fixed"], choices)
    machine = Machine(made)
    return count(machine.expanded, machine.target, made.code.page_bytes)


def check_counters(modules, counters):
    traffic, classes = traffic_of(modules["placed"]), counters.dram_bytes_by_class
    assert counters.dram_write_bytes == traffic.written
    assert counters.dram_read_bytes - classes["other"] == traffic.read + traffic.weights
    assert sum(classes.values()) == counters.dram_read_bytes + counters.dram_write_bytes


@pytest.mark.parametrize("target", ["default", "edge", "tiny"])
@pytest.mark.parametrize("name", NETWORKS)
def test_policy_none_writes_every_map_once_and_reads_the_boxes_it_loads(name, target):
    choices = Choices(policy="none")
    modules = modules_at_stops(network(name)[0], target, choices)
    counters = counted(modules, choices)
    layers = [op for op in network_of(modules["typed"]).body.block.ops if not isinstance(op, NO_LAYERS)]
    places = [op for op in network_of(modules["placed"]).body.block.ops if isinstance(op, graph.ConcatOp)]
    written = sum(bytes_of(op.results[0]) for op in layers) - sum(bytes_of(op.result) for op in places)
    assert counters.dram_write_bytes == written  # the parts of a concatenation are written in their places
    check_counters(modules, counters)


@pytest.mark.parametrize("name", ["depthwise_chain", "residual", "inception", "long_kernel"])
def test_fused_units_are_counted_by_the_same_formula(name):
    choices = Choices(policy="greedy", dtype="bf16")
    modules = modules_at_stops(network(name)[0], "tiny", choices)
    check_counters(modules, counted(modules, choices))


def conv_chain(net):
    x = net.input(1, 16, 40, 40)
    for outputs in (16, 24, 24, 16):
        x = net.conv(x, outputs, act="relu")
    return x


def pyramid(net):
    x = net.input(1, 3, 64, 64)
    for outputs in (8, 16, 32):
        x = net.pool("max", net.conv(net.conv(x, outputs, act="relu"), outputs, act="relu"))
    return net.dense(x, 10)


def mobile(net):
    x = net.conv(net.input(1, 3, 56, 56), 16, strides=(2, 2), act="relu")
    for outputs in (24, 32):
        x = net.conv(net.conv(x, 64, 1, act="relu"), 64, groups=64, act="relu")
        x = net.conv(x, outputs, 1)
    return x


CHAINS = {build.__name__: build for build in (conv_chain, pyramid, mobile)}
CLASSICS = ("alexnet", "squeezenet")


def chain(name):
    if name in CLASSICS:
        return import_onnx(zoo_model(name), name=name)
    net = Net()
    return net.module(CHAINS[name](net))[0]


@pytest.mark.soak
@pytest.mark.parametrize("target", ["default", "edge"])
@pytest.mark.parametrize(
    ("name", "fused"),
    [
        *((name, fused) for name in CHAINS for fused in ("pyramid", "greedy")),
        ("alexnet", "greedy"),
        ("squeezenet", "pyramid"),
    ],
)
def test_a_fused_chain_moves_fewer_bytes(name, target, fused):
    module, moved = chain(name), {}
    for policy in ("none", fused):
        choices = Choices(policy=policy)
        modules = modules_at_stops(module, target, choices)
        counters = counted(modules, choices)
        check_counters(modules, counters)
        moved[policy] = counters.dram_read_bytes + counters.dram_write_bytes
    assert moved[fused] < moved["none"]
