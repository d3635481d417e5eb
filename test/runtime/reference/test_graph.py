"""The reference executor on networks built by hand; each operation's arithmetic is tested in test_kernels.py."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from xdsl.builder import Builder, InsertPoint
from xdsl.dialects.builtin import ModuleOp, NameLoc, StringAttr, UnknownLoc, bf16, f16, f32

from frustum.dialects import graph
from frustum.dialects.graph import ActAttr, tensor_type
from frustum.runtime.reference.graph import ArraysDoNotFit, ReferenceExecutor

NUMPY = {f32: np.dtype(np.float32), f16: np.dtype(np.float16), bf16: np.dtype(ml_dtypes.bfloat16)}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def network(build, inputs, weights=(), element=f32):
    """A module whose `build(block arguments, weights)` gives its outputs, and its executor."""
    types = [tensor_type(element, array.shape) for array in inputs]
    network = graph.NetworkOp("n", [(f"x{i}", type) for i, type in enumerate(types)], [])
    builder = Builder(InsertPoint.at_end(network.body.block))
    constants = [
        builder.insert(graph.WeightOp(f"w{i}", tensor_type(element, w.shape))).result
        for i, w in enumerate(weights)
    ]
    outputs = build(builder, *network.body.block.args, *constants)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    network.properties["output_names"] = type(network.output_names)(
        StringAttr(f"y{i}") for i in range(len(outputs))
    )
    builder.insert(graph.OutputOp(outputs))
    module = ModuleOp([network])
    module.verify()
    store = {f"w{i}": w.astype(NUMPY[element]) for i, w in enumerate(weights)}
    return module, ReferenceExecutor(store)


def run(build, *inputs, weights=(), element=f32):
    module, executor = network(build, inputs, weights, element)
    return executor.run_graph(module, {f"x{i}": array for i, array in enumerate(inputs)})["y0"]


def layer(make):
    """A network of one operation."""
    return lambda builder, *values: builder.insert(make(*values)).results[0]


X = normal(2, 4, 6, 6)
CASES = {
    "conv": (
        lambda x, w, b: graph.ConvOp(
            x, w, b, strides=(2, 2), pads=(1, 1, 1, 1), groups=2, act=ActAttr.of("relu")
        ),
        [normal(6, 2, 3, 3, seed=1), normal(6, seed=2)],
    ),
    "matmul": (
        lambda x, w, b: graph.MatmulOp(x, w, b, trans_b=True, act=ActAttr.of("clip", 0, 1)),
        [normal(5, 6, seed=1), normal(5, seed=2)],
    ),
    "max_pool": (lambda x: graph.PoolOp("max", x, kernel=(3, 3), strides=(2, 2), ceil_pads=(1, 1)), []),
    "avg_pool": (
        lambda x: graph.PoolOp("avg", x, kernel=(3, 3), pads=(1, 1, 1, 1), count_include_pad=True),
        [],
    ),
    "reduce": (lambda x: graph.ReduceOp("max", x, (1, 3), keepdims=False), []),
    "softmax": (lambda x: graph.SoftmaxOp(x, 1), []),
    "lrn": (lambda x: graph.LrnOp(x, 3, 0.1, 0.75, 1.0), []),
    "resize": (lambda x: graph.ResizeOp("linear", x, (12, 9), scale=(0.5, 2 / 3), offset=(-0.25, 0)), []),
    "unary": (lambda x: graph.UnaryOp(ActAttr.of("leaky_relu", 0.1), x), []),
    "binary": (lambda x, w: graph.BinaryOp("prelu", x, w, act=ActAttr.of("abs")), [normal(4, 1, 1, seed=1)]),
    "concat": (lambda x: graph.ConcatOp([x, x], 1), []),
    "slice": (lambda x: graph.SliceOp(x, (0, 3, 5, 1), (2, 4, 3, 2), (1, -1, -2, 3)), []),
    "pad": (lambda x: graph.PadOp(x, (0, 1, -1, 2), (0, 0, 2, -3), 7.0), []),
    "reshape": (lambda x: graph.ReshapeOp(x, (8, 36)), []),
    "transpose": (lambda x: graph.TransposeOp(x, (0, 2, 3, 1)), []),
}


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def expected_of(case):
    """Independent formulas for the cases whose operation has attributes to pass on wrongly."""
    x = X.astype(np.float64)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    if case == "slice":
        return x[:, ::-1, ::-2, 1::3]
    if case == "pad":
        return np.pad(x[:, :, 1:, :3], ((0, 0), (1, 0), (0, 2), (2, 0)), constant_values=7)
    if case == "avg_pool":
        return sum(wide[..., i : i + 6, j : j + 6] for i in range(3) for j in range(3)) / 9
    if case == "max_pool":
        low = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=-np.inf)
        return np.stack([low[..., i : i + 5 : 2, j : j + 5 : 2] for i in range(3) for j in range(3)]).max(0)
    if case == "matmul":
        return np.clip(x @ CASES[case][1][0].T + CASES[case][1][1], 0, 1)
    if case == "conv":
        w, b = CASES[case][1]
        halves = [
            sum(
                np.einsum("nchw,mc->nmhw", wide[:, 2 * g : 2 * g + 2, i : i + 5 : 2, j : j + 5 : 2],
                          w[3 * g : 3 * g + 3, :, i, j])
                for i in range(3) for j in range(3)
            )
            for g in (0, 1)
        ]  # fmt: skip
        return np.maximum(np.concatenate(halves, 1) + b[:, None, None], 0)
    if case == "binary":
        slope = CASES[case][1][0]
        return np.abs(np.where(x < 0, x * slope, x))
    return {
        "reduce": lambda: x.max((1, 3)),
        "softmax": lambda: softmax(x),
        "unary": lambda: np.where(x < 0, 0.1 * x, x),
        "concat": lambda: np.concatenate([x, x], 1),
        "reshape": lambda: x.reshape(8, 36),
        "transpose": lambda: x.transpose(0, 2, 3, 1),
    }[case]()


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("lrn", "resize")])
def test_operation(case):
    make, weights = CASES[case]
    expected = expected_of(case)
    found = run(layer(make), X, weights=weights)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_lrn_takes_its_neighbours_along_channels():
    x = X.astype(np.float64)
    near = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = near[:, :-2] + near[:, 1:-1] + near[:, 2:]
    np.testing.assert_allclose(run(layer(CASES["lrn"][0]), X), x / (1 + 0.1 / 3 * total) ** 0.75, rtol=1e-5)


def test_resize_takes_rows_first():
    found = run(layer(CASES["resize"][0]), X)
    assert found.shape == (2, 4, 12, 9)
    columns = [0, 2 / 3, 4 / 3]
    np.testing.assert_allclose(
        found[0, 0, 0, :3], [np.interp(c, range(6), X[0, 0, 0]) for c in columns], rtol=1e-5
    )


def test_interleave():
    parts = [
        normal(1, 2, 3, 4, seed=0),
        normal(1, 2, 3, 3, seed=1),
        normal(1, 2, 2, 4, seed=2),
        normal(1, 2, 2, 3, seed=3),
    ]
    found = run(layer(lambda *xs: graph.InterleaveOp(xs, (2, 2))), *parts)
    assert found.shape == (1, 2, 5, 7)
    for a, b in np.ndindex(2, 2):
        np.testing.assert_array_equal(found[..., a::2, b::2], parts[2 * a + b])


@pytest.mark.parametrize("element", [f16, bf16])
@pytest.mark.parametrize("case", CASES)
def test_16_bit_results_are_the_wide_ones_rounded(case, element):
    make, weights = CASES[case]
    narrow = NUMPY[element]
    x, weights = X.astype(narrow), [w.astype(narrow) for w in weights]
    found = run(layer(make), x, weights=weights, element=element)
    wide = run(layer(make), x.astype(np.float32), weights=[w.astype(np.float32) for w in weights])
    np.testing.assert_array_equal(found, wide.astype(narrow))


def test_every_graph_operation_has_its_arithmetic():
    from frustum.runtime.reference.layers import OPERATIONS

    rest = {graph.NetworkOp, graph.OutputOp, graph.WeightOp, graph.CallOp, graph.RecurrenceOp, graph.StepYieldOp}
    assert set(OPERATIONS) == set(graph.FGraph.operations) - rest


def test_intermediates_are_freed_after_their_last_use():
    import weakref

    def chain(builder, x):
        for _ in range(4):
            x = builder.insert(graph.BinaryOp("add", x, x)).result
        return x

    module, executor = network(chain, [X])
    seen = []

    def watch(op, array):
        alive = sum(reference() is not None for reference in seen)
        assert alive <= 1, "more than the operand is alive"
        seen.append(weakref.ref(array))

    executor.run_graph(module, {"x0": X}, watch)
    assert len(seen) == 4


def test_layers_are_named_by_their_onnx_node():
    def two(builder, x):
        relu = graph.UnaryOp("relu", x)
        relu.location = NameLoc(StringAttr("Relu_0"), UnknownLoc())
        return builder.insert(graph.UnaryOp("neg", builder.insert(relu).result)).result

    module, executor = network(two, [X])
    layers = executor.layers(module, {"x0": X})
    assert list(layers) == ["Relu_0", "fgraph.unary"]
    np.testing.assert_array_equal(layers["fgraph.unary"], -np.maximum(X, 0))


def test_an_input_may_be_an_output_and_an_output_may_come_twice():
    module, executor = network(lambda builder, x: [x, x], [X])
    found = executor.run_graph(module, {"x0": X})
    np.testing.assert_array_equal(found["y0"], found["y1"])


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({}, r"input 'x0' is missing \(inputs: x0\)"),
        ({"x0": X, "z": X}, "unknown input 'z'"),
        ({"x0": X[:1]}, r"input 'x0' has shape \(1, 4, 6, 6\), expected \(2, 4, 6, 6\)"),
        ({"x0": X.astype(np.int64)}, "input 'x0' has int64 elements, expected f32"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    module, executor = network(lambda builder, x: x, [X])
    with pytest.raises(ArraysDoNotFit, match=message):
        executor.run_graph(module, inputs)
