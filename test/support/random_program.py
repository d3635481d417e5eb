"""Random programs: every field of every instruction takes values from its whole range."""

from __future__ import annotations

import math
from random import Random
from typing import Any, get_args

from frustum.dialects.isa import program as p

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
        make = self.random.choice([getattr(self, name) for name in dir(self) if name.startswith("make_")])
        common = {
            "stage": self.unsigned(6),
            "waits": tuple(self.wait() for _ in range(self.random.choice(WAITS))),
            "signal": self.maybe(self.unsigned(11)),
            "layer": self.below(5),
            "unit": self.below(3),
        }
        instruction: p.Instruction = make(common)
        return instruction

    def make_copy(self, common: dict[str, Any]) -> p.Copy:
        return p.Copy(
            engine=self.random.choice(get_args(p.CopyEngine)),
            src_view=self.pooled_view(),
            dst_view=self.pooled_view(),
            box=self.box(),
            fill=self.maybe(self.real()),
            multicast=self.flag(),
            peer=self.maybe(self.pooled_affine()),
            expand=self.maybe(self.unsigned(30)),
            **common,
        )

    def make_conv(self, common: dict[str, Any]) -> p.Conv:
        return p.Conv(
            in_view=self.pooled_view(),
            weight_view=self.pooled_view(),
            bias_view=self.maybe(self.pooled_view()),
            acc_view=self.maybe(self.pooled_view()),
            out_view=self.pooled_view(),
            box=self.box(),
            channels=self.pooled_span(),
            rows=self.pooled_span(),
            cols=self.pooled_span(),
            groups=self.unsigned(16),
            accumulate=self.maybe(self.below(6)),
            act=self.act(),
            line_mode=self.random.choice(get_args(p.LineMode)),
            table=self.maybe(self.unsigned(6)),
            weight_zero_view=self.maybe(self.pooled_view()),
            multiplier_view=self.maybe(self.pooled_view()),
            residual_view=self.maybe(self.pooled_view()),
            in_zero=self.signed(16),
            out_zero=self.signed(16),
            scales=self.scales(3),
            **self.window(),
            **common,
        )

    def make_line_buffer(self, common: dict[str, Any]) -> p.LineBuffer:
        return p.LineBuffer(
            mode=self.random.choice(get_args(p.RunMode)),
            source=self.random.choice(get_args(p.LineSource)),
            blocks=self.unsigned(32),
            shift=self.unsigned(16),
            second_shift=self.unsigned(16),
            boundary=self.unsigned(32),
            lines=self.unsigned(16),
            padding=(self.unsigned(16), self.unsigned(16), 0, self.unsigned(16)),
            discard=self.maybe((self.unsigned(32), self.unsigned(32), self.unsigned(32))),
            **common,
        )

    def make_pool(self, common: dict[str, Any]) -> p.Pool:
        return p.Pool(
            kind=self.random.choice(p.POOL_KINDS),
            **self.in_to_out(),
            rows=self.pooled_span(),
            cols=self.pooled_span(),
            include_pad=self.flag(),
            pad_low=(self.unsigned(16), 1),
            pad_high=(0, self.unsigned(16)),
            act=self.act(),
            scales=self.scales(2),
            **self.window(),
            **common,
        )

    def make_unary(self, common: dict[str, Any]) -> p.Unary:
        kind = self.random.choice(p.UNARY_KINDS)
        values = {"alpha": self.real(), "beta": self.real(), "scales": self.scales(2)}
        return p.Unary(kind=kind, **self.in_to_out(), **values, **common)

    def make_binary(self, common: dict[str, Any]) -> p.Binary:
        return p.Binary(
            kind=self.random.choice(p.BINARY_KINDS),
            a_view=self.pooled_view(),
            b_view=self.pooled_view(),
            out_view=self.pooled_view(),
            box=self.box(),
            act=self.act(),
            scales=self.scales(3),
            **common,
        )

    def make_softmax(self, common: dict[str, Any]) -> p.Softmax:
        return p.Softmax(**self.in_to_out(), axis=self.below(4), scales=self.scales(2), **common)

    def make_reduce(self, common: dict[str, Any]) -> p.Reduce:
        return p.Reduce(
            kind=self.random.choice(p.REDUCE_KINDS),
            **self.in_to_out(),
            axes=tuple(axis for axis in range(4) if self.flag()),
            scale=self.real(),
            accumulate=self.maybe(self.below(6)),
            scales=self.scales(2),
            **common,
        )

    def make_lrn(self, common: dict[str, Any]) -> p.Lrn:
        return p.Lrn(
            **self.in_to_out(),
            channels=self.pooled_span(),
            size=self.unsigned(32),
            alpha=self.real(),
            beta=self.real(),
            bias=self.real(),
            scales=self.scales(2),
            **common,
        )

    def make_resize(self, common: dict[str, Any]) -> p.Resize:
        return p.Resize(
            mode=self.random.choice(p.RESIZE_MODES),
            rounding=self.random.choice(p.ROUNDINGS),
            **self.in_to_out(),
            rows=self.pooled_span(),
            cols=self.pooled_span(),
            scale=(self.real(), self.real()),
            offset=(self.real(), self.real()),
            scales=self.scales(2),
            **common,
        )

    def make_fetch(self, common: dict[str, Any]) -> p.Fetch:
        return p.Fetch(page=self.unsigned(16), **common)

    def make_table(self, common: dict[str, Any]) -> p.TableLoad:
        return p.TableLoad(
            src_view=self.pooled_view(),
            bytes=self.unsigned(32),
            entry=self.unsigned(6),
            evicts=tuple(entry for entry in range(p.TABLE_ENTRIES) if self.random.random() < 0.1),
            **common,
        )

    def make_wait(self, common: dict[str, Any]) -> p.Hold:
        return p.Hold(engine=self.random.choice(p.ENGINES), **common)

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

    def act(self) -> p.Act | None:
        return self.maybe(p.Act(self.random.choice(p.UNARY_KINDS), self.real(), self.real()))

    def scales(self, count: int) -> tuple[p.Scale, ...] | None:
        return self.maybe(tuple(p.Scale(self.random.random(), self.signed(32)) for _ in range(count)))

    def in_to_out(self) -> dict[str, Any]:
        return {"in_view": self.pooled_view(), "out_view": self.pooled_view(), "box": self.box()}

    def window(self) -> dict[str, p.Pair]:
        return {
            name: (self.unsigned(16), self.unsigned(16)) for name in ("kernel", "strides", "dilations")
        }

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
