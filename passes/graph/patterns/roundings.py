# Tests: test/passes/graph/patterns/test_roundings.py
"""Roundings that change nothing, as exporters of quantised networks write them around integers kept in floats.

    floor(x), ceil(x), round(x)           ->  x                    x whole
    max(floor(x), 0) + min(ceil(x), 0)    ->  x                    x whole: a cast to an integer
    clip(the same, low, high)             ->  clip(floor(x), ...)  low >= 0

Whole are constants, what roundings make, and what additions, products, maxima and moves make of whole numbers: every
floating-point type rounds a whole number to a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.functions import Arithmetic, Function, Pooling
from frustum.passes.analysis.module import absorb
from frustum.passes.graph.patterns.moves import unchanged
from frustum.passes.graph.patterns.scales import Constants

ROUNDINGS = (Function.FLOOR, Function.CEIL, Function.ROUND)
KEPT_WHOLE = (Function.IDENTITY, Function.RELU, Function.NEG, Function.ABS, Function.SIGN)
OF_WHOLE = (Arithmetic.ADD, Arithmetic.SUB, Arithmetic.MUL, Arithmetic.MAX, Arithmetic.MIN)
MOVES = (g.ReshapeOp, g.TransposeOp, g.SliceOp, g.ConcatOp, g.StackOp, g.DepthToSpaceOp, g.SpaceToDepthOp)
DOWN = g.Act(Function.CLIP, -np.inf, 0.0)
"""What is negative of a number."""
IsWhole: TypeAlias = Callable[[SSAValue], bool]


def remove_roundings(module: ModuleOp, constants: Constants) -> None:
    """Rewrites a module in one walk, first layers first."""
    known: dict[SSAValue, bool] = {}

    def is_whole(value: SSAValue) -> bool:
        if value not in known:
            array = constants.array(value)
            known[value] = array is not None and bool((np.rint(array) == array).all())
        return known[value]

    for op in list(module.walk()):
        if not op.name.startswith("fgraph.") or len(op.results) != 1 or isinstance(op, g.WeightOp):
            continue
        simpler = _simpler(op, is_whole)
        if simpler is None:
            known[op.results[0]] = known.get(op.results[0], False) or makes_whole(op, is_whole)
            continue
        new, value = simpler
        absorb(op, [value])
        Rewriter.replace_op(op, new, [value])
        known[value] = True


def _simpler(op: Operation, is_whole: IsWhole) -> tuple[list[Operation], SSAValue] | None:
    """New operations, and the value that takes the place of an operation's result, which is whole."""
    if isinstance(op, g.UnaryOp) and op.scales is None:
        if op.kind in ROUNDINGS and is_whole(op.x):
            return [], op.x
        x = _truncated(_behind(op.x)) if _is_from_zero(op.act.data) else None
        if x is not None:
            floor = g.UnaryOp("floor", x)
            clip = g.UnaryOp(op.act, floor.result)
            floor.location = clip.location = op.location
            return [floor, clip], clip.result
    x = _truncated(op.results[0])
    return ([], x) if x is not None and is_whole(x) else None


def _behind(x: SSAValue) -> SSAValue:
    """The value that operations before only repeat."""
    while isinstance(x.owner, Operation) and (before := unchanged(x.owner)) is not None:
        x = before
    return x


def _is_from_zero(act: g.Act) -> bool:
    """Whether a function takes what is negative for its lower end, which is whole and no less than 0."""
    if act.kind is Function.RELU:
        return True
    return act.kind is Function.CLIP and act.alpha >= 0 and act.alpha.is_integer() and _is_end(act.beta)


def _is_end(number: float) -> bool:
    """Whether a bound of whole numbers leaves them whole."""
    return np.isinf(number) or float(number).is_integer()


def _truncated(value: SSAValue) -> SSAValue | None:
    """x, where a value is its part before the point."""
    both = value.owner
    if not isinstance(both, g.BinaryOp) or both.kind != Arithmetic.ADD or both.act is not None or both.scales:
        return None
    match both.a.owner, both.b.owner:
        case g.UnaryOp(kind=Function.RELU, x=floor), g.UnaryOp(act=clip, x=ceil) if clip.data == DOWN:
            x = _of(Function.FLOOR, floor)
            return x if x is _of(Function.CEIL, ceil) else None
    return None


def _of(kind: Function, value: SSAValue) -> SSAValue:
    """The operand of a rounding; the value itself where there is none, since its operand was whole."""
    owner = value.owner
    return owner.x if isinstance(owner, g.UnaryOp) and owner.kind is kind and owner.scales is None else value


def makes_whole(op: Operation, is_whole: IsWhole) -> bool:
    """Whether all elements of an operation's result are whole numbers, or infinite."""
    act: Any = getattr(op, "act", None)
    if getattr(op, "scales", None) is not None:
        return False
    if act is not None and not isinstance(op, g.UnaryOp) and not keeps_whole(act.data):
        return False
    match op:
        case g.UnaryOp():
            return op.kind in ROUNDINGS or (keeps_whole(op.act.data) and is_whole(op.x))
        case g.BinaryOp():
            return op.kind in OF_WHOLE and is_whole(op.a) and is_whole(op.b)
        case g.ProductOp():
            return op.multiplier is None and all(map(is_whole, op.operands))
        case g.PoolOp():
            return op.kind == Pooling.MAX and is_whole(op.x)
        case _ if isinstance(op, MOVES):
            return all(map(is_whole, op.operands))
    return False


def keeps_whole(act: g.Act) -> bool:
    """Whether a function makes whole numbers of whole ones."""
    return act.kind in KEPT_WHOLE or (act.kind is Function.CLIP and _is_end(act.alpha) and _is_end(act.beta))
