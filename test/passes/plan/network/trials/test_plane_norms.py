"""Normalisations of groups of planes as numbers of channels, and what these make of the map, as often as it is read."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import run_module
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.passes.analysis.module import element_of
from frustum.passes.plan.network.trials.plane_norms import PlaneNorm, is_of_planes
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import network_of

SHAPE = 2, 12, 5, 6


def normed(groups=4, *, rms=False, scale=True, shift=True, act=None, axes=(1, 2, 3)):
    net = Net()
    x = net.input(*SHAPE)
    x = net.binary("add", x, net.constant(30.0))  # far from 0: the variance must not be lost in the mean
    channels = [net.weight(SHAPE[1], 1, 1) for _ in range(scale + shift)]
    norm = g.NormaliseOp(
        x, *channels, axes=axes, epsilon=1e-5, groups=groups, rms=rms, act=act and g.ActAttr.of(act)
    )
    return net.module(net.layer(norm))


@pytest.mark.slow
@pytest.mark.parametrize("is_by_rows", [False, True])
@pytest.mark.parametrize("kwargs", [{}, {"rms": True}, {"shift": False}, {"shift": False, "scale": False},
                                    {"act": "silu"}, {"groups": 1}, {"groups": 1, "axes": (2, 3)}])  # fmt: skip
def test_numbers_are_those_of_one_layer(kwargs, is_by_rows):
    module, given = normed(**kwargs)
    (wanted,) = run_module(module, given).values()
    network = network_of(module)
    (norm,) = [op for op in network.walk() if isinstance(op, g.NormaliseOp)]
    assert is_of_planes(norm)

    def add(op):
        Rewriter.insert_op(op, InsertPoint.before(norm))
        return op.results[0]

    def constant(word, array, element):
        key = store_of(module).add(word, array.astype(np.float32))
        assert element_of(element) == "f32"
        return add(g.WeightOp(key, g.tensor_type(element, array.shape)))

    planes = PlaneNorm(norm, add, constant, is_by_rows)
    planes.find()
    first, second = planes.normalised(), planes.normalised()
    half = constant("half", np.array(0.5), g.tensor_of(first).element_type)
    Rewriter.replace_op(norm, [], [add(g.BinaryOp("mul", add(g.BinaryOp("add", first, second)), half))])
    network.verify()
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-4 if kwargs.get("rms") is None else 1e-5)


def test_norms_along_other_axes_are_not_of_planes():
    net = Net()
    x = net.input(*SHAPE)
    last = g.NormaliseOp(x, axes=(3,), epsilon=1e-5)
    numbers = g.NormaliseOp(x, net.input(SHAPE[1], 1, 1), axes=(1, 2, 3), epsilon=1e-5, groups=4)
    assert not is_of_planes(last) and not is_of_planes(numbers)
