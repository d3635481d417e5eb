"""Random networks of a few elements, for games that try all schedules."""

from __future__ import annotations

import numpy as np
from pebbles import game_of
from xdsl.builder import Builder, InsertPoint
from xdsl.dialects.builtin import f16, f32
from xdsl.ir import Block

from frustum.backend.targets import load
from frustum.dialects import graph as g
from frustum.passes.analysis.least_work import least_work
from frustum.passes.weights import WeightStore
from frustum.runtime.report.dram_bound import dram_bound


class Small:
    """A network in the making, of elements of two sizes."""

    def __init__(self, rng):
        self.rng, self.block, self.store = rng, Block(), WeightStore()
        self.builder, self.names = Builder(InsertPoint.at_end(self.block)), []

    def input(self, *shape, element=f32):
        self.names.append(f"x{len(self.names)}")
        return self.block.insert_arg(g.tensor_type(element, shape), len(self.block.args))

    def weight(self, *shape, element=f32):
        array = self.rng.standard_normal(shape).astype("float16" if element == f16 else "float32")
        op = g.WeightOp(self.store.add("w", array), g.tensor_type(element, shape))
        return self.builder.insert(op).result

    def layer(self, op):
        return self.builder.insert(op).results[0]

    def network(self, *outputs):
        self.builder.insert(g.OutputOp(list(outputs)))
        types = [(name, arg.type) for name, arg in zip(self.names, self.block.args, strict=True)]
        network = g.NetworkOp("net", types, [f"y{k}" for k in range(len(outputs))], self.block)
        network.verify()
        return network


def normed(small, element):
    """Statistics of all elements, of rows, or of columns, and functions of each element with its own."""
    shape = [(3, 1), (1, 3), (2, 2), (1, 2), (2, 1)][small.rng.integers(5)]
    x = y = small.input(*shape, element=element)
    if small.rng.random() < 0.3:
        y = small.layer(g.UnaryOp("exp", y))
    axes = [(0,), (1,), (0, 1)][small.rng.integers(3)]
    if small.rng.random() < 0.3:
        return small.layer(g.SoftmaxOp(y, axes[0]))
    stat = small.layer(g.ReduceOp("mean", y, axes, True))
    return small.layer(g.BinaryOp("sub", [x, y][small.rng.integers(2)], stat))


def product(small, element):
    """One, two or three products one behind the other, of small sizes, perhaps with a residual behind."""
    m, k, n = map(int, small.rng.integers(1, 3, 3))
    x = small.input(m, k, element=element)
    y = small.layer(g.MatmulOp(x, small.weight(k, n, element=element)))
    if small.rng.random() < 0.5:
        y = small.layer(g.UnaryOp("relu", y))
    if small.rng.random() < 0.5:
        y = small.layer(g.MatmulOp(y, small.weight(n, int(small.rng.integers(1, 3)), element=element)))
    if g.shape_of(y) == g.shape_of(x) and small.rng.random() < 0.5:
        y = small.layer(g.BinaryOp("add", y, x))
    return y


def windows(small, element):
    """A convolution of a column, and what its mean does to the map or to its input."""
    h, kernel = int(small.rng.integers(2, 4)), int(small.rng.integers(1, 3))
    x = small.input(1, 1, h, 1, element=element)
    y = small.layer(g.ConvOp(x, small.weight(1, 1, kernel, 1, element=element), pads=(kernel - 1, 0, 0, 0)))
    if small.rng.random() < 0.5:
        stat = small.layer(g.ReduceOp("mean", y, (2,), True))
        y = small.layer(g.BinaryOp("mul", [x, y][small.rng.integers(2)], stat))
    return y


def attention(small, element):
    """Of one head, rows of few elements."""
    rows, keys = [(2, 2), (1, 2), (2, 1), (1, 3)][small.rng.integers(4)]
    size, value_size = (int(n) for n in small.rng.integers(1, 4, 2))
    q, k = small.input(1, rows, size, element=element), small.input(1, keys, size, element=element)
    v = small.input(1, keys, value_size, element=element)
    return small.layer(g.AttentionOp(q, k, v, heads=(1, 1), sizes=(size, value_size), scale=1.0, is_merged=True))


def any_graph(small, element):
    """Functions of elements, sums along axes and products of earlier maps, as they come."""
    shape = [(2, 1), (1, 2), (2, 2), (3, 1), (1, 3)][small.rng.integers(5)]
    maps = [small.input(*shape, element=element)]
    for _ in range(small.rng.integers(2, 5)):
        a, b = (maps[small.rng.integers(len(maps))] for _ in range(2))
        kind = small.rng.integers(5)
        wide = all(x == y or 1 in (x, y) for x, y in zip(g.shape_of(a), g.shape_of(b), strict=True))
        if kind == 0 or (kind == 1 and not wide):
            maps.append(small.layer(g.UnaryOp("relu", a)))
        elif kind == 1:
            maps.append(small.layer(g.BinaryOp("add", a, b)))
        elif kind == 2:
            maps.append(small.layer(g.ReduceOp("sum", a, (int(small.rng.integers(2)),), True)))
        elif kind == 3 and g.shape_of(a)[1] == g.shape_of(b)[0]:
            maps.append(small.layer(g.MatmulOp(a, b)))
        else:
            maps.append(small.layer(g.TransposeOp(a, (1, 0))))
    return maps[-1]


FAMILIES = {each.__name__: each for each in (normed, product, windows, attention, any_graph)}


def compare(family, seed, most):
    """The argument of the bound for each size of memory in which a random graph was compared with its cheapest
    schedule; None where it has more than so many values."""
    small = Small(np.random.default_rng(seed))
    element = (f16, f32)[small.rng.integers(2)]
    network = small.network(FAMILIES[family](small, element))
    game = game_of(network)
    is_copy = any(not game.recipes[v] for v in game.outputs)  # an input that is an output need not move
    if is_copy or len(game.needed()) > most:
        return None
    facts = least_work(network, load("df"))
    arguments = []
    smallest = game.smallest_memory()
    for memory in range(smallest - 2 * max(game.size), smallest + 5, 2):
        least = game.least(memory)
        if least is not None:
            found = dram_bound(memory, game.compulsory(), [facts])
            assert found.bytes <= least, (family, seed, memory, least, found, str(network))
            arguments.append(found.by.split(" '")[0])
    return arguments
