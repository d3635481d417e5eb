"""Chains of multiplications and additions of constants, as one multiplication and one addition.

    (x * a) * b  ->  x * (a * b)        (x + a) + b  ->  x + (a + b)        (x * a + t) * b  ->  x * (a * b) + t * b

A batch normalisation with a scale behind it (DenseNet: before an activation, so that no convolution takes it) is
four such layers, and becomes two. Single numbers stay apart: they may be a model's integers, between whose steps it
rounds.
"""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects.graph import ActAttr, Arithmetic, BinaryOp, shape_of
from frustum.passes.graph.constants import Constants
from frustum.passes.graph.patterns.fold_scale import has_one_use, scale_and_shift
from frustum.passes.weights import Array

SMALLEST, LARGEST = 2.0**-14, 2.0**15
"""Factors in which every 16-bit type keeps all its digits."""
Step = tuple[SSAValue, Array | None, Array | None]


class MergeScales(RewritePattern):
    """A scale or shift goes into the one before it; a scale moves before a shift where it finds another there."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        outer = self._step(op)
        if outer is None or not isinstance(op, BinaryOp):
            return
        before = outer[0].owner
        inner = self._before(outer[0])
        if inner is None or not isinstance(before, BinaryOp):
            return
        (_, scale, shift), (x, inner_scale, inner_shift) = outer, inner
        if scale is not None and inner_scale is not None:
            self._merge(op, before, x, Arithmetic.MUL, scale * inner_scale, rewriter)
        elif shift is not None and inner_shift is not None:
            self._merge(op, before, x, Arithmetic.ADD, shift + inner_shift, rewriter)
        elif scale is not None and inner_shift is not None:
            further = self._before(x)
            if further is not None and further[1] is not None and is_kept(further[1] * scale, op):
                self._swap(op, before, x, scale, inner_shift * scale, rewriter)

    def _step(self, op: Operation) -> Step | None:
        """What an operation does, if that is a scale or shift by no more than its result's shape."""
        if not isinstance(op, BinaryOp):
            return None
        found = scale_and_shift(op, self.constants)
        return found if found is not None and shape_of(found[0]) == shape_of(op.result) else None

    def _before(self, x: SSAValue) -> Step | None:
        """What makes a value, if it is a scale or shift for one reader, without activation."""
        op = x.owner
        if not isinstance(op, BinaryOp) or op.act is not None or not has_one_use(x):
            return None
        return self._step(op)

    def _merge(
        self,
        op: BinaryOp,
        before: BinaryOp,
        x: SSAValue,
        kind: Arithmetic,
        constant: Array,
        rewriter: PatternRewriter,
    ) -> None:
        sizes = [math.prod(shape_of(self._constant(o))) for o in (op, before)]
        if max(sizes) == 1 or constant.size > max(sizes) or not is_kept(constant, op, is_scale=kind is Arithmetic.MUL):
            return
        rewriter.replace(op, self._made(op, x, kind, constant, op.act, rewriter))
        rewriter.erase(before)

    def _swap(
        self,
        op: BinaryOp,
        before: BinaryOp,
        x: SSAValue,
        scale: Array,
        shift: Array,
        rewriter: PatternRewriter,
    ) -> None:
        sizes = [math.prod(shape_of(self._constant(o))) for o in (op, before)]
        if max(sizes) == 1 or shift.size > max(sizes) or not is_kept(shift, op, is_scale=False):
            return
        scaled = self._made(op, x, Arithmetic.MUL, scale, None, rewriter)
        rewriter.insert(scaled)
        rewriter.replace(op, self._made(op, scaled.result, Arithmetic.ADD, shift, op.act, rewriter))
        rewriter.erase(before)

    def _constant(self, op: BinaryOp) -> SSAValue:
        return op.b if self.constants.array(op.b) is not None else op.a

    def _made(
        self,
        op: BinaryOp,
        x: SSAValue,
        kind: Arithmetic,
        constant: Array,
        act: ActAttr | None,
        rewriter: PatternRewriter,
    ) -> BinaryOp:
        value = self.constants.like(self._constant(op), constant, rewriter, op)
        new = BinaryOp(kind, x, value, act=act)
        new.location = op.location
        return new


def is_kept(constant: Array, op: BinaryOp, is_scale: bool = True) -> bool:
    """Whether a constant loses nothing but its last digits in the types that the network may be converted to, and has
    no more dimensions than the map."""
    if constant.ndim > len(shape_of(op.result)):
        return False
    size = np.abs(constant)
    return bool((size <= LARGEST).all()) and not (is_scale and bool(((size < SMALLEST) & (size > 0)).any()))
