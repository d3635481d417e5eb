"""ONNX Pad with borders of a tensor's own elements, of any rank, on random machines in checked mode, against
onnxruntime; between convolutions, behind an activation, or by itself."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from random_machine import machine_of_seed

import frustum
from frustum.dialects.functions import Border
from frustum.dialects.target.fit import DoesNotFit
from frustum.runtime.host.agreement import agreement

OPSET = 19
"""The first whose Pad wraps around."""
POLICIES = ("optimal", "optimal", "greedy", "none")


def network(random: Random, mode: Border) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A Pad of up to the extents that the mode allows; before and behind it what there is room for."""
    rank = random.choice([3, 4, 4, 5, 5])
    shape = (random.choice([1, 1, 2]), random.randint(1, 5), *(random.randint(2, 9) for _ in range(rank - 2)))
    rng = np.random.default_rng(random.randrange(1 << 30))
    nodes, arrays, value = [], {}, "x"

    def conv(source: str, name: str, kernel: int) -> str:
        spatial = rank - 2
        arrays[f"{name}.w"] = (rng.standard_normal((shape[1], shape[1]) + (kernel,) * spatial) / 3).astype(np.float32)
        nodes.append(helper.make_node("Conv", [source, f"{name}.w"], [name], name))
        return name

    before = random.choice(["", "relu", "conv"])
    if before == "relu":
        nodes.append(helper.make_node("Relu", [value], ["r"], "r"))
        value = "r"
    elif before == "conv":
        value = conv(value, "a", 1)
    most = {Border.REFLECT: -1, Border.WRAP: 0, Border.EDGE: 2}[mode]
    ends = [[0] * rank, [0] * rank]
    for axis in range(2 if random.random() < 0.8 else 0, rank):
        for end in ends:
            end[axis] = random.choice([0, 1, random.randint(0, max(0, shape[axis] + most))])
            end[axis] = min(end[axis], max(0, shape[axis] + most))
    arrays["p"] = np.array(ends, np.int64).reshape(-1)
    nodes.append(helper.make_node("Pad", [value, "p"], ["b"], "pad", mode=str(mode)))
    padded = [size + low + high for size, low, high in zip(shape, *ends, strict=True)]
    behind = padded[1] == shape[1] and min(padded[2:]) >= 2 and random.random() < 0.7
    value = conv("b", "c", 2) if behind else "b"
    graph = helper.make_graph(
        nodes, "pads", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return model, {"x": rng.standard_normal(shape).astype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", Border)
@pytest.mark.parametrize("seed", range(8))
def test_random_pads_give_what_onnxruntime_gives(seed, mode):
    random = Random(f"{mode} {seed}")
    model, inputs = network(random, mode)
    try:
        compiled = frustum.compile(
            model, machine_of_seed(seed), policy=POLICIES[seed % len(POLICIES)], dtype="f32", host="never"
        )
    except DoesNotFit:
        pytest.skip("the machine that was drawn is too small")
    found = frustum.run(compiled, inputs, checked=True).outputs
    _, checked = agreement(model, inputs, found, "f32")
    assert checked.good, f"{checked.worst} is {checked.max_rel_error} off"
