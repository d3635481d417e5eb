"""The pass that makes queries, keys and values apart where one product makes them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.passes.analysis.module import target_of, value_bytes
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of, store_of

SHARE = 2
"""A result that takes more than this part of the SRAM of all clusters leaves too little beside it.  On `edge` a layer
of 128 tokens moves 24.0 MB whole and 24.4 in parts, on `default` 16.0 and 14.8."""

HEADS_SHARE = 0.6
"""Share of a cluster's SRAM in which what a product reads leaves room for the queries, keys and values of one head, and
for all results: then these are made head by head (`CutSearch.by_heads`)."""


@dataclass(frozen=True)
class PartProducts(ModulePass):
    """Several products instead of one of which attention reads some channels each as queries, keys, values.

    Before: a product with constant weights, of floats, that only attention reads, in parts.  After: a product for each
    part, whose result attention reads whole: heads of it can be dealt to clusters and stay there, where those of the
    whole lie far apart.  A result that is too large to stay (`SHARE`) is left: what the product reads would be read
    three times, and nothing gained; but where one cluster has room for it all, heads are made one by one
    (`HEADS_SHARE`).
    """

    name = "frustum-graph-part-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store, chip = store_of(op), target_of(op).chip
        own = chip.cluster.sram.capacity_bytes
        room = chip.clusters * own // SHARE
        for product in [each for each in op.walk() if isinstance(each, g.MatmulOp)]:
            goes_by_heads = chip.clusters == 1 and value_bytes(product.a) <= HEADS_SHARE * own
            if (goes_by_heads or value_bytes(product.result) <= room) and can_be_parted(product):
                _Parts(product, store).run()


def can_be_parted(product: g.MatmulOp) -> bool:
    """Whether only attention reads a product, in parts, and its weights and bias are constants of floats."""
    constants = [value for value in (product.b, product.bias) if value is not None]
    if not all(isinstance(value.owner, g.WeightOp) for value in constants) or len(g.shape_of(product.b)) != 2:
        return False
    if len(g.shape_of(product.result)) != 3 or product.residual is not None:
        return False
    if not is_float(g.tensor_of(product.a).element_type):
        return False
    width = g.shape_of(product.result)[-1]
    users = [use.operation for use in product.result.uses]
    if not users or not all(isinstance(user, g.AttentionOp) and not user.is_channels_first for user in users):
        return False
    return all(part != (0, width) for user in set(users) for _, part in parts_of(user, product.result))


def parts_of(user: Operation, value: SSAValue) -> list[tuple[int, tuple[int, int]]]:
    """(operand, (first channel, channels)) of what attention reads of a tensor [B, rows, channels]."""
    assert isinstance(user, g.AttentionOp)
    (queries, groups), (size, value_size) = user.heads, user.sizes
    widths = queries * size, groups * size, groups * value_size
    own = enumerate(zip((user.q, user.k, user.v), user.firsts, widths, strict=True))
    return [(k, (first, width)) for k, (operand, first, width) in own if operand is value]


@dataclass
class _Parts:
    """The products of one product's parts, as they are asked for."""

    product: g.MatmulOp
    store: WeightStore
    made: dict[tuple[int, int], SSAValue] = field(default_factory=dict)

    def run(self) -> None:
        result = self.product.result
        users = list(dict.fromkeys(use.operation for use in result.uses))
        for user in users:
            assert isinstance(user, g.AttentionOp)
            operands, firsts = [user.q, user.k, user.v], list(user.firsts)
            for number, part in parts_of(user, result):
                operands[number], firsts[number] = self.part(*part), 0
            q, k, v = operands
            own = g.AttentionOp(
                q, k, v, user.mask, heads=user.heads, sizes=user.sizes, firsts=tuple(firsts), scale=user.scale,
                softcap=user.softcap, causal_from=user.causal_from, is_merged=user.is_merged,
            )  # fmt: skip
            own.attributes.update(user.attributes)
            own.location = user.location
            Rewriter.replace_op(user, own)
        if not tuple(result.uses):
            Rewriter.erase_op(self.product)

    def part(self, first: int, width: int) -> SSAValue:
        """The product with so many channels from `first` on."""
        if (first, width) not in self.made:
            product = self.product
            axis = 0 if product.trans_b else 1
            weights = self.constant(product.b, axis, first, width)
            bias = None if product.bias is None else self.constant(product.bias, 0, first, width)
            own = g.MatmulOp(product.a, weights, bias, product.trans_a, product.trans_b, act=product.act)
            self.made[first, width] = self.insert(own)
        return self.made[first, width]

    def constant(self, whole: SSAValue, axis: int, first: int, width: int) -> SSAValue:
        assert isinstance(whole.owner, g.WeightOp)
        element, shape = g.tensor_of(whole).element_type, list(g.shape_of(whole))
        shape[axis] = width
        taken = partial(part_of, self.store, whole.owner.key.data, axis, first, width, numpy_of(element))
        key = self.store.add(f"{whole.owner.key.data}/{first}", taken)
        return self.insert(g.WeightOp(key, g.tensor_type(element, tuple(shape))))

    def insert(self, op: Operation) -> SSAValue:
        op.location = self.product.location
        Rewriter.insert_op(op, InsertPoint.before(self.product))
        return op.results[0]


def part_of(store: WeightStore, key: str, axis: int, first: int, width: int, dtype: np.dtype) -> Array:
    """Part of a constant along an axis."""
    return np.ascontiguousarray(store[key].take(range(first, first + width), axis), dtype)
