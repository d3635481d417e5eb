"""Convolutions through address tables: one kernel, the same numbers, and what the cache does on the way."""

import ast
import inspect
import itertools

import numpy as np
import pytest

from frustum.dialects import address_table as at
from frustum.dialects.isa.program import Affine, Box, Conv, Span, TableLoad, View
from frustum.dialects.stored_table import read_table, write_table
from frustum.runtime import gather
from frustum.runtime.check import AccessError
from frustum.runtime.table import Occupancy, table_of

VIEW = View("i8", Affine(), (0, 0, 0, 1), "dram")


def load(entry, size, evicts=()):
    return TableLoad(src_view=VIEW, bytes=size, entry=entry, evicts=evicts)


def test_the_kernel_has_no_division_no_modulo_and_no_branch():
    tree = ast.parse(inspect.getsource(gather))
    forbidden = (ast.Div, ast.FloorDiv, ast.Mod, ast.If, ast.IfExp, ast.Match, ast.Compare, ast.BoolOp, ast.While)
    found = [type(node).__name__ for node in ast.walk(tree) if isinstance(node, forbidden)]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not found
    assert not (names | calls) & {"divmod", "mod", "fmod", "remainder", "floor_divide", "where", "select", "layout"}


@pytest.mark.parametrize("order", at.ORDERS)
@pytest.mark.parametrize("name", ["nchw", "nhwc", "cnhw"])
def test_the_kernel_walks_a_part_over_the_whole_piece(name, order):
    n, c, h, w, co = 2, 5, 9, 10, 3
    layout = {"nchw": at.nchw(c, h, w), "nhwc": at.nhwc(c, h, w), "cnhw": at.cnhw(n, h, w)}[name]
    rng = np.random.default_rng(0)
    x, weights = rng.integers(-9, 9, (n, c, h, w)), rng.integers(-9, 9, (1, co, c, 3, 3))
    place = np.add.outer(np.add.outer(np.arange(n) * layout.n, np.arange(c) * layout.c),
                         np.add.outer(np.arange(h) * layout.h, np.arange(w) * layout.w))
    memory = np.zeros((1, 4 * x.size), np.int64)
    memory[0, place] = x
    expected = np.zeros((1, n, 4, 8, co), np.int64)
    for o, i, v, u in itertools.product(range(co), range(c), range(3), range(3)):
        expected[0, ..., o] += x[:, i, v : v + 7 : 2, u : u + 8] * weights[0, o, i, v, u]
    for images, rows, columns, channels in [(2, 4, 8, 5), (1, 2, 8, 5), (1, 1, 4, 1), (2, 4, 2, 5), (1, 4, 1, 1)]:
        part = at.Geometry(images, rows, columns, channels, (3, 3), (2, 1), (1, 1), layout)
        table = table_of(read_table(write_table(part, order, 4)))
        sums = np.zeros_like(expected)
        steps = gather.Steps(layout.n, 2 * layout.h, layout.w, layout.c)
        gather.gather(memory, 0, weights, table, steps, sums)
        np.testing.assert_array_equal(sums, expected)


def test_the_cache_is_watched():
    cache = Occupancy(100)
    cache.load(load(0, 60))
    cache.load(load(1, 40))
    assert cache.used_bytes == 100
    with pytest.raises(AccessError, match="entry 5 is evicted, but holds no table"):
        cache.load(load(2, 10, (5,)))
    with pytest.raises(AccessError, match="entry 1 is loaded, but holds a table"):
        cache.load(load(1, 10))
    cache.load(load(2, 60, (0,)))
    with pytest.raises(AccessError, match="holds 110 bytes, has 100"):
        cache.load(load(3, 10))


def test_a_convolution_uses_a_table_that_is_there():
    one = Span(Affine(), 1, 1)
    view = View("f32", Affine(), (4, 4, 4, 4), "nram")
    conv = Conv(in_view=view, weight_view=view, out_view=view, box=Box.of(one, one, one, one), channels=one, rows=one,
                cols=one, kernel=(1, 1), strides=(1, 1), dilations=(1, 1), table=7)
    cache = Occupancy(100)
    with pytest.raises(AccessError, match="uses entry 7, which holds no table"):
        cache.use(conv)
    cache.load(load(7, 10))
    cache.use(conv)
