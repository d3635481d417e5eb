# Tests: test/passes/test_dequantised.py
"""Constants that a model has as integers: a weight, and beside it the keys of what it was computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import WeightOp
from frustum.dialects.module import EXPANDED, INTEGERS
from frustum.dialects.weights.scaled import BITS, dequantised, packed_bytes
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of

KEYS = ("integers", "scales", "zeros")


@dataclass(frozen=True)
class Dequantised:
    """weight = (integers - zeros) * scales, rounded to the type of the scales.

    There is one scale and zero point; or one for each element of `axis`; or, with a `block`, one for each run of so
    many elements along it and each element of the other axes, in arrays of the rank of the weight.  Integers have
    `bits` bits in the file.
    """

    integers: Array
    scales: Array
    zeros: Array
    axis: int
    bits: int = 8
    block: int = 0

    @property
    def values(self) -> Array:
        return dequantised(self.integers.astype(np.int64) - self.spread(self.zeros), self.spread(self.scales))

    def spread(self, numbers: Array) -> Array:
        """Scales, zero points, or what else there is of each, in a shape that broadcasts to that of the weight."""
        if numbers.size == 1:
            return numbers.reshape((1,) * self.integers.ndim)
        if self.block:
            extent = self.integers.shape[self.axis]
            return np.repeat(numbers, self.block, self.axis).take(range(extent), self.axis)
        return numbers.reshape([-1 if axis == self.axis else 1 for axis in range(self.integers.ndim)])

    @property
    def numbers(self) -> Array:
        """The number of its scale and zero point, of each integer."""
        each = np.arange(self.scales.size, dtype=np.int32).reshape(self.scales.shape)
        return np.broadcast_to(self.spread(each), self.integers.shape)

    @property
    def is_by_channel(self) -> bool:
        """Whether layers of integers know such scales: one, or one for each channel, all positive."""
        return self.block == 0 and bool((np.isfinite(self.scales) & (self.scales > 0)).all())

    @property
    def stored_bytes(self) -> int:
        """Of the integers, scales and zero points as the file has them; a single zero point of 0 is none."""
        parts = (self.integers, self.zeros) if self.has_zeros else (self.integers,)
        return self.scales.nbytes + sum(packed_bytes(each.size, self.bits) for each in parts)

    @property
    def has_zeros(self) -> bool:
        return self.zeros.size > 1 or bool(self.zeros.any())

    def turned(self, order: Sequence[int]) -> Dequantised:
        """The same with other axes first."""
        scales, zeros = (self._in_rank(each, lambda a: a.transpose(order)) for each in (self.scales, self.zeros))
        axis = tuple(order).index(self.axis)
        return replace(self, integers=self.integers.transpose(order), scales=scales, zeros=zeros, axis=axis)

    def reshaped(self, shape: Sequence[int]) -> Dequantised | None:
        """The same elements in another shape; None where that splits what has scales of its own.

        The axis of the scales is the one of as many elements with as many before it.
        """
        integers = self.integers.reshape(shape)
        if self.scales.size == self.zeros.size == 1:
            return replace(self, integers=integers, axis=0)
        old, before = self.integers.shape, prod(self.integers.shape[: self.axis])
        axes = (d for d, n in enumerate(shape) if prod(shape[:d]) == before and n == old[self.axis])
        if (axis := next(axes, None)) is None:
            return None
        own = [ceil_div(n, self.block) if self.block and d == axis else n for d, n in enumerate(shape)]
        scales, zeros = (self._in_rank(each, lambda a: a.reshape(own)) for each in (self.scales, self.zeros))
        return replace(self, integers=integers, scales=scales, zeros=zeros, axis=axis)

    def taken(self, axis: int, positions: Sequence[int]) -> Dequantised:
        """Some positions along an axis, in the order given; a run of a scale that these cut becomes several."""
        chosen = np.asarray(positions, np.int64)
        found = replace(self, integers=self.integers.take(chosen, axis))
        if axis != self.axis:
            return found._of_scales(lambda a: a.take(chosen, axis)) if self.block else found
        if not self.block:
            return found._of_scales(lambda a: a.take(chosen))
        breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
        block = gcd(self.block, int(chosen[0]), *breaks.tolist(), *chosen[breaks].tolist())
        return replace(found, block=block)._of_scales(lambda a: a.take(chosen[::block] // self.block, axis))

    def _of_scales(self, change: Callable[[Array], Array]) -> Dequantised:
        scales, zeros = (each if each.size == 1 else change(each) for each in (self.scales, self.zeros))
        return replace(self, scales=scales, zeros=zeros)

    def _in_rank(self, numbers: Array, change: Callable[[Array], Array]) -> Array:
        """A change of axes, of numbers that have all of them."""
        return change(numbers) if self.block and numbers.size > 1 else numbers


def joined(parts: Sequence[Dequantised], axis: int) -> Dequantised | None:
    """Parts behind each other along an axis; None where their scales do not lie alike."""
    first = parts[0]
    if len(parts) == 1:
        return first
    kinds = {(each.bits, each.scales.dtype, each.axis, bool(each.block)) for each in parts}
    along = axis == first.axis
    if len(kinds) > 1 or not (along or first.block):
        return None
    if first.block and along:
        parts = [each.taken(axis, range(each.integers.shape[axis])) for each in parts]
        block = gcd(*(each.block for each in parts), *(each.integers.shape[axis] for each in parts[:-1]))
        parts = [_in_runs(each, block) for each in parts]
        first = parts[0]
    integers = np.concatenate([each.integers for each in parts], axis)
    lists = []
    for name in ("scales", "zeros"):
        whole = [_all_of(each, getattr(each, name)) for each in parts]
        lists.append(np.concatenate(whole, axis if first.block else 0))
    return replace(first, integers=integers, scales=lists[0], zeros=lists[1])


def _in_runs(found: Dequantised, block: int) -> Dequantised:
    """The same with shorter runs."""
    extent = ceil_div(found.integers.shape[found.axis], block)
    positions = np.arange(extent) * block // found.block
    return replace(found, block=block)._of_scales(lambda a: a.take(positions, found.axis))


def _all_of(found: Dequantised, numbers: Array) -> Array:
    """One number for each scale there may be."""
    shape = list(found.integers.shape)
    if not found.block:
        return np.broadcast_to(numbers.reshape(-1), shape[found.axis])
    shape[found.axis] = ceil_div(shape[found.axis], found.block)
    return np.broadcast_to(numbers.reshape((1,) * len(shape)) if numbers.size == 1 else numbers, shape)


# --- beside a weight ---------------------------------------------------------------------------------------


def note(op: Operation, store: WeightStore, stem: str, found: Dequantised) -> None:
    """Stores the parts, and names them at the weight."""
    arrays = (found.integers, found.scales, found.zeros)
    names = {name: StringAttr(store.add(f"{stem}:{name}", array)) for name, array in zip(KEYS, arrays, strict=True)}
    numbers = {name: IntegerAttr(getattr(found, name), i64) for name in ("axis", "bits", "block")}
    op.attributes[INTEGERS] = DictionaryAttr({**names, **numbers})


def noted_at(op: Operation, store: WeightStore) -> Dequantised | None:
    """What the values of a weight, or of a buffer of weights, were computed from; None where nobody says."""
    noted = op.attributes.get(INTEGERS)
    if not isinstance(noted, DictionaryAttr):
        return None
    arrays = [store[key.data] for name in KEYS if isinstance(key := noted.data[name], StringAttr)]
    axis, bits, block = (
        each.value.data for name in ("axis", "bits", "block") if isinstance(each := noted.data[name], IntegerAttr)
    )
    return Dequantised(arrays[0], arrays[1], arrays[2], axis, bits, block)


def is_packed(op: Operation | Block) -> bool:
    """Whether a weight, or a buffer of weights, is computed from integers of which a block has scales."""
    noted = op.attributes.get(INTEGERS) if isinstance(op, Operation) else None
    return isinstance(noted, DictionaryAttr) and isinstance(bits := noted.data["bits"], IntegerAttr) and (
        bits.value.data in BITS
    )


def mark_expanded(new: Operation | Block, olds: Sequence[Operation | Block], reason: str) -> None:
    """Note at a constant why it is no integers with scales any more, where any of these was, or was once."""
    assert isinstance(new, Operation)
    before = [old.attributes[EXPANDED] for old in olds if isinstance(old, Operation) and EXPANDED in old.attributes]
    if before or any(map(is_packed, olds)):
        new.attributes[EXPANDED] = before[0] if before else StringAttr(reason)


def dequantised_of(value: SSAValue | None, store: WeightStore) -> Dequantised | None:
    """What a constant of floating point was computed from; None for any other value."""
    if value is None or not isinstance(value.owner, WeightOp) or not is_float(g.tensor_of(value).element_type):
        return None
    return noted_at(value.owner, store)


def stored_bytes(weight: WeightOp, store: WeightStore, needed: Array | None = None) -> int | None:
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


def follow(
    new: WeightOp, olds: Sequence[WeightOp], store: WeightStore, change: Callable[..., Dequantised | None]
) -> None:
    """Note at a constant what it was computed from: a `change` of what each of these was, if all have that."""
    known = [noted_at(old, store) for old in olds]
    found = None if any(each is None for each in known) else change(*known)
    if found is None:
        mark_expanded(new, olds, "have scales that lie otherwise")
    else:
        note(new, store, new.key.data, found)


def fold_view(op: Operation, store: WeightStore) -> None:
    """A transpose or reshape of a dequantised constant becomes such a constant; one that splits scales stays."""
    if not isinstance(op, g.TransposeOp | g.ReshapeOp):
        return
    known = dequantised_of(op.x, store)
    if known is None:
        return
    found = known.turned(op.perm) if isinstance(op, g.TransposeOp) else known.reshaped(g.shape_of(op.result))
    if found is None:
        return
    assert isinstance(op.x.owner, g.WeightOp)
    kind = g.tensor_of(op.result)
    key = store.add(f"{op.x.owner.key.data}~", lambda: found.values.astype(numpy_of(kind.element_type)))
    new = g.WeightOp(key, kind)
    note(new, store, key, found)
    new.location = op.x.owner.location
    Rewriter.insert_op(new, InsertPoint.before(op))
    op.result.replace_all_uses_with(new.result)
    Rewriter.erase_op(op)
