"""Cycles, bytes and energy of instructions on integers."""

from __future__ import annotations

import pytest
from stops import free_addresses

from frustum.backend import targets
from frustum.dialects.isa import program as p
from frustum.dialects.isa.program import Affine, Box, Scale, Span, View
from frustum.runtime.device.expand import expand
from frustum.runtime.report.counters import count
from frustum.runtime.time.work import work

DEFAULT = free_addresses(targets.load("default"))
OUTPUTS, POSITIONS, CHANNELS = 64, 48, 24
"""Of a product: all different, so that none can stand for another."""
ONE = Span(Affine(), 1, 1)
BOX = Box.of(ONE, Span(Affine(), OUTPUTS, OUTPUTS), ONE, Span(Affine(), POSITIONS, POSITIONS))
HALF = Scale(0.5, 1)


def view(element, memory="nram"):
    size = p.ELEMENT_BYTES[element]
    return View(element, Affine(), (0, POSITIONS * size, 0, size), memory)


def done(instruction):
    expanded = expand(p.Program((instruction,), layers=("layer",)), 1, 1)
    return expanded, work(expanded, expanded.core, DEFAULT)


def product(element, out=None, **views):
    given = {f"{name}_view": view(kind, "nram" if name == "residual" else "wram") for name, kind in views.items()}
    return p.Conv(
        in_view=view(element), weight_view=view(element, "wram"), out_view=view(out or element), box=BOX,
        channels=Span(Affine(), CHANNELS, CHANNELS), rows=ONE, cols=BOX.spans[3],
        kernel=(1, 1), strides=(1, 1), dilations=(1, 1), **given,
    )  # fmt: skip


@pytest.mark.parametrize(("element", "cycles"), [("i8", 1), ("i16", 2), ("f16", 2), ("f32", 8)])
def test_a_step_lasts_as_long_as_its_type_says(element, cycles):
    _, found = done(product(element))
    assert found.cycles[0, 0] == cycles * CHANNELS


def test_what_goes_out_with_a_product_takes_no_cycles_and_counts_its_bytes():
    extras = {"bias": "i32", "weight_zero": "i8", "multiplier": "f32", "residual": "i8"}
    _, plain = done(product("i8", "i32"))
    _, full = done(product("i8", **extras))
    assert full.cycles[0, 0] == plain.cycles[0, 0]
    inputs, weights, results = CHANNELS * POSITIONS, OUTPUTS * CHANNELS, OUTPUTS * POSITIONS
    assert full.read_bytes[:, 0].tolist() == [inputs, weights, 4 * OUTPUTS, 0, 0, OUTPUTS, 4 * OUTPUTS, results]
    assert full.written_bytes[4, 0] == results and plain.written_bytes[4, 0] == 4 * results


@pytest.mark.parametrize("accumulate", [None, 0])
def test_a_residual_lies_like_the_output_not_like_the_input(accumulate):
    """Extents all differ: 3 channels of 2 x 5 x 7 positions become 11 channels of 2 x 4 x 3; the residual is one
    row of them, which is broadcast along the images."""
    box = Box.of(*(Span(Affine(), n, n) for n in (2, 11, 4, 3)))
    conv = p.Conv(
        in_view=View("f16", Affine(), (1000, 300, 14, 2), "nram"),
        weight_view=View("f16", Affine(), (18, 6, 6, 2), "wram"),
        out_view=View("f16", Affine(), (264, 24, 6, 2), "nram"), bias_view=View("f32", Affine(), (0, 4, 0, 0), "wram"),
        acc_view=View("f32", Affine(), (528, 48, 12, 4), "nram"),
        residual_view=View("f16", Affine(), (0, 24, 6, 2), "nram"), box=box, channels=Span(Affine(), 3, 3),
        rows=Span(Affine(), 5, 5), cols=Span(Affine(), 7, 7), kernel=(2, 3), strides=(1, 2), dilations=(1, 1),
        accumulate=accumulate,
    )  # fmt: skip
    expanded = expand(p.Program((p.Repeat(2, (conv,)),), layers=("layer",)), 1, 1)
    found = work(expanded, expanded.core, DEFAULT)
    box_elements, last = 2 * 11 * 4 * 3, 1
    assert found.read_bytes[7, last] == 2 * 11 * 4 * 3
    assert found.read_bytes[2, last] == 4 * 11
    assert found.read_bytes[0, last] == 2 * (2 * 3 * 5 * 7)
    assert found.read_bytes[1, last] == 2 * (11 * 3 * 2 * 3)
    assert found.read_bytes[3].tolist() == ([0, 0] if accumulate is None else [0, 4 * box_elements])
    assert found.written_bytes[3].tolist() == ([0, 0] if accumulate is None else [4 * box_elements, 0])
    assert found.read_bytes[7, 0] == (2 * 11 * 4 * 3 if accumulate is None else 0)


@pytest.mark.parametrize(("element", "each_pj"), [("i8", 0.2), ("i16", 0.8), ("f32", 3.0)])
def test_energy_of_products_by_type(element, each_pj):
    expanded, _ = done(product(element))
    energy = count(expanded, DEFAULT).energy_pj
    assert energy[f"mac_{element}"] == pytest.approx(each_pj * OUTPUTS * POSITIONS * CHANNELS)


def of_each(kind, source, target, **rest):
    return p.Unary(kind=kind, in_view=view(source), out_view=view(target), box=BOX, **rest)


def pairs(element, **rest):
    a = view(element)
    return p.Binary(kind="add", a_view=a, b_view=a, out_view=a, box=BOX, **rest)


ELEMENTS = OUTPUTS * POSITIONS // 64  # cycles of one pass over the box at 64 lanes
CASES = {
    "quantize": (of_each("identity", "f32", "i8", scales=(HALF, HALF)), 1 * 2 * ELEMENTS),
    "dequantize": (of_each("identity", "i8", "f32", scales=(HALF, HALF)), 1 * 2 * ELEMENTS),
    "requantise": (of_each("identity", "i8", "i8", scales=(HALF, HALF)), 2 * ELEMENTS),
    "sigmoid": (of_each("sigmoid", "i8", "i8", scales=(HALF, HALF)), (1 + 4 + 1) * ELEMENTS),
    "add": (pairs("i8", scales=(HALF, HALF, HALF)), (2 + 1 + 1) * ELEMENTS),
    "add_of_floats": (pairs("f16"), ELEMENTS),
}


@pytest.mark.parametrize(("instruction", "cycles"), CASES.values(), ids=CASES)
def test_each_conversion_is_a_pass(instruction, cycles):
    """Dequantise each operand, compute, quantise; f32 goes at half the rate."""
    _, found = done(instruction)
    assert found.cycles[0, 0] == cycles
