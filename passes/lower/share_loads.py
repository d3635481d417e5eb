"""The pass that loads a weight once for all units that load it in the same way."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.dialects.extents import aligned
from frustum.dialects.isa.instruction import attribute_of, value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine, View
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp
from frustum.dialects.module import POLICY, TENSOR, text_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.executions import enclosing_counts
from frustum.passes.lower.memory_in_use import side_by_side
from frustum.passes.plan.model import KEPT_SRAM_SHARE

BESIDE = "src_view", "dst_view", "box", "multicast", "fill", "expand"
"""What makes loads of one tensor the same, with the passes of the loops around them."""


@dataclass(frozen=True)
class ShareLoads(ModulePass):
    """Load a weight that several layers use once, where SRAM has room for it from the first of them to the last.

    Before: each unit loads the weights of its layers into buffers of its own, in one pass or piece by piece in loops.
    After: units that load a weight in the same pieces read them where the first of these units has put them: in one
    buffer with a place for every pass of the loops.

    Before and after, in a loop of two passes:

        fisa.repeat 2 { %b = fisa.alloc bytes 4096 depth 2; fisa.copy gdma %w -> %b; fisa.copy mvdma %b -> ... }
        %b = fisa.alloc bytes 8192
        fisa.repeat 2 { fisa.copy gdma %w -> %b + 4096*i0; fisa.copy mvdma %b + 4096*i0 -> ... }

    Weights that share is saved most for the room that they take are first.  Networks that are not fused by policy
    optimal are left as they are: what presets move is what others' rules move.
    Source: docs/techniques/machine.md, "Transfers".
    """

    name = "frustum-lower-share-loads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [] if text_of(op, POLICY) != "optimal" else op.walk():
            if isinstance(program, ProgramOp):
                _Sharing(program, target_of(op)).run()


@dataclass
class _Load:
    """One load of a weight: the copy, its buffer, who reads that, and the passes of the loops around."""

    copy: CopyOp
    buffer: AllocOp
    readers: Sequence[CopyOp]
    counts: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of all passes together."""
        return aligned(self.buffer.bytes.value.data) * prod(self.counts)


@dataclass
class _Sharing:
    """A program while its loads are shared; `room`: bytes of SRAM that each child of it leaves, by number."""

    program: ProgramOp
    target: Target
    room: list[int] = field(default_factory=list)

    def run(self) -> None:
        self.children = list(self.program.body.block.ops)
        self.number = {op: k for k, child in enumerate(self.children) for op in child.walk()}
        groups = [group for group in self.groups() if len(group) > 1]
        if not groups:
            return
        capacity = int(self.target.memory("sram").capacity_bytes * KEPT_SRAM_SHARE)
        self.room = [capacity - used for used in side_by_side(self.children, "sram")]
        for group in sorted(groups, key=lambda group: -len(group)):
            numbers = [self.number[load.copy] for load in group]
            first, last = min(numbers), max(numbers)
            if min(self.room[first : last + 1]) >= group[0].bytes:
                self.share(group, first)
                self.room[first : last + 1] = [room - group[0].bytes for room in self.room[first : last + 1]]

    def groups(self) -> list[list[_Load]]:
        """Loads of one weight that bring the same pieces, in the order of the program."""
        found: dict[Hashable, list[_Load]] = {}
        for external in self.children:
            if not isinstance(external, ExternalOp) or external.class_.data != "weight":
                continue
            users = sorted((use.operation for use in external.buffer.uses), key=lambda op: self.number[op])
            loads = [load for load in map(_load, users) if load is not None]
            for load in loads if len(loads) == len(users) else ():
                said = tuple(str(load.copy.properties.get(name)) for name in BESIDE)
                key = external, load.counts, load.buffer.bytes.value.data, said
                found.setdefault(key, []).append(load)
        return list(found.values())

    def share(self, group: Sequence[_Load], first: int) -> None:
        """Let the first load of a group be that of all."""
        one = group[0]
        size = aligned(one.buffer.bytes.value.data)
        kept = AllocOp("sram", one.bytes, 1)
        external = one.copy.src.owner
        assert isinstance(external, ExternalOp)
        kept.attributes[TENSOR] = external.external_name
        self.program.body.block.insert_op_before(kept, self.children[first])
        place = Affine()
        passes = 1
        for level in reversed(range(len(one.counts))):
            place = place + Affine.index(level, size * passes)
            passes *= one.counts[level]
        for load in group:
            for copy, name in ((load.copy, "dst_view"), *((reader, "src_view") for reader in load.readers)):
                view = value_of(copy.properties[name])
                assert isinstance(view, View)
                copy.properties[name] = attribute_of(replace(view, offset=view.offset + place))
            load.buffer.buffer.replace_all_uses_with(kept.buffer)
            load.buffer.detach()
            load.buffer.erase()
            if load is not one:
                load.copy.detach()
                load.copy.erase()


def _load(op: Operation) -> _Load | None:
    """What brings a weight into a buffer of its own, whose readers are in the same loops; None for all else."""
    if not isinstance(op, CopyOp) or op.engine.data != "gdma":
        return None
    buffer = op.dst.owner
    if not isinstance(buffer, AllocOp) or buffer.memory != "sram" or buffer.rolling is not None:
        return None
    readers = [use.operation for use in buffer.buffer.uses if use.operation is not op]
    if not readers or not all(isinstance(each, CopyOp) and each.src is buffer.buffer for each in readers):
        return None
    inside = buffer.parent
    if op.parent is not inside or any(not _is_below(each, inside) for each in readers):
        return None
    counts = tuple(enclosing_counts(op))
    moves = op.src_view.data.offset.loops
    if len(moves) < len(counts) or not all(moves[: len(counts)]):  # the same again in some loop
        return None
    return _Load(op, buffer, [each for each in readers if isinstance(each, CopyOp)], counts)


def _is_below(op: Operation, block: object) -> bool:
    """Whether an operation is in a block, or in a loop in it."""
    found: Operation | None = op
    while found is not None:
        if found.parent is block:
            return True
        found = found.parent_op()
    return False
