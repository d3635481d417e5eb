"""Roundings that change nothing go, and what is computed stays the same."""

import numpy as np
import pytest
from networks import Net
from stops import run_module
from xdsl.context import Context
from xdsl.dialects.builtin import f32

from frustum.dialects.graph import ConvOp, WeightOp, networks_of, tensor_type
from frustum.passes.graph.canonicalize import Canonicalize

SHAPE = (1, 3, 6, 5)
ODD = np.array([-3.0, -2.5, -0.5, -0.0, 0.0, 0.25, 1.0, 2.75], np.float32)


def truncated(net, x):
    down = net.unary("relu", net.unary("floor", x))
    return net.binary("add", down, net.unary("clip", net.unary("ceil", x), -np.inf, 0.0))


def weight(net, values):
    key = net.store.add("w", values.astype(np.float32))
    return net.builder.insert(WeightOp(key, tensor_type(f32, values.shape))).result


def whole(net, x):
    """Roundings of what they make, through a convolution with whole weights, a pooling and moves."""
    kernels, bias = np.arange(108).reshape(4, 3, 3, 3) % 7 - 3, np.array([1, -2, 0, 5])
    made = net.layer(ConvOp(net.unary("round", x), weight(net, kernels), weight(net, bias), pads=(1, 1, 1, 1)))
    return net.unary("floor", net.unary("abs", truncated(net, made)))


def of_whole_constants(net, x):
    scaled = net.binary("mul", net.unary("ceil", x), net.constant(35.0))
    return net.unary("round", net.binary("max", scaled, net.constant(-7.0)))


def half(net, x):
    return net.unary("floor", net.binary("mul", net.unary("ceil", x), net.constant(0.5)))


def clipped(net, x):
    return net.unary("clip", net.unary("identity", truncated(net, x)), 0.0, 2.0)


def clipped_below(net, x):
    return net.unary("clip", truncated(net, x), -1.0, 2.0)


def clipped_at_a_half(net, x):
    return net.unary("clip", truncated(net, x), 0.5, 2.0)


def relu(net, x):
    return net.unary("relu", truncated(net, x))


ROUNDINGS = ("floor", "ceil", "round")


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (whole, ["round"]), (of_whole_constants, ["ceil"]), (half, ["ceil", "floor"]), (clipped, ["floor"]),
        (clipped_below, ["ceil", "floor"]), (clipped_at_a_half, ["ceil", "floor"]), (relu, ["floor"]),
        (truncated, ["ceil", "floor"]),
    ],
)  # fmt: skip
def test_roundings_that_are_left(build, left):
    net = Net()
    x = net.input(*SHAPE)
    module, _ = net.module(build(net, x))
    values = np.random.default_rng(3).choice(ODD, SHAPE).astype(np.float32)
    before = run_module(module, {"x0": values})
    Canonicalize().apply(Context(), module)
    (network,) = networks_of(module)
    acts = [str(act.data.kind) for op in network.walk() if (act := getattr(op, "act", None)) is not None]
    assert sorted(act for act in acts if act in ROUNDINGS) == left
    after = run_module(module, {"x0": values})
    assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)
