"""Layouts of maps between units: which maps have a choice, what it does to copies, and that numbers stay the same."""

from dataclasses import replace

import numpy as np
import pytest
from every_operation import network
from hypothesis import given
from hypothesis import strategies as st
from networks import Net
from stops import aimed, run_module
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

from frustum.backend import targets
from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph
from frustum.dialects.isa import CopyOp, RepeatOp
from frustum.dialects.isa.program import Affine
from frustum.dialects.module import LAYOUT
from frustum.dialects.tile import FTile, TensorView, UnitOp
from frustum.dialects.unit import UnitOp as GraphUnit
from frustum.passes.analysis.project import Region
from frustum.passes.analysis.unit_layers import BLOCK, LAYOUTS, view_in
from frustum.passes.graph.choose_layout import ChooseLayout, Copies, MapCopy, Product, run_elements

NETWORKS = ("inception", "residual", "grouped", "wide")
ZERO = (Affine(),) * 4


def wide(channels=(32, 48, 32)):
    """Convolutions of many channels, a pooling and a sum between them."""
    net = Net()
    x = first = net.conv(net.input(1, 3, 9, 8), channels[0], 3)
    for count in channels[1:]:
        x = net.conv(x, count, 3, act="relu")
    return net.module(net.pool("max", net.binary("add", x, first)))


def grouped():
    net = Net()
    x = net.conv(net.input(2, 4, 8, 9), 16, 3, strides=(2, 1))
    x = net.conv(x, 16, 3, groups=4)
    return net.module(net.conv(x, 16, 1))


def narrower():
    return wide((32, 16, 32))


def given_network(name):
    return {"wide": narrower, "grouped": grouped}[name]() if name in ("wide", "grouped") else network(name)


def tiled(module, target, policy="none"):
    module = aimed(module, target)
    Run().advance(module, ["typed", "fused", "tiled"], Choices(policy=policy))
    return module


def chosen(module, layout):
    module = module.clone()
    ChooseLayout(layout=layout).apply(Context(), module)
    module.verify()
    return module, [op.attributes[LAYOUT].data for op in module.walk() if LAYOUT in op.attributes]


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("target", ["tiny", "edge"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_layout_gives_the_same_numbers(name, target):
    """Tile by tile, and on the machine in checked mode."""
    module, inputs = given_network(name)
    base = tiled(module, target)
    expected = run_module(base, inputs)
    for layout in (*LAYOUTS, "auto"):
        module, names = chosen(base, layout)
        assert layout in ("auto", "nchw", "nchwc") or names, "a map has a choice"
        Run().advance(module, ["placed"], Choices())
        placed = run_module(module, inputs)
        Run().advance(module, ["lowered", "fixed"], Choices())
        fixed = run_module(module, inputs, checked=True)
        for key, array in expected.items():
            np.testing.assert_allclose(placed[key], array, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(fixed[key], array, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_map_lies_as_its_layout_says():
    """The strided copies convert: the store writes the layout, and only it."""
    base = tiled(wide()[0], "tiny")
    module, names = chosen(base, "nhwc")
    assert set(names) == {"nhwc"}
    Run().advance(module, ["placed"], Choices())
    first = next(op for op in module.walk() if isinstance(op, UnitOp))
    store = next(op for op in first.walk() if op.name == "ftile.store")
    assert store.view.data == TensorView(0, (9 * 8 * 32, 1, 8 * 32, 32))


@pytest.mark.slow
def test_blocks_are_copied_one_by_one():
    module, names = chosen(tiled(wide()[0], "edge"), "nchwc")
    assert set(names) == {"nchwc"}
    Run().advance(module, ["placed", "lowered"], Choices())
    loops = [op for op in module.walk() if isinstance(op, RepeatOp)]
    copies = [loop for loop in loops if [type(op) for op in loop.body.block.ops] == [CopyOp]]
    assert {2, 3} <= {loop.count.value.data for loop in copies}  # 32 and 48 channels


def test_views_of_blocks_are_text():
    module, _ = chosen(tiled(wide()[0], "edge"), "nchwc")
    Run().advance(module, ["placed"], Choices())
    text = str(module)
    assert ", block 16>" in text and str(parsed(text)) == text


def parsed(text):
    context = Context()
    for dialect in (Builtin, graph.FGraph, FTile):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


@pytest.mark.slow
def test_blocks_need_whole_blocks():
    _, names = chosen(tiled(wide((20, 20, 20))[0], "default"), "nchwc")
    assert names == []
    moving = Region((Affine(), Affine(8), Affine(), Affine()), (1, 8, 4, 4))
    shape = (1, 32, 4, 4)
    assert not Copies(shape, 4, (MapCopy(moving, 1),)).has_blocks
    assert Copies(shape, 4, (MapCopy(Region(ZERO, shape), 1),)).has_blocks


@pytest.mark.slow
def test_the_boundary_stays_as_the_file_says():
    """Inputs, outputs, what is reshaped, concatenated or transposed."""
    net = Net()
    x = net.input(1, 4, 8, 8)
    a, b = net.conv(x, 8, 3), net.conv(x, 8, 3)
    joined = net.layer(graph.ConcatOp([a, b], 1))
    c = net.conv(joined, 8, 3)
    module, _ = net.module(c, net.dense(net.conv(x, 4, 1), 5))
    assert chosen(tiled(module, "tiny"), "nhwc")[1] == []


@pytest.mark.slow
def test_auto_keeps_nchw_where_runs_are_long():
    assert chosen(tiled(wide()[0], "df"), "auto")[1] == []


@pytest.mark.slow
def test_auto_takes_what_the_model_says_is_cheaper():
    edge, shape = targets.load("edge"), (1, 64, 56, 56)
    columns = Copies(shape, 4, (MapCopy(Region(ZERO, (1, 64, 56, 2)), 28),))
    rows = Copies(shape, 4, (MapCopy(Region(ZERO, (1, 64, 2, 56)), 28),))
    assert columns.cycles("nhwc", edge) < columns.cycles("nchw", edge)
    assert ChooseLayout().choose(columns, edge) == "nhwc"
    assert ChooseLayout().choose(rows, edge) == "nchw"
    assert ChooseLayout(layout="cnhw").choose(rows, edge) == "cnhw"


def test_products_that_lines_are_filled_for_one_by_one_keep_nchw():
    """A depthwise convolution reads one channel per pass: with the channels of a position as neighbours, a write fills
    one line; cheaper copies do not make up for that."""
    df, shape = targets.load("df"), (1, 512, 14, 14)
    boxes = (
        MapCopy(Region(ZERO, (1, 32, 14, 14)), 16, is_piece=True),
        MapCopy(Region(ZERO, (1, 512, 2, 7)), 14, is_piece=True),
    )
    made, read, one = (1, 32, 14, 14), (1, 32, 16, 16), (1, 1)
    depthwise = Product(made, read, (1, 1), 32, (3, 3), one, one, 16)
    copies = Copies(shape, 1, boxes)
    assert ChooseLayout().choose(copies, df) == "nhwc"
    assert ChooseLayout().choose(replace(copies, products=(depthwise,)), df) == "nchw"
    cycles = {x: replace(copies, products=(depthwise,)).product_cycles(x, df) for x in ("nchw", "nhwc")}
    assert cycles == {"nchw": 16 * 32 * 9 * 4, "nhwc": 16 * 32 * 345}  # 4 fills of 9 taps; 345 writes


@pytest.mark.slow
def test_a_unit_without_a_partition_is_left_alone():
    module = aimed(wide()[0], "tiny")
    Run().advance(module, ["typed", "fused"], Choices(policy="none"))
    assert any(isinstance(op, GraphUnit) for op in module.walk())
    assert chosen(module, "nhwc")[1] == []


@pytest.mark.slow
@given(st.sampled_from(LAYOUTS), st.tuples(*[st.integers(1, 4)] * 4), st.data())
def test_run_length_by_brute_force(layout, shape, data):
    n, c, h, w = shape
    shape = (n, c * BLOCK if layout == "nchwc" else c, h, w)
    extent = tuple(data.draw(st.integers(1, size)) for size in shape)
    if layout == "nchwc":
        extent = (extent[0], BLOCK, *extent[2:])
    view = view_in(layout, shape)
    places = np.zeros(1, int)
    for d, (count, stride) in enumerate(zip(extent, view.strides, strict=True)):
        along = np.arange(count)
        steps = (
            along // view.block * stride + along % view.block if d == 1 and view.block > 1 else along * stride
        )
        places = np.add.outer(places, steps).ravel()
    places = np.sort(places)
    breaks = np.flatnonzero(np.diff(places) != 1)
    first = int(breaks[0]) + 1 if len(breaks) else len(places)
    assert run_elements(extent, view, shape) == first
