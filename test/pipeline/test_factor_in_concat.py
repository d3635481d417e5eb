"""A map that a product takes as its second factor and a concatenation as a part is read where it was written.

Weights are read from a buffer of their own: such a map must not lie inside that of the concatenation.
"""

import numpy as np
import pytest
from mixed_models import model, node

import frustum
from frustum.runtime.host.agreement import agreement


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("policy", ["none", "optimal"])
@pytest.mark.parametrize("shaped", [False, True])
def test_a_factor_that_is_part_of_a_concatenation(axis, policy, shaped):
    product = node("MatMul", ["s", "v"], ["p"])
    nodes = [node("Relu", ["x"], ["v"]), product, node("Concat", ["p", "v"], ["y"], axis=axis)]
    if shaped:
        nodes[1:2] = [node("Reshape", ["v", "to"], ["w"]), node("MatMul", ["s", "w"], ["p"])]
    inputs = {"x": normal(1, 2, 3, 4), "s": normal(1, 2, 3, 3)}
    shapes = {name: array.shape for name, array in inputs.items()}
    proto = model(nodes, shapes, ["y"], {"to": np.array([2, 3, 4])} if shaped else {})
    found = frustum.run(frustum.compile(proto, "edge", policy=policy), inputs, checked=True).outputs
    assert agreement(proto, inputs, found, "f32")[1].good
