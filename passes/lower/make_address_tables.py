"""The pass that gives convolutions their address tables, where these are worth it, and says when each is loaded.

What a table costs are its bytes, and the cycles of the matrix unit with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from frustum.dialects.isa import program as p
from frustum.dialects.isa.instruction import Instruction, emit, integer, value_of
from frustum.dialects.isa.operations import ConvOp, TableOp
from frustum.dialects.isa.sync import BarrierOp, ExternalOp, FetchOp, ProgramOp, RepeatOp
from frustum.dialects.isa.tables import address_table as at
from frustum.dialects.isa.tables.stored_table import (
    KEY,
    AddressCache,
    CacheLoad,
    key_of,
    stored_bytes,
    write_table,
)
from frustum.dialects.target import MatrixUnit, Target
from frustum.dialects.target.durations import address_cycles, matrix_work
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.choose_line_buffer import Sizes, sizes_of, windows_of
from frustum.passes.lower.executions import Ints
from frustum.passes.weights import WeightStore, store_of

Bytes: TypeAlias = NDArray[np.uint8]
BYTE_VIEW = p.View("i8", p.ZERO, (0, 0, 0, 1))
OTHER_SHARE, OTHER_BYTES = 0.02, 256 << 10
"""Program and tables may take the larger of this share of the compulsory bytes and these bytes."""
INSTRUCTION_BYTES = 128
"""Of code for an instruction of the IR, registers, waits and fetches that later passes add included; an estimate from
above: squeezenet has 83 on `default` and 93 on `edge`, f16."""


@dataclass(frozen=True)
class MakeAddressTables(ModulePass):
    """Give convolutions the tables of their operands' addresses.

    Before: convolutions on symbolic buffers.  After: each that is to have a table names an entry of the address cache
    (`table`); the section before its own ends with the loads (`fisa.table`) of the tables that are not in the cache;
    the tables are externals of class program, their bytes are in the store of weights.

    1. The geometry is the instruction's: the most that clipping leaves of its box, strides of its input's view, kernel,
       stride, dilation.  Equal geometries share a table, in whatever layer, tile or executable they are.
    2. Each geometry may have a table of all of the piece, of a part that is walked, or none.  What it has keeps the
       matrix unit busy for the fewest cycles, over all executions of its instructions; of equals it is the smallest
       table, and none only if that is faster than any.
    3. The tables of a section get half of the cache, so that those of the next can be loaded meanwhile; the least
       recently used give way.  Where they do not fit, those give way to smaller ones, or none, that cost the fewest
       cycles for each byte.
    4. Tables that save no cycles are left out, the largest first, where program and tables together would take more
       than the larger of 2 % of the compulsory bytes and 256 KiB.
    5. `order` numbers threads and products; `fewest` takes the order that reads the fewest lines of NRAM.

    `most_bytes` is the most that a table's entries may take (0: no limit but the cache), `tables=none` makes none.

    Source: docs/techniques/address-tables.md, "What addresses cost" and "The choice".
    """

    name = "frustum-lower-make-address-tables"

    tables: Literal["auto", "none"] = "auto"
    most_bytes: int = 0
    order: Literal["fewest", "channel-major", "tap-major", "pixel-major"] = "fewest"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [each for each in op.walk() if isinstance(each, ProgramOp)]:
            forget(program)
            if self.tables != "none" and any(isinstance(each, ConvOp) for each in program.walk()):
                _Tables(op, program, self, target_of(op)).run()


def forget(program: ProgramOp) -> None:
    """Remove the tables of an earlier run."""
    for op in list(program.walk()):
        is_table = isinstance(op, ExternalOp) and op.external_name.data.startswith(KEY)
        if isinstance(op, ConvOp):
            op.properties.pop("table", None)
        elif isinstance(op, TableOp) or is_table:
            op.detach()
            op.erase(safe_erase=False)


@dataclass
class _Section:
    """The convolutions before a barrier, each with what it asks for; `end` is None at the program's end."""

    end: BarrierOp | None = None
    demands: dict[ConvOp, Demand] = field(default_factory=dict)
    options: dict[Asked, list[Option]] = field(default_factory=dict)
    """What each may have; the first is what it has."""


class _Tables:
    """The tables of one program."""

    def __init__(self, module: ModuleOp, program: ProgramOp, options: MakeAddressTables, target: Target) -> None:
        self.program, self.options, self.target = program, options, target
        self.capacity = target.core.address_cache_bytes
        self.store: WeightStore = store_of(module)
        self.written: dict[tuple[Asked, at.Geometry], tuple[str, Bytes]] = {}
        self.buffers: dict[str, SSAValue] = {}

    def run(self) -> None:
        sections = self.sections()
        for section in sections:
            self.choose(section)
        self.leave_out(sections)
        if self.tables(sections[0]):
            sections.insert(0, _Section(self.begin()))
        cache = AddressCache(self.capacity)
        for before, section in pairwise(sections):
            found, kept = self.tables(section), {key for key, _ in self.tables(before).values()}
            data = dict(found.values())
            for load in cache.bring({key: len(its) for key, its in data.items()}, kept):
                self.load(load, data[load.key], section, before)
            for conv, demand in section.demands.items():
                if demand.asked in found:
                    conv.properties["table"] = integer(cache.entry_of(found[demand.asked][0]))

    def sections(self) -> list[_Section]:
        """The sections of the program, in order."""
        sections = [_Section()]
        for op in self.program.body.block.ops:
            if isinstance(op, BarrierOp):
                sections[-1].end = op
                sections.append(_Section())
            for conv in [each for each in op.walk() if isinstance(each, ConvOp)]:
                demand = demand_of(conv, self.target)
                if demand is not None:
                    sections[-1].demands[conv] = demand
        return sections

    def begin(self) -> BarrierOp:
        """A section before all others, in which the first tables are loaded; pages are counted anew."""
        block = self.program.body.block
        first = next(op for op in block.ops if not isinstance(op, ExternalOp))
        barrier = BarrierOp()
        block.insert_op_before(barrier, first)
        for op in self.program.walk():
            if isinstance(op, FetchOp):
                op.properties["page"] = integer(op.page.value.data + 1)
        return barrier

    def choose(self, section: _Section) -> None:
        """The cheapest options that together take at most half of the cache."""
        most, unit = self.options.most_bytes or self.capacity, self.target.core.matrix
        for asked, demands in _by_asked(section.demands.values()).items():
            section.options[asked] = options_of(demands, unit, min(most, self.capacity // 2))
        while True:
            chosen = [options for options in section.options.values() if options[0].part is not None]
            needed = sum(options[0].size_bytes for options in chosen)
            if needed <= self.capacity // 2 and len(chosen) <= p.TABLE_ENTRIES // 2:
                return
            cheapest = min(chosen, key=_cycles_for_a_byte)
            del cheapest[0]

    def leave_out(self, sections: Sequence[_Section]) -> None:
        """Drop tables that save nothing, the largest first, while program and tables take more than they may."""
        saves_nothing = [
            options
            for section in sections
            for options in section.options.values()
            if options[0].part is not None and options[0].cycles == options[-1].cycles
        ]
        room = self.room()
        for options in sorted(saves_nothing, key=lambda each: each[0].size_bytes, reverse=True):
            if self.loaded_bytes(sections) <= room:
                return
            del options[:-1]

    def room(self) -> int:
        """Bytes that tables may take."""
        compulsory = sum(
            math.prod(value_of(op.shape)) * p.ELEMENT_BYTES[cast(p.Element, op.element.data)]
            for op in self.program.walk()
            if isinstance(op, ExternalOp) and op.class_.data in ("weight", "input", "output")
        )
        code = INSTRUCTION_BYTES * len([op for op in self.program.walk() if isinstance(op, Instruction | RepeatOp)])
        return max(int(OTHER_SHARE * compulsory), OTHER_BYTES) - code

    def loaded_bytes(self, sections: Sequence[_Section]) -> int:
        """What all loads of the tables chosen take, if each table stays until the next section."""
        cache, kept, total = AddressCache(self.capacity), set[str](), 0
        for section in sections:
            data = dict(self.tables(section).values())
            loads = cache.bring({key: len(its) for key, its in data.items()}, kept)
            total += sum(len(data[load.key]) for load in loads)
            kept = set(data)
        return total

    def tables(self, section: _Section) -> dict[Asked, tuple[str, Bytes]]:
        """Name and bytes of each table that the section has."""
        chosen = {asked: options[0].part for asked, options in section.options.items()}
        return {asked: self.table(asked, part) for asked, part in chosen.items() if part is not None}

    def table(self, asked: Asked, part: at.Geometry) -> tuple[str, Bytes]:
        if (asked, part) not in self.written:
            walk = at.walk_of(part, asked.whole, asked.group_channels)
            data = write_table(part, self.order_of(part, asked.element_bytes), asked.element_bytes, walk)
            self.written[asked, part] = key_of(data), data
        return self.written[asked, part]

    def order_of(self, part: at.Geometry, element_bytes: int) -> at.Order:
        if self.options.order != "fewest":
            return self.options.order
        unit, nram = self.target.core.matrix, self.target.core.nram
        return at.best_order(part, unit.lines, nram.port_bytes_per_cycle, element_bytes)

    def load(self, load: CacheLoad, data: Bytes, section: _Section, before: _Section) -> None:
        assert before.end is not None, "a section follows"
        names = {asked: key for asked, (key, _) in self.tables(section).items()}
        user = next(conv for conv, demand in section.demands.items() if names.get(demand.asked) == load.key)
        common = {name: value_of(user.properties[name]) for name in ("layer", "unit")}
        table = p.TableLoad(src_view=BYTE_VIEW, bytes=len(data), entry=load.entry, evicts=load.evicts)
        op = emit(table, self.buffer(load.key, data), **common)
        self.program.body.block.insert_op_before(op, before.end)

    def buffer(self, key: str, data: Bytes) -> SSAValue:
        if key not in self.buffers:
            self.store[key] = data
            external = ExternalOp(key, "program", len(data), (len(data),), "i8")
            first = self.program.body.block.first_op
            assert first is not None
            self.program.body.block.insert_op_before(external, first)
            self.buffers[key] = external.buffer
        return self.buffers[key]


def _by_asked(demands: Iterable[Demand]) -> dict[Asked, list[Demand]]:
    found: dict[Asked, list[Demand]] = {}
    for demand in demands:
        found.setdefault(demand.asked, []).append(demand)
    return found


def _cycles_for_a_byte(options: Sequence[Option]) -> float:
    """What giving up the first for the second costs."""
    first, second = options[:2]
    return (second.cycles - first.cycles) / (first.size_bytes - second.size_bytes)


class Asked(NamedTuple):
    """What the table of an instruction depends on: the whole piece of a group, an element's bytes, how many groups,
    and the channels from one to the next (None: one group)."""

    whole: at.Geometry
    element_bytes: int
    groups: int
    group_channels: int | None


@dataclass(frozen=True)
class Demand:
    """One convolution that asks for a table: its executions, and for each size how long the unit is busy anyway."""

    asked: Asked
    sizes: Sizes
    busy_cycles: Ints

    def cycles(self, unit: MatrixUnit, part: at.Geometry | None) -> int:
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

    part: at.Geometry | None
    size_bytes: int
    cycles: int


def demand_of(conv: ConvOp, target: Target) -> Demand | None:
    """What a convolution asks for; None where it computes nothing, or no table can tell its padding."""
    sizes, view = sizes_of(conv, target), conv.in_view.data
    size, groups = p.ELEMENT_BYTES[view.element], conv.groups.value.data
    if not sizes.counts.size or any(stride % size for stride in view.strides) or not _is_bordered(conv, sizes):
        return None
    images, rows, columns, channels = (int(most) for most in sizes.counts[:4].max(axis=1))
    kernel, strides, dilations = (value_of(each) for each in (conv.kernel, conv.strides, conv.dilations))
    layout = at.Layout(*(stride // size for stride in view.strides))
    whole = at.Geometry(images, rows, columns, channels, kernel, strides, dilations, layout)
    work = windows_of(conv).convolution(*sizes.counts)
    mode = cast(p.LineMode, "split" if conv.line_mode is None else conv.line_mode.data)
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


def _parts(asked: Asked, most_bytes: int) -> Iterator[tuple[at.Geometry, int]]:
    """The parts whose tables are small enough, in whatever order they are numbered, and the bytes of these."""
    has_all = asked.groups > 1 and asked.group_channels == asked.whole.channels
    of_all_groups = [replace(asked.whole, groups=asked.groups)] if has_all else []
    for part in chain(of_all_groups, at.parts_of(asked.whole)):
        largest = max(part.groups, part.images, part.rows, part.columns, part.channels)
        if part.groups * part.threads + part.products > most_bytes or largest > at.MOST_EXTENT:
            continue
        walk = at.walk_of(part, asked.whole, asked.group_channels)
        size = max(stored_bytes(part, order, walk) for order in at.ORDERS)
        if size <= most_bytes:
            yield part, size


def _rising(options: Iterable[Option]) -> list[Option]:
    """Those than which no other has both as few cycles and as few bytes, the fastest first."""
    found: list[Option] = []
    for each in sorted(options, key=lambda option: (option.cycles, option.size_bytes)):
        if not found or each.size_bytes < found[-1].size_bytes:
            found.append(each)
    return found
