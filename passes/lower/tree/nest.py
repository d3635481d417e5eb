# Tests: test/passes/lower/tree/test_lower_plan.py
"""A part of a layer as the cores of a cluster make it: loops over pieces, copies in, instructions, copies out.

In a loop what comes into the cores is one pass ahead of what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import (
    ACCUMULATORS,
    ELEMENT_BYTES,
    Affine,
    CopyEngine,
    Element,
    Memory,
    Span,
)
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.fetch import (
    FetchDim,
    Fetched,
    Gate,
    PlacesOf,
    fetch,
    passes_before,
    passes_left,
    write_value,
)
from frustum.passes.lower.tree.kernels.kernel import Kernel, Scratch, Want, Work, coordinate
from frustum.passes.lower.tree.places import Place, transfer
from frustum.passes.lower.tree.spans import NotLowered, end, span_of, step_at, through

INTEGER_TYPES = frozenset(element for element in ELEMENT_BYTES if element.startswith("i"))
FAR = 1 << 30
"""More positions than any axis has."""


@dataclass(frozen=True)
class Pieces:
    """How a part of a layer is cut: positions of a piece along axes (all, if not named), the axis along which cores
    share it, and loops over pieces, outermost first."""

    extents: Mapping[Axis, int]
    dealt: Axis | None
    order: tuple[Axis, ...]


@dataclass(frozen=True)
class Sums:
    """Sums that go on over passes of loops around the part: levels and passes of these.  `start`: the operand that lies
    where they do, and that they begin with."""

    levels: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    start: int | None = None


@dataclass
class LayerPart:
    """A part of a layer, with where its operands lie and its result goes; `elements` are the types of tensors."""

    kernel: Kernel
    spans: Mapping[Axis, Span]
    pieces: Pieces
    places: PlacesOf
    targets: Sequence[Place]
    elements: Mapping[Tensor, Element]
    gates: tuple[Gate, ...] = ()
    sums: Sums = field(default_factory=Sums)

    def write(self, code: Code) -> None:
        """Adds the part."""
        if not self.kernel.is_nothing:
            _Writer(code, self).body(0)


@dataclass(frozen=True)
class _Loop:
    axis: Axis
    count: int
    step: int


class _Writer:
    """Writes one part; `now`: spans of pieces as far as loops are open, `held`: what cores have of operands."""

    def __init__(self, code: Code, part: LayerPart) -> None:
        self.code, self.part, self.kernel = code, part, part.kernel
        self.layer = part.kernel.layer
        self.cores: int = code.cores
        self.summed = [axis for axis in self.layer.combine if axis not in self.layer.result.axes]
        self.loops: list[_Loop] = [loop for axis in part.pieces.order if (loop := self.loop(axis)).count > 1]
        self.now: dict[Axis, Span] = {axis: self.first(axis) for axis in self.layer.axes}
        self.held: dict[int, Fetched] = {}
        start = part.sums.start if part.sums.levels else None
        self.wants: list[Want] = [want for want in self.kernel.wants if want.operand != start]
        self.depths: dict[int, int] = {want.operand: self.depth_of(want) for want in self.wants}
        self.out_depth: int = max((k + 1 for k, own in enumerate(self.loops) if own.axis not in self.summed), default=0)
        self.level: int | None = None
        self.is_continued: bool = False
        self.before: Fetched | None = None
        if any(loop.axis in self.summed for loop in self.loops[: self.out_depth]):
            raise NotLowered(f"{self.layer.name}: a loop over sums around one over results")

    def loop(self, axis: Axis) -> _Loop:
        own, extent = span_of(self.part.spans, axis), self.part.pieces.extents.get(axis)
        if extent is None:
            return _Loop(axis, 1, own.extent)
        dealt = self.cores if self.part.pieces.dealt is axis else 1
        return _Loop(axis, ceil_div(own.extent, extent * dealt), extent * dealt)

    def first(self, axis: Axis) -> Span:
        """The piece in the first pass of its loop."""
        own, extent = span_of(self.part.spans, axis), self.part.pieces.extents.get(axis)
        if extent is None:
            return own
        loop, start = self.loop(axis), own.start
        if self.part.pieces.dealt is axis:
            start += Affine(core=extent)
        limit = own.limit
        if loop.count * loop.step > own.extent and self.code.extremes(end(own))[0] < own.bound:
            if limit is not None and self.code.plain(own).limit is not None:
                raise NotLowered(f"{self.layer.name}: pieces of {axis.name} with two ends")
            limit = end(own)
        return Span(start, extent, own.bound, limit)

    def depth_of(self, want: Want) -> int:
        """Inside how many loops an operand comes; one that nothing moves comes before all."""
        return max((k + 1 for k, loop in enumerate(self.loops) if loop.axis in want.axes), default=0)

    # ------------------------------------------------------------ loops

    def body(self, depth: int) -> None:
        """The body inside so many loops."""
        code = self.code
        arriving = [want for want in self.wants if self.depths[want.operand] == depth]
        stage = code.stage
        later = stage + (1 if arriving and depth else 0)
        for want in arriving:
            self.arrive(want, depth)
        with code.at_stage(later):
            if depth == self.out_depth:
                self.allocate(depth)
            if depth < len(self.loops):
                self.inner(depth)
            else:
                self.kernel.write(code, self.work())
            if depth == self.out_depth:
                self.leave()

    def inner(self, depth: int) -> None:
        loop = self.loops[depth]
        before = self.now[loop.axis]
        with self.code.repeat(loop.count) as index:
            if loop.axis in self.summed:
                if self.level is not None:
                    raise NotLowered(f"{self.layer.name}: sums in two loops over pieces")
                self.level = self.code.depth - 1
            self.now[loop.axis] = Span(before.start + index * loop.step, before.extent, before.bound, before.limit)
            self.body(depth + 1)
        self.now[loop.axis] = before

    # ------------------------------------------------------------ operands

    def arrive(self, want: Want, depth: int) -> None:
        operand = self.layer.operands[want.operand]
        element = self.element_of(want.operand)
        dims, size = self.dims_of(want.dims, element)
        buffer = self.code.allocate(want.memory, size * want.planes, 2 if depth else 1)
        into = Fetched(buffer, element, dims, self.part.gates, plane_bytes=size)
        self.held[want.operand] = into
        fills = want.operand not in self.kernel.padded
        for k in range(want.planes):
            places = lambda tensor, k=k: [place.plane(k) for place in self.part.places(tensor)]  # noqa: E731
            fetch(self.code, self.engine(want), operand, into.plane(k), places, fills=fills)

    def element_of(self, operand: int) -> Element:
        return self.part.elements[self.layer.operands[operand].pieces[0].tensor]

    def dims_of(self, coordinates: Sequence[Position], element: Element) -> tuple[tuple[FetchDim, ...], int]:
        """Dimensions of a buffer without gaps, and its bytes."""
        found, size = list[FetchDim](), size_of(element)
        for each in reversed(coordinates):
            span = through(each, FAR, self.now)
            if span.extent == FAR:
                raise NotLowered(f"{self.layer.name}: rounded positions that loops move by parts of one")
            found.append(FetchDim(each, span, size))
            size *= span.extent
        return tuple(reversed(found)), size

    def engine(self, want: Want) -> CopyEngine:
        """One broadcast where all cores want the same."""
        dealt = self.part.pieces.dealt
        is_shared = self.cores > 1 and (dealt is None or dealt not in want.axes)
        return "bus" if is_shared else "mvdma"

    # ------------------------------------------------------------ results

    def allocate(self, depth: int) -> None:
        """Buffers of the result's piece, and of sums where they are wider."""
        element = self.part.elements[self.layer.result]
        self.out = self.buffer(element, 2 if depth else 1)
        self.scratch = tuple(self.free(each) for each in self.kernel.scratch)
        self.acc: Fetched | None = None
        is_summed = any(loop.axis in self.summed for loop in self.loops)
        if is_summed and not self.part.sums.levels:
            wide: Element = ACCUMULATORS.get(self.element_of(0), "f32") if self.layer.macs else "f32"
            self.acc = self.out if wide == element and not self.layer.macs else self.buffer(wide, 1)
        if self.part.sums.levels and self.layer.macs:
            self.go_on(2 if depth else 1)
        elif self.part.sums.levels:
            self.reduce_on(is_summed)

    def buffer(self, element: Element, copies: int) -> Fetched:
        dims, size = self.dims_of([coordinate(axis) for axis in self.kernel.out], element)
        buffer = self.code.allocate("nram", size * self.kernel.planes, copies)
        return Fetched(buffer, element, dims, plane_bytes=size)

    def free(self, scratch: Scratch) -> Fetched:
        dims, size = self.dims_of([coordinate(axis) for axis in scratch.axes], scratch.element)
        return Fetched(self.code.allocate("nram", size), scratch.element, dims)

    def go_on(self, copies: int) -> None:
        """Sums that earlier passes have begun, from where they wait; in the first pass there are none.

        Over one loop the matrix unit begins with nothing in its first pass by itself.  Where several loops, or pieces
        too, add to the sums, these begin as zeros.
        """
        sums, element = self.part.sums, self.part.elements[self.layer.result]
        wide = self.waiting()
        if wide in INTEGER_TYPES and wide != ACCUMULATORS.get(self.element_of(0)):
            raise NotLowered(f"{self.layer.name}: sums of integers that wait as {wide}")
        self.acc = self.out if wide == element else self.buffer(wide, copies)
        begun: Affine | None = passes_before(sums.levels)
        if sums.start is not None:
            self.is_continued, begun = True, None
        elif len(sums.levels) == 1 and not any(loop.axis in self.summed for loop in self.loops):
            self.level = sums.levels[0]
        else:
            self.is_continued = True
            self.clear(Affine(1) - passes_before(sums.levels))
        for place in self.part.targets:
            self.move(place.wide(), "in", begun, self.acc)

    def reduce_on(self, is_summed: bool) -> None:
        """What earlier passes have reduced, to be joined with what this one makes."""
        element, wide = self.part.elements[self.layer.result], self.waiting()
        waits = wide != element
        if waits and (wide != "f32" or self.when()):
            raise NotLowered(f"{self.layer.name}: sums that wait as {wide}, or in passes that have nothing to reduce")
        if is_summed or waits:
            self.acc = self.out if element == "f32" else self.buffer("f32", 1)
        self.before = self.buffer(wide, 1)
        for place in self.part.targets:
            self.move(place.wide(), "in", self.begun(), self.before)

    def waiting(self) -> Element:
        """The type in which sums wait between passes."""
        (found,) = {place.wide().element for place in self.part.targets}
        return found

    def begun(self) -> Affine:
        """How many passes before have reduced something, or at least 1 if any has."""
        total = passes_before(self.part.sums.levels)
        for axis in self.summed:
            span = span_of(self.part.spans, axis)
            moved = [level for level in self.part.sums.levels if step_at(span, level)]
            if len(moved) == 1 and self.code.extremes(end(span))[0] < 1:  # its positions begin in a later pass
                total -= max(0, ceil_div(1 - end(span).base, step_at(span, moved[0])))
        return total

    def when(self) -> tuple[Affine, ...]:
        """Numbers that are 1 or more in passes of loops outside in which anything is reduced."""
        found = list[Affine]()
        for span in (span_of(self.part.spans, axis) for axis in self.summed if not self.layer.macs):
            ends = [end(span), span.start * -1 + span.bound]
            ends += [] if span.limit is None else [span.limit - span.start, span.limit]
            found += [each for each in ends if self.code.extremes(each)[0] < 1]
        return tuple(found)

    def clear(self, passes: Affine) -> None:
        """Zeros in the sums of a piece, where this number is 1."""
        assert self.acc is not None
        write_value(self.code, "mvdma", self.part.targets[0].buffer, self.acc, 0.0, passes - 1)

    def leave(self) -> None:
        sums, work = self.part.sums, self.work()
        waits = bool(sums.levels) and self.waiting() != self.out.element
        if self.before is not None and waits and self.acc is not None:
            self.kernel.join(self.code, replace(work, out=self.acc), self.before, self.begun())
        if self.acc is not None and not self.layer.macs:
            self.kernel.narrow(self.code, work)
        if self.before is not None and not waits:
            self.kernel.join(self.code, work, self.before, self.begun())
        left = passes_left(sums.levels, sums.counts) if waits else None
        for place in self.part.targets:
            if left is not None:
                self.move(place.wide(), "out", left, self.acc)
            self.move(place, "out", None if left is None else left * -1 + 1)

    def move(self, place: Place, way: str, passes: Affine | None = None, held: Fetched | None = None) -> None:
        """The piece of the result to where it lies, or from there; only where `passes` is 1 or more."""
        held = held or self.out
        box = {axis: self.now[axis] for axis in self.layer.result.axes}
        steps = {dim.coordinate.terms[0][0]: dim.stride for dim in held.dims}
        origin = {axis: span.start for axis, span in box.items()}
        own = Place(held.buffer, "nram", held.element, steps, origin, plane_bytes=held.plane_bytes)
        conditions = [each - 1 for each in (*(() if passes is None else (passes,)), *self.when())]
        if way == "out" and self.part.pieces.dealt is None and self.cores > 1:
            conditions.append(Affine(core=-1))  # all have made the same: one stores it
        ends = (own, place) if way == "out" else (place, own)
        for k in range(self.kernel.planes):
            transfer(self.code, "mvdma", box, ends[0].plane(k), ends[1].plane(k), conditions)

    # ------------------------------------------------------------ instructions

    def work(self) -> Work:
        sums = self.part.sums
        left = passes_left(sums.levels, sums.counts) if self.is_continued else None
        still = tuple(
            (level, passes_left((level,), (count,))) for level, count in zip(sums.levels, sums.counts, strict=True)
        )
        return Work(
            dict(self.now), dict(self.held), self.out, self.acc, self.level, self.is_continued, left, still,
            self.scratch, self.when(),
        )  # fmt: skip


def memory_of(want: Want) -> Memory:
    return want.memory
