"""Normalisations are found in networks that have them as plain layers, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from after_pass import after_pass
from networks import Net
from xdsl.context import Context
from xdsl.dialects.builtin import f32

from frustum.dialects import graph as g
from frustum.dialects.graph.attributes import float_array
from frustum.dialects.module import RANGE
from frustum.passes.graph.composites.find_normalise import FindNormalise


def constant(net, values):
    array = np.asarray(values, np.float32)
    return net.builder.insert(g.WeightOp(net.store.add("c", array), g.tensor_type(f32, array.shape))).result


def found(net, *results):
    """The normalisations that are found; the network computes the same with them."""
    better = after_pass(FindNormalise(), net, *results, rtol=1e-4, atol=1e-5)
    return [each for each in better.walk() if isinstance(each, g.NormaliseOp)]


def plain(net, x, axes, *, rms=False, square="mul", division="div", epsilon=1e-2, other_axes=None):
    """As exporters write it."""
    if not rms:
        x = net.binary("sub", x, net.layer(g.ReduceOp("mean", x, axes)))
    squared = net.binary("mul", x, x) if square == "mul" else net.binary("pow", x, constant(net, 2.0))
    variance = net.layer(g.ReduceOp("mean", squared, other_axes or axes))
    root = net.unary("sqrt", net.binary("add", variance, constant(net, epsilon)))
    return net.binary("div", x, root) if division == "div" else net.binary("mul", net.unary("reciprocal", root), x)


@pytest.mark.parametrize("division", ["div", "mul"])
@pytest.mark.parametrize("square", ["mul", "pow"])
@pytest.mark.parametrize("rms", [False, True])
def test_plain_layers_are_one(rms, square, division):
    net = Net()
    result = plain(net, net.input(2, 5, 8), (2,), rms=rms, square=square, division=division)
    result = net.binary("mul", result, net.weight(8))
    result = result if rms else net.binary("add", net.weight(8), result)
    (op,) = found(net, result)
    assert (op.axes, op.rms, op.shift is None) == ((2,), rms, rms)
    assert op.scale is not None and op.epsilon == pytest.approx(1e-2)


def test_ranges_of_a_calibration_are_those_of_the_last_layer():
    """A factor and a term that are taken in bring theirs."""
    net = Net()
    result = net.binary("mul", plain(net, net.input(2, 5, 8), (2,)), net.weight(8))
    result = net.binary("add", net.weight(8), result)
    for number, op in enumerate(result.owner.parent.ops):
        op.attributes[RANGE] = float_array((0, number))
    ends = result.owner.attributes[RANGE]
    module, _ = net.module(result)
    FindNormalise().apply(Context(), module)
    (op,) = (each for each in module.walk() if isinstance(each, g.NormaliseOp))
    assert op.attributes[RANGE] == ends


def test_sums_along_other_axes_are_none():
    net = Net()
    x = net.input(2, 5, 8)
    (op,) = found(net, plain(net, x, (2,), other_axes=(1,)))
    assert op.rms and op.axes == (1,), "the squares of what is left are not those of a centred row"


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_other_sums_are_none(kind):
    net = Net()
    x = net.input(2, 5, 8)
    total = net.layer(g.ReduceOp(kind, net.binary("mul", x, x), (2,)))
    root = net.unary("sqrt", net.binary("add", total, constant(net, 1e-2)))
    assert not found(net, net.binary("div", x, root))


@pytest.mark.parametrize(("channels", "groups"), [(12, 3), (4, 4)])
@pytest.mark.parametrize("affine", ["none", "neutral", "own"])
def test_a_reshaped_map_is_normalised_by_groups(channels, groups, affine):
    """Group normalisation as PyTorch writes it."""
    net = Net()
    x = net.input(2, channels, 5, 3)
    numbers = {"none": (), "neutral": (np.ones(groups), np.zeros(groups)), "own": net.rng.random((2, groups))}[affine]
    operands = [constant(net, each.reshape(groups, 1)) for each in numbers]
    flat = net.layer(g.ReshapeOp(x, (2, groups, channels // groups * 15)))
    result = net.layer(g.NormaliseOp(flat, *operands, axes=(2,), epsilon=1e-3))
    result = net.layer(g.ReshapeOp(result, (2, channels, 5, 3)))
    result = net.binary("add", net.binary("mul", result, net.weight(channels, 1, 1)), net.weight(channels, 1, 1))
    (op,) = found(net, result)
    assert g.shape_of(op.x) == (2, channels, 5, 3)
    assert (op.groups, op.axes) == ((groups, (1, 2, 3)) if groups < channels else (1, (2, 3)))
    assert affine == "own" or op.shift is not None


def test_what_others_read_stays():
    net = Net()
    x = net.input(2, 5, 8)
    result = plain(net, x, (2,))
    (op,) = found(net, net.binary("mul", result, net.weight(8)), result)
    assert op.scale is None


def test_one_with_a_function_behind_stays():
    """Neither groups of a map before it was reshaped nor a factor behind the function are its own."""
    net = Net()
    x = net.layer(g.ReshapeOp(net.input(1, 8, 3, 4), (1, 2, 48)))
    made = net.layer(g.NormaliseOp(x, axes=(2,), epsilon=1e-2, act=g.ActAttr.of("silu")))
    scaled = net.binary("mul", net.layer(g.ReshapeOp(made, (1, 8, 3, 4))), net.weight(8, 1, 1))
    (op,) = [each for each in found(net, scaled) if isinstance(each, g.NormaliseOp)]
    assert op.act is not None and op.scale is None and op.groups == 1
