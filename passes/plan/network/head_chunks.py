# Tests: test/passes/plan/network/test_head_chunks.py
"""Attention with the products that make its queries, keys and values, some heads at a time.

Where queries, keys and values of all heads do not fit SRAM beside each other, they go through DRAM.  Those of some
heads may fit: then one product makes them, side by side in one map that stays in SRAM (`CutSearch.beside`), attention
of these heads reads them there, and writes its part of the result; then the next heads.  What the products read stays
too, where there is room; else it is read once for each chunk, in rounds of input channels.  So no query, key or value
is ever in DRAM, and weights are read once.

Source: heads are independent (Vaswani et al., 2017, section 3.2.2): an outer loop over them, around all that makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.module import JOINT, STREAMED, VALUE_PARTS
from frustum.passes.analysis.layer import is_layer
from frustum.passes.analysis.module import element_bytes, value_bytes
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import InChunks, PartWriter, goes_out, has_weights, sums_up
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.made_again import HeldInput, form_of, held, is_input
from frustum.passes.weights import store_of


@dataclass(frozen=True)
class AttentionHeads:
    """Attention, and the products that make its queries, keys and values, each read by it alone."""

    products: tuple[g.MatmulOp, g.MatmulOp, g.MatmulOp]
    attention: g.AttentionOp
    sums: g.MatmulOp | None = None
    """The product that sums up the result, if this is to be added chunk by chunk."""

    @property
    def last(self) -> Operation:
        return self.sums or self.attention

    @property
    def read(self) -> SSAValue:
        """What all products read."""
        return self.products[0].a

    @property
    def widths(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values of the heads that share keys and values."""
        (queries, groups), (size, value_size) = self.attention.heads, self.attention.sizes
        return queries // groups * size, size, value_size

    @property
    def group_bytes(self) -> int:
        """Queries, keys and values of these, with their part of the result where that stays too."""
        batch, rows, _ = g.shape_of(self.products[0].result)
        (queries, groups), (_, value_size) = self.attention.heads, self.attention.sizes
        channels = sum(self.widths) + (0 if self.sums is None else queries // groups * value_size)
        return batch * rows * channels * element_bytes(self.products[0].result)


def heads_in_chunks(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int, *, is_summed: bool = False
) -> list[InChunks | HeldInput]:
    """Let attention of which queries, keys or values go through DRAM in these units be made some heads at a time, where
    so many bytes of SRAM hold what these take; what was done.  `is_summed`: all attention whose result, too, goes there
    and is summed up, where the sums stay; what of its products reads an input of the network then reads a copy."""
    through = {order.nodes[k].op for unit in units for k in range(unit.first, unit.stop) if goes_out(order, unit, k)}
    found: list[InChunks | HeldInput] = []
    for node in order.nodes:
        heads = heads_of(node.op)
        if heads is None or not through.intersection(heads.products + (heads.attention,) * is_summed):
            continue
        if is_summed:
            heads = replace(heads, sums=sums_up(heads.attention))
            if heads.sums is None:
                continue
        count = chunk_of(heads, sram_bytes)
        if count is not None:
            found.append(HeadChunks(heads, count, PartWriter(heads.last, store_of(module))).put())
            found += copied_input(heads) if is_summed else []
    return found


def copied_input(heads: AttentionHeads) -> list[HeldInput]:
    """A copy of what all chunks read, if that is an input of the network, which can stay where an input cannot."""
    value = heads.read
    users = dict.fromkeys(use.operation for use in value.uses)
    form = form_of(value, users) if is_input(value) and all(map(is_layer, users)) else None
    return [] if form is None else [held(value, form)]


def heads_of(op: Operation) -> AttentionHeads | None:
    """Attention whose queries, keys and values are made of one map, by products with constant weights that it alone
    reads; None of anything else."""
    if not isinstance(op, g.AttentionOp) or not op.is_merged or {STREAMED, VALUE_PARTS, JOINT} & set(op.attributes):
        return None
    products = []
    for value in (op.q, op.k, op.v):
        product = value.owner
        if not isinstance(product, g.MatmulOp) or not has_weights(product) or product.act is not None:
            return None
        if product.trans_a or product.residual is not None or len(g.shape_of(product.result)) != len("brc"):
            return None
        if any(use.operation is not op for use in product.result.uses):
            return None
        products.append(product)
    q, k, v = products
    if {q.a, k.a, v.a} != {q.a} or {each.trans_b for each in products} != {q.trans_b}:
        return None
    if len({each.bias is None for each in products}) > 1 or has_mask_of_heads(op):
        return None
    return AttentionHeads((q, k, v), op)


def has_mask_of_heads(op: g.AttentionOp) -> bool:
    """Whether each head has a mask of its own."""
    *_, heads, _, _ = (1, 1, 1, *(() if op.mask is None else g.shape_of(op.mask)))
    return heads > 1


def chunk_of(heads: AttentionHeads, sram_bytes: int) -> int | None:
    """Heads of keys and values of a chunk: as many as fit beside what the products read and the sums, or where not one
    does and there are no sums, the most that take no more than `model.HEADS_SHARE` of SRAM; None where all do, or not
    one."""
    groups, sums = heads.attention.heads[1], heads.sums
    around = aligned(value_bytes(heads.read)) + (0 if sums is None else aligned(value_bytes(sums.result)))
    most = max(int(model.HEADS_BESIDE * sram_bytes) - around, 0) // heads.group_bytes
    if sums is None:
        most = most or int(model.HEADS_SHARE * sram_bytes) // heads.group_bytes
    return ceil_div(groups, ceil_div(groups, most)) if 0 < most < groups else None


@dataclass
class HeadChunks:
    """The chunks of one attention, of so many heads of keys and values, as they are made."""

    heads: AttentionHeads
    count: int
    writer: PartWriter

    def put(self) -> InChunks:
        """All chunks in the place of the whole."""
        whole, sums = self.heads.attention, self.heads.sums
        groups, parts, result = whole.heads[1], list[SSAValue](), None
        width = whole.heads[0] // groups * whole.sizes[1]
        for first in range(0, groups, self.count):
            stop = min(first + self.count, groups)
            parts.append(self.chunk(first, stop))
            if sums is not None:
                own = first * width, stop * width
                result = self.writer.share(sums, parts[-1], own, result, is_last=stop == groups)
        if result is None:
            side_by_side = g.ConcatOp(parts, len(g.shape_of(whole.result)) - 1)
            result = self.writer.insert(side_by_side, whole)
        layers = (whole, *dict.fromkeys(reversed(self.heads.products)))
        return self.writer.instead_of(result, layers if sums is None else (sums, *layers))

    def chunk(self, first: int, stop: int) -> SSAValue:
        """The result of heads [first, stop) of keys and values, and of the heads of queries that share them."""
        whole, (product, *_) = self.heads.attention, self.heads.products
        pairs = list(zip(whole.firsts, self.heads.widths, strict=True))
        ranges = [(at + first * width, at + stop * width) for at, width in pairs]
        weights = [each.b for each in self.heads.products]
        biases = [each.bias for each in self.heads.products if each.bias is not None]
        one = g.MatmulOp(
            self.heads.read,
            self.writer.constant(weights, 0 if product.trans_b else 1, ranges),
            self.writer.constant(biases, 0, ranges) if biases else None,
            trans_b=product.trans_b,
        )
        made = self.writer.insert(one, product, f"/{first}")
        queries, keys, _ = ((stop - first) * width for width in self.heads.widths)
        own = g.AttentionOp(
            made, made, made, whole.mask, heads=(whole.heads[0] // whole.heads[1] * (stop - first), stop - first),
            sizes=whole.sizes, firsts=(0, queries, queries + keys), scale=whole.scale, softcap=whole.softcap,
            causal_from=whole.causal_from, is_merged=True,
        )  # fmt: skip
        result = self.writer.insert(own, whole, f"/{first}")
        own.attributes[JOINT] = UnitAttr()
        return result
