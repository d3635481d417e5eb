"""The pass that chooses in which order the elements of maps between units lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue, Use
from xdsl.passes import ModulePass

from frustum.dialects.extents import Extents, ceil_div
from frustum.dialects.graph import shape_of
from frustum.dialects.isa.line_buffer_plan import Windows
from frustum.dialects.module import LAYOUT
from frustum.dialects.target import Engine, Memory, Target
from frustum.dialects.target.durations import Mode, matrix_work, transfer_cycles
from frustum.dialects.tile import ConvLayer, TensorView
from frustum.dialects.unit import UnitOp, YieldOp
from frustum.passes.analysis.layer import RANK, MapOperand, dense, is_move
from frustum.passes.analysis.module import element_bytes, target_of
from frustum.passes.analysis.project import (
    Region,
    UnitLayers,
    map_of,
    memory_order,
    needed,
    project,
    unit_layers,
)
from frustum.passes.analysis.unit_layers import BLOCK, LAYOUTS, LayoutName, view_in

GAIN = 0.9
"""Another layout than nchw must be modelled at less than this part of its cycles: the model knows no overlap."""


@dataclass(frozen=True)
class ChooseLayout(ModulePass):
    """Give every map between units its layout in DRAM; tiles and pieces on chip follow it.

    Before: units with partitions.  After: a unit whose result does not lie in nchw has `frustum.layout`.

    1. A map has a choice if only units of layers read it, each of them as the four dimensions that it has: inputs
       and outputs of the network, what is reshaped, concatenated, sliced or used as weights stays in nchw.
    2. `auto` takes the layout with the fewest modelled cycles of the copies that write and read the map, from DRAM to
       SRAM and from SRAM to NRAM: what differs is how long their contiguous runs are; and of the products that read
       it: what differs is how many lines a write fills.
    3. Blocks of 16 channels need all tiles to begin at whole blocks; a map that stays in SRAM has none.

    There is no conversion pass: a copy that writes a map writes it as it is to lie, whatever it lies like on chip.
    Source: docs/techniques/address-tables.md, "The table"; docs/techniques/machine.md, "Transfers".
    """

    name = "frustum-graph-choose-layout"

    layout: Literal["auto", "nchw", "nhwc", "cnhw", "nchwc"] = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for unit in [each for each in op.walk() if isinstance(each, UnitOp)]:
            unit.attributes.pop(LAYOUT, None)
            if self.layout == "nchw" or (copies := copies_of(unit, target_of(op))) is None:
                continue
            chosen = self.choose(copies, target_of(op))
            if chosen != "nchw":
                unit.attributes[LAYOUT] = StringAttr(chosen)

    def choose(self, copies: Copies, target: Target) -> LayoutName:
        possible = [name for name in LAYOUTS if name != "nchwc" or copies.has_blocks]
        if self.layout != "auto":
            return self.layout if self.layout in possible else "nchw"
        moved = {name: copies.cycles(name, target) for name in possible}
        cycles = {name: moved[name] + copies.product_cycles(name, target) for name in possible}
        best = min(possible, key=lambda name: cycles[name])
        is_better = moved[best] < GAIN * moved["nchw"] or cycles[best] < GAIN * cycles["nchw"]
        return best if is_better and cycles[best] < cycles["nchw"] else "nchw"


@dataclass(frozen=True)
class MapCopy:
    """A copy of a box of the map, `times` over."""

    region: Region
    times: int
    is_piece: bool = False
    """Between SRAM and NRAM, not between DRAM and SRAM."""


@dataclass(frozen=True)
class Product:
    """A convolution of pieces of the map, `times` over: extents of a piece of the result and of what it reads, input
    and output channels of a group, groups, kernel, strides, dilations."""

    made: Extents
    read: Extents
    channels: tuple[int, int]
    groups: int
    kernel: Extents
    strides: Extents
    dilations: Extents
    times: int


@dataclass(frozen=True)
class Copies:
    """Everything that is copied of one map, and the convolutions that read it."""

    shape: Extents
    element_bytes: int
    boxes: tuple[MapCopy, ...]
    is_kept: bool = False
    """In SRAM from unit to unit: only pieces are copied."""
    products: tuple[Product, ...] = ()

    @property
    def has_blocks(self) -> bool:
        """Whether all boxes in DRAM begin at multiples of the block."""
        if self.is_kept:
            return False
        starts = [box.region.start[1] for box in self.boxes if not box.is_piece]
        parts = [part for s in starts for part in (s.base, s.cluster, s.core, *s.loops)]
        return self.shape[1] % BLOCK == 0 and all(part % BLOCK == 0 for part in parts)

    def cycles(self, layout: LayoutName, target: Target) -> float:
        """Of all copies, one after another."""
        view = view_in(layout, self.shape)
        order = memory_order(view.near, self.shape)
        return sum(box.times * self._copy_cycles(box, view, order, target) for box in self.boxes)

    def product_cycles(self, layout: LayoutName, target: Target) -> int:
        """Of the matrix unit, for all that read the map."""
        order = memory_order(view_in(layout, self.shape).near, self.shape)
        return sum(p.times * self._busy_cycles(p, order, target) for p in self.products)

    def _busy_cycles(self, product: Product, order: Extents, target: Target) -> int:
        unit, (images, _, rows, columns) = target.core.matrix, product.made
        inner = dense([product.read[d] for d in order])
        steps = tuple(inner[order.index(d)] * self.element_bytes for d in range(RANK))
        windows = Windows(
            product.kernel,
            product.strides,
            product.dilations,
            product.groups,
            self.element_bytes,
            steps,
            product.read[3],
        )
        work = windows.convolution(images, rows, columns, *product.channels)
        modes: tuple[Mode, ...] = ("channels_last",) if windows.is_channels_last else ("split", "continuous")
        modes = modes if windows.joins else modes[:1]
        return min(int(matrix_work(unit, work, mode).busy_cycles) for mode in modes)

    def _copy_cycles(self, box: MapCopy, view: TensorView, order: Extents, target: Target) -> float:
        core, cluster = target.core, target.cluster
        extent = tuple(map(min, box.region.extent, self.shape))
        on_chip = math.prod(extent) * self.element_bytes
        if not box.is_piece:
            run = run_elements(extent, view, self.shape) * self.element_bytes
            return _cycles(target, cluster.gdma, target.chip.dram, cluster.sram, on_chip, run)
        run = extent[order[3]] * self.element_bytes
        return _cycles(target, core.mvdma, cluster.sram, core.nram, on_chip, run)


def run_elements(extent: Extents, view: TensorView, shape: Extents) -> int:
    """Length of the contiguous runs of a box of a map in memory."""
    if view.block > 1:
        n, _, h, w = extent
        return run_elements(
            (n, view.block, h, w), TensorView(0, view.near), (shape[0], view.block, *shape[2:])
        )
    run = 1
    for d in sorted(range(len(extent)), key=lambda d: view.strides[d]):
        if extent[d] > 1 and view.strides[d] != run:
            break
        run *= extent[d]
    return run


def _cycles(target: Target, engine: Engine, source: Memory, destination: Memory, size: int, run: int) -> int:
    whole = transfer_cycles(target, engine, source, destination, size, run, run)
    return int(whole.engine)


def copies_of(unit: UnitOp, target: Target) -> Copies | None:
    """What is copied of a unit's result; None if it must stay as it is."""
    if len(unit.results) != 1 or not is_layers(unit):
        return None
    (result,) = unit.results
    if len(shape_of(result)) != RANK or not tuple(result.uses):
        return None
    shape = shape_of(result)
    layers, boxes, products = unit_layers(unit), list[MapCopy](), list[Product]()
    if not is_plain(layers.out.out_view, layers.out.out_dims, shape):
        return None
    boxes.extend(_boxes(unit, layers, None, target))
    for use in result.uses:
        found = reads(use, shape, target)
        if found is None:
            return None
        boxes.extend(found)
        products.extend(_products(use, target))
    is_kept = 0 in unit.kept
    boxes = [box for box in boxes if box.is_piece or not is_kept]
    return Copies(shape, element_bytes(result), tuple(boxes), is_kept, tuple(products))


def is_layers(unit: UnitOp) -> bool:
    """Of layers that are cut; bands of columns write and read nchw."""
    return unit.partition is not None and not unit.partition.data.bands and not is_move(unit.body.block.ops)


def is_plain(view: TensorView, dims: Extents, shape: Extents) -> bool:
    """Whether the four dimensions of a layer are those of the tensor."""
    usual = dense(shape)
    same = all(s in (u, 0) if e == 1 else s == u for s, u, e in zip(view.strides, usual, shape, strict=True))
    return dims == shape and view.offset == 0 and same


def reads(use: Use, shape: Extents, target: Target) -> list[MapCopy] | None:
    """The copies of a map that one unit reads; None if it reads it in another way."""
    unit = use.operation
    if not isinstance(unit, UnitOp) or not is_layers(unit):
        return None
    inside = unit.body.block.args[use.index]
    layers = unit_layers(unit)
    for op, layer in zip(layers.ops, layers.layers, strict=True):
        maps = {operand.index: operand for operand in layer.maps}
        for index, value in enumerate(op.operands):
            if value is inside and not _reads_plainly(maps.get(index), shape):
                return None
    if any(isinstance(each.operation, YieldOp) for each in inside.uses):
        return None
    return list(_boxes(unit, layers, inside, target))


def _reads_plainly(operand: MapOperand | None, shape: Extents) -> bool:
    return operand is not None and is_plain(operand.view, operand.dims, shape)


def _boxes(unit: UnitOp, layers: UnitLayers, read: SSAValue | None, target: Target) -> Iterator[MapCopy]:
    """Copies of an input of the unit, or, where `read` is None, of its result."""
    assert unit.partition is not None
    partition, clusters = unit.partition.data, target.chip.clusters
    projection = project(layers, partition, clusters)
    times = math.prod(projection.counts)
    if read is None:
        yield MapCopy(projection.stores[-1], times)
        yield from _pieces(layers, len(layers.ops) - 1, None, projection.outputs[-1], times)
        return
    for own, region in zip(layers.inputs, projection.inputs, strict=True):
        if own.value is read:
            yield MapCopy(region, 1 if region.is_fixed else times)
    for j, sources in enumerate(layers.sources):
        for k, source in enumerate(sources):
            if source.value is read and source.layer is None:
                yield from _pieces(layers, j, layers.layers[j].maps[k], projection.outputs[j], times)


def _products(use: Use, target: Target) -> Iterator[Product]:
    """The convolutions of a unit that read one of its operands, piece by piece."""
    unit = use.operation
    assert isinstance(unit, UnitOp) and unit.partition is not None
    layers = unit_layers(unit)
    projection = project(layers, unit.partition.data, target.chip.clusters)
    for j, (layer, sources) in enumerate(zip(layers.layers, layers.sources, strict=True)):
        submap = map_of(layers.ops[j])
        p = layer.kind
        if submap is None or sources[0].value is not unit.body.block.args[use.index] or not isinstance(p, ConvLayer):
            continue
        region, made = projection.outputs[j], submap.extent
        count = math.prod(map(ceil_div, region.extent, made)) * math.prod(
            projection.counts
        )
        of_group = layer.out_dims[1] // p.groups
        held = max(1, made[1] // of_group) if p.groups > 1 else 1
        read = needed(Region(region.start, made), layer.maps[0]).extent
        read = (read[0], held * p.channels if p.groups > 1 else submap.channels, *read[2:])
        channels = p.channels, min(made[1], of_group)
        yield Product(made, read, channels, held, p.kernel, p.strides, p.dilations, count)


def _pieces(
    layers: UnitLayers, j: int, operand: MapOperand | None, region: Region, times: int
) -> Sequence[MapCopy]:
    """The copies between SRAM and NRAM of a layer's output, or of one of its operands, piece by piece."""
    submap = map_of(layers.ops[j])
    if submap is None or layers.layers[j].kind.cuts_operand:
        return []
    count = math.prod(map(ceil_div, region.extent, submap.extent))
    piece = Region(region.start, submap.extent)
    if operand is not None:
        piece = needed(piece, operand)
    return [MapCopy(piece, times * count, is_piece=True)]


