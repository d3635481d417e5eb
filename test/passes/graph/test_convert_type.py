"""Changing the element type of a network: constants follow, under new keys, when they are asked for."""

import ml_dtypes
import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import test
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.graph import MatmulOp, NetworkOp, OutputOp, WeightOp, tensor_of, tensor_type
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.weights import store_of


def matmul():
    network = NetworkOp("net", [("x", tensor_type(f32, (2, 3)))], ["y"])
    weight, bias = WeightOp("w", tensor_type(f32, (3, 4))), WeightOp("b", tensor_type(f32, (4,)))
    op = MatmulOp(network.body.block.args[0], weight.result, bias.result)
    network.body.block.add_ops([weight, bias, op, OutputOp([op.result])])
    module = ModuleOp([network])
    store = store_of(module)
    store["w"] = np.linspace(-1e5, 1e5, 12, dtype=np.float32).reshape(3, 4)
    store["b"] = np.ones(4, np.float32)
    return module, op


@pytest.mark.parametrize(("to", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_constants_follow(to, dtype):
    module, op = matmul()
    ConvertType(to).apply(Context(), module)
    module.verify()
    weight = store_of(module)[op.b.owner.key.data]
    assert weight.dtype == dtype
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(weight, store_of(module)["w"].astype(dtype))
    assert store_of(module)[op.bias.owner.key.data].dtype == np.float32
    assert module.attributes["frustum.dtype"].data == to


def test_back_and_forth_keeps_the_types_consistent():
    module, op = matmul()
    for to in ("bf16", "f32", "f32"):
        ConvertType(to).apply(Context(), module)
        module.verify()
    assert tensor_of(op.b).element_type == f32
    assert store_of(module)[op.b.owner.key.data].dtype == np.float32


def test_a_network_with_other_operations_is_refused():
    module, op = matmul()
    op.parent.insert_op_before(test.TestOp([op.result]), op.parent.last_op)
    with pytest.raises(PassFailedException, match=r"network @net cannot be converted: it contains test\.op"):
        ConvertType("f16").apply(Context(), module)
