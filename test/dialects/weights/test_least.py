"""The smallest stored form is below what the codec makes of any blocks, and close to the best of them."""

import numpy as np
import pytest

from frustum.dialects.weights.codec import compress_all
from frustum.dialects.weights.least import least_stored_bytes

RNG = np.random.default_rng(0)
SPARSE = np.where(RNG.random((64, 48, 3)) < 0.9, 0, RNG.standard_normal((64, 48, 3)))
TENSORS = {
    "f16": (RNG.standard_normal((96, 128)) * 0.05).astype(np.float16),
    "f32 of channels of other sizes": (RNG.standard_normal((64, 40)) * 2.0 ** np.arange(-32, 32)[:, None]).astype("f4"),
    "of input channels of other sizes": (RNG.standard_normal((40, 64)) * 2.0 ** np.arange(-32, 32)).astype("f4"),
    "int8": np.clip(np.round(RNG.standard_normal((80, 50)) * 20), -127, 127).astype(np.int8),
    "sparse": SPARSE.astype(np.float16),
    "zeros": np.zeros((40, 30), np.float16),
    "bias": RNG.standard_normal(100).astype(np.float32),
    "one number": np.array(3.0, np.float32),
}


def blocks_of(array, axis, count):
    """Bytes of the blocks of so many parts of an axis."""
    parts = np.array_split(array, min(count, array.shape[axis]), axis)
    raw = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
    return int(compress_all(np.concatenate(raw), np.cumsum([len(each) for each in raw]), array.itemsize, "auto")[1][-1])


@pytest.mark.parametrize("name", TENSORS)
def test_no_blocks_are_smaller(name):
    array = TENSORS[name]
    least, whole = least_stored_bytes(array), np.atleast_1d(array)
    found = [blocks_of(whole, axis, n) for axis in range(min(2, whole.ndim)) for n in (1, 2, 3, 5, 8, 16, 30, 64, 96)]
    assert 0 < least <= min(array.nbytes, *found)
    if name not in ("zeros", "sparse", "one number"):
        assert least >= 0.9 * min(array.nbytes, *found)


def test_of_nothing_nothing_is_stored():
    assert least_stored_bytes(np.zeros((0, 4), np.float32)) == 0
