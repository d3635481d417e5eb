"""Cycles, bytes and energy of instructions on integers."""

from __future__ import annotations

import pytest
from stops import free_addresses

from frustum.backend import targets
from frustum.dialects.isa import program as p
from frustum.dialects.isa.program import Affine, Box, Scale, Span, View
from frustum.runtime.counters import count
from frustum.runtime.expand import expand
from frustum.runtime.work import work

DEFAULT = free_addresses(targets.load("default"))
SIZE = 64
ROW = Span(Affine(), SIZE, SIZE)
ONE = Span(Affine(), 1, 1)
BOX = Box.of(ONE, ROW, ONE, ROW)
HALF = Scale(0.5, 1)


def view(element, memory="nram"):
    size = p.ELEMENT_BYTES[element]
    return View(element, Affine(), (0, SIZE * size, 0, size), memory)


def done(instruction):
    expanded = expand(p.Program((instruction,), layers=("layer",)), 1, 1)
    return expanded, work(expanded, expanded.core, DEFAULT)


def product(element, out=None, **views):
    given = {f"{name}_view": view(kind, "nram" if name == "residual" else "wram") for name, kind in views.items()}
    return p.Conv(
        in_view=view(element), weight_view=view(element, "wram"), out_view=view(out or element), box=BOX,
        channels=ROW, rows=ONE, cols=ROW, kernel=(1, 1), strides=(1, 1), dilations=(1, 1), **given,
    )  # fmt: skip


@pytest.mark.parametrize(("element", "cycles"), [("i8", SIZE), ("i16", 2 * SIZE), ("f16", 2 * SIZE), ("f32", 8 * SIZE)])
def test_a_step_lasts_as_long_as_its_type_says(element, cycles):
    _, found = done(product(element))
    assert found.cycles[0, 0] == cycles


def test_what_goes_out_with_a_product_takes_no_cycles_and_counts_its_bytes():
    extras = {"bias": "i32", "weight_zero": "i8", "multiplier": "f32", "residual": "i8"}
    _, plain = done(product("i8", "i32"))
    _, full = done(product("i8", **extras))
    assert full.cycles[0, 0] == plain.cycles[0, 0]
    assert full.read_bytes[:, 0].tolist() == [SIZE**2, SIZE**2, 4 * SIZE, 0, 0, SIZE, 4 * SIZE, SIZE**2]
    assert full.written_bytes[4, 0] == SIZE**2 and plain.written_bytes[4, 0] == 4 * SIZE**2


@pytest.mark.parametrize(("element", "each_pj"), [("i8", 0.2), ("i16", 0.8), ("f32", 3.0)])
def test_energy_of_products_by_type(element, each_pj):
    expanded, _ = done(product(element))
    energy = count(expanded, DEFAULT).energy_pj
    assert energy[f"mac_{element}"] == pytest.approx(each_pj * SIZE**3)


def of_each(kind, source, target, **rest):
    return p.Unary(kind=kind, in_view=view(source), out_view=view(target), box=BOX, **rest)


def pairs(element, **rest):
    a = view(element)
    return p.Binary(kind="add", a_view=a, b_view=a, out_view=a, box=BOX, **rest)


ELEMENTS = SIZE**2 // 64  # cycles of one pass over the box at 64 lanes
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
