"""Constants that a model has as integers: an f32 weight, and beside it the keys of what it was computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import SSAValue

from frustum.dialects.graph import WeightOp
from frustum.dialects.module import INTEGERS
from frustum.passes.weights import Array, WeightStore

__all__ = ["Dequantised", "dequantised_of", "note"]

KEYS = ("integers", "scales", "zeros")


@dataclass(frozen=True)
class Dequantised:
    """weight = (integers - zeros) * scales, with one scale and zero point, or one for each element of `axis`."""

    integers: Array
    scales: Array
    zeros: Array
    axis: int

    @property
    def values(self) -> Array:
        shape = [1] * self.integers.ndim
        if self.scales.size > 1:
            shape[self.axis] = -1
        zeros = self.zeros if self.zeros.size == 1 else self.zeros.reshape(shape)
        shifted = (self.integers.astype(np.int64) - zeros).astype(np.float32)
        return shifted * self.scales.astype(np.float32).reshape(shape if self.integers.ndim else ())


def note(op: WeightOp, store: WeightStore, found: Dequantised) -> None:
    """Stores the parts, and names them at the weight."""
    stem = op.key.data
    arrays = (found.integers, found.scales, found.zeros)
    names = {name: StringAttr(store.add(f"{stem}:{name}", array)) for name, array in zip(KEYS, arrays, strict=True)}
    op.attributes[INTEGERS] = DictionaryAttr({**names, "axis": IntegerAttr(found.axis, i64)})


def dequantised_of(value: SSAValue | None, store: WeightStore) -> Dequantised | None:
    """What a constant was computed from; None for any other value."""
    if value is None or not isinstance(value.owner, WeightOp):
        return None
    noted = value.owner.attributes.get(INTEGERS)
    if not isinstance(noted, DictionaryAttr):
        return None
    arrays = []
    for name in KEYS:
        key = noted.data[name]
        assert isinstance(key, StringAttr)
        arrays.append(store[key.data])
    axis = noted.data["axis"]
    assert isinstance(axis, IntegerAttr)
    return Dequantised(arrays[0], arrays[1], arrays[2], axis.value.data)
