"""What the passes that bring weights into WRAM before their layer must know: the pieces that cores take of weights, and
when a program's children begin and what its memories have room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TypeVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from frustum.backend.memory.cost_model import CostModel
from frustum.backend.memory.interference import Life, interference, life_of
from frustum.backend.memory.packing import pack, usable
from frustum.backend.waits.loop_tree import Path, Step
from frustum.backend.waits.read_code import Code, read_code, unit_of
from frustum.dialects.extents import Int, aligned
from frustum.dialects.isa.instruction import Instruction, attribute_of
from frustum.dialects.isa.operations import ConvOp, DepthwiseOp
from frustum.dialects.isa.program import Affine, Memory, View
from frustum.dialects.isa.sync import AllocOp, ProgramOp
from frustum.dialects.target import Target
from frustum.passes.lower import weight_slots as ws
from frustum.passes.lower.executions import enclosing_counts


class Refused(Exception):
    """Why weights stay on their way."""


class Pieces:
    """The weights of a flow as each core needs them: pieces of `piece_bytes`, one for each pass of `counts`, which
    convolutions read from a buffer."""

    def __init__(self, flow: ws.Flow, target: Target) -> None:
        self.flow = flow
        self.slots: ws.Slots = ws.Slots(flow, target.chip.clusters, target.cluster.cores)
        buffer = flow.fill.dst.owner
        if not isinstance(buffer, AllocOp) or buffer.parent is not flow.fill.parent:
            raise Refused("the pieces have a buffer of another loop")
        self.buffer = buffer
        users = [use.operation for use in buffer.buffer.uses if use.operation is not flow.fill]
        self.users: list[ConvOp | DepthwiseOp] = [
            op for op in users if isinstance(op, ConvOp | DepthwiseOp) and op.weight is buffer.buffer
        ]
        if len(self.users) < len(users):
            raise Refused("something else than a convolution reads the pieces")
        self.counts: list[int] = enclosing_counts(flow.fill)
        self.piece_bytes: Int = aligned(buffer.bytes.value.data)
        self.bytes: Int = self.piece_bytes * prod(self.counts)


def read_at(user: Instruction, buffer: SSAValue, offset: Affine) -> None:
    """Let an instruction read a buffer so many bytes further on."""
    for operand, name in user.VIEWS:
        if getattr(user, operand) is buffer:
            own: View = getattr(user, name).data
            user.properties[name] = attribute_of(replace(own, offset=own.offset + offset))


def number_of_piece(levels: Sequence[int], counts: Sequence[int]) -> Affine:
    """The number of a piece in loops at these levels, of so many passes each, outermost first."""
    total, step = Affine(), 1
    for level, count in zip(reversed(levels), reversed(counts), strict=True):
        total, step = total + Affine.index(level, step), step * count
    return total


Found = TypeVar("Found", bound=Pieces)


class ProgramModel:
    """A program, of which the children that hold instructions are numbered: the flows of its weights, when its
    children begin, and what has places in its memories."""

    def __init__(self, program: ProgramOp, target: Target) -> None:
        self.program = program
        self.target = target
        self.room: dict[Memory, int] = {
            memory: usable(target.memory(memory).capacity_bytes) for memory in ("sram", "nram", "wram")
        }

    def pieces_of(self, kind: Callable[[ws.Flow, Target], Found]) -> Iterator[Found]:
        """The weights that cores copy to WRAM and that are of this kind."""
        for flow in ws.flows(self.program):
            if flow is None or flow.fill.engine.data != "mvdma":
                continue
            try:
                yield kind(flow, self.target)
            except (Refused, ws.StaysRaw):
                continue

    # ------------------------------------------------------------ children of the program

    @cached_property
    def code(self) -> Code:
        return read_code(self.program)

    @cached_property
    def model(self) -> CostModel:
        return CostModel(self.code, self.target)

    @cached_property
    def positions(self) -> dict[Operation, int]:
        return {op: n for n, op in enumerate(self.code.operations)}

    @cached_property
    def children(self) -> list[int]:
        """Positions of the children that hold instructions."""
        return [child.position for child in self.model.children]

    @cached_property
    def index(self) -> dict[int, int]:
        """The number of the child at a position."""
        return {position: n for n, position in enumerate(self.children)}

    def child_of(self, op: Operation) -> int:
        """The number of the child that holds an operation."""
        return self.index[self.positions[outermost(op)]]

    @cached_property
    def ends(self) -> list[int]:
        """Of each section the child behind its last."""
        sizes = [len({i.path[0].position for i in section.instructions}) for section in self.code.sections]
        return [*accumulate(sizes)]

    @cached_property
    def chain(self) -> list[float]:
        """When each child is done, as a chain."""
        return [*accumulate(child.cycles for child in self.model.children)]

    @cached_property
    def loads(self) -> list[float]:
        """When what each child loads is there, if the DRAM's port is always busy."""
        return [*accumulate(sum(t.cycles for t in child.transfers) for child in self.model.children)]

    @cached_property
    def units(self) -> list[int]:
        """Of each child the latest unit up to it."""
        found = [0] * len(self.children)
        for section in self.code.sections:
            for instruction, operation in zip(section.instructions, section.operations, strict=True):
                if instruction.engine != "fetch":  # code and tables come long before their unit
                    child = self.index[instruction.path[0].position]
                    found[child] = max(found[child], unit_of(operation))
        return [*accumulate(found, max)]

    # ------------------------------------------------------------ room

    def uses(self, memory: Memory) -> dict[int, list[Path]]:
        """Of each buffer in a memory where it is used."""
        return self._uses.get(memory, {})

    @cached_property
    def _uses(self) -> dict[str, dict[int, list[Path]]]:
        found: dict[str, dict[int, list[Path]]] = {}
        for section in self.code.sections:
            for instruction in section.instructions:
                for access in instruction.accesses:
                    own = found.setdefault(self.code.buffers[access.buffer].memory, {})
                    own.setdefault(access.buffer, []).append(instruction.path)
        return found

    def has_places(self, memory: Memory, gone: Set[int], added: Sequence[tuple[int, int, int]]) -> bool:
        """Whether all buffers of a memory but those that are gone have places, by a trial; `added`: others, each with
        the positions of the first and the last child that use it, and its bytes."""
        left = {n: paths for n, paths in self.uses(memory).items() if n not in gone}
        lives = [life_of(self.code.buffers[n], paths) for n, paths in left.items()]
        lives += [Life((Step(0, start, 0),), start, stop, 0) for start, stop, _ in added]
        sizes = [aligned(self.code.buffers[n].total_bytes) for n in left] + [size for *_, size in added]
        starts = [life.start for life in lives]
        return pack(sizes, interference(lives), starts, self.room[memory]).peak <= self.room[memory]


def programs_of(module: ModuleOp) -> list[ProgramOp]:
    """The programs of a module, which may be changed meanwhile."""
    return [each for each in module.walk() if isinstance(each, ProgramOp)]


def outermost(op: Operation) -> Operation:
    """The child of the program that holds an operation."""
    while not isinstance(parent := op.parent_op(), ProgramOp):
        assert parent is not None
        op = parent
    return op
