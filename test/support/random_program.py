"""Random programs: every field of every instruction takes values from its whole range."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from frustum.dialects.isa import program as p
from frustum.dialects.isa.fields import (
    BoxOf,
    FieldKind,
    Flag,
    Mask,
    Maybe,
    OneOf,
    Real,
    Register,
    Several,
    Signed,
    Unsigned,
)
from frustum.dialects.isa.format import FIELDS_OF_TYPE

LOOP_SHARE = 0.2
WAITS = (0, 0, 0, 1, 2, 2)


class Maker:
    """Makes nodes; draws small values from a pool again, so that registers are shared."""

    def __init__(self, seed: int, pool: int = 40) -> None:
        self.random = Random(seed)
        self.affines = [self.affine() for _ in range(pool)]
        self.views = [self.view() for _ in range(pool)]
        self.spans = [self.span() for _ in range(pool)]

    def program(self, nodes: int, barriers: int = 1) -> p.Program:
        body: list[p.Node] = []
        for part in range(barriers + 1):
            body += self.body(nodes // (barriers + 1), 0)
            if part < barriers:
                body.append(p.Barrier(layer=self.below(5), unit=self.below(3)))
        return p.Program(
            body=tuple(body),
            externals=(
                p.External("data", "input", 4096, 256, (1, 4, 4, 4), "f32", "float64"),
                p.External("w", "weight", 8192, 64, (4, 4), "f32"),
            ),
            name="random",
            dtype="f32",
            target='{"name": "test"}',
            layers=tuple(f"layer{n}" for n in range(5)),
            units=("u0", "u1", "u2"),
            useful_macs=(1, 2, 3, 4, 5),
            core_slots=2048,
            cluster_slots=2048,
            peak_bytes={"nram": 64, "sram": 128},
        )

    def body(self, nodes: int, depth: int) -> tuple[p.Node, ...]:
        made: list[p.Node] = []
        while nodes > 0:
            if depth < p.MAX_LOOPS and self.random.random() < LOOP_SHARE:
                inner = self.below(nodes) + 1
                made.append(p.Repeat(self.unsigned(32), self.body(inner, depth + 1), self.unsigned(6)))
                nodes -= inner
            else:
                made.append(self.instruction())
                nodes -= 1
        return tuple(made)

    def instruction(self) -> p.Instruction:
        type_ = self.random.choice([each for each in FIELDS_OF_TYPE if each is not p.Barrier])
        common = {
            "stage": self.unsigned(6),
            "waits": tuple(self.wait() for _ in range(self.random.choice(WAITS))),
            "signal": self.maybe(self.unsigned(11)),
            "layer": self.below(5),
            "unit": self.below(3),
        }
        fields = {field.name: self.value(field.kind) for field in FIELDS_OF_TYPE[type_]}
        instruction: p.Instruction = type_(**fields, **common)
        return instruction

    def value(self, kind: FieldKind) -> Any:
        """A value from the whole range of a field of this kind."""
        match kind:
            case Maybe():
                return self.maybe(self.value(kind.kind))
            case Several():
                return tuple(self.value(kind.kind) for _ in range(kind.count))
            case Unsigned():
                return self.unsigned(kind.bits)
            case Signed():
                return self.signed(kind.bits)
            case OneOf():
                return self.random.choice(kind.words)
            case Mask():
                return tuple(bit for bit in range(kind.bits) if self.flag())
            case Register():
                return getattr(self, f"pooled_{kind.kind}")()
        return {Flag: self.flag, Real: self.real, BoxOf: self.box}[type(kind)]()

    def affine(self) -> p.Affine:
        base = self.random.choice((0, self.signed(32), self.signed(64), self.signed(10)))
        loops = tuple(self.maybe(self.signed(32)) or 0 for _ in range(self.below(7)))
        return p.Affine(base, loops, self.maybe(self.signed(32)) or 0, self.maybe(self.signed(32)) or 0)

    def view(self) -> p.View:
        strides = (self.signed(32), 0, self.signed(32), self.signed(10))
        memory = self.random.choice(p.MEMORIES)
        ring = self.maybe(p.Ring(self.unsigned(16), self.unsigned(32), self.below(7)))
        wrap = self.maybe(p.Wrap(self.below(4), 1 + self.unsigned(31), self.pooled_affine())) if not ring else None
        return p.View(self.random.choice(p.ELEMENTS), self.pooled_affine(), strides, memory, ring, wrap)

    def span(self) -> p.Span:
        limit = self.maybe(self.pooled_affine())
        return p.Span(self.pooled_affine(), self.unsigned(32), self.unsigned(32), limit)

    def box(self) -> p.Box:
        return p.Box.of(*(self.pooled_span() for _ in range(4)))

    def wait(self) -> p.Wait:
        return p.Wait(self.unsigned(11), self.random.choice(p.SCOPES), self.pooled_affine())

    def pooled_act(self) -> p.Act:
        return p.Act(self.random.choice(p.UNARY_KINDS), self.real(), self.real())

    def pooled_scale(self) -> p.Scale:
        return p.Scale(self.random.random(), self.signed(32))

    def pooled_affine(self) -> p.Affine:
        return self.random.choice(self.affines)

    def pooled_view(self) -> p.View:
        return self.random.choice(self.views)

    def pooled_span(self) -> p.Span:
        return self.random.choice(self.spans)

    def real(self) -> float:
        return self.random.choice((0.0, -0.0, math.inf, -math.inf, 1e-310, self.random.gauss(0, 1e6)))

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def maybe(self, value: Any) -> Any:
        return value if self.flag() else None

    def below(self, stop: int) -> int:
        return self.random.randrange(stop)

    def unsigned(self, bits: int) -> int:
        return self.random.choice((0, 1, self.below(1 << bits), (1 << bits) - 1))

    def signed(self, bits: int) -> int:
        half = 1 << bits - 1
        return self.random.choice((1, -1, self.random.randrange(-half, half), -half, half - 1))
