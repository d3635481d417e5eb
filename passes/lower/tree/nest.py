# Tests: test/passes/lower/tree/test_lower_plan.py
"""A part of a layer as the cores of a cluster make it: loops over pieces, copies in, instructions, copies out.

In a loop what comes into the cores is one pass ahead of what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import (
    ACCUMULATORS,
    ELEMENT_BYTES,
    ZERO,
    Affine,
    CopyEngine,
    Element,
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
from frustum.passes.lower.tree.spans import FAR, NotLowered, end, span_of, step_at, through

NO_NUMBERS: Mapping[int | None, Fetched] = {}
INTEGER_TYPES = frozenset(element for element in ELEMENT_BYTES if element.startswith("i"))


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

    def around(self, inner: Sums) -> Sums:
        """Those over all passes of these loops, too."""
        return Sums((*self.levels, *inner.levels), (*self.counts, *inner.counts), self.start)

    def outside(self, depth: int) -> Sums:
        """Those over loops of which the first so many are open."""
        number = sum(level < depth for level in self.levels)
        return Sums(self.levels[:number], self.counts[:number], self.start)


@dataclass
class LayerPart:
    """A part of a layer, with where its operands lie and its result goes; `elements` are the types of tensors."""

    kernel: Kernel
    spans: Mapping[Axis, Span]
    pieces: Pieces
    places: PlacesOf
    targets: Sequence[Place]
    elements: Mapping[Tensor, Element]
    running: Place | None = None
    gates: tuple[Gate, ...] = ()
    sums: Sums = field(default_factory=Sums)
    slices: int | None = None
    """The level of the innermost loop, where it has this part alone."""
    made: frozenset[Tensor] = frozenset()
    """What the pass around makes itself: it cannot come a pass ahead."""

    def write(self, code: Code) -> PartWriter:
        """Adds the part."""
        writer = PartWriter(code, self)
        if not self.kernel.is_nothing:
            writer.body(0)
        return writer

    @property
    def waiting(self) -> Element:
        """The type in which sums wait between passes."""
        (found,) = {place.wide().element for place in self.targets}
        return found

    @property
    def joined(self) -> list[Axis]:
        """What passes of loops outside reduce part by part."""
        layer = self.kernel.layer
        return [axis for axis in layer.combine if self.running is not None or axis not in layer.result.axes]

    def begun(self, code: Code) -> Affine:
        """How many passes before have reduced something, or at least 1 if any has."""
        total = passes_before(self.sums.levels)
        for axis in self.joined:
            span = span_of(self.spans, axis)
            moved = [level for level in self.sums.levels if step_at(span, level)]
            if len(moved) == 1 and code.extremes(end(span))[0] < 1:  # its positions begin in a later pass
                total -= max(0, ceil_div(1 - end(span).base, step_at(span, moved[0])))
        return total

    def reached(self, code: Code) -> tuple[Affine, ...]:
        """Numbers that are 1 or more in passes of loops outside in which anything is reduced."""
        found = list[Affine]()
        for span in (span_of(self.spans, axis) for axis in self.joined):
            ends = [end(span), span.start * -1 + span.bound]
            ends += [] if span.limit is None else [span.limit - span.start, span.limit]
            found += [each for each in ends if code.extremes(each)[0] < 1]
        return tuple(found)

    def when(self, code: Code) -> tuple[Affine, ...]:
        """The same; none of products, which add nothing where there is nothing."""
        return () if self.kernel.layer.macs else self.reached(code)


@dataclass(frozen=True)
class _Loop:
    axis: Axis
    count: int
    step: int


class PartCopies:
    """Copies of a piece's result, and of the numbers beside it, between SRAM and cores."""

    code: Code
    part: LayerPart
    kernel: Kernel
    layer: Layer
    cores: int
    now: dict[Axis, Span]
    out: Fetched
    scratch: tuple[Fetched, ...]

    def move_running(self, way: str) -> None:
        """Numbers of an online reduction from where they wait, or back."""
        place = self.part.running
        for scratch, held in zip(self.kernel.scratch, self.scratch, strict=True):
            if place is None or scratch.plane is None:
                continue
            if scratch.is_read if way == "in" else scratch.is_written:
                is_later = way == "in" or not scratch.is_read  # what is not read again is of passes before
                conditions = [*([self.part.begun(self.code)] if is_later else []), *self.part.reached(self.code)]
                self.carry(place.plane(scratch.plane), way, held, scratch.axes, conditions)

    def move(self, place: Place, way: str, passes: Affine | None = None, held: Fetched | None = None) -> None:
        """The piece of the result to where it lies, or from there; only where `passes` is 1 or more."""
        wanted = [*(() if passes is None else (passes,)), *self.part.when(self.code)]
        for k in range(self.kernel.planes):
            self.carry(place.plane(k), way, (held or self.out).plane(k), self.layer.result.axes, wanted)

    def carry(
        self, place: Place, way: str, held: Fetched, axes: Sequence[Axis], wanted: Sequence[Affine]
    ) -> None:  # fmt: skip
        """A piece between SRAM and a core, where all numbers that are wanted are 1 or more."""
        box = {axis: self.now[axis] for axis in axes}
        steps = {dim.coordinate.terms[0][0]: dim.stride for dim in held.dims}
        origin = {axis: span.start for axis, span in box.items()}
        own = Place(held.buffer, "nram", held.element, steps, origin, offset=held.offset)
        conditions = [each - 1 for each in wanted]
        if way == "out" and self.cores > 1 and not any(span.start.core for span in box.values()):
            conditions.append(Affine(core=-1))  # all have made the same: one stores it
        ends = (own, place) if way == "out" else (place, own)
        transfer(self.code, "mvdma", box, *ends, conditions)


class PartWriter(PartCopies):
    """Writes one part; `now`: spans of pieces as far as loops are open, `held`: what cores have of operands.

    `stays`: the result stays in the cores over all passes of the innermost loop around, behind which `leave` belongs;
    `lateness`: stages behind the part at which the result has left; `scratch`: further buffers; `begun`: a number that
    is 1 or more where passes of a loop in the cores have reduced something; `inner_sums`: passes of its own loops over
    sums, where there are several.
    """

    begun: Affine | None

    def __init__(self, code: Code, part: LayerPart) -> None:
        self.code: Code = code
        self.part: LayerPart = part
        self.kernel: Kernel = part.kernel
        self.layer: Layer = part.kernel.layer
        self.cores: int = code.cores
        self.summed: list[Axis] = [axis for axis in self.layer.combine if axis not in self.layer.result.axes]
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
        self.begun = None
        self.own_sums: Sums = Sums()
        own = part.slices is not None and self.out_depth == 0
        goes_on = bool(part.sums.levels)
        self.stays: bool = own and self.layer.macs > 0 and goes_on and part.sums.levels[-1] == part.slices
        self.lateness: int = int(own and not goes_on)
        inner = [loop.count for loop in self.loops[self.out_depth :]]
        self.inner_sums: tuple[int, ...] = tuple(inner) if len(inner) > 1 else ()
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
        if self.code.is_passed(own, loop.count * loop.step):
            if limit is not None and self.code.plain(own).limit is not None:
                raise NotLowered(f"{self.layer.name}: pieces of {axis.name} with two ends")
            limit = end(own)
        return Span(start, extent, own.bound, limit)

    def depth_of(self, want: Want) -> int:
        """Inside how many loops an operand comes; one that nothing moves comes before all."""
        return max((k + 1 for k, loop in enumerate(self.loops) if loop.axis in want.axes), default=0)

    def body(self, depth: int) -> None:
        """The body inside so many loops."""
        code = self.code
        arriving = [want for want in self.wants if self.depths[want.operand] == depth]
        stage = code.stage
        goes_on = depth == self.out_depth and bool(self.part.sums.levels)
        later = stage + (1 if (arriving or goes_on) and depth else 0)
        for want in arriving:
            self.arrive(want)
        if depth == self.out_depth and self.stays:
            with code.before_loop():
                self.allocate(depth)
        elif depth == self.out_depth:
            # sums of a slice are its own: they come while the one before is made
            is_early = goes_on and not depth and self.layer.macs > 0 and self.part.slices is not None
            with code.at_stage(max(0, stage - is_early)):
                self.allocate(depth)
        with code.at_stage(later):
            if depth < len(self.loops):
                self.inner(depth)
            else:
                self.kernel.write(code, self.work())
            if depth == self.out_depth:
                self.finish()
        if depth == self.out_depth and not self.stays:
            is_later = depth > 0 and not self.part.sums.levels  # operands of the next piece come before results leave
            with code.at_stage(later + is_later + self.lateness):
                self.leave()

    def inner(self, depth: int) -> None:
        loop = self.loops[depth]
        before = self.now[loop.axis]
        with self.code.repeat(loop.count) as index:
            if loop.axis in self.summed and not self.own_sums.levels:
                self.level = self.code.depth - 1
            self.now[loop.axis] = Span(before.start + index * loop.step, before.extent, before.bound, before.limit)
            self.body(depth + 1)
        self.now[loop.axis] = before

    # ------------------------------------------------------------ operands

    def arrive(self, want: Want, copies: int | None = None) -> None:
        """An operand comes; `copies`: of its buffer, if it is not the two of what comes a pass ahead."""
        operand = self.layer.operands[want.operand]
        element = self.element_of(want.operand)
        dims, size = dims_of(want.dims, element, self.now)
        is_made = all(piece.tensor in self.part.made for piece in operand.pieces)
        is_early = self.depths[want.operand] > 0 or self.part.slices is not None or not is_made
        copies = copies or (2 if self.code.depth and is_early else 1)
        buffer = self.code.allocate(want.memory, size * want.planes, copies)
        into = Fetched(buffer, element, dims, self.part.gates, plane_bytes=size)
        self.held[want.operand] = into
        fills = want.operand not in self.kernel.padded
        for k in range(want.planes):
            places = lambda tensor, k=k: [place.plane(k) for place in self.part.places(tensor)]  # noqa: E731
            fetch(self.code, self.engine(want), operand, into.plane(k), places, fills=fills)

    def element_of(self, operand: int) -> Element:
        return self.part.elements[self.layer.operands[operand].pieces[0].tensor]

    def engine(self, want: Want) -> CopyEngine:
        """One broadcast where all cores want the same."""
        is_own = any(span_of(self.now, axis).start.core for axis in want.axes)
        return "bus" if self.cores > 1 and not is_own else "mvdma"

    # ------------------------------------------------------------ results

    def allocate(self, depth: int) -> None:
        """Buffers of the result's piece, and of sums where they are wider."""
        is_alone = self.part.slices is not None and not self.stays
        self.begin(2 if depth or is_alone else 1, 2 if depth else 1)

    def begin(self, copies: int, of_scratch: int, *, is_summed: bool = False) -> None:
        """The same, so many of each, with what passes before have made; `is_summed`: a loop that follows, and is none
        of the part's own, adds to the sums."""
        self.take_room(copies, of_scratch)
        self.go_on_from(copies, is_summed=is_summed)

    def take_room(self, copies: int, of_scratch: int, known: Mapping[int | None, Fetched] = NO_NUMBERS) -> None:
        """Buffers of the result, and further ones; `known`: those of running numbers that are there."""
        self.out: Fetched = self.buffer(self.part.elements[self.layer.result], copies)
        self.scratch: tuple[Fetched, ...] = tuple(
            known.get(each.plane) or self.free(each, of_scratch) for each in self.kernel.scratch
        )

    def go_on_from(self, copies: int, *, is_summed: bool = False) -> None:
        """What passes before have made, and where sums go on."""
        element = self.part.elements[self.layer.result]
        if not is_summed:
            self.move_running("in")
        self.acc: Fetched | None = None
        is_summed = is_summed or any(loop.axis in self.summed for loop in self.loops)
        depth = self.code.depth
        self.own_sums = Sums(tuple(range(depth, depth + len(self.inner_sums))), self.inner_sums)
        if is_summed and not self.part.sums.levels:
            wide: Element = ACCUMULATORS.get(self.element_of(0), "f32") if self.layer.macs else "f32"
            is_same = wide == element and (not self.layer.macs or bool(self.inner_sums))
            self.acc = self.out if is_same else self.buffer(wide, 1)
            if self.inner_sums:
                self.is_continued = True
                write_value(self.code, "mvdma", self.part.targets[0].buffer, self.acc, 0.0)
        if self.part.sums.levels and self.layer.macs:
            self.go_on(copies, is_summed)
        elif self.part.sums.levels and self.part.running is None:
            self.reduce_on(is_summed)

    def buffer(self, element: Element, copies: int) -> Fetched:
        dims, size = dims_of([coordinate(axis) for axis in self.kernel.out], element, self.now)
        buffer = self.code.allocate("nram", size * self.kernel.planes, copies)
        return Fetched(buffer, element, dims, plane_bytes=size)

    def free(self, scratch: Scratch, copies: int) -> Fetched:
        element = scratch.element or self.element_of(0)
        dims, size = dims_of([coordinate(axis) for axis in scratch.axes], element, self.now)
        buffer = self.code.allocate("nram", size, 1 if scratch.plane is None else copies)
        return Fetched(buffer, element, dims)

    def go_on(self, copies: int, is_summed: bool) -> None:
        """Sums that earlier passes have begun, from where they wait; in the first pass there are none.

        Over one loop the matrix unit begins with nothing in its first pass by itself.  Where several loops, or pieces
        too, add to the sums, these begin as zeros.
        """
        sums, element = self.part.sums, self.part.elements[self.layer.result]
        wide = self.waiting
        if wide in INTEGER_TYPES and wide != ACCUMULATORS.get(self.element_of(0)):
            raise NotLowered(f"{self.layer.name}: sums of integers that wait as {wide}")
        self.acc = self.out if wide == element else self.buffer(wide, copies)
        levels = sums.levels[:-1] if self.stays else sums.levels
        begun: Affine | None = passes_before(levels)
        if sums.start is not None:
            self.is_continued, begun = True, None
        elif len(sums.levels) == 1 and not is_summed:
            self.level = sums.levels[0]
        else:
            self.is_continued = True
            begins = passes_before(levels) * -1  # zeros are written where this is 0
            write_value(self.code, "mvdma", self.part.targets[0].buffer, self.acc, 0.0, begins)
        for place in self.part.targets if levels or begun is None else ():
            self.move(place.wide(), "in", begun, self.acc)
        if self.part.running is not None and not is_summed:
            self.kernel.rescale(self.code, self.work())

    def reduce_on(self, is_summed: bool) -> None:
        """What earlier passes have reduced, to be joined with what this one makes."""
        element, wide = self.part.elements[self.layer.result], self.part.waiting
        waits = wide != element
        if waits and (wide != "f32" or self.part.when(self.code)):
            raise NotLowered(f"{self.layer.name}: sums that wait as {wide}, or in passes that have nothing to reduce")
        if is_summed or waits:
            self.acc = self.out if element == "f32" else self.buffer("f32", 1)
        self.before = self.buffer(wide, 2 if self.out_depth else 1)
        for place in self.part.targets:
            self.move(place.wide(), "in", self.part.begun(self.code), self.before)

    @property
    def waiting(self) -> Element:
        """The type in which sums wait between passes: as wide as they are added up, where they stay in the cores."""
        if self.stays and len(self.part.sums.levels) == 1 and self.part.sums.start is None:
            return ACCUMULATORS.get(self.element_of(0), "f32")
        return self.part.waiting

    @property
    def waits(self) -> bool:
        """Whether sums wait in another type than the result's."""
        return bool(self.part.sums.levels) and self.waiting != self.out.element

    def finish(self) -> None:
        """Makes the result of a piece of its sums."""
        work = self.work()
        if self.before is not None and self.waits and self.acc is not None:
            self.kernel.join(self.code, replace(work, out=self.acc), self.before, self.part.begun(self.code))
        if self.acc is not None and not self.layer.macs:
            self.kernel.narrow(self.code, work)
        self.kernel.settle(self.code, work)
        self.move_running("out")
        if self.before is not None and not self.waits:
            self.kernel.join(self.code, work, self.before, self.part.begun(self.code))

    def leave(self) -> None:
        """The result of a piece goes to where it lies; where passes are still to come, its sums."""
        sums, around = self.part.sums, -1 if self.stays else None
        levels = sums.levels[:around]
        left = passes_left(levels, sums.counts[:around]) if self.waits and levels else None
        for place in self.part.targets:
            if left is not None:
                self.move(place.wide(), "out", left, self.acc)
            self.move(place, "out", None if left is None else left * -1 + 1)

    def work(self) -> Work:
        sums = self.part.sums.around(self.own_sums)
        left = passes_left(sums.levels, sums.counts) if self.is_continued else None
        still = tuple(
            (level, passes_left((level,), (count,))) for level, count in zip(sums.levels, sums.counts, strict=True)
        )
        return Work(
            dict(self.now), dict(self.held), self.out, self.acc, self.level, self.is_continued, left, still,
            self.scratch, self.part.reached(self.code) if self.part.running or not self.layer.macs else (),
            self.begun or (ZERO if self.part.running is None else self.part.begun(self.code)),
        )  # fmt: skip


def dims_of(
    coordinates: Sequence[Position], element: Element, spans: Mapping[Axis, Span]
) -> tuple[tuple[FetchDim, ...], int]:  # fmt: skip
    """Dimensions of a buffer without gaps for a piece, and its bytes."""
    found, size = list[FetchDim](), size_of(element)
    for each in reversed(coordinates):
        span = through(each, FAR, spans)
        if span.extent == FAR:
            names = ", ".join(axis.name for axis, _ in each.terms)
            raise NotLowered(f"positions along {names} that are rounded, and that loops move by parts of one")
        found.append(FetchDim(each, span, size))
        size *= span.extent
    return tuple(reversed(found)), size
