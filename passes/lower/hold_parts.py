"""The pass that keeps part of a tensor in SRAM where there is no room for all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.dialects import isa
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import ELEMENT_BYTES, Copy
from frustum.dialects.isa.sync import ExternalOp, ProgramOp
from frustum.dialects.module import POLICY, text_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.executions import enclosing_counts
from frustum.passes.lower.keep_tensors import MAPS, Keeping, note
from frustum.passes.lower.load_parts import stages_behind
from frustum.passes.lower.moves import BoxPair, copies_of_parts, erase, is_plain, origin, tags_of
from frustum.passes.lower.through_cores import Flow, loaded_bytes, may_be_staged, places_in
from frustum.passes.plan.model import HELD_FINER, HELD_PART_AT_LEAST, LEAST_READS


@dataclass(frozen=True)
class HoldParts(ModulePass):
    """Keep part of a tensor that moves more often than once in what room is left in SRAM.

    Before: a tensor that units write for others, or an input that is loaded more often than once, is in DRAM, since
    SRAM has no room for all of it.
    After: the last of its rows, channels or images are a tensor of their own, which is in the SRAM of every cluster as
    `frustum-lower-keep-tensors` keeps whole ones.  Each copy of the tensor is two, one of each part, clipped to it:

        fisa.copy gdma %x -> %tile
        fisa.copy mvdma %held -> %b; fisa.copy mvdma %b -> %tile; fisa.copy gdma %x -> %tile (rows before 90)

    1. Of rows, channels and images those are taken of which most fits, the outermost of nearly as much.
    2. Images that units load one by one are tensors by themselves: of each as much stays as there is room for while it
       is read.
    3. On one cluster the first unit that loads an input still loads all of it: what is to stay goes from its tiles to
       SRAM, so that nothing is waited for.

    Tensors that move most often are first.  Those of which the room holds so little that hardly any bytes of DRAM are
    saved are left as they are, and so are networks that are not fused by policy optimal.

    Source: docs/techniques/machine.md, "Transfers".
    """

    name = "frustum-lower-hold-parts"
    closely: bool = True
    """As `frustum-lower-keep-tensors` has it."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [] if text_of(op, POLICY) != "optimal" else list(op.walk()):
            if isinstance(program, ProgramOp):
                _Holding(program, target_of(op), self.closely).run()


@dataclass(frozen=True)
class Stretch:
    """Bytes [start, stop) of a tensor that share no copy with the rest of it, and the copies of them."""

    flow: Flow
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class HeldPart:
    """The part of a stretch that is to be in SRAM, of so many bytes: what is copied of it, and of the rest of the
    stretch, by each of the copies; `start`: of the part in the tensor, where its bytes follow each other there."""

    stretch: Stretch
    bytes: int
    start: int | None
    copies: Sequence[tuple[CopyOp, Copy, Copy]]

    @property
    def tensor(self) -> ExternalOp:
        return self.stretch.flow.external


class _Holding:
    """A program while parts of its tensors find room."""

    def __init__(self, program: ProgramOp, target: Target, closely: bool) -> None:
        self.program, self.target, self.clusters = program, target, target.chip.clusters
        self.keeping = Keeping(program, target, closely)

    def run(self) -> None:
        tensors = [op for op in self.keeping.children if isinstance(op, ExternalOp)]
        found = [each for op in tensors if (flow := flow_of(op)) is not None for each in stretches_of(flow)]
        moved = sum(map(moved_bytes, tensors))
        worth = {k: self.times(each) for k, each in enumerate(found) if self.room(each.flow) > 0}
        for k in sorted((k for k in worth if worth[k] > 0), key=lambda k: -worth[k]):
            whole = worth_of_tensor(found, worth, found[k].flow.external)
            least = HELD_PART_AT_LEAST * moved / worth[k] * (worth[k] * found[k].bytes / whole)
            parts = parts_of(found[k], self.room(found[k].flow), least)
            held = next((held for each in parts if (held := self.held(found[k], *each)) is not None), None)
            if held is not None:
                self.hold(held, *self.keeping.life(found[k].flow))

    def room(self, flow: Flow) -> int:
        """Bytes of SRAM that are free from the first to the last copy of a tensor."""
        first, last = self.keeping.life(flow)
        return min(self.keeping.room[first : last + 1])

    def times(self, stretch: Stretch) -> float:
        """How many bytes of DRAM are saved for each that stays in SRAM."""
        flow, kind = stretch.flow, stretch.flow.external.class_.data
        loaded = loaded_bytes(flow, self.clusters) / stretch.bytes
        if kind == "input":
            return loaded - 1 if loaded >= LEAST_READS else 0
        return loaded if kind == "output" else loaded + 1

    def held(self, stretch: Stretch, rest: BoxPair, part: BoxPair) -> HeldPart | None:
        """A part of a stretch beside the rest of it; None where boxes cannot say the copies of both, or an input's part
        would have to be gathered before the first of its loads."""
        flow, found = stretch.flow, []
        for op in flow.copies:
            view = op.src_view.data if op in flow.loads else op.dst_view.data
            view = replace(view, offset=view.offset - stretch.start)
            both = copies_of_parts(op, view, stretch.bytes, (rest, part), self.clusters)
            if both is None:
                return None
            found.append((op, both[0][1], both[1][1]))
        size = prod(part.extents) * part.to_strides[-1]
        start = stretch.start + part.to_offset if part.extents[1] == 1 else None
        held = HeldPart(stretch, size, start, found)
        return held if start is not None or flow.stores or self.first_loads(held) else None

    def hold(self, held: HeldPart, first: int, last: int) -> None:
        """Let a part be a tensor of its own, in SRAM, or leave all as it is where it cannot be there."""
        tensor, kind = held.tensor, held.tensor.class_.data
        element = held.copies[0][0].src_view.data.element
        taken = self.first_loads(held) if kind == "input" else []
        own = ExternalOp(
            f"{tensor.external_name.data}.held{held.stretch.start or ''}",
            "input" if kind == "input" and not taken else "intermediate",
            held.bytes,
            (held.bytes // ELEMENT_BYTES[element],),
            element,
        )
        self.program.body.block.insert_op_before(own, tensor)
        put = [
            self.put_behind(op, copy, own) if op in taken else self.put_before(op, copy, tensor, own)
            for op, _, copy in held.copies
        ]
        flow = self.keeping.flow(own)
        if not isinstance(flow, Flow):
            for op in (*put, own):
                erase(op)
            return
        note(tensor, f"{held.bytes} of its {tensor.bytes.value.data} bytes are in SRAM")
        flow.inside = (tensor, held.start) if own.class_.data == "input" and held.start is not None else None
        for op, copy, _ in held.copies:
            if op not in taken and (kind != "output" or op.src is tensor.buffer):
                self.keeping.put([emitted(op, copy, tensor, tensor)], [op], self.keeping.number[op])
        self.keeping.keep(flow, first)
        self.keeping.take(flow, first, last)
        if own.parent is not None:
            erase(own)

    def first_loads(self, held: HeldPart) -> list[CopyOp]:
        """The loads of the first unit that loads something of a held part, if these load all of it: they stay, and what
        they bring of it goes from their tiles to SRAM.  None on several clusters, of which each loads its own."""
        if self.clusters > 1:
            return []
        unit = min(tags_of(op)["unit"] for op, _, _ in held.copies)
        first = [(op, copy) for op, _, copy in held.copies if tags_of(op)["unit"] == unit]
        size = ELEMENT_BYTES[held.copies[0][0].src_view.data.element]
        there = np.zeros(held.bytes // size, np.bool_)
        for op, copy in first:
            for places in places_in(copy.box, copy.src_view, enclosing_counts(op), 0):
                there[places] = True
        return [op for op, _ in first] if there.all() else []

    def put_before(self, op: CopyOp, copy: Copy, tensor: ExternalOp, own: ExternalOp) -> Operation:
        """A copy with one tensor in front of a copy with another one: what moves within SRAM waits for no copy from
        DRAM to the same tile, behind which the cores' own copies would wait too."""
        new = emitted(op, copy, tensor, own)
        assert op.parent is not None
        op.parent.insert_op_before(new, op)
        number = self.keeping.number[new] = self.keeping.number[op]
        if op is self.keeping.children[number]:
            self.keeping.children[number] = new
        return new

    def put_behind(self, op: CopyOp, copy: Copy, own: ExternalOp) -> Operation:
        """The store of what a load brings of a held part, in the pass in which the tile is read."""
        block = op.parent
        assert block is not None
        stage = op.stage.value.data
        back = replace(copy, src_view=copy.dst_view, dst_view=copy.src_view, multicast=False)
        stage = max(stage, min(stages_behind(op, block), default=stage))
        new = isa.emit(back, op.dst, own.buffer, stage=stage, **tags_of(op))
        block.insert_op_after(new, op)
        self.keeping.number[new] = self.keeping.number[op]
        return new


def worth_of_tensor(found: Sequence[Stretch], worth: Mapping[int, float], tensor: ExternalOp) -> float:
    """Bytes of DRAM that are saved if all of a tensor stays in SRAM."""
    return sum(times * found[k].bytes for k, times in worth.items() if found[k].flow.external is tensor)


def stretches_of(flow: Flow) -> list[Stretch]:
    """A tensor in stretches that share no copy: of each image, where units load one image each; all of it where copies
    begin elsewhere from pass to pass."""
    size = flow.external.bytes.value.data
    sides = [(op, op.src_view.data if op in flow.loads else op.dst_view.data) for op in flow.copies]
    begins = [origin(view, op.box.data) for op, view in sides]
    if not all(each.is_constant for each in begins):
        return [Stretch(flow, 0, size)]
    found: list[tuple[int, int, list[CopyOp]]] = []
    for (op, view), begin in sorted(zip(sides, begins, strict=True), key=lambda each: each[1].base):
        ends = (stride * (bound - 1) for stride, bound in zip(view.strides, op.box.data.bound, strict=True))
        start, stop = begin.base, begin.base + sum(ends) + ELEMENT_BYTES[view.element]
        if found and start < found[-1][1]:
            first, end, own = found.pop()
            found.append((first, max(end, stop), [*own, op]))
        else:
            found.append((start, stop, [op]))
    if len(found) == 1:
        return [Stretch(flow, 0, size)]
    return [Stretch(of_copies(flow, own), start, stop) for start, stop, own in found]


def of_copies(flow: Flow, own: Collection[CopyOp]) -> Flow:
    """Some of the copies of a tensor."""
    stores, loads = ([op for op in ops if op in own] for ops in (flow.stores, flow.loads))
    return replace(flow, stores=stores, loads=loads)


def emitted(op: CopyOp, copy: Copy, tensor: ExternalOp, own: ExternalOp) -> Operation:
    """A copy in the stage of another one, with one tensor where that has another one."""
    ends = [own.buffer if end is tensor.buffer else end for end in (op.src, op.dst)]
    return isa.emit(copy, ends[0], ends[1], stage=op.stage.value.data, **tags_of(op))


def flow_of(external: ExternalOp) -> Flow | None:
    """How a tensor that is loaded is written and read; None where some of that is no plain copy, or goes backwards."""
    users = [use.operation for use in external.buffer.uses]
    copies = [op for op in users if isinstance(op, CopyOp) and is_plain(op) and may_be_staged(op) and is_forward(op)]
    stores = [op for op in copies if op.dst is external.buffer]
    loads = [op for op in copies if op.src is external.buffer]
    is_there = external.class_.data in MAPS and loads and len(copies) == len(users)
    return Flow(external, stores, loads) if is_there and (stores or external.class_.data == "input") else None


def is_forward(op: CopyOp) -> bool:
    """Whether elements that follow each other in a box never lie before each other in memory."""
    return min(*op.src_view.data.strides, *op.dst_view.data.strides) >= 0


def moved_bytes(external: ExternalOp) -> int:
    """What all copies of a tensor move, nothing clipped."""
    copies = [use.operation for use in external.buffer.uses if isinstance(use.operation, CopyOp)]
    return Flow(external, [], copies).saved_bytes


def strides_of(flow: Flow) -> list[int]:
    """From one element of a tensor to the next along each dimension of its copies, the largest first."""
    views = [op.src_view.data if op in flow.loads else op.dst_view.data for op in flow.copies]
    sides = [zip(view.strides, op.box.data.extent, strict=True) for view, op in zip(views, flow.copies, strict=True)]
    return sorted({stride for side in sides for stride, extent in side if extent > 1 and stride}, reverse=True)


def parts_of(stretch: Stretch, room: int, least: float) -> list[tuple[BoxPair, BoxPair]]:
    """The rest and a part of a stretch, which is the last of its rows, channels or images (whatever has these along one
    of its strides), of all that lies outside of these; parts that take at most `room` bytes, and `least` at least: the
    largest first, but of nearly as large ones the outermost.  Offsets in the stretch, but where the rest is read or
    written, which is in the tensor."""
    element = ELEMENT_BYTES[stretch.flow.copies[0].src_view.data.element]
    found: list[tuple[float, BoxPair, BoxPair]] = []
    outer = stretch.bytes
    for stride in strides_of(stretch.flow):
        if outer % stride or outer == stride:
            continue
        images, count = stretch.bytes // outer, outer // stride
        last = min(room // (images * stride), count - 1)
        if images * last * stride >= max(1, least):
            first, width = count - last, stride // element
            strides = 0, outer, stride, element
            rest = BoxPair(stretch.start, 0, strides, strides, (1, images, first, width))
            own = 0, last * stride, stride, element
            part = BoxPair(0, first * stride, own, strides, (1, images, last, width))
            found.append((images * last * stride / HELD_FINER ** len(found), rest, part))
        outer = stride
    return [(rest, part) for _, rest, part in sorted(found, key=lambda each: -each[0])]
