"""The address cache, and the kernel that goes where tables lead."""

import ast
import inspect

import pytest

from frustum.dialects.isa.program import Affine, Box, Conv, Span, TableLoad, View
from frustum.runtime.device.matrix import gather
from frustum.runtime.device.memory import AccessError
from frustum.runtime.device.tables import Occupancy

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
