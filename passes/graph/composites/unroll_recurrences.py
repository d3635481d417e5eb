"""Recurrences as their steps one after the other, for planners that know no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.module import MODEL
from frustum.passes.analysis.module import nodes_of
from frustum.passes.dequantised import dequantised_of
from frustum.passes.errors import Problem, Unsupported
from frustum.passes.weights import Array, WeightStore, numpy_of, store_of

MOST_STEPS = 64
"""Of both directions of a loop that is unrolled: each is about ten layers, which are planned one by one."""


@dataclass(frozen=True)
class UnrollRecurrences(ModulePass):
    """Write the body of every recurrence once for each step.

    Before: `fgraph.recurrence`; Unsupported, which names the nodes, where one has more than `MOST_STEPS` steps, those
    of a recurrence before it that is the same node's other direction included.
    After: none is left.  A state that begins as 0 is no operand of the first step: products with it are gone, and so
    are masks of ones.
    """

    name = "frustum-graph-unroll-recurrences"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        found = _recurrences(op)
        if not found:
            return
        problems = list(_too_long(op, found))
        if problems:
            raise Unsupported(problems)
        store = store_of(op)
        while found:
            for recurrence in found:
                unroll(recurrence, store)
            found = _recurrences(op)  # of their bodies


def _recurrences(module: ModuleOp) -> list[g.RecurrenceOp]:
    """Those that are in no other's body."""
    found = [op for op in module.walk() if isinstance(op, g.RecurrenceOp)]
    return [op for op in found if not isinstance(op.parent_op(), g.RecurrenceOp)]


def _too_long(module: ModuleOp, found: Sequence[g.RecurrenceOp]) -> Iterator[Problem]:
    """A problem for each node with too many steps."""
    known = module.attributes.get(MODEL)
    file = known.data if isinstance(known, StringAttr) else "module"
    before: g.RecurrenceOp | None = None
    for op in found:
        steps = op.steps
        if before is not None and op.is_reverse and not before.is_reverse and nodes_of(op) == nodes_of(before) != ():
            steps += before.steps
        before = op
        if steps > MOST_STEPS:
            node, operator = next(iter(nodes_of(op)), ("", op.name))
            yield Problem(file, f"{steps} steps are not supported: at most {MOST_STEPS}", node, operator)


def unroll(op: g.RecurrenceOp, store: WeightStore) -> None:
    """Write a recurrence's steps before it, and its results in its place."""
    _Steps(op, store).run()


@dataclass
class _Steps:
    """A recurrence being unrolled. `values` holds what each value of the body is in the current step; a number stands
    for a tensor of it, which is not made."""

    op: g.RecurrenceOp
    store: WeightStore
    values: dict[SSAValue, SSAValue | float] = field(default_factory=dict)

    def run(self) -> None:
        op, end = self.op, self.op.end
        for inner in [each for each in op.body.block.ops if isinstance(each, g.WeightOp)]:
            inner.detach()
            self._insert(inner)
        slices = [self._slices(x) for x in op.sequences]
        states: list[SSAValue | float] = [0.0 if start is None else start for start in op.state_starts]
        made: list[list[SSAValue]] = [[] for _ in end.outputs]
        for place in op.order:
            self.values = dict(zip(op.slices, (own(place) for own in slices), strict=True))
            self.values |= dict(zip(op.states, states, strict=True))
            for inner in op.body.block.ops:
                if inner is not end:
                    self._step(inner)
            states = [self._value_of(value) for value in end.states]
            for own, value in zip(made, end.outputs, strict=True):
                own.append(self._tensor_of(value))
        if op.is_reverse:
            made = [own[::-1] for own in made]
        for result, own in zip(op.outputs, made, strict=True):
            result.replace_all_uses_with(own[0] if len(own) == 1 else self._emit(g.ConcatOp(own, op.dim)))
        for result, state, value in zip(op.last_states, states, end.states, strict=True):
            result.replace_all_uses_with(self._made(state, value))
        Rewriter.erase_op(op)

    # --- one step

    def _step(self, inner: Operation) -> None:
        """An operation of the body in the current step."""
        known = [self.values.get(operand, operand) for operand in inner.operands]
        if any(isinstance(value, float) for value in known) and (found := self._folded(inner, known)) is not None:
            self.values[inner.results[0]] = found
            return
        tensors = {operand: self._tensor_of(operand) for operand in inner.operands}
        tensors |= {value: self._tensor_of(value) for value in g.captured_by(inner) if value in self.values}
        copy = inner.clone(value_mapper=tensors)
        self._insert(copy, inner)
        self.values.update(zip(inner.results, copy.results, strict=True))

    def _folded(self, inner: Operation, known: Sequence[SSAValue | float]) -> SSAValue | float | None:
        """What an operation gives where some of its operands are zeros or ones; None where it has to be computed."""
        if isinstance(inner, g.MatmulOp) and inner.act is None and 0.0 in known[:2] and inner.residual is None:
            return self._bias_of(inner)
        if isinstance(inner, g.BinaryOp) and inner.act is None:
            found = _of_pair(inner.kind, *known)
            is_whole = isinstance(found, float) or (found is not None and found.type == inner.result.type)
            return found if is_whole else None
        if isinstance(inner, g.UnaryOp) and inner.act.kind == "affine" and inner.scales is None:
            (x,) = known
            assert isinstance(x, float)
            return inner.act.alpha * x + inner.act.beta
        return known[0] if isinstance(inner, g.ReshapeOp | g.TransposeOp | g.SliceOp) else None

    def _bias_of(self, product: g.MatmulOp) -> SSAValue | float | None:
        """The product of zeros: its bias, if all who read it broadcast."""
        if product.bias is None:
            return 0.0
        shape = g.shape_of(product.result)
        for use in product.result.uses:
            others = [x for x in use.operation.operands if x is not product.result]
            if not isinstance(use.operation, g.BinaryOp) or not any(g.shape_of(x) == shape for x in others):
                return None
        return self._value_of(product.bias)

    # --- values

    def _value_of(self, value: SSAValue) -> SSAValue | float:
        return self.values.get(value, value)

    def _tensor_of(self, value: SSAValue) -> SSAValue:
        return self._made(self._value_of(value), value)

    def _made(self, known: SSAValue | float, value: SSAValue) -> SSAValue:
        """A value as a tensor; a number becomes a constant of the type of `value`."""
        if not isinstance(known, float):
            return known
        type_ = g.tensor_of(value)
        array = np.full(type_.get_shape(), known, numpy_of(type_.element_type))
        return self._emit(g.WeightOp(self.store.add("recurrence/constant", array), type_))

    def _slices(self, sequence: SSAValue) -> Callable[[int], SSAValue | float]:
        """What makes the slice at a place; those of a constant are constants."""
        if self.op.steps == 1:
            return lambda place: sequence
        owner = sequence.owner
        if isinstance(owner, g.WeightOp) and dequantised_of(sequence, self.store) is None:
            parts = np.split(self.store[owner.key.data], self.op.steps, self.op.dim)
            return [self._constant(np.ascontiguousarray(part), owner) for part in parts].__getitem__
        return partial(self._slice, sequence)

    def _slice(self, sequence: SSAValue, place: int) -> SSAValue:
        shape, dim = g.shape_of(sequence), self.op.dim
        size = g.slice_shape(shape, dim, self.op.steps)
        start = tuple(place * size[dim] if k == dim else 0 for k in range(len(shape)))
        return self._emit(g.SliceOp(sequence, start, size, (1,) * len(shape)))

    def _constant(self, array: Array, whole: g.WeightOp) -> SSAValue | float:
        if (array == 1).all():
            return 1.0
        type_ = g.tensor_type(g.tensor_of(whole.result).element_type, array.shape)
        part = g.WeightOp(self.store.add(whole.key.data, array), type_)
        part.attributes, part.location = dict(whole.attributes), whole.location
        Rewriter.insert_op(part, InsertPoint.before(whole))
        return part.result

    def _emit(self, new: Operation) -> SSAValue:
        self._insert(new)
        return new.results[0]

    def _insert(self, new: Operation, like: Operation | None = None) -> None:
        new.location = (like or self.op).location
        block = self.op.parent
        assert block is not None
        block.insert_op_before(new, self.op)


def _of_pair(kind: str, a: SSAValue | float, b: SSAValue | float) -> SSAValue | float | None:
    """What a function of two operands gives, of which one is zeros or ones; None where it has to be computed."""
    if kind == "add" and 0.0 in (a, b):
        return b if a == 0.0 else a
    if kind == "mul" and 0.0 in (a, b):
        return 0.0
    if kind == "mul" and 1.0 in (a, b):
        return b if a == 1.0 else a
    if kind in ("mask", "keep", "drop"):
        gone = 1.0 if kind == "drop" else 0.0
        if a == 0.0 or b == gone:
            return 0.0
        return a if b == 1.0 - gone else None
    return None
