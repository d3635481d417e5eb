"""Layers with three spatial axes on slices of volumes: every level gives the same, in checked mode, in units without
moves, and so does onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check_agreement
from networks import Net
from onnx import TensorProto, helper, numpy_helper
from stops import modules_at_stops, run_module
from xdsl.dialects.builtin import i8
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

import frustum
from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects import tile as t
from frustum.dialects.graph import tensor_type
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.runtime import kernels
from frustum.runtime.host.agreement import agreement
from frustum.runtime.host.oracle import oracle_outputs

pytestmark = pytest.mark.slow

WINDOWS = [
    (3, 1, (1, 1), 1, "default optimal f32"),
    (2, 2, (0, 3), 1, "edge optimal f16"),
    (3, 1, (2, 1), 2, "tiny greedy f32"),
    (1, 2, (1, 0), 1, "tiny none f32"),
]


def check(module, inputs, way):
    """Every level, and no move; the result in f32 of the graph."""
    target, policy, dtype = way.split()
    modules = modules_at_stops(module, target, Choices(dtype=dtype, policy=policy))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "placed", "fixed")}
    check_agreement(found, dtype)
    return modules, found["fixed"]


@pytest.mark.parametrize(("kernel", "stride", "pads", "dilation", "way"), WINDOWS)
def test_windows_of_slices_agree_at_every_level(kernel, stride, pads, dilation, way):
    net = Net()
    x = net.conv(net.input(5, 3, 9, 7), 4)
    stacked = net.layer(graph.StackOp(x, kernel, stride, pads, dilation))
    module, inputs = net.module(net.conv(stacked, 6, groups=2))
    modules, _ = check(module, inputs, way)
    assert not any(isinstance(op, t.MoveOp) for op in modules["placed"].walk())


@pytest.mark.parametrize(
    ("kind", "way"), [("max", "edge optimal f16"), ("avg", "default optimal f32"), ("avg", "tiny greedy f32")]
)
def test_pools_of_slices_agree_at_every_level(kind, way):
    net = Net()
    x = net.conv(net.input(6, 3, 9, 7), 4)
    settings = {"kernel": (3,), "strides": (2,), "pads": (1, 1), "dilations": (1,), "ceil_pads": (1,)}
    x = net.layer(graph.PoolOp(kind, x, **settings, count_include_pad=kind == "avg"))
    check(*net.module(net.layer(graph.ReduceOp("mean", net.conv(x, 5), (0, 2, 3)))), way)


def test_a_stack_is_what_its_definition_says():
    x = np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1, 1)
    assert kernels.stack(x, 3, 2, (1, 1), 1)[..., 0, 0].tolist() == [[0, 1, 2], [2, 3, 4]]
    found = kernels.stack(np.tile(x, (1, 2, 1, 1)), 2, 1, (0, 1), 2)[..., 0, 0].tolist()
    assert found == [[1, 3] * 2, [2, 4] * 2, [3, 0] * 2]


def test_integers_have_no_slices_of_zeros():
    with pytest.raises(VerifyException, match="integers have no slices of 0 around them, found pads"):
        graph.StackOp(create_ssa_value(tensor_type(i8, (4, 1, 2, 2))), 3, 1, (1, 1)).verify()


def model(images=1):
    """R(2+1)D in small: (1, k, k) and (k, 1, 1) kernels, batch normalisation, a shortcut, pools, a mean."""
    rng = np.random.default_rng(0)
    constants, nodes = [], []

    def constant(*shape):
        array = (rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    def node(op, *operands, **settings):
        nodes.append(helper.make_node(op, operands, [f"t{len(nodes)}"], **settings))
        return nodes[-1].output[0]

    def conv(x, inputs, outputs, kernel, strides=(1, 1, 1), groups=1):
        pads = [size // 2 for size in kernel] * 2
        w = constant(outputs, inputs // groups, *kernel)
        return node("Conv", x, w, constant(outputs), kernel_shape=kernel, strides=strides, pads=pads, group=groups)

    x = node("Relu", conv("x", 3, 8, (3, 5, 5), (1, 2, 2)))
    x = node("MaxPool", x, kernel_shape=[3, 3, 3], strides=[2, 2, 2], pads=[1] * 6)
    scale, shift, mean = (constant(8) for _ in range(3))
    constants.append(numpy_helper.from_array(np.full(8, 0.5, np.float32), "variance"))
    y = node("BatchNormalization", conv(x, 8, 8, (1, 3, 3)), scale, shift, mean, "variance")
    y = conv(node("Relu", y), 8, 8, (3, 1, 1))
    x = node("Relu", node("Add", x, y))
    x = node("Concat", x, conv(x, 8, 8, (3, 3, 3), groups=8), axis=1)
    x = node("AveragePool", x, kernel_shape=[2, 2, 2], strides=[1, 2, 2])
    x = node("ReduceMean", conv(x, 16, 6, (1, 1, 1)), axes=[2, 3, 4], keepdims=0)
    nodes[-1].output[0] = "y"
    graph_ = helper.make_graph(
        nodes, "r21d", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [images, 3, 6, 18, 14])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [images, 6])], constants,
    )  # fmt: skip
    made = helper.make_model(graph_, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made, {"x": rng.standard_normal((images, 3, 6, 18, 14)).astype(np.float32)}


@pytest.mark.parametrize("way", ["default optimal f32", "edge optimal f16"])
def test_a_network_of_volumes_is_one_of_slices(way):
    """No transposition and no move is left of it."""
    made, inputs = model()
    modules, outputs = check(import_onnx(made), inputs, way)
    left = (graph.TransposeOp, graph.PadOp, graph.SliceOp, graph.TurnOp)
    assert not any(isinstance(op, left) for op in modules["typed"].walk())
    assert not any(isinstance(op, t.MoveOp) for op in modules["placed"].walk())
    np.testing.assert_allclose(outputs["y"], oracle_outputs(made, inputs)["y"], atol=1e-5 if "f32" in way else 4e-3)


def transposed(strides, kernel=(2, 2, 2), images=1, groups=1, **settings):
    """A transposed convolution of 4 channels to 6."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((4, 6 // groups, *kernel)) / 4, rng.standard_normal(6)
    arrays = [numpy_helper.from_array(each.astype(np.float32), name) for each, name in ((w, "w"), (b, "b"))]
    node = helper.make_node("ConvTranspose", ["r", "w", "b"], ["y"], strides=strides, group=groups, **settings)
    return node, arrays, (images, 4, 3, 4, 5)


def resized(mode, depth, height, width, images=1, **settings):
    scales = numpy_helper.from_array(np.array([1, 1, depth, height, width], np.float32), "s")
    return helper.make_node("Resize", ["r", "", "s"], ["y"], mode=mode, **settings), [scales], (images, 4, 4, 3, 5)


LARGER = {
    "stride is the kernel": transposed((2, 2, 2)),
    "overlapping": transposed((2, 2, 2), (3, 3, 3), pads=[1] * 6, output_padding=[1, 1, 1]),
    "places of unlike length": transposed((2, 1, 1), (3, 2, 3), groups=2, pads=[1, 0, 1, 0, 0, 1]),
    "dilated, two volumes": transposed((1, 2, 1), images=2, dilations=[2, 1, 1]),
    "slices that nothing reaches": transposed((3, 2, 1), (1, 1, 1)),
    "cropped": transposed((2, 2, 2), (2, 3, 2), pads=[2, 1, 0, 2, 1, 1]),
    "nearest": resized("nearest", 2, 2, 2),
    "linear": resized("linear", 2, 1.5, 2),
    "nearest, two volumes": resized("nearest", 2, 1.5, 3, images=2),
    "linear, smaller, two volumes": resized("linear", 0.5, 2, 2, images=2),
    "linear, corners": resized("linear", 2, 2, 2, coordinate_transformation_mode="align_corners"),
}


@pytest.mark.soak(but=8)
@pytest.mark.parametrize("target", ["edge", "default"])
@pytest.mark.parametrize("case", LARGER.values(), ids=LARGER)
def test_volumes_that_grow_give_what_onnxruntime_gives(case, target):
    node, arrays, shape = case
    nodes = [helper.make_node("Relu", ["x"], ["r"]), node]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", shape), ("y", None))]
    graph_ = helper.make_graph(nodes, "grows", ends[:1], ends[1:], arrays)
    made = helper.make_model(graph_, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    found = frustum.run(frustum.compile(made, target, dtype="f32", host="never"), inputs, checked=True).outputs
    _, checked = agreement(made, inputs, found, "f32")
    assert checked.good, checked.max_rel_error
