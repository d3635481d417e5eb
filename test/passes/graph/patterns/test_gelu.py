"""GELU is found in the forms that exporters write, and computes the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from networks import Net
from stops import run_module
from xdsl.context import Context

from frustum.dialects.graph import BinaryOp, UnaryOp
from frustum.passes.graph.canonicalize import Canonicalize

SHAPE = (2, 7, 12)


def scaled(net, x, number, kind="mul"):
    return net.binary(kind, x, net.constant(number))


def by_erf(net, x, *, root=2**0.5, kind="div", one=1.0):
    """x / sqrt(2) -> erf -> + 1."""
    return scaled(net, net.unary("erf", scaled(net, x, root, kind)), one, "add")


def half_behind(net, x):
    return scaled(net, net.binary("mul", x, by_erf(net, x)), 0.5)


def half_before(net, x):
    return net.binary("mul", by_erf(net, x, root=math.sqrt(0.5), kind="mul"), scaled(net, x, 0.5))


def half_of_the_gate(net, x):
    return net.binary("mul", x, scaled(net, by_erf(net, x, root=1.4142), 2.0, "div"))


def by_tanh(net, x, inner):
    gate = scaled(net, net.unary("tanh", scaled(net, inner, 0.7978845608)), 1.0, "add")
    return net.binary("mul", scaled(net, x, 0.5), gate)


def cube_by_power(net, x):
    return by_tanh(net, x, net.binary("add", x, scaled(net, scaled(net, x, 3.0, "pow"), 0.044715)))


def cube_by_products(net, x):
    cube = net.binary("mul", net.binary("mul", x, x), x)
    return by_tanh(net, x, net.binary("add", scaled(net, cube, 0.044715), x))


def square_in_brackets(net, x):
    inner = scaled(net, scaled(net, scaled(net, x, 2.0, "pow"), 0.044715), 1.0, "add")
    return by_tanh(net, x, net.binary("mul", x, inner))


def check(net, *results, found):
    module, values = net.module(*results)
    before = run_module(module, values)
    Canonicalize().apply(Context(), module)
    module.verify()
    for name, array in run_module(module, values).items():
        np.testing.assert_allclose(array, before[name], rtol=1e-3, atol=1e-4)
    kinds = {str(op.kind) for op in module.walk() if isinstance(op, UnaryOp)}
    acts = {op.act.data.kind for op in module.walk() if isinstance(op, BinaryOp) and op.act is not None}
    assert {"gelu", "gelu_tanh"} & (kinds | acts) == found


@pytest.mark.parametrize("form", [half_behind, half_before, half_of_the_gate])
def test_by_the_error_function(form):
    net = Net()
    check(net, form(net, net.input(*SHAPE)), found={"gelu"})


@pytest.mark.parametrize("form", [cube_by_power, cube_by_products, square_in_brackets])
def test_by_the_hyperbolic_tangent(form):
    net = Net()
    check(net, form(net, net.input(*SHAPE)), found={"gelu_tanh"})


@pytest.mark.parametrize("other", [{"root": 1.5}, {"one": 1.1}])
def test_other_curves_stay(other):
    net = Net()
    x = net.input(*SHAPE)
    check(net, scaled(net, net.binary("mul", x, by_erf(net, x, **other)), 0.5), found=set())


def test_what_others_read_between_stays():
    net = Net()
    x = net.input(*SHAPE)
    gate = by_erf(net, x)
    check(net, scaled(net, net.binary("mul", x, gate), 0.5), gate, found=set())


def test_of_another_value_stays():
    net = Net()
    x, other = net.input(*SHAPE), net.input(*SHAPE)
    check(net, scaled(net, net.binary("mul", other, by_erf(net, x)), 0.5), found=set())
