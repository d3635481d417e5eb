"""Where the transfers of a unit's tiles stand among its layers, so that the DRAM port works while layers compute.

The GDMA takes its transfers in order.  A load or a store of a whole tile in front of the streamed weights of a layer
keeps that layer waiting for as long as it takes; and a tile of one copy can be loaded again as soon as its last reader
has read it.  So, in the innermost body:

- a load runs one pass ahead, behind the last reader where there is one copy, behind any layer where there are several;
- a store runs one pass behind what is computed, before the first layer that writes its tile where there is one copy;
- where weights are streamed, each is cut by channels into parts, one behind each of those layers.

Source: three-stage pipelining of docs/techniques/tfu.md, "Running a unit", with one copy of each tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import ceil_div, replaced
from frustum.dialects.isa.program import Box, View
from frustum.passes.lower.unit.homes import Home
from frustum.passes.lower.unit.memory_map import CHANNELS
from frustum.passes.lower.unit.tile_loops import TileLoops

MOST_PARTS = 4
"""Of one load or store: more of them cost code and latency and gain little."""


@dataclass(frozen=True)
class Gaps:
    """Between which layers of a unit something may stand: behind layers [first, stop); -1 is before all."""

    first: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.first)


def load_gaps(readers: Sequence[int], layers: int, copies: int) -> Gaps:
    """Of a tile that is loaded in the innermost body, one pass ahead; empty where it must stay in front."""
    return Gaps(-1 if copies > 1 else readers[-1], layers - 1)


def store_gaps(writer: int, layers: int, copies: int) -> Gaps:
    """Of a tile that is stored one pass behind; empty where it must stay in its place."""
    return Gaps(0, layers if copies > 1 else writer)


def is_inside(home: Home, loops: TileLoops) -> bool:
    """Whether a tile has a buffer of its own in the innermost body."""
    return len(loops) > 0 and home.depth == len(loops) and home.is_alone and not loops.unit.sweeps


def gaps_of_store(op: t.StoreOp, home: Home, layers: Sequence[t.ComputeOp], loops: TileLoops) -> Gaps | None:
    """Behind which layers of the next pass a store may stand; None: it stays behind its own."""
    tile = t.tile_of(op.tile)
    if not is_inside(home, loops) or home.is_resident or tile.ring or tile.raster or op.tile.owner not in layers:
        return None
    return store_gaps(layers.index(op.tile.owner), len(layers), loops.deepest_copies) or None


def gaps_of_load(op: t.LoadOp, home: Home, layers: Sequence[t.ComputeOp], loops: TileLoops) -> Gaps | None:
    """Behind which layers a load of the innermost body may stand; None: it stays in front of them."""
    readers = [i for i, layer in enumerate(layers) if any(op.result in each.tiles for each in t.run_of(layer))]
    if not is_inside(home, loops) or not readers or len(readers) != len(list(op.result.uses)):
        return None
    return load_gaps(readers, len(layers), loops.deepest_copies) or None


def put_behind(body: Block, gaps: Gaps, ops: Sequence[Operation], ends: Sequence[Operation], stage: int) -> None:
    """Put a store, one pass late, behind layers that are written already (`ends`: their last operations), or, of
    several copies, are not."""
    set_stage(ops, stage + 1)
    among = Gaps(gaps.first, min(gaps.stop, len(ends)))
    for place, parts in spread(ops, among, in_parts=True).items():
        detach(parts)
        body.insert_ops_after(parts, ends[place])


def put_ahead(
    body: Block, loads: Sequence[tuple[Gaps, list[Operation]]], stage: int, *, in_parts: bool
) -> dict[int, list[Operation]]:
    """The loads of the innermost body by the layer behind which they stand, one pass ahead of all else, of which
    `stage` is the stage."""
    prefetched = {op for _, ops in loads for op in ops}
    if loads and stage == 0:
        set_stage([op for op in body.ops if op not in prefetched], 1)
    placed: dict[int, list[Operation]] = {}
    for gaps, ops in loads:
        for place, parts in spread(ops, gaps, in_parts=in_parts).items():
            if place >= 0:
                detach(parts)
                placed.setdefault(place, []).extend(parts)
            else:
                body.add_ops(op for op in parts if op.parent is None)
    return placed


def detach(ops: Sequence[Operation]) -> None:
    for op in ops:
        if op.parent is not None:
            op.detach()


def spread(ops: Sequence[Operation], gaps: Gaps, *, in_parts: bool) -> dict[int, list[Operation]]:
    """The transfers by the layer behind which they stand; `in_parts`: one behind each, as far as there are channels."""
    copies = [op for op in ops if isinstance(op, isa.CopyOp)]
    if not in_parts or len(gaps) < 2 or len(copies) < len(ops):
        return {gaps.first: list(ops)}
    count = min(MOST_PARTS, len(gaps))
    placed: dict[int, list[Operation]] = {}
    for op in copies:
        parts = parts_of_copy(op, count)
        for k, part in enumerate(parts):
            placed.setdefault(gaps.first + k * len(gaps) // len(parts), []).append(part)
    return placed


def parts_of_copy(op: isa.CopyOp, count: int) -> list[Operation]:
    """The same copy in at most `count` parts, each of some of its channels; whole where channels wrap around."""
    box = op.box.data
    channels = box.extent[CHANNELS]
    views = op.src_view.data, op.dst_view.data
    share = ceil_div(channels, count)
    if share == channels or any(v.wrap is not None and v.wrap.dim == CHANNELS for v in views):
        return [op]
    found: list[Operation] = []
    for first in range(0, channels, share):
        part, whole = op.clone(), box.spans[CHANNELS]
        span = replace(whole, start=whole.start + first, extent=min(share, channels - first))
        own = Box.of(*replaced(box.spans, CHANNELS, span))
        part.properties["box"] = type(op.box)(own)
        for name, view in zip(("src_view", "dst_view"), views, strict=True):
            part.properties[name] = type(op.src_view)(moved(view, first))
        found.append(part)
    op.detach()
    op.erase()
    return found


def moved(view: View, channels: int) -> View:
    """The view some channels further on."""
    return replace(view, offset=view.offset + channels * view.strides[CHANNELS])


def set_stage(ops: Sequence[Operation], stage: int) -> None:
    for op in ops:
        if not isinstance(op, isa.AllocOp):
            op.properties["stage"] = IntegerAttr(stage, i64)


def behind(body: Block, before: Operation | None) -> list[Operation]:
    """What a body has behind one of its operations (None: all of it), but for what it allocates."""
    found, op = [], body.first_op if before is None else before.next_op
    while op is not None:
        if not isinstance(op, isa.AllocOp):
            found.append(op)
        op = op.next_op
    return found
