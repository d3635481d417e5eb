# Tests: test/passes/lower/test_weight_chunks.py
"""Copies of pieces of weights into the cores, pass by pass of the innermost loop, as one copy in front of that loop.

A small piece is hardly smaller as a block of its own: codes take room in every one.  The pieces of all passes of a loop
as one block do better, where cores have room for them.

    fisa.repeat 8 { %w = fisa.alloc bytes 512 depth 2; fisa.copy bus %held + 512*i1 -> %w; fisa.conv %w }
    %w = fisa.alloc bytes 4096 depth 2; fisa.copy bus %held -> %w; fisa.repeat 8 { fisa.conv %w + 512*i1 }
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import Operation

from frustum.dialects.extents import aligned
from frustum.dialects.isa import program as p
from frustum.dialects.isa.instruction import attribute_of, integer
from frustum.dialects.isa.operations import LOCAL, ConvOp, CopyOp, DepthwiseOp
from frustum.dialects.isa.sync import AllocOp, ProgramOp, RepeatOp
from frustum.dialects.target import Target
from frustum.passes.lower.executions import enclosing_counts
from frustum.passes.lower.memory_in_use import most_in_use, size_of, stage_of
from frustum.passes.lower.weight_chunks import ChunkMoves
from frustum.passes.lower.weight_slots import Flow, by_place, sizes_of

ROOM = 0.75
"""Share of a core's memory that buffers may take with such copies, before they have their places."""


@dataclass
class AtOnce:
    """A flow whose fill stands in front of the loop that the old one, `before`, is in; both are there until `settle` or
    `undo`."""

    flow: Flow
    before: Flow
    buffer: AllocOp
    step: int
    """Bytes from piece to piece."""

    def settle(self) -> None:
        """What reads a piece finds it among all; the old copy and its buffer go."""
        old = self.before.fill
        own = old.dst.owner
        assert isinstance(own, AllocOp)
        level = len(enclosing_counts(old)) - 1
        for user in [use.operation for use in own.buffer.uses if use.operation is not old]:
            assert isinstance(user, ConvOp | DepthwiseOp)
            view = user.weight_view.data
            at = view.offset + p.Affine.index(level, self.step)
            user.properties["weight_view"] = attribute_of(replace(view, offset=at))
        own.buffer.replace_all_uses_with(self.buffer.buffer)
        _erase(old, own)

    def undo(self) -> None:
        """As if nothing had been."""
        _erase(self.flow.fill, self.buffer)


def _erase(*operations: Operation) -> None:
    for op in operations:
        op.detach()
        op.erase()


def at_once(program: ProgramOp, flow: Flow, target: Target) -> AtOnce | None:
    """The copy of all passes at once, a pass of the loop around ahead of them; None where no one copy says it, where
    the loop is not a pass behind the load, or where cores have no room."""
    fill, own = flow.fill, flow.fill.dst.owner
    loop, body = fill.parent_op(), fill.parent
    if not isinstance(own, AllocOp) or own.parent is not body or not isinstance(loop, RepeatOp):
        return None
    if own.rolling is not None or flow.held.parent is body or not _is_read_by_products(own, fill):
        return None
    count, step = loop.count.value.data, aligned(own.bytes.value.data)
    copy = _joined(fill, count, step, target)
    outside = loop.parent
    assert outside is not None
    is_ahead = flow.load.parent is outside and stage_of(loop) > stage_of(flow.load)
    if copy is None or not is_ahead or not _has_room(program, own, step * count * 2, target):
        return None
    buffer = AllocOp(own.memory, step * count, 2)
    copy.operands[1] = buffer.buffer
    copy.properties["stage"] = integer(stage_of(loop) - 1)
    outside.insert_ops_before([buffer, copy], loop)
    return AtOnce(replace(flow, fill=copy), flow, buffer, step)


def _is_read_by_products(own: AllocOp, fill: CopyOp) -> bool:
    users = [use.operation for use in own.buffer.uses if use.operation is not fill]
    return all(isinstance(op, ConvOp | DepthwiseOp) and op.weight is own.buffer for op in users)


def _has_room(program: ProgramOp, own: AllocOp, size_bytes: int, target: Target) -> bool:
    """Whether the buffers that are in use then leave room for a larger one."""
    assert own.memory in LOCAL
    children = list(program.body.block.ops)
    most = most_in_use(children, own.memory)
    child: Operation = own
    while (around := child.parent_op()) is not program:
        assert around is not None
        child = around
    used = most[children.index(child)] - size_of(own)
    return used + size_bytes <= ROOM * target.memory(own.memory).capacity_bytes


def _joined(fill: CopyOp, count: int, step: int, target: Target) -> CopyOp | None:
    """The copies of all passes as one: a dimension of one position becomes that of the passes; None where there is
    none, or passes move pieces of unlike sizes."""
    level = len(enclosing_counts(fill)) - 1
    sizes = sizes_of(fill, target.chip.clusters, target.cluster.cores)
    others = [index for index in by_place(fill, sizes, (fill.src_view.data,)) if index != level]
    moves = ChunkMoves.of(fill, [level, *others], sizes)
    facts = np.concatenate([moves.extents, moves.starts[:1]]).reshape(5, count, -1)
    moved = np.diff(facts, axis=1)
    src, dst, box = fill.src_view.data, fill.dst_view.data, fill.box.data
    free = next((d for d, span in enumerate(box.spans) if span == p.Span(p.ZERO, 1, 1)), None)
    if moved[:4].any() or np.unique(moved[4]).size > 1 or free is None or _without(dst.offset, level) != dst.offset:
        return None
    spans = [_still(span, level) for span in box.spans]
    spans[free] = p.Span(p.ZERO, count, count)
    views = (src, int(moved[4].flat[0]) if moved.size else 0), (dst, step)
    made = fill.clone()
    for name, (view, stride) in zip(("src_view", "dst_view"), views, strict=True):
        strides = tuple(stride if d == free else own for d, own in enumerate(view.strides))
        own = replace(view, offset=_without(view.offset, level), strides=strides)
        made.properties[name] = attribute_of(own)
    made.properties["box"] = attribute_of(p.Box.of(*spans))
    return made


def _still(span: p.Span, level: int) -> p.Span:
    limit = None if span.limit is None else _without(span.limit, level)
    return replace(span, start=_without(span.start, level), limit=limit)


def _without(value: p.Affine, level: int) -> p.Affine:
    """In the first pass of a loop."""
    loops = tuple(0 if k == level else each for k, each in enumerate(value.loops))
    return p.Affine(value.base, loops, value.cluster, value.core)
