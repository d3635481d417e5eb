"""Inputs that nobody gave: seeded, and in the range of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frustum.runtime.kernels import Array, narrow

SMALL_INTEGERS = 8
"""Random integers are below this."""


def random_array(seed: int, index: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Input number `index`: floats evenly in [0, 1), as images are, integers in [0, `SMALL_INTEGERS`).

    With unit normal floats some trained networks amplify the rounding of f32 beyond any tolerance.
    """
    rng = np.random.default_rng([seed, index])
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else SMALL_INTEGERS, shape).astype(dtype)
    return narrow(rng.random(shape, np.float32), dtype)
