"""Integer layers on the device: every stop gives the same bits, wherever layers are cut."""

from __future__ import annotations

import numpy as np
import pytest
from integer_networks import IntegerNet
from stops import executable, modules_at_stops, run_module, target
from timing_cases import check_executable

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.graph import ActAttr, ScaleAttr
from frustum.dialects.isa import ConvOp
from frustum.runtime.machine import Machine

STOPS = ("typed", "fused", "placed", "fixed")


def convolutions(net):
    x = net.integer_input(2, 8, 13, 11)
    y = net.product(x, 12, clip=True)
    z = net.product(y, 16, 3, strides=(2, 2), dilations=(2, 1), pads=(2, 1, 2, 1), bias=False)
    return net.product(z, 7, 1, w_zero=False), y


def many_channels(net):
    """So many input channels that a small core takes them in parts."""
    return (net.product(net.product(net.integer_input(1, 96, 6, 5), 48), 33, 1, clip=True),)


def accumulators(net):
    return (net.product(net.integer_input(1, 40, 7, 7), 10, accumulator=True),)


def groups(net):
    x = net.integer_input(1, 12, 9, 9)
    depthwise = net.product(x, 12, groups=12, clip=True)
    return (net.product(depthwise, 8, groups=4), net.product(depthwise, 24, 3, groups=12))


def products(net):
    x = net.integer_input(5, 70)
    return net.matrix(net.matrix(x, 40, clip=True), 11, trans_b=True, w_zero=False), net.matrix(x, 9, accumulator=True)


def residuals(net):
    x = net.integer_input(1, 8, 10, 10)
    y = net.residual(x, 8, x, "relu")
    z = net.residual(y, 12, net.product(y, 12, 1))
    return z, net.residual(y, 8, x)


def pools(net):
    x = net.integer_input(1, 9, 12, 12)
    largest = net.pool("max", x, 3, 2, pads=(1, 1, 1, 1))
    mean = net.pool("avg", x, 3, 2, pads=(1, 1, 1, 1), scales=net.scales(2))
    return largest, mean, net.layer(graph.ReduceOp("max", x, (2, 3), scales=net.scales(2)))


def elements(net):
    x, y = net.integer_input(1, 6, 8, 8), net.integer_input(1, 6, 8, 8)
    total = net.added("mul", x, y, "relu")
    sigmoid = net.layer(graph.UnaryOp(ActAttr.of("sigmoid"), total, net.scales(2)))
    return sigmoid, net.layer(graph.SoftmaxOp(x, 1, net.scales(2))), net.added("sub", y, x)


def conversions(net):
    x = net.input(1, 5, 9, 7)
    q = net.layer(graph.QuantizeOp(x, ScaleAttr.of(0.03, 5)))
    y = net.product(q, 6)
    real = net.layer(graph.DequantizeOp(y, ScaleAttr.of(0.02, y.owner.zeros[1])))
    return real, net.layer(graph.ConcatOp([q, q], 1)), net.layer(graph.PadOp(q, (0, 0, 1, 1), (0, 0, 1, 1), 5))


NETWORKS = (
    convolutions, many_channels, accumulators, groups, products, residuals, pools, elements, conversions,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pyramid", "greedy", "none"])
@pytest.mark.parametrize("target", ["default", "edge", "tiny"])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_all_stops_give_the_same_bits(network, target, policy):
    net = IntegerNet(seed=3)
    check(*net.module(*network(net)), target, policy)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["edge", "tiny"])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_time_bytes_and_energy_are_those_of_the_second_model(network, place):
    net = IntegerNet(seed=3)
    module, _ = net.module(*network(net))
    made = executable(modules_at_stops(module, place, Choices(policy="greedy"))["fixed"])
    check_executable(made, target(place))


@pytest.mark.slow
@pytest.mark.parametrize("network", [convolutions, groups, products, residuals, elements], ids=lambda n: n.__name__)
def test_16_bit_integers_give_the_same_bits(network):
    net = IntegerNet(seed=4, dtype=np.int16)
    net.extras = without_accumulators(net.extras)
    check(*net.module(*network(net)), "tiny", "greedy")


def without_accumulators(extras):
    """Sums of 16-bit products do not fit the 32 bits in which accumulators go out."""
    return lambda *args, accumulator=False, **rest: extras(*args, **rest)


def check(module, inputs, target, policy):
    module.verify()
    modules = modules_at_stops(module, target, Choices(policy=policy))
    expected = run_module(module, inputs)
    for stop in STOPS:
        found = run_module(modules[stop], inputs, checked=stop == "fixed")
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, f"{stop} {name}")


@pytest.mark.slow
def test_input_channels_in_parts_are_summed_in_32_bits():
    net = IntegerNet()
    module, _ = net.module(*many_channels(net))
    fixed = modules_at_stops(module, "tiny", Choices())["fixed"]
    sums = {op.acc_view.data.element for op in fixed.walk() if isinstance(op, ConvOp) and op.acc_view}
    assert sums == {"i32"}


@pytest.mark.slow
def test_an_addition_leaves_the_vector_unit():
    net = IntegerNet()
    module, _ = net.module(*residuals(net))
    typed = modules_at_stops(module, "edge", Choices())["typed"]
    assert not any(isinstance(op, graph.BinaryOp) for op in typed.walk())
    assert sum(isinstance(op, graph.ConvOp) and op.residual is not None for op in typed.walk()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["detailed", "detailed_tables"])
@pytest.mark.parametrize("network", [convolutions, many_channels, groups, residuals], ids=lambda n: n.__name__)
def test_detailed_runs_give_the_same_bits(network, way):
    net = IntegerNet(seed=5)
    module, inputs = net.module(*network(net))
    machine = Machine(executable(modules_at_stops(module, "edge", Choices())["fixed"]))
    expected = machine.run(inputs, mode="functional").outputs
    found = machine.run(inputs, mode="functional", **{way: True}).outputs
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
