"""The pass that stores what is moved elsewhere where it goes, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.dialects import isa
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Copy
from frustum.dialects.isa.sync import ExternalOp, ProgramOp
from frustum.dialects.module import POLICY, text_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.keep_tensors import MAPS, has_room
from frustum.passes.lower.moves import BoxMove, copies_of_parts, erase, is_plain, move_of, remove, tags_of
from frustum.passes.plan.model import MOST_PARTS


@dataclass(frozen=True)
class StoreParts(ModulePass):
    """Store tiles of a tensor that is moved to a place in another tensor where they go.

    Before: a unit stores a tensor in DRAM, and a move loads it and stores it again: to its place in a concatenation
    along any axis, transposed, or some of it (a slice).
    After: each tile is stored from SRAM where it goes, clipped to what is moved of it, and the move is gone.  Where
    nobody else loads the tensor, it is gone too.

    Before and after, of halves that are made apart and put beside each other:

        fisa.copy gdma %tile -> %half; ... fisa.copy gdma %half -> %b; fisa.copy gdma %b -> %whole
        fisa.copy gdma %tile -> %whole

    What goes to a tensor for whose readers SRAM has room from the move on is left to `frustum-lower-keep-tensors`; what
    readers can load from where it is made (`frustum-lower-load-parts`) is no move any more when this pass comes.
    Networks that are not fused by policy optimal are left as they are: what presets move is what others' rules move.

    Source: docs/techniques/machine.md, "Transfers".
    """

    name = "frustum-lower-store-parts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [] if text_of(op, POLICY) != "optimal" else list(op.walk()):
            if isinstance(program, ProgramOp):
                _Storing(program, target_of(op)).run()


@dataclass
class _Storing:
    """A program while moves in it go; `number`: of each operation the child of the program that it is in."""

    program: ProgramOp
    target: Target
    number: dict[Operation, int] = field(default_factory=dict)

    def run(self) -> None:
        """Tensors in the order in which they are declared: what one move writes, a later one may read."""
        children = list(self.program.body.block.ops)
        self.number = {op: k for k, child in enumerate(children) for op in child.walk()}
        for tensor in [op for op in children if isinstance(op, ExternalOp)]:
            if self.replace(tensor) and not tensor.buffer.uses:
                erase(tensor)

    def replace(self, tensor: ExternalOp) -> bool:
        """Let the stores of a tensor be stores to where it is moved; whether there is a move less."""
        if tensor.class_.data != "intermediate":
            return False
        users = [use.operation for use in tensor.buffer.uses]
        stores = [op for op in users if isinstance(op, CopyOp) and op.dst is tensor.buffer]
        moves = self.moves_of(tensor, users)
        if not stores or not moves or len(stores) * len(moves) > MOST_PARTS or not all(map(is_plain, stores)):
            return False
        written = max(self.number[op] for op in stores)
        moves = [move for move in moves if self.number[move.load] > written]
        clusters = self.target.chip.clusters
        back = [move.reversed for move in moves]
        found = [copies_of_parts(op, op.dst_view.data, tensor.bytes.value.data, back, clusters) for op in stores]
        if not moves or any(each is None for each in found):
            return False
        for store, parts in zip(stores, found, strict=True):
            self.number |= dict.fromkeys(put_behind(store, parts or []), self.number[store])
        for move in moves:
            remove(move)
        if all(isinstance(use.operation, CopyOp) and use.operation in stores for use in tensor.buffer.uses):
            for store in stores:
                erase(store)
        return True

    def moves_of(self, tensor: ExternalOp, users: Sequence[Operation]) -> list[BoxMove]:
        """The moves of a tensor to others, in the order of the program."""
        found = []
        for load in sorted(users, key=lambda op: self.number[op]):
            if not isinstance(load, CopyOp) or load.src is not tensor.buffer:
                continue
            others = [use.operation for use in load.dst.uses if use.operation is not load]
            if len(others) == 1 and isinstance(others[0], CopyOp) and others[0].src is load.dst:
                move = move_of(others[0]) if isinstance(others[0].dst.owner, ExternalOp) else None
                if move is not None and self.is_better(move):
                    found.append(move)
        return found

    def is_better(self, move: BoxMove) -> bool:
        """Whether what a move writes is a map, is read behind the move only, and is not to stay in SRAM."""
        there = move.store.dst.owner
        assert isinstance(there, ExternalOp)
        loads = [use.operation for use in there.buffer.uses if use.operation.operands[0] is there.buffer]
        if there.class_.data not in MAPS or any(self.number[op] <= self.number[move.store] for op in loads):
            return False
        return not loads or not has_room(self.program, there, self.target)


def put_behind(store: CopyOp, parts: Sequence[tuple[BoxMove, Copy]]) -> list[Operation]:
    """Stores to where a tensor is moved behind the store of a tile of it."""
    block = store.parent
    assert block is not None
    stage = store.stage.value.data
    new: list[Operation] = [
        isa.emit(copy, store.src, move.store.dst, stage=stage, **tags_of(store)) for move, copy in parts
    ]
    block.insert_ops_after(new, store)
    return new
