"""Random networks of the families that people run, with default options, in checked mode, against onnxruntime; and
what the report says of them.

`test/soak/soak_families.py` draws 3,000.
"""

import collections
import copy

import onnx
import pytest
from family_runs import FAMILIES, check_cases, problems_of, random_case

import frustum

CHUNKS, EACH = 4, 5


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_of_each_family(family):
    check_cases(family, range(1))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, chunk):
    check_cases(family, range(10 + chunk * EACH, 10 + (chunk + 1) * EACH))


@pytest.mark.slow
def test_a_wrong_output_is_found():
    case = random_case("mlp", 0)
    (name,) = case.expected
    case.expected[name] = case.expected[name] * 1.001
    assert any(f"output '{name}'" in each for each in problems_of(case, "edge"))


@pytest.mark.slow
def test_a_false_figure_is_found():
    from true_figures import false_figures

    case = random_case("mlp", 0)
    report = frustum.run(frustum.compile(case.model, "edge"), case.inputs).report.data
    assert false_figures(report) == []
    for part, key in (("dram", "bound_bytes"), ("dram", "ratio"), ("dram", "other_bytes"), ("cycles", "bound")):
        changed = copy.deepcopy(report)
        changed[part][key] = 2 * changed[part][key] + changed["cycles"]["total"]
        assert false_figures(changed) != [], key


@pytest.mark.slow
def test_the_families_hold_what_they_say():
    cases = [random_case(family, seed) for family in FAMILIES for seed in range(40)]
    operators = collections.defaultdict(set)
    for case in cases:
        onnx.checker.check_model(case.model)
        operators[case.family] |= {node.op_type for node in case.model.graph.node}
    assert operators["attention"] >= {"Softmax", "Attention", "Concat", "Where", "Expand", "Split", "Cast"}
    assert operators["norms"] >= {"LayerNormalization", "GroupNormalization", "RMSNormalization", "ReduceMean"}
    assert operators["unet"] >= {"Resize", "ConvTranspose", "DepthToSpace", "MaxPool", "Concat"}
    assert operators["recurrent"] >= {"LSTM", "GRU", "RNN"}
    assert operators["microsoft"] >= {"MatMulNBits", "GroupQueryAttention", "QuickGelu", "FusedMatMul"}
    assert operators["qdq"] >= {"QuantizeLinear", "DequantizeLinear", "Conv", "MatMul"}
