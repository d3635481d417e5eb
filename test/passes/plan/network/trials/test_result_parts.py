"""A convolution's result in two parts: the network is as it was when that is undone, and the numbers are right."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import run_module

from frustum.dialects import graph as g
from frustum.passes.plan.network.trials.result_parts import channels_beside, result_in_parts
from frustum.runtime.reference.graph import network_of

CHANNELS, SIZE = 16, 8
MAP = CHANNELS * SIZE * SIZE * 4


def block(*, residual=True, act=None):
    net = Net()
    x = net.unary("relu", net.input(1, CHANNELS, SIZE, SIZE))
    other = net.input(1, CHANNELS, SIZE, SIZE)
    return net.module(net.conv(x, CHANNELS, residual=other if residual else None, act=act))


def conv_of(module):
    return next(op for op in network_of(module).walk() if isinstance(op, g.ConvOp))


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("act", [None, "relu"])
def test_numbers_are_those_of_the_whole(residual, act):
    module, given = block(residual=residual, act=act)
    (wanted,) = run_module(module, given).values()
    before = str(network_of(module))
    made = result_in_parts(conv_of(module), module, 2 * MAP)
    assert made is not None
    network_of(module).verify()
    parts = [op for op in network_of(module).walk() if isinstance(op, g.ConvOp)]
    assert [g.shape_of(op.result)[1] for op in parts] == [CHANNELS * 3 // 4, CHANNELS // 4]
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=6e-6 * np.abs(wanted).max())
    made.undo()
    assert str(network_of(module)) == before


@pytest.mark.slow
def test_no_parts_where_all_or_too_little_fits():
    conv = conv_of(block()[0])
    assert channels_beside(conv, 4 * MAP) is None
    assert channels_beside(conv, MAP) is None
    assert channels_beside(conv, 2 * MAP) == CHANNELS * 3 // 4


def test_no_parts_of_convolutions_by_groups():
    net = Net()
    x = net.input(1, CHANNELS, SIZE, SIZE)
    module, _ = net.module(net.conv(x, CHANNELS, groups=2))
    assert result_in_parts(conv_of(module), module, 2 * MAP) is None
