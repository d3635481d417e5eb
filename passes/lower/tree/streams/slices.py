# Tests: test/passes/lower/tree/test_frames.py
"""Slices of what layers of a compute stream: along which axis, and of how many positions.

What comes from DRAM or goes there does so in slices of one axis, two copies each, while cores compute on the slice
before; what does not have the axis lies there whole.  The choice is the way that takes the fewest cycles: of the DRAM
port, for which short runs are as long as its shortest, or of the cores, to which sums may go and back with every slice;
and of what comes before the first slice can be computed.

Several layers have one loop over slices where they stream the same, or make parts of one output that leave together
(`frames.py`).  What they all read is then loaded once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import classes_of
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Affine, Span
from frustum.dialects.plan.occupancy import SLICE_COPIES
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.signatures import Signature
from frustum.passes.lower.tree.spans import Spans, end, sharers, span_of, step_at
from frustum.passes.lower.tree.streams.frames import Frame

Cut: TypeAlias = Mapping[Layer, Axis]
"""The axis of each layer of which slices are parts; of none where all is one slice."""
PARTS = 4
"""A part is cut into so many slices at least, so that loads go on while cores compute. 2026-11-28."""
LEAST = 4
"""Smaller steps than twice this are not halved. 2026-11-29."""
LINES = 16
"""Steps are multiples of this where there is room: lines and channels of matrix units. 2026-11-28."""


@dataclass(frozen=True)
class SlicedLayer:
    """A layer in a loop over slices: its spans over all slices, its streamed tensors, and whether the loop stores its
    result."""

    layer: Layer
    kernels: Sequence[Kernel]
    spans: Spans
    streams: tuple[Tensor, ...]
    is_stored: bool
    even: Mapping[Axis, int]
    """Of axes the multiples that slices are of."""
    may_wait: bool = True
    """Whether there is room for sums that are not whole, in their type."""
    frame: Frame | None = None
    """An output of which the result may leave as a part."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What comes from DRAM or goes there."""
        return (*self.streams, *([self.layer.result] if self.is_stored else []))

    def may_cut(self, axis: Axis) -> bool:
        """Whether slices may be parts of an axis."""
        adds = self.may_wait and all(kernel.goes_on for kernel in self.kernels)
        is_whole = axis.is_tap or any(axis in kernel.whole for kernel in self.kernels)
        return not is_whole and (axis in self.layer.result.axes or adds)

    def sliced(self, code: Code, cut: Cut, step: int, index: Affine, count: int) -> dict[Axis, Span]:
        """What it makes in a slice."""
        found = dict(self.spans)
        axis = cut.get(self.layer)
        if axis is not None:
            own = span_of(self.spans, axis)
            limit = own.limit
            if code.is_passed(own, count * step):
                limit = end(own)
            found[axis] = Span(own.start + index * step, step, own.bound, limit)
        return found


@dataclass(frozen=True)
class Slices:
    """The axes, positions of a slice, the tensors that come in slices, and outputs whose parts leave together."""

    cut: Cut
    step: int
    count: int
    moving: frozenset[Tensor]
    frames: tuple[Frame, ...]
    cycles: float
    sizes: Mapping[Tensor, int]
    """Bytes of SRAM."""
    turn: float = 0.0
    """Cycles for which copies of cores wait."""

    def numbered(self, sign: Signature) -> tuple[Any, ...]:
        """The same, of no frames, with numbers in place of layers, axes and tensors."""
        cut = tuple((sign.number(layer), sign.number(axis)) for layer, axis in self.cut.items())
        sizes = tuple((sign.number(tensor), size) for tensor, size in self.sizes.items())
        return cut, self.step, self.count, tuple(map(sign.number, self.moving)), self.cycles, sizes, self.turn

    @staticmethod
    def of(known: tuple[Any, ...], sign: Signature) -> Slices:
        """The slices of these layers that are `numbered` so."""
        cut, step, count, moving, cycles, sizes, turn = known
        of = sign.things
        found, bytes_of = {of[layer]: of[axis] for layer, axis in cut}, {of[k]: size for k, size in sizes}
        return Slices(found, step, count, frozenset(of[k] for k in moving), (), cycles, bytes_of, turn)


@dataclass(frozen=True)
class SliceChoice:
    """What layers stream in a pass; `room`: bytes of SRAM; `homes`: where tensors lie in DRAM."""

    code: Code
    members: Sequence[SlicedLayer]
    frames: tuple[Frame, ...]
    homes: Callable[[Tensor], Place]
    boxes: Callable[[Tensor, Made], Mapping[Axis, Span]]
    """What layers touch of a tensor in parts of their axes."""
    room: int
    computing: Callable[[Layer, Spans, Axis | None, float], float]
    """Cycles of the cores for a part, a slice along this axis, of which a loop has it alone, where copies wait so long
    for their turn at SRAM's port."""
    turn: float = 0.0
    """The longest such turn: the port of DRAM is never idle."""

    def best(self) -> Slices | None:
        """None where no slice fits."""
        ways = (way for frames in dict.fromkeys(((), self.frames)) for way in self.ways(frames))
        return min(ways, key=lambda each: each.cycles, default=None)

    def ways(self, frames: tuple[Frame, ...]) -> Iterator[Slices]:
        for cut in self.cuts():
            found = _SlicesAlong(self, frames, cut)
            yield from (found.way(step) for step in dict.fromkeys(found.steps()) if found.is_filled(step))
        whole = _SlicesAlong(self, frames, {})
        if whole.bytes_of(0) <= self.room and whole.is_filled(0):
            yield whole.way(0)

    def cuts(self) -> Iterator[Cut]:
        """An axis of each layer, of one class, or along one dimension of what they are parts of; they begin alike."""
        (first, *others) = self.members
        classes = classes_of([member.layer for member in self.members]) if others else []
        for axis in first.layer.axes:
            if span_of(first.spans, axis).extent == 1 or not first.may_cut(axis):
                continue
            cut = {first.layer: axis}
            for other in others:
                near = {*next((own for own in classes if axis in own), ())} | self.beside(first, axis, other)
                found = [own for own in other.layer.result.axes if own in near and other.may_cut(own)]
                if len(found) == 1 and _begin_alike(span_of(first.spans, axis), span_of(other.spans, found[0])):
                    cut[other.layer] = found[0]
            if len(cut) == len(self.members) and (not others or axis in first.layer.result.axes):
                yield cut

    def beside(self, first: SlicedLayer, axis: Axis, other: SlicedLayer) -> set[Axis]:
        """The axis along the same dimension of a frame."""
        found = set[Axis]()
        for frame in self.frames:
            mine, theirs = (frame.positions.get(each.layer.result, {}) for each in (first, other))
            for dim in mine.keys() & theirs.keys():
                factor = dict(mine[dim].terms).get(axis)
                found |= {own for own, each in theirs[dim].terms if each == factor}
        return found


def chosen_of(found: Slices | None, members: Sequence[SlicedLayer], room: int) -> Slices:
    """What was found of these layers.  DoesNotFit where nothing was."""
    if found is None:
        names = ", ".join(f"'{member.layer.name}'" for member in members)
        where, left = f"layer {names}", f"{max(0, room)} B of SRAM beside what stays there"
        raise DoesNotFit("the smallest slice of what is streamed", where, "more", left, "sram")
    return found


def _begin_alike(a: Span, b: Span) -> bool:
    """Whether slices of both are at the same positions: one may end before the other."""
    return a.start == b.start and (a.extent == b.extent or (a.extent == a.bound and b.extent == b.bound))


class _SlicesAlong:
    """Slices along one axis of each layer; none where `cut` is empty."""

    def __init__(self, choice: SliceChoice, frames: tuple[Frame, ...], cut: Cut) -> None:
        self.choice, self.frames, self.cut = choice, frames, cut
        self.members: Sequence[SlicedLayer] = choice.members
        self.depth: int = choice.code.depth
        self.framed: dict[Tensor, Frame] = {
            member.layer.result: member.frame for member in self.members if member.frame and member.frame in frames
        }
        own = dict.fromkeys(tensor for member in self.members for tensor in member.tensors)
        self.tensors: list[Tensor] = [each for each in own if each not in self.framed]
        self.tensors += [frame.tensor for frame in frames]
        spans = [span_of(member.spans, cut[member.layer]) for member in self.members if cut]
        self.extent: int = max((span.extent for span in spans), default=0)
        self.moving: frozenset[Tensor] = frozenset(t for t in self.tensors if self.moves(t)) if cut else frozenset()

    def moves(self, tensor: Tensor) -> bool:
        """Whether a slice of the axis needs a slice of the tensor alone."""
        made: dict[str, dict[Axis, Span]] = {}
        for member in self.members:
            axis = self.cut[member.layer]
            if tensor is member.layer.result:
                return axis in tensor.axes
            if tensor in member.streams or any(tensor is frame.tensor for frame in self.frames):
                made[member.layer.name] = {axis: Span(Affine.index(self.depth), 1, axis.extent)}
        box = self.box(tensor, made)
        is_frame = any(tensor is frame.tensor for frame in self.frames)
        return any(step_at(span, self.depth) == span.extent and (is_frame or span.extent == 1) for span in box.values())

    def made(self, step: int) -> dict[str, dict[Axis, Span]]:
        """What layers make in the first slice."""
        found: dict[str, dict[Axis, Span]] = {}
        for member in self.members:
            own = found[member.layer.name] = dict(member.spans)
            if self.cut:
                axis = self.cut[member.layer]
                span = span_of(member.spans, axis)
                own[axis] = replace(span, extent=min(step, span.extent), limit=None)
        return found

    def box(self, tensor: Tensor, made: Made) -> Mapping[Axis, Span]:
        frame = next((frame for frame in self.frames if tensor is frame.tensor), None)
        if frame is None:
            names = [m.layer.name for m in self.members if tensor in m.tensors]
            return self.choice.boxes(tensor, {name: made[name] for name in names})
        return frame.box({t: made[self.maker(t).layer.name] for t, own in self.framed.items() if own is frame})

    def maker(self, tensor: Tensor) -> SlicedLayer:
        return next(member for member in self.members if member.layer.result is tensor)

    def part(self, tensor: Tensor, step: int) -> Mapping[Axis, Span]:
        """The box of a tensor that there is at a time."""
        if tensor in self.moving or not self.cut:
            return self.box(tensor, self.made(step))
        return self.box(tensor, {member.layer.name: dict(member.spans) for member in self.members})

    def count(self, step: int) -> int:
        return ceil_div(self.extent, step) if self.cut else 1

    def is_filled(self, step: int) -> bool:
        """Whether each slice of an output that leaves at once is made by these layers."""
        if not self.frames:
            return True
        code, count = Code(self.choice.code.target), self.count(step)
        code.counts = [*self.choice.code.counts, *([count] if count > 1 else [])]
        index = Affine.index(self.depth) if count > 1 else Affine()
        for frame in self.frames:
            made = {
                member.layer.result: member.sliced(code, self.cut, step, index, count) if frame.tensor in self.moving
                else member.spans
                for member in self.members if self.framed.get(member.layer.result) is frame
            }  # fmt: skip
            if len(made) < 2 or not frame.is_filled(code, made):
                return False
        return True

    def steps(self) -> Iterator[int]:
        """From a quarter of the positions down, as far as they fit."""
        most = ceil_div(ceil_div(self.extent, PARTS), LINES)
        lines = bisect_left(range(1, most + 1), True, key=lambda k: self.bytes_of(k * LINES) > self.choice.room)
        step = min(self.extent, lines * LINES) if lines else min(self.extent, LINES)
        while step >= 1 and self.bytes_of(step) > self.choice.room:
            step //= 2
        even = math.lcm(*(member.even.get(self.cut[member.layer], 1) for member in self.members))
        while step >= 1:
            if step == self.extent or step % even == 0:
                yield step
            yield from (each for each in self.filling(step) if each % even == 0)
            quarter = ceil_div(self.extent, PARTS)
            if step > LINES:
                step = max(LINES, step // 2 // LINES * LINES)
            else:
                step = quarter if quarter < step else step // 2 if step > LEAST else 0

    def filling(self, step: int) -> Iterator[int]:
        """The next steps down that fill lines or channels of all cores, or of one."""
        cluster = self.choice.code.target.cluster
        for own in dict.fromkeys((cluster.core.matrix.lines, cluster.core.matrix.channels)):
            yield from (step // each * each for each in (cluster.cores * own, own) if each < step)

    def bytes_of(self, step: int) -> int:
        """Of SRAM."""
        return sum(self.sizes(step).values())

    def sizes(self, step: int) -> dict[Tensor, int]:
        """Of each tensor, with two copies of a slice."""
        return {
            tensor: _size(self.part(tensor, step)) * self.width(tensor) * (1 + (tensor in self.moving))
            for tensor in self.tensors
        }

    def home(self, tensor: Tensor) -> Place:
        frame = next((frame for frame in self.frames if tensor is frame.tensor), None)
        return self.choice.homes(tensor) if frame is None else frame.home

    def width(self, tensor: Tensor) -> int:
        """Bytes of an element."""
        home = self.home(tensor)
        return size_of(home.element) * home.planes

    def way(self, step: int) -> Slices:
        count, target = self.count(step), self.choice.code.target
        dram, sram = target.chip.dram, target.cluster.sram
        total = first = float(dram.latency_cycles)
        longest = 0.0
        for tensor in self.tensors:
            cycles = self.port_bytes(tensor, step) / dram.port_bytes_per_cycle
            times = count if tensor in self.moving else 1
            total += cycles * times
            first += cycles
            longest = max(longest, cycles if tensor in self.moving else 0.0)
        cores, turn = self.cores(step, 0.0), 0.0
        if total > cores / 2 and self.choice.turn:
            turn = self.choice.turn * (1.0 if total > cores else 0.5)  # as often as the port is busy, by halves
            cores = self.cores(step, turn)
        dealt = (frame.tensor for frame in self.frames)
        elements = sum(_size(self.part(tensor, step)) * (count if tensor in self.moving else 1) for tensor in dealt)
        scattered = elements * sram.minimum_run_bytes / sram.port_bytes_per_cycle
        # of the copies of a slice one crosses the port and waits for its latency, and cores work on it
        around = (count * (dram.latency_cycles + longest) + cores) / SLICE_COPIES if count > 1 else 0.0
        cycles = max(total, cores, scattered, around) + first
        return Slices(self.cut, step, count, self.moving, self.frames, cycles, self.sizes(step), turn)

    def cores(self, step: int, turn: float) -> float:
        """Cycles of the cores for all slices."""
        count, made, found = self.count(step), self.made(step), 0.0
        for member in self.members:
            alone = self.cut.get(member.layer) if count > 1 and len(self.members) == 1 else None
            computing = self.choice.computing(member.layer, made[member.layer.name], alone, turn)
            found += count * (computing + self.choice.code.target.cluster.sram.latency_cycles)
        return found

    def port_bytes(self, tensor: Tensor, step: int) -> int:
        """Bytes of a box at the DRAM port, with those of the other clusters' where each has its own."""
        home, box = self.home(tensor), self.part(tensor, step)
        run = size = size_of(home.element)
        for own in sorted(box, key=lambda each: home.strides.get(each, 0)):
            if home.strides.get(own, run) != run:
                break
            run *= box[own].extent
            if box[own].extent < own.extent:
                break
        runs = ceil_div(_size(box) * size, run)
        boxes = home.planes * sharers(box.values(), self.choice.code.clusters)
        return boxes * runs * max(run, self.choice.code.target.chip.dram.minimum_run_bytes)


def _size(box: Mapping[Axis, Span]) -> int:
    return math.prod(span.extent for span in box.values())
