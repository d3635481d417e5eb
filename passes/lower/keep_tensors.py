"""The pass that keeps tensors between units in SRAM, in the order in which they would lie in DRAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.dialects.extents import aligned
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, ProgramOp
from frustum.dialects.module import POLICY, TENSOR, text_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.through_cores import (
    Flow,
    brought,
    distances,
    loaded_bytes,
    may_be_sent,
    may_be_staged,
    send,
    through_cores,
)
from frustum.passes.plan.model import KEPT_SRAM_SHARE, LEAST_READS, LEAST_STAGED_BYTES, MOST_STAGED_BYTES


@dataclass(frozen=True)
class KeepTensors(ModulePass):
    """Keep tensors that units write to DRAM for other units in the SRAM of every cluster.

    Before: a tensor between units that cannot stay as a tile, since some unit reads it in another form, in other
    pieces, or moves its elements (slices, transpositions of any rank, concatenations), is an `external` in DRAM.
    After: where there is room from its first writer to its last reader, it is a buffer in the SRAM of every cluster,
    dense and in the same order, so that all views of it in DRAM are views of it there:
    1. what a cluster stored goes through its cores' NRAM into its own buffer, and by CDMA to those clusters that read
       some of it;
    2. what it loaded comes through its cores from its own buffer, each core taking a part;
    3. a move between two such tensors, or from DRAM or to DRAM, is the same;
    4. an input of the network that is loaded more often than once comes into all clusters at once, and from there.

    Those that save most bytes of DRAM for the room that they take are first.  Tensors that are loaded with a border of
    constants, and those that other dialects read, stay in DRAM; so do all of networks that are not fused by policy
    optimal: what presets move is what others' rules move.

    Source: docs/techniques/machine.md, "Transfers": MVDMA goes between SRAM and NRAM, CDMA to another cluster's SRAM.
    """

    name = "frustum-lower-keep-tensors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [] if text_of(op, POLICY) != "optimal" else op.walk():
            if isinstance(program, ProgramOp):
                _Keeping(program, target_of(op)).run()


@dataclass
class _Keeping:
    """A program while its tensors find room; `room`: bytes of SRAM that each child of it leaves, by number."""

    program: ProgramOp
    target: Target
    room: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.children = list(self.program.body.block.ops)
        self.number = {op: k for k, child in enumerate(self.children) for op in child.walk()}
        self.staged = staged_bytes(self.children, self.target.memory("nram").capacity_bytes)
        capacity = int(self.target.memory("sram").capacity_bytes * KEPT_SRAM_SHARE)
        self.room = [capacity - used for used in used_bytes(self.children, "sram")]

    def run(self) -> None:
        found = [self.flow(op) for op in self.children if isinstance(op, ExternalOp)]
        flows = [flow for flow in found if flow is not None]
        for flow in sorted(flows, key=lambda flow: -flow.saved_bytes / flow.external.bytes.value.data):
            first, last = self.life(flow)
            size = aligned(flow.external.bytes.value.data)
            if min(self.room[first : last + 1]) >= size:
                self.keep(flow, first)
                self.room[first : last + 1] = [room - size for room in self.room[first : last + 1]]

    def flow(self, external: ExternalOp) -> Flow | None:
        """How a tensor is written and read, if it may stay in SRAM."""
        kind, size = external.class_.data, external.bytes.value.data
        if kind not in ("intermediate", "input"):
            return None
        users = [use.operation for use in external.buffer.uses]
        copies = [op for op in users if isinstance(op, CopyOp) and may_be_staged(op)]
        if not copies or len(copies) < len(users):
            return None
        if any(self.staged[self.number[op]] < LEAST_STAGED_BYTES for op in copies):
            return None
        stores = [op for op in copies if op.dst is external.buffer]
        loads = [op for op in copies if op.src is external.buffer]
        flow, clusters = Flow(external, stores, loads), self.target.chip.clusters
        first, last = self.life(flow)
        if min(self.room[first : last + 1]) < size:
            return None
        if kind == "input":
            flow.to = [] if loaded_bytes(flow, clusters) >= LEAST_READS * size else None
        else:
            flow.to = distances(flow, clusters) if stores and loads else None
        if flow.to is None or (flow.to and self.target.cluster.cdma is None):
            return None
        return flow if not flow.to or all(map(may_be_sent, stores)) else None

    def life(self, flow: Flow) -> tuple[int, int]:
        """The first and the last child of the program that stores or loads some of the tensor."""
        numbers = [self.number[op] for op in (*flow.stores, *flow.loads)]
        return min(numbers), max(numbers)

    def keep(self, flow: Flow, first: int) -> None:
        """Let the tensor lie in SRAM, and its copies go there."""
        kept = AllocOp("sram", aligned(flow.external.bytes.value.data), 1)
        kept.attributes[TENSOR] = flow.external.external_name
        self.program.body.block.insert_op_before(kept, self.children[first])
        flow.external.buffer.replace_all_uses_with(kept.buffer)
        if not flow.stores:
            whole = brought(flow, kept, self.target.chip.clusters)
            self.program.body.block.insert_op_before(whole, self.children[first])
        for op in (*flow.stores, *flow.loads):
            number = self.number[op]
            to = (flow.to or ()) if op in flow.stores else ()
            new = through_cores(op, self.staged[number], self.target.cluster.cores)
            new += [send(op, by, self.target.chip.clusters) for by in to]
            parent = op.parent
            assert parent is not None
            parent.insert_ops_before(new, op)
            if op is self.children[number]:
                self.children[number] = new[0]
            op.detach()
            op.erase()
        if flow.stores:
            flow.external.detach()
            flow.external.erase()


def staged_bytes(children: Sequence[Operation], capacity: int) -> list[int]:
    """Of each child how many bytes of NRAM a copy in its unit may take, if all copies with DRAM do."""
    used = used_bytes(children, "nram")
    copies: dict[int, int] = {}
    units = units_of(children)
    for unit, child in zip(units, children, strict=True):
        copies[unit] = copies.get(unit, 0) + sum(map(is_bulk, child.walk()))
    rooms = [(capacity - own) // (2 * max(1, copies[unit])) for own, unit in zip(used, units, strict=True)]
    return [min(MOST_STAGED_BYTES, room) for room in rooms]


def used_bytes(children: Sequence[Operation], memory: str) -> list[int]:
    """Of each child the bytes of a memory that its unit takes at most: all its buffers, and those that live over it."""
    units = units_of(children)
    first: dict[AllocOp, int] = {}
    last: dict[AllocOp, int] = {}
    for k, child in enumerate(children):
        for op in child.walk():
            for operand in op.operands:
                buffer = operand.owner
                if isinstance(buffer, AllocOp) and buffer.memory == memory:
                    first[buffer] = min(first.get(buffer, units[k]), units[k])
                    last[buffer] = max(last.get(buffer, units[k]), units[k])
    used = [0] * (max(units, default=0) + 1)
    for buffer, start in first.items():
        for unit in range(start, last[buffer] + 1):
            used[unit] += aligned(buffer.bytes.value.data) * buffer.depth.value.data
    return [used[unit] for unit in units]


def is_bulk(op: Operation) -> bool:
    """A copy between DRAM and SRAM."""
    return isinstance(op, CopyOp) and op.engine.data == "gdma"


def units_of(children: Sequence[Operation]) -> list[int]:
    """Between which barriers each child stands: each unit has its own part."""
    found, unit = [], 0
    for child in children:
        unit += isinstance(child, BarrierOp)
        found.append(unit)
    return found
