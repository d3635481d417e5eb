"""Constants that were integers, under another shape or another order of axes."""

from __future__ import annotations

from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.passes.dequantised import Dequantised, dequantised_of, note
from frustum.passes.weights import WeightStore

__all__ = ["fold_view"]


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
    op.detach()
    op.erase()


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
