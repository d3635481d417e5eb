"""Quantised operators: products bit for bit onnxruntime's, the rest within a step; every refusal names its node."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.context import Context

from frustum.passes.errors import ModelError
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.host.exact_integers import with_exact_products
from frustum.runtime.reference.graph import ReferenceExecutor, network_of

U8, S8, I32 = np.uint8, np.int8, np.int32


def model(nodes, inputs, constants, outputs, opset=21):
    """`inputs` and `constants`: arrays by name; `outputs`: names."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    graph = helper.make_graph(nodes, "case", values, results, tensors)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def oracle(proto, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    message = with_exact_products(proto).SerializeToString()
    session = onnxruntime.InferenceSession(message, options, ["CPUExecutionProvider"])
    return session.run(None, inputs)


def both(proto, inputs):
    """Our outputs and the oracle's, before and after simplification."""
    expected = oracle(proto, inputs)
    module = import_onnx(proto)
    module.verify()
    for _ in ("as imported", "simplified"):
        outputs = ReferenceExecutor(store_of(module)).run_graph(module, inputs)
        for found, wanted in zip(outputs.values(), expected, strict=True):
            assert found.dtype == wanted.dtype
            yield found, wanted
        Canonicalize().apply(Context(), module)
        module.verify()


def whole(rng, dtype, shape):
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max + 1, shape).astype(dtype)


def scales(rng, count=1):
    values = (rng.random(count) * 0.05 + 0.001).astype(np.float32)
    return values if count > 1 else values[0]


def zeros(rng, dtype, count=1, symmetric=False):
    values = np.zeros(count, dtype) if symmetric else whole(rng, dtype, count)
    return values if count > 1 else values[0]


TYPES = [(U8, S8), (S8, S8), (U8, U8)]


def draw_conv(rng, x_type, w_type, dims=2):
    groups = int(rng.choice([1, 1, 2, 4]))
    channels, columns = groups * int(rng.integers(1, 40)), groups * int(rng.integers(1, 5))
    kernel = [int(k) for k in rng.integers(1, 5, dims)]
    x = whole(rng, x_type, (2, channels, *(int(rng.integers(5, 12)) for _ in range(dims))))
    w = whole(rng, w_type, (columns, channels // groups, *kernel))
    attributes = {
        "group": groups, "strides": [int(s) for s in rng.integers(1, 4, dims)],
        "pads": [int(p) for p in rng.integers(0, 3, 2 * dims)],
    }  # fmt: skip
    return x, w, attributes


@pytest.mark.parametrize("seed", range(24))
def test_qlinear_conv(seed):
    rng = np.random.default_rng(seed)
    x_type, w_type = TYPES[seed % 3]
    x, w, attributes = draw_conv(rng, x_type, w_type, 1 if seed % 8 == 7 else 2)
    columns = len(w) if rng.random() < 0.5 else 1
    constants = {
        "xs": scales(rng), "xz": zeros(rng, x_type), "w": w, "ws": scales(rng, columns),
        "wz": zeros(rng, w_type, columns, symmetric=w_type == S8), "ys": np.float32(scales(rng) * 100),
        "yz": zeros(rng, x_type), "b": rng.integers(-5000, 5000, len(w)).astype(I32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", *(["b"] if rng.random() < 0.7 else [])]
    node = helper.make_node("QLinearConv", names, ["y"], name="node", **attributes)
    kind = TensorProto.UINT8 if x_type == U8 else TensorProto.INT8
    for found, wanted in both(model([node], {"x": x}, constants, {"y": kind}), {"x": x}):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("seed", range(15))
def test_conv_integer(seed):
    rng = np.random.default_rng([1, seed])
    x_type, w_type = [(U8, U8), (U8, S8)][seed % 2]
    x, w, attributes = draw_conv(rng, x_type, w_type)
    constants = {"w": w, "xz": zeros(rng, x_type), "wz": zeros(rng, w_type)}
    names = ["x", "w", "xz", "wz"][: 2 + seed % 3]
    node = helper.make_node("ConvInteger", names, ["y"], name="node", **attributes)
    for found, wanted in both(model([node], {"x": x}, constants, {"y": TensorProto.INT32}), {"x": x}):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("seed", range(24))
def test_qlinear_matmul(seed):
    rng = np.random.default_rng([2, seed])
    a_type, b_type = TYPES[seed % 3]
    inner, columns = int(rng.integers(1, 1500)), int(rng.integers(1, 9))
    a, b = whole(rng, a_type, (2, 3, inner)), whole(rng, b_type, (inner, columns))
    per_column = columns if rng.random() < 0.5 else 1
    inputs = {"a": a} if seed % 4 else {"a": a, "b": b}
    constants = {
        "as": scales(rng), "az": zeros(rng, a_type), "bs": scales(rng, per_column),
        "bz": zeros(rng, b_type, per_column), "ys": np.float32(scales(rng) * 100), "yz": zeros(rng, a_type),
        **({} if "b" in inputs else {"b": b}),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"], name="node")
    kind = TensorProto.UINT8 if a_type == U8 else TensorProto.INT8
    for found, wanted in both(model([node], inputs, constants, {"y": kind}), inputs):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("seed", range(16))
def test_matmul_integer(seed):
    rng = np.random.default_rng([3, seed])
    a_type, b_type = [(U8, S8), (S8, S8), (U8, U8), (S8, U8)][seed % 4]
    inner, columns = int(rng.integers(1, 1500)), int(rng.integers(1, 9))
    a, b = whole(rng, a_type, (2, 3, inner)), whole(rng, b_type, (inner, columns))
    constants = {"b": b, "az": zeros(rng, a_type), "bz": zeros(rng, b_type, columns if seed % 2 else 1)}
    names = ["a", "b", "az", "bz"][: 2 + seed % 3]
    node = helper.make_node("MatMulInteger", names, ["y"], name="node")
    for found, wanted in both(model([node], {"a": a}, constants, {"y": TensorProto.INT32}), {"a": a}):
        np.testing.assert_array_equal(found, wanted)


X = whole(np.random.default_rng(9), U8, (2, 6, 7, 8))
TRIPLE = ["x", "s0", "z0"]
MICROSOFT = {
    "QLinearAdd": ([*TRIPLE, "c", "s1", "z1", "s2", "z2"], {}),
    "QLinearMul": ([*TRIPLE, "c", "s1", "z1", "s2", "z2"], {}),
    "QLinearAveragePool": ([*TRIPLE, "s1", "z1"], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "QLinearGlobalAveragePool": ([*TRIPLE, "s1", "z1"], {}),
    "QLinearSigmoid": ([*TRIPLE, "s3", "z3"], {}),
    "QLinearLeakyRelu": ([*TRIPLE, "s1", "z1"], {"alpha": 0.2}),
    "QLinearSoftmax": ([*TRIPLE, "s3", "z3"], {"axis": -1, "opset": 13}),
    "QLinearConcat": (["s1", "z1", *TRIPLE, "d", "s1", "z1"], {"axis": 1}),
}


def microsoft_constants(dtype):
    rng = np.random.default_rng(4)
    found = {"c": whole(rng, dtype, (6, 1, 8)), "d": whole(rng, dtype, (2, 3, 7, 8))}
    for index, scale in enumerate((0.0213, 0.0317, 0.0409, 1 / 256)):
        found[f"s{index}"] = np.float32(scale)
        zero = (120 + index if index < 3 else 0) - (128 if dtype == S8 else 0)
        found[f"z{index}"] = dtype(zero)
    return found


@pytest.mark.parametrize("dtype", [U8, S8])
@pytest.mark.parametrize("operator", MICROSOFT)
def test_microsoft(operator, dtype):
    names, attributes = MICROSOFT[operator]
    x = X if dtype == U8 else (X.astype(np.int16) - 128).astype(S8)
    node = helper.make_node(operator, names, ["y"], name="node", domain="com.microsoft", **attributes)
    kind = TensorProto.UINT8 if dtype == U8 else TensorProto.INT8
    proto = model([node], {"x": x}, microsoft_constants(dtype), {"y": kind})
    for found, wanted in both(proto, {"x": x}):
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
        assert (found != wanted).mean() < 0.01 or operator in ("QLinearSoftmax", "QLinearSigmoid")


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("trans", [0, 1])
def test_qgemm(scaled, trans):
    rng = np.random.default_rng(5)
    a, b = whole(rng, U8, (9, 70)), whole(rng, S8, (5, 70) if trans else (70, 5))
    constants = {
        "as": scales(rng), "az": zeros(rng, U8), "b": b, "bs": scales(rng, 5), "bz": np.zeros(5, S8),
        "c": rng.integers(-900, 900, 5).astype(I32), "ys": np.float32(0.5), "yz": zeros(rng, U8),
    }  # fmt: skip
    names = ["a", "as", "az", "b", "bs", "bz", "c", *(["ys", "yz"] if scaled else [])]
    node = helper.make_node("QGemm", names, ["y"], name="node", domain="com.microsoft", transB=trans, alpha=0.5)
    kind = TensorProto.UINT8 if scaled else TensorProto.FLOAT
    for found, wanted in both(model([node], {"a": a}, constants, {"y": kind}), {"a": a}):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantize_and_dequantize(dtype, per_channel):
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((2, 5, 6)) * 3).astype(np.float32)
    count = 5 if per_channel else 1
    constants = {"s": scales(rng, count), "z": zeros(rng, dtype, count)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q", axis=1),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="d", axis=1),
    ]
    outputs = {"q": helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), "y": TensorProto.FLOAT}
    for found, wanted in both(model(nodes, {"x": x}, constants, outputs), {"x": x}):
        np.testing.assert_array_equal(found, wanted)


def test_a_dequantised_constant_knows_its_integers():
    rng = np.random.default_rng(7)
    w, x = whole(rng, U8, (4, 3, 2, 2)), rng.random((1, 3, 5, 5), np.float32)
    constants = {"w": w, "s": scales(rng, 4), "z": zeros(rng, U8, 4)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], name="d", axis=0),
        helper.make_node("Conv", ["x", "v"], ["y"], name="c"),
    ]
    proto = model(nodes, {"x": x}, constants, {"y": TensorProto.FLOAT})
    for found, wanted in both(proto, {"x": x}):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_moves_keep_unsigned_integers():
    x = X
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m"], name="m", kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
        helper.make_node("Pad", ["m", "p", "v"], ["w"], name="p"),
        helper.make_node("Transpose", ["w"], ["t"], name="t", perm=[0, 2, 3, 1]),
    ]
    constants = {"p": np.asarray([0, 0, 1, 0, 0, 0, 0, 2]), "v": U8(7)}
    for found, wanted in both(model(nodes, {"x": x}, constants, {"t": TensorProto.UINT8}), {"x": x}):
        np.testing.assert_array_equal(found, wanted)


def test_casts():
    rng = np.random.default_rng(8)
    x, u = (rng.standard_normal((3, 4)) * 50).astype(np.float32), whole(rng, U8, (3, 4))
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], name="i", to=TensorProto.INT64),
        helper.make_node("Mul", ["i", "five"], ["m"], name="m"),
        helper.make_node("Div", ["m", "three"], ["q"], name="q"),
        helper.make_node("Cast", ["q"], ["y"], name="y", to=TensorProto.FLOAT),
        helper.make_node("Div", ["y", "half"], ["z"], name="z"),
        helper.make_node("Cast", ["u"], ["v"], name="v", to=TensorProto.FLOAT),
    ]
    constants = {"five": np.int64(5), "three": np.int64(3), "half": np.float32(7)}
    outputs = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT, "v": TensorProto.FLOAT}
    for found, wanted in both(model(nodes, {"x": x, "u": u}, constants, outputs), {"x": x, "u": u}):
        np.testing.assert_array_equal(found, wanted)


def qconv(**changed):
    x = whole(np.random.default_rng(0), U8, (1, 3, 5, 5))
    constants = {
        "xs": np.float32(0.1), "xz": U8(3), "w": np.ones((4, 3, 2, 2), S8), "ws": np.float32(0.2), "wz": S8(0),
        "ys": np.float32(1), "yz": U8(0), **changed,
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], name="node")
    return model([node], {"x": x}, constants, {"y": TensorProto.UINT8})


def convert(operator, x, constants, **attributes):
    node = helper.make_node(operator, ["x", *constants], ["y"], name="node", **attributes)
    return model([node], {"x": x}, constants, {"y": TensorProto.FLOAT})


FLOAT = np.ones((2, 3), np.float32)
REFUSED = [
    (qconv(xs=np.float32(0)), r"'node' \(QLinearConv\): error: the scale of x is 0.0: a scale is a positive"),
    (qconv(ys=np.float32(np.nan)), "the scale of y is nan"),
    (qconv(ws=np.float32([0.1, 0.2, -0.3, 0.1]), wz=np.zeros(4, S8)), "the scale of w is -0.3"),
    (qconv(ws=np.float32([0.1, 0.2])), "2 scales for 4 output channels"),
    (qconv(xz=S8(3)), "x has elements of uint8, its zero point is int8: the types must agree"),
    (qconv(yz=np.uint16(3)), "the operand is of uint8, the result of uint16"),
    (qconv(w=np.ones((4, 3, 2, 2), np.int64)), "w has elements of int64: integers of 8, 16 or 32"),
    (convert("QuantizeLinear", FLOAT, {"s": np.float32([1, 2, 3]), "z": S8([0, 0, 0])}, axis=2), "axis 2 is not in"),
    (convert("QuantizeLinear", FLOAT, {"s": np.float32([1, 2])}, axis=1), "2 values for axis 1 of extent 3"),
    (convert("QuantizeLinear", FLOAT, {"s": np.float32(1)}, output_dtype=TensorProto.INT4), "to int4 is not supported"),
    (convert("QuantizeLinear", FLOAT, {"s": np.float32([[1] * 3])}, block_size=2), "scales of blocks"),
    (convert("DequantizeLinear", whole(np.random.default_rng(0), U8, (3,)), {"s": np.float32(1), "z": S8(0)}),
     "the types must agree"),
    (convert("DequantizeLinear", FLOAT, {"s": np.float32(1)}), "x has elements of f32: integers are expected"),
]  # fmt: skip


@pytest.mark.parametrize(("proto", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(proto, message):
    with pytest.raises(ModelError, match=message):
        import_onnx(proto)


def test_arithmetic_of_bare_integers_is_refused():
    x = whole(np.random.default_rng(0), U8, (3,))
    proto = model([helper.make_node("Add", ["x", "x"], ["y"], name="node")], {"x": x}, {}, {"y": TensorProto.UINT8})
    with pytest.raises(ModelError, match=r"'node' \(Add\): error: operands of i8 need a scale of each operand"):
        import_onnx(proto)


def test_the_module_says_that_it_is_of_integers():
    module = import_onnx(qconv())
    assert module.attributes["frustum.dtype"].data == "int8"
    assert [name.data for name in network_of(module).attributes["frustum.model_dtypes"]] == ["uint8", "uint8"]
