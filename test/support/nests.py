"""Random nests that make maps from each other piece by piece, in whatever order and dealt in whatever way.

A nest loads boxes of one map (with the border of a window), and stores boxes of the next; what it does in between is
one instruction.  Every dimension of a map is cut into pieces, which loops, cores and clusters share out: neighbours at
the same time, or a contiguous share each.  Boxes go over the end of the map and are clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from xdsl.ir import Block, Region

from frustum.dialects.isa.operations import CopyOp, UnaryOp
from frustum.dialects.isa.program import Affine, Box, Span, View
from frustum.dialects.isa.sync import AllocOp, RepeatOp

BYTES = 2
CORE, CLUSTER = "core", "cluster"


@dataclass
class Map:
    """A map of `shape` (channels, rows, columns) from `first` channel on of a buffer with more of them."""

    alloc: AllocOp
    shape: tuple[int, int, int]
    strides: tuple[int, int, int, int]
    first: int = 0

    def view(self, start: list[Affine]) -> View:
        offset = Affine(self.first * self.strides[1])
        for at, stride in zip(start, self.strides[1:], strict=True):
            offset = offset + at * stride
        return View("f16", offset, self.strides)


@dataclass
class Nests:
    """Programs of a few maps and nests; `clusters` and `cores` of the machine."""

    random: Random
    clusters: int
    cores: int
    maps: int = 3
    outer: bool = False
    """All nests in one loop, which has the maps in its body."""

    def program(self) -> list:
        ops: list = []
        made = [self.map(ops)]
        for _ in range(self.random.randint(1, self.maps)):
            source = self.random.choice(made)
            if self.random.random() < 0.7 or len(made) < 2:
                target = self.map(ops)
                made.append(target)
            else:
                target = self.random.choice([each for each in made if each is not source])
            ops += self.nest(source, target)
            if self.clusters > 1 and not self.outer and self.random.random() < 0.6:
                ops += self.sends(target)
        if self.outer:
            return [RepeatOp(self.random.randint(2, 3), Region(Block(ops)))]
        return ops

    def map(self, ops: list) -> Map:
        random = self.random
        shape = random.choice([2, 4, 6]), random.randint(3, 7), random.choice([2, 3, 4])
        row = BYTES * (shape[2] + random.choice([0, 0, 1]))
        channel = row * (shape[1] + random.choice([0, 0, 1]))
        first = random.choice([0, 0, 2])
        size = -(-(shape[0] + first) * channel // 16) * 16
        alloc = AllocOp("sram", size, random.choice([1, 2]) if self.outer else 1)
        ops.append(alloc)
        return Map(alloc, shape, (size, channel, row, BYTES), first)

    def deal(self, size: int, pieces: int, sharers: list[tuple[str | int, int]]) -> tuple[Affine, int]:
        """Start and extent of a piece of one dimension; `sharers`: who with how many, neighbours' pieces first."""
        extent = -(-size // pieces)
        start, step = Affine(), extent
        for name, count in sharers:
            if name == CORE:
                start = start + Affine(core=step)
            elif name == CLUSTER:
                start = start + Affine(cluster=step)
            else:
                start = start + Affine.index(name, step)
            step *= count
        return start, extent

    def nest(self, source: Map, target: Map) -> list:
        random, base = self.random, int(self.outer)
        levels = random.choice([0, 1, 1, 1, 2, 2])
        sharers: list[list[tuple[str | int, int]]] = [[], [], []]
        for name, count in [(CORE, self.cores), *((base + n, random.choice([1, 2, 3, 4])) for n in range(levels))]:
            if count > 1 or name != CORE:
                random.choice(sharers).append((name, count))
        if self.clusters > 1 and random.random() < 0.7:
            random.choice(sharers).append((CLUSTER, self.clusters))
        starts, extents, counts = [], [], {}
        for d, own in enumerate(sharers):
            random.shuffle(own)
            pieces = 1
            for _, count in own:
                pieces *= count
            start, extent = self.deal(target.shape[d], pieces, own)
            starts.append(start)
            extents.append(extent)
            counts |= {name: count for name, count in own if isinstance(name, int)}
        counts = {level: counts[level] for level in range(base, base + levels)}
        return self.body(source, target, starts, extents, counts)

    def body(self, source: Map, target: Map, starts: list, extents: list, counts: dict[int, int]) -> list:
        random = self.random
        depth, stage = random.choice([(1, 0), (2, 1), (2, 1), (3, 1)]) if counts else (1, 0)
        seen, sizes = [], []
        for d, (start, extent) in enumerate(zip(starts, extents, strict=True)):
            stride, border = (random.choice([1, 1, 2]), random.choice([0, 0, 1])) if d else (1, 0)
            whole = not d and random.random() < 0.5
            seen.append(Affine() if whole else start * stride - border)
            sizes.append(source.shape[0] if whole else extent * stride + 2 * border)
        rows = AllocOp("nram", 16 * (-(-BYTES * sizes[0] * sizes[1] * sizes[2] // 16)), depth)
        out = AllocOp("nram", 16 * (-(-BYTES * extents[0] * extents[1] * extents[2] // 16)), depth)
        load = self.copy("mvdma", source.alloc, source.view(seen), rows, packed(sizes), seen, sizes, source.shape)
        put = self.copy(
            "mvdma", out, packed(extents), target.alloc, target.view(starts), starts, extents, target.shape, stage
        )
        one, box = View("f16", Affine(), (BYTES,) * 4), box_of([Affine()] * 3, [1] * 3)
        work = UnaryOp(rows, out, kind="relu", in_view=one, out_view=one, box=box, stage=stage)
        ops: list = [rows, out, load, work, put]
        for level in sorted(counts, reverse=True):
            ops = [RepeatOp(counts[level], Region(Block(ops)))]
        return ops

    def copy(self, engine, src, src_view, dst, dst_view, starts, extents, shape, stage=0, **more) -> CopyOp:
        box = box_of(starts, extents, shape)
        return CopyOp(src, dst, engine=engine, src_view=src_view, dst_view=dst_view, box=box, stage=stage, **more)

    def sends(self, target: Map) -> list:
        """A part of a map to the next cluster, and another to the one before."""
        found = []
        for by in self.random.sample([1, -1], self.random.randint(1, 2)):
            share = -(-target.shape[1] // self.clusters)
            rows = self.random.randint(1, share)
            starts = [Affine(), Affine(cluster=share, base=self.random.randint(0, share - rows)), Affine()]
            view = target.view(starts)
            limit = Affine(self.clusters - 1, cluster=-1) if by > 0 else Affine(cluster=1)
            box = box_of(starts, [target.shape[0], rows, target.shape[2]], target.shape, limit)
            found.append(
                CopyOp(
                    target.alloc, target.alloc, engine="cdma", src_view=view, dst_view=view, box=box,
                    peer=Affine(by, cluster=1),
                )
            )  # fmt: skip
        return found


def packed(sizes: list[int]) -> View:
    """Of a tile whose positions follow each other."""
    c, h, w = sizes
    return View("f16", Affine(), (BYTES * c * h * w, BYTES * h * w, BYTES * w, BYTES))


def box_of(starts, extents, shape=None, limit=None) -> Box:
    spans = [Span(Affine(), 1, 1, limit)]
    for start, extent, bound in zip(starts, extents, shape or extents, strict=True):
        spans.append(Span(start, extent, bound))
    return Box.of(*spans)
