# Tests: test/passes/graph/test_turn_weights.py
"""The weights of products of several rows, stored so that those of one input follow each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.passes.dequantised import follow
from frustum.passes.weights import WeightStore, store_of

TURNED = "^"
"""Marks the keys of weights that are stored the other way round."""


@dataclass(frozen=True)
class TurnWeights(ModulePass):
    """Write `x @ w.T` of several rows with constant weights as `x @ v`, where v is w transposed and stored so.

    Before: a network of typed layers.  After: no product of several rows has a transposed constant of its own.  A part
    of v that makes many outputs of few inputs is a few long runs, of w it is many short ones; and it is such parts for
    which little of the rows has to be loaded again (docs/techniques/frustum.md, "Fully connected layers, batched").
    """

    name = "frustum-graph-turn-weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store = store_of(op)
        for product in [o for o in op.walk() if isinstance(o, g.MatmulOp)]:
            if is_turned(product, store):
                turn(product, store)


def is_turned(op: g.MatmulOp, store: WeightStore) -> bool:
    """A product of several rows with constant weights, by outputs, that nothing else reads."""
    rows, weight = math.prod(g.shape_of(op.result)[:-1]), op.b.owner
    return (
        op.trans_b
        and rows > 1
        and len(g.shape_of(op.b)) == 2
        and isinstance(weight, g.WeightOp)
        and weight.key.data in store
        and op.b.has_one_use()
    )


def turn(op: g.MatmulOp, store: WeightStore) -> None:
    """Give a product its weights the other way round."""
    weight, kind = op.b.owner, g.tensor_of(op.b)
    assert isinstance(weight, g.WeightOp)
    key = weight.key.data
    new = g.WeightOp(
        store.add(key + TURNED, lambda: np.ascontiguousarray(store[key].T)),
        g.tensor_type(kind.element_type, g.shape_of(op.b)[::-1]),
    )
    follow(new, [weight], store, lambda known: known.turned((1, 0)))
    new.location = weight.location
    Rewriter.insert_op(new, InsertPoint.before(weight))
    op.operands[1], op.trans_b = new.result, False
    Rewriter.erase_op(weight)
