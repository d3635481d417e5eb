"""Address tables of convolutions: where each thread finds each of its operands, worked out before the data exists.

Thread t (one output position of one image) finds its k-th operand at `base[t] + rel[k]`; the matching weight is the
k-th.  A matrix product is a convolution with a 1 x 1 kernel.  All numbers are Python integers.

Source: docs/techniques/address-tables.md, "The table".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

from frustum.dialects.extents import ceil_div

Pair: TypeAlias = tuple[int, int]
Order: TypeAlias = Literal["channel-major", "tap-major", "pixel-major"]
ORDERS: tuple[Order, ...] = get_args(Order)
AXES: dict[Order, tuple[str, str]] = {
    "channel-major": ("nyx", "cvu"),
    "tap-major": ("nyx", "vuc"),
    "pixel-major": ("yxn", "vcu"),
}
"""In which order threads (image n, row y, column x) and products (channel c, tap v, u) are numbered, slowest first."""
WIDTHS = (1, 2, 4, 8)
MOST_EXTENT = (1 << 16) - 1
"""Of a part, in any dimension: what its stored form can say."""


class TableWalk(NamedTuple):
    """Elements from a piece to the next where the part that a table describes is walked; None where it is not.

    `row` and `column` are those of the output: of a part of three rows the step is three vertical strides.
    """

    image: int | None = None
    row: int | None = None
    column: int | None = None
    channel: int | None = None
    group: int | None = None


STILL = TableWalk()


@dataclass(frozen=True, slots=True)
class Layout:
    """Strides in elements.  With `block`, channel c is at `c // block * c_stride + c % block * within`."""

    n: int
    c: int
    h: int
    w: int
    block: int = 0
    within: int = 1

    def channel(self, c: int) -> int:
        return c * self.c if not self.block else c // self.block * self.c + c % self.block * self.within


def nchw(c: int, h: int, w: int) -> Layout:
    return Layout(c * h * w, h * w, w, 1)


def nhwc(c: int, h: int, w: int) -> Layout:
    return Layout(c * h * w, 1, w * c, c)


def cnhw(n: int, h: int, w: int) -> Layout:
    return Layout(h * w, n * h * w, w, 1)


def nchwc(c: int, h: int, w: int, block: int) -> Layout:
    return Layout(ceil_div(c, block) * h * w * block, h * w * block, w * block, block, block)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a table depends on: output positions, channels of a group, the kernel's form [v, u], the layout; of more
    groups than one the table has the bases of each, one group after the other."""

    images: int
    rows: int
    columns: int
    channels: int
    kernel: Pair
    strides: Pair
    dilations: Pair
    layout: Layout
    groups: int = 1

    @property
    def threads(self) -> int:
        return self.images * self.rows * self.columns

    @property
    def products(self) -> int:
        return self.channels * self.kernel[0] * self.kernel[1]

    @property
    def window(self) -> Pair:
        """Rows and columns of the input under all windows."""
        sizes = zip((self.rows, self.columns), self.strides, self.kernel, self.dilations, strict=True)
        h, w = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in sizes)
        return h, w


# --- tables ------------------------------------------------------------------------------------------------


def base(g: Geometry, group: int = 0, order: Order = "channel-major", element_bytes: int = 1) -> list[int]:
    """Address of each thread's first operand; groups are numbered from 0."""
    (sv, su), layout = g.strides, g.layout
    start = layout.channel(group * g.channels)
    offsets = {
        "n": [n * layout.n for n in range(g.images)],
        "y": [y * sv * layout.h for y in range(g.rows)],
        "x": [x * su * layout.w for x in range(g.columns)],
    }
    return [element_bytes * (start + o) for o in _sums(offsets, AXES[order][0])]


def bases(g: Geometry, order: Order = "channel-major") -> list[int]:
    """Those of all groups that the table has."""
    return [value for group in range(g.groups) for value in base(g, group, order)]


def rel(g: Geometry, phase: int = 0, order: Order = "channel-major", element_bytes: int = 1) -> list[int]:
    """Offset of each operand from the base; `phase`: place of the group's first channel in its block."""
    (dv, du), layout = g.dilations, g.layout
    first = layout.channel(phase)
    offsets = {
        "c": [layout.channel(phase + c) - first for c in range(g.channels)],
        "v": [v * dv * layout.h for v in range(g.kernel[0])],
        "u": [u * du * layout.w for u in range(g.kernel[1])],
    }
    return [element_bytes * o for o in _sums(offsets, AXES[order][1])]


def _sums(offsets: dict[str, list[int]], axes: str) -> list[int]:
    return [sum(parts) for parts in itertools.product(*(offsets[axis] for axis in axes))]


def padded(
    g: Geometry, origin: Pair, bound: Pair, padding: int, order: Order = "channel-major"
) -> list[list[int]]:
    """The address of each operand of each thread where the border is not in memory.

    The first window starts at position `origin` of a map of size `bound`, which lies from address 0 on; operands
    outside it are the shared element at address `padding`.
    """
    start = origin[0] * g.layout.h + origin[1] * g.layout.w
    table = [[start + b + r for r in rel(g, 0, order)] for b in base(g, 0, order)]
    marks = replace(g, layout=Layout(0, 0, 1, 0)), replace(g, layout=Layout(0, 0, 0, 1))
    (rows_of, columns_of) = (
        ([b + o for b in base(m, 0, order)], rel(m, 0, order)) for m, o in zip(marks, origin, strict=True)
    )
    for t, (row, column) in enumerate(zip(rows_of[0], columns_of[0], strict=True)):
        for k, (v, u) in enumerate(zip(rows_of[1], columns_of[1], strict=True)):
            if not (0 <= row + v < bound[0] and 0 <= column + u < bound[1]):
                table[t][k] = padding
    return table


# --- encodings ---------------------------------------------------------------------------------------------


def differences(values: Sequence[int]) -> list[int]:
    """The first value, then what each has more than the one before it."""
    return [value - before for value, before in zip(values, [0, *values[:-1]], strict=True)]


def width_bytes(values: Sequence[int]) -> int | None:
    """The narrowest unsigned width that holds all values; None if one is negative."""
    if min(values) < 0:
        return None
    return next(width for width in WIDTHS if max(values) < 1 << 8 * width)


def encoding(values: Sequence[int]) -> tuple[bool, int]:
    """Whether running differences are narrower than the values themselves, and the width in bytes."""
    absolute, running = width_bytes(values), width_bytes(differences(values))
    if running is not None and (absolute is None or running < absolute):
        return True, running
    assert absolute is not None, "offsets from the lowest address are not negative"
    return False, absolute


# --- cost and size -----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def lines_read(g: Geometry, order: Order, threads: int, line_bytes: int, element_bytes: int) -> int:
    """Cache lines that groups of `threads` threads read, a product at a time: those of the step before are there."""
    import numpy as np

    bases, rels = (np.array(part(g, 0, order, element_bytes), np.int64) for part in (base, rel))
    total = 0
    for start in range(0, len(bases), threads):
        lines = (bases[start : start + threads, None] + rels) // line_bytes
        span = int(lines.max()) + 1
        seen = np.unique(lines + span * np.arange(len(rels)))
        total += int((~np.isin(seen - span, seen)).sum())
    return total


@lru_cache(maxsize=4096)
def best_order(g: Geometry, threads: int, line_bytes: int, element_bytes: int) -> Order:
    """The order that reads the fewest lines; of equal ones the narrowest table, then the first of ORDERS."""

    def cost(order: Order) -> tuple[int, int]:
        return lines_read(g, order, threads, line_bytes, element_bytes), entries_bytes(g, order)

    return min(ORDERS, key=cost)


@lru_cache(maxsize=65536)
def entries_bytes(g: Geometry, order: Order) -> int:
    """Bytes of both tables in their narrower encodings."""
    return base_bytes(g, order) + rel_bytes(g, order)


def base_bytes(g: Geometry, order: Order) -> int:
    return g.groups * g.threads * encoding(bases(g, order))[1]


def rel_bytes(g: Geometry, order: Order) -> int:
    return g.products * encoding(rel(g, 0, order))[1]


def parts_of(g: Geometry, order: Order = "channel-major") -> Iterator[Geometry]:
    """The whole piece of one group, then ever smaller parts of it, the last one of a single thread and channel.

    All threads and channels of a strided layout are alike but for where they start, so that one part's table serves
    the whole piece: the unit walks it.  Split are the channels while there are more offsets than bases, then images,
    rows and columns.
    """
    yield g
    while g.channels > 1 or g.threads > 1:
        if g.channels > 1 and (rel_bytes(g, order) >= base_bytes(g, order) or g.threads == 1):
            g = replace(g, channels=ceil_div(g.channels, 2))
        elif g.images > 1:
            g = replace(g, images=ceil_div(g.images, 2))
        elif g.rows > 1:
            g = replace(g, rows=ceil_div(g.rows, 2))
        else:
            g = replace(g, columns=ceil_div(g.columns, 2))
        yield g


def walk_of(part: Geometry, whole: Geometry, group_channels: int | None = None) -> TableWalk:
    """The steps by which the table of a part serves all of a piece; groups, if there are several, lie
    `group_channels` channels apart.  A table of more groups than one is not walked."""
    if part.groups > 1:
        return STILL
    layout, (sv, su) = whole.layout, whole.strides
    return TableWalk(
        part.images * layout.n if part.images < whole.images else None,
        part.rows * sv * layout.h if part.rows < whole.rows else None,
        part.columns * su * layout.w if part.columns < whole.columns else None,
        layout.channel(part.channels) if part.channels < whole.channels else None,
        None if group_channels is None else layout.channel(group_channels),
    )
