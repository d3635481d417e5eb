"""Attention as the plain layers that it consists of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import AnyFloat, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.choices import Carry
from frustum.dialects.isa.program import ELEMENT_BYTES, Element, Scale
from frustum.dialects.module import CARRY, STREAMED, TARGET, VALUE_PARTS
from frustum.dialects.target import Target
from frustum.dialects.tile import AttentionLayer, Scaling
from frustum.passes.analysis.module import element_bytes, element_of, target_of
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.errors import Unsupported
from frustum.passes.graph.composites.plain_layers import PlainLayers
from frustum.passes.plan.unit import Budget, UnitPlan, plan_unit
from frustum.passes.weights import store_of

HIDDEN = -1e4
"""Added to a score that must not count: exp of it is 0 in every type, and no sum of it overflows f16."""


FLOATS = ("f32", "f16", "bf16")
WIDE = 4
"""Bytes of f32."""
OPERANDS = 3
"""Queries, keys, values."""
MAP_RANK = 4
PARTS = 2, 4
"""Of the channels of values."""
MORE_BYTES = 1.02
"""Times the fewest bytes that a way may move which takes fewer cycles: one head of 2048 x 64 in f16 at 512 KiB moves
1.327 MB with results that wait in f16, 1.31 MB with values in two parts, which make all scores twice."""
WIDE_CYCLES = 1.02
"""Times the cycles that scores of f32 may take, where the type is for the compiler to choose: heads of 4 x 6 scores on
`edge` are planned with 1.020 times the cycles, counted with 1.004 times, and all within a step of f16 then."""
WIDE_WORK = 1.2
"""The same of the cores alone, where maps may be in SRAM: 49 x 49 scores in windows of `swin_block_28_shift` on
`default`, with 1.22 times the work, made the network take 16,111 cycles instead of 15,072."""
SLOW_BYTES, SLOW_CYCLES = 1.1, 2
"""Of f32 results that wait: the most bytes, as a part of theirs, for which another way is taken that needs less than
one part in so many of their cycles.  One head of 2048 x 64 on `edge` moved 1.20 MB in 8.6 M cycles, with values in two
parts 1.31 MB in 1.9 M."""
SHARE = 0.95
"""Of SRAM, which what is beside the layer leaves it in any case."""


Op = TypeVar("Op", g.NormaliseOp, g.SoftmaxOp)


@dataclass(frozen=True)
class ExpandAttention(ModulePass):
    """Write `fgraph.attention` that the device does not run as one layer as slices, transpositions, products, and a
    softmax.

    Before: any attention; `element` is the type it is to have on the device, `carry` that of results between blocks of
    keys, and of scores: f32, or with `auto` f32 where that takes no more bytes and hardly more cycles.  After: where
    the module has a target, only such of floats as has pieces that fit it; where channels are first and what it reads
    are reshaped planes, it reads these planes as they are, and makes one, if it fits so.  Heads of keys and values that
    several heads of queries share are repeated by a product's batch (queries of a group are rows of it).
    Source: Vaswani et al., 2017, section 3.2.1.
    """

    name = "frustum-graph-expand-attention"

    element: Literal["f32", "f16", "bf16"] | None = None
    carry: Carry = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op) if TARGET in op.attributes else None
        for each in [o for o in op.walk() if isinstance(o, g.AttentionOp)]:
            if self.carry == "f32" and size_of(each, self.element) < WIDE:
                each.attributes[CARRY] = StringAttr("f32")
            found = each if target is None else of_one_head(each, target, self.element)
            if self.carry == "auto" and target is not None and wide_costs_hardly_more(found, target, self.element):
                found.attributes[CARRY] = StringAttr("f32")
            if target is None or not is_whole(found, target, self.element, self.carry):
                _Expansion(found, store_of(op)).run()
            elif not {STREAMED, VALUE_PARTS} & set(found.attributes) and (own := on_planes(found)) is not None:
                if plan_of(own, target, size_of(own, self.element)) is not None:
                    made = [own, g.ReshapeOp(own.result, g.shape_of(found.result))]
                    for new in made:
                        new.location = found.location
                    Rewriter.replace_op(found, made)
                else:
                    own.erase()


def wide_costs_hardly_more(op: g.AttentionOp, target: Target, element: Element | None) -> bool:
    """Whether scores of f32 take no more bytes and hardly more cycles than such of a shorter type, where the device
    runs it as one layer."""
    size = size_of(op, element)
    if element_of(g.tensor_of(op.q).element_type) not in FLOATS or size >= WIDE:
        return False
    if (short := plan_of(op, target, size)) is None:
        return False
    op.attributes[CARRY] = StringAttr("f32")
    wide = plan_of(op, target, size)
    del op.attributes[CARRY]
    if wide is None or wide.dram_bytes > short.dram_bytes or wide.cycles > WIDE_CYCLES * short.cycles:
        return False
    of_wide, of_short = wide.cost.parts, short.cost.parts
    return of_wide is None or of_short is None or of_wide.work_cycles <= WIDE_WORK * of_short.work_cycles


def on_planes(op: g.AttentionOp) -> g.AttentionOp | None:
    """The same of planes, where it reads these as rows in their order, and no more; None of others."""
    if not op.is_channels_first or op.is_of_planes or op.mask is not None or op.causal_from is not None:
        return None
    planes = [x.owner.x for x in (op.q, op.k, op.v) if isinstance(x.owner, g.ReshapeOp)]
    shapes = [g.shape_of(x) for x in planes]
    is_plane = [len(own) == g.RANK_OF_PLANES and own[:2] == g.shape_of(x)[:2]
                for own, x in zip(shapes, (op.q, op.k, op.v), strict=False)]  # fmt: skip
    if len(planes) < OPERANDS or not all(is_plane) or shapes[1][2:] != shapes[2][2:]:
        return None
    q, k, v = planes
    own = g.AttentionOp(
        q, k, v, heads=op.heads, sizes=op.sizes, firsts=op.firsts, scale=op.scale, softcap=op.softcap,
        is_channels_first=True,
    )  # fmt: skip
    own.attributes.update(op.attributes)
    return own


def size_of(op: g.AttentionOp, element: Element | None) -> int:
    """Bytes of an element on the device."""
    return ELEMENT_BYTES[element or element_of(g.tensor_of(op.q).element_type)]


def is_whole(op: g.AttentionOp, target: Target, element: Element | None, carry: Carry) -> bool:
    """Whether the device runs it as one layer: of floats, with pieces and tiles that fit.  Where keys and values of a
    head do not fit SRAM it is noted on the operation what is done instead: keys and values come while it computes, with
    results between their blocks in SRAM, in f32 or the element type; or keys stay with some channels of the values at
    a time, and queries come once for each part of these: then nothing waits, but scores are made several times."""
    if element_of(g.tensor_of(op.q).element_type) not in FLOATS:
        return False
    size = size_of(op, element)
    if plan_of(op, target, size) is not None:
        return True
    words = {"auto": ("f32", "element"), "f32": ("f32",), "element": ("element",)}[carry]
    notes: list[tuple[str, Attribute]] = [
        (STREAMED, StringAttr(kept)) for kept in (words if size < WIDE else ("element",))
    ]
    if op.heads == (1, 1):
        notes += [(VALUE_PARTS, IntegerAttr(parts, i64)) for parts in PARTS if op.sizes[1] % parts == 0]
    found: list[tuple[UnitPlan, str, Attribute]] = []
    for name, note in notes:
        op.attributes[name] = note
        if (plan := plan_of(op, target, size)) is not None:
            found.append((plan, name, note))
        del op.attributes[name]
    if not found:
        return False
    found = without_slow_wide(found, carry)
    most = MORE_BYTES * min(plan.dram_bytes for plan, *_ in found)
    _, name, note = min((each for each in found if each[0].dram_bytes <= most), key=lambda each: each[0].cycles)
    op.attributes[name] = note
    return True


def without_slow_wide(
    found: list[tuple[UnitPlan, str, Attribute]], carry: Carry
) -> list[tuple[UnitPlan, str, Attribute]]:
    """What may be done, without f32 results that wait where nobody asks for them and another way is faster; or, where
    nothing shorter may wait, where another way moves hardly more bytes in much less time."""

    def is_slow(wide: UnitPlan, other: UnitPlan) -> bool:
        if carry == "auto":
            return wide.cycles > WIDE_CYCLES * other.cycles
        return other.dram_bytes <= SLOW_BYTES * wide.dram_bytes and wide.cycles > SLOW_CYCLES * other.cycles

    others = [plan for plan, _, note in found if note != StringAttr("f32")]
    return [
        each for each in found if each[2] != StringAttr("f32") or not any(is_slow(each[0], plan) for plan in others)
    ]


def fits_integers(op: g.AttentionOp, target: Target) -> bool:
    """Whether the device runs it as one layer of integers of 8 bits, of which pieces have all keys."""
    if {STREAMED, VALUE_PARTS} & set(op.attributes):
        return False
    return plan_of(op, target, 1, scales=(Scale(),) * (OPERANDS + 1)) is not None


def of_one_head(op: g.AttentionOp, target: Target, element: Element | None) -> g.AttentionOp:
    """Heads of queries that share no keys are images where each is a plane of its own, if they do not fit SRAM: values
    can come in parts then."""
    (heads, groups), (batch, _, _) = op.heads, op.extents
    is_plane = len(g.shape_of(op.q)) == len(g.shape_of(op.k)) == len(g.shape_of(op.v)) == MAP_RANK
    is_apart = is_plane and heads == groups > 1 and op.mask is None and not any(op.firsts)
    is_apart = is_apart and not (op.is_merged or op.is_channels_first)
    is_apart = is_apart and element_of(g.tensor_of(op.q).element_type) in FLOATS
    if not is_apart or plan_of(op, target, size_of(op, element)) is not None:
        return op
    made: list[Operation] = []

    def shaped(x: SSAValue, shape: Sequence[int]) -> SSAValue:
        made.append(g.ReshapeOp(x, tuple(shape)))
        return made[-1].results[0]

    q, k, v = (shaped(x, (batch * heads, 1, *g.shape_of(x)[2:])) for x in (op.q, op.k, op.v))
    alone = g.AttentionOp(
        q, k, v, heads=(1, 1), sizes=op.sizes, scale=op.scale, softcap=op.softcap, causal_from=op.causal_from
    )
    alone.attributes.update(op.attributes)
    made.append(alone)
    result = shaped(alone.result, g.shape_of(op.result))
    for each in made:
        each.location = op.location
    Rewriter.replace_op(op, made, [result])
    return alone


def without_pieces(module: ModuleOp, kind: type[Op]) -> list[Op]:
    """The layers of this kind that the module's target does not run as one layer; none where it has no target."""
    if TARGET not in module.attributes:
        return []
    target = target_of(module)
    return [each for each in module.walk() if isinstance(each, kind) and not is_one_layer(each, target)]


def is_one_layer(op: g.NormaliseOp | g.SoftmaxOp, target: Target) -> bool:
    """Whether the device runs it as one layer."""
    try:
        return plan_of(op, target, element_bytes(op.x)) is not None
    except Unsupported:  # more than four dimensions
        return False


def plan_of(
    op: g.AttentionOp | g.NormaliseOp | g.SoftmaxOp, target: Target, size: int, scales: Scaling = None
) -> UnitPlan | None:
    """Its pieces and tiles, with elements of so many bytes; `scales` of attention: where these are integers."""
    unit = layers_of([op])
    (layer,) = unit.layers
    if isinstance(layer.kind, AttentionLayer) and scales is not None:
        layer = replace(layer, kind=replace(layer.kind, scales=scales))
    maps = tuple(replace(each, element_bytes=size) for each in layer.maps)
    inputs = tuple(replace(each, element_bytes=size) for each in unit.inputs)
    sized = replace(unit, layers=(replace(layer, maps=maps, out_bytes=size),), inputs=inputs)
    return plan_unit(sized, target, Budget(int(SHARE * target.cluster.sram.capacity_bytes)))


@dataclass
class _Expansion(PlainLayers):
    """The layers of one attention as they are made."""

    op: g.AttentionOp

    @property
    def element(self) -> AnyFloat:
        """Of the operands."""
        element = g.tensor_of(self.op.q).element_type
        assert isinstance(element, AnyFloat)
        return element

    def run(self) -> None:
        op = self.op
        (heads, groups), (size, value_size) = op.heads, op.sizes
        batch, rows, keys = op.extents
        share = heads // groups
        q = self.of_heads(op.q, heads, size, op.firsts[0])
        q = self.shaped(self.scaled(q, op.scale), (batch, groups, share * rows, size))
        k = self.of_heads(op.k, groups, size, op.firsts[1])
        v = self.of_heads(op.v, groups, value_size, op.firsts[2])
        scores = self.add(g.MatmulOp(q, k, trans_b=True))
        scores = self.shaped(scores, (batch, heads, rows, keys))
        if op.softcap > 0:
            scores = self.add(g.UnaryOp(g.ActAttr.of("tanh"), self.scaled(scores, 1 / op.softcap)))
            scores = self.scaled(scores, op.softcap)
        for mask in (op.mask, self.causal(rows, keys)):
            if mask is not None:
                scores = self.add(g.BinaryOp("add", scores, mask))
        weights = self.shaped(self.add(g.SoftmaxOp(scores, 3)), (batch, groups, share * rows, keys))
        result = self.shaped(self.add(g.MatmulOp(weights, v)), (batch, heads, rows, value_size))
        if op.causal_from is not None and op.causal_from < 0:
            sees = np.arange(rows)[:, np.newaxis] + op.causal_from >= 0
            result = self.add(g.BinaryOp("mul", result, self.constant("sees", sees, self.element)))
        if op.is_merged:
            result = self.add(g.TransposeOp(result, (0, 2, 1, 3)))
            result = self.shaped(result, (batch, rows, heads * value_size))
        if op.is_channels_first:
            result = self.add(g.TransposeOp(result, (0, 1, 3, 2)))
            result = self.shaped(result, g.shape_of(op.result))
        Rewriter.replace_op(op, self.made, [result])

    def scaled(self, x: SSAValue, factor: float) -> SSAValue:
        if factor == 1:
            return x
        return self.add(g.BinaryOp("mul", x, self.constant("scale", np.array(factor), self.element)))

    def causal(self, rows: int, keys: int) -> SSAValue | None:
        if self.op.causal_from is None:
            return None
        is_hidden = np.arange(keys) > np.arange(rows)[:, np.newaxis] + self.op.causal_from
        return self.constant("causal", np.where(is_hidden, HIDDEN, 0), self.element)

    def of_heads(self, x: SSAValue, heads: int, size: int, first: int) -> SSAValue:
        """[B, heads, rows, size]"""
        shape = g.shape_of(x)
        if self.op.is_of_planes:
            shape = (*shape[:2], math.prod(shape[2:]))
            x = self.shaped(x, shape)
        if len(shape) == 4:
            return x
        if self.op.is_channels_first:
            batch, channels, rows = shape
            if heads * size != channels:
                x = self.add(g.SliceOp(x, (0, first, 0), (batch, heads * size, rows)))
            return self.add(g.TransposeOp(self.shaped(x, (batch, heads, size, rows)), (0, 1, 3, 2)))
        batch, rows, channels = shape
        if heads * size != channels:
            x = self.add(g.SliceOp(x, (0, 0, first), (batch, rows, heads * size)))
        return self.add(g.TransposeOp(self.shaped(x, (batch, rows, heads, size)), (0, 2, 1, 3)))
