"""Attention of queries to keys, all heads at once."""

from __future__ import annotations

import math
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl.declarative_assembly_format import CustomDirective

from frustum.dialects.graph import declaration as d
from frustum.dialects.graph.attributes import Ints, Number, shape_of
from frustum.dialects.graph.scales import Scales, check_scales
from frustum.dialects.graph.shapes import check

RANK_OF_PLANES = 4
"""Axes of a map with channels first whose positions have rows and columns."""


@d.operation
class AttentionOp(d.LayerOp):
    """softmax(cap(q k^T * scale) + mask) v, for each head; the sums are those of f32.

    q, k and v are each [B, rows, channels], where head h has the `sizes` channels from `firsts` + h * size on, or
    [B, heads, rows, size].  `heads`: of queries, of keys and values; query head h belongs to key head
    h // (queries' heads / keys' heads).  `sizes`: of a head of queries and keys, of a head of values.  mask: added to
    the scores, of a shape that broadcasts to [B, heads, T, L].  `softcap` c > 0: scores s are c * tanh(s / c).
    `causal_from` n: query i sees the keys up to i + n only.
    Result: [B, T, heads * size] if `is_merged`, else [B, heads, T, size].  `is_channels_first`: q, k and v are each
    [B, channels, rows], the result is [B, heads * size, T]; or they are planes, [B, channels, height, width], whose
    positions are the rows, and the result is [B, heads * size, height, width] of q's plane.
    Of integers `scales` are those of q, k, v and the result; k and v have the zero point 0, and there is neither mask
    nor cap.  The device then rounds the powers of e to 255ths of the largest.
    Source: Vaswani et al., Attention is all you need, 2017, section 3.2.1; ONNX Attention 23.
    """

    name = "fgraph.attention"
    q: SSAValue = d.operand()
    k: SSAValue = d.operand()
    v: SSAValue = d.operand()
    mask: SSAValue | None = d.operand(default=None)
    heads: Ints = d.prop(d.INTS, kw_only=True)
    sizes: Ints = d.prop(d.INTS, kw_only=True)
    firsts: Ints = d.prop(d.INTS, default=(0, 0, 0), kw_only=True)
    scale: float = d.prop(d.FLOAT, kw_only=True)
    softcap: float = d.prop(d.FLOAT, default=0.0, kw_only=True)
    causal_from: int | None = d.prop(d.INT, default=None, kw_only=True)
    is_merged: bool = d.prop(d.FLAG, default=False, kw_only=True)
    is_channels_first: bool = d.prop(d.FLAG, default=False, kw_only=True)
    scales: Scales | None = d.prop(d.SCALES, default=None, kw_only=True)
    custom_directives: ClassVar[tuple[type[CustomDirective], ...]] = (Number,)
    assembly_format: ClassVar[str] = (
        "$q `,` $k `,` $v (`mask` $mask^)? `heads` $heads `sizes` $sizes `firsts` $firsts "
        "`scale` custom<Number>($scale) `softcap` custom<Number>($softcap) "
        "(`causal_from` $causal_from^)? (`is_merged` $is_merged^)? "
        "(`is_channels_first` $is_channels_first^)? attr-dict `:` functional-type(operands, results)"
    )

    def verify_(self) -> None:
        super().verify_()
        check_scales(self.scales, self.q, self.k, self.v, self.result)
        if self.scales is not None:
            zeros = [scale.zero for scale in self.scales[1:3]]
            check(not any(zeros), f"keys and values of integers have the zero point 0, found {zeros}")
            check(self.mask is None and self.softcap == 0, "attention of integers has neither mask nor cap")

    def inferred(self) -> Ints:
        check(len(self.heads) == len(self.sizes) == 2, "heads and sizes are two numbers each")
        (queries, keys), (size, value_size) = self.heads, self.sizes
        check(
            min(queries, keys, size, value_size) > 0 and queries % keys == 0,
            f"heads {self.heads}, sizes {self.sizes}",
        )
        check(len(self.firsts) == 3 and min(self.firsts) >= 0, "firsts are three channels")
        parts = zip(
            (self.q, self.k, self.v),
            (queries, keys, keys),
            (size, size, value_size),
            self.firsts,
            strict=True,
        )
        check(not (self.is_merged and self.is_channels_first), "a result has its channels first or last")
        found = [rows_of(shape_of(x), n, size, first, self.is_channels_first) for x, n, size, first in parts]
        (batch, rows), *others = found
        check(others[0] == others[1] and others[0][0] == batch, f"batches and rows of q, k, v are {found}")
        if self.mask is not None:
            mask, whole = shape_of(self.mask), (batch, queries, rows, others[0][1])
            padded = (1,) * (4 - len(mask)) + mask
            fits = len(mask) <= 4 and all(a in (1, b) for a, b in zip(padded, whole, strict=True))
            check(fits, f"a mask of {mask} does not broadcast to {whole}")
        if self.is_channels_first:
            ranks = {len(shape_of(x)) for x in (self.q, self.k, self.v)}
            check(len(ranks) == 1, "q, k and v are all planes, or none")
            check(not self.is_of_planes or shape_of(self.k)[2:] == shape_of(self.v)[2:], "k and v are of one plane")
            return batch, queries * value_size, *shape_of(self.q)[2:]
        return (batch, rows, queries * value_size) if self.is_merged else (batch, queries, rows, value_size)

    @property
    def extents(self) -> tuple[int, int, int]:
        """Batch, rows of queries, keys."""
        parts = (self.q, self.heads[0], self.firsts[0]), (self.k, self.heads[1], self.firsts[1])
        (batch, rows), (_, keys) = (
            rows_of(shape_of(x), heads, self.sizes[0], first, self.is_channels_first) for x, heads, first in parts
        )
        return batch, rows, keys

    @property
    def is_of_planes(self) -> bool:
        """Rows of q, k and v are positions of planes."""
        return self.is_channels_first and len(shape_of(self.q)) == RANK_OF_PLANES

    @property
    def macs(self) -> int:
        """Multiply-accumulates, of pairs that are masked too."""
        batch, rows, keys = self.extents
        return batch * self.heads[0] * rows * keys * sum(self.sizes)


def rows_of(shape: Ints, heads: int, size: int, first: int, is_channels_first: bool = False) -> tuple[int, int]:
    """Batch and rows of q, k or v; raises VerifyException for a shape that has no such heads."""
    if is_channels_first:
        check(len(shape) in (3, RANK_OF_PLANES), f"{shape} has no channels before rows")
        shape = shape[0], math.prod(shape[2:]), shape[1]
    if len(shape) == 3:
        check(first + heads * size <= shape[2], f"{heads} heads of {size} from {first} on are not in {shape}")
        return shape[0], shape[1]
    check(
        len(shape) == 4 and shape[1] == heads and shape[3] == size, f"{shape} is not {heads} heads of {size}"
    )
    check(first == 0, "firsts are channels of a tensor of three axes")
    return shape[0], shape[2]
