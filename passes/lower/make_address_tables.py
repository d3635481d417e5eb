"""The pass that makes the address tables of convolutions and says when each is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from frustum.dialects.address_cache import AddressCache, Load
from frustum.dialects.address_table import Geometry, Layout, Order, best_order, part_of
from frustum.dialects.fit import DoesNotFit
from frustum.dialects.isa.instruction import integer, value_of
from frustum.dialects.isa.matrix import ConvOp
from frustum.dialects.isa.program import ELEMENT_BYTES, TABLE_ENTRIES, ZERO, View
from frustum.dialects.isa.sync import BarrierOp, ExternalOp, FetchOp, ProgramOp
from frustum.dialects.isa.table import TableOp
from frustum.dialects.stored_table import KEY, key_of, stored_bytes, write_table
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.weights import WeightStore, store_of

SMALLEST_BYTES = 16
"""Below this no table gets smaller."""
BYTE_VIEW = View("i8", ZERO, (0, 0, 0, 1))


@dataclass(frozen=True)
class MakeAddressTables(ModulePass):
    """Give every convolution the table of its operands' addresses.

    Before: convolutions on symbolic buffers.  After: each names an entry of the address cache (`table`); the section
    before its own ends with the loads (`fisa.table`) of the tables that are not in the cache; the tables are
    externals of class program, their bytes are in the store of weights.

    1. The geometry is the instruction's: extents of its box, strides of its input's view, kernel, stride, dilation.
       Equal geometries share a table, in whatever layer, tile or executable they are.
    2. A table describes a part of the piece that has at most `most_bytes`: all channels and positions of a strided
       view are alike but for their start, so the unit walks the part over the piece.
    3. The tables of a section get half of the cache, so that those of the next can be loaded meanwhile; the least
       recently used give way.  Parts get smaller until that holds; DoesNotFit where the smallest ones do not.
    4. `order` numbers threads and products; `fewest` takes the order that reads the fewest lines of NRAM.

    Source: address-tables specification, "Where it lives".
    """

    name = "frustum-lower-make-address-tables"

    most_bytes: int = 64
    """Measured: densenet121 on `default` has 53 tables of 4 KB in all, 6.5 KB with parts of 256 bytes: its code leaves
    that little below 1 % of the compulsory bytes.  Smaller parts only mean more walking, which is counting on."""
    order: Literal["fewest", "channel-major", "tap-major", "pixel-major"] = "fewest"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in [each for each in op.walk() if isinstance(each, ProgramOp)]:
            forget(program)
            if any(isinstance(each, ConvOp) for each in program.walk()):
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


def geometry_of(conv: ConvOp) -> Geometry:
    """What the addresses of an instruction's operands depend on, in elements."""
    view, extent = conv.in_view.data, conv.box.data.extent
    size = ELEMENT_BYTES[view.element]
    assert all(stride % size == 0 for stride in view.strides), "elements lie at multiples of their size"
    n, c, h, w = (stride // size for stride in view.strides)
    kernel, strides, dilations = (value_of(each) for each in (conv.kernel, conv.strides, conv.dilations))
    channels = conv.channels.data.extent
    return Geometry(extent[0], extent[2], extent[3], channels, kernel, strides, dilations, Layout(n, c, h, w))


@dataclass
class _Section:
    """The convolutions before a barrier, with the element size and geometry of each; None: the program's end."""

    end: BarrierOp | None = None
    convs: list[ConvOp] = field(default_factory=list)
    tables: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)


class _Tables:
    """The tables of one program."""

    def __init__(self, module: ModuleOp, program: ProgramOp, options: MakeAddressTables, target: Target) -> None:
        self.module, self.program, self.options, self.target = module, program, options, target
        self.capacity = target.core.address_cache_bytes
        self.store: WeightStore = store_of(module)
        self.buffers: dict[str, SSAValue] = {}
        self.written: dict[tuple[Geometry, int, int], tuple[str, NDArray[np.uint8]]] = {}

    def run(self) -> None:
        sections = self.sections()
        cache = AddressCache(self.capacity)
        before: _Section | None = None
        for section in sections:
            if section.convs:
                self.choose(section)
                sizes = {key: len(table) for key, table in section.tables.items()}
                for load in cache.bring(sizes, before.tables if before else ()):
                    self.load(load, section, before)
                for conv, key in zip(section.convs, section.keys, strict=True):
                    conv.properties["table"] = integer(cache.entry_of(key))
            before = section

    def sections(self) -> list[_Section]:
        """The sections of the program; the first one has no convolutions, for what it loads."""
        sections = [_Section()]
        for op in self.program.body.block.ops:
            if isinstance(op, BarrierOp):
                sections[-1].end = op
                sections.append(_Section())
            sections[-1].convs += [each for each in op.walk() if isinstance(each, ConvOp)]
        if sections[0].convs:
            sections.insert(0, _Section(self.begin()))
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
        """Tables for the section's convolutions that together take at most half of the cache."""
        most = min(self.options.most_bytes, self.capacity // 2)
        while True:
            made = [self.table(conv, most) for conv in section.convs]
            section.keys, section.tables = [key for key, _ in made], dict(made)
            needed = sum(map(len, section.tables.values()))
            if needed <= self.capacity // 2 and len(section.tables) <= TABLE_ENTRIES // 2:
                return
            if most <= SMALLEST_BYTES:
                raise DoesNotFit(
                    f"{len(section.tables)} address tables in the smallest parts",
                    self.layer(section.convs[0]),
                    f"{needed} B",
                    f"{self.capacity // 2} B and {TABLE_ENTRIES // 2} entries, half of an address cache",
                )
            most //= 2

    def table(self, conv: ConvOp, most: int) -> tuple[str, NDArray[np.uint8]]:
        whole, size = geometry_of(conv), ELEMENT_BYTES[conv.in_view.data.element]
        known = whole, size, most
        if known not in self.written:
            part = part_of(whole, most)
            order = self.order_of(part, size)
            data = write_table(part_of(part, most, order), order, size)
            if len(data) > self.capacity:
                where = self.layer(conv)
                raise DoesNotFit("address table", where, f"{len(data)} B", f"{self.capacity} B of address cache")
            self.written[known] = key_of(data), data
        return self.written[known]

    def order_of(self, part: Geometry, element_bytes: int) -> Order:
        if self.options.order != "fewest":
            return self.options.order
        unit, nram = self.target.core.matrix, self.target.core.nram
        return best_order(part, unit.lines, nram.port_bytes_per_cycle, element_bytes)

    def load(self, load: Load, section: _Section, before: _Section | None) -> None:
        assert before is not None and before.end is not None, "the first section has no convolutions"
        user = section.convs[section.keys.index(load.key)]
        common = {name: value_of(user.properties[name]) for name in ("layer", "unit")}
        op = TableOp(
            self.buffer(load.key, section.tables[load.key]), src_view=BYTE_VIEW,
            bytes=len(section.tables[load.key]), entry=load.entry, evicts=load.evicts, **cast(Any, common),
        )  # fmt: skip
        self.program.body.block.insert_op_before(op, before.end)

    def buffer(self, key: str, data: NDArray[np.uint8]) -> SSAValue:
        if key not in self.buffers:
            self.store[key] = data
            external = ExternalOp(key, "program", len(data), (len(data),), "i8")
            first = self.program.body.block.first_op
            assert first is not None
            self.program.body.block.insert_op_before(external, first)
            self.buffers[key] = external.buffer
        return self.buffers[key]

    def layer(self, conv: Operation) -> str:
        number = value_of(conv.properties["layer"])
        names = self.module.attributes.get("frustum.layers")
        known: Sequence[Any] = names.data if isinstance(names, ArrayAttr) else ()
        name = known[number] if number < len(known) else None
        return f"layer '{name.data}'" if isinstance(name, StringAttr) else f"layer {number}"


__all__ = ["MakeAddressTables", "geometry_of", "stored_bytes"]
