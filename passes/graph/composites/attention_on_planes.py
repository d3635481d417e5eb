"""Attention of tokens that are the positions of planes, on these planes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.module import STREAMED, TARGET, VALUE_PARTS
from frustum.passes.analysis.module import element_bytes, sole_reader, target_of, value_bytes
from frustum.passes.dequantised import follow
from frustum.passes.graph.canonicalize import remove_unused
from frustum.passes.graph.composites.expand_attention import plan_of
from frustum.passes.graph.composites.part_products import has_constants
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of, store_of

TOKENS = (0, 2, 1)
"""Channels and positions change places, either way."""


@dataclass(frozen=True)
class AttentionOnPlanes(ModulePass):
    """Queries, keys and values by convolutions of single positions instead of products of tokens.

    Before: attention whose queries a product with constants makes of a map of planes, its positions as rows, keys and
    values such products of the same map or of no larger one of rows (a text), and whose result goes through such a
    product, or through none, and back to planes: so exporters write the attention of U-Nets.  After: convolutions, and
    attention with channels first: no transpositions but of the other rows, and all of that can be in units with what
    stands around it, some heads at a time too.  Left where the machine has no pieces for attention on planes, or others
    read what is between.
    """

    name = "frustum-graph-attention-on-planes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store = store_of(op)
        all_attention = [o for o in op.walk() if isinstance(o, g.AttentionOp)] if TARGET in op.attributes else []
        blocks = [found for each in all_attention if (found := block_of(each)) is not None]
        if any([_OnPlanes(found, store).write(op) for found in blocks]):
            remove_unused(op)


@dataclass(frozen=True)
class TokenAttention:
    """Attention of planes, the products that make what it reads, and what its result goes through: perhaps a product,
    and the moves back to planes, of which this is the last."""

    planes: SSAValue
    """What queries are made of."""
    makers: tuple[g.MatmulOp, g.MatmulOp, g.MatmulOp]
    attention: g.AttentionOp
    after: g.MatmulOp | None
    back: Operation


def block_of(op: g.AttentionOp) -> TokenAttention | None:
    """What stands around attention; None where it is none of tokens of planes, or others read what is between."""
    if not op.is_merged or op.mask is not None or op.causal_from is not None or any(op.firsts) or op.scales is not None:
        return None
    if {STREAMED, VALUE_PARTS} & op.attributes.keys() or len({op.q, op.k, op.v}) < len("qkv"):
        return None
    makers = [value.owner for value in (op.q, op.k, op.v)]
    q, k, v = (each if isinstance(each, g.MatmulOp) and is_of_tokens(each, op) else None for each in makers)
    if q is None or k is None or v is None or k.a is not v.a or value_bytes(k.a) > value_bytes(q.a):
        return None
    planes = planes_of(q.a)
    reader = sole_reader(op.result)
    after = reader if isinstance(reader, g.MatmulOp) and reader.a is op.result and has_weights(reader) else None
    back = None if planes is None else back_to(g.shape_of(planes), op.result if after is None else after.result)
    return None if planes is None or back is None else TokenAttention(planes, (q, k, v), op, after, back)


def is_of_tokens(product: g.MatmulOp, reader: Operation) -> bool:
    """Whether it makes rows of channels that attention alone reads."""
    return has_weights(product) and sole_reader(product.result) is reader


def has_weights(product: g.MatmulOp) -> bool:
    """Whether a product is one of rows of channels and a constant matrix, and nothing but a bias on the way out."""
    is_plain = product.act is None and product.residual is None and not product.trans_a and product.scales is None
    is_matrix = len(g.shape_of(product.b)) == 2 and len(g.shape_of(product.result)) == len("btc")
    return is_plain and is_matrix and is_float(g.tensor_of(product.result).element_type) and has_constants(product)


def planes_of(tokens: SSAValue) -> SSAValue | None:
    """The planes [B, C, H, W] whose positions are these rows [B, T, C]."""
    move = tokens.owner
    if not isinstance(move, g.TransposeOp) or move.perm != TOKENS or not isinstance(move.x.owner, g.ReshapeOp):
        return None
    planes = move.x.owner.x
    is_plane = len(g.shape_of(planes)) == g.RANK_OF_PLANES and g.shape_of(planes)[:2] == g.shape_of(move.x)[:2]
    return planes if is_plane else None


def back_to(planes: Sequence[int], rows: SSAValue) -> Operation | None:
    """The last of the moves of rows to planes of the same height and width, if these alone read them."""
    move = sole_reader(rows)
    if not isinstance(move, g.TransposeOp) or move.perm != TOKENS:
        return None
    back = sole_reader(move.result)
    if not isinstance(back, g.ReshapeOp):
        return None
    return back if g.shape_of(back.result) == (*g.shape_of(move.result)[:2], *planes[2:]) else None


@dataclass
class _OnPlanes:
    """The layers of one block as they are made."""

    block: TokenAttention
    store: WeightStore

    def write(self, module: ModuleOp) -> bool:
        """Put them instead of the block, where the machine has pieces for that attention."""
        block, whole = self.block, self.block.attention
        target, (q, k, v) = target_of(module), block.makers
        moves = [] if k.a is q.a else self.as_planes(k.a)
        keys = block.planes if k.a is q.a else moves[-1].results[0]
        made = [self.conv(each, x, whole) for each, x in ((q, block.planes), (k, keys), (v, keys))]
        own = g.AttentionOp(
            *made, heads=whole.heads, sizes=whole.sizes, scale=whole.scale, softcap=whole.softcap,
            is_channels_first=True,
        )  # fmt: skip
        own.attributes.update(whole.attributes)
        if plan_of(own, target, element_bytes(whole.q)) is None:
            own.erase()
            for each in (*(x.owner for x in made), *reversed(moves)):
                assert isinstance(each, Operation)
                Rewriter.erase_op(each)
            return False
        result = self.insert(own, whole)
        if block.after is not None:
            result = self.conv(block.after, result, block.after)
        Rewriter.replace_op(block.back, [], [result])
        ops = [use.operation for use in (block.after or whole).results[0].uses]
        for op in (*ops, *([] if block.after is None else [block.after]), whole, *block.makers):
            Rewriter.erase_op(op)
        return True

    def as_planes(self, rows: SSAValue) -> list[Operation]:
        """Rows [B, T, C] as planes [B, C, 1, T]."""
        batch, count, channels = g.shape_of(rows)
        turned = g.TransposeOp(rows, TOKENS)
        moves: list[Operation] = [turned, g.ReshapeOp(turned.result, (batch, channels, 1, count))]
        for move in moves:
            self.insert(move, self.block.attention)
        return moves

    def conv(self, product: g.MatmulOp, x: SSAValue, at: Operation) -> SSAValue:
        """The product as a convolution of planes."""
        weights = product.b.owner
        assert isinstance(weights, g.WeightOp)
        element = g.tensor_of(product.b).element_type
        shape = g.shape_of(product.b) if product.trans_b else g.shape_of(product.b)[::-1]
        turned = partial(as_kernel, self.store, weights.key.data, product.trans_b, numpy_of(element))
        key = self.store.add(f"{weights.key.data}/planes", turned)
        planes = g.WeightOp(key, g.tensor_type(element, (*shape, 1, 1)))
        order = (0, 1) if product.trans_b else (1, 0)
        follow(planes, [weights], self.store, lambda known: known.turned(order).reshaped((*shape, 1, 1)))
        kernel = self.insert(planes, at)
        return self.insert(g.ConvOp(x, kernel, product.bias), at, product)

    def insert(self, op: Operation, at: Operation, like: Operation | None = None) -> SSAValue:
        op.location = (like or at).location
        Rewriter.insert_op(op, InsertPoint.before(at))
        return op.results[0]


def as_kernel(store: WeightStore, key: str, is_turned: bool, dtype: np.dtype) -> Array:
    """A matrix as a kernel [out, in, 1, 1]."""
    matrix = store[key] if is_turned else store[key].T
    return np.ascontiguousarray(matrix[:, :, np.newaxis, np.newaxis], dtype)
