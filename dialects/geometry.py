"""Half-open intervals and boxes, and what a layer needs of its input to give a piece of its output.

Pure arithmetic on positions along axes; a tile is a `Box`.  All intervals are `[start, stop)`; an interval
whose stop is not above its start is empty, and all empty ones are equal.

Source: frustum technique, "Regions (backward projection)".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import ceil, floor
from typing import Literal


@dataclass(frozen=True)
class Interval:
    """`[start, stop)`."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.stop <= self.start:
            object.__setattr__(self, "start", 0)
            object.__setattr__(self, "stop", 0)

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, position: int) -> bool:
        return self.start <= position < self.stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"

    def covers(self, other: Interval) -> bool:
        return not other or (self.start <= other.start and other.stop <= self.stop)

    def shifted(self, by: int) -> Interval:
        return Interval(self.start + by, self.stop + by) if self else self

    def clipped(self, size: int) -> Interval:
        """What of it lies in `[0, size)`."""
        return self & Interval(0, size)

    def outside(self, size: int) -> tuple[int, int]:
        """How many positions lie below 0, and how many at `size` or above: a clipped tile's own padding."""
        if not self:
            return 0, 0
        return min(len(self), max(0, -self.start)), min(len(self), max(0, self.stop - size))

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.start, other.start), min(self.stop, other.stop))

    def hull(self, other: Interval) -> Interval:
        """The smallest interval that covers both."""
        if not self or not other:
            return self or other
        return Interval(min(self.start, other.start), max(self.stop, other.stop))


EMPTY = Interval(0, 0)


@dataclass(frozen=True)
class Box:
    """One interval for each axis; empty when any of them is."""

    axes: tuple[Interval, ...]

    @classmethod
    def of_shape(cls, shape: Iterable[int]) -> Box:
        return cls(tuple(Interval(0, size) for size in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.axes))

    @property
    def volume(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def slices(self) -> tuple[slice, ...]:
        """For indexing an array with it."""
        return tuple(slice(axis.start, axis.stop) for axis in self.axes)

    def __bool__(self) -> bool:
        return all(self.axes)

    def __str__(self) -> str:
        return " x ".join(map(str, self.axes))

    def __and__(self, other: Box) -> Box:
        return Box(tuple(a & b for a, b in self._pairs(other)))

    def hull(self, other: Box) -> Box:
        """The smallest box that covers both."""
        if not self or not other:
            return self or other
        return Box(tuple(a.hull(b) for a, b in self._pairs(other)))

    def covers(self, other: Box) -> bool:
        return not other or all(a.covers(b) for a, b in self._pairs(other))

    def clipped(self, shape: Iterable[int]) -> Box:
        return self & Box.of_shape(shape)

    def shifted(self, by: Iterable[int]) -> Box:
        return Box(tuple(axis.shifted(step) for axis, step in zip(self.axes, by, strict=True)))

    def replaced(self, axis: int, by: Interval) -> Box:
        """The same box with one axis exchanged."""
        return Box((*self.axes[:axis], by, *self.axes[axis + 1 :]))

    def _pairs(self, other: Box) -> Iterator[tuple[Interval, Interval]]:
        return zip(self.axes, other.axes, strict=True)


@dataclass(frozen=True)
class Window:
    """A layer along one axis: output position o reads `o*stride - pad_low + k*dilation`, k in `[0, kernel)`."""

    kernel: int = 1
    stride: int = 1
    pad_low: int = 0  # negative: the layer crops
    dilation: int = 1

    @property
    def span(self) -> int:
        """Positions from the first to the last that one output reads."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def kept(self) -> int:
        """Positions at the end of a tile that the next tile needs again: `max(0, span - stride)`."""
        return max(0, self.span - self.stride)

    def project(self, output: Interval) -> Interval:
        """What the outputs read, padding included: `[a*S - P, (b-1)*S - P + (K-1)*D + 1)`."""
        if not output:
            return EMPTY
        start = output.start * self.stride - self.pad_low
        return Interval(start, start + (len(output) - 1) * self.stride + self.span)

    def output_size(self, size: int, pad_high: int = 0) -> int:
        """Outputs of an input of `size` positions with padding at both ends."""
        return max(0, (size + self.pad_low + pad_high - self.span) // self.stride + 1)

    def reach(self, inputs: Interval) -> Interval:
        """The outputs that can be computed from these inputs (which may include padding) alone."""
        if not inputs:
            return EMPTY
        start = ceil_div(inputs.start + self.pad_low, self.stride)
        return Interval(start, (inputs.stop + self.pad_low - self.span) // self.stride + 1)

    def then(self, above: Window) -> Window:
        """One window that needs what `above` needs of what this one needs.

        Exact where neither has gaps between its taps, else the hull.
        """
        span = (above.span - 1) * self.stride + self.span
        return Window(span, self.stride * above.stride, above.pad_low * self.stride + self.pad_low)


Rounding = Literal["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]


@dataclass(frozen=True)
class Scaling:
    """A resize along one axis: output position o lies at input position `o*scale + offset`, clamped to the edge.

    `nearest` reads the position so rounded, `linear` the two around it.  The scale is not negative.
    """

    scale: float
    offset: float = 0.0
    mode: Literal["nearest", "linear"] = "nearest"
    rounding: Rounding = "floor"

    def taps(self, output: int, size: int) -> tuple[tuple[int, float], ...]:
        """The input positions in `[0, size)` that an output reads, each with its weight; weights add up to 1."""
        position = min(max(output * self.scale + self.offset, 0.0), size - 1.0)
        if self.mode == "nearest":
            return ((min(max(round_position(position, self.rounding), 0), size - 1), 1.0),)
        below = floor(position)
        above_weight = position - below
        return ((below, 1.0 - above_weight), (min(below + 1, size - 1), above_weight))

    def project(self, output: Interval, size: int) -> Interval:
        """What the outputs read of an input of `size` positions; never outside it."""
        if not output or size <= 0:
            return EMPTY
        first = self.taps(output.start, size)[0][0]
        last = self.taps(output.stop - 1, size)[-1][0]
        return Interval(first, last + 1)


def round_position(position: float, rounding: Rounding) -> int:
    """The whole position for a fractional one; the two `round_*` differ at halves only."""
    match rounding:
        case "floor":
            return floor(position)
        case "ceil":
            return ceil(position)
        case "round_prefer_floor":
            return ceil(position - 0.5)
        case "round_prefer_ceil":
            return floor(position + 0.5)


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval that covers all: what several consumers need together."""
    return reduce(Interval.hull, intervals, EMPTY)


def whole_axis(output: Interval, size: int) -> Interval:
    """The projection of a layer that needs all of an axis, such as global pooling."""
    return Interval(0, size) if output else EMPTY


def pieces(size: int, step: int) -> list[Interval]:
    """`[0, size)` in steps; the last may be smaller."""
    return [Interval(start, min(start + step, size)) for start in range(0, size, step)]


def even_pieces(size: int, count: int) -> list[Interval]:
    """`[0, size)` in `count` pieces that differ by one at most, the larger first; some are empty if it is short."""
    share, rest = divmod(size, count)
    starts = [i * share + min(i, rest) for i in range(count + 1)]
    return [Interval(start, stop) for start, stop in pairwise(starts)]


def ceil_div(a: int, b: int) -> int:
    """`ceil(a / b)`."""
    return -(-a // b)
