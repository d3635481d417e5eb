"""Random ONNX files on shipped and random machines, in checked mode, against onnxruntime without optimisation.

`test/soak/soak_onnx.py` draws a thousand and more.
"""

import collections

import onnx
import pytest
from onnx_differences import difference_of
from random_onnx import NEWEST, OLDEST, random_onnx

SEEDS = range(40)


@pytest.mark.slow
@pytest.mark.soak(but=16)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_files_give_what_onnxruntime_gives(seed):
    assert difference_of(seed) == ""


@pytest.mark.slow
def test_the_generator_draws_what_it_says():
    drawn = [random_onnx(seed) for seed in range(300)]
    operators = collections.Counter(operator for each in drawn for operator in set(each.operators))
    assert len(operators) > 90
    assert {each.model.opset_import[0].version for each in drawn} == set(range(OLDEST, NEWEST + 1))
    inputs = [array for each in drawn for array in each.inputs.values()]
    assert {array.ndim for array in inputs} == {1, 2, 3, 4, 5}
    assert any(0 in array.shape for array in inputs)
    assert any(len(each.model.graph.output) > 1 for each in drawn)
    types = {value.type.tensor_type.elem_type for each in drawn for value in each.model.graph.output}
    assert types >= {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64, onnx.TensorProto.BOOL}
    for each in drawn:
        onnx.checker.check_model(each.model)
