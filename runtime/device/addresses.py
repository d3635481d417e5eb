"""What a convolution makes of its address table: strides, if the entries are those of strides, or the addresses alone.

A convolution that names a table finds every element of its input at `base[t] + rel[k]`, plus the steps of the walk;
its own view says where the buffer begins.  When the program is loaded the entries are compared with sums of strides
over images, rows and columns, and over channels and taps.  Strides that were recognised so, and that keep to the
buffer's rows and columns, go to the fast loops, which know padding by rows and columns.  All other entries are
addresses for the gather (`matrix.py`), which knows padding by its place in the buffer.

Source: docs/techniques/address-tables.md, "How the emulator executes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import ELEMENT_BYTES, Conv
from frustum.dialects.isa.tables.address_table import AXES
from frustum.dialects.isa.tables.stored_table import STEPS, StoredTable, TableError, check_use
from frustum.runtime.device.form import Ints, groups_of

if TYPE_CHECKING:
    pass



class Strides(NamedTuple):
    """Elements from one to the next in the input; 0 where there is only one."""

    n: int
    c: int
    h: int
    w: int
    group: int


@dataclass(frozen=True, eq=False)
class Addresses:
    """A table as one convolution uses it; `strides` where its entries are those of the convolution's own buffer."""

    stored: StoredTable
    strides: Strides | None

    def threads(self, groups: int, images: int, rows: int, columns: int) -> Ints:
        """Elements from the buffer's begin to the first operand of each thread, `[groups, images, rows, columns]`."""
        own, walk = self.stored, self.stored.walk
        extents = {"n": own.images, "y": own.rows, "x": own.columns}
        of_groups = [
            _by_axes(base, AXES[own.order][0], "nyx", extents) for base in own.base.reshape(own.groups, -1)
        ]
        counts, parts = (groups, images, rows, columns), (own.groups, *own.part[:3])
        steps = walk.group, walk.image, walk.row, walk.column
        pieces = [_pieces(count, part, step) for count, part, step in zip(counts, parts, steps, strict=True)]
        places, moves = zip(*pieces, strict=True)
        found: Ints = np.stack(of_groups)[np.ix_(*places)] + _sums(moves)
        return found

    def ends(self, most: Extents, groups: int) -> tuple[int, int]:
        """The lowest and the highest address of an execution of this size, from the buffer's begin on."""
        threads, products = self.threads(groups, *most[:3]), self.products(most[3])
        return int(threads.min() + products.min()), int(threads.max() + products.max())

    def products(self, channels: int) -> Ints:
        """Elements from a thread's first operand to each of its operands, `[channels, kernel rows, columns]`."""
        own, (high, wide) = self.stored, self.stored.kernel
        rel = _by_axes(own.rel, AXES[own.order][1], "cvu", {"c": own.channels, "v": high, "u": wide})
        place, move = _pieces(channels, own.channels, own.walk.channel)
        found: Ints = rel[place] + move[:, None, None]
        return found


def _by_axes(values: Ints, axes: str, wanted: str, extents: dict[str, int]) -> Ints:
    """Entries that are numbered along `axes`, slowest first, as an array with the axes `wanted`."""
    array = values.reshape([extents[axis] for axis in axes])
    return array.transpose([axes.index(axis) for axis in wanted])


def _pieces(extent: int, part: int, step: int | None) -> tuple[Ints, Ints]:
    """Where in its piece each position of an axis is, and how far the walk has moved there."""
    piece, place = np.divmod(np.arange(extent), part)
    return place, piece * (step or 0)


def _sums(moves: Sequence[Ints]) -> Ints:
    """All sums of one of each."""
    total = np.zeros((), np.int64)
    for move in moves:
        total = np.add.outer(total, move)
    return total


@dataclass(frozen=True, eq=False)
class AddressTables:
    """The tables of a program: `number` says for each row of the core table which it names (-1: none); `uses` what
    instruction number `static` makes of table `number`."""

    stored: tuple[StoredTable, ...]
    number: Ints
    uses: dict[tuple[int, int], Addresses]


def addresses(stored: StoredTable, conv: Conv, most: Extents) -> Addresses:
    """The table as a convolution uses it whose executions have at most these images, rows, columns and channels.

    TableError where the table is not made for it.
    """
    check_use(stored, conv)
    for axis, extent, part, step in zip(STEPS, most, stored.part, stored.walk, strict=False):
        if extent > part and step is None:
            raise TableError(f"it describes {part} {axis}s and no step, the convolution has {extent}")
    plain = Addresses(stored, None)
    return Addresses(stored, _recognised(plain, conv, most))


def _recognised(plain: Addresses, conv: Conv, most: Extents) -> Strides | None:
    """The strides of which all entries are sums, if these are the strides of the buffer of the convolution."""
    images, rows, columns, channels = most
    if 0 in most:
        return None
    threads, products = plain.threads(conv.groups, images, rows, columns), plain.products(channels)
    group, n, y, x = (_first_step(threads, axis) for axis in range(4))
    c, v, u = (_first_step(products, axis) for axis in range(3))
    (sv, su), (dv, du) = conv.strides, conv.dilations
    h, w = y // sv if rows > 1 else v // dv, x // su if columns > 1 else u // du
    if not (_is_sum(threads, (group, n, h * sv, w * su)) and _is_sum(products, (c, h * dv, w * du))):
        return None
    found = Strides(n, c, h, w, group)
    return found if _keeps_to(found, conv, most) else None


def _first_step(values: Ints, axis: int) -> int:
    """From the first to the second along an axis; 0 where there is no second."""
    if values.shape[axis] < 2:
        return 0
    second = [0] * values.ndim
    second[axis] = 1
    return int(values[tuple(second)] - values[(0,) * values.ndim])


def _is_sum(values: Ints, steps: Sequence[int]) -> bool:
    return np.array_equal(values, _sums([np.arange(n) * step for n, step in zip(values.shape, steps, strict=True)]))


def _keeps_to(found: Strides, conv: Conv, most: Extents) -> bool:
    """Whether rows and columns that strides lead to are rows and columns of the buffer, as its padding is told by."""
    size = ELEMENT_BYTES[conv.in_view.element]
    n, c, h, w = conv.in_view.strides
    images, rows, columns, channels = most
    several = images > 1, channels > 1, rows > 1 or conv.kernel[0] > 1, columns > 1 or conv.kernel[1] > 1
    own = n, c, h, w, conv.channels.extent * c
    pairs = zip(found, own, (*several, conv.groups > 1), strict=True)
    return all(stride * size == its for stride, its, is_used in pairs if is_used)


def buffer_elements(conv: Conv, box: list[int], read: list[int], low: list[int], high: list[int]) -> int:
    """How many elements the buffer spans that the windows of an execution lie in, padding included."""
    rows, columns = (read[d] + low[d] + high[d] for d in (2, 3))
    channels = (groups_of(conv, box[1]) - 1) * conv.channels.extent + read[1]
    extents, size = (box[0], channels, rows, columns), ELEMENT_BYTES[conv.in_view.element]
    return 1 + sum((n - 1) * stride // size for n, stride in zip(extents, conv.in_view.strides, strict=True))
