"""Which address tables a convolution could have, and what each would cost: bytes, and cycles of the matrix unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, cast

import numpy as np

from frustum.dialects.isa.instruction import value_of
from frustum.dialects.isa.operations import ConvOp
from frustum.dialects.isa.program import ELEMENT_BYTES, LineMode
from frustum.dialects.isa.tables.address_table import MOST_EXTENT, ORDERS, Geometry, Layout, parts_of, walk_of
from frustum.dialects.isa.tables.stored_table import stored_bytes
from frustum.dialects.target import MatrixUnit, Target
from frustum.dialects.target.durations import address_cycles, matrix_work
from frustum.passes.lower.choose_line_buffer import Sizes, sizes_of, windows_of
from frustum.passes.lower.executions import Ints


class Asked(NamedTuple):
    """What the table of an instruction depends on: the whole piece of a group, an element's bytes, how many groups,
    and the channels from one to the next (None: one group)."""

    whole: Geometry
    element_bytes: int
    groups: int
    group_channels: int | None


@dataclass(frozen=True)
class Demand:
    """One convolution that asks for a table: its executions, and for each size how long the unit is busy anyway."""

    asked: Asked
    sizes: Sizes
    busy_cycles: Ints

    def cycles(self, unit: MatrixUnit, part: Geometry | None) -> int:
        """Of the matrix unit, over all executions, with the table of a part, or without one."""
        images, rows, columns, channels, _ = self.sizes.counts
        taps = self.asked.whole.kernel[0] * self.asked.whole.kernel[1]
        its = None if part is None else (part.images, part.rows, part.columns, part.channels)
        has_groups = part is not None and part.groups > 1
        box = images, rows, columns, channels
        found = address_cycles(unit, box, taps, self.asked.groups, its, has_groups=has_groups)
        return int((np.maximum(self.busy_cycles, found) * self.sizes.times).sum())


class Option(NamedTuple):
    """A part whose table could be made (None: no table), its bytes (at most), and the cycles of those who use it."""

    part: Geometry | None
    size_bytes: int
    cycles: int


def demand_of(conv: ConvOp, target: Target) -> Demand | None:
    """What a convolution asks for; None where it computes nothing, or no table can tell its padding."""
    sizes, view = sizes_of(conv, target), conv.in_view.data
    size, groups = ELEMENT_BYTES[view.element], conv.groups.value.data
    if not sizes.counts.size or any(stride % size for stride in view.strides) or not _is_bordered(conv, sizes):
        return None
    images, rows, columns, channels = (int(most) for most in sizes.counts[:4].max(axis=1))
    kernel, strides, dilations = (value_of(each) for each in (conv.kernel, conv.strides, conv.dilations))
    layout = Layout(*(stride // size for stride in view.strides))
    whole = Geometry(images, rows, columns, channels, kernel, strides, dilations, layout)
    work = windows_of(conv).convolution(*sizes.counts)
    mode = cast(LineMode, "split" if conv.line_mode is None else conv.line_mode.data)
    busy = matrix_work(target.core.matrix, work, mode).busy_cycles
    group_channels = conv.channels.data.extent if groups > 1 else None
    return Demand(Asked(whole, size, groups, group_channels), sizes, busy)


def _is_bordered(conv: ConvOp, sizes: Sizes) -> bool:
    """Whether no two positions of the input's buffer, padding included, are at one address; or there is no padding."""
    if not any(sizes.padding):
        return True
    groups, box = conv.groups.value.data, conv.box.data.extent
    channels = groups * conv.channels.data.extent
    extents = box[0], channels, conv.rows.data.extent, conv.cols.data.extent
    reach = 0
    for stride, extent in sorted(zip(conv.in_view.data.strides, extents, strict=True)):
        if extent > 1 and stride <= reach:
            return False
        reach += (extent - 1) * stride
    return True


def options_of(demands: Sequence[Demand], unit: MatrixUnit, most_bytes: int) -> list[Option]:
    """What convolutions that ask for the same could have together, in tables of at most `most_bytes`.

    First comes what takes the fewest cycles, of equals the smallest table, and no table only if that is faster than
    any; then what takes fewer bytes and more cycles, the last of which is no table.
    """
    asked = demands[0].asked
    none = Option(None, 0, sum(each.cycles(unit, None) for each in demands))
    made = [
        Option(part, size, sum(each.cycles(unit, part) for each in demands))
        for part, size in _parts(asked, most_bytes)
    ]
    return [*_rising(each for each in made if each.cycles <= none.cycles), none]


def _parts(asked: Asked, most_bytes: int) -> Iterator[tuple[Geometry, int]]:
    """The parts whose tables are small enough, in whatever order they are numbered, and the bytes of these."""
    has_all = asked.groups > 1 and asked.group_channels == asked.whole.channels
    of_all_groups = [replace(asked.whole, groups=asked.groups)] if has_all else []
    for part in chain(of_all_groups, parts_of(asked.whole)):
        largest = max(part.groups, part.images, part.rows, part.columns, part.channels)
        if part.groups * part.threads + part.products > most_bytes or largest > MOST_EXTENT:
            continue
        walk = walk_of(part, asked.whole, asked.group_channels)
        size = max(stored_bytes(part, order, walk) for order in ORDERS)
        if size <= most_bytes:
            yield part, size


def _rising(options: Iterable[Option]) -> list[Option]:
    """Those than which no other has both as few cycles and as few bytes, the fastest first."""
    found: list[Option] = []
    for each in sorted(options, key=lambda option: (option.cycles, option.size_bytes)):
        if not found or each.size_bytes < found[-1].size_bytes:
            found.append(each)
    return found
