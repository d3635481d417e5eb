"""Gather by indices that are known only when running: rows are those of onnxruntime, on the device or named."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from frustum import onnx_backend
from frustum.passes.errors import Unsupported
from frustum.passes.graph.quantise import values_to_quantise
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.operators.lookups import MOST_TABLE_BYTES
from frustum.runtime.reference.graph import network_of

TABLE = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)
IDS = np.int64([[0, -1, 3], [6, -7, 2]])


def model_of(nodes, inputs, shape, constants, element=TensorProto.FLOAT):
    """Of one output `y`; `inputs` are arrays by name."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "case", infos, [helper.make_tensor_value_info("y", element, shape)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def gather(ids=IDS, table=TABLE, axis=0, **inputs):
    """A look-up in a constant table, or in an input of that name."""
    shape = (*table.shape[:axis], *ids.shape, *table.shape[axis + 1 :])
    element = helper.np_dtype_to_tensor_dtype(table.dtype)
    constants = {} if "table" in inputs else {"table": table}
    node = helper.make_node("Gather", ["table", "ids"], ["y"], axis=axis)
    return model_of([node], {"ids": ids, **inputs}, shape, constants, element), {"ids": ids, **inputs}


def check(model, inputs, **options):
    """The device alone, checked, gives what onnxruntime does."""
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    prepared = onnx_backend.prepare(model, **({"target": "edge", "host": "never", "checked": True} | options))
    (found,) = prepared.run(list(inputs.values()))
    narrow = {"f16": np.float16}.get(options.get("dtype"))
    np.testing.assert_array_equal(found, wanted if narrow is None else wanted.astype(narrow).astype(np.float32))
    return prepared


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_rows_of_a_table(dtype):
    check(*gather(), dtype=dtype)


@pytest.mark.slow
def test_of_other_axes_and_of_one_index():
    check(*gather(IDS.astype(np.int32) % 6, axis=1), target="default")
    check(*gather(np.asarray(-2)))


def test_an_index_under_another_shape():
    nodes = [
        helper.make_node("Unsqueeze", ["ids", "one"], ["more"]),
        helper.make_node("Gather", ["table", "more"], ["y"]),
    ]
    check(model_of(nodes, {"ids": IDS}, (2, 1, 3, 6), {"table": TABLE, "one": np.int64([1])}), {"ids": IDS})


def test_the_row_of_the_largest():
    """Of a map, where other rows are infinite."""
    x = TABLE.copy()
    x[1], x[2, 0] = np.inf, -np.inf
    score = np.float32([[0, 2, 9, 4, 9, 1, 0], [3, 2, 1, 0, 9, 9, 9]])
    nodes = [
        helper.make_node("ArgMax", ["score"], ["ids"], axis=1, keepdims=0),
        helper.make_node("Gather", ["x", "ids"], ["y"]),
    ]
    inputs = {"score": score, "x": x}
    check(model_of(nodes, inputs, (2, 6), {}), inputs)


@pytest.mark.slow
def test_a_table_of_positions_is_on_the_device():
    """Of as many rows as a language model has positions, which are read whole; one of words stays on the host."""
    table = np.random.default_rng(1).standard_normal((2048, 16)).astype(np.float32)
    check(*gather(np.int64([[2047, -2048, 77]]), table))
    check(*gather(np.int64([[1300]]), table.astype(np.float16)), dtype="model")
    most = MOST_TABLE_BYTES // 4
    words = rf"an index into {most + 1} rows of {4 * most + 4:,} bytes \(more than 256, and"
    with pytest.raises(Unsupported, match=words):
        import_onnx(gather(np.int64([0]), np.zeros((most + 1, 1), np.float32))[0])


def test_what_stays_on_the_host():
    """Rows that a product would spoil; more rows than the type has integers."""
    with pytest.raises(Unsupported, match="infinite or no numbers"):
        import_onnx(gather(table=np.full((7, 2), np.inf, np.float32))[0])
    with pytest.raises(Unsupported, match="it needs integers up to 2049, and f16 has all up to 2048"):
        import_onnx(gather(np.int64([0]), np.zeros((2049, 1), np.float16))[0])


def test_an_index_that_is_a_number_too():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["row"]),
        helper.make_node("Cast", ["ids"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["row", "number"], ["y"]),
    ]
    ids = np.int64([[1], [2]])
    check(model_of(nodes, {"ids": ids}, (2, 1, 6), {"table": TABLE}), {"ids": ids})


def test_a_map_is_read_by_few_indices():
    x = np.zeros((300, 2), np.float32)
    nodes = [
        helper.make_node("ArgMax", ["score"], ["ids"], axis=1, keepdims=0),
        helper.make_node("Gather", ["x", "ids"], ["y"]),
    ]
    model = model_of(nodes, {"score": np.zeros((2, 4), np.float32), "x": x}, (2, 2), {})
    with pytest.raises(Unsupported, match=r"an index into 300 rows \(more than 256, and than the 2 indices\) must be"):
        import_onnx(model)


def test_indices_are_no_integers_of_a_calibrated_network():
    """Steps of a calibration would make other rows of them; rows themselves are what a product reads."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["row"]), helper.make_node("MatMul", ["row", "w"], ["y"])]
    model = model_of(nodes, {"ids": IDS}, (2, 3, 6), {"table": TABLE, "w": np.eye(6, dtype=np.float32)})
    network = network_of(import_onnx(model))
    chosen = values_to_quantise(network)
    assert network.body.block.args[0] not in chosen
    assert {value.owner.name for value in chosen} == {"fgraph.binary", "fgraph.matmul"}
    assert [str(value.owner.kind) for value in chosen if value.owner.name == "fgraph.binary"] == ["equal"]
