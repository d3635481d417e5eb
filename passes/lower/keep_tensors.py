"""The pass that keeps tensors between units in SRAM, in the order in which they would lie in DRAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from frustum.dialects.isa import emit
from frustum.dialects.isa.instruction import attribute_of, value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Copy, View
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp
from frustum.dialects.module import POLICY, TENSOR, WHY_IN_DRAM, text_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.memory_in_use import most_in_use, side_by_side, units_of
from frustum.passes.lower.through_cores import (
    Flow,
    LoadedPart,
    brought,
    cut_at,
    distances,
    distances_to_parts,
    in_own_part,
    in_part,
    loaded_bytes,
    loaded_of,
    may_be_sent,
    may_be_staged,
    needed,
    own_part,
    part_loaded,
    send,
    through_cores,
    windows,
)
from frustum.passes.plan.model import KEPT_SRAM_SHARE, LEAST_READS, LEAST_STAGED_BYTES, MOST_STAGED_BYTES

MAPS = "intermediate", "input", "output"


@dataclass(frozen=True)
class KeepTensors(ModulePass):
    """Keep tensors that units write to DRAM for other units in the SRAM of every cluster.

    Before: a tensor between units that cannot stay as a tile, since some unit reads it in another form, in other
    pieces, or moves its elements (slices, transpositions of any rank, concatenations), is an `external` in DRAM.
    After: where there is room from its first writer to its last reader, it is a buffer in the SRAM of every cluster,
    dense and in the same order, so that all views of it in DRAM are views of it there:
    1. what a cluster stored goes through its cores' NRAM into its own buffer, and by CDMA to those clusters that read
       some of it: along dimensions of which each reads equally many positions, at equal steps, these alone;
    2. what it loaded comes through its cores from its own buffer, each core taking a part;
    3. a move between two such tensors is the same; one from DRAM or to DRAM is one copy, without a tile between;
    4. an input of the network that is loaded more often than once comes into all clusters at once, and from there;
    5. an output that is read again is also stored;
    6. where each cluster loads a part that lies apart from the others', a cluster holds that part alone, and each store
       goes to all the parts in which some of it lies.

    Those that save most bytes of DRAM for the room that they take are first.  Tensors that are loaded with a border of
    constants, and those that other dialects read, stay in DRAM; so do all of networks that are not fused by policy
    optimal: what presets move is what others' rules move.

    Source: docs/techniques/machine.md, "Transfers": MVDMA goes between SRAM and NRAM, CDMA to another cluster's SRAM.
    """

    name = "frustum-lower-keep-tensors"
    closely: bool = True
    """Where a unit's buffers may share their bytes, as the allocator lets them; else each has a place of its own."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        policy = text_of(op, POLICY)
        for program in op.walk():
            if isinstance(program, ProgramOp) and policy == "optimal":
                Keeping(program, target_of(op), self.closely).run()
            elif isinstance(program, ProgramOp):
                for each in program.walk():
                    note(each, "only policy optimal keeps tensors in SRAM")


@dataclass
class Keeping:
    """A program while its tensors find room; `room`: bytes of SRAM that each child of it leaves, by number."""

    program: ProgramOp
    target: Target
    closely: bool
    room: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.children: list[Operation] = list(self.program.body.block.ops)
        self.number: dict[Operation, int] = {op: k for k, child in enumerate(self.children) for op in child.walk()}
        nram = self.target.memory("nram").capacity_bytes
        staged = staged_bytes if self.closely else staged_beside
        self.staged: list[int] = staged(self.children, nram)
        capacity = int(self.target.memory("sram").capacity_bytes * KEPT_SRAM_SHARE)
        in_use = most_in_use if self.closely else side_by_side
        self.room = [capacity - used for used in in_use(self.children, "sram")]

    def run(self) -> None:
        flows: list[Flow] = []
        for external in self.children:
            found = self.flow(external) if isinstance(external, ExternalOp) else None
            if isinstance(found, Flow):
                flows.append(found)
            elif found is not None:
                note(external, found)
        for external in [flow.external for flow in sorted(flows, key=worth, reverse=True)]:
            flow = self.flow(external)  # what copies it may have another tensor in SRAM now
            if isinstance(flow, Flow):
                first, last = self.life(flow)
                self.keep(flow, first)
                self.take(flow, first, last)
            elif flow is not None:
                note(external, flow)

    def flow(self, external: ExternalOp) -> Flow | str | None:
        """How a tensor is written and read, if it may stay in SRAM; else why not, of one between units."""
        kind, size = external.class_.data, external.bytes.value.data
        if kind not in MAPS:
            return None
        users = [use.operation for use in external.buffer.uses]
        copies = [op for op in users if isinstance(op, CopyOp) and may_be_staged(op)]
        if not copies or len(copies) < len(users):
            return "some copies of it fill borders, spread channels or take too many loops to go through cores"
        rooms = [self.staged[self.number[op]] for op in copies if kind == "output" or moved_at_once(op) is None]
        if (staged := min(rooms, default=LEAST_STAGED_BYTES)) < LEAST_STAGED_BYTES:
            return f"a copy through cores needs {LEAST_STAGED_BYTES} bytes of NRAM, {staged} are free"
        stores = [op for op in copies if op.dst is external.buffer]
        loads = [op for op in copies if op.src is external.buffer]
        flow, clusters = Flow(external, stores, loads), self.target.chip.clusters
        first, last = self.life(flow)
        flow.part = own_part(flow, clusters) if stores and loads else None
        free = min(self.room[first : last + 1])
        flow = flow if flow.part is not None else in_parts(flow, clusters) or flow
        if free < flow.kept_bytes:
            return no_room(flow.kept_bytes, free)
        if flow.part is not None:
            flow.to = flow.to or {}
        elif kind == "input":
            flow.to = {} if loaded_bytes(flow, clusters) >= LEAST_READS * size else None
        else:
            flow.to = distances(flow, loaded_of(flow, clusters)) if stores and loads else None
        if flow.to is None:
            return "clusters load parts of it that no one cluster at a fixed distance stores"
        sent = [op for op, to in flow.to.items() if to]
        if sent and self.target.cluster.cdma is None:
            return "clusters load what others store, and no CDMA is there to send it"
        return flow if all(map(may_be_sent, sent)) else "its parts cannot be sent in pieces"

    def life(self, flow: Flow) -> tuple[int, int]:
        """The first and the last child of the program that stores or loads some of the tensor."""
        numbers = [self.number[op] for op in (*flow.stores, *flow.loads)]
        return min(numbers), max(numbers)

    def take(self, flow: Flow, first: int, last: int) -> None:
        """Give a tensor its room in SRAM from one child to another."""
        self.room[first : last + 1] = [room - flow.kept_bytes for room in self.room[first : last + 1]]

    def keep(self, flow: Flow, first: int) -> None:
        """Let the tensor lie in SRAM, and its copies go there."""
        kept = AllocOp("sram", flow.kept_bytes, 1)
        kept.attributes[TENSOR] = flow.external.external_name
        self.program.body.block.insert_op_before(kept, self.children[first])
        is_output = flow.external.class_.data == "output"
        flow.external.buffer.replace_all_uses_with(kept.buffer)
        clusters, found = self.target.chip.clusters, self.windows(flow)
        if not flow.stores:
            whole = brought(flow, kept, clusters)
            self.program.body.block.insert_op_before(whole, self.children[first])
        for op in flow.copies:
            number = self.number[op]
            stay = op.clone() if is_output and op in flow.stores else None
            if flow.is_cut and op in flow.stores:
                self.put(self.stored_in_parts(flow, op, stay), [op], number)
                continue
            if flow.part is not None:
                side = "dst_view" if op in flow.stores else "src_view"
                view = value_of(op.properties[side])
                assert isinstance(view, View)
                op.properties[side] = attribute_of(in_own_part(view))
            pair = None if is_output else moved_at_once(op)
            new: list[Operation] = []
            old: list[Operation] = [op]
            is_there, own = pair is not None, found.get(op, ())
            sent = {by: needed(op, by, own, clusters, is_there=is_there) for by in (flow.to or {}).get(op, ())}
            if pair is None:
                if own:
                    turn_to(op, needed(op, 0, own, clusters, is_there=False))
                new += through_cores(op, self.staged[number], self.target.cluster.cores)
            else:
                new, old = [at_once(*pair)], [pair[1], pair[0], tile_of(pair[0])]
            new += [send(op, by, clusters, is_there, part) for by, part in sent.items()]
            if stay is not None:  # what the network gives goes to DRAM too
                stay.operands[stay.operands.index(kept.buffer)] = flow.external.buffer
                new.append(stay)
            self.put(new, old, number)
        if flow.stores and not is_output:
            flow.external.detach()
            flow.external.erase()

    def windows(self, flow: Flow) -> dict[CopyOp, list[LoadedPart]]:
        """Of each copy that stores into a tensor of which each cluster has all, what the clusters load of it."""
        if not flow.stores or not flow.loads or flow.part is not None:
            return {}
        loaded = loaded_of(flow, self.target.chip.clusters)
        return {op: windows(op, loaded) for op in flow.stores}

    def stored_in_parts(self, flow: Flow, op: CopyOp, stay: CopyOp | None) -> list[Operation]:
        """What a cluster stores, cut at the borders of the clusters' parts: its own through its cores, that of others
        by CDMA; `stay`: the same copy to DRAM, where the network gives the tensor."""
        assert flow.part is not None and flow.to is not None
        clusters, dim = self.target.chip.clusters, cut_at(op, flow.part, self.target.chip.clusters)
        assert dim is not None
        to = flow.to[op]
        new = [send(op, by, clusters, own=in_part(op, dim, by, flow.part)) for by in to if by]
        if 0 in to:
            own = in_part(op, dim, 0, flow.part)
            turn_to(op, own)
            new = through_cores(op, self.staged[self.number[op]], self.target.cluster.cores) + new
        if stay is not None:
            stay.operands[1] = flow.external.buffer
            new.append(stay)
        return new

    def put(self, new: Sequence[Operation], old: Sequence[Operation], number: int) -> None:
        """Operations in the place of others, in a child of the program."""
        parent = old[0].parent
        assert parent is not None
        parent.insert_ops_before(list(new), old[0])
        self.number |= {inner: number for op in new for inner in op.walk()}
        for op in old:
            own = self.number[op]
            if op is self.children[own]:
                self.children[own] = new[0]
            op.detach()
            op.erase()


def turn_to(op: CopyOp, copy: Copy) -> None:
    """Let a copy have the views and the box of another one."""
    op.properties |= {name: attribute_of(getattr(copy, name)) for name in ("src_view", "dst_view", "box")}


def in_parts(flow: Flow, clusters: int) -> Flow | None:
    """The same tensor where each cluster has the part alone that it loads, and is sent that by those who store it; None
    where it cannot be so, or a move within SRAM stores it."""
    if not flow.stores or not flow.loads or any(moved_at_once(op) is not None for op in flow.stores):
        return None
    part = part_loaded(flow, clusters)
    to = None if part is None else distances_to_parts(flow, part, clusters)
    return None if to is None else replace(flow, to=to, part=part, is_cut=True)


def worth(flow: Flow) -> float:
    """How often the tensor's bytes move."""
    return flow.saved_bytes / flow.external.bytes.value.data


def moved_at_once(op: CopyOp) -> tuple[CopyOp, CopyOp] | None:
    """The two copies that take a tile from one tensor to another by way of a buffer, one of which this is: where one
    tensor is in SRAM one copy can.  None where that buffer is read or written by others too."""
    tile = op.src if isinstance(op.dst.owner, ExternalOp) or stays(op.dst) else op.dst
    users = [use.operation for use in tile.uses if isinstance(use.operation, CopyOp)]
    reads = [user for user in users if user.dst is tile]
    writes = [user for user in users if user.src is tile]
    is_alone = (len(reads), len(writes), len(list(tile.uses))) == (1, 1, 2)
    if not isinstance(tile.owner, AllocOp) or stays(tile) or not is_alone:
        return None
    read, write = reads[0], writes[0]
    is_plain = all(may_be_staged(each) and each.parent is tile.owner.parent for each in (read, write))
    is_plain &= read.box.data == write.box.data and read.dst_view.data == write.src_view.data
    return (read, write) if is_plain else None


def stays(buffer: SSAValue) -> bool:
    """Whether it holds a tensor that stays in SRAM."""
    return isinstance(buffer.owner, AllocOp) and TENSOR in buffer.owner.attributes


def tile_of(read: CopyOp) -> Operation:
    """The buffer into which a tile is read."""
    assert isinstance(read.dst.owner, Operation)
    return read.dst.owner


def at_once(read: CopyOp, write: CopyOp) -> CopyOp:
    """One copy instead of two."""
    views, box = (read.src_view.data, write.dst_view.data), read.box.data
    copy = Copy(engine="gdma", src_view=views[0], dst_view=views[1], box=box, multicast=read.multicast is not None)
    tags = {name: int(str(value_of(read.properties[name]))) for name in ("stage", "layer", "unit")}
    made = emit(copy, read.src, write.dst, **tags)
    assert isinstance(made, CopyOp)
    return made


def no_room(size: int, free: int) -> str:
    """Of a tensor of so many bytes in SRAM."""
    return f"it needs {size} bytes of SRAM from its first writer to its last reader, {max(0, free)} are free"


def note(external: Operation, why: str) -> None:
    """Add to what is said of a tensor between units why it is not in SRAM."""
    if (view := text_of(external, WHY_IN_DRAM)) is not None:
        external.attributes[WHY_IN_DRAM] = StringAttr(f"{view}; {why}")


def staged_bytes(children: Sequence[Operation], capacity: int) -> list[int]:
    """Of each child how many bytes of NRAM a copy in it may take, if all its copies with DRAM do."""
    copies = [sum(map(is_bulk, child.walk())) for child in children]
    rooms = zip(most_in_use(children, "nram"), copies, strict=True)
    return [min(MOST_STAGED_BYTES, (capacity - own) // (2 * max(1, count))) for own, count in rooms]


def staged_beside(children: Sequence[Operation], capacity: int) -> list[int]:
    """The same where all buffers of a unit, and those of all its copies, lie side by side."""
    copies: dict[int, int] = {}
    used, units = side_by_side(children, "nram"), units_of(children)
    for unit, child in zip(units, children, strict=True):
        copies[unit] = copies.get(unit, 0) + sum(map(is_bulk, child.walk()))
    rooms = [(capacity - own) // (2 * max(1, copies[unit])) for own, unit in zip(used, units, strict=True)]
    return [min(MOST_STAGED_BYTES, room) for room in rooms]


def has_room(program: ProgramOp, tensor: ExternalOp, target: Target) -> bool:
    """Whether SRAM has room for a tensor from who writes it first to who reads it last, as things stand."""
    children = list(program.body.block.ops)
    users = {use.operation for use in tensor.buffer.uses}
    own = [k for k, child in enumerate(children) if any(op in users for op in child.walk())]
    used = most_in_use(children, "sram")[own[0] : own[-1] + 1]
    return int(target.memory("sram").capacity_bytes * KEPT_SRAM_SHARE) - max(used) >= tensor.bytes.value.data


def is_bulk(op: Operation) -> bool:
    """A copy between DRAM and SRAM of what may be kept."""
    if not isinstance(op, CopyOp) or op.engine.data != "gdma":
        return False
    ends = [end.owner for end in (op.src, op.dst)]
    return any(isinstance(end, ExternalOp) and end.class_.data in MAPS for end in ends)
