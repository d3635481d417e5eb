"""Constants of a network as arrays, and arrays as constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import NameLoc, f32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint

from frustum.dialects.graph import WeightOp, tensor_of, tensor_type
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of

DERIVED = "~"  # marks the keys of constants that a pass has made


@dataclass(frozen=True)
class Constants:
    """The constants of a module, which live in its store."""

    store: WeightStore

    def array(self, value: SSAValue | None) -> Array | None:
        """A floating-point constant, as it is stored; None for any other value, and for one not in the store."""
        if value is None or not isinstance(value.owner, WeightOp):
            return None
        key = value.owner.key.data
        if not is_float(tensor_of(value).element_type) or key not in self.store:
            return None
        return self.store[key]

    def like(self, value: SSAValue, array: Array, rewriter: PatternRewriter, user: Operation) -> SSAValue:
        """A constant made from the constant `value`, in its element type."""
        source = value.owner
        assert isinstance(source, WeightOp)
        stem = source.key.data.partition(DERIVED)[0]
        return self._insert(stem, array, tensor_of(value).element_type, rewriter, user)

    def bias(self, array: Array, rewriter: PatternRewriter, layer: Operation) -> SSAValue:
        """A bias for `layer`: f32 whatever the layer's type, as the machine keeps it."""
        return self._insert(f"{name_of(layer)}/bias", array, f32, rewriter, layer)

    def _insert(
        self, stem: str, array: Array, element: Attribute, rewriter: PatternRewriter, user: Operation
    ) -> SSAValue:
        stored = np.ascontiguousarray(array, dtype=numpy_of(element))
        op = WeightOp(self.store.add(stem + DERIVED, stored), tensor_type(element, array.shape))
        op.location = user.location
        rewriter.insert(op, InsertPoint.before(user))
        return op.result


def name_of(op: Operation) -> str:
    """The name of the node an operation came from, or the operation's own."""
    location = op.location
    return location.desc.data if isinstance(location, NameLoc) else op.name
