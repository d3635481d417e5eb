"""Random programs that run: loops with stages, every engine and instruction, clipped boxes, events that can happen.

Time and bytes follow from extents, strides and classes alone, so memories may hold anything and addresses need not be
inside them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import get_args

from frustum.dialects.isa import program as p

ROUTES = (
    ("gdma", "dram", "sram"), ("gdma", "sram", "dram"), ("iodma", "dram", "nram"), ("iodma", "dram", "wram"),
    ("iodma", "nram", "dram"), ("mvdma", "sram", "nram"), ("mvdma", "sram", "wram"), ("mvdma", "nram", "sram"),
    ("bus", "sram", "nram"), ("bus", "sram", "wram"), ("cdma", "sram", "sram"),
)  # fmt: skip
CLASSES = ("weight", "input", "output", "intermediate", "program")
BUFFER, SLOTS, PAGES = 1 << 26, 3, 3
FLOATS, WHOLE = ("f32", "f16", "bf16"), ("i8", "i16")


class TimedPrograms:
    """Draws programs for `clusters` clusters; `pages` are the sizes of the pages of their code."""

    def __init__(self, seed: int, clusters: int) -> None:
        self.random, self.clusters = Random(seed), clusters
        self.pages = [self.random.choice((0, 40, 700, 5000)) for _ in range(PAGES)]

    def program(self, instructions: int) -> p.Program:
        body: list[p.Node] = []
        for part in range(self.random.randint(1, 2)):
            body += [p.Barrier()] if part else []
            self.signalled: list[tuple[int, bool]] = []
            body += self.body(instructions, 0)
        externals = tuple(
            p.External(f"{name}{k}", name, BUFFER * (5 * k + n), BUFFER, (BUFFER,), "i8")
            for k in range(2) for n, name in enumerate(CLASSES)
        )  # fmt: skip
        return p.Program(tuple(body), externals, layers=("only",), core_slots=SLOTS, cluster_slots=SLOTS)

    def body(self, instructions: int, depth: int) -> tuple[p.Node, ...]:
        random, made = self.random, []
        while instructions > 0:
            stage = random.choice((0, 0, 0, 1, 2)) if depth else 0
            if depth < 3 and random.random() < 0.25:
                inner = random.randint(1, min(5, instructions))
                made.append(p.Repeat(random.randint(1, 4), self.body(inner, depth + 1), stage))
                instructions -= inner
            else:
                made.append(self.instruction(depth, stage))
                instructions -= 1
        return tuple(made)

    def instruction(self, depth, stage):
        random = self.random
        makers = self.copy, self.conv, self.vector, self.rest
        (make,) = random.choices(makers, (3, 2, 2, 1))
        made = make(depth, {"stage": stage, "signal": random.choice((None, *range(SLOTS)))})
        on_core = made.engine in p.CORE_ENGINES
        if self.signalled and random.random() < 0.4:
            made = replace(made, waits=tuple(self.wait(depth, on_core) for _ in range(random.randint(1, 2))))
        if made.signal is not None:
            self.signalled.append((made.signal, on_core))
        return made

    def wait(self, depth, on_core):
        """For something that comes before it in the program; now and then for more than there will be."""
        slot, of_core = self.random.choice(self.signalled)
        own = ("own",) if on_core == of_core else ()
        scopes = (*own, "cores", "all_cores") if of_core else (*own, "cluster", "all_clusters")
        value = p.Affine(self.random.choice((0, 1, 1, 1)))
        if depth and self.random.random() < 0.3:
            value = self.affine(depth, 1, 1)
        return p.Wait(slot, self.random.choice(scopes), value)

    # --- instructions

    def copy(self, depth, common):
        random = self.random
        engine, source, target = random.choice(ROUTES if self.clusters > 1 else ROUTES[:-1])
        element, box, more = random.choice(p.ELEMENTS), self.box(depth), {}
        src, dst = self.view(depth, element, source, box), self.view(depth, element, target, box)
        if engine == "cdma":
            more["peer"] = p.Affine(self.clusters - 1, (), -1)
        elif (engine, source) == ("gdma", "dram") and random.random() < 0.3:
            more["multicast"] = True
        if random.random() < 0.15:
            more["fill"] = 0.0
        elif engine in ("mvdma", "bus") and source == "sram" and random.random() < 0.2:
            more["expand"] = 16 * random.randint(1, 400)
            src = p.View(element, src.offset, (0, 0, 0, 0), source)
        elif random.random() < 0.2:
            src, dst = self.wrapped(depth, src, box), self.wrapped(depth, dst, box)
        return p.Copy(engine=engine, src_view=src, dst_view=dst, box=box, **more, **common)

    def conv(self, depth, common):
        random = self.random
        element = random.choice((*FLOATS, *WHOLE))
        groups, per_group = random.choice(((1, 1), (1, 7), (1, 40), (3, 2), (8, 1), (5, 3)))
        starts = [self.affine(depth, random.randint(-2, 3), 3) for _ in range(4)]
        starts[1] = p.Affine(per_group * random.randint(0, 2), (per_group * random.randint(0, 2),) if depth else ())
        extent = random.randint(1, 2), groups * per_group, random.randint(1, 6), random.randint(1, 40)
        outputs = per_group * random.randint(1, 3 * groups)
        bound = random.randint(1, 3), outputs, random.randint(2, 9), random.randint(5, 60)
        box = p.Box(tuple(starts), extent, bound)
        mode = random.choice(get_args(p.LineMode))
        kernel, strides, dilations = ((random.randint(1, most), random.randint(1, most)) for most in (5, 3, 2))
        size, stored, pitch = p.ELEMENT_BYTES[element], random.randint(1, 60), random.randint(2, 90)
        steps = (0, size, size * stored * pitch, size * stored) if mode == "channels_last" else (
            size * pitch * random.choice((7, extent[2] * strides[0])), size * 999, size * pitch, size)
        accumulate = random.randrange(depth) if depth and random.random() < 0.4 else None
        out = random.choice((element, "f32") if element in FLOATS else (element, "i32"))
        extras = {"bias_view": ("wram", "f32"), "residual_view": ("nram", element), "multiplier_view": ("wram", "f32"),
                  "weight_zero_view": ("wram", element)}  # fmt: skip
        views = {
            name: p.View(kind, p.Affine(64), (0, 4, 0, 0) if memory == "wram" else self.strides(kind, box), memory)
            for name, (memory, kind) in extras.items() if random.random() < 0.4
        }  # fmt: skip
        return p.Conv(
            in_view=p.View(element, p.Affine(), steps, "nram"),
            weight_view=p.View(element, p.Affine(), (90, 30, 9, 1), "wram"),
            out_view=p.View(out, p.Affine(), self.strides(out, box), "nram"),
            acc_view=p.View(p.ACCUMULATORS[element], p.Affine(), (512, 64, 8, 4), "nram"),
            box=box, channels=self.span(depth, 9), rows=self.span(depth, 30, -2), cols=self.span(depth, 60, -2),
            kernel=kernel, strides=strides, dilations=dilations, groups=groups, accumulate=accumulate, line_mode=mode,
            **views, **common,
        )  # fmt: skip

    def vector(self, depth, common):
        random, box = self.random, self.box(depth)
        element, out = random.choice((("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("i8", "i8"), ("i8", "f32")))
        views = {"out_view": p.View(out, p.Affine(), self.strides(out, box), "nram"), "box": box}
        source = p.View(element, p.Affine(), self.strides(element, box), "nram")
        act = random.choice((None, p.Act(random.choice(p.UNARY_KINDS))))
        kernel, strides, dilations = ((random.randint(1, most), random.randint(1, most)) for most in (4, 3, 2))
        scales = (p.Scale(),) * 3 if "i8" in (element, out) or random.random() < 0.2 else None
        common = {**common, "scales": scales}
        plane = {"rows": self.span(depth, 30, -2), "cols": self.span(depth, 30, -2)}
        kinds = "pool", "depthwise", "unary", "binary", "softmax", "normalise", "hide", "reduce", "lrn", "resize"
        match random.choice(kinds):
            case "pool":
                return p.Pool(kind=random.choice(p.POOL_KINDS), in_view=source, kernel=kernel, strides=strides,
                              dilations=dilations, act=act, **plane, **views, **common)  # fmt: skip
            case "depthwise":
                extras = {"bias_view": ("wram", "f32"), "residual_view": ("nram", element),
                          "multiplier_view": ("wram", "f32"), "weight_zero_view": ("wram", element)}  # fmt: skip
                apart = {"wram": (0, 4, 0, 0), "nram": self.strides(element, box)}
                extras = {
                    name: p.View(kind, p.Affine(64), apart[memory], memory)
                    for name, (memory, kind) in extras.items() if random.random() < 0.4
                }  # fmt: skip
                weight = p.View(element, p.Affine(), (30, 30, 9, 1), "wram")
                return p.Depthwise(in_view=source, weight_view=weight, kernel=kernel, strides=strides,
                                   dilations=dilations, act=act, **plane, **extras, **views, **common)  # fmt: skip
            case "unary":
                return p.Unary(kind=random.choice(p.UNARY_KINDS), in_view=source, **views, **common)
            case "binary":
                other = p.View(element, p.Affine(), self.strides(element, box), "nram")
                kind = random.choice(p.BINARY_KINDS)
                return p.Binary(kind=kind, a_view=source, b_view=other, act=act, **views, **common)
            case "softmax":
                return p.Softmax(in_view=source, axis=random.randrange(4), **views, **common)
            case "normalise":
                del common["scales"]
                beside = {f"{name}_view": source for name in ("scale", "shift") if random.random() < 0.5}
                return p.Normalise(in_view=source, axes=(1, 3), epsilon=1e-5, act=act, **beside, **views, **common)
            case "hide":
                del common["scales"]
                return p.Hide(in_view=source, ahead=random.randint(-3, 9), **views, **common)
            case "reduce":
                accumulate = random.randrange(depth) if depth and random.random() < 0.5 else None
                kind = random.choice(("sum", "variance")) if accumulate is None else "sum"
                return p.Reduce(kind=kind, in_view=source, axes=(1, 3), accumulate=accumulate, **views, **common)
            case "lrn":
                return p.Lrn(in_view=source, channels=self.span(depth, 12), size=random.randint(1, 6), alpha=1.0,
                             beta=0.75, bias=1.0, **views, **common)  # fmt: skip
        return p.Resize(
            mode=random.choice(p.RESIZE_MODES), rounding=random.choice(p.ROUNDINGS), in_view=source,
            scale=(random.choice((0.5, 1.0, 0.37, 2.0)), random.choice((0.5, 1.0, 1.7))),
            offset=(random.choice((0.0, -0.25)), random.choice((0.0, 0.5))), **plane, **views, **common,
        )  # fmt: skip

    def rest(self, depth, common):
        random = self.random
        match random.choice(("fetch", "table", "wait")):
            case "fetch":
                return p.Fetch(page=random.randrange(PAGES), **common)
            case "table":
                view = p.View("i8", p.Affine(4 * BUFFER), (0, 0, 0, 1), "dram")
                return p.TableLoad(src_view=view, bytes=random.choice((16, 90, 4200, 4096 + 32)), entry=0, **common)
        return p.Hold(engine=random.choice(p.ENGINES), **common)

    # --- small values

    def affine(self, depth, base, most):
        random = self.random
        loops = tuple(random.randint(0, most) for _ in range(depth))
        return p.Affine(base, loops, random.choice((0, 0, 1, most)), random.choice((0, 0, 1, most)))

    def span(self, depth, most, lowest=0):
        random = self.random
        start = self.affine(depth, random.randint(lowest, 2), 3)
        limit = start + random.randint(1, most) if random.random() < 0.2 else None
        return p.Span(start, random.randint(1, most), random.randint(1, most), limit)

    def box(self, depth):
        most = self.random.choice((3, 9, 24))
        return p.Box.of(*(self.span(depth, most, -2) for _ in range(4)))

    def strides(self, element, box):
        """Dense, or with gaps, in any order of the dimensions, perhaps backwards or broadcast along some."""
        random, found, step = self.random, [0] * 4, p.ELEMENT_BYTES[element]
        for d in random.sample(range(4), 4):
            found[d] = step * random.choice((1, 1, 1, 1, 1, -1)) if random.random() < 0.9 else 0
            step *= box.extent[d] * random.choice((1, 1, 2)) if found[d] else 1
        return tuple(found)

    def view(self, depth, element, memory, box):
        strides = self.strides(element, box)
        base = BUFFER * self.random.randrange(10) + BUFFER // 2 if memory == "dram" else BUFFER
        ring = None
        if depth and memory != "dram" and self.random.random() < 0.3:
            ring = p.Ring(self.random.randint(1, 3), 4096, self.random.randint(1, depth))
        return p.View(element, self.affine(depth, base, 8), strides, memory, ring)

    def wrapped(self, depth, view, box):
        if view.memory == "dram" or view.ring is not None or self.random.random() < 0.5:
            return view
        dim = self.random.randrange(4)
        strides = tuple(abs(s) for s in view.strides)
        around = p.Wrap(dim, box.extent[dim] + self.random.randint(0, 4), self.affine(depth, 1, 2))
        return p.View(view.element, view.offset, strides, view.memory, None, around)
