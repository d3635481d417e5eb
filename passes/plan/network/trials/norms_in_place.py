# Tests: test/passes/plan/network/trials/test_norms_in_place.py
"""Normalisations in the place of what they read, which is made of them again where it is read again.

A layer of a transformer that normalises first needs two maps of one size until its products are done: what they read,
and what their sums are added to.  Where SRAM holds one of them, the other goes through DRAM.  But the one is the other
in other units: a row is `(x - mean) / deviation`, and x is `row * deviation + mean`.  So the mean and the deviation of
each row, in f32, stay beside the normalised rows, which lie where x lay; behind the last product that reads them x
is made again, in its place, and sums are added to that (`CutSearch.beside`).  Scale and shift go into the weights and
the bias of the products, so that rows have nothing in them that cannot be taken back.

What is made again differs from x by the rounding of the rows to the element type: half a unit in the last place of
`x - mean`, as much as x itself was rounded by.

Source: Ba et al., Layer normalization, 2016; that scale and shift are part of the next product: Ashkboos et al.,
SliceGPT, 2024, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.module import FORM
from frustum.passes.analysis.layer import is_layer
from frustum.passes.analysis.module import named_part, node_name, value_bytes
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import has_weights, made_in_dram
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.weights import Array, WeightStore, numpy_of, store_of


class Replaced(NamedTuple):
    """A layer that was taken out, what it read and what stood behind it, and what is read instead of its result."""

    op: Operation
    operands: Sequence[SSAValue]
    behind: Operation
    result: SSAValue


@dataclass(frozen=True)
class RestoredNorm:
    """What was made, in order, and instead of what; the map that others read, and what they read instead."""

    made: tuple[Operation, ...]
    instead_of: tuple[Replaced, ...]
    x: SSAValue
    restored: SSAValue

    def undo(self) -> None:
        """The network as it was."""
        for op, operands, behind, result in reversed(self.instead_of):
            block = behind.parent
            assert block is not None
            op.operands = operands
            block.insert_op_before(op, behind)
            result.replace_all_uses_with(op.results[0])
        self.restored.replace_all_uses_with(self.x)
        for made in reversed(self.made):
            made.detach()
            made.erase()


def norms_in_place(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int
) -> list[RestoredNorm]:
    """Let every normalisation that goes through DRAM in these units, or of which the operand does or is an input of the
    network, take the place of its operand in so many bytes of SRAM, where others read that too; what was done."""
    through = made_in_dram(order, units)
    found = []
    for op in [node.op for node in order.nodes]:
        if not isinstance(op, g.NormaliseOp) or value_bytes(op.x) >= sram_bytes or not is_restorable(op):
            continue
        if not isinstance(op.x.owner, Operation) or through & {op, op.x.owner}:
            found.append(NormInPlace(op, store_of(module)).put())
    return found


def is_restorable(op: g.NormaliseOp) -> bool:
    """Whether a normalisation is of rows, which products alone read that can take its scale and shift, and other layers
    read its operand.  Not one with a function behind: what is made again of rows is linear."""
    shape = g.shape_of(op.x)
    of_channels = all(
        value is None or (isinstance(value.owner, g.WeightOp) and math.prod(g.shape_of(value)) == shape[-1])
        for value in (op.scale, op.shift)
    )
    is_of_rows = op.axes == (len(shape) - 1,) and op.groups == 1 and g.shape_of(op.result) == shape
    if not of_channels or not is_of_rows or op.act is not None:
        return False
    others, products = ({use.operation for use in value.uses} - {op} for value in (op.x, op.result))
    is_read_again = bool(others) and others.isdisjoint(products) and all(map(is_layer, others))
    return is_read_again and all(is_linear(reader, op.result) for reader in products)


def is_linear(reader: Operation, rows: SSAValue) -> bool:
    """Whether a reader of rows is a product of them with constant weights."""
    is_product = isinstance(reader, g.MatmulOp) and reader.a is rows and has_weights(reader) and not reader.trans_a
    return is_product and sum(x is rows for x in reader.operands) == 1


@dataclass
class NormInPlace:
    """The layers of one normalisation, its products and its operand again, as they are made."""

    op: g.NormaliseOp
    store: WeightStore
    made: list[Operation] = field(default_factory=list)
    instead_of: list[Replaced] = field(default_factory=list)

    def put(self) -> RestoredNorm:
        """All of them in the place of what there is."""
        op, x, block = self.op, self.op.x, self.op.parent
        assert isinstance(block, Block)
        readers, products = ({use.operation for use in value.uses} - {op} for value in (x, op.result))
        mean, deviation = self.statistics()
        rows = self.insert(g.NormaliseOp(x, axes=op.axes, epsilon=op.epsilon, rms=op.rms), op, "rows")
        for product in [each for each in block.ops if each in products]:
            assert isinstance(product, g.MatmulOp)
            self.folded(product, rows)
        behind = next(each for each in block.ops if each in readers)
        element = g.tensor_of(x).element_type
        restored = self.insert(g.BinaryOp("mul", deviation, rows, element=element), behind, "scaled")
        if mean is not None:
            restored = self.insert(g.BinaryOp("add", mean, restored, element=element), behind, "shifted")
        x.replace_uses_with_if(restored, lambda use: use.operation in readers)
        self.take_out(op, rows)
        return RestoredNorm(tuple(self.made), tuple(self.instead_of), x, restored)

    def statistics(self) -> tuple[SSAValue | None, SSAValue]:
        """Mean (None where it counts as 0) and deviation of each row, in f32."""
        op, x = self.op, self.op.x
        mean = self.insert(g.ReduceOp("mean", x, op.axes, element=f32), op, "mean")
        total = self.insert(g.ReduceOp("variance", x, op.axes, element=f32), op, "variance")
        if op.rms:  # the mean of squares, of which no map is made
            square = self.insert(g.BinaryOp("mul", mean, mean), op, "square")
            total = self.insert(g.BinaryOp("add", total, square), op, "squares")
        ones = (1,) * len(g.shape_of(x))
        epsilon = self.constant("epsilon", partial(np.full, ones, op.epsilon, np.float32), f32, ones, op)
        deviation = self.insert(g.BinaryOp("add", total, epsilon, g.ActAttr.of("sqrt")), op, "deviation")
        return None if op.rms else mean, deviation

    def folded(self, product: g.MatmulOp, rows: SSAValue) -> None:
        """A product of the rows without scale and shift, whose weights and bias have these, instead of another one."""
        weights, bias, key = product.b, product.bias, key_of(product.b)
        axis, element = 1 if product.trans_b else 0, g.tensor_of(product.b).element_type
        if self.op.scale is not None:
            taken = partial(scaled, self.store, key, key_of(self.op.scale), axis, numpy_of(element))
            weights = self.constant(f"{key}/scaled", taken, element, g.shape_of(weights), product)
            assert isinstance(product.b.owner, g.WeightOp)
            self.made[-1].attributes.update(product.b.owner.attributes)
        if self.op.shift is not None:
            own = None if bias is None else key_of(bias)
            taken = partial(shifted, self.store, key, key_of(self.op.shift), axis, own)
            bias = self.constant(f"{key}/shifted", taken, f32, g.shape_of(product.result)[-1:], product)
        instead = g.MatmulOp(rows, weights, bias, trans_b=product.trans_b, residual=product.residual, act=product.act)
        instead.attributes.update(product.attributes)
        self.put_before(instead, product)
        instead.location = product.location
        self.take_out(product, instead.result)

    def insert(self, op: Operation, before: Operation, word: str) -> SSAValue:
        """Put a layer of this normalisation, seen in its form, before another one."""
        if FORM in self.op.attributes:
            op.attributes[FORM] = self.op.attributes[FORM]
        name = node_name(self.op)
        op.location = named_part(self.op, f"{name}/{word}") if name else self.op.location
        return self.put_before(op, before)

    def constant(
        self, stem: str, taken: Callable[[], Array], element: Attribute, shape: Extents, before: Operation
    ) -> SSAValue:
        """A constant, made when it is asked for."""
        return self.put_before(g.WeightOp(self.store.add(stem, taken), g.tensor_type(element, shape)), before)

    def put_before(self, op: Operation, before: Operation) -> SSAValue:
        block = before.parent
        assert isinstance(block, Block)
        block.insert_op_before(op, before)
        self.made.append(op)
        return op.results[0]

    def take_out(self, op: Operation, instead: SSAValue) -> None:
        """Take a layer out, of whose result another one is read now."""
        behind = op.next_op
        assert behind is not None  # a network ends with its outputs
        op.results[0].replace_all_uses_with(instead)
        self.instead_of.append(Replaced(op, tuple(op.operands), behind, instead))
        op.detach()
        op.operands = ()  # who is not there reads nothing


def key_of(constant: SSAValue) -> str:
    assert isinstance(constant.owner, g.WeightOp)
    return constant.owner.key.data


def scaled(store: WeightStore, weights: str, scale: str, axis: int, dtype: np.dtype) -> Array:
    """Weights of a product whose input channels, along an axis, were scaled before."""
    factors = np.expand_dims(store[scale].astype(np.float32).ravel(), 1 - axis)
    return np.ascontiguousarray(store[weights].astype(np.float32) * factors, dtype)


def shifted(store: WeightStore, weights: str, shift: str, axis: int, bias: str | None) -> Array:
    """The bias [N], f32, of a product whose input channels, along an axis of its weights, had a shift."""
    made = np.tensordot(store[shift].astype(np.float64).ravel(), store[weights].astype(np.float64), (0, axis))
    return (made if bias is None else made + store[bias].astype(np.float64)).astype(np.float32)
