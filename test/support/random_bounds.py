"""Random networks compiled in every way, and the bound on bytes of DRAM beside what the machine counted of each."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from hypothesis import assume
from hypothesis import strategies as st
from networks import Net
from random_network import GRAPHS, Drawn, keys_for, networks, residual
from random_run import MACHINES, POLICIES
from stops import target

import frustum
from frustum.dialects import graph
from frustum.dialects.choices import AskedBorders, Carry
from frustum.dialects.graph import shape_of
from frustum.dialects.target.fit import DoesNotFit


def multiplied(draw, net, x, maps):
    """One product of many rows and columns, or two one behind the other."""
    sizes = st.sampled_from([24, 64, 100, 160])
    for _ in range(draw(st.integers(1, 2))):
        depth, turned = shape_of(x)[-1], draw(st.booleans())
        columns = draw(sizes)
        w = net.weight(*((columns, depth) if turned else (depth, columns)), scale=depth**-0.5)
        x = net.layer(graph.MatmulOp(x, w, trans_b=turned))
        x = net.unary("relu", x) if draw(st.booleans()) else x
    return x


def attended(draw, net, x, maps):
    """Rows of a map see each other, or those of another."""
    k, v = keys_for(draw, x, maps)
    (_, heads, _, size), groups = shape_of(x), shape_of(k)[1]
    return net.layer(
        graph.AttentionOp(
            x, k, v, heads=(heads, groups), sizes=(size, shape_of(v)[3]), scale=size**-0.5, is_merged=False
        )
    )


def normed(draw, net, x, maps):
    """By numbers of whole planes, or of all of them."""
    axes = draw(st.sampled_from([(1, 2, 3), (2, 3)]))
    if draw(st.booleans()):
        return net.layer(graph.NormaliseOp(x, axes=axes, epsilon=1e-2))
    return net.binary("sub", x, net.layer(graph.ReduceOp(draw(st.sampled_from(["mean", "max"])), x, axes)))


@st.composite
def tight_networks(draw):
    """Maps larger than the memories of `tight_machines`, of which the bound often says more than `compulsory`."""
    net = Net(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from([multiplied, multiplied, attended, normed, normed, residual]))
    rows, size = draw(st.sampled_from([40, 96, 160])), draw(st.sampled_from([4, 8, 64, 128]))
    shape = (1, 1, 4 * rows, min(size, 16)) if kind is attended else (1, draw(st.integers(1, 2)), rows, size)
    x = y = net.input(*shape)
    y = kind(draw, net, net.unary("tanh", y) if draw(st.booleans()) else y, [x])
    if shape_of(y) == shape and draw(st.booleans()):
        y = net.binary("add", x, y)
    return Drawn(*net.module(y))


@st.composite
def tight_machines(draw):
    """Shipped ones with one core and 3 to 10 KiB in all."""
    whole = target(draw(st.sampled_from(["edge", "default", "df"])))
    nram, wram = (draw(st.sampled_from([1024, 2048])) for _ in range(2))
    core, cluster = whole.core, whole.cluster
    core = replace(
        core, nram=replace(core.nram, capacity_bytes=nram), wram=replace(core.wram, capacity_bytes=wram)
    )
    sram = replace(cluster.sram, capacity_bytes=draw(st.sampled_from([1024, 2048, 4096, 6144])))
    cluster = replace(cluster, sram=sram, core=core, cores=1)
    return replace(whole, chip=replace(whole.chip, cluster=cluster, clusters=1))


CODECS = ("none", "none", "auto", "huffman", "zero")
WAYS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["f32", "f16", "int8"]),
        "carry": st.sampled_from(get_args(Carry)),
        "compress_weights": st.sampled_from(CODECS),
        "policy": st.sampled_from(POLICIES),
        "borders": st.sampled_from(get_args(AskedBorders)),
        "optimise": st.sampled_from(["time", "bytes"]),
    }
)
"""Options of a compilation."""


def bounded(layers):
    """Networks of so many layers, machines and options."""
    tight = st.tuples(tight_networks(), tight_machines(), WAYS)
    return tight | tight | st.tuples(networks(layers, GRAPHS), MACHINES, WAYS)


def check_bounded(case):
    """The bound, between the compulsory bytes and those that the machine counted, program and tables apart.  Gives the
    argument of the bound."""
    network, machine, way = case
    try:
        compiled = frustum.compile(network.module, target(machine), **way)
    except DoesNotFit:
        assume(False)
    dram = frustum.run(compiled, {}, mode="timing").report["dram"]
    compulsory = dram["compressed_compulsory_bytes"]
    assert compulsory <= dram["bound_bytes"] <= dram["total_bytes"] - dram["other_bytes"], dram
    return dram["bound_by"].split(" '")[0]
