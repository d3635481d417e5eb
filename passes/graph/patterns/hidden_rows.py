# Tests: test/passes/graph/composites/test_find_attention.py
"""Rows of scores that hide every key: their softmax is no number, where an attention gives 0.

    softmax(scores + mask) v  ->  attention(scores, mask, v) + (m - m),  m = max(mask) over the keys

m - m is 0 for a number, and no number for minus infinity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.module import MODEL_DTYPES
from frustum.passes.graph.patterns.strided import constant_of
from frustum.passes.weights import Array, WeightStore

CHOICES = (g.Arithmetic.KEEP, g.Arithmetic.DROP, g.Arithmetic.MASK)
SUMS = (g.Arithmetic.ADD, g.Arithmetic.SUB, g.Arithmetic.MAX, g.Arithmetic.MIN)
MOST_LAYERS = 16


def may_hide(mask: SSAValue | Array, store: WeightStore, left: int = MOST_LAYERS) -> bool:
    """Whether a mask may be minus infinity: a constant, a choice between constants, or an input, that may be.  What
    arithmetic makes of inputs is taken to be finite."""
    array = mask if not isinstance(mask, SSAValue) else constant_of(mask, store)
    if array is not None:
        return bool(np.isneginf(array).any())
    assert isinstance(mask, SSAValue)
    if isinstance(mask, BlockArgument):
        return is_of_floats(mask)
    op = mask.owner
    if not left or not isinstance(op, Operation):
        return False
    if isinstance(op, g.BinaryOp):
        if op.kind in CHOICES:
            return may_hide(op.a, store, left - 1)
        return op.kind in SUMS and any(may_hide(x, store, left - 1) for x in (op.a, op.b))
    is_move = isinstance(op, g.ReshapeOp | g.TransposeOp | g.SliceOp | g.ConcatOp | g.PickOp)
    return is_move and any(may_hide(x, store, left - 1) for x in op.operands)


def is_of_floats(argument: BlockArgument) -> bool:
    """Whether an input of the network is of floating point in the model too."""
    network = argument.owner.parent_op()
    noted = network.attributes.get(MODEL_DTYPES) if network is not None else None
    if not isinstance(noted, ArrayAttr):
        return True
    own = noted.data[argument.index]
    return not isinstance(own, StringAttr) or "float" in own.data


def hides_rows(masks: Sequence[tuple[SSAValue | Array, Extents]], extents: Extents, store: WeightStore) -> bool:
    """Whether masks together may hide all keys of a row; of constants alone, whether they do."""
    total = np.zeros((1, 1, 1, 1), np.float32)
    for own, _ in masks:
        if isinstance(own, SSAValue):
            if may_hide(own, store):
                return True
        else:
            total = total + own
    return bool(np.isneginf(np.broadcast_to(total, extents).max(axis=-1)).any())
