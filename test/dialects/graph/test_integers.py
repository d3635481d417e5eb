"""Each verifier refuses integers that stand for nothing."""

import math

import pytest
from xdsl.dialects.builtin import TensorType, f16, f32, i8, i16, i32, i64
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from frustum.dialects.graph import (
    ActAttr,
    BinaryOp,
    ConvOp,
    DequantizeOp,
    MatmulOp,
    PadOp,
    PoolOp,
    QuantizeOp,
    ResizeOp,
    ScaleAttr,
    SoftmaxOp,
    UnaryOp,
    tensor_of,
)

ONE = ScaleAttr.of(1.0)
X, W = (1, 4, 8, 8), (8, 4, 1, 1)


def value(*shape, element=i8):
    return create_ssa_value(TensorType(element, shape))


def conv(element=i8, bias=None, multiplier=True, zeros=(0, 0), **settings):
    scaled = value(8, element=f32) if multiplier is True else multiplier
    x, w = value(*X, element=element), value(*W, element=element)
    return ConvOp(x, w, bias, multiplier=scaled or None, zeros=zeros, **settings)


REFUSED = [
    (lambda: ScaleAttr.of(0.0), "a scale is a positive finite number, found 0.0"),
    (lambda: ScaleAttr.of(-1.0), "positive finite number"),
    (lambda: ScaleAttr.of(math.nan), "positive finite number, found nan"),
    (lambda: ScaleAttr.of(math.inf), "positive finite number"),
    (lambda: QuantizeOp(value(3, element=f32), ScaleAttr.of(1, 128)), r"zero point 128 is not inside \[-128, 127\]"),
    (lambda: QuantizeOp(value(3, element=f16), ONE), "from f32 to i8 or i16, found f16 to i8"),
    (lambda: QuantizeOp(value(3, element=f32), ONE, i32), "found f32 to i32"),
    (lambda: DequantizeOp(value(3, element=f32), ONE), "integers are i8, i16 or i32, found f32"),
    (lambda: DequantizeOp(value(3, element=i16), ScaleAttr.of(1, 40000)), "the zero point 40000"),
    (lambda: conv(zeros=None), r"needs zeros = \[of x, of the result\]"),
    (lambda: conv(zeros=(200, 0)), "the zero point 200"),
    (lambda: conv(element=i64), "products are of i8, i16 and floating-point numbers, found i64"),
    (lambda: conv(element=i16, multiplier=False), "a multiplier is required"),
    (lambda: conv(bias=value(8)), "the bias has elements of i8, expected i32"),
    (lambda: conv(bias=value(4, element=i32)), r"the bias has shape \(4,\), expected \(8,\)"),
    (lambda: conv(w_zero=value(1)), r"the w_zero has shape \(1,\)"),
    (lambda: conv(multiplier=value(8)), "the multiplier has elements of i8, expected f32"),
    (lambda: conv(multiplier=False, zeros=(0, 1)), "an accumulator has neither"),
    (lambda: conv(act=ActAttr.of("relu")), "is clip, found relu"),
    (lambda: conv(act=ActAttr.of("clip", 0, 6.5)), "ordered integers"),
    (lambda: conv(act=ActAttr.of("clip", 0, 200)), r"inside \[-128, 127\]"),
    (lambda: MatmulOp(value(2, 3), value(3, 4, element=i16), zeros=(0, 0)), "element types i8 and i16 differ"),
    (lambda: MatmulOp(value(2, 3, element=f32), value(3, 4, element=f32), zeros=(0, 0)), "belong to products of"),
    (lambda: BinaryOp("add", value(3), value(3)), "need a scale of each operand and of the result: 3, found 0"),
    (lambda: BinaryOp("add", value(3), value(3), scales=[ONE] * 2), ": 3, found 2"),
    (lambda: BinaryOp("add", value(3), value(3), scales=[ONE, ONE, ScaleAttr.of(1, 300)]), "the zero point 300"),
    (lambda: UnaryOp("relu", value(3, element=f32), [ONE, ONE]), "scales belong to integers"),
    (lambda: UnaryOp("relu", value(3, element=i32), [ONE, ONE]), "computing is with i8, i16"),
    (lambda: SoftmaxOp(value(3), 0), "need a scale"),
    (lambda: PoolOp("avg", value(*X), kernel=(2, 2)), "need a scale"),
    (lambda: PoolOp("max", value(*X), kernel=(2, 2), scales=[ONE, ONE]), "needs no scales"),
    (lambda: PoolOp("max", value(*X), kernel=(2, 2), act=ActAttr.of("relu")), "it takes no activation"),
    (lambda: ResizeOp("linear", value(*X), (4, 4), scale=(2, 2), offset=(0, 0)), "need a scale"),
    (lambda: PadOp(value(3), (1,), (0,), 0.5), "the value 0.5 is no integer"),
    (lambda: PadOp(value(3), (1,), (0,), -math.inf), "is no integer inside"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(build, message):
    with pytest.raises(VerifyException, match=message):
        build().verify_()


def test_results_have_the_type_they_should():
    assert tensor_of(conv().result).element_type == i8
    assert tensor_of(conv(multiplier=False).result).element_type == i32
    assert tensor_of(conv(element=i16).result).element_type == i16
    assert tensor_of(QuantizeOp(value(3, element=f32), ONE, i16).result).element_type == i16
