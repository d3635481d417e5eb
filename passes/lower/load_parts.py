"""The pass that loads what a tensor is made of, instead of making the tensor first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from frustum.dialects import isa
from frustum.dialects.choices import Optimise
from frustum.dialects.isa.instruction import value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Copy
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp
from frustum.dialects.module import POLICY, text_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.executions import enclosing_counts
from frustum.passes.lower.keep_tensors import MAPS, has_room
from frustum.passes.lower.moves import (
    BoxMove,
    copies_of_parts,
    erase,
    fill_whole,
    is_each_once,
    is_plain,
    move_of,
    once,
    remove,
    tags_of,
)
from frustum.passes.lower.through_cores import Flow, loaded_bytes
from frustum.passes.plan.model import BUDGET, MOST_PARTS


@dataclass(frozen=True)
class LoadParts(ModulePass):
    """Load tiles of a tensor that is put together in DRAM from the tensors that it is put together from.

    Before: a tensor that only moves write (concatenations along any axis, slices, transpositions) is in DRAM, since
    SRAM has no room for it: its parts are read and written, and then it is read.
    After:
    1. a load of the tensor is a load of each part, clipped to the part, into the same buffer;
    2. where the tensor is an output of the network, or somebody else needs it in DRAM, the first layer that loads all
       of it stores each tile from SRAM, in the first pass that loads it;
    3. the moves are gone.

    Before and after, of keys that are appended to a cache and read head by head:

        fisa.copy gdma %past -> %b; fisa.copy gdma %b -> %keys; ... fisa.copy gdma %keys -> %tile
        fisa.copy gdma %past -> %tile; fisa.copy gdma %new -> %tile; fisa.copy gdma %tile -> %keys

    A tensor for which SRAM has room, and of which more than all is loaded, is left to `frustum-lower-keep-tensors`; but
    for time as many more bytes may be loaded of such tensors as a plan for time may move.
    Networks that are not fused by policy optimal are left as they are: what presets move is what others' rules move.

    Source: docs/techniques/machine.md, "Transfers".
    """

    name = "frustum-lower-load-parts"

    optimise: Optimise = "time"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [] if text_of(op, POLICY) != "optimal" else list(op.walk()):
            if isinstance(program, ProgramOp):
                _Loading(program, target_of(op), self.optimise).run()


@dataclass
class _Loading:
    """A program while moves in it go.

    `number`: of each operation the child of the program that it is in, `place`: how many come before it; what is put in
    an operation's place has its numbers.  `spare_bytes` may be loaded of tensors that SRAM has room for, beyond all of
    each.
    """

    program: ProgramOp
    target: Target
    optimise: Optimise
    spare_bytes: float = 0
    number: dict[Operation, int] = field(default_factory=dict)
    place: dict[Operation, int] = field(default_factory=dict)

    def run(self) -> None:
        """Tensors in the order in which they are declared."""
        children = list(self.program.body.block.ops)
        self.number = {op: k for k, child in enumerate(children) for op in child.walk()}
        self.place = {op: k for k, op in enumerate(self.number)}
        tensors = [op for op in children if isinstance(op, ExternalOp)]
        if self.optimise == "time":
            once = sum(op.bytes.value.data for op in tensors if op.class_.data not in ("intermediate", "program"))
            self.spare_bytes = (BUDGET - 1) * once
        for tensor in tensors:
            moves = self.moves_to(tensor)
            loads = self.loads_of(tensor, moves) if moves else []
            if not loads:
                continue
            again = self.loaded_again(tensor, loads)
            if again > self.spare_bytes and has_room(self.program, tensor, self.target):
                continue
            if fill_whole(moves, tensor, self.target.chip.clusters) and self.replace(tensor, moves, loads):
                self.spare_bytes -= min(again, self.spare_bytes)

    def loaded_again(self, tensor: ExternalOp, loads: Sequence[CopyOp]) -> int:
        """How many more bytes of a tensor are loaded than it has."""
        return loaded_bytes(Flow(tensor, [], loads), self.target.chip.clusters) - tensor.bytes.value.data

    def moves_to(self, tensor: ExternalOp) -> list[BoxMove]:
        """The moves that write a tensor; none where something else writes it, or what they read changes later."""
        if tensor.class_.data not in MAPS:
            return []
        users = [use.operation for use in tensor.buffer.uses]
        stores = [op for op in users if isinstance(op, CopyOp) and op.dst is tensor.buffer]
        stores.sort(key=lambda op: self.place[op])
        if not 0 < len(stores) <= MOST_PARTS or not all(isinstance(op, CopyOp) for op in users):
            return []
        found = [move_of(op) for op in stores]
        moves = [move for move in found if move is not None]
        return moves if len(moves) == len(found) and all(map(self.stays, moves)) else []

    def stays(self, move: BoxMove) -> bool:
        """What is moved is a map or a constant, and is not written again behind the move."""
        owner = move.source.owner
        assert isinstance(owner, ExternalOp)
        writers = [use.operation for use in move.source.uses if isinstance(use.operation, CopyOp)]
        written = [self.number[op] for op in writers if op.dst is move.source]
        return owner.class_.data in (*MAPS, "weight") and all(number < self.number[move.load] for number in written)

    def loads_of(self, tensor: ExternalOp, moves: Sequence[BoxMove]) -> list[CopyOp]:
        """The copies that load a tensor, in the order of the program; none if some come before it is written."""
        users = [use.operation for use in tensor.buffer.uses]
        loads = [op for op in users if isinstance(op, CopyOp) and op.src is tensor.buffer]
        loads.sort(key=lambda op: self.place[op])
        written = max(self.number[move.store] for move in moves)
        return loads if all(self.number[op] > written for op in loads) else []

    def replace(self, tensor: ExternalOp, moves: Sequence[BoxMove], loads: Sequence[CopyOp]) -> bool:
        """Let the loads of a tensor be loads of its parts, where all that must be can be; whether they are."""
        clusters = self.target.chip.clusters
        parts = [loads_of_parts(op, tensor, moves, clusters) for op in loads]
        store = None
        if tensor.class_.data == "output" or None in parts:
            tee = next((k for k, op in enumerate(loads) if parts[k] and is_storable(op, tensor, clusters)), None)
            if tee is None:
                return False
            store = loads[tee]
            ahead = [k for k, op in enumerate(loads) if self.number[op] <= self.number[store]]
        else:
            ahead = list(range(len(loads)))
        if any(parts[k] is None for k in ahead):
            return False
        for k in ahead:
            new = put_in_place(loads[k], parts[k] or [], tensor if loads[k] is store else None, clusters)
            self.number |= dict.fromkeys(new, self.number[loads[k]])
            self.place |= dict.fromkeys(new, self.place[loads[k]])
            erase(loads[k])
        for move in moves:
            remove(move)
        if store is None:
            erase(tensor)
        return True


def loads_of_parts(
    load: CopyOp, tensor: ExternalOp, moves: Sequence[BoxMove], clusters: int
) -> list[tuple[BoxMove, Copy]] | None:
    """A load of a tensor as loads of what was moved there; None where boxes cannot say that."""
    if not (is_plain(load) or load.engine.data == "iodma") or load.fill is not None or load.expand is not None:
        return None
    return copies_of_parts(load, load.src_view.data, tensor.bytes.value.data, moves, clusters)


def is_storable(load: CopyOp, tensor: ExternalOp, clusters: int) -> bool:
    """Whether what a load brings into SRAM, stored once, is all of the tensor, each element once."""
    buffer, view = load.dst.owner, load.src_view.data
    if not is_plain(load) or not isinstance(buffer, AllocOp) or (box := once(load, clusters)) is None:
        return False
    return is_each_once([(box, view, enclosing_counts(load))], tensor, view.element, clusters)


def store_of(load: CopyOp, tensor: ExternalOp, clusters: int, stage: int) -> Operation:
    """The store of what a load has brought, to where it lies in the tensor."""
    box = once(load, clusters)
    assert box is not None
    copy = Copy(engine="gdma", src_view=load.dst_view.data, dst_view=load.src_view.data, box=box)
    return isa.emit(copy, load.dst, tensor.buffer, stage=stage, **tags_of(load))


def put_in_place(
    load: CopyOp, parts: Sequence[tuple[BoxMove, Copy]], stored: ExternalOp | None, clusters: int
) -> list[Operation]:
    """Put loads of parts in front of a load of the whole, and behind it the store of the tile to where it is stored, if
    it is: in the pass of the loop in which the tile is first read."""
    block = load.parent
    assert block is not None
    stage = load.stage.value.data
    new: list[Operation] = [
        isa.emit(copy, move.source, load.dst, stage=stage, **tags_of(load)) for move, copy in parts
    ]
    block.insert_ops_before(new, load)
    if stored is not None:
        store = store_of(load, stored, clusters, max(stage, min(stages_behind(load, block), default=stage)))
        block.insert_op_after(store, load)
        new.append(store)
    return new


def stages_behind(load: CopyOp, block: Block) -> list[int]:
    """The stages in which what stands behind a load in its block uses the tile."""
    users = {use.operation for use in load.dst.uses} - {load}
    ops = list(block.ops)
    behind = ops[ops.index(load) + 1 :]
    return [int(str(value_of(op.properties["stage"]))) for op in behind if any(inner in users for inner in op.walk())]
