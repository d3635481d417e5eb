"""The pass that makes queries, keys and values apart where one product makes them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.passes.analysis.module import target_of, value_bytes
from frustum.passes.dequantised import follow
from frustum.passes.graph.patterns.product_slices import ChannelSlice, channel_slices, moved_as
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of, store_of

SHARE = 2
"""A result that takes more than this part of the SRAM of all clusters leaves too little beside it.  On `edge` a layer
of 128 tokens moves 24.0 MB whole and 24.4 in parts, on `default` 16.0 and 14.8."""

Product: TypeAlias = g.MatmulOp | g.ConvOp

HEADS_SHARE = 0.6
"""Share of a cluster's SRAM in which what a product reads leaves room for the queries, keys and values of one head, and
for all results: then these are made head by head (`CutSearch.by_heads`)."""


@dataclass(frozen=True)
class PartProducts(ModulePass):
    """Several products instead of one of which attention reads some channels each as queries, keys, values.

    Before: a product, or a convolution of single positions, with constant weights, of floats, that only attention
    reads, in parts.  After: a product for each part, whose result attention reads whole: heads of it can be dealt to
    clusters and stay there, where those of the whole lie far apart.  A result that is too large to stay (`SHARE`) is
    left: what the product reads would be read three times, and nothing gained; but where one cluster has room for it
    all, heads are made one by one (`HEADS_SHARE`).
    Where slices behind transpositions of the whole read some channels each, there is a product for each too, however
    large: else the whole would be moved, and its slices (`patterns/product_slices.py`).
    """

    name = "frustum-graph-part-products"

    of_any_size: bool = False
    """Whether results that are too large to stay are made apart too: a search over trees decides what stays."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store, chip = store_of(op), target_of(op).chip
        own = chip.cluster.sram.capacity_bytes
        room = chip.clusters * own // SHARE
        for matmul in [each for each in op.walk() if isinstance(each, g.MatmulOp)]:
            if has_constants(matmul) and len(g.shape_of(matmul.b)) == 2 and (slices := channel_slices(matmul)):
                _Parts(matmul, store).take_apart(slices)
        for product in [each for each in op.walk() if isinstance(each, Product)]:
            goes_by_heads = chip.clusters == 1 and value_bytes(product.operands[0]) <= HEADS_SHARE * own
            is_small = self.of_any_size or goes_by_heads or value_bytes(product.result) <= room
            if is_small and can_be_parted(product):
                _Parts(product, store).run()


def can_be_parted(product: Product) -> bool:
    """Whether only attention reads a product, in parts, and its weights and bias are constants of floats."""
    if not has_constants(product) or not is_of_positions(product):
        return False
    width = g.shape_of(product.result)[channels_of(product)]
    users = [(view, use.operation) for view in views_of(product) for use in view.uses]
    users = [(view, user) for view, user in users if user not in reshapes_of(product)]
    if not users or not all(isinstance(user, g.AttentionOp) for _, user in users):
        return False
    return all(
        user.is_channels_first == isinstance(product, g.ConvOp) and part != (0, width)
        for view, user in dict.fromkeys(users)
        if isinstance(user, g.AttentionOp)
        for _, part in parts_of(user, view)
    )


def has_constants(product: Product) -> bool:
    """Whether a product is one of floats with constants, and nothing is added to it."""
    constants = [value for value in (weights_of(product), product.bias) if value is not None]
    if not all(isinstance(value.owner, g.WeightOp) for value in constants) or product.residual is not None:
        return False
    return is_float(g.tensor_of(product.operands[0]).element_type)


def is_of_positions(product: Product) -> bool:
    """Whether each position of the result is made of one: a matrix product of [B, rows, channels], or a convolution."""
    if isinstance(product, g.MatmulOp):
        return len(g.shape_of(product.b)) == 2 and len(g.shape_of(product.result)) == 3
    is_plain = set(product.kernel) == {1} and set(product.strides) == {1} and not any(product.pads)
    return is_plain and product.groups == 1 and len(g.shape_of(product.result)) == 4


def weights_of(product: Product) -> SSAValue:
    return product.operands[1]


def channels_of(product: Product) -> int:
    """The axis of a product's channels."""
    return 1 if isinstance(product, g.ConvOp) else len(g.shape_of(product.result)) - 1


def reshapes_of(product: Product) -> list[g.ReshapeOp]:
    """Those of a convolution's planes to rows."""
    if not isinstance(product, g.ConvOp):
        return []
    found = [use.operation for use in product.result.uses]
    lead = g.shape_of(product.result)[:2]
    return [op for op in found if isinstance(op, g.ReshapeOp) and (*g.shape_of(op.result)[:2],) == lead]


def views_of(product: Product) -> list[SSAValue]:
    """A product's result, and in other shapes."""
    return [product.result, *(op.result for op in reshapes_of(product))]


def parts_of(user: Operation, value: SSAValue) -> list[tuple[int, tuple[int, int]]]:
    """(operand, (first channel, channels)) of what attention reads of a tensor."""
    assert isinstance(user, g.AttentionOp)
    (queries, groups), (size, value_size) = user.heads, user.sizes
    widths = queries * size, groups * size, groups * value_size
    own = enumerate(zip((user.q, user.k, user.v), user.firsts, widths, strict=True))
    return [(k, (first, width)) for k, (operand, first, width) in own if operand is value]


@dataclass
class _Parts:
    """The products of one product's parts, as they are asked for."""

    product: Product
    store: WeightStore
    made: dict[tuple[int, int], SSAValue] = field(default_factory=dict)

    def run(self) -> None:
        for view in views_of(self.product)[::-1]:
            for user in dict.fromkeys(use.operation for use in view.uses):
                if isinstance(user, g.AttentionOp):
                    self.read_parts(user, view)
            if not tuple(view.uses):
                assert isinstance(view.owner, Operation)
                Rewriter.erase_op(view.owner)

    def take_apart(self, slices: Sequence[ChannelSlice]) -> None:
        """Products of channels in the place of slices."""
        for part in slices:
            made = self.part(part.first, part.width, g.shape_of(self.product.result))
            moves = moved_as(part, made)
            Rewriter.replace_op(part.op, moves, [moves[-1].results[0]])
        erase_moves(self.product)

    def read_parts(self, user: g.AttentionOp, view: SSAValue) -> None:
        """Attention that reads the products of its parts, each whole."""
        operands, firsts = [user.q, user.k, user.v], list(user.firsts)
        for number, part in parts_of(user, view):
            operands[number], firsts[number] = self.part(*part, g.shape_of(view)), 0
        q, k, v = operands
        own = g.AttentionOp(
            q, k, v, user.mask, heads=user.heads, sizes=user.sizes, firsts=tuple(firsts), scale=user.scale,
            softcap=user.softcap, causal_from=user.causal_from, is_merged=user.is_merged,
            is_channels_first=user.is_channels_first,
        )  # fmt: skip
        own.attributes.update(user.attributes)
        own.location = user.location
        Rewriter.replace_op(user, own)

    def part(self, first: int, width: int, shape: Sequence[int]) -> SSAValue:
        """The product with so many channels from `first` on, as a whole of this shape is seen."""
        product = self.product
        axis = channels_of(product)
        if (first, width) not in self.made:
            x, in_weights = product.operands[0], 0
            if isinstance(product, g.MatmulOp) and not product.trans_b:
                in_weights = 1
            weights = self.constant(weights_of(product), in_weights, first, width)
            bias = None if product.bias is None else self.constant(product.bias, 0, first, width)
            own: Product
            if isinstance(product, g.ConvOp):
                own = g.ConvOp(x, weights, bias, act=product.act)
            else:
                own = g.MatmulOp(x, weights, bias, product.trans_a, product.trans_b, act=product.act)
            self.made[first, width] = self.insert(own)
        made = self.made[first, width]
        wanted = (*shape[:axis], width, *shape[axis + 1 :])
        return made if g.shape_of(made) == wanted else self.insert(g.ReshapeOp(made, wanted))

    def constant(self, whole: SSAValue, axis: int, first: int, width: int) -> SSAValue:
        assert isinstance(whole.owner, g.WeightOp)
        element, shape = g.tensor_of(whole).element_type, list(g.shape_of(whole))
        shape[axis] = width
        taken = partial(part_of, self.store, whole.owner.key.data, axis, first, width, numpy_of(element))
        key = self.store.add(f"{whole.owner.key.data}/{first}", taken)
        part = g.WeightOp(key, g.tensor_type(element, tuple(shape)))
        follow(part, [whole.owner], self.store, lambda known: known.taken(axis, range(first, first + width)))
        return self.insert(part)

    def insert(self, op: Operation) -> SSAValue:
        op.location = self.product.location
        Rewriter.insert_op(op, InsertPoint.before(self.product))
        return op.results[0]


def erase_moves(op: Operation) -> None:
    """An operation that nobody reads but moves that nobody reads."""
    for use in tuple(op.results[0].uses):
        erase_moves(use.operation)
    Rewriter.erase_op(op)


def part_of(store: WeightStore, key: str, axis: int, first: int, width: int, dtype: np.dtype) -> Array:
    """Part of a constant along an axis."""
    return np.ascontiguousarray(store[key].take(range(first, first + width), axis), dtype)
