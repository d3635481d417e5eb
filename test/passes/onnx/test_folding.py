"""Constants are computed as onnxruntime computes them: random graphs of random operators on random shapes."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.weights import store_of

OPSET = 21
NODES = 12
GRAPHS = 60


class Graph:
    """A random graph of constants, grown one node at a time; `shapes` are those of its float tensors."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.tensors, self.shapes = [], [], {}
        for name in ("a", "b"):
            shape = tuple(self.rng.integers(1, 5, size=self.rng.integers(1, 4)))
            self.shapes[name] = shape
            self.constant(name, self.rng.standard_normal(shape).astype(np.float32))

    def constant(self, name, array):
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, op, inputs, shape, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        self.shapes[name] = tuple(shape)
        return name

    def integers(self, *values):
        return self.constant(f"i{len(self.tensors)}", np.asarray(values, np.int64))

    def pick(self):
        return str(self.rng.choice(list(self.shapes)))


def unary(graph, x, shape):
    op = str(
        graph.rng.choice(["Relu", "Neg", "Abs", "Sigmoid", "Floor", "Tanh", "Identity", "Exp", "Erf", "Sign"])
    )
    graph.node(op, [x], shape)


def binary(graph, x, shape):
    axes = graph.rng.integers(0, len(shape) + 1)
    other = graph.constant(
        f"c{len(graph.tensors)}", graph.rng.standard_normal(shape[axes:]).astype(np.float32) + 4
    )
    graph.node(str(graph.rng.choice(["Add", "Sub", "Mul", "Div", "Max", "Min"])), [x, other], shape)


def transpose(graph, x, shape):
    perm = graph.rng.permutation(len(shape)).tolist()
    graph.node("Transpose", [x], [shape[axis] for axis in perm], perm=perm)


def flat(graph, x, shape):
    graph.node("Reshape", [x, graph.integers(-1)], [int(np.prod(shape))])


def unsqueeze(graph, x, shape):
    if len(shape) < 4:
        axis = int(graph.rng.integers(0, len(shape) + 1))
        graph.node("Unsqueeze", [x, graph.integers(axis)], [*shape[:axis], 1, *shape[axis:]])


def squeeze(graph, x, shape):
    axes = [axis for axis, extent in enumerate(shape) if extent == 1]
    if axes and len(shape) > 1:
        graph.node("Squeeze", [x, graph.integers(axes[-1])], [*shape[: axes[-1]], *shape[axes[-1] + 1 :]])


def take(graph, x, shape):
    axis = int(graph.rng.integers(0, len(shape)))
    indices = graph.rng.integers(-shape[axis], shape[axis], size=3)
    graph.node("Gather", [x, graph.integers(*indices)], [*shape[:axis], 3, *shape[axis + 1 :]], axis=axis)


def cut(graph, x, shape):
    axis = int(graph.rng.integers(0, len(shape)))
    start, step = int(graph.rng.integers(-shape[axis], shape[axis])), int(graph.rng.choice([1, 2, -1, -2]))
    stop = 2**31 - 1 if step > 0 else -(2**31)
    size = len(range(shape[axis])[slice(start, None, step)])
    bounds = [graph.integers(value) for value in (start, stop, axis, step)]
    graph.node("Slice", [x, *bounds], [*shape[:axis], size, *shape[axis + 1 :]])


def concat(graph, x, shape):
    axis = int(graph.rng.integers(0, len(shape)))
    graph.node("Concat", [x, x], [*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]], axis=axis)


def expand(graph, x, shape):
    if len(shape) < 4:
        graph.node("Expand", [x, graph.integers(2, *shape)], [2, *shape])


def reduce(graph, x, shape):
    axis = int(graph.rng.integers(0, len(shape)))
    kept = [1 if place == axis else extent for place, extent in enumerate(shape)]
    graph.node(
        str(graph.rng.choice(["ReduceMean", "ReduceMax", "ReduceSum"])), [x, graph.integers(axis)], kept
    )


def shape_chain(graph, x, shape):
    """What exporters write for x.view(x.size(0), -1)."""
    names = [f"s{len(graph.nodes)}_{place}" for place in range(4)]
    steps = [("Shape", [x], {}), ("Gather", [names[0], graph.integers(0)], {}),
             ("Cast", [names[1]], {"to": TensorProto.INT64}),
             ("Concat", [names[2], graph.integers(-1)], {"axis": 0})]  # fmt: skip
    for name, (op, inputs, attributes) in zip(names, steps, strict=True):
        graph.nodes.append(helper.make_node(op, inputs, [name], **attributes))
    graph.node("Reshape", [x, names[-1]], [shape[0], int(np.prod(shape[1:]))])


def where(graph, x, shape):
    zero = graph.constant(f"c{len(graph.tensors)}", np.float32(0))
    graph.nodes.append(helper.make_node("Less", [x, zero], [f"w{len(graph.nodes)}"]))
    graph.node("Where", [f"w{len(graph.nodes) - 1}", x, zero], shape)


STEPS = (
    unary,
    binary,
    transpose,
    flat,
    unsqueeze,
    squeeze,
    take,
    cut,
    concat,
    expand,
    reduce,
    shape_chain,
    where,
)


@pytest.mark.slow(but=18)
@pytest.mark.parametrize("seed", range(GRAPHS))
def test_a_random_graph_of_constants(seed):
    graph = Graph(seed)
    while len(graph.nodes) < NODES:
        x = graph.pick()
        if np.prod(graph.shapes[x]) < 2000:
            STEPS[graph.rng.integers(len(STEPS))](graph, x, graph.shapes[x])
    outputs = [name for name in graph.shapes if name.startswith("t")]
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "constants",
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            graph.tensors,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {})
    module = import_onnx(proto)
    terminator = next(iter(module.body.block.ops)).terminator
    for name, value, wanted in zip(outputs, terminator.values, expected, strict=True):
        found = store_of(module)[value.owner.key.data]
        assert found.shape == wanted.shape == graph.shapes[name]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
