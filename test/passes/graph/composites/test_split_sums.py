"""Products of few results in parts of their sums, and the same values; how many parts, against brute force."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_networks import IntegerNet
from networks import Net
from stops import aimed, machine_of, run_module, target
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.dialects.axes.axis import Axis, regroup
from frustum.dialects.graph.axes import read_with_views
from frustum.passes.graph.composites.split_sums import (
    ProductSums,
    SplitSums,
    adding,
    best_parts,
    dims_of,
    in_parts,
    sums_of,
)
from frustum.passes.graph.convert_type import ConvertType

TARGETS = "default", "edge", "manycore"
RELU = g.ActAttr.of("relu")


def split(module, target_name="default"):
    """The module after the pass, and the products there."""
    found = aimed(module, target_name)
    SplitSums().apply(Context(), found)
    found.verify()
    return found, [op for op in found.walk() if isinstance(op, g.MatmulOp | g.ConvOp)]


def check(net, *outputs, rtol=1e-5):
    """Values are the same after the pass: the terms of a sum of each product there."""
    module, inputs = net.module(*outputs)
    found, products = split(module)
    wanted, got = run_module(module, inputs), run_module(found, inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=rtol * np.abs(value).max())
    return [terms(op) for op in products]


def terms(op):
    """Positions of an operand's last dimension, or channels, that a product sums."""
    return g.shape_of(op.w)[1] if isinstance(op, g.ConvOp) else g.shape_of(op.a)[-1]


def is_left(net, *outputs, target_name="default"):
    """Whether the pass changes nothing."""
    module, _ = net.module(*outputs)
    return str(split(module, target_name)[0]) == str(aimed(module, target_name))


# ------------------------------------------------------------ values


@pytest.mark.parametrize("act", [None, RELU])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_of_one_row(bias, residual, act):
    net = Net()
    x, w, b = net.input(1, 2048), net.weight(2048, 24, scale=0.02), net.weight(24) if bias else None
    y = g.MatmulOp(x, w, b, residual=net.input(1, 24) if residual else None, act=act)
    assert check(net, net.layer(y)) == [2048 // 16]


@pytest.mark.parametrize("act", [None, RELU])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_few_places(bias, residual, act):
    net = Net()
    x = net.input(2, 256, 5, 4)
    w, b = net.weight(6, 256, 3, 3), net.weight(6) if bias else None
    added = net.input(2, 6, 2, 2) if residual else None
    op = g.ConvOp(x, w, b, strides=(2, 2), pads=(1, 1, 1, 0), dilations=(2, 1), residual=added, act=act)
    assert check(net, net.layer(op)) == [256 // 16]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 2, 1024), (3, 1024, 16)),
        ((2, 3, 1, 1024), (2, 3, 1024, 8)),
        ((3, 2, 1024), (1024, 16)),
        ((2, 3, 2, 1024), (3, 1024, 16)),
        ((2, 1, 2, 1024), (2, 3, 1024, 16)),
        ((2, 1024), (3, 1024, 16)),
        ((3, 2, 1024), (2, 3, 1024, 16)),
    ],
)
@pytest.mark.parametrize("trans_b", [False, True])
def test_products_of_groups(a, b, trans_b):
    net = Net()
    b = (*b[:-2], b[-1], b[-2]) if trans_b else b
    (left,) = check(net, net.layer(g.MatmulOp(net.input(*a), net.input(*b), trans_b=trans_b)))
    assert left < 1024


@pytest.mark.parametrize("trans_b", [False, True])
def test_weights_that_are_transposed(trans_b):
    net = Net()
    w = net.weight(*(24, 2048) if trans_b else (2048, 24), scale=0.02)
    assert check(net, net.layer(g.MatmulOp(net.input(3, 2048), w, trans_b=trans_b))) == [2048 // 16]


def test_parts_of_a_map_are_of_whole_channels():
    """Positions of a flattened map: the parts are views, and no layer moves them."""
    net = Net()
    module, _ = net.module(net.dense(net.input(1, 96, 5, 5), 10))
    found, (op,) = split(module)
    assert terms(op) % (5 * 5) == 0 and terms(op) < 96 * 5 * 5
    (network,) = g.networks_of(found)
    assert [layer.name for layer in read_with_views(network)[0].layers] == ["matmul_2", "matmul_2#2", "matmul_2#3"]
    net = Net()
    assert check(net, net.dense(net.input(1, 96, 5, 5), 10)) == [terms(op)]


def test_products_of_steps():
    """Of a recurrence each step has its parts."""
    net = Net()
    x, start = net.input(3, 1, 4), net.input(1, 1, 512)
    w, v = net.weight(4, 512), net.weight(512, 512, scale=0.04)

    def body(own, state):
        made = net.layer(g.MatmulOp(state, v, residual=net.layer(g.MatmulOp(own, w)), act=g.ActAttr.of("tanh")))
        return [made], [made]

    assert check(net, *net.recurrence([x], [start], body, steps=3).results) == [4, 128]


def test_biases_of_narrow_products_stay_wide():
    """A machine keeps biases in f32; sums of parts are rounded to f16."""
    net = Net()
    x, w, b = net.input(1, 2048), net.weight(2048, 16, scale=0.02), net.weight(16)
    y = net.layer(g.MatmulOp(x, w, b, residual=net.input(1, 16), act=RELU))
    z = net.conv(net.input(1, 256, 3, 3), 8)
    module, inputs = net.module(y, z)
    module = aimed(module, "default")
    ConvertType(to="f16").apply(Context(), module)
    found, products = split(module)
    assert [terms(op) for op in products] == [2048 // 16, 256 // 16]
    wanted, got = run_module(module, inputs), run_module(found, inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=4e-3, atol=4e-3 * np.abs(value).max())


# ------------------------------------------------------------ what stays whole


def test_integers_stay_whole():
    net = IntegerNet()
    x, image = net.integer_input(1, 4096), net.integer_input(1, 512, 3, 3)
    made = net.matrix(x, 16), net.product(image, 8), net.matrix(x, 16, accumulator=True, bias=False, w_zero=False)
    assert is_left(net, *made)


def test_groups_of_channels_and_transposed_rows_stay_whole():
    net = Net()
    groups = net.conv(net.input(1, 512, 3, 3), 8, groups=2)
    assert is_left(net, groups, net.layer(g.MatmulOp(net.input(4096, 1), net.weight(4096, 16), trans_a=True)))


def test_with_many_results_all_units_have_some():
    net = Net()
    rows = net.layer(g.MatmulOp(net.input(1024, 512), net.weight(512, 64)))
    columns = net.layer(g.MatmulOp(net.input(1, 512), net.weight(512, 1024)))
    assert is_left(net, rows, columns, net.conv(net.input(1, 64, 32, 32), 64))


def test_short_sums_are_not_worth_their_addition():
    net = Net()
    assert is_left(net, net.layer(g.MatmulOp(net.input(1, 64), net.weight(64, 16))), net.conv(net.input(1, 8, 3, 3), 8))


def test_one_unit_gains_nothing():
    net = Net()
    y = net.layer(g.MatmulOp(net.input(1, 2048), net.weight(2048, 24)))
    assert is_left(net, y, net.conv(net.input(1, 512, 3, 3), 8), target_name=machine_of(1))


# ------------------------------------------------------------ how many parts


def test_what_the_matrix_unit_sees_of_a_product():
    net = Net()
    x, image = net.input(2, 5, 24), net.input(3, 8, 6, 7)
    flat = net.layer(g.ReshapeOp(image, (3, 8 * 6 * 7)))
    made = {
        ProductSums(1, 10, 16, (24,), 1, 4): g.MatmulOp(x, net.weight(24, 16)),
        ProductSums(2, 5, 16, (24,), 1, 4): g.MatmulOp(x, net.input(2, 24, 16)),
        ProductSums(1, 3, 16, (8, 6, 7), 1, 4): g.MatmulOp(flat, net.weight(16, 8 * 6 * 7), trans_b=True),
        ProductSums(1, 3 * 6 * 7, 16, (8,), 9, 4): g.ConvOp(image, net.weight(16, 8, 3, 3), None, (1, 1), (1, 1, 1, 1)),
    }  # fmt: skip
    assert {wanted: sums_of(net.builder.insert(op)) for wanted, op in made.items()} == {each: each for each in made}


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((3, 8, 6, 7), (3, 336), (8, 6, 7)),
        ((2, 3, 4, 5), (6, 20), (4, 5)),
        ((2, 10), (4, 5), (5,)),
        ((4, 6), (24,), (4, 6)),
        ((3, 1, 4), (3, 4), (1, 4)),
    ],
)
def test_dimensions_that_a_reshape_joins(before, after, found):
    net = Net()
    x = net.input(*before)
    assert dims_of(net.layer(g.ReshapeOp(x, after))) == found
    assert dims_of(x) == before[-1:]


SUMS = st.builds(
    ProductSums, groups=st.integers(1, 6), lines=st.integers(1, 200), channels=st.integers(1, 300),
    sums=st.lists(st.integers(1, 24), min_size=1, max_size=3).map(tuple),
    inside=st.sampled_from([1, 9]), element_bytes=st.sampled_from([2, 4]),
)  # fmt: skip


@settings(max_examples=25, derandomize=True, deadline=None)
@given(SUMS)
def test_parts_are_the_numbers_that_are_views(own):
    """A reshape to parts, and the positions of each, splits dimensions and joins none."""
    total = math.prod(own.sums)
    views = [
        parts for parts in range(1, total + 1) if total % parts == 0
        and regroup([Axis("k", extent) for extent in own.sums if extent > 1], (parts, total // parts)) is not None
    ]  # fmt: skip
    assert sorted(own.parts()) == views and len({*own.parts()}) == len(own.parts())


def cycles(own, parts, machine):
    """Of the unit with the most, where clusters have ranges of one axis and cores ranges of one: fill by fill."""
    unit, found = machine.core.matrix, []
    whole = [parts, own.groups, own.lines, own.channels]
    for a, b in product(range(4), repeat=2):
        most = 0
        for own_share in ranges(whole[a], machine.chip.clusters):
            share = [own_share if k == a else extent for k, extent in enumerate(whole)]
            for core_share in ranges(share[b], machine.cluster.cores):
                several, groups, *plane = [core_share if k == b else extent for k, extent in enumerate(share)]
                ways = (fills(*plane, unit), fills(*plane[::-1], unit))
                most = max(most, several * groups * min(ways))
        found.append(most)
    steps = math.prod(own.sums) // parts * own.inside
    return min(found) * steps * {2: unit.cycles_per_step.sixteen_bit, 4: unit.cycles_per_step.f32}[own.element_bytes]


def ranges(extent, count):
    """Lengths of the equal parts, of which the last may have less."""
    step = -(-extent // count)
    return [min(step, extent - first) for first in range(0, extent, step)]


def fills(lines, channels, unit):
    return len(range(0, lines, unit.lines)) * len(range(0, channels, unit.channels))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(SUMS, st.sampled_from(TARGETS))
def test_cycles_of_parts_are_those_of_the_unit_with_the_most(own, name):
    for parts in own.parts():
        assert in_parts(own, parts, target(name)) == cycles(own, parts, target(name))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(SUMS, st.sampled_from(TARGETS))
def test_no_other_number_of_parts_takes_less(own, name):
    machine = target(name)
    found = best_parts(own, machine)
    least = min(cycles(own, parts, machine) + adding(own, parts, machine) for parts in own.parts())
    assert cycles(own, found, machine) + adding(own, found, machine) == pytest.approx(least)
    assert best_parts(own, machine_of(1)) == 1


def test_adding_moves_and_adds_every_part():
    """By hand: 32 results in 16 parts of f32, one of each core; layers wait 4 times, and as units 4 times for DRAM."""
    machine = target("default")
    own = ProductSums(1, 1, 32, (4096,), 1, 4)
    size = 16 * 32 * 4
    waits = 4 * 2 * (20 + 4) + 4 * 200
    moved, sent, added = 2 * size / (16 * 64), size / 4 * 3 / 64, 1
    assert adding(own, 1, machine) == 0
    assert adding(own, 16, machine) == waits + moved + sent + added
    assert adding(own, 16, target("edge")) < waits + 2 * size / (4 * 16) + size, "clusters of one send nothing"
