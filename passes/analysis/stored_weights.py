"""What a model's file holds of a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from frustum.dialects import graph as g
from frustum.dialects.weights.scaled import packed_bytes
from frustum.passes.dequantised import is_packed, noted_at
from frustum.passes.weights import WeightStore


def stored_bytes(weight: g.WeightOp, store: WeightStore, needed: NDArray[Any] | None = None) -> int | None:
    """Bytes of the integers, scales and zero points that a constant is computed from, as the file has them; of those
    that the elements in the mask `needed` have, if there is one.  None for a constant that is stored as numbers."""
    found = noted_at(weight, store)
    if found is None or not is_packed(weight):
        return None
    if needed is None:
        return found.stored_bytes
    scales = len(np.unique(found.numbers[needed]))
    zeros = min(found.zeros.size, scales) if found.has_zeros else 0
    integers = packed_bytes(int(needed.sum()), found.bits)
    return integers + scales * found.scales.dtype.itemsize + packed_bytes(zeros, found.bits)
