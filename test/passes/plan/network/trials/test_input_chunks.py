"""Convolutions behind norms by chunks of input channels: no map is whole twice, and the numbers are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import modules_at_stops, run_module, target
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.module import PART_OF_SUM, TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.unit import UnitOp
from frustum.passes.graph.choose_forms import ChooseForms
from frustum.passes.plan.network.optimal import plan_network
from frustum.passes.plan.network.trials.input_chunks import chain_of, inputs_in_chunks
from frustum.runtime.reference.graph import network_of

pytestmark = pytest.mark.slow

CHANNELS, SIZE, GROUPS = 32, 32, 8
MAP = CHANNELS * SIZE * SIZE
TOLERANCE = {"f32": 6e-6, "f16": 8e-3}


def edge(kib):
    """The target with so much SRAM."""
    whole = target("edge")
    cluster = replace(whole.cluster, sram=replace(whole.cluster.sram, capacity_bytes=kib << 10))
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


def normed(net, x, groups=GROUPS, *, act="silu", affine=True):
    scales = [net.weight(CHANNELS, 1, 1) for _ in range(2 * affine)]
    axes = (1, 2, 3) if groups > 1 else (2, 3)
    return net.layer(
        g.NormaliseOp(x, *scales, axes=axes, epsilon=1e-5, groups=groups, act=act and g.ActAttr.of(act))
    )


def block(groups=GROUPS, *, residual=False, numbers=False, shared=False):
    """Twice a norm and a convolution; the first norm perhaps of a map with numbers of channels added, the convolution
    behind it perhaps with something added."""
    net = Net()
    x = net.input(1, CHANNELS, SIZE, SIZE)
    read = x
    if numbers:
        read = net.binary("add", x, net.layer(g.UnaryOp("silu", net.input(1, CHANNELS, 1, 1))))
    made = normed(net, read, groups)
    sums = net.conv(made, CHANNELS, residual=x if residual else None, act="relu" if residual else None)
    if shared:
        return net.module(sums, made)
    return net.module(net.conv(normed(net, sums), CHANNELS))


def planned(module, machine):
    module.attributes[TARGET] = to_attribute(machine)
    ChooseForms().apply(Context(), module)
    network = network_of(module)
    return network, plan_network(network, machine)


CASES = [(GROUPS, False, False), (1, False, False), (GROUPS, True, False), (GROUPS, False, True)]


@pytest.mark.soak
@pytest.mark.parametrize(("groups", "residual", "numbers"), CASES)
@pytest.mark.parametrize(("dtype", "kib"), [("f32", 256), ("f16", 128)])
def test_what_is_normalised_is_read_once_and_its_norm_never_written(dtype, kib, groups, residual, numbers):
    """Neither norm nor sums fit SRAM twice; both beside each other do not either."""
    module, given = block(groups, residual=residual, numbers=numbers)
    found = modules_at_stops(module, edge(kib), Choices(dtype=dtype))
    size = 4 if dtype == "f32" else 2
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    weights = 2 * CHANNELS * CHANNELS * 9
    assert said <= ((2 + residual) * MAP + weights + 16 * CHANNELS) * size + 8 * CHANNELS
    computed = [op for op in found["placed"].walk() if isinstance(op, t.ComputeOp)]
    assert sum(PART_OF_SUM in op.attributes for op in computed) >= 1
    assert any(op.map.data.in_place for op in computed)
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.soak
def test_sums_that_are_to_wait_in_f32_do_not_wait_in_f16():
    found = modules_at_stops(block()[0], edge(128), Choices(dtype="f16", carry="f32"))
    assert not any(PART_OF_SUM in op.attributes for op in found["fused"].walk())


@pytest.mark.parametrize("numbers", [False, True])
def test_chunks_are_undone(numbers):
    module, _ = block(residual=True, numbers=numbers)
    network, plan = planned(module, edge(256))
    before = str(network)
    (made,) = inputs_in_chunks(plan.order, plan.units, module, 256 << 10)
    network.verify()
    norms = [op for op in network.walk() if isinstance(op, g.NormaliseOp)]
    assert len(norms) > 2 and sum(op.groups for op in norms) == 2 * GROUPS
    made.undo()
    assert str(network) == before


def test_no_chunks_where_others_read_the_norm_or_nothing_is_normalised():
    module, _ = block(shared=True)
    convs = [op for op in network_of(module).walk() if isinstance(op, g.ConvOp)]
    assert [chain_of(op) for op in convs] == [None]
    net = Net()
    x = net.unary("relu", net.input(1, CHANNELS, SIZE, SIZE))
    module, _ = net.module(net.conv(x, CHANNELS))
    assert [chain_of(op) for op in network_of(module).walk() if isinstance(op, g.ConvOp)] == [None]
    module, _ = block()
    conv, _ = [op for op in network_of(module).walk() if isinstance(op, g.ConvOp)]
    chain = chain_of(conv)
    assert chain is not None and chain.grain == CHANNELS // GROUPS and chain.channels == CHANNELS
