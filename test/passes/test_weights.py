"""The store beside the IR: reading, writing, finding."""

import io

import ml_dtypes
import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, FileLineColLoc, IntAttr, ModuleOp, StringAttr, f32
from xdsl.parser import Parser

from frustum.backend import targets
from frustum.dialects.graph import FGraph, WeightOp, tensor_type
from frustum.dialects.module import MODEL, TARGET, WEIGHTS
from frustum.dialects.target import to_attribute
from frustum.passes import weights
from frustum.passes.errors import ModelError

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float16),
    "b/16": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "splat": np.broadcast_to(np.float32(0.5), (4, 4)),
    "odd": np.array([True, False, True]),
    "after odd": np.arange(3, dtype=np.int32),
}


def test_arrays_come_back(tmp_path):
    weights.write_safetensors(tmp_path / "w.safetensors", ARRAYS)
    found = weights.read_safetensors(tmp_path / "w.safetensors")
    assert list(found) == list(ARRAYS)
    for key, array in ARRAYS.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)


def test_the_safetensors_package_reads_our_file(tmp_path):
    numpy_reader = pytest.importorskip("safetensors.numpy")
    plain = {key: array for key, array in ARRAYS.items() if key != "b/16"}
    weights.write_safetensors(tmp_path / "w.safetensors", plain)
    found = numpy_reader.load_file(tmp_path / "w.safetensors")
    for key, array in plain.items():
        np.testing.assert_array_equal(found[key], array)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{]"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"w\.safetensors: error: (not a safetensors file|cannot read)"):
        weights.read_safetensors(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    weights.write_safetensors(path, {"a": np.ones(100)})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ModelError, match="not all of it"):
        weights.read_safetensors(path)


def test_nothing_half_written_stays(tmp_path):
    with pytest.raises(KeyError):
        weights.write_safetensors(tmp_path / "w.safetensors", {"a": np.ones(3, np.complex64)})
    assert list(tmp_path.iterdir()) == []


def test_a_module_carries_its_store():
    module = ModuleOp([])
    store = weights.store_of(module)
    assert store.add("w", np.ones(2)) == "w"
    assert store.add("w", np.zeros(2)) == "w.1"
    assert weights.store_of(module) is store
    assert weights.store_of(module.clone()) is store
    assert weights.store_of(ModuleOp([])) is not store


def test_a_computed_entry_is_computed_once():
    calls = []
    store = weights.WeightStore()
    store.add("w", lambda: calls.append(1) or np.ones(3))
    assert len(calls) == 0
    assert store["w"] is store["w"]
    assert len(calls) == 1


def test_module_and_weights_are_written_together(tmp_path):
    module = ModuleOp([WeightOp("w", tensor_type(f32, (2, 3)))])
    weights.store_of(module)["w"] = ARRAYS["a"]
    weights.store_of(module)["unused"] = ARRAYS["a"]
    token = module.attributes[WEIGHTS]
    weights.write_module(module, tmp_path / "00-imported.mlir")
    assert module.attributes[WEIGHTS] == token
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(FGraph)
    text = tmp_path / "00-imported.mlir"
    again = Parser(context, text.read_text(), str(text)).parse_module()
    again.location = FileLineColLoc(StringAttr(str(text)), IntAttr(1), IntAttr(1))
    assert list(weights.store_of(again)) == ["w"]
    np.testing.assert_array_equal(weights.store_of(again)["w"], ARRAYS["a"])


def test_a_missing_store_is_named():
    module = ModuleOp([], {WEIGHTS: StringAttr("gone.safetensors")})
    with pytest.raises(ModelError, match=r"gone\.safetensors: error: cannot read the weights: No such file"):
        weights.store_of(module)
    with pytest.raises(ModelError, match="were in another process"):
        weights.store_of(ModuleOp([], {WEIGHTS: StringAttr("memory:x")}))


def test_a_module_is_printed_with_its_target_before_it_in_short_lines():
    module = ModuleOp([], {TARGET: to_attribute(targets.load("manycore")), MODEL: StringAttr("m.onnx")})
    out = io.StringIO()
    weights.ModulePrinter(out).print_module(module)
    text = out.getvalue()
    first, *others = text.splitlines()
    assert first == "#target = {" and f"builtin.module attributes {{{TARGET} = #target, " in text
    assert max(map(len, others)) <= 120 and len(others) > 20
    context = Context()
    context.load_dialect(Builtin)
    assert str(Parser(context, text).parse_module()) == str(module)


def test_a_module_without_a_target_is_printed_as_ever():
    out = io.StringIO()
    weights.ModulePrinter(out).print_module(ModuleOp([], {MODEL: StringAttr("m.onnx")}))
    assert out.getvalue() == 'builtin.module attributes {frustum.model = "m.onnx"} {\n}'
