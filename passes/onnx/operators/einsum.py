# Tests: test/passes/onnx/test_import_einsum.py
"""Einsum as transpositions, reshapes, sums and matrix products, two operands at a time.

An axis is a label; those of an ellipsis are numbers, counted from the last.  Of two operands, labels that both have
and that somebody needs afterwards are the batches of a product, those that nobody needs are summed by it; labels of
one operand alone are its rows or columns.  Without anything to sum it is a product of elements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.graph import MatmulOp, ReduceOp, is_integer, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Node, Result
from frustum.passes.onnx.operators.moves import turned

Label: TypeAlias = "str | int"
TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


@dataclass(frozen=True)
class Term:
    """A value and the label of each of its axes."""

    value: SSAValue
    labels: tuple[Label, ...]

    @property
    def extents(self) -> dict[Label, int]:
        return dict(zip(self.labels, shape_of(self.value), strict=True))


def einsum(node: Node) -> Result:
    equation = re.sub(r"\s", "", str(node.get("equation", "")))
    inputs, arrow, output = equation.partition("->")
    texts = inputs.split(",")
    if len(texts) != len(node) or not all(TERM.fullmatch(text) for text in (*texts, output)):
        raise Refused(f"the equation '{equation}' is not one of {len(node)} operands")
    terms = []
    for value, text in zip(node.values(), texts, strict=True):
        if is_integer(value):
            raise Refused("sums of products of integers are not supported")
        terms.append(Term(value, _labels(text, len(shape_of(value)))))
    wanted = _output(output, terms) if arrow else _implied(terms)
    terms = [_without_doubles(node, term) for term in terms]
    result = terms[0]
    for place, other in enumerate(terms[1:], 2):
        needed = {*wanted, *(label for term in terms[place:] for label in term.labels)}
        result = _product(node, result, other, needed)
    result = _summed(node, result, set(wanted))
    if set(result.labels) != set(wanted):
        raise Refused(f"the equation '{equation}' asks for an axis that no operand has")
    return turned(node, result.value, tuple(result.labels.index(label) for label in wanted))


def _labels(text: str, rank: int) -> tuple[Label, ...]:
    """The axes that an ellipsis stands for are numbered from the last, which is 0."""
    before, ellipsis, after = text.partition("...")
    count = rank - len(before) - len(after)
    if count < 0 or (count and not ellipsis):
        raise Refused(f"'{text}' is not an operand of {rank} dimensions")
    return (*before, *reversed(range(count)), *after)


def _ellipsis(terms: Iterable[Term]) -> tuple[int, ...]:
    count = max((label + 1 for term in terms for label in term.labels if isinstance(label, int)), default=0)
    return tuple(reversed(range(count)))


def _output(text: str, terms: Sequence[Term]) -> tuple[Label, ...]:
    before, ellipsis, after = text.partition("...")
    found: tuple[Label, ...] = (*before, *(_ellipsis(terms) if ellipsis else ()), *after)
    if not ellipsis and _ellipsis(terms):
        raise Refused(f"the output '{text}' has no ellipsis, and an operand has")
    if len(set(found)) < len(found):
        raise Refused(f"the output '{text}' has an axis twice")
    return found


def _implied(terms: Sequence[Term]) -> tuple[Label, ...]:
    """Those of the ellipsis, and in alphabetical order those that stand once."""
    counts = Counter(label for term in terms for label in term.labels if isinstance(label, str))
    return (*_ellipsis(terms), *sorted(label for label, count in counts.items() if count == 1))


def _without_doubles(node: Node, term: Term) -> Term:
    """The diagonal of axes that have one label: what is not on it is 0, and summed."""
    for label, count in Counter(term.labels).items():
        for _ in range(count - 1):
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            shape = shape_of(term.value)
            if shape[first] != shape[second]:
                raise Refused(f"'{label}' is {shape[first]} and {shape[second]} elements")
            shape_of_mask = [shape[axis] if axis in (first, second) else 1 for axis in range(len(shape))]
            mask = node.weight(np.eye(shape[first], dtype=np.float32).reshape(shape_of_mask), "diagonal")
            value = node.emit(ReduceOp("sum", node.binary("mask", term.value, mask), (second,), False))
            term = Term(value, (*term.labels[:second], *term.labels[second + 1 :]))
    return term


def _summed(node: Node, term: Term, needed: set[Label]) -> Term:
    """Without the axes that nobody needs."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    labels = tuple(label for label in term.labels if label in needed)
    return Term(node.emit(ReduceOp("sum", term.value, axes, False)), labels)


def _product(node: Node, a: Term, b: Term, needed: set[Label]) -> Term:
    """Of two operands, without the axes that nobody needs afterwards."""
    a, b = _narrowed(node, a, b), _narrowed(node, b, a)
    a, b = _summed(node, a, {*needed, *b.labels}), _summed(node, b, {*needed, *a.labels})
    common = [label for label in a.labels if label in b.labels]
    batch = [label for label in common if label in needed]
    inner = [label for label in common if label not in needed]
    rows = [label for label in a.labels if label not in common]
    columns = [label for label in b.labels if label not in common]
    extents = b.extents | a.extents
    if any(a.extents[label] != b.extents[label] for label in common):
        raise Refused("an axis has other extents in another operand")
    shape = tuple(extents[label] for label in (*batch, *rows, *columns))
    if not inner:
        left = _shaped(node, a, [*batch, *rows], [extents[label] for label in (*batch, *rows)] + [1] * len(columns))
        middle = [extents[label] for label in batch] + [1] * len(rows)
        right = _shaped(node, b, [*batch, *columns], middle + [extents[label] for label in columns])
        return Term(node.binary("mul", left, right), (*batch, *rows, *columns))
    count, m, k, n = (prod(extents[label] for label in own) for own in (batch, rows, inner, columns))
    front = [count] if batch else []
    left = _shaped(node, a, [*batch, *rows, *inner], [*front, m, k])
    right = _shaped(node, b, [*batch, *inner, *columns], [*front, k, n])
    return Term(node.reshape(node.emit(MatmulOp(left, right)), shape), (*batch, *rows, *columns))


def _narrowed(node: Node, term: Term, other: Term) -> Term:
    """Without the axes of 1 that the other operand has longer: they are the same for all of its elements."""
    extents = other.extents
    labels = [label for label, extent in term.extents.items() if extent != 1 or extents.get(label, 1) == 1]
    own = term.extents
    return Term(node.reshape(term.value, tuple(own[label] for label in labels)), tuple(labels))


def _shaped(node: Node, term: Term, order: Sequence[Label], shape: Sequence[int]) -> SSAValue:
    return node.reshape(turned(node, term.value, tuple(term.labels.index(label) for label in order)), tuple(shape))


CONVERTERS: dict[str, Converter] = {"Einsum": einsum}
