# Tests: test/runtime/model/test_calibration.py
"""Constants that a model has as integers: an f32 weight, and beside it the keys of what it was computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.graph import WeightOp
from frustum.dialects.module import INTEGERS
from frustum.passes.weights import Array, WeightStore

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


def fold_view(op: Operation, store: WeightStore) -> None:
    """A transpose or reshape of a dequantised constant becomes such a constant; one that splits scales stays."""
    if not isinstance(op, g.TransposeOp | g.ReshapeOp):
        return
    known = dequantised_of(op.x, store)
    found = None if known is None else _turned(op, known) if isinstance(op, g.TransposeOp) else _reshaped(op, known)
    if found is None:
        return
    assert isinstance(op.x.owner, g.WeightOp)
    new = g.WeightOp(store.add(f"{op.x.owner.key.data}~", lambda: found.values), g.tensor_of(op.result))
    note(new, store, found)
    new.location = op.x.owner.location
    Rewriter.insert_op(new, InsertPoint.before(op))
    op.result.replace_all_uses_with(new.result)
    Rewriter.erase_op(op)


def _turned(op: g.TransposeOp, known: Dequantised) -> Dequantised:
    return Dequantised(known.integers.transpose(op.perm), known.scales, known.zeros, op.perm.index(known.axis))


def _reshaped(op: g.ReshapeOp, known: Dequantised) -> Dequantised | None:
    """The axis of the scales is the one of as many elements with as many before it."""
    shape = g.shape_of(op.result)
    if known.scales.size == 1:
        return Dequantised(known.integers.reshape(shape), known.scales, known.zeros, 0)
    old, before, count = known.integers.shape, 1, 1
    for extent in old[: known.axis]:
        before *= extent
    for axis, extent in enumerate(shape):
        if count == before and extent == old[known.axis]:
            return Dequantised(known.integers.reshape(shape), known.scales, known.zeros, axis)
        count *= extent
    return None
