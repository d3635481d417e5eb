"""A batch in place of a static 1: the images are kept apart, or the node that brings them together is named."""

import numpy as np
import pytest
from mixed_models import model, node
from onnx import TensorProto, helper
from onnx_differences import images_of

import frustum
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.runtime.host.agreement import agreement

COUNT = 3
AXIS_0 = "works along axis 0 of"
REMEDY = "run the images one by one, or export the model with an open batch"


def i64(*values):
    return np.asarray(values, np.int64)


X = {"x": (1, 5, 12)}
REFUSED = {
    "softmax": (model([node("Softmax", ["x"], ["y"], axis=0)], X, ["y"]), "Softmax", AXIS_0),
    "softmax from behind": (model([node("Softmax", ["x"], ["y"], axis=-3)], X, ["y"]), "Softmax", AXIS_0),
    "log softmax": (model([node("LogSoftmax", ["x"], ["y"], axis=0)], X, ["y"]), "LogSoftmax", AXIS_0),
    "slice": (
        model(
            [node("Slice", ["x", "s", "e", "a"], ["y"])], X, ["y"], {"s": i64(0), "e": i64(1), "a": i64(0)}
        ),
        "Slice",
        AXIS_0,
    ),
    "reduction": (model([node("ReduceMean", ["x"], ["y"], axes=[0, 2])], X, ["y"]), "ReduceMean", AXIS_0),
    "reduction of all": (model([node("ReduceSum", ["x"], ["y"])], X, ["y"]), "ReduceSum", AXIS_0),
    "concat": (model([node("Concat", ["x", "x"], ["y"], axis=0)], X, ["y"]), "Concat", AXIS_0),
    "gather": (model([node("Gather", ["x", "i"], ["y"], axis=0)], X, ["y"], {"i": i64(0)}), "Gather", AXIS_0),
    "split": (model([node("Split", ["x", "i"], ["y"], axis=0)], X, ["y"], {"i": i64(1)}), "Split", ""),
    "tile": (model([node("Tile", ["x", "i"], ["y"])], X, ["y"], {"i": i64(2, 1, 1)}), "Tile", AXIS_0),
    "pad": (model([node("Pad", ["x", "i"], ["y"])], X, ["y"], {"i": i64(1, 0, 0, 0, 0, 0)}), "Pad", AXIS_0),
    "expand": (model([node("Expand", ["x", "i"], ["y"])], X, ["y"], {"i": i64(3, 5, 12)}), "Expand", AXIS_0),
    "on the host": (model([node("Hardmax", ["x"], ["y"], axis=0)], X, ["y"]), "Hardmax", AXIS_0),
    "argmax": (model([node("ArgMax", ["x"], ["y"], axis=0)], X, ["y"]), "ArgMax", AXIS_0),
    "cumsum": (model([node("CumSum", ["x", "i"], ["y"])], X, ["y"], {"i": np.asarray(-3)}), "CumSum", AXIS_0),
    "topk": (
        model([node("TopK", ["x", "i"], ["v", "y"], axis=0)], X, ["v", "y"], {"i": i64(1)}),
        "TopK",
        "brings together operands",
    ),
    "another scale": (
        model([node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], X, ["y"]),
        "DynamicQuantizeLinear",
        "is not known to keep 3 images apart on the host",
    ),
    "indices count on": (
        model([node("MaxPool", ["x"], ["v", "y"], kernel_shape=[2])], X, ["v", "y"]),
        "MaxPool",
        AXIS_0,
    ),
    "a scalar that each has": (
        model([node("Add", ["x", "z"], ["y"])], {"x": (1, 5, 3), "z": (1,)}, ["y"]),
        "Add",
        "whose images lie along other axes",
    ),
    "a token that is one": (
        model([node("Concat", ["t", "x"], ["y"], axis=1)], X, ["y"], {"t": np.ones((1, 1, 12), "f4")}),
        "Concat",
        "whose images lie along other axes",
    ),
    "a constant as long": (
        model([node("Add", ["x", "t"], ["y"])], {"x": (1, 4)}, ["y"], {"t": np.ones((3, 4), "f4")}),
        "Add",
        "of which one is not of images",
    ),
    "all with all": (
        model(
            [
                node("Squeeze", ["x", "i"], ["s"]),
                node("Transpose", ["s"], ["t"]),
                node("MatMul", ["s", "t"], ["y"]),
            ],
            X,
            ["y"],
            {"i": i64(0)},
        ),
        "MatMul",
        "each image meets all",
    ),
    "the number of elements": (
        model(
            [node("Size", ["x"], ["s"]), node("Cast", ["s"], ["f"], to=1), node("Div", ["x", "f"], ["y"])],
            X,
            ["y"],
        ),
        "Div",
        "from the size of the batch",
    ),
    "an end from the batch": (
        model(
            [
                node("Shape", ["x"], ["s"]),
                node("Slice", ["s", "z", "o"], ["n"]),
                node("Slice", ["x", "z", "n", "o"], ["y"]),
            ],
            X,
            ["y"],
            {"z": i64(0), "o": i64(1)},
        ),
        "Slice",
        "which is computed from the size of the batch",
    ),
    "a reshape across": (
        model(
            [node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), node("Reshape", ["t", "i"], ["y"])],
            X,
            ["y"],
            {"i": i64(60)},
        ),
        "Reshape",
        "have no axis",
    ),
    "a product that it does not fit": (
        model(
            [node("Flatten", ["x"], ["f"], axis=2), node("Gemm", ["w", "f"], ["y"])],
            X,
            ["y"],
            {"w": np.ones((2, 5), "f4")},
        ),
        "Gemm",
        "batch 3",
    ),
}


@pytest.mark.slow(but=16)
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("host", ["auto", "never"])
def test_a_node_that_brings_images_together_is_named(case, host):
    proto, operator, why = REFUSED[case]
    with pytest.raises(Unsupported) as error:
        frustum.compile(proto, "edge", batch=COUNT, host=host)
    first = str(error.value).splitlines()[0]
    if host == "never" and "is not supported" in first:
        return  # what the device lacks
    assert f"({operator}): error: " in first and "batch" in first and "onnxruntime" not in first
    if host == "auto":
        assert why in first and REMEDY in first


def test_images_that_do_not_end_in_front():
    proto = model([node("Transpose", ["x"], ["y"], perm=[1, 0, 2])], X, ["y"])
    with pytest.raises(
        Unsupported, match=r"output 'y': has the images along axis 1, not along axis 0: --batch 3"
    ):
        import_onnx(proto, batch=COUNT)


def test_inputs_of_two_batches():
    proto = model([node("Add", ["x", "z"], ["y"])], {"x": (1, 5), "z": (1, 5)}, ["y"])
    with pytest.raises(
        Unsupported, match="inputs get other batches in place of 1: 'x' 2, 'z' 3; it is one for all"
    ):
        import_onnx(proto, shapes={"x": (2, 5), "z": (3, 5)})


def attention(batch):
    nodes = [
        node("Reshape", ["x", "rows"], ["r"]),
        node("MatMul", ["r", "w"], ["m"]),
        node("Reshape", ["m", "back"], ["q"]),
        node("Transpose", ["q"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "q"], ["y"]),
    ]
    w = np.random.default_rng(0).standard_normal((12, 8), np.float32)
    return model(nodes, {"x": (batch, 5, 12)}, ["y"], {"rows": i64(5, 12), "back": i64(1, 5, 8), "w": w})


KEPT = {
    "rows of all images": attention(1),
    "no leading 1": model(
        [
            node("Squeeze", ["x", "i"], ["s"]),
            node("Relu", ["s"], ["r"]),
            node("Unsqueeze", ["r", "i"], ["y"]),
        ],
        X,
        ["y"],
        {"i": i64(0)},
    ),
    "in another place": model(
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            node("Softmax", ["t"], ["s"], axis=0),
            node("Transpose", ["s"], ["y"], perm=[1, 0, 2]),
        ],
        X,
        ["y"],
    ),
    "on the host": model(
        [node("Hardmax", ["x"], ["h"]), node("Reshape", ["h", "i"], ["y"])], X, ["y"], {"i": i64(1, 12, 5)}
    ),
    "a computed target": model(
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "z", "o"], ["n"]),
            node("Concat", ["n", "m"], ["c"], axis=0),
            node("Reshape", ["x", "c"], ["y"]),
        ],
        X,
        ["y"],
        {"z": i64(0), "o": i64(1), "m": i64(-1)},
    ),
    "a computed constant": model(
        [
            node("Shape", ["x"], ["s"]),
            node("ConstantOfShape", ["s"], ["c"]),
            node("Concat", ["x", "c"], ["y"], axis=1),
        ],
        X,
        ["y"],
    ),
    "a resize": model(
        [node("Resize", ["x", "", "", "i"], ["y"], mode="linear")],
        {"x": (1, 2, 3, 4)},
        ["y"],
        {"i": i64(1, 2, 6, 8)},
    ),
    "empty operands": model(
        [
            node("Asinh", ["x"], ["s"]),
            node("Concat", ["s", "e"], ["c"], axis=0),
            node("Concat", ["c", "f"], ["y"], axis=2),
        ],
        X,
        ["y"],
        {"e": np.zeros((0, 5, 12), "f4"), "f": np.zeros((1, 5, 0), "f4")},
    ),
    "shuffled channels": model(
        [
            node("Reshape", ["x", "i"], ["r"]),
            node("Transpose", ["r"], ["t"], perm=[1, 0, 2]),
            node("Reshape", ["t", "j"], ["s"]),
            node("Gather", ["s", "k"], ["y"], axis=0),
        ],
        {"x": (1, 4, 3, 3)},
        ["y"],
        {"i": i64(2, 2, 9), "j": i64(2, -1, 2, 3, 3), "k": np.asarray(1)},
    ),
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("case", KEPT)
def test_a_batch_gives_what_each_image_gives_alone(case):
    proto = KEPT[case]
    dims = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal((COUNT, *dims[1:]), np.float32)
    found = frustum.run(frustum.compile(proto, "edge", batch=COUNT), {"x": x}).outputs
    _, checked = agreement(proto, {"x": x}, found, "f32")
    assert checked.good, checked


def test_a_scalar_is_for_all_images_and_an_output_of_none_of_them_is_given_once():
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4)),
        helper.make_tensor_value_info("f", 1, ()),
    ]
    proto = model([node("Mul", ["x", "f"], ["y"]), node("Add", ["f", "f"], ["z"])], inputs, ["y", "z"])
    given = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "f": np.asarray(2, np.float32)}
    found = frustum.run(frustum.compile(proto, "edge", batch=3), given).outputs
    np.testing.assert_array_equal(found["y"], given["x"] * 2)
    assert found["z"].shape == () and found["z"] == 4
    assert agreement(proto, given, found, "f32")[1].good


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", range(20))
def test_random_files_keep_their_images_apart_or_are_refused(seed):
    assert images_of(seed, COUNT) == ""
