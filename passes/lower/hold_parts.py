"""The pass that keeps part of a tensor in SRAM where there is no room for all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from frustum.passes.lower.keep_tensors import MAPS, Keeping, note
from frustum.passes.lower.moves import BoxPair, copies_of_parts, erase, is_plain, tags_of
from frustum.passes.lower.through_cores import Flow, loaded_bytes, may_be_staged
from frustum.passes.plan.model import HELD_PART_AT_LEAST, LEAST_READS


@dataclass(frozen=True)
class HoldParts(ModulePass):
    """Keep part of a tensor that moves more often than once in what room is left in SRAM.

    Before: a tensor that units write for others, or an input that is loaded more often than once, is in DRAM, since
    SRAM has no room for all of it.
    After: the last of its rows, channels or images, whatever lies outermost in it, are a tensor of their own, which is
    in the SRAM of every cluster as `frustum-lower-keep-tensors` keeps whole ones.  Each copy of the tensor is two, one
    of each part, clipped to it:

        fisa.copy gdma %x -> %tile
        fisa.copy gdma %x -> %tile (rows before 90); fisa.copy mvdma %held -> %b; fisa.copy mvdma %b -> %tile

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
class HeldPart:
    """The part of a tensor from a byte on, which is to be in SRAM: what is copied of it, and of the rest, by each of
    the tensor's copies."""

    tensor: ExternalOp
    start: int
    copies: Sequence[tuple[CopyOp, Copy, Copy]]

    @property
    def bytes(self) -> int:
        return self.tensor.bytes.value.data - self.start


class _Holding:
    """A program while parts of its tensors find room."""

    def __init__(self, program: ProgramOp, target: Target, closely: bool) -> None:
        self.program, self.target, self.clusters = program, target, target.chip.clusters
        self.keeping = Keeping(program, target, closely)

    def run(self) -> None:
        tensors = [op for op in self.keeping.children if isinstance(op, ExternalOp)]
        flows = [flow for op in tensors if (flow := flow_of(op)) is not None]
        moved = sum(map(moved_bytes, tensors))
        worth = {k: self.times(flow) for k, flow in enumerate(flows) if self.room(flow) > 0}
        for k in sorted((k for k in worth if worth[k] > 0), key=lambda k: -worth[k]):
            ends = starts(flows[k], self.room(flows[k]), HELD_PART_AT_LEAST * moved / worth[k])
            held = next((held for end in ends if (held := self.held(flows[k], *end)) is not None), None)
            if held is not None:
                self.hold(held, *self.keeping.life(flows[k]))

    def room(self, flow: Flow) -> int:
        """Bytes of SRAM that are free from the first to the last copy of a tensor."""
        first, last = self.keeping.life(flow)
        return min(self.keeping.room[first : last + 1])

    def times(self, flow: Flow) -> float:
        """How many bytes of DRAM are saved for each that stays in SRAM."""
        size, kind = flow.external.bytes.value.data, flow.external.class_.data
        loaded = loaded_bytes(flow, self.clusters) / size
        if kind == "input":
            return loaded - 1 if loaded >= LEAST_READS else 0
        return loaded if kind == "output" else loaded + 1

    def held(self, flow: Flow, start: int, step: int) -> HeldPart | None:
        """The part of a tensor from a byte on, in steps of so many; None where boxes cannot say the copies of it."""
        size = flow.external.bytes.value.data
        element = ELEMENT_BYTES[flow.copies[0].src_view.data.element]
        strides = 0, 0, step, element
        rest, part = (
            BoxPair(0, begin, strides, strides, (1, 1, (end - begin) // step, step // element))
            for begin, end in ((0, start), (start, size))
        )
        found = []
        for op in flow.copies:
            view = op.src_view.data if op in flow.loads else op.dst_view.data
            both = copies_of_parts(op, view, flow.external, (rest, part), self.clusters)
            if both is None:
                return None
            found.append((op, both[0][1], both[1][1]))
        return HeldPart(flow.external, start, found)

    def hold(self, held: HeldPart, first: int, last: int) -> None:
        """Let a part be a tensor of its own, in SRAM, or leave all as it is where it cannot be there."""
        tensor, kind = held.tensor, held.tensor.class_.data
        element = held.copies[0][0].src_view.data.element
        own = ExternalOp(
            f"{tensor.external_name.data}.held",
            "input" if kind == "input" else "intermediate",
            held.bytes,
            (held.bytes // ELEMENT_BYTES[element],),
            element,
        )
        self.program.body.block.insert_op_before(own, tensor)
        put = [self.put_behind(op, copy, tensor, own) for op, _, copy in held.copies]
        flow = self.keeping.flow(own)
        if not isinstance(flow, Flow):
            for op in (*put, own):
                erase(op)
            return
        note(tensor, f"{held.bytes} of its {tensor.bytes.value.data} bytes are in SRAM")
        flow.inside = (tensor, held.start) if kind == "input" else None
        for op, copy, _ in held.copies:
            if kind != "output" or op.src is tensor.buffer:
                self.keeping.put([emitted(op, copy, tensor, tensor)], [op], self.keeping.number[op])
        self.keeping.keep(flow, first)
        self.keeping.take(flow, first, last)
        if own.parent is not None:
            erase(own)

    def put_behind(self, op: CopyOp, copy: Copy, tensor: ExternalOp, own: ExternalOp) -> Operation:
        """A copy with one tensor behind a copy with another one."""
        new = emitted(op, copy, tensor, own)
        assert op.parent is not None
        op.parent.insert_op_after(new, op)
        self.keeping.number[new] = self.keeping.number[op]
        return new


def emitted(op: CopyOp, copy: Copy, tensor: ExternalOp, own: ExternalOp) -> Operation:
    """A copy in the stage of another one, with one tensor where that has another one."""
    ends = [own.buffer if end is tensor.buffer else end for end in (op.src, op.dst)]
    return isa.emit(copy, ends[0], ends[1], stage=op.stage.value.data, **tags_of(op))


def flow_of(external: ExternalOp) -> Flow | None:
    """How a tensor that is loaded is written and read; None where some of that is no plain copy."""
    users = [use.operation for use in external.buffer.uses]
    copies = [op for op in users if isinstance(op, CopyOp) and is_plain(op) and may_be_staged(op)]
    stores = [op for op in copies if op.dst is external.buffer]
    loads = [op for op in copies if op.src is external.buffer]
    is_there = external.class_.data in MAPS and loads and len(copies) == len(users)
    return Flow(external, stores, loads) if is_there and (stores or external.class_.data == "input") else None


def moved_bytes(external: ExternalOp) -> int:
    """What all copies of a tensor move, nothing clipped."""
    copies = [use.operation for use in external.buffer.uses if isinstance(use.operation, CopyOp)]
    return Flow(external, [], copies).saved_bytes


def strides_of(flow: Flow) -> list[int]:
    """From one element of a tensor to the next along each dimension of its copies, the largest first."""
    views = [op.src_view.data if op in flow.loads else op.dst_view.data for op in flow.copies]
    sides = [zip(view.strides, op.box.data.extent, strict=True) for view, op in zip(views, flow.copies, strict=True)]
    return sorted({stride for side in sides for stride, extent in side if extent > 1 and stride}, reverse=True)


def starts(flow: Flow, room: int, least: float) -> Iterator[tuple[int, int]]:
    """Where parts may begin that take at most `room` bytes, and `least` at least, and the bytes of a step, the largest
    first."""
    size = flow.external.bytes.value.data
    for stride in strides_of(flow):
        if size % stride == 0 and size > stride:
            count = min(room // stride, size // stride - 1)
            if count * stride >= max(1, least):
                yield size - count * stride, stride
