"""Instructions on integers: what they must say, and that their text reads back."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa import AllocOp, BinaryOp, ConvOp, FIsa, PoolOp, ReduceOp, ResizeOp, UnaryOp
from frustum.dialects.isa.program import Act, Affine, Box, Scale, Span, View

ROW = Span(Affine(), 4, 4)
BOX = Box.of(ROW, ROW, ROW, ROW)
NRAM, WRAM = AllocOp("nram", 64), AllocOp("wram", 64)
HALF, QUARTER, PLAIN = Scale(0.5, -3), Scale(0.25, 7), Scale()


def view(element):
    return View(element, Affine(), (0, 0, 4, 1))


def conv(element="i8", *, operands=("multiplier",), out=None, **fields):
    """A convolution with these operands beside input, weights and output."""
    kinds = {
        "bias": "i32", "acc": "i32", "weight_zero": element, "multiplier": "f32", "residual": element,
        **fields.pop("kinds", {}),
    }  # fmt: skip
    places = {name: NRAM if name in ("acc", "residual") else WRAM for name in operands}
    views = {f"{name}_view": view(kinds[name]) for name in operands}
    more = {name: (1, 1) for name in ("kernel", "strides", "dilations")}
    extra = [places.get(name) for name in ("weight_zero", "multiplier", "residual")]
    return ConvOp(
        NRAM, WRAM, places.get("bias"), places.get("acc"), NRAM, *extra, **views, in_view=view(element),
        weight_view=view(kinds.get("weight", element)), out_view=view(out or element), box=BOX, channels=ROW,
        rows=ROW, cols=ROW, **more, **fields,
    )  # fmt: skip


def of_each(make, *elements, scales=(HALF, QUARTER), **fields):
    return make(
        NRAM, NRAM, in_view=view(elements[0]), out_view=view(elements[1]), box=BOX, scales=scales, **fields
    )


def quantize(scales=(PLAIN, QUARTER)):
    return of_each(UnaryOp, "f32", "i8", kind="identity", scales=scales)


def window(kind, **fields):
    more = {"rows": ROW, "cols": ROW, "kernel": (2, 2), "strides": (1, 1), "dilations": (1, 1)}
    return of_each(PoolOp, "i8", "i8", kind=kind, **more, **fields)


def resized(mode, **fields):
    more = {"rows": ROW, "cols": ROW, "scale": (1.0, 1.0), "offset": (0.0, 0.0)}
    return of_each(ResizeOp, "i8", "i8", mode=mode, rounding="floor", **more, **fields)


def sums(**fields):
    made = view("f32")
    return ReduceOp(
        NRAM, NRAM, kind="sum", in_view=view("i8"), out_view=View(made.element, made.offset, (0, 0, 0, 0)), box=BOX,
        axes=(2, 3), **fields,
    )  # fmt: skip


def pairs(*elements, scales=(HALF, QUARTER, HALF)):
    a, b, out = map(view, elements)
    return BinaryOp(NRAM, NRAM, NRAM, kind="add", a_view=a, b_view=b, out_view=out, box=BOX, scales=scales)


ALL = ("bias", "weight_zero", "multiplier", "residual")
GOOD = {
    "requantised": lambda: conv(in_zero=-128, out_zero=127),
    "accumulators": lambda: conv(operands=("bias",), out="i32", in_zero=4),
    "sums_as_floats": lambda: conv(operands=(), out="f16", in_zero=4, act=Act("affine", 0.5)),
    "in_parts": lambda: conv(operands=("acc", "multiplier"), accumulate=0),
    "residual": lambda: conv(operands=ALL, scales=(HALF, QUARTER, Scale()), act=Act("relu"), out_zero=-3),
    "residual_of_floats": lambda: conv("f16", operands=("residual",), act=Act("relu")),
    "16_bits": lambda: conv("i16", operands=("acc", "multiplier"), kinds={"acc": "i64"}, accumulate=1),
    "quantize": quantize,
    "largest": lambda: window("max", scales=None),
    "mean": lambda: window("avg"),
    "nearest": lambda: resized("nearest", scales=None),
    "sums": lambda: sums(scales=(HALF, Scale())),
    "pairs": lambda: pairs("i8", "f32", "i16", scales=(HALF, Scale(), QUARTER)),
}


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD)
def test_text_reads_back(make):
    op = make()
    op.verify()
    module = ModuleOp([NRAM.clone(), WRAM.clone(), op])
    places = dict(zip((NRAM.buffer, WRAM.buffer), (o.results[0] for o in list(module.ops)[:2]), strict=True))
    op.operands = [places[operand] for operand in op.operands]
    context = Context()
    for dialect in (Builtin, FIsa):
        context.load_dialect(dialect)
    again = Parser(context, str(module)).parse_module()
    assert str(again) == str(module)
    assert list(again.ops)[2].properties == op.properties


BAD = [
    (lambda: conv(kinds={"weight": "i16"}), "weight of a convolution of i8 has elements of i8, found i16"),
    (lambda: conv(operands=()), "out of a convolution of i8 has elements of i32, found i8"),
    (lambda: conv(out="i32"), "out of a convolution of i8 has elements of i8, found i32"),
    (
        lambda: conv(operands=("bias", "multiplier"), kinds={"bias": "f32"}),
        "bias .* elements of i32, found f32",
    ),
    (lambda: conv("i16", operands=("acc", "multiplier"), accumulate=0), "acc .* elements of i64, found i32"),
    (lambda: conv(in_zero=128), "128 is no zero point of i8"),
    (lambda: conv(out_zero=-129), "-129 is no zero point of i8"),
    (lambda: conv(operands=("residual",), out="i32"), "a residual is added to what a multiplier has made"),
    (lambda: conv(operands=("multiplier", "residual")), "operands of i8, i8, i8 need scales"),
    (lambda: conv("f32", operands=(), in_zero=1), "zero points, multiplier and scales belong to integers"),
    (lambda: conv("f32"), "zero points, multiplier and scales belong to integers"),
    (lambda: quantize(scales=None), "operands of f32, i8 need scales"),
    (lambda: quantize(scales=(HALF,)), "2 scales are needed, found 1"),
    (lambda: quantize(scales=(Scale(), Scale(0.5, 200))), "200 is no zero point of i8"),
    (lambda: quantize(scales=(Scale(), Scale(0.0, 0))), "a scale is a positive finite number, found 0.0"),
    (
        lambda: quantize(scales=(Scale(), Scale(float("nan"), 0))),
        "a scale is a positive finite number, found nan",
    ),
    (lambda: quantize(scales=(HALF, HALF)), "-3 is no zero point of f32"),
    (lambda: window("avg", scales=None), "operands of i8, i8 need scales"),
    (lambda: resized("linear", scales=None), "operands of i8, i8 need scales"),
    (lambda: pairs("f32", "f32", "f32"), "scales belong to integers, found f32, f32, f32"),
    (lambda: pairs("i8", "i8", "i8", scales=None), "operands of i8, i8, i8 need scales"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_refused(make, message):
    with pytest.raises(VerifyException, match=message):
        make().verify()
