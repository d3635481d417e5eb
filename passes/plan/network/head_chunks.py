# Tests: test/passes/plan/network/test_head_chunks.py
"""Attention with the products that make its queries, keys and values, some heads at a time.

Where queries, keys and values of all heads do not fit SRAM beside each other, they go through DRAM.  Those of some
heads may fit: then one product makes them, side by side in one map that stays in SRAM (`CutSearch.beside`), attention
of these heads reads them there, and writes its part of the result; then the next heads.  What the products read stays
too, where there is room; else it is read once for each chunk, in rounds of input channels.  So no query, key or value
is ever in DRAM, and weights are read once.  Where not even the queries, keys and values of one head fit beside what the
products read, keys and values do, and a product of its own makes the queries in the unit of attention, some rows at a
time (`is_apart`).  And where what the products read is a map normalised by groups, and the map is needed behind again
(for a residual), the map can stay instead: each product then normalises what it reads of it (`is_normed`).

Source: heads are independent (Vaswani et al., 2017, section 3.2.2): an outer loop over them, around all that makes one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.module import JOINT, STREAMED, VALUE_PARTS
from frustum.passes.analysis.layer import is_layer
from frustum.passes.analysis.module import element_bytes, value_bytes
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import (
    InChunks,
    PartWriter,
    has_constants,
    has_weights,
    made_in_dram,
    sums_up,
)
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.made_again import HeldInput, form_of, held, is_input
from frustum.passes.plan.network.trials.input_chunks import source_of
from frustum.passes.plan.network.trials.norms_apart import known_of_channels
from frustum.passes.plan.network.trials.plane_norms import LayersAgain, PlaneNorm, is_of_planes
from frustum.passes.plan.network.trials.result_parts import result_in_parts
from frustum.passes.weights import numpy_of, store_of

Product = g.MatmulOp | g.ConvOp


@dataclass(frozen=True)
class AttentionHeads:
    """Attention, and the products that make its queries, keys and values, each read by it alone."""

    products: tuple[Product, Product, Product]
    attention: g.AttentionOp
    sums: g.MatmulOp | None = None
    """The product that sums up the result, if this is to be added chunk by chunk."""
    is_apart: bool = False
    """Queries are made by a product of their own, as attention reads them."""
    norm: tuple[Operation, ...] = ()
    """What makes what the products read, if each of them is to do that of what it reads, piece by piece: in order, a
    normalisation, or what is element by element."""

    @property
    def last(self) -> Operation:
        return self.sums or self.attention

    @property
    def read(self) -> SSAValue:
        """What all products read, or what is normalised for them."""
        made = self.products[0].operands[0]
        return source_of(self.norm[0]) or made if self.norm else made

    @property
    def reshapes(self) -> list[Operation]:
        """Those through which attention reads what the products make, the last ones first."""
        found: list[Operation] = []
        values = [self.attention.q, self.attention.k, self.attention.v]
        for value in values:
            while isinstance(value.owner, g.ReshapeOp):
                if value.owner not in found:
                    found.append(value.owner)
                value = value.owner.x
        return found

    @property
    def widths(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values of the heads that share keys and values."""
        (queries, groups), (size, value_size) = self.attention.heads, self.attention.sizes
        return queries // groups * size, size, value_size

    @property
    def group_bytes(self) -> int:
        """Queries, keys and values of these, with their part of the result where that stays too; without queries where
        these are made apart."""
        made = self.products[1].result
        positions = math.prod(g.shape_of(made)) // channels_of(made)
        (queries, groups), (_, value_size) = self.attention.heads, self.attention.sizes
        channels = sum(self.widths[self.is_apart :]) + (0 if self.sums is None else queries // groups * value_size)
        return positions * channels * element_bytes(made)


def heads_in_chunks(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int, *, is_summed: bool = False,
    is_apart: bool = False, is_normed: bool = False,
) -> list[InChunks | HeldInput]:
    """Let attention of which queries, keys or values go through DRAM in these units be made some heads at a time, where
    so many bytes of SRAM hold what these take; what was done.  `is_summed`: all attention whose result, too, goes there
    and is summed up, where the sums stay; what of its products reads an input of the network then reads a copy.
    `is_apart`: with queries that are made as they are read, where there is no room for those of a head too;
    `is_normed`: so, with normalisations that each product does by itself, where what is normalised goes there too."""
    through = made_in_dram(order, units)
    found: list[InChunks | HeldInput] = []
    for node in order.nodes:
        heads = heads_of(node.op)
        if heads is None:
            continue
        norm, fits = norm_of(heads) if is_normed else (), chunk_of(heads, sram_bytes, is_beside=True) is not None
        moved: set[object] = {*heads.products, *norm, *([heads.attention] if is_summed else [])}
        if norm and (source := source_of(norm[0])) is not None:
            moved.add(source.owner)
        if not through & moved or (is_apart and fits) or (is_normed and not norm):
            continue
        if is_summed:
            heads = replace(heads, sums=sums_up(heads.attention))
            if heads.sums is None:
                continue
        heads = replace(heads, is_apart=is_apart or (is_normed and not fits), norm=norm)
        count = chunk_of(heads, sram_bytes, is_beside=is_apart or is_normed)
        if count is not None:
            maker = heads.read.owner if norm else None
            whole = result_in_parts(maker, module, sram_bytes) if isinstance(maker, g.ConvOp) else None
            found += [] if whole is None else [whole]
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
    reads: of rows of channels, or of planes of channels.  None of anything else."""
    if not isinstance(op, g.AttentionOp) or {STREAMED, VALUE_PARTS, JOINT} & set(op.attributes):
        return None
    if not op.is_merged and (not op.is_channels_first or op.mask is not None or op.causal_from is not None):
        return None
    products = []
    for value in (op.q, op.k, op.v):
        product = maker_of(value)
        if product is None or not is_of_positions(product) or isinstance(product, g.MatmulOp) != op.is_merged:
            return None
        products.append(product)
    q, k, v = products
    if len({each.operands[0] for each in products}) > 1:
        return None
    if isinstance(q, g.MatmulOp) and any(isinstance(x, g.MatmulOp) and x.trans_b != q.trans_b for x in (k, v)):
        return None
    return None if has_mask_of_heads(op) else AttentionHeads((q, k, v), op)


def norm_of(heads: AttentionHeads) -> tuple[Operation, ...]:
    """The normalisation by groups of planes that makes what the products alone read, of a map that others read too, or
    the layers that change its elements where it is plain layers already; in order."""
    found: list[Operation] = []
    value, readers = heads.read, set[Operation](heads.products)
    while isinstance(value.owner, Operation) and {use.operation for use in value.uses} == readers:
        op = value.owner
        source = source_of(op)
        if source is None or (isinstance(op, g.NormaliseOp) and (found or not is_of_planes(op))):
            break
        found, value, readers = [op, *found], source, {op}
        if isinstance(op, g.NormaliseOp):
            break
    is_read_too = bool(found) and {use.operation for use in value.uses} != readers
    return tuple(found) if is_read_too and isinstance(heads.products[0], g.ConvOp) else ()


def maker_of(value: SSAValue) -> Product | None:
    """The product that makes what one operation alone reads, perhaps in another shape."""
    while isinstance(value.owner, g.ReshapeOp) and len({use.operation for use in value.uses}) == 1:
        value = value.owner.x
    is_alone = len({use.operation for use in value.uses}) == 1
    return value.owner if isinstance(value.owner, Product) and is_alone else None


def is_of_positions(product: Product) -> bool:
    """Whether each position of what a product of floats makes is made of one, with constant weights, and nothing is
    added to it: rows of channels, or planes of them."""
    if product.act is not None or product.residual is not None:
        return False
    if isinstance(product, g.MatmulOp):
        return has_weights(product) and not product.trans_a and len(g.shape_of(product.result)) == len("brc")
    windows = product.kernel, product.strides, product.pads, (product.groups,)
    return has_constants(product) and windows == ((1, 1), (1, 1), (0, 0, 0, 0), (1,)) and not g.is_integer(product.x)


def channels_of(made: SSAValue) -> int:
    """Of what a product makes: those of planes are the second axis, those of rows the last."""
    shape = g.shape_of(made)
    return shape[1] if len(shape) == g.RANK_OF_PLANES else shape[-1]


def has_mask_of_heads(op: g.AttentionOp) -> bool:
    """Whether each head has a mask of its own."""
    *_, heads, _, _ = (1, 1, 1, *(() if op.mask is None else g.shape_of(op.mask)))
    return heads > 1


def chunk_of(heads: AttentionHeads, sram_bytes: int, *, is_beside: bool = False) -> int | None:
    """Heads of keys and values of a chunk: as many as fit beside what the products read and the sums, or where not one
    does and there are no sums, the most that take no more than `model.HEADS_SHARE` of SRAM, unless they must be beside
    it; None where all do, or not one."""
    groups, sums = heads.attention.heads[1], heads.sums
    around = aligned(value_bytes(heads.read)) + (0 if sums is None else aligned(value_bytes(sums.result)))
    most = max(int(model.HEADS_BESIDE * sram_bytes) - around, 0) // heads.group_bytes
    if sums is None and not is_beside:
        most = most or int(model.HEADS_SHARE * sram_bytes) // heads.group_bytes
    return ceil_div(groups, ceil_div(groups, most)) if 0 < most < groups else None


@dataclass
class HeadChunks:
    """The chunks of one attention, of so many heads of keys and values, as they are made."""

    heads: AttentionHeads
    count: int
    writer: PartWriter
    norm: PlaneNorm | LayersAgain | None = None

    def put(self) -> InChunks:
        """All chunks in the place of the whole."""
        whole, sums = self.heads.attention, self.heads.sums
        groups, parts, result = whole.heads[1], list[SSAValue](), None
        if self.heads.norm:
            self.norm = self.planes_of(self.heads.norm)
        width = whole.heads[0] // groups * whole.sizes[1]
        for first in range(0, groups, self.count):
            stop = min(first + self.count, groups)
            parts.append(self.chunk(first, stop))
            if sums is not None:
                own = first * width, stop * width
                result = self.writer.share(sums, parts[-1], own, result, is_last=stop == groups)
        if result is None:
            axis = 1 if whole.is_channels_first else len(g.shape_of(whole.result)) - 1
            result = self.writer.insert(g.ConcatOp(parts, axis), whole)
            if g.shape_of(result) != g.shape_of(whole.result):
                result = self.writer.insert(g.ReshapeOp(result, g.shape_of(whole.result)), whole)
        layers: tuple[Operation, ...] = (whole, *self.heads.reshapes, *dict.fromkeys(reversed(self.heads.products)))
        layers = (*layers, *reversed(self.heads.norm))
        return self.writer.instead_of(result, layers if sums is None else (sums, *layers))

    def chunk(self, first: int, stop: int) -> SSAValue:
        """The result of heads [first, stop) of keys and values, and of the heads of queries that share them."""
        whole, widths = self.heads.attention, [(stop - first) * width for width in self.heads.widths]
        if self.heads.is_apart:
            made = self.product(slice(1, None), first, stop)
            read, at = (self.product(slice(1), first, stop), made, made), (0, 0, widths[1])
        else:
            made = self.product(slice(None), first, stop)
            read, at = (made, made, made), (0, widths[0], widths[0] + widths[1])
        own = g.AttentionOp(
            *read, whole.mask, heads=(whole.heads[0] // whole.heads[1] * (stop - first), stop - first),
            sizes=whole.sizes, firsts=at, scale=whole.scale, softcap=whole.softcap, causal_from=whole.causal_from,
            is_merged=whole.is_merged, is_channels_first=whole.is_channels_first,
        )  # fmt: skip
        result = self.writer.insert(own, whole, f"/{first}")
        own.attributes[JOINT] = UnitAttr()
        return result

    def product(self, which: slice, first: int, stop: int) -> SSAValue:
        """What makes queries, keys, values of these heads: those `which` say, side by side, by one product."""
        products, ends = list(self.heads.products), zip(self.heads.attention.firsts, self.heads.widths, strict=True)
        products = products[which]
        ranges = [(at + first * width, at + stop * width) for at, width in list(ends)[which]]
        like = products[0]
        is_first = isinstance(like, g.ConvOp) or like.trans_b
        weights = self.writer.constant([each.operands[1] for each in products], 0 if is_first else 1, ranges)
        like_bias, bias = next((each.bias for each in products if each.bias is not None), None), None
        if like_bias is not None:
            wholes = [self.zeros(each, like_bias) if each.bias is None else each.bias for each in products]
            bias = self.writer.constant(wholes, 0, ranges)
        one: Product
        read = self.heads.read if self.norm is None else self.norm.normalised()
        if isinstance(like, g.ConvOp):
            one = g.ConvOp(read, weights, bias)
        else:
            one = g.MatmulOp(read, weights, bias, trans_b=like.trans_b)
        made = self.writer.insert(one, like, f"/{first}")
        one.attributes[JOINT] = UnitAttr()
        return made

    def zeros(self, product: Product, like: SSAValue) -> SSAValue:
        """The bias of a product that has none, beside one that has."""
        element, shape = g.tensor_of(like).element_type, (channels_of(product.result),)
        key = self.writer.store.add("zeros", np.zeros(shape, numpy_of(element)))
        return self.writer.insert(g.WeightOp(key, g.tensor_type(element, shape)), product)

    def planes_of(self, layers: Sequence[Operation]) -> PlaneNorm | LayersAgain:
        """What makes what a product reads, as often as one does; with what a normalisation finds of each channel, once
        for all chunks."""
        norm = layers[0]
        if not isinstance(norm, g.NormaliseOp):
            return LayersAgain(tuple(layers), lambda op: self.writer.insert(op, layers[-1]))
        return known_of_channels(norm, self.writer)
