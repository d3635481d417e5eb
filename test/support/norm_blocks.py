"""Parts of transformers that normalise first, and a machine with little SRAM for them."""

from __future__ import annotations

from dataclasses import replace

from networks import Net
from stops import target
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.passes.graph.choose_forms import ChooseForms
from frustum.passes.plan.network.optimal import plan_network
from frustum.runtime.reference.graph import network_of

ROWS, WIDTH, HIDDEN = 64, 128, 640


def edge(kib):
    """The target with so much SRAM."""
    whole = target("edge")
    cluster = replace(whole.cluster, sram=replace(whole.cluster.sram, capacity_bytes=kib << 10))
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


def block(*, rms=False, scale=True, shift=True, bias=True, trans_b=False, gated=False, act=None):
    """A product, and a normalisation of its sum, an MLP and the sum of both; what is summed up has a mean of 3."""
    net = Net()
    given, added = net.input(ROWS, WIDTH), net.input(ROWS, WIDTH)
    added = net.unary("affine", added, 1.0, 3.0)
    x = net.layer(g.MatmulOp(given, net.weight(WIDTH, WIDTH, scale=WIDTH**-0.5), net.weight(WIDTH), residual=added))
    operands = [net.weight(WIDTH)] * scale + [net.weight(WIDTH)] * (scale and shift)
    rows = net.layer(g.NormaliseOp(x, *operands, axes=(1,), epsilon=1e-5, rms=rms))
    shape = (HIDDEN, WIDTH) if trans_b else (WIDTH, HIDDEN)

    def up(act):
        own = net.weight(HIDDEN) if bias else None
        weights = net.weight(*shape, scale=WIDTH**-0.5)
        return net.layer(g.MatmulOp(rows, weights, own, trans_b=trans_b, act=act and g.ActAttr.of(act)))

    made = net.layer(g.BinaryOp("mul", up("sigmoid"), up(None))) if gated else up("gelu")
    numbers = {"residual": x, "act": act and g.ActAttr.of(act)}
    down = g.MatmulOp(made, net.weight(HIDDEN, WIDTH, scale=HIDDEN**-0.5), net.weight(WIDTH), **numbers)
    return net.module(net.layer(down))


def planned(module, machine):
    module.attributes[TARGET] = to_attribute(machine)
    ChooseForms().apply(Context(), module)
    network = network_of(module)
    return network, plan_network(network, machine)
