"""The import as a whole: files, opsets, shapes, re-batching, functions, branches; and every message it can print."""

import io

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, FileLineColLoc, IntAttr, NameLoc, StringAttr
from xdsl.parser import Parser
from xdsl.printer import Printer

from frustum.dialects.graph import ConvOp, FGraph, MatmulOp, NetworkOp, ReshapeOp, WeightOp, shape_of
from frustum.passes.errors import ModelError, Unsupported
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.onnx.binding import bind_inputs, open_batches, with_dims
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.loading import casts_computed_in, load_model, network_type
from frustum.passes.weights import store_of, write_module
from frustum.runtime.reference.graph import ReferenceExecutor


def tensor(name, shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def model(nodes, inputs, outputs=("y",), tensors=(), opset=21, **options):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        list(tensors),
    )
    imports = [helper.make_opsetid("", opset), *options.pop("imports", ())]
    return helper.make_model(graph, opset_imports=imports, ir_version=options.pop("ir_version", 8), **options)


def node(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)


def network(module):
    (found,) = module.body.block.ops
    assert isinstance(found, NetworkOp)
    return found


def execute(module, **inputs):
    return ReferenceExecutor(store_of(module)).run_graph(module, inputs)


def conv_model(shape=(1, 3, 8, 8), **options):
    nodes = [node("Conv", ["x", "w"], ["c"], "Conv_0"), node("Relu", ["c"], ["y"], "Relu_1")]
    return model(nodes, {"x": shape}, tensors=[tensor("w", (4, 3, 3, 3))], **options)


def message(source, **options):
    with pytest.raises(ModelError) as caught:
        import_onnx(source, **options)
    return str(caught.value)


# --- what a module holds


def test_names_and_order_of_the_file_stay():
    module = import_onnx(conv_model())
    ops = list(network(module).body.block.ops)
    assert [type(op).__name__ for op in ops] == ["WeightOp", "ConvOp", "UnaryOp", "OutputOp"]
    assert [op.location.desc.data for op in ops[:3]] == ["w", "Conv_0", "Relu_1"]
    assert network(module).inputs == ("x",)
    assert network(module).outputs == ("y",)
    assert module.attributes["frustum.model"].data == "model.onnx"
    assert module.attributes["frustum.dtype"].data == "f32"
    assert list(store_of(module)) == ["w"]


def test_locations_survive_text():
    module = import_onnx(conv_model())
    text = io.StringIO()
    Printer(text, print_debuginfo=True).print_op(module)
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(FGraph)
    again = Parser(context, text.getvalue()).parse_module()
    assert again.is_structurally_equivalent(module)
    (conv,) = (op for op in again.walk() if isinstance(op, ConvOp))
    assert isinstance(conv.location, NameLoc)
    assert conv.location.desc.data == "Conv_0"


def test_a_nameless_node_is_named_after_its_output():
    module = import_onnx(model([node("Relu", ["x"], ["y"])], {"x": (2,)}))
    assert network(module).body.block.first_op.location.desc.data == "y"


def test_nodes_that_no_output_needs_are_left_out():
    nodes = [node("NonZero", ["x"], ["unused"]), node("Relu", ["x"], ["y"])]
    assert len(network(import_onnx(model(nodes, {"x": (2,)}))).body.block.ops) == 2


def test_half_precision_stays():
    proto = conv_model()
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    weights = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float16)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    module = import_onnx(proto)
    assert module.attributes["frustum.dtype"].data == "f16"
    assert store_of(module)["w"].dtype == np.float16


def test_initializers_of_old_files_are_inputs_too():
    proto = conv_model(opset=9, ir_version=3)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (4, 3, 3, 3)))
    assert network(import_onnx(proto)).inputs == ("x",)


def test_shapes_are_computed_when_importing():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Concat", ["n1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "axes": np.array([0]), "rest": np.array([-1])}
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    (op, _) = network(import_onnx(model(nodes, {"x": (2, 3, 4)}, tensors=tensors))).body.block.ops
    assert isinstance(op, ReshapeOp)
    assert shape_of(op.result) == (2, 12)


def test_a_splat_stays_one_element():
    nodes = [
        node("ConstantOfShape", ["s"], ["w"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    shape = numpy_helper.from_array(np.array([4096, 4096]), "s")
    module = import_onnx(model(nodes, {"x": (1, 4096)}, tensors=[shape]))
    (matmul,) = (op for op in module.walk() if isinstance(op, MatmulOp))
    assert isinstance(matmul.b.owner, WeightOp)
    assert store_of(module)[matmul.b.owner.key.data].strides == (0, 0)


def test_local_functions_are_inlined():
    body = [node("Relu", ["a"], ["b"]), node("Add", ["b", "a"], ["c"])]
    function = helper.make_function("mine", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 21)])
    proto = model([node("Twice", ["x"], ["y"], domain="mine")], {"x": (2,)}, functions=[function],
                  imports=[helper.make_opsetid("mine", 1)])  # fmt: skip
    found = execute(import_onnx(proto), x=np.array([-1, 2], np.float32))
    np.testing.assert_array_equal(found["y"], [-1, 4])


@pytest.mark.parametrize(("condition", "expected"), [(True, [0, 2]), (False, [1, -2])])
def test_a_branch_with_a_known_condition_is_taken(condition, expected):
    branches = {
        name: helper.make_graph([node(op, ["x"], [f"{op}_out"])], name, [],
                                [helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, None)])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }  # fmt: skip
    tensors = [numpy_helper.from_array(np.array(condition), "condition")]
    proto = model([node("If", ["condition"], ["y"], **branches)], {"x": (2,)}, tensors=tensors)
    found = execute(import_onnx(proto), x=np.array([-1, 2], np.float32))
    np.testing.assert_array_equal(found["y"], expected)


# --- shapes


def test_batch_binds_a_dynamic_batch():
    module = import_onnx(conv_model(("N", 3, 8, 8)), batch=5)
    assert shape_of(network(module).body.block.args[0]) == (5, 3, 8, 8)


def test_a_named_dimension_is_bound_everywhere():
    proto = model([node("Add", ["x", "z"], ["y"])], {"x": ("N", "L"), "z": ("N", "L")})
    module = import_onnx(proto, shapes={"x": (2, 7)})
    assert [shape_of(argument) for argument in network(module).body.block.args] == [(2, 7), (2, 7)]


@pytest.mark.parametrize("leading", ["N", None])
def test_an_open_leading_dimension_is_1(leading):
    module = import_onnx(conv_model((leading, 3, 8, 8)))
    network = next(op for op in module.walk() if isinstance(op, NetworkOp))
    assert shape_of(network.body.block.args[0]) == (1, 3, 8, 8)


def test_a_name_that_one_input_binds_is_bound_in_all():
    declared = {"x": ("N", 4), "z": ("N", 2), "w": ("M", "N")}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in declared.items()]
    assert open_batches(inputs, None, {"x": (3, 4)}) == {"w": "M"}
    assert bind_inputs("m", inputs, shapes={"x": (3, 4)}).shapes == {"x": (3, 4), "z": (3, 2), "w": (1, 3)}
    assert open_batches(inputs, 2, {}) == {}


def test_a_static_batch_of_one_is_changed():
    nodes = [node("Reshape", ["x", "s"], ["f"], "Flat"), node("Gemm", ["f", "w"], ["y"])]
    tensors = [numpy_helper.from_array(np.array([1, -1]), "s"), tensor("w", (12, 5))]
    proto = model(nodes, {"x": (1, 3, 2, 2)}, tensors=tensors)
    one, four = import_onnx(proto), import_onnx(proto, batch=4)
    images = np.random.default_rng(1).standard_normal((4, 3, 2, 2)).astype(np.float32)
    together = execute(four, x=images)["y"]
    apart = np.concatenate([execute(one, x=image[None])["y"] for image in images])
    np.testing.assert_allclose(together, apart, rtol=1e-6)


def test_a_batch_that_does_not_go_through_is_refused_by_name():
    nodes = [node("Concat", ["token", "x"], ["y"], "Token", axis=1)]
    proto = model(nodes, {"x": (1, 3, 2)}, tensors=[tensor("token", (1, 1, 2))])
    assert "node 'Token' (Concat): error: shapes [(1, 1, 2), (4, 3, 2)] differ" in message(proto, batch=4)


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        (("N", 3, "H", 8), {}, "open dimensions: 'H' of input 'x': bind them, as with --dim H=128"),
        ((1, 3, None, 8), {}, "input 'x' has the open dimension 2 (unnamed): bind it with --shape x=1x3xNx8"),
        (None, {}, "input 'x' has no shape in the file: give one with --shape x="),
        (
            (1, 3, 8, 8),
            {"shapes": {"x": (1, 3, 9, 8)}},
            "input 'x' is 1x3x8x8 in the file, which 1x3x9x8 does not fit",
        ),
        ((1, 3, 8, 8), {"shapes": {"x": (3, 8, 8)}}, "which 3x8x8 does not fit"),
        ((1, 3, 8, 8), {"shapes": {"z": (1,)}}, "there is no input 'z': the inputs are 'x'"),
        ((2, 3, 8, 8), {"batch": 4}, "input 'x' has a batch of 2 in the file, which --batch 4 cannot change"),
        (("N", 3, 8, 8), {"batch": 0}, "input 'x' has the extent 0 in dimension 0: at least 1 is needed"),
        ((1,) * 7, {}, "input 'x' has 7 dimensions: at most 6 are supported"),
    ],
)
def test_shapes_that_do_not_fit(shape, options, expected):
    assert expected in message(conv_model(shape), **options)


def test_all_open_dimensions_are_listed():
    text = message(model([node("Add", ["x", "z"], ["y"])], {"x": ("N", "K"), "z": (2, "M")}))
    assert "'K' of input 'x'; 'M' of input 'z'" in text


# --- files


def test_a_missing_file(tmp_path):
    assert "no.onnx: error: cannot read the model: No such file" in message(tmp_path / "no.onnx")


@pytest.mark.parametrize("content", [b"", b"hello, world", b"\x08\x07", bytes(range(256))])
def test_not_an_onnx_file(tmp_path, content):
    path = tmp_path / "a.onnx"
    path.write_bytes(content)
    assert "a.onnx: error: not an ONNX file, or not all of it" in message(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file(tmp_path, share):
    path = tmp_path / "a.onnx"
    content = conv_model().SerializeToString()
    path.write_bytes(content[: int(len(content) * share)])
    assert len(message(path).splitlines()) == 1


@pytest.mark.parametrize("opset", [98, 99])
def test_an_opset_out_of_range(opset):
    newest = onnx.defs.onnx_opset_version()
    assert message(conv_model(opset=opset)) == f"model.onnx: error: opset {opset}: allowed are 1 to {newest}"


def test_slopes_of_old_files_are_one_for_each_channel():
    graph = helper.make_graph(
        [node("PRelu", ["x", "s"], ["y"])],
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 4, 5))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3, 4, 5))],
        [numpy_helper.from_array(np.float32([0.5, 0.25, 2]), "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    module = import_onnx(model)
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 5)).astype(np.float32)
    (found,) = ReferenceExecutor(store_of(module)).run_graph(module, {"x": x}).values()
    np.testing.assert_array_equal(found, np.where(x < 0, x * np.float32([0.5, 0.25, 2])[:, None, None], x))


def test_every_opset_is_read():
    for opset in range(6, onnx.defs.onnx_opset_version() + 1):
        assert len(network(import_onnx(conv_model(opset=opset))).body.block.ops) == 4


def external(folder, location, offset=0, length=None):
    proto = conv_model()
    array = proto.graph.initializer[0]
    content = array.raw_data
    array.ClearField("raw_data")
    array.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "length": str(length or len(content))}
    for key, value in entries.items():
        array.external_data.add(key=key, value=value)
    path = folder / "a.onnx"
    path.write_bytes(proto.SerializeToString())
    return path, content


def test_external_data_is_mapped(tmp_path):
    path, content = external(tmp_path, "a.data", offset=16)
    (tmp_path / "a.data").write_bytes(b"\0" * 16 + content)
    array = store_of(import_onnx(path))["w"]
    assert not array.flags.owndata
    assert array.tobytes() == content


def test_external_data_that_is_missing(tmp_path):
    path, _ = external(tmp_path, "gone.data")
    assert "a.onnx: error: tensor 'w': external data file 'gone.data' is missing" in message(path)


def test_external_data_that_is_too_short(tmp_path):
    path, content = external(tmp_path, "a.data")
    (tmp_path / "a.data").write_bytes(content[:-4])
    assert f"tensor 'w' needs bytes 0 to {len(content)} of 'a.data', which has {len(content) - 4}" in message(
        path
    )


@pytest.mark.parametrize("location", ["../a.data", "/etc/passwd", "sub/../../a.data", "link/a.data"])
def test_external_data_outside_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (tmp_path / "a.data").write_bytes(b"\0" * 432)
    path, _ = external(folder, location)
    assert f"tensor 'w': external data '{location}' is outside the model's folder" in message(path)


def test_external_data_of_a_proto():
    proto = conv_model()
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    assert "give the model as a path, not a proto" in message(proto)


def test_a_tensor_of_the_wrong_length():
    proto = conv_model()
    proto.graph.initializer[0].dims[0] = 5
    assert "tensor 'w' does not hold the elements of its shape" in message(proto)


# --- operators


def test_all_unsupported_operators_are_named_at_once():
    nodes = [
        node("NonZero", ["x"], ["a"], "first"),
        node("Relu", ["a"], ["b"], "follows"),
        node("Thing", ["b"], ["c"], "second", domain="com.example"),
        node("Hardmax", ["x"], ["d"], "third"),
        node("Sum", ["c", "d"], ["y"]),
    ]
    with pytest.raises(Unsupported) as caught:
        import_onnx(model(nodes, {"x": (4,)}, imports=[helper.make_opsetid("com.example", 1)]))
    assert str(caught.value).splitlines() == [
        "model.onnx: node 'first' (NonZero): error: this operator is not supported",
        "model.onnx: node 'second' (com.example.Thing): error: this operator is not supported",
        "model.onnx: node 'third' (Hardmax): error: this operator is not supported",
    ]


def one(op, *constants, shape=(1, 4, 8, 8), outputs=("y",), dynamic=0, **attributes):
    """A model of one node; the last `dynamic` operands are inputs of the network like the first."""
    arrays = [
        numpy_helper.from_array(np.asarray(array), f"c{place}") for place, array in enumerate(constants)
    ]
    extra = {f"d{place}": (2,) for place in range(dynamic)}
    names = ["x", *(array.name for array in arrays), *extra]
    return model([node(op, names, outputs, "n", **attributes)], {"x": shape, **extra}, outputs[:1], arrays)


KERNEL = np.ones((4, 4, 3, 3), np.float32)
HALVED = np.float32([1, 1, 0.5, 1])
REFUSED = [
    (one("Conv", KERNEL[:, :, None, None], shape=(1, 4, 2, 8, 8, 8)), "operands of 6 dimensions are not supported"),
    (one("Conv", KERNEL, kernel_shape=[5, 5]), "kernel_shape is (5, 5), the weights are (4, 4, 3, 3)"),
    (one("Conv", KERNEL, strides=[2]), "expected 2 values, found (2,)"),
    (one("Conv", KERNEL, pads=[1, 1]), "expected 4 pads, found (1, 1)"),
    (one("Conv", KERNEL, auto_pad="SOME"), "auto_pad is 'SOME'"),
    (one("Conv", KERNEL, group=2), "4 channels, but 2 groups of 4"),
    (one("ConvTranspose", dynamic=1), "the kernel must be constant, and depends on the network's inputs"),
    (one("ConvTranspose", KERNEL, group=3), "4 channels do not divide into 3 groups"),
    (one("ConvTranspose", KERNEL, pads=[9, 9, 9, 9]), "its output would have the extent -8"),
    (one("MaxPool", kernel_shape=[2, 2], outputs=("y", "i")), "its second output, the indices, is not supported"),
    (one("MaxPool", kernel_shape=[9, 9]), "a kernel of (9, 9) with dilations (1, 1) does not fit into (8, 8)"),
    (one("BatchNormalization", *np.ones((4, 4), np.float32), training_mode=1), "training is not supported"),
    (one("Dropout", np.float32(0.5), np.array(True)), "training is not supported"),
    (one("Cast", to=TensorProto.INT8), "casts of floating point to INT8 are not supported"),
    (one("Resize", np.float32([]), np.float32([1, 1, 2, 2]), mode="best"), "mode 'best' is not supported"),
    (one("Resize", np.float32([]), HALVED, antialias=1), "antialias of mode nearest is not supported"),
    (one("Resize", np.float32([]), np.float32([1, 2, 2, 2])), "3 axes change, at most 2 are supported in mode nearest"),
    (
        one("Resize", np.float32([0, 1]), HALVED, mode="linear", coordinate_transformation_mode="tf_crop_and_resize"),
        "coordinate_transformation_mode 'tf_crop_and_resize' needs 8 numbers of roi",
    ),
    (one("Reshape", np.array([3, -1])), "does not reshape to (3, -1)"),
    (one("Reshape", np.array([5, 5])), "(1, 4, 8, 8) has 256 elements, (5, 5) has 25"),
    (one("Reshape", dynamic=1), "shape must be constant"),
    (one("Squeeze", np.array([1])), "axes [1] of (1, 4, 8, 8) are not all of extent 1"),
    (one("Softmax", axis=5), "axis 5 is not inside [-4, 4)"),
    (one("Split", np.array([3, 3]), axis=1, outputs=("y", "z")), "parts of (3, 3) do not make up an extent of 4"),
    (one("Gather", np.array([9]), axis=1), "indices are not inside [-4, 4)"),
    (one("Pad", np.array([1, 1])), "expected 8 pads, found (1, 1)"),
    (one("Pad", np.array([0, 0, 1, 1] * 2), mode="mirror"), "mode is 'mirror'"),
    (one("Pad", np.array([1, 0, 0, 0] * 2), mode="reflect"), "reflect needs more than one element"),
    (one("Tile", np.array([1, 1, 1, 1000])), "0 to 256 are supported"),
    (one("DepthToSpace", blocksize=3), "does not divide into blocks"),
    (one("Add", np.ones(3, np.float32)), "do not broadcast"),
    (one("Clip", np.ones(3, np.float32)), "'min' must be one number"),
    (one("DynamicQuantizeLinear", outputs=("y", "s", "z")), "this operator is not supported (it would need Cast"),
    (one("TopK", np.int64([2]), outputs=("y", "i"), axis=0), "k is 2 of 1 elements"),
    (one("TopK", np.int64([17]), shape=(2, 65), outputs=("y", "i")), "17 of an axis of 65 elements are not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("proto", "expected"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_node_that_cannot_be_imported(proto, expected):
    text = message(proto)
    assert text.startswith("model.onnx: node 'n' (")
    assert expected in text
    assert len(text.splitlines()) == 1


def test_an_input_of_integers():
    proto = conv_model()
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    words = "'x' of INT64 must be constant, and depends on the network's inputs"
    assert f"node 'Conv_0' (Conv): error: {words}" in message(proto)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT64
    assert "input 'x' has elements of UINT64: FLOAT, FLOAT16, BFLOAT16, DOUBLE, INT8, UINT8" in message(proto)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    assert "node 'Conv_0' (Conv): error: element types i8 and f32 differ" in message(proto)


@pytest.mark.slow
def test_a_value_that_nothing_produces():
    proto = model([node("Relu", ["gone"], ["y"], "n")], {"x": (2,)})
    assert (
        message(proto)
        == "model.onnx: node 'n' (Relu): error: it uses 'gone', which nothing before it produces"
    )


def test_an_output_that_nothing_produces():
    assert message(model([], {"x": (2,)})) == "model.onnx: error: no node produces the output 'y'"


def test_an_output_that_is_no_number_of_the_device():
    assert "output 'y' is a constant of int64" in message(model([node("Shape", ["x"], ["y"])], {"x": (2,)}))


def test_a_node_without_an_attribute_it_needs():
    text = message(one("LRN"))
    assert "node 'n' (LRN): error: its attributes and operands do not fit together: " in text


def test_a_function_that_cannot_be_inlined():
    function = helper.make_function("mine", "F", ["a"], ["c"], [node("F", ["a"], ["c"], domain="mine")],
                                    [helper.make_opsetid("mine", 1)])  # fmt: skip
    proto = model([node("F", ["x"], ["y"], "n", domain="mine")], {"x": (2,)}, functions=[function],
                  imports=[helper.make_opsetid("mine", 1)])  # fmt: skip
    assert "model.onnx: error: its functions cannot be inlined: Cycle detected" in message(proto)


def test_a_model_that_cannot_be_converted_as_a_whole_is_node_by_node():
    proto = conv_model(opset=9)
    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    expected = execute(import_onnx(proto), x=image)["y"]
    proto.graph.node.append(node("Relu", ["gone"], ["z"]))
    np.testing.assert_array_equal(execute(import_onnx(proto), x=image)["y"], expected)


def test_a_module_written_and_read_again_computes_the_same(tmp_path):
    module = import_onnx(conv_model())
    path = tmp_path / "00-imported.mlir"
    write_module(module, path)
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(FGraph)
    again = Parser(context, path.read_text(), str(path)).parse_module()
    again.location = FileLineColLoc(StringAttr(str(path)), IntAttr(1), IntAttr(1))
    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(execute(again, x=image)["y"], execute(module, x=image)["y"])
    assert again.attributes["frustum.weights"].data == "00-imported.safetensors"


def test_a_tensor_of_an_unknown_type():
    proto = conv_model()
    proto.graph.initializer[0].data_type = 99
    assert message(proto) == "model.onnx: error: tensor 'w' has elements of the unknown type 99"


# --- order ---------------------------------------------------------------------------------------------------


def late(nodes, **options):
    """The nodes in the wrong order."""
    return model(list(reversed(nodes)), {"x": (2, 4)}, tensors=[tensor("w", (4, 4))], **options)


def test_nodes_out_of_order_are_sorted_and_others_keep_their_places():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "first"),
        node("Relu", ["x"], ["r"], "second"),
        node("Add", ["a", "r"], ["y"], "third"),
    ]
    in_order = load_model(model(nodes, {"x": (2, 4)}, tensors=[tensor("w", (4, 4))]))
    assert in_order.moved == 0
    given = late(nodes)
    found = load_model(given)
    assert [each.name for each in found.proto.graph.node] == ["second", "first", "third"]
    assert found.moved == 1 and [each.name for each in given.graph.node] == ["third", "second", "first"]
    x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    assert (execute(import_onnx(given), x=x)["y"] == execute(import_onnx(in_order.proto), x=x)["y"]).all()


def test_inner_graphs_and_functions_are_sorted_too():
    """What a branch reads from around it counts for the node of the branch."""
    inner = [node("Neg", ["a"], ["n"]), node("Add", ["n", "x"], ["t"])]
    branches = {
        name: helper.make_graph(inner[::-1], name, [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])
        for name in ("then_branch", "else_branch")
    }
    body = [node("Relu", ["p"], ["q"]), node("Exp", ["q"], ["s"])]
    function = helper.make_function("local", "Twice", ["p"], ["s"], body[::-1], [helper.make_opsetid("", 17)])
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("If", ["c"], ["b"], **branches),
        helper.make_node("Twice", ["b"], ["y"], domain="local"),
    ]
    given = late(nodes, opset=17, imports=[helper.make_opsetid("local", 1)], functions=[function])
    given.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    found = load_model(given)
    assert [each.op_type for each in found.proto.functions[0].node] == ["Relu", "Exp"]
    (choice,) = (each for each in found.proto.graph.node if each.op_type == "If")
    assert all([each.op_type for each in graph.g.node] == ["Neg", "Add"] for graph in choice.attribute)
    x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    a = x @ numpy_helper.to_array(given.graph.initializer[0])
    np.testing.assert_allclose(execute(import_onnx(given), x=x)["y"], np.exp(np.maximum(x - a, 0)), rtol=1e-5)


def test_a_circle_is_an_error_that_names_it():
    nodes = [node("Add", ["x", "b"], ["a"], "one"), node("Relu", ["a"], ["b"], "two"), node("Neg", ["b"], ["y"], "end")]
    assert "nodes in a circle: 'two', 'one'" in message(model(nodes, {"x": (2, 4)}))
    own = [node("Add", ["x", "y"], ["y"], "self")]
    assert "node 'self' (Add): error: what it reads depends on what it gives" in message(model(own, {"x": (2, 4)}))
    missing = [node("Add", ["x", "nobody"], ["y"], "n")]
    assert "it uses 'nobody', which nothing before it produces" in message(model(missing, {"x": (2, 4)}))


# --- no elements -----------------------------------------------------------------------------------------------


def numbers(*values, dtype=np.int64):
    return np.array(values, dtype)


EMPTIES = {
    "Slice": ([node("Slice", ["x", "i", "j"], ["e"])], {"i": numbers(2), "j": numbers(2)}),
    "Gather": ([node("Gather", ["x", "i"], ["e"], axis=1)], {"i": numbers()}),
    "Expand": ([node("Slice", ["x", "i", "j"], ["s"]), node("Expand", ["s", "k"], ["e"])],
               {"i": numbers(0), "j": numbers(1), "k": numbers(0, 4)}),
    "Resize": ([node("Resize", ["x", "", "s"], ["e"], mode="nearest")], {"s": numbers(0.1, 1, dtype=np.float32)}),
    "Split": ([node("Split", ["x", "k"], ["e", "rest"], axis=0)], {"k": numbers(0, 2)}),
    "MatMul": ([node("MatMul", ["x", "m"], ["e"])], {"m": np.zeros((4, 0), np.float32)}),
    "Gemm": ([node("Gemm", ["x", "m"], ["e"], transB=1)], {"m": np.zeros((0, 4), np.float32)}),
    "Mul": ([node("Mul", ["x", "m"], ["e"])], {"m": np.zeros((0, 2, 4), np.float32)}),
    "Tile": ([node("Tile", ["x", "k"], ["e"])], {"k": numbers(1, 0)}),
}  # fmt: skip
USES = {
    "sum": ([node("ReduceSum", ["e"], ["total"], keepdims=0), node("Add", ["x", "total"], ["y"])], {}),
    "beside": ([node("Reshape", ["e", "to"], ["f"]), node("Concat", ["x", "f"], ["y"], axis=0)], {"to": numbers(0, 4)}),
    "product": (
        [node("Reshape", ["e", "to"], ["f"]), node("MatMul", ["f", "z"], ["g"]), node("Add", ["g", "x"], ["y"])],
        {"to": numbers(2, 0), "z": np.zeros((0, 4), np.float32)},
    ),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("maker", EMPTIES)
def test_values_of_no_elements_are_known(maker, use):
    (nodes, constants), (rest, more) = EMPTIES[maker], USES[use]
    for each in rest:
        if each.op_type == "Reshape":
            del each.attribute[:]
            each.attribute.append(helper.make_attribute("allowzero", 1))
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants | more).items()]
    given = model([*nodes, *rest], {"x": (2, 4)}, tensors=tensors, opset=18)
    x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    module = import_onnx(given)
    assert all(all(shape_of(result)) for op in network(module).body.block.ops for result in op.results)
    (wanted,) = ReferenceEvaluator(given).run(None, {"x": x})
    np.testing.assert_allclose(execute(module, x=x)["y"], wanted, rtol=1e-6)


def test_a_mean_of_no_elements_is_left_to_the_host():
    """ONNX does not define it; onnxruntime, which is asked for --check, has an answer."""
    nodes, constants = EMPTIES["Slice"]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    mean = [node("ReduceMean", ["e"], ["m"], axes=[0], keepdims=0), node("Add", ["x", "m"], ["y"])]
    assert "the mean of no elements" in message(model([*nodes, *mean], {"x": (2, 4)}, tensors=tensors, opset=17))


def test_an_output_of_no_elements_is_none_of_the_device():
    nodes, constants = EMPTIES["Slice"]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    assert "output 'e' is 0x4, which is no tensor of the device" in message(
        model(nodes, {"x": (2, 4)}, ("e",), tensors)
    )


# --- element types -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [np.uint8, np.int8, np.int16, np.uint16, np.int32])
def test_a_network_that_only_reads_integers_is_of_floating_point(data):
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
        node("Conv", ["f", "w"], ["y"]),
    ]
    given = model(nodes, {"x": (1, 8, 8, 3)}, tensors=[tensor("w", (4, 3, 3, 3))])
    given.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(data))
    module = import_onnx(given)
    assert module.attributes["frustum.dtype"].data == "f32"
    x = np.random.default_rng(1).integers(0, 100, (1, 8, 8, 3)).astype(data)
    wanted = execute(module, x=x)["y"]
    ConvertType(to="f16").apply(Context(), module)
    module.verify()
    assert module.attributes["frustum.dtype"].data == "f16"
    np.testing.assert_allclose(execute(module, x=x)["y"], wanted, atol=2e-2 * np.abs(wanted).max())


def half(*shape, dtype=TensorProto.FLOAT16, name="w"):
    return helper.make_tensor(name, dtype, shape, np.ones(shape).ravel().tolist())


@pytest.mark.parametrize(
    ("input_type", "weights", "expected"),
    [
        (TensorProto.FLOAT16, [half(4, 4)], "f16"),
        (TensorProto.FLOAT, [half(4, 4)], "f16"),
        (TensorProto.FLOAT, [half(4, 4, dtype=TensorProto.BFLOAT16)], "bf16"),
        (TensorProto.FLOAT16, [half(4, 4), half(4, dtype=TensorProto.FLOAT, name="v")], "f16"),
        (TensorProto.FLOAT16, [half(4), half(8, 8, dtype=TensorProto.FLOAT, name="v")], "f32"),
        (TensorProto.FLOAT16, [half(1, dtype=TensorProto.FLOAT)], "f16"),
        (TensorProto.FLOAT, [half(1)], "f32"),
        (TensorProto.FLOAT, [half(4), half(4, dtype=TensorProto.FLOAT, name="v")], "f32"),
    ],
)  # fmt: skip
def test_the_type_of_a_network_is_that_of_most_weights_whatever_norms_cast_to(input_type, weights, expected):
    nodes = [node("Cast", ["x"], ["a"], to=TensorProto.FLOAT), node("Relu", ["a"], ["y"])]
    value = helper.make_tensor_value_info("x", input_type, (4, 4))
    assert str(network_type([value], weights, nodes)) == expected
    assert casts_computed_in(network_type([value], weights, nodes), nodes) == (expected != "f32")


# --- what tools of onnx cannot be given ----------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("version", [1 << 31, -(1 << 40), (1 << 63) - 1])
def test_versions_beyond_32_bits_are_refused(domain, version):
    given = conv_model(imports=[helper.make_opsetid("com.microsoft", 1)])
    next(each for each in given.opset_import if each.domain == domain).version = version
    assert f"opset {version}" in message(given)
    inner = conv_model(functions=[helper.make_function("d", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [
        helper.make_opsetid(domain, version)])])  # fmt: skip
    assert f"opset {version}" in message(inner)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"starts": 0, "ends": 1, "axes": 2}, "attribute 'starts' is INT, it has to be INTS"),
        ({"starts": [0], "ends": 1}, "attribute 'ends' is INT, it has to be INTS"),
        ({"starts": [0], "ends": "a"}, "attribute 'ends' is STRING, it has to be INTS"),
    ],
)
def test_attributes_of_another_type_do_not_reach_the_converter(attributes, said):
    """Which ends the process there."""
    assert said in message(model([node("Slice", ["x"], ["y"], **attributes)], {"x": (2, 4)}, opset=9))


# --- extents by their names ----------------------------------------------------------------------------------------


def cache_model():
    names = [f"past{number}" for number in range(5)]
    nodes = [node("Sum", names, ["s"]), node("Concat", ["s", "q"], ["y"], axis=1)]
    return model(nodes, {**dict.fromkeys(names, (1, "past_len", 4)), "q": (1, "seq", 4)})


def test_open_names_are_one_message():
    said = message(cache_model())
    assert said.count("error:") == 1
    assert "'past_len' of inputs 'past0', 'past1', 'past2' and 2 more; 'seq' of input 'q'" in said
    assert said.endswith("bind them, as with --dim past_len=128 --dim seq=128")


def test_a_name_is_bound_once_for_all_inputs():
    given = cache_model()
    found = import_onnx(with_dims(load_model(given), {"past_len": 3, "seq": 2}))
    assert [shape_of(value) for value in network(found).body.block.args] == [(1, 3, 4)] * 5 + [(1, 2, 4)]
    assert given.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "past_len"


@pytest.mark.parametrize(
    ("dims", "more", "said"),
    [
        ({"past": 3}, {}, "there is no open dimension 'past': the inputs have 'past_len', 'seq'"),
        ({"seq": -1}, {}, "dimension 'seq' is -1 by --dim: at least 0 is needed"),
        ({"seq": 2}, {"shapes": {"q": (1, 3, 4)}}, "dimension 'seq' of input 'q' is 2 by --dim and 3 by --shape"),
    ],
)
def test_names_that_cannot_be_bound(dims, more, said):
    with pytest.raises(ModelError) as caught:
        with_dims(load_model(cache_model()), dims, **more)
    assert said in str(caught.value)


def test_a_batch_of_another_extent_than_its_name():
    leading = conv_model(("N", 3, 8, 8))
    assert shape_of(network(import_onnx(with_dims(load_model(leading), {"N": 3}, 3))).body.block.args[0])[0] == 3
    with pytest.raises(ModelError, match="dimension 'N' of input 'x' is 2 by --dim and 3 by --batch"):
        with_dims(load_model(leading), {"N": 2}, 3)
