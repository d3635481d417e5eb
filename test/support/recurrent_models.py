"""ONNX models of one RNN, GRU or LSTM, with random weights."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OPSET = 14


def model_of(op, *, steps=3, batch=2, width=3, hidden=4, seed=0, given=(), lengths=None, **attributes):
    """A model of one node and its input; `given`: which of bias, states and peepholes it has."""
    rng = np.random.default_rng(seed)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    layout = attributes.get("layout", 0)
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    gates = GATES[op]
    shapes = {"W": (directions, gates * hidden, width), "R": (directions, gates * hidden, hidden)}
    shapes |= {"B": (directions, 2 * gates * hidden), "h": state, "c": state, "P": (directions, 3 * hidden)}
    names = ["W", "R", *(name if name in given else "" for name in ("B", "lengths", "h", "c", "P"))]
    constants = {name: rng.standard_normal(shapes[name]).astype(np.float32) for name in names if name in shapes}
    if lengths is not None:
        names[3] = "lengths"
        constants["lengths"] = np.int32(lengths)
    while not names[-1]:
        names.pop()
    outputs = ["y", "last", "cell"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, ["x", *names], outputs, hidden_size=hidden, **attributes)
    x = rng.standard_normal((batch, steps, width) if layout else (steps, batch, width)).astype(np.float32)
    ends = [(batch, steps, directions, hidden) if layout else (steps, directions, batch, hidden), state, state]
    values = zip(("x", *outputs), (x.shape, *ends), strict=False)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values]
    graph = helper.make_graph(
        [node],
        "case",
        infos[:1],
        infos[1:],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8), x
