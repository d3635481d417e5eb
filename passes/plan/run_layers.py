# Tests: test/passes/tile/test_choose_runs.py
"""The layers of a run in a core: which follow which, what of each is made at a time, and by which unit how long.

Both units of a core work at a time where pieces follow each other: each stage of the run is a piece behind the one
before.  Of a layer that they share each makes some channels of a piece, in one stage.
Source: docs/techniques/tfu.md, "Running a unit"; the cycles are those of `piece_cycles.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from frustum.dialects.extents import Extents, Int, aligned, ceil_div
from frustum.dialects.target import Target
from frustum.dialects.tile import ConvLayer
from frustum.passes.analysis.layer import Layer
from frustum.passes.plan.layer_work import group_outputs, passes_of, work_of
from frustum.passes.plan.piece_cycles import Ints, busy_cycles, share_of_matrix
from frustum.passes.plan.piece_extents import kernel_of, product

CHANNELS = 1


@dataclass(frozen=True)
class Member:
    """A layer of a run: its number in the unit; for each operand the member that makes it in the core, or None; the
    channels before it in its reader's piece, if it is part of a concatenation there; `on_vector`: a depthwise
    convolution that the vector unit computes, `is_shared`: with the matrix unit beside it."""

    number: int
    layer: Layer
    operands: tuple[Member | Side | None, ...]
    on_vector: bool = False
    is_shared: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether the matrix unit computes it, alone."""
        return self.layer.is_matrix and not self.on_vector

    @cached_property
    def stage(self) -> int:
        """Passes behind the loads: one more where it reads what another unit of the core makes."""
        parts = [
            part
            for made in self.operands
            if made
            for part in (made.parts if isinstance(made, Side) else (made,))
        ]
        behind = (part.stage + self.waits_for(part) for part in parts)
        return 0 if self.layer.kind.is_copied else max(1, *behind, 1)

    def waits_for(self, part: Member) -> bool:
        """Whether it is not one unit of the core alone that makes both."""
        return self.is_shared or part.is_shared or part.is_matrix != self.is_matrix

    @property
    def members(self) -> Iterator[Member]:
        """With those before it, in the order in which they are made."""
        for operand in self.operands:
            if operand is not None:
                yield from operand.members
        yield self


@dataclass(frozen=True)
class Side:
    """Members side by side in a concatenation."""

    number: int
    dims: Extents
    parts: tuple[Member, ...]

    @property
    def members(self) -> Iterator[Member]:
        for part in self.parts:
            yield from part.members


@dataclass(frozen=True)
class Made:
    """What a run makes of one member at a time: extents as arrays, those at the end of each dimension, and whether it
    moves along the channels of the last layer."""

    member: Member
    extents: list[Ints]
    last: list[Ints]
    by_channels: bool

    @property
    def layer(self) -> Layer:
        return self.member.layer

    @property
    def vectors(self) -> Ints:
        """Bytes of what the layer has of each channel beside its weights."""
        channels = self.extents[CHANNELS]
        return sum((aligned(channels * size) for size in self.layer.channel_bytes), np.zeros_like(channels))


class UnitsInTurn:
    """How long the vector unit and the matrix unit of a core take for what a run makes, in `counts` pieces along each
    dimension, those at the ends of their own extents (`ends`)."""

    def __init__(
        self, target: Target, made: Mapping[int, Made], counts: list[Int], ends: list[list[tuple[Ints, Ints]]]
    ):
        self.target = target
        self.made = made
        self.counts = counts
        self.ends = ends
        self.total: Ints = np.maximum(product(counts), 1)
        self.beside: dict[int, Ints] = {}
        """Of each layer that both share: the channels of a piece that the matrix unit makes."""
        self.units: list[Ints] = [np.zeros_like(self.total), np.zeros_like(self.total)]
        self.stages: dict[int, list[Ints]] = {}
        for own in made.values():
            if not own.member.is_shared:
                cycles = self.busy(own, on_vector=own.member.on_vector)
                self.add(own, (0, cycles) if own.member.is_matrix else (cycles, 0))
        for number, own in made.items():
            if own.member.is_shared:
                self.add(own, self.shared(number, own))

    def add(self, made: Made, cycles: tuple[Int, Int]) -> None:
        """Take note of cycles of the vector and of the matrix unit for a layer."""
        none = [np.zeros_like(self.total), np.zeros_like(self.total)]
        stage = self.stages.get(made.member.stage, none)
        self.stages[made.member.stage] = [a + b for a, b in zip(stage, cycles, strict=True)]
        self.units = [a + b for a, b in zip(self.units, cycles, strict=True)]

    def shared(self, number: int, made: Made) -> tuple[Ints, Ints]:
        """Cycles of both units for a layer that they share so that both end their work of all layers together; where
        there is one piece, so that both end it together: nothing else is made meanwhile."""
        channels = made.extents[CHANNELS]
        each = self.busy(made, on_vector=True), self.busy(made, on_vector=False)
        others = [np.where(self.total > 1, unit, 0) for unit in self.units]
        beside = self.beside[number] = share_of_matrix(channels, *each, *others)
        return ceil_div(each[0] * (channels - beside), channels), ceil_div(each[1] * beside, channels)

    @cached_property
    def compute(self) -> Ints:
        """Cycles until all is computed: of the unit with more to do, and of all other stages for one piece."""
        vector, matrix = self.units
        longer: Ints = np.maximum(vector, matrix)
        return longer + (self.before(max(self.stages) + 1) - longer // self.total)

    def before(self, stage: int) -> Ints:
        """Cycles of all stages before this one for one piece."""
        found = np.zeros_like(self.total)
        for number, units in self.stages.items():
            if number < stage:
                found = found + np.maximum(*units)
        return found // self.total

    def busy(self, made: Made, *, on_vector: bool) -> Ints:
        """Cycles of one layer's unit over all pieces, those at the ends as large as they are."""
        layer, channels, core = made.layer, made.extents[CHANNELS], self.target.core
        blocks = self.counts[CHANNELS] if made.by_channels else np.ones_like(channels)
        total = np.zeros_like(channels)
        variants = [self.pieces_along(made, d) for d in (0, 2, 3)]
        conv = layer.kind if isinstance(layer.kind, ConvLayer) and not on_vector else None
        if conv is not None:
            is_grouped = conv.groups > 1
            groups = np.maximum(channels // group_outputs(layer), 1) if is_grouped else np.ones_like(channels)
            blocks = blocks * ceil_div(channels // groups, core.matrix.channels) * groups * conv.channels
            kernel = kernel_of(work_of(layer, layer.out_dims))
        for images, rows, columns in itertools.product(*variants):
            times = images[1] * rows[1] * columns[1]
            if not times.any():
                continue
            if conv is not None:
                total = total + times * busy_cycles(core.matrix, kernel, images[0], rows[0], columns[0])
                continue
            widest = max(layer.out_bytes, *(operand.element_bytes for operand in layer.maps))
            elements = images[0] * rows[0] * columns[0] * channels * core.vector.cycles_per_element.of(widest)
            steps = layer.depthwise_steps if on_vector else layer.steps
            total = total + times * ceil_div(elements, core.vector.lanes) * passes_of(steps, core.vector)
        return total * blocks

    def pieces_along(self, made: Made, d: int) -> list[tuple[Ints, Ints]]:
        """Extents of a layer's pieces along a dimension, and how many there are of each."""
        (_, times), (end, once) = self.ends[d]
        size = made.layer.out_dims[d]
        return [
            (np.minimum(made.extents[d], size), times),
            (np.minimum(made.last[d], size), once * (end > 0)),
        ]
