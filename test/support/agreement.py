"""When two runs of one network in different tilings agree: f32 to 1e-5, 16-bit floats to 4 units in the last place,
both of the largest magnitude.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

F32_AGREEMENT = 1e-5
HALF_ULPS = 4
HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def allowed(dtype, magnitude):
    """How far two runs of one program may be apart, of outputs as large as `magnitude`."""
    if dtype == "f32":
        return F32_AGREEMENT * magnitude
    info = ml_dtypes.finfo(HALVES[dtype])
    return HALF_ULPS * float(info.eps) * 2.0 ** np.floor(np.log2(max(magnitude, float(info.tiny))))


def check_agreement(outputs, dtype):
    """`outputs`: of every stop, by name."""
    first, *others = outputs.values()
    assert all(other.keys() == first.keys() for other in others)
    for name in first:
        arrays = np.stack([output[name] for output in outputs.values()])
        assert np.isfinite(arrays).all(), name
        apart = float(np.ptp(arrays, axis=0).max(initial=0))
        assert apart <= allowed(dtype, float(np.abs(arrays).max(initial=0))), f"{name}: {apart} apart"
