"""Models at the edge of what ONNX allows run; those beyond it give one line that names what is wrong, and code 2."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from mixed_models import model, node
from onnx import TensorProto, helper, numpy_helper

from frustum.runtime.tools import cli

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)


def value(name, shape, element=FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def made(nodes, inputs, outputs, weights=(), opset=17, **options):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(weights).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = options.pop("opsets", None) or [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)


def strings():
    nodes = [helper.make_node("Constant", [], ["c"], value_string="hello"), node("Relu", ["x"], ["y"])]
    return made(nodes, [value("x", (2, 3))], [value("y", (2, 3)), value("c", (), TensorProto.STRING)])


def conv(shape, **weights):
    return made(
        [node("Conv", ["x", "w"], ["y"])], [value("x", shape)], [value("y", None)], {"w": WEIGHT} | weights
    )


def of_function(opset):
    function = helper.make_function(
        "my", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", opset)]
    )
    nodes = [helper.make_node("F", ["x"], ["y"], domain="my")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return made(nodes, [value("x", (2, 3))], [value("y", (2, 3))], functions=[function], opsets=opsets)


def empty_in_the_middle():
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Slice", ["a", "s", "s"], ["b"]),
        node("Concat", ["b", "a"], ["y"], axis=0),
    ]
    return made(nodes, [value("x", (2, 3))], [value("y", (2, 3))], {"s": np.array([0])})


GOOD = {
    "output is the input": made([], [value("x", (1, 3))], [value("x", (1, 3))]),
    "output is a constant": made([], [], [value("c", (2,))], {"c": np.ones(2, np.float32)}),
    "scalar": made([node("Relu", ["x"], ["y"])], [value("x", ())], [value("y", ())]),
    "empty input": made([node("Relu", ["x"], ["y"])], [value("x", (0, 3))], [value("y", (0, 3))]),
    "no images": conv((0, 3, 8, 8)),
    "empty in the middle": empty_in_the_middle(),
    "text": strings(),
    "seven dimensions": made(
        [node("Relu", ["x"], ["y"])], [value("x", (1, 2, 1, 2, 1, 2, 3))], [value("y", None)]
    ),
    "function": of_function(17),
    "function of an older opset": of_function(11),
    "output given twice": made(
        [node("Relu", ["x"], ["y"])], [value("x", (2, 3))], [value("y", (2, 3)), value("y", (2, 3))]
    ),
}


def ran(proto, tmp_path, *options):
    path, found = tmp_path / "m.onnx", tmp_path / "found.npz"
    path.write_bytes(proto.SerializeToString())
    code = cli.main(["run", str(path), "--target", "edge", "--output", str(found), *options])
    return code, dict(np.load(found)) if code == 0 else {}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", GOOD)
def test_what_is_valid_runs(name, tmp_path):
    code, found = ran(
        GOOD[name], tmp_path, *([] if name in ("text", "function of an older opset") else ["--check"])
    )
    assert code == 0
    code, expected = ran(GOOD[name], tmp_path, "--host", "only")
    assert code == 0 and found.keys() == expected.keys()
    for key, array in expected.items():
        assert found[key].shape == array.shape and found[key].dtype == array.dtype
        if array.dtype.kind == "U":
            assert found[key].tolist() == array.tolist()
        else:
            np.testing.assert_allclose(found[key], array, atol=1e-5)


def lacking():
    proto = conv((1, 3, 8, 8))
    tensor = proto.graph.initializer[0]
    tensor.raw_data = tensor.raw_data[:40]
    return proto


def no_outputs():
    proto = model([node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"])
    del proto.graph.output[:]
    return proto


def given(nodes, **weights):
    return made(nodes, [value("x", (2, 3))], [value("y", (2, 3))], weights)


BAD = {
    "two nodes give one value": (
        given([helper.make_node("Relu", ["x"], ["y"], "a"), helper.make_node("Exp", ["x"], ["y"], "b")]),
        "m.onnx: node 'b' (Exp): error: it gives 'y', which is the result of node 'a' already",
    ),
    "a node gives a constant": (
        given([helper.make_node("Relu", ["x"], ["y"], "a")], y=np.ones((2, 3), np.float32)),
        "m.onnx: node 'a' (Relu): error: it gives 'y', which is a constant already",
    ),
    "a constant of too few bytes": (
        lacking(),
        "m.onnx: error: tensor 'w' does not hold the elements of its shape",
    ),
    "no outputs": (no_outputs(), "m.onnx: error: it has no outputs, or the file is not all there"),
    "kernel beyond the map": (
        conv((1, 3, 2, 2)),
        "m.onnx: node 'y' (Conv): error: onnxruntime: Invalid input shape",
    ),
    "channels": (
        conv((1, 5, 8, 8)),
        "m.onnx: node 'y' (Conv): error: onnxruntime: Input channels C is not equal",
    ),
    "nothing makes it": (
        given([node("Add", ["x", "q"], ["y"])]),
        "m.onnx: node 'y' (Add): error: it uses 'q', which",
    ),
}


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("mode", ["auto", "only", "never"])
@pytest.mark.parametrize("name", BAD)
def test_what_is_not_valid_is_named(name, mode, tmp_path, capsys):
    proto, message = BAD[name]
    code, _ = ran(proto, tmp_path, "--host", mode)
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and "error: " in line
    if mode != "never":
        assert message in line


def test_maps_of_exabytes_do_not_fit_and_nothing_is_planned(tmp_path, capsys):
    """Planning them took more than minutes; on the host they are more than this computer has."""
    huge = made([node("Relu", ["x"], ["y"])], [value("x", (1 << 40, 1 << 20))], [value("y", None)])
    assert ran(huge, tmp_path)[0] == 4
    line = capsys.readouterr().err
    assert (
        "inputs and outputs, the largest 1099511627776x1048576, does not fit: needed 2305843009213693952 B"
        in line
    )
    assert ran(huge, tmp_path, "--host", "only")[0] == 2
    assert "input 'x' is too large for this computer" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_of_0_in_the_file_can_be_bound(tmp_path):
    """Some exporters write 0 for a batch that is open."""
    proto = conv((0, 3, 8, 8))
    assert ran(proto, tmp_path, "--batch", "2")[1]["y"].shape == (2, 4, 6, 6)
    assert ran(proto, tmp_path, "--shape", "x=3x3x8x8")[1]["y"].shape == (3, 4, 6, 6)


def test_members_of_a_sequence_come_from_a_file_as_they_go_into_one(tmp_path):
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 3]))
    nodes = [node("ConcatFromSequence", ["s"], ["z"], axis=0), node("Relu", ["z"], ["y"])]
    proto = made(nodes, [helper.make_value_info("s", kind)], [value("y", None)])
    file = tmp_path / "in.npz"
    np.savez(file, **{"s/0": np.full((2, 3), 2, np.float32), "s/1": np.full((2, 3), -1, np.float32)})
    code, found = ran(proto, tmp_path, "--input", str(file), "--check")
    assert code == 0 and found["y"].tolist() == [[2] * 3] * 2 + [[0] * 3] * 2
    code, found = ran(proto, tmp_path, "--input", str(file), "--host", "only")
    assert code == 0 and found["y"].shape == (4, 3)


@pytest.mark.slow
def test_every_exchanged_type_passes_through(tmp_path):
    types = "BFLOAT16 FLOAT16 DOUBLE UINT8 INT8 INT16 UINT16 INT32 UINT32 UINT64 BOOL FLOAT8E4M3FN INT4 UINT4"
    for name in types.split():
        element = getattr(TensorProto, name)
        proto = made(
            [node("Identity", ["x"], ["a"]), node("Reshape", ["a", "s"], ["y"])], [value("x", (2, 3), element)],
            [value("y", (3, 2), element)], {"s": np.array([3, 2])}, opset=21,
        )  # fmt: skip
        proto.ir_version = 10
        onnx.checker.check_model(proto)
        code, found = ran(proto, tmp_path)
        assert code == 0 and found["y"].shape == (3, 2), name
