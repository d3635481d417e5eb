# Tests: test/backend/test_split_compile.py
"""The plain values of `loop_tree.py` that a `fisa.program` stands for, beside the operations they came from.

From which loop on the executions of a write all write different positions.

Boxes are positions of a map, before clipping.  Along one dimension the pieces that some indices move are apart when,
from the smallest step to the largest, each step is at least what the smaller ones cover.  Executions that differ in
indices whose pieces are apart along some dimension write different positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from frustum.backend.waits.loop_tree import TOGETHER, Access, Buffer, Path, Region, Step
from frustum.backend.waits.loop_tree import Instruction as Plain
from frustum.dialects.foreign import is_foreign
from frustum.dialects.isa.attributes import BufferType
from frustum.dialects.isa.instruction import Instruction
from frustum.dialects.isa.operations import BinaryOp, ConvOp, CopyOp, DepthwiseOp, PoolOp, UnaryOp
from frustum.dialects.isa.program import ELEMENT_BYTES, MAX_LOOPS, ZERO, Affine, Box, Span, View
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, ProgramOp, RepeatOp
from frustum.dialects.module import TARGET, TURNS
from frustum.dialects.target import Target, from_attribute

WRITTEN = ("dst", "out", "acc")
"""Operands an instruction writes; it reads all others."""


@dataclass
class Section:
    """The instructions between two barriers, in textual order."""

    instructions: list[Plain] = field(default_factory=list)
    operations: list[Instruction] = field(default_factory=list)


@dataclass
class Code:
    """One program; a position is an index of `operations`, which are in textual order."""

    buffers: list[Buffer] = field(default_factory=list)
    storage: list[AllocOp | ExternalOp] = field(default_factory=list)
    sections: list[Section] = field(default_factory=lambda: [Section()])
    operations: list[Operation] = field(default_factory=list)
    numbers: dict[SSAValue, int] = field(default_factory=dict)
    """Of each buffer value."""
    bodies: int = 0
    cores: int | None = None
    """Of a cluster; None where nobody asks which writes are apart."""


def read_code(program: ProgramOp, cores: int | None = None) -> Code:
    """The code of a program, sections split at its barriers; with `cores`, which writes are apart."""
    code = Code(cores=cores)
    _read_body(code, program.body.block, (), ())
    return code


def target_of(module: ModuleOp) -> Target:
    """The machine that the module is for."""
    attribute = module.attributes.get(TARGET)
    if not isinstance(attribute, DictionaryAttr):
        raise VerifyException(f"the module has no attribute {TARGET}")
    return from_attribute(attribute)


def layer_of(operation: Instruction) -> int:
    """Index of the instruction's layer in the module's `frustum.layers`."""
    layer: int = operation.layer.value.data
    return layer


def unit_of(operation: Instruction) -> int:
    """Index of the instruction's unit in the module's `frustum.units`."""
    unit: int = operation.unit.value.data
    return unit


def _read_body(code: Code, block: Block, path: Path, counts: tuple[int, ...]) -> None:
    body = code.bodies
    code.bodies += 1
    for op in block.ops:
        position = len(code.operations)
        code.operations.append(op)
        if isinstance(op, Instruction):
            _read_instruction(code, op, (*path, Step(body, position, op.stage.value.data)), counts)
        elif isinstance(op, RepeatOp):
            inner = (*path, Step(body, position, op.stage.value.data))
            _read_body(code, op.body.block, inner, (*counts, op.count.value.data))
        elif isinstance(op, AllocOp):
            depth = op.depth if op.rolling is None else op.rolling
            _add_buffer(code, op, depth.value.data, (*path, Step(body, position, 0)), op.rolling is not None)
        elif isinstance(op, ExternalOp):
            _add_buffer(code, op, 1, (Step(0, position, 0),))
        elif not is_foreign(op):  # what other dialects do in between takes no part
            raise VerifyException(f"'{op.name}': no operation of a program")


def _add_buffer(
    code: Code, op: AllocOp | ExternalOp, depth: int, path: Path, rolling: bool = False
) -> None:
    code.numbers[op.buffer] = len(code.buffers)
    code.storage.append(op)
    assert isinstance(op.buffer.type, BufferType)
    code.buffers.append(Buffer(op.buffer.type.memory, op.bytes.value.data, depth, path, rolling))


def _read_instruction(code: Code, op: Instruction, path: Path, counts: tuple[int, ...]) -> None:
    if isinstance(op, BarrierOp):
        code.sections.append(Section())
        return
    engine = op.engine_of()
    assert engine is not None
    multicast = isinstance(op, CopyOp) and op.multicast is not None
    section = code.sections[-1]
    accesses, takes_turns = _accesses(code, op, counts), TURNS in op.attributes
    section.instructions.append(Plain(engine, path, counts, accesses, multicast, takes_turns))
    section.operations.append(op)


def _accesses(code: Code, op: Instruction, counts: tuple[int, ...]) -> tuple[Access, ...]:
    reaches_out = isinstance(op, CopyOp) and (op.engine.data in ("bus", "cdma") or op.multicast is not None)
    found = []
    for name, _ in op.VIEWS:
        operand = getattr(op, name)
        if operand is not None:
            if operand not in code.numbers:
                raise VerifyException(f"'{op.name}': {name} is a buffer that is made behind it")
            writes = name in WRITTEN
            disjoint = _disjoint_level_of(op, counts, code.cores) if writes and code.cores else TOGETHER
            region = region_of(op, name) if code.cores else None
            everywhere = writes and reaches_out
            found.append(Access(code.numbers[operand], writes, everywhere, disjoint=disjoint, region=region))
    return tuple(found)


def region_of(op: Instruction, name: str) -> Region | None:
    """What an operand touches of its buffer; None where that is not just a box."""
    view: View = getattr(op, f"{name.rstrip('_')}_view").data
    spans = _spans_of(op, name)
    if spans is None or view.wrap is not None or min(view.strides) < 0:
        return None
    is_clipped, peer = True, None
    if isinstance(op, CopyOp) and name == "dst":
        is_clipped = op.fill is None
        peer = None if op.peer is None else op.peer.data
    return Region(view.offset, spans, view.strides, ELEMENT_BYTES[view.element], is_clipped, peer)


def _spans_of(op: Instruction, name: str) -> tuple[Span, ...] | None:
    """The positions along the dimensions of an operand's view: those of the box, or of the windows over it."""
    if not isinstance(op, CopyOp | UnaryOp | BinaryOp | ConvOp | DepthwiseOp | PoolOp):
        return None
    box: Box = op.box.data
    if isinstance(op, CopyOp):
        return None if op.expand is not None and name == "src" else box.spans
    if isinstance(op, UnaryOp | BinaryOp) or name in ("out", "acc", "residual"):
        return box.spans
    if name != "in_":
        return None
    n, c, *_ = box.spans
    if isinstance(op, ConvOp):
        channels: Span = op.channels.data
        groups = op.groups.value.data
        c = channels if groups == 1 else Span(ZERO, channels.extent * groups, channels.extent * groups)
    return n, c, op.rows.data, op.cols.data


def _disjoint_level_of(op: Instruction, counts: tuple[int, ...], cores: int) -> int:
    """`Access.disjoint` of what an instruction writes."""
    if not isinstance(op, CopyOp) or op.engine.data != "mvdma" or op.dst_view.data.wrap is not None:
        return TOGETHER
    if not isinstance(op.dst.type, BufferType) or op.dst.type.memory != "sram":
        return TOGETHER
    return disjoint_level(op.box.data, counts, cores)


CORE = MAX_LOOPS


def disjoint_level(box: Box, counts: Sequence[int], cores: int) -> int:
    """The least level such that executions that differ in core or in loops from that level on write different
    positions; one more than there are loops where cores do not."""
    sizes = {level: count for level, count in enumerate(counts) if count > 1}
    if cores > 1:
        sizes[CORE] = cores
    free: set[int] = set()
    for span in box.spans:
        free |= _disjoint_along(span, sizes)
    if CORE in sizes and CORE not in free:
        return len(counts) + 1
    level = len(counts)
    while level and (level - 1 not in sizes or level - 1 in free):
        level -= 1
    return level


def _disjoint_along(span: Span, sizes: dict[int, int]) -> set[int]:
    """The indices that move a span, if its places are apart for all their values."""
    steps = sorted(
        (abs(step), index) for index, step in _steps(span.start).items() if index in sizes and step
    )
    covered = span.extent
    for step, index in steps:
        if step < covered:
            return set()
        covered += step * (sizes[index] - 1)
    return {index for _, index in steps}


def _steps(start: Affine) -> dict[int, int]:
    return {**dict(enumerate(start.loops)), CORE: start.core}
