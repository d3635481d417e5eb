"""`frustum run` and `compile` of models that the host has a part in."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from mixed_models import model, node, sandwich
from onnx import TensorProto, helper
from versions import OPSET_28

from frustum.runtime.host.oracle import compare
from frustum.runtime.tools.cli import main


def frustum(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.onnx"
    onnx.save(sandwich(), path)
    return path


@pytest.mark.parametrize(("mode", "on_host"), [("auto", 1), ("only", 5)])
def test_the_report_counts_layers_on_the_host(mode: str, on_host: int, mixed: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert frustum("run", mixed, "--host", mode, "--check", "--report", report, "--mode", "functional") == 0
    data = json.loads(report.read_text())
    assert data["host"]["mode"] == mode
    assert sum(layer["where"] == "host" for layer in data["layers"]) == on_host


def test_never_names_what_the_device_lacks(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frustum("run", mixed, "--host", "never") == 2
    error = "mixed.onnx: node 'h' (Hardmax): error: this operator is not supported\n"
    assert capsys.readouterr().err == error


@pytest.mark.slow
def test_integers_are_calibrated_through_the_host(tmp_path: Path) -> None:
    """The second piece sees what the host makes of the first one's results."""
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3), np.float32) / 16
    nodes = [
        node("Conv", ["x", "w"], ["c1"], pads=[1, 1, 1, 1]),
        node("Asinh", ["c1"], ["sinh"]),
        node("Conv", ["sinh", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    path = tmp_path / "sinh.onnx"
    onnx.save(model(nodes, {"x": (1, 16, 48, 48)}, ["y"], {"w": weights}), path)
    assert frustum("run", path, "--dtype", "int8", "--check", "--mode", "functional") == 0


@pytest.mark.slow
@OPSET_28
def test_a_model_newer_than_onnxruntime_is_checked_where_nothing_changed(tmp_path: Path) -> None:
    proto = sandwich()
    proto.ir_version, proto.opset_import[0].version = 14, 28
    onnx.save(proto, tmp_path / "new.onnx")
    assert frustum("run", tmp_path / "new.onnx", "--check", "--mode", "functional") == 0


@pytest.fixture
def various(tmp_path: Path) -> Path:
    """Outputs: a sequence, text, an array whose shape depends on numbers."""
    nodes = [
        node("SplitToSequence", ["x"], ["parts"], axis=0),
        node("NonZero", ["x"], ["places"]),
        node("StringConcat", ["t", "t"], ["twice"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
        helper.make_tensor_value_info("t", TensorProto.STRING, (2,)),
    ]
    path = tmp_path / "various.onnx"
    onnx.save(model(nodes, inputs, ["parts", "places", "twice"], opset=20), path)
    np.savez(tmp_path / "in.npz", x=np.float32([[1, 0, 2], [0, 0, 3]]), t=np.array(["a", "b"]))
    return path


def test_sequences_and_text_are_written_without_pickles(various: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert frustum("run", various, "--input", tmp_path / "in.npz", "--output", out, "--check") == 0
    with np.load(out, allow_pickle=False) as found:
        assert sorted(found.files) == ["parts/0", "parts/1", "places", "twice"]
        np.testing.assert_array_equal(found["parts/1"], [[0, 0, 3]])
        np.testing.assert_array_equal(found["places"], [[0, 0, 1], [0, 2, 2]])
        assert found["twice"].tolist() == ["aa", "bb"]


def test_text_cannot_be_made_up(various: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frustum("run", various) == 2
    assert capsys.readouterr().err == (
        "frustum: error: input 't' cannot be made up, it holds no numbers: give it with --input\n"
    )


def test_other_shapes_text_or_lengths_do_not_agree() -> None:
    two, three = np.zeros(2, np.float32), np.zeros(3, np.float32)
    assert not compare({"y": two}, {"y": three}, "f32").good
    assert not compare({"y/0": two}, {"y/0": two, "y/1": two}, "host").good
    assert not compare({"y": np.array(["a"])}, {"y": np.array(["b"])}, "host").good
    assert compare({"y": np.array(["a"])}, {"y": np.array(["a"], object)}, "host").good
