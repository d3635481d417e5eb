"""Random programs of the machine: small loop trees with stages, buffers at all levels, and all engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from frustum.backend.targets import load
from frustum.dialects.isa.instruction import Instruction, integer
from frustum.dialects.isa.operations import BinaryOp, ConvOp, CopyOp, UnaryOp
from frustum.dialects.isa.program import Affine, Box, Span, View
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, ProgramOp, RepeatOp
from frustum.dialects.module import TARGET
from frustum.dialects.target import Target, to_attribute
from frustum.dialects.target.fit import DoesNotFit

VIEW = View("f32", Affine(), (4, 4, 4, 4))
SPAN = Span(Affine(), 1, 1)
BOX = Box.of(SPAN, SPAN, SPAN, SPAN)
ROUTES = {
    "gdma": ("dram", "sram"),
    "store": ("sram", "dram"),
    "iodma": ("dram", "nram"),
    "iodma_w": ("dram", "wram"),
    "iodma_out": ("nram", "dram"),
    "mvdma": ("sram", "nram"),
    "mvdma_w": ("sram", "wram"),
    "mvdma_out": ("nram", "sram"),
    "bus": ("sram", "wram"),
    "bus_n": ("sram", "nram"),
    "cdma": ("sram", "sram"),
}
ENGINES = {
    "store": "gdma",
    "iodma_w": "iodma",
    "iodma_out": "iodma",
    "mvdma_w": "mvdma",
    "mvdma_out": "mvdma",
}


def machine(clusters: int, cores: int, *, capacity: int = 1 << 20, event_slots: int = 4096) -> Target:
    """A machine of this shape whose on-chip memories have `capacity` bytes each."""
    target = load("default")
    core = target.core
    core = replace(
        core,
        nram=replace(core.nram, capacity_bytes=capacity),
        wram=replace(core.wram, capacity_bytes=capacity),
    )
    cluster = replace(
        target.cluster,
        cores=cores,
        event_slots=event_slots,
        core=core,
        sram=replace(target.cluster.sram, capacity_bytes=capacity),
    )
    return replace(target, chip=replace(target.chip, clusters=clusters, cluster=cluster))


def module_of(target: Target, *ops) -> ModuleOp:
    """A module with one program."""
    program = ProgramOp("main", Region(Block(list(ops))))
    return ModuleOp([program], {TARGET: to_attribute(target)})


def run_passes(module: ModuleOp, *passes: ModulePass) -> ProgramOp | None:
    """Its program after the passes; None where one refuses it."""
    try:
        for each in passes:
            each.apply(Context(), module)
    except (VerifyException, DoesNotFit):
        return None
    module.verify()
    program = module.body.block.first_op
    assert isinstance(program, ProgramOp)
    return program


def copy(engine, src, dst, **common) -> CopyOp:
    return CopyOp(src, dst, engine=engine, src_view=VIEW, dst_view=VIEW, box=BOX, **common)


def unary(src, dst, **common) -> UnaryOp:
    return UnaryOp(src, dst, kind="relu", in_view=VIEW, out_view=VIEW, box=BOX, **common)


def conv(in_, weight, out, acc=None, **common) -> ConvOp:
    if acc is not None:
        common |= {"acc_view": VIEW, "accumulate": 0}
    common |= {name: SPAN for name in ("channels", "rows", "cols")}
    common |= {name: (1, 1) for name in ("kernel", "strides", "dilations")}
    return ConvOp(in_, weight, None, acc, out, in_view=VIEW, weight_view=VIEW, out_view=VIEW, box=BOX, **common)


@dataclass
class Shape:
    """How large a random program may be."""

    instructions: int = 10
    depth: int = 3
    passes: int = 3
    sections: int = 2
    max_stage: int = 2
    executions: int = 90
    rolling: float = 0.0
    """Share of the buffers of loops that roll."""
    units: int = 0
    """Units without barriers between them, each with buffers of its own and what is in DRAM in common; 0: sections
    that have everything in common."""


class Generator:
    def __init__(self, random: Random, shape: Shape) -> None:
        self.random, self.shape = random, shape
        self.left = shape.instructions

    def program(self) -> list:
        ops = [ExternalOp(f"x{n}", "input", 64, (16,), "f32") for n in range(self.random.randint(1, 2))]
        if self.shape.units:
            return [*ops, *self.units(ops)]
        for number in range(self.random.randint(1, self.shape.sections)):
            if number:
                ops.append(BarrierOp())
            self.left = self.shape.instructions
            ops += self.body(0, ops, 1)
        return ops

    def units(self, externals: list) -> list:
        ops = []
        externals = [*externals, ExternalOp("w", "weight", 64, (16,), "f32")]
        for number in range(self.random.randint(2, self.shape.units)):
            self.left = self.shape.instructions
            unit = [AllocOp("sram", 32)]
            unit += [copy("gdma", externals[-1], unit[0]), *self.body(0, [*externals[:-1], *unit], 1)]
            for op in (each for top in unit for each in top.walk() if isinstance(each, Instruction)):
                op.properties["unit"] = integer(number)
            ops += unit
        return [externals[-1], *ops]

    def body(self, level: int, visible: list, passes: int) -> list:
        random = self.random
        ops = []
        for _ in range(random.randint(0 if level else 2, 4)):
            memory = random.choice(["sram", "sram", "nram", "nram", "wram", *(["dram"] if not level else [])])
            depth = random.choice([1, 1, 2, 2, 3]) if level else 1
            size = random.choice([16, 32, 64])
            if level and self.shape.rolling and random.random() < self.shape.rolling:
                ops.append(AllocOp(memory, size, rolling=depth))
            else:
                ops.append(AllocOp(memory, size, depth))
        seen = [op for op in visible if isinstance(op, AllocOp | ExternalOp)] + ops
        staged = level > 0 and random.random() < 0.6
        for _ in range(random.randint(1, 4)):
            stage = random.randint(0, self.shape.max_stage) if staged else 0
            count = random.randint(1, self.shape.passes)
            fits = passes * count * 2 <= self.shape.executions / 3
            if level < self.shape.depth and fits and random.random() < 0.45:
                inner = self.body(level + 1, seen, passes * count)
                ops.append(RepeatOp(count, Region(Block(inner)), stage=stage))
            else:
                ops += self.instruction(seen, stage)
        return ops

    def instruction(self, seen: list, stage: int) -> list:
        if self.left == 0:
            return []
        random = self.random

        def pick(memory):
            found = [op for op in seen if op.buffer.type.memory == memory]
            return random.choice(found) if found else None

        kind = random.choice([*ROUTES, "vector", "vector", "conv", "conv"])
        if kind == "vector":
            a, b, out = pick("nram"), pick("nram"), pick("nram")
            views = {"a_view": VIEW, "b_view": VIEW, "out_view": VIEW, "box": BOX, "stage": stage}
            made = a and BinaryOp(a, b, out, kind="add", **views)
        elif kind == "conv":
            a, w, out, acc = pick("nram"), pick("wram"), pick("nram"), pick("nram")
            made = a and w and conv(a, w, out, acc if random.random() < 0.3 else None, stage=stage)
        else:
            src, dst = (pick(memory) for memory in ROUTES[kind])
            engine = ENGINES.get(kind, kind.split("_")[0])
            extra = {"peer": Affine(1)} if kind == "cdma" else {}
            if kind == "gdma" and random.random() < 0.3:
                extra["multicast"] = True
            made = src and dst and copy(engine, src, dst, stage=stage, **extra)
        if not made:
            return []
        self.left -= 1
        return [made]
