# Tests: test/passes/lower/tree/test_lowered_integers.py
"""What instructions on integers say: scales and zero points, from the operation that a layer is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frustum.dialects import graph as g
from frustum.dialects.isa.program import INTEGER_BITS, Scale, Scales, View


def scales_of(op: object) -> Scales | None:
    """Of an operation's operands and its result; None where it has none."""
    match op:
        case g.QuantizeOp():
            return Scale(), own(op.to)
        case g.DequantizeOp():
            return own(op.from_), Scale()
        case _:
            found = getattr(op, "scales", None)
            return None if found is None else tuple(map(own, found))


def own(scale: g.ScaleAttr) -> Scale:
    """A scale as instructions have it."""
    return Scale(scale.scale, scale.zero)


def scaled(op: object, *views: View, chooses: bool = False) -> Scales | None:
    """Of an instruction on these views, the result last; None where all are floats.  Integers of which nothing says
    what they stand for are taken as they are; an instruction that only `chooses` elements needs no scales for that."""
    if not has_integers(each.element for each in views):
        return None
    found = scales_of(op)
    return found if found is not None or chooses else (Scale(),) * len(views)


def has_integers(elements: Any) -> bool:
    """Whether any of these types is one of integers."""
    return any(element in INTEGER_BITS for element in elements)


def wide_scales(scales: Scales | None, *, is_read: bool) -> Scales | None:
    """Of an instruction that reads (or else writes) floats in place of the result."""
    if scales is None:
        return None
    return (Scale(), scales[-1]) if is_read else (*scales[:-1], Scale())


def product_numbers(op: object, residual: View | None) -> dict[str, Any]:
    """Zero points of a product of integers; with a residual scales, too."""
    zeros: Sequence[int] | None = getattr(op, "zeros", None)
    if zeros is None:
        return {}
    return {
        "in_zero": int(zeros[0]), "out_zero": int(zeros[1]), "scales": None if residual is None else scales_of(op)
    }  # fmt: skip


__all__ = ["has_integers", "product_numbers", "scaled", "scales_of", "wide_scales"]
