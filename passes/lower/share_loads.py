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
from frustum.passes.lower.memory_in_use import side_by_side, size_of, units_of
from frustum.passes.lower.moves import is_each_once, is_plain
from frustum.passes.plan.model import KEPT_SRAM_SHARE

BESIDE = "src_view", "dst_view", "box", "multicast", "fill", "expand"
"""What makes loads of one tensor the same, with the passes of the loops around them."""


@dataclass(frozen=True)
class ShareLoads(ModulePass):
    """Load a weight that several layers use once, where SRAM has room for it from the first of them to the last.

    Before: each unit loads the weights of its layers into buffers of its own, in one pass or piece by piece in loops.
    After: units that load a weight in the same pieces read them where the first of these units has put them: in one
    buffer with a place for every pass of the loops.  Where their pieces differ, but each is a window of the tensor as
    it lies in DRAM, and the first unit loads all of it, the buffer is the whole tensor.

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

    @property
    def tensor(self) -> ExternalOp:
        external = self.copy.src.owner
        assert isinstance(external, ExternalOp)
        return external

    @property
    def said(self) -> Hashable:
        """What loads say that bring the same pieces."""
        views = tuple(str(self.copy.properties.get(name)) for name in BESIDE)
        return self.counts, self.buffer.bytes.value.data, views

    @property
    def places(self) -> Affine:
        """Where each pass has its place, all of them one behind the other."""
        found, passes = Affine(), 1
        for level in reversed(range(len(self.counts))):
            found = found + Affine.index(level, aligned(self.buffer.bytes.value.data) * passes)
            passes *= self.counts[level]
        return found

    @property
    def is_window(self) -> bool:
        """Whether the buffer has its elements as far from each other as the tensor."""
        copy = self.copy
        source, target = copy.src_view.data, copy.dst_view.data
        sides = zip(source.strides, target.strides, copy.box.data.extent, strict=True)
        is_same = target.wrap is None and target.offset == Affine()
        return is_same and is_plain(copy) and all(e == 1 or a == b for a, b, e in sides)

    @property
    def brings_all(self) -> bool:
        """Whether it loads all of the tensor, each element once, the same in every cluster."""
        view, box = self.copy.src_view.data, self.copy.box.data
        moving = [view.offset, *box.start, *(limit for limit in box.limit if limit is not None)]
        same = not any(each.cluster for each in moving)
        return same and is_each_once([(box, view, self.counts)], self.tensor, view.element, 1)


@dataclass
class _Group:
    """Loads of one weight, in the order of the program, that one buffer is enough for; `is_whole`: it is the tensor."""

    loads: Sequence[_Load]
    is_whole: bool = False

    @property
    def bytes(self) -> int:
        """Of the buffer."""
        first = self.loads[0]
        return aligned(first.tensor.bytes.value.data) if self.is_whole else first.bytes

    def place(self, load: _Load) -> Affine:
        """Where in the buffer a load's own one begins."""
        return load.copy.src_view.data.offset if self.is_whole else load.places


@dataclass
class _Sharing:
    """A program while its loads are shared; `room`: bytes of SRAM that each child of it leaves, by number."""

    program: ProgramOp
    target: Target
    room: list[int] = field(default_factory=list)

    def run(self) -> None:
        self.children = list(self.program.body.block.ops)
        self.number = {op: k for k, child in enumerate(self.children) for op in child.walk()}
        groups = [group for group in self.groups() if len(group.loads) > 1]
        if not groups:
            return
        self.units = units_of(self.children)
        capacity = int(self.target.memory("sram").capacity_bytes * KEPT_SRAM_SHARE)
        self.room = [capacity - used for used in side_by_side(self.children, "sram")]
        for group in sorted(groups, key=lambda group: -len(group.loads)):
            first, needs = self.needs(group)
            if all(room >= need for room, need in zip(self.room[first:], needs, strict=False)):
                self.share(group, first)
                for k, need in enumerate(needs, first):
                    self.room[k] -= need

    def needs(self, group: _Group) -> tuple[int, list[int]]:
        """The first child that loads something of a group, and how many bytes more than now each from it to the last
        one takes if the group is shared: none for the buffers of loads, of which the shared one takes the place."""
        numbers = [self.number[load.copy] for load in group.loads]
        first, last = min(numbers), max(numbers)
        own: dict[int, int] = {}
        for load in group.loads:
            unit = self.units[self.number[load.copy]]
            own[unit] = own.get(unit, 0) + size_of(load.buffer)
        return first, [group.bytes - own.get(self.units[k], 0) for k in range(first, last + 1)]

    def groups(self) -> list[_Group]:
        """Loads of one weight that bring the same pieces, or windows of one that is loaded whole first."""
        found: list[_Group] = []
        for external in self.children:
            if not isinstance(external, ExternalOp) or external.class_.data != "weight":
                continue
            users = sorted((use.operation for use in external.buffer.uses), key=lambda op: self.number[op])
            loads = [load for load in map(_load, users) if load is not None]
            if len(loads) < max(2, len(users)):
                continue
            alike: dict[Hashable, list[_Load]] = {}
            for load in loads:
                alike.setdefault(load.said, []).append(load)
            if len(alike) > 1 and all(load.is_window for load in loads) and loads[0].brings_all:
                found.append(_Group(loads, is_whole=True))
            else:
                found += map(_Group, alike.values())
        return found

    def share(self, group: _Group, first: int) -> None:
        """Let the first load of a group be that of all."""
        one = group.loads[0]
        kept = AllocOp("sram", group.bytes, 1)
        kept.attributes[TENSOR] = one.tensor.external_name
        self.program.body.block.insert_op_before(kept, self.children[first])
        for load in group.loads:
            place = group.place(load)
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
