"""Operators that ONNX defines by a function of others mean, in every opset, what they meant in that opset.

An operator's versions differ: axes are attributes or operands, scales are one for each group or for each channel.
Here is each such operator at every opset from 7 on at which its definition changes, and at the opset before.
"""

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from versions import OPSET_28

from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of
from frustum.runtime.host.host_model import NEWEST_OPSET
from frustum.runtime.reference.graph import ReferenceExecutor

FIRST, NEWEST = 7, onnx.defs.onnx_opset_version()
TOLERANCE = 2e-5


def r(*shape, low=None, seed=0):
    values = np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32) * 2
    return values if low is None else np.abs(values) + np.float32(low)


def i64(*values):
    return np.asarray(values, np.int64)


def one(**attributes):
    """x of [2, 6, 3, 4] alone."""
    return lambda opset: ([r(2, 6, 3, 4)], [], attributes)


def reduction(opset):
    """Axes as an attribute, as an operand since opset 18."""
    x = [r(2, 5, 4, low=0.1)]
    return (x, [i64(1)], {"keepdims": 0}) if opset >= 18 else (x, [], {"axes": [1], "keepdims": 0})


def clipped(opset):
    return (
        ([r(3, 4)], [np.float32(-0.5), np.float32(1)], {})
        if opset >= 11
        else ([r(3, 4)], [], {"min": -0.5, "max": 1.0})
    )


def group_normalization(opset):
    """One scale for each group, for each channel since opset 21."""
    each = (2,) if opset < 21 else (6,)
    return [r(2, 6, 3, 4)], [r(*each, seed=1), r(*each, seed=2)], {"num_groups": 2}


OPERATORS = {
    "Attention": lambda opset: ([r(2, 3, 4, 8), r(2, 3, 6, 8, seed=1), r(2, 3, 6, 8, seed=2)], [], {}),
    "CastLike": lambda opset: ([r(3, 4)], [np.zeros(1, np.float32)], {}),
    "CausalConvWithState": lambda opset: ([r(2, 3, 6)], [r(3, 1, 4)], {}),
    "Celu": one(alpha=0.7),
    "CenterCropPad": lambda opset: ([r(5, 4, 3)], [i64(3, 6)], {"axes": [0, 2]}),
    "Clip": clipped,
    "DepthToSpace": lambda opset: (
        [r(1, 8, 2, 3)],
        [],
        {"blocksize": 2, **({"mode": "CRD"} if opset >= 11 else {})},
    ),
    "Elu": one(alpha=0.7),
    "Gelu": one(approximate="tanh"),
    "GroupNormalization": group_normalization,
    "HardSigmoid": one(alpha=0.3, beta=0.4),
    "HardSwish": one(),
    "LayerNormalization": lambda opset: ([r(2, 5, 4)], [r(5, 4), r(5, 4, seed=1)], {"axis": 1}),
    "LeakyRelu": one(alpha=0.2),
    "LogSoftmax": one(axis=1),
    "MeanVarianceNormalization": one(axes=[0, 2, 3]),
    "Mish": one(),
    "PRelu": lambda opset: ([r(2, 6, 3, 4)], [r(6, 1, 1)], {}),
    "RMSNormalization": lambda opset: ([r(2, 5, 4)], [r(4)], {}),
    "ReduceL1": reduction,
    "ReduceL2": reduction,
    "ReduceLogSum": reduction,
    "ReduceLogSumExp": reduction,
    "ReduceSumSquare": reduction,
    "Relu": one(),
    "RotaryEmbedding": lambda opset: ([r(2, 3, 4, 8)], [r(2, 4, 4), r(2, 4, 4, seed=1)], {}),
    "Selu": one(alpha=1.5, gamma=1.1),
    "Softmax": one(axis=1),
    "Softplus": one(),
    "Softsign": one(),
    "SpaceToDepth": lambda opset: ([r(1, 3, 4, 6)], [], {"blocksize": 2}),
    "SwiGLU": lambda opset: ([r(2, 5, 8), r(2, 5, 8, seed=1)], [], {}),
    "Swish": one(alpha=1.2),
}
"""Operands of the network, constants, attributes, by opset."""
NOT_OF_THE_DEVICE = {
    "Bernoulli": "random",
    "BlackmanWindow": "a constant",
    "HammingWindow": "a constant",
    "HannWindow": "a constant",
    "AffineGrid": "needs If",
    "LinearAttention": "needs Scan",
    "NegativeLogLikelihoodLoss": "needs GatherElements",
    "SoftmaxCrossEntropyLoss": "needs GatherElements",
    "Shrink": "needs a comparison",
    "ThresholdedRelu": "needs a comparison",
    "Range": "its result has no floats, or is constant",
    "DynamicQuantizeLinear": "its scale depends on the numbers",
    "GreaterOrEqual": "gives booleans",
    "LessOrEqual": "gives booleans",
    "SequenceMap": "takes sequences",
}
"""Operators of the host, and why."""


@cache
def versions(operator):
    """The opsets from 7 on at which the operator changes."""
    every = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == "" and s.name == operator]
    since = sorted({s.since_version for s in every})
    return sorted(
        {max(FIRST, version) for version in since if not any(FIRST >= later > version for later in since)}
    )


def opsets(operator):
    """At each change, before the next, and the newest."""
    found = versions(operator)
    return sorted({*found, *(version - 1 for version in found[1:]), NEWEST})


def functions():
    """Every operator that ONNX defines by others in some version."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return {s.name for s in schemas if not s.domain and (s.has_function or s.has_context_dependent_function)}


@OPSET_28
def test_no_function_is_forgotten():
    assert functions() == OPERATORS.keys() | NOT_OF_THE_DEVICE.keys()


def model_of(operator, opset):
    xs, constants, attributes = OPERATORS[operator](opset)
    names = [f"x{index}" for index in range(len(xs))], [f"c{index}" for index in range(len(constants))]
    graph = helper.make_graph(
        [helper.make_node(operator, [*names[0], *names[1]], ["y"], "node", **attributes)],
        "function",
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape)
            for n, x in zip(names[0], xs, strict=True)
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(c), n) for n, c in zip(names[1], constants, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), dict(
        zip(names[0], xs, strict=True)
    )


def expected_of(model, inputs, opset):
    """What onnxruntime says, or else the evaluator of the package `onnx`."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if opset <= NEWEST_OPSET:
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, ["CPUExecutionProvider"]
            )
            return session.run(None, inputs)[0]
        except Exception:  # it lacks this operator or version of it
            pass
    return np.asarray(ReferenceEvaluator(model).run(None, inputs)[0])


@pytest.mark.slow(but=29)
@pytest.mark.parametrize(
    ("operator", "opset"), [(name, opset) for name in OPERATORS for opset in opsets(name)]
)
def test_a_function_means_what_it_meant_in_its_opset(operator, opset):
    if not onnx.defs.has(operator):
        pytest.skip(f"onnx {onnx.__version__} has no {operator}")
    model, inputs = model_of(operator, opset)
    expected = expected_of(model, inputs, opset)
    module = import_onnx(model)
    (found,) = ReferenceExecutor(store_of(module)).run_graph(module, inputs).values()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * max(np.abs(expected).max(), 1e-6)
