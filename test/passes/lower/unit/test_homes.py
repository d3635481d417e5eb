"""Maps that lie behind each other in one buffer, and their least cases."""

import numpy as np
import pytest
from mixed_models import model, node

import frustum


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("channels", [1, 2])
def test_integers_of_few_channels_beside_themselves(images, channels):
    """Where one channel of several images is a part, no axis says in which order its elements lie."""
    constants = {"s": np.float32(0.02), "z": np.int8(0), "v": np.int8(-3)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["a"]),
        node("DequantizeLinear", ["a", "s", "z"], ["b"]),
        node("Concat", ["b", "b"], ["c"], axis=1),
        node("QuantizeLinear", ["c", "s", "v"], ["d"]),
        node("DequantizeLinear", ["d", "s", "v"], ["y"]),
    ]
    shape = (images, channels, 1, 1)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    result = frustum.run(frustum.compile(model(nodes, {"x": shape}, ["y"], constants), "edge"), {"x": x}, checked=True)
    wanted = np.clip(np.rint(x / np.float32(0.02)), -125, 127) * np.float32(0.02)  # what both conversions leave
    assert np.abs(result.outputs["y"] - np.concatenate([wanted, wanted], 1)).max() < 1e-6
