# Tests: test/passes/graph/composites/test_find_attention.py
"""What stands between a product of queries and keys and the softmax of it: scales, a cap, masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.passes.graph.patterns.strided import constant_of
from frustum.passes.weights import WeightStore

MOST_LAYERS = 16
"""Between the product and the softmax."""
HIDES = -9999.0
"""What is added to a score that does not count is at most this: exponentials of it are 0 in f32."""


@dataclass(frozen=True)
class Scores:
    """cap(product * scale) + masks; each mask with the shape that the scores have where it is added."""

    product: g.MatmulOp
    scale: float = 1.0
    softcap: float = 0.0
    masks: tuple[tuple[SSAValue, Extents], ...] = ()


def scores_before(softmax: g.SoftmaxOp, store: WeightStore) -> Scores | None:
    """The scores whose softmax it is; None where they are no product, or have another reader."""
    return _scores(softmax.x, store, MOST_LAYERS)


def is_plain(op: Operation) -> bool:
    """Whether it is a product of floats and nothing else."""
    extras = ("bias", "w_zero", "multiplier", "residual", "zeros", "scales", "act")
    return isinstance(op, g.MatmulOp) and all(getattr(op, name) is None for name in extras)


def factor_of(op: Operation, store: WeightStore) -> tuple[SSAValue, float] | None:
    """Of a product with, or a quotient by, one constant number the operand and the factor."""
    if not isinstance(op, g.BinaryOp) or op.act is not None or op.scales is not None:
        return None
    for number, x in ((op.b, op.a), (op.a, op.b)):
        is_scalar = g.shape_of(number) in ((), (1,) * len(g.shape_of(number)))
        array = (
            constant_of(number, store)
            if is_scalar and len(g.shape_of(number)) <= len(g.shape_of(x))
            else None
        )
        if array is None:
            continue
        value = float(array.reshape(()))
        if op.kind == "mul":
            return x, value
        if op.kind == "div" and number is op.b and value != 0:
            return x, 1 / value
    return None


def _scores(value: SSAValue, store: WeightStore, left: int) -> Scores | None:
    op = value.owner
    if not isinstance(op, Operation) or not value.has_one_use() or not left:
        return None
    if isinstance(op, g.MatmulOp):
        return Scores(op) if is_plain(op) else None
    if isinstance(op, g.ReshapeOp):
        return _scores(op.x, store, left - 1)
    if isinstance(op, g.UnaryOp) and op.kind == g.Function.TANH and op.scales is None:
        found = _scores(op.x, store, left - 1)
        is_first = found is not None and not found.softcap and not found.masks
        return replace(found, softcap=1.0) if found is not None and is_first else None
    scaled = factor_of(op, store)
    if scaled is not None:
        return _times(_scores(scaled[0], store, left - 1), scaled[1])
    if isinstance(op, g.BinaryOp) and op.kind == "add" and op.act is None and op.scales is None:
        return _masked(op, store, left - 1)
    return None


def kept(x: SSAValue, other: SSAValue, store: WeightStore) -> SSAValue | None:
    """Of a choice between scores and numbers that hide them, `keep(scores, c) + other`, the scores: where they are not
    taken, adding the others to them hides them as well."""
    op = x.owner
    if not isinstance(op, g.BinaryOp) or op.kind != "keep" or op.act is not None or not x.has_one_use():
        return None
    if isinstance(other.owner, g.BinaryOp) and other.owner.kind == "drop" and other.owner.b is op.b:
        hidden = constant_of(other.owner.a, store)
        return op.a if hidden is not None and np.all(hidden <= HIDES) else None
    taken, numbers = constant_of(op.b, store), constant_of(other, store)
    if taken is None or numbers is None:
        return None
    taken, numbers = np.broadcast_arrays(taken != 0, numbers)
    return op.a if np.all(numbers[~taken] <= HIDES) and not np.any(numbers[taken]) else None


def _times(found: Scores | None, factor: float) -> Scores | None:
    """c tanh(s x) is the cap of c s x at c; what is masked cannot be scaled."""
    if found is None or found.masks or (factor <= 0 and found.softcap):
        return None
    return replace(found, scale=found.scale * factor, softcap=found.softcap * factor)


def _masked(op: g.BinaryOp, store: WeightStore, left: int) -> Scores | None:
    for x, mask in ((op.a, op.b), (op.b, op.a)):
        chosen = kept(x, mask, store)
        if chosen is not None:
            x = chosen
        found = _scores(x, store, left) if g.shape_of(x) == g.shape_of(op.result) else None
        if found is not None:
            return replace(found, masks=(*found.masks, (mask, g.shape_of(op.result))))
    return None
