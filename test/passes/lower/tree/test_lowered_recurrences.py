"""Loops over time as programs: states are rows of rings or of residents, from the first step on, forward and from the
end."""

import lowered_plans
import pytest

from frustum.dialects import graph as g
from frustum.passes.plan.tree.good_plans import fitting_plan

STEPS, SIZE = 7, 12


def net_of(build, *, reverse=False, starts=False, layers=1, last=False):
    """Layers over time of one cell, which `build` makes of a step's input and states, and how many states it has."""
    cell, count = build

    def made(net):
        x, outputs = net.input(STEPS, SIZE), []
        for _ in range(layers):
            weights = [net.weight(SIZE, SIZE, scale=0.2) for _ in range(8)]
            first = [net.input(1, SIZE) if starts else None for _ in range(count)]

            def body(own, *states, weights=weights):
                found = cell(net, own, states, weights)
                return list(found), [found[0]]

            loop = net.recurrence([x], first, body, steps=STEPS, reverse=reverse)
            x, outputs = loop.outputs[0], list(loop.last_states)
        return (x, *outputs) if last else (x,)

    return made


def product(net, x, w):
    return net.layer(g.MatmulOp(x, w))


def plain(net, x, states, w):
    return (net.unary("tanh", net.binary("add", product(net, x, w[0]), product(net, states[0], w[1]))),)


def gated(net, x, states, w):
    """Cell and output, as an LSTM has them."""
    h, c = states
    parts = [net.binary("add", product(net, x, w[k]), product(net, h, w[4 + k])) for k in range(4)]
    i, f, o = (net.unary("sigmoid", part) for part in parts[:3])
    c = net.binary("add", net.binary("mul", f, c), net.binary("mul", i, net.unary("tanh", parts[3])))
    return net.binary("mul", o, net.unary("tanh", c)), c


CELLS = {"plain": (plain, 1), "gated": (gated, 2)}
KINDS = {
    "forward": {}, "reverse": {"reverse": True}, "from given states": {"starts": True}, "two layers": {"layers": 2},
    "last states": {"last": True, "starts": True}, "reverse, last states": {"last": True, "reverse": True},
}  # fmt: skip


def lowered(cell, kind, kib):
    build = net_of(CELLS[cell], **KINDS[kind])
    target = lowered_plans.machine(sram_bytes=kib * 1536)
    found = lowered_plans.case(build)
    found.plan, _ = fitting_plan(found.axes, kib * 1024)
    return lowered_plans.check_lowered(found, target)


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kib", [4, 64])
def test_loops_over_time(cell, kind, kib):
    moved, counted = lowered(cell, kind, kib)
    assert moved <= counted  # of a state that is wanted at its last step, that step alone
    if "last" not in kind:
        assert moved == counted
