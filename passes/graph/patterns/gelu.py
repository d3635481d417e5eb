"""GELU that a network has as plain layers.

    0.5 x (1 + erf(x / sqrt(2)))                              ->  gelu(x)
    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x x x)))       ->  gelu_tanh(x)

Source: Hendrycks and Gimpel, Gaussian error linear units, 2016.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects import graph as g
from frustum.dialects.module import keep_range
from frustum.passes.analysis.module import absorb_between
from frustum.passes.graph.patterns.strided import constant_of
from frustum.passes.weights import WeightStore

CLOSE = 2e-3
"""Of constants, which networks have in f16 too, relatively."""


@dataclass(frozen=True)
class FindGelu(RewritePattern):
    """The last product of a GELU is all of it, if nobody else reads what stands between."""

    store: WeightStore

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.BinaryOp) or plain(op.result, "mul") is None:
            return
        factor, values = product_of(op.result, self.store)
        if not math.isclose(factor, 0.5, rel_tol=CLOSE) or len(values) != 2:
            return
        for x, gate in (values, values[::-1]):
            kind = self.kind_of(gate, x)
            if kind is not None and x.type == op.result.type:
                whole = g.UnaryOp(g.ActAttr.of(kind), x)
                whole.location = op.location
                absorb_between(op, [x], whole.results)
                keep_range(op, whole)
                rewriter.replace(op, whole)
                return

    def kind_of(self, gate: SSAValue, x: SSAValue) -> str | None:
        """Which GELU a factor beside half of a value makes of it; None where it makes none."""
        curve = sum_of(gate, 1.0, self.store)
        if curve is None or not isinstance(curve.owner, g.UnaryOp) or not curve.has_one_use():
            return None
        function = curve.owner
        if function.scales is not None or not function.x.has_one_use():
            return None
        factor, values = product_of(function.x, self.store)
        if function.kind == g.Function.ERF:
            return "gelu" if values == [x] and math.isclose(factor, math.sqrt(0.5), rel_tol=CLOSE) else None
        if function.kind != g.Function.TANH or not math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=CLOSE):
            return None
        return "gelu_tanh" if self.is_cubic(values, x) else None

    def is_cubic(self, values: list[SSAValue], x: SSAValue) -> bool:
        """Whether the product of values is x + 0.044715 x x x, or the same with x before brackets."""
        if len(values) == 2 and x in values:
            inner = sum_of(values[1 - values.index(x)], 1.0, self.store)
            return inner is not None and self.is_power(inner, x, 2)
        total = plain(values[0], "add") if len(values) == 1 and values[0].has_one_use() else None
        pairs = () if total is None else ((total.a, total.b), (total.b, total.a))
        return any(own is x and self.is_power(other, x, 3) for own, other in pairs)

    def is_power(self, value: SSAValue, x: SSAValue, power: int) -> bool:
        """Whether a value is 0.044715 times a power of x."""
        factor, values = product_of(value, self.store)
        found = Counter[bool]()
        for each in values:
            base, exponent = power_of(each, self.store)
            found[base is x] += exponent
        return found == {True: power} and math.isclose(factor, 0.044715, rel_tol=CLOSE)


def plain(value: SSAValue, kind: str) -> g.BinaryOp | None:
    """The layer that makes a value, if it computes this of two operands, and nothing behind it."""
    op = value.owner
    is_plain = isinstance(op, g.BinaryOp) and op.kind == kind and op.act is None and op.scales is None
    return op if isinstance(op, g.BinaryOp) and is_plain else None


def number_of(value: SSAValue, store: WeightStore) -> float | None:
    """The number that a constant is, if it is one."""
    array = constant_of(value, store) if math.prod(g.shape_of(value)) == 1 else None
    return None if array is None else float(array.reshape(()))


def product_of(value: SSAValue, store: WeightStore) -> tuple[float, list[SSAValue]]:
    """A value as a number times others, through products and quotients that nobody else reads; the value itself others
    may."""
    factor, values, waiting = 1.0, list[SSAValue](), [value]
    while waiting:
        each = waiting.pop()
        is_inside = each is value or each.has_one_use()
        product, quotient = (plain(each, kind) if is_inside else None for kind in ("mul", "div"))
        divisor = None if quotient is None else number_of(quotient.b, store)
        if quotient is not None and divisor:
            factor /= divisor
            waiting.append(quotient.a)
        elif product is not None:
            for operand in (product.a, product.b):
                number = number_of(operand, store)
                factor *= 1.0 if number is None else number
                waiting += [operand] if number is None else []
        else:
            values.append(each)
    return factor, values


def sum_of(value: SSAValue, number: float, store: WeightStore) -> SSAValue | None:
    """What a number is added to for a value that one layer alone reads; None where it is another."""
    op = plain(value, "add") if value.has_one_use() else None
    for own, other in () if op is None else ((op.a, op.b), (op.b, op.a)):
        found = number_of(other, store)
        if found is not None and math.isclose(found, number, rel_tol=CLOSE):
            return own
    return None


def power_of(value: SSAValue, store: WeightStore) -> tuple[SSAValue, int]:
    """The base and the exponent of a square or cube that nobody else reads; else the value itself, once."""
    op = plain(value, "pow") if value.has_one_use() else None
    exponent = None if op is None else number_of(op.b, store)
    return (op.a, int(exponent)) if op is not None and exponent in {2.0, 3.0} else (value, 1)
