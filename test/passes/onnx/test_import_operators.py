"""Every operator that is imported computes what onnxruntime computes, before and after simplification."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xdsl.context import Context

from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor

OPSET = 21
TOLERANCE = 2e-5


class Case:
    """One node: arrays that are inputs of the network (x), constants (c), attributes."""

    def __init__(self, op, x, c=(), opset=OPSET, outputs=1, order=None, **attributes):
        self.op, self.x, self.c, self.opset = op, list(x), list(c), opset
        self.outputs, self.order, self.attributes = outputs, order, attributes

    def __repr__(self):
        shapes = ",".join("x".join(map(str, array.shape)) or "scalar" for array in self.x)
        extras = " ".join(f"{key}={value}" for key, value in self.attributes.items())
        constants = [None if c is None else list(c.shape) if c.size > 8 else c.tolist() for c in self.c]
        return f"{self.op}-{self.opset} {shapes} {extras} {constants or ''}".replace("[", "(").replace(
            "]", ")"
        )

    def model(self):
        inputs = [f"x{index}" for index in range(len(self.x))]
        constants = ["" if c is None else f"c{index}" for index, c in enumerate(self.c)]
        names = [*inputs, *constants]
        names = [names[index] for index in self.order] if self.order else names
        outputs = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, name="node", **self.attributes)
        graph = helper.make_graph(
            [node],
            "case",
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape)
                for n, a in zip(inputs, self.x, strict=True)
            ],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
            [numpy_helper.from_array(c, f"c{index}") for index, c in enumerate(self.c) if c is not None],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def r(*shape, seed=0, low=None):
    rng = np.random.default_rng((seed, *shape))
    values = rng.standard_normal(shape, np.float32) * 2
    return values if low is None else np.abs(values) + np.float32(low)


def i64(*values):
    return np.asarray(values, np.int64)


def f32(*values):
    return np.asarray(values, np.float32)


X = r(2, 4, 9, 7)
W = r(6, 4, 3, 3)
CONVS = [
    Case("Conv", [X], [W]),
    Case("Conv", [X], [W, r(6)], pads=[1, 2, 0, 1], strides=[2, 3]),
    Case("Conv", [X], [W, r(6)], dilations=[2, 3], pads=[2, 2, 2, 2]),
    Case("Conv", [X], [r(8, 2, 3, 2)], group=2, pads=[1, 0, 1, 0]),
    Case("Conv", [X], [r(8, 1, 3, 3), r(8)], group=4, strides=[2, 2]),
    *(
        Case("Conv", [X], [r(6, 4, 4, 3)], auto_pad=mode, strides=strides)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for strides in ([1, 1], [2, 3])
    ),
    Case("Conv", [r(2, 4, 11)], [r(6, 4, 3), r(6)], strides=[2], pads=[2, 1], dilations=[2]),
    Case("Conv", [r(2, 4, 11)], [r(6, 4, 4)], auto_pad="SAME_UPPER", strides=[3]),
    Case("Conv", [X, W]),
    Case("Conv", [X, W, r(6)]),
    Case("Conv", [r(1, 4, 11), r(6, 4, 3)]),
]
TRANSPOSED = [
    Case("ConvTranspose", [X], [r(4, 3, 3, 3)]),
    Case("ConvTranspose", [X], [r(4, 3, 3, 3), r(3)], strides=[2, 3]),
    Case("ConvTranspose", [X], [r(4, 3, 2, 2)], strides=[2, 2]),
    Case("ConvTranspose", [X], [r(4, 3, 3, 4)], strides=[2, 2], pads=[1, 0, 1, 2], output_padding=[1, 1]),
    Case("ConvTranspose", [X], [r(4, 3, 3, 3)], strides=[2, 3], dilations=[2, 2]),
    Case("ConvTranspose", [X], [r(4, 3, 3, 3)], strides=[4, 6], dilations=[2, 4], pads=[1, 1, 2, 2]),
    Case("ConvTranspose", [X], [r(4, 3, 1, 2), r(3)], strides=[3, 3]),
    Case("ConvTranspose", [X], [r(4, 3, 3, 2), r(6)], strides=[2, 2], group=2),
    Case("ConvTranspose", [X], [r(4, 1, 3, 3)], group=4, strides=[2, 1], pads=[1, 1, 1, 1]),
    Case("ConvTranspose", [X], [r(4, 3, 3, 3)], strides=[2, 2], output_shape=[18, 14]),
    Case("ConvTranspose", [X], [r(4, 3, 4, 4)], strides=[2, 2], output_shape=[17, 15]),
    Case("ConvTranspose", [X], [r(4, 3, 3, 3)], strides=[2, 2], auto_pad="SAME_UPPER"),
    Case("ConvTranspose", [X], [r(4, 3, 3, 3)], strides=[2, 2], auto_pad="SAME_LOWER"),
    Case("ConvTranspose", [X], [r(4, 3, 3, 3)], strides=[2, 3], auto_pad="VALID"),
    Case("ConvTranspose", [r(2, 4, 7)], [r(4, 3, 3), r(3)], strides=[2], pads=[1, 0]),
    Case("ConvTranspose", [r(1, 4, 1, 1)], [r(4, 3, 5, 5)], strides=[4, 4], pads=[2, 2, 2, 2]),
]
PRODUCTS = [
    Case("Gemm", [r(3, 5)], [r(5, 4)]),
    Case("Gemm", [r(3, 5)], [r(4, 5), r(4)], transB=1),
    Case("Gemm", [r(5, 3)], [r(5, 4), r(1, 4)], transA=1, alpha=0.5, beta=2.0),
    Case("Gemm", [r(3, 5)], [r(5, 4), f32(1.5)], beta=0.5),
    Case("Gemm", [r(3, 5)], [r(5, 4), np.float32(1.5).reshape(())]),
    Case("Gemm", [r(3, 5)], [r(5, 4), r(3, 1)], beta=0.5),
    Case("Gemm", [r(3, 5)], [r(5, 4), r(3, 4)], alpha=0.25),
    Case("Gemm", [r(3, 5), r(5, 4), r(4)], alpha=0.5, beta=2.0),
    Case("Gemm", [r(3, 5), r(3, 4)], [r(5, 4)], order=[0, 2, 1], beta=0.5),
    Case("Gemm", [r(4, 5)], [r(3, 4)], order=[1, 0], alpha=2.0),
    Case("MatMul", [r(3, 5)], [r(5, 4)]),
    Case("MatMul", [r(2, 3, 5)], [r(5, 4)]),
    Case("MatMul", [r(2, 3, 5), r(2, 5, 4)]),
    Case("MatMul", [r(2, 1, 3, 5), r(6, 5, 4)]),
    Case("MatMul", [r(5)], [r(5, 4)]),
    Case("MatMul", [r(3, 5)], [r(5)]),
    Case("MatMul", [r(5), r(5)]),
    Case("MatMul", [r(5), r(2, 5, 3)]),
    Case("MatMul", [r(2, 3, 5), r(5)]),
]
POOLS = [
    *(
        case
        for op in ("MaxPool", "AveragePool")
        for case in (
            Case(op, [X], kernel_shape=[3, 2]),
            Case(op, [X], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1]),
            Case(op, [X], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
            Case(op, [X], kernel_shape=[2, 3], strides=[3, 2], ceil_mode=1, pads=[0, 1, 1, 0]),
            Case(op, [X], kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]),
            Case(op, [X], kernel_shape=[1, 1], strides=[2, 4], ceil_mode=1),
            Case(op, [X], kernel_shape=[3, 2], dilations=[2, 3]),
            Case(op, [X], kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
            Case(op, [X], kernel_shape=[2, 2], strides=[2, 3], auto_pad="SAME_LOWER"),
            Case(op, [X], kernel_shape=[3, 3], auto_pad="VALID"),
            Case(op, [r(2, 3, 11)], kernel_shape=[3], strides=[2], pads=[1, 0]),
            Case(op, [r(2, 3, 11)], kernel_shape=[4], strides=[3], ceil_mode=1),
            Case(op, [X], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opset=11),
        )
        if not (op == "AveragePool" and case.opset < 19 and case.attributes.get("dilations"))
    ),
    Case("AveragePool", [X], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    Case(
        "AveragePool",
        [X],
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 0, 0, 1],
        count_include_pad=1,
        ceil_mode=1,
    ),
    Case(
        "AveragePool",
        [X],
        kernel_shape=[2, 4],
        strides=[3, 3],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
        ceil_mode=1,
    ),
    Case("GlobalAveragePool", [X]),
    Case("GlobalMaxPool", [X]),
    Case("GlobalAveragePool", [r(2, 3, 5)]),
]
UNARIES = [
    *(Case(op, [X]) for op in (
        "Relu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "LeakyRelu", "Exp", "Neg", "Abs", "Floor", "Ceil",
        "Round", "Erf", "Softplus", "Softsign", "Selu", "Celu", "Mish", "Identity", "Gelu",
    )),
    *(Case(op, [r(2, 3, 4, low=0.1)]) for op in ("Sqrt", "Log", "Reciprocal")),
    Case("LeakyRelu", [X], alpha=0.3),
    Case("Elu", [X], alpha=1.5),
    Case("Celu", [X], alpha=0.5),
    Case("Selu", [X], alpha=1.2, gamma=0.7),
    Case("HardSigmoid", [X], alpha=0.3, beta=0.4),
    Case("Gelu", [X], approximate="tanh"),
    Case("Clip", [X], [f32(0).reshape(()), f32(6).reshape(())]),
    Case("Clip", [X], [f32(-1).reshape(())]),
    Case("Clip", [X], [f32(0).reshape(())]),
    Case("Clip", [X], [None, f32(0.5).reshape(())]),
    Case("Clip", [X]),
    Case("Clip", [X, f32(-0.5).reshape(())]),
    Case("Clip", [X], min=-0.25, max=1.5, opset=6 + 1),
    Case("Dropout", [X], opset=13),
    Case("Dropout", [X], opset=7),
    Case("Dropout", [X], [f32(0).reshape(()), np.array(True)], opset=13),  # training, but nothing is dropped
    Case("Cast", [X], to=TensorProto.FLOAT),
]  # fmt: skip
BINARIES = [
    *(
        Case(op, [r(2, 3, 4), r(2, 3, 4, seed=1, low=0.1)])
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")
    ),
    *(Case(op, [r(2, 3, 4), r(3, 1, seed=1, low=0.1)]) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *(Case(op, [r(3, 1)], [r(2, 3, 4, low=0.2)]) for op in ("Add", "Sub", "Mul", "Div")),
    *(Case(op, [r(2, 3, 4, low=0.3)], [r(1, 4)], order=[1, 0]) for op in ("Add", "Sub", "Mul", "Div")),
    Case("Add", [r(2, 3, 4)], [np.float32(2).reshape(())]),
    Case("Pow", [r(2, 3, low=0.1)], [np.float32(1.5).reshape(())]),
    Case("Pow", [r(2, 3)], [np.float32(2).reshape(())]),
    Case("Pow", [r(2, 3)], [np.asarray(3, np.int64)]),
    Case("PRelu", [X], [r(4, 1, 1)]),
    Case("PRelu", [X], [r(1)]),
    Case("Sum", [r(2, 3), r(2, 3, seed=1), r(3)]),
    Case("Sum", [r(2, 3)]),
    Case("Mean", [r(2, 3), r(2, 3, seed=1), r(3)]),
    Case("Max", [r(2, 3), r(2, 3, seed=1), r(3)]),
]
NORMALIZATIONS = [
    Case("BatchNormalization", [X], [r(4), r(4), r(4), r(4, low=0.1)]),
    Case("BatchNormalization", [r(3, 4)], [r(4), r(4), r(4), r(4, low=0.1)], epsilon=1e-2),
    Case("BatchNormalization", [X], [r(4), r(4), r(4), r(4, low=0.1)], opset=9),
    Case("BatchNormalization", [X], [r(4), r(4), r(4), r(4, low=0.1)], opset=7),
    Case("InstanceNormalization", [X], [r(4), r(4)]),
    Case("InstanceNormalization", [r(2, 4, 9), r(4), r(4)], epsilon=1e-2),
    Case("LayerNormalization", [X], [r(7), r(7)]),
    Case("LayerNormalization", [X], [r(4, 9, 7)], axis=1, outputs=3),
    Case("GroupNormalization", [X], [r(4), r(4)], num_groups=2),
    Case("RMSNormalization", [X], [r(7)], opset=23),
    Case("LRN", [r(2, 9, 3, 4)], size=5, alpha=0.1, beta=0.6, bias=1.5),
    Case("LRN", [X], size=3),
    Case("Softmax", [X]),
    Case("Softmax", [X], axis=1),
    Case("Softmax", [X], opset=11),
    Case("Softmax", [X], axis=2, opset=9),
    Case("LogSoftmax", [X], axis=1),
]
REDUCTIONS = [
    *(
        Case(op, [x], [i64(*axes)] if axes else [], keepdims=keep, opset=18)
        for op in (
            "ReduceMean",
            "ReduceSum",
            "ReduceMax",
            "ReduceMin",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
        )
        for x, axes, keep in ((X, (2, 3), 1), (X, (-1, 1), 0), (r(2, 3), (), 1))
    ),
    Case("ReduceMean", [X], axes=[2, 3], opset=13),
    Case("ReduceMean", [X], axes=[-2], keepdims=0, opset=7),
    Case("ReduceSum", [X], axes=[1, 3], opset=11),
    Case("ReduceSum", [X], [i64(1, 3)], opset=13),
    Case("ReduceLogSum", [r(2, 3, low=0.1)], [i64(1)], opset=18),
]
SHAPES = [
    Case("Reshape", [X], [i64(0, -1, 7)]),
    Case("Reshape", [X], [i64(2, 4, 63)], allowzero=1),
    Case("Flatten", [X]),
    Case("Flatten", [X], axis=0),
    Case("Flatten", [X], axis=-1),
    Case("Flatten", [X], axis=4),
    Case("Squeeze", [r(1, 3, 1, 2)]),
    Case("Squeeze", [r(1, 3, 1, 2)], [i64(-2)]),
    Case("Squeeze", [r(1, 3, 1, 2)], axes=[0, 2], opset=11),
    Case("Unsqueeze", [r(3, 2)], [i64(0, -1)]),
    Case("Unsqueeze", [r(3, 2)], axes=[1, 3], opset=11),
    Case("Transpose", [X]),
    Case("Transpose", [X], perm=[0, 2, 3, 1]),
    Case("DepthToSpace", [r(2, 12, 3, 2)], blocksize=2),
    Case("DepthToSpace", [r(2, 12, 3, 2)], blocksize=2, mode="CRD"),
    Case("SpaceToDepth", [r(2, 3, 4, 6)], blocksize=2),
]
MOVES = [
    Case("Concat", [r(2, 3), r(2, 4)], axis=1),
    Case("Concat", [r(2, 3)], [r(1, 3)], axis=-2),
    Case("Split", [r(2, 7)], [i64(3, 4)], outputs=2, axis=1),
    Case("Split", [r(2, 7)], outputs=3, axis=1, num_outputs=3),
    Case("Split", [r(2, 6)], outputs=3, axis=-1, opset=11),
    Case("Split", [r(2, 6)], outputs=2, axis=1, split=[4, 2], opset=11),
    Case("Slice", [X], [i64(1, 2), i64(3, -1), i64(1, 2)]),
    Case("Slice", [X], [i64(0, 8), i64(9, -100), i64(-1, 2), i64(2, -3)]),
    Case("Slice", [X], [i64(-3), i64(2**31 - 1), i64(3)]),
    Case("Slice", [X], [i64(0, 1), i64(2, 4)]),
    Case("Slice", [X], starts=[1], ends=[3], axes=[2], opset=9),
    Case("Gather", [X], [np.asarray(2, np.int64)], axis=1),
    Case("Gather", [X], [i64(1, 2, 3)], axis=2),
    Case("Gather", [X], [i64(4, 1, -1, 3, 5, 7)], axis=2),
    Case("Gather", [X], [np.asarray([[0, 2], [3, 3]])], axis=1),
    Case("Expand", [r(3, 1)], [i64(2, 1, 4)]),
    Case("Expand", [r(3, 4)], [i64(1)]),
    Case("Tile", [r(2, 3)], [i64(2, 3)]),
    Case("Pad", [X], [i64(0, 0, 1, 2, 0, 0, 3, 0)]),
    Case("Pad", [X], [i64(0, 1, 1, -2, 0, 0, -1, 0), np.float32(1.5).reshape(())]),
    Case("Pad", [X], [i64(1, 2, 2, 1), None, i64(3, -2)]),
    Case("Pad", [X], [i64(0, 0, 2, 3, 0, 0, 1, 4)], mode="reflect"),
    Case("Pad", [X], [i64(0, 0, 2, 3, 0, 0, 1, 4)], mode="edge"),
    Case("Pad", [X], [i64(0, 0, 2, 3, 0, 0, 1, 4)], mode="wrap"),
    Case("Pad", [X], pads=[0, 0, 1, 2, 0, 0, 3, 0], value=0.5, opset=10),
]
RESIZES = [
    *(
        Case(
            "Resize",
            [r(1, 2, 5, 6)],
            [None, scales],
            mode=mode,
            coordinate_transformation_mode=place,
            **extra,
        )
        for scales in (f32(1, 1, 2, 3), f32(1, 1, 0.7, 1.5), f32(1, 1, 1.7, 0.5))
        for place in (
            "half_pixel",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
            "half_pixel_symmetric",
        )
        for mode, extra in (
            ("linear", {}),
            ("nearest", {"nearest_mode": "floor"}),
            ("nearest", {"nearest_mode": "ceil"}),
            ("nearest", {"nearest_mode": "round_prefer_floor"}),
            ("nearest", {"nearest_mode": "round_prefer_ceil"}),
        )
    ),
    Case("Resize", [r(1, 2, 5, 6)], [None, f32(1, 1, 0.6, 1.5)], mode="nearest", nearest_mode="floor"),
    Case("Resize", [r(1, 2, 5, 6)], [None, None, i64(1, 2, 7, 13)], mode="nearest"),
    Case("Resize", [r(1, 2, 5, 6)], [None, None, i64(1, 2, 7, 13)], mode="linear"),
    Case(
        "Resize",
        [r(1, 2, 5, 6)],
        [None, None, i64(1, 2, 1, 1)],
        mode="linear",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    Case("Resize", [r(1, 2, 5, 6)], [None, None, i64(7, 8)], mode="linear", axes=[2, 3]),
    Case(
        "Resize",
        [r(1, 2, 5, 6)],
        [None, None, i64(10, 8)],
        mode="nearest",
        axes=[2, 3],
        keep_aspect_ratio_policy="not_larger",
    ),
    Case(
        "Resize",
        [r(1, 2, 5, 6)],
        [None, None, i64(10, 8)],
        mode="linear",
        axes=[3, 2],
        keep_aspect_ratio_policy="not_smaller",
    ),
    Case("Resize", [r(1, 5, 6, 2)], [None, f32(1, 2, 2, 1)], mode="nearest"),
    Case("Resize", [r(2, 3, 5)], [None, f32(1, 1, 2.5)], mode="linear"),
    Case(
        "Resize",
        [r(1, 1, 49, 3)],
        [None, f32(1, 1, 7, 1)],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    Case("Upsample", [r(1, 2, 3, 4)], [f32(1, 1, 2, 3)], mode="nearest", opset=9),
    Case("Upsample", [r(1, 2, 3, 4)], [f32(1, 1, 2, 2)], mode="linear", opset=9),
    Case("Upsample", [r(1, 2, 3, 4)], scales=[1.0, 1.0, 2.0, 2.0], mode="nearest", opset=7),
    Case("Resize", [r(1, 2, 3, 4)], [f32(1, 1, 2, 3)], mode="nearest", opset=10),
    Case("Resize", [r(1, 2, 3, 4)], [f32(1, 1, 2, 3)], mode="linear", opset=10),
]
CROPPED = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
PRODUCTS_OF_RESIZES = [
    *(
        Case("Resize", [r(1, 2, 5, 6)], [None, scales], mode="cubic", coordinate_transformation_mode=place, **extra)
        for scales in (f32(1, 1, 2, 3), f32(1, 1, 0.6, 1.5), f32(1, 1, 1.7, 0.5))
        for place in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        for extra in ({}, {"cubic_coeff_a": -0.5}, {"exclude_outside": 1})
    ),
    *(
        Case("Resize", [r(1, 2, 15, 16)], [None, scales], mode=mode, antialias=1, opset=18)
        for scales in (f32(1, 1, 0.3, 0.6), f32(1, 1, 0.5, 2), f32(1, 1, 2, 2))
        for mode in ("linear", "cubic")
    ),
    Case("Resize", [r(1, 2, 5, 6)], [None, None, i64(1, 2, 9, 4)], mode="cubic"),
    Case("Resize", [r(1, 2, 5, 6)], [None, None, i64(9, 4)], mode="cubic", axes=[3, 2], opset=18),
    Case("Resize", [r(1, 2, 5, 6)], [f32(0, 0, 0.2, 0.1, 1, 1, 0.8, 0.6), None, i64(1, 2, 4, 7)], **CROPPED),
    Case(
        "Resize", [r(1, 2, 5, 6)], [f32(0, 0, -0.4, 0.6, 1, 1, 1.2, 1.7), None, i64(1, 2, 4, 7)],
        extrapolation_value=10.0, **CROPPED,
    ),
]  # fmt: skip
NOT_IN_ONNXRUNTIME = [
    Case("Resize", [r(2, 3, 5)], [None, f32(1, 1, 2.5)], mode="cubic"),
    Case("Resize", [r(2, 3, 5)], [None, f32(2, 1.5, 1.2)], mode="linear"),
    Case("Resize", [r(1, 2, 5, 6)], [f32(0, 0, 0.2, 0.1, 1, 1, 0.8, 0.6), None, i64(1, 2, 5, 6)], **CROPPED),
    Case("Resize", [r(1, 2, 5, 6)], [f32(0, 0, 0.2, 0.1, 1, 1, 0.8, 0.6), None, i64(1, 2, 1, 6)], **CROPPED),
]
"""It forgets the region of interest of axes that keep their extent."""
VOLUMES = [
    Case("Conv", [r(2, 4, 5, 6, 7)], [r(6, 4, 3, 2, 3), r(6)]),
    Case("Conv", [r(1, 4, 5, 6, 7)], [r(6, 2, 3, 3, 1)], group=2, strides=[2, 1, 2], pads=[1, 0, 1, 2, 1, 0]),
    Case("Conv", [r(1, 2, 7, 6, 7)], [r(3, 2, 2, 3, 2)], dilations=[3, 2, 1], pads=[2, 1, 0, 2, 0, 1]),
    *(
        Case(op, [r(1, 3, 6, 7, 8)], kernel_shape=[3, 2, 3], strides=[2, 1, 2], pads=[1, 0, 1, 0, 1, 1], **extra)
        for op, extra in (
            ("MaxPool", {"dilations": [1, 2, 1]}),
            ("MaxPool", {"ceil_mode": 1}),
            ("AveragePool", {}),
            ("AveragePool", {"count_include_pad": 1, "ceil_mode": 1}),
        )
    ),
    Case("GlobalAveragePool", [r(1, 3, 4, 5, 6)]),
    Case("MaxPool", [r(1, 2, 90, 80)], kernel_shape=[60, 70], strides=[3, 2], pads=[5, 6, 7, 8]),
    Case("AveragePool", [r(1, 2, 90, 80)], kernel_shape=[70, 60], strides=[3, 2], pads=[5, 6, 7, 8]),
    Case("MatMul", [r(3, 1, 4, 5), r(1, 2, 5, 6)]),
    Case("MatMul", [r(3, 1, 4, 5), r(2, 5, 6)]),
]
CASES = [
    *CONVS, *TRANSPOSED, *PRODUCTS, *POOLS, *UNARIES, *BINARIES, *NORMALIZATIONS, *REDUCTIONS, *SHAPES, *MOVES,
    *RESIZES, *PRODUCTS_OF_RESIZES, *VOLUMES,
]  # fmt: skip


def oracle(model, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if "align_corners" in str(model.graph.node):  # onnxruntime rounds the result's extent first, ONNX does not
        return ReferenceEvaluator(model).run(None, inputs)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


def error(found, expected):
    assert found.shape == expected.shape
    return np.abs(found - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-6)


@pytest.mark.slow(but=41)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_operator(case):
    agrees(case, oracle)


@pytest.mark.parametrize("case", NOT_IN_ONNXRUNTIME, ids=repr)
def test_operator_as_onnx_defines_it(case):
    agrees(case, lambda model, inputs: ReferenceEvaluator(model).run(None, inputs))


def agrees(case, witness):
    model = case.model()
    inputs = {f"x{index}": array for index, array in enumerate(case.x)}
    expected = witness(model, inputs)
    module = import_onnx(model)
    module.verify()
    for _ in ("as imported", "simplified"):
        outputs = ReferenceExecutor(store_of(module)).run_graph(module, inputs)
        for found, wanted in zip(outputs.values(), expected, strict=True):
            assert error(found, wanted) < TOLERANCE
        Canonicalize().apply(Context(), module)
        module.verify()


SCALAR = np.asarray(0.75, np.float32)
MASK = np.random.default_rng(0).random((3, 4)) < 0.5
INFINITE = np.where(r(3, 4) > 0, np.float32(np.inf), r(3, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "case",
    [
        Case("Where", [r(3, 4)], [MASK, f32(-2)], order=[1, 0, 2]),
        Case("Where", [r(3, 4)], [MASK, f32(-2)], order=[1, 2, 0]),
        Case("Where", [r(3, 4), r(4, seed=1)], [MASK], order=[2, 0, 1]),
        Case("Where", [r(1, 4), r(2, 1, 1, seed=1)], [MASK], order=[2, 1, 0]),
        Case("Where", [r(4)], [MASK, f32(-100)], order=[1, 0, 2]),
        Case("Selu", [SCALAR]),
        Case("Celu", [SCALAR], alpha=0.5),
        Case("Softsign", [SCALAR]),
        Case("Mean", [SCALAR, SCALAR]),
    ],
    ids=repr,
)
def test_choices_by_a_constant_mask_and_operands_without_dimensions(case):
    agrees(case, oracle)


def test_what_is_infinite_or_no_number_and_not_chosen_does_no_harm():
    harmful = np.where(np.isposinf(INFINITE), np.float32(np.nan), INFINITE)
    case = Case("Where", [harmful], [np.isfinite(harmful), f32(1)], order=[1, 0, 2])
    model = case.model()
    module = import_onnx(model)
    (found,) = ReferenceExecutor(store_of(module)).run_graph(module, {"x0": harmful}).values()
    np.testing.assert_array_equal(found, oracle(model, {"x0": harmful})[0])
    assert np.isnan(harmful).any() and not np.isnan(found).any()
