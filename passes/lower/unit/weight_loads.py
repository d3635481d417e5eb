"""Weights of a layer, and what else it has per output channel: held in SRAM by the loop that moves them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Element, Four, View
from frustum.passes.analysis.module import element_of
from frustum.passes.analysis.piece_nest import CHANNELS_IN, GROUP, LoopName, build
from frustum.passes.analysis.project import memory_order
from frustum.passes.lower.unit.layer import WeightSource
from frustum.passes.lower.unit.memory_map import (
    Placed,
    at_levels,
    box_at_levels,
    byte_strides,
    four,
    is_shared,
    offset_of,
    tile_bytes,
)

if TYPE_CHECKING:
    from frustum.passes.lower.unit.unit import UnitLowering


def hold(unit: UnitLowering, op: t.ComputeOp, layer: int) -> tuple[WeightSource | None, dict[str, Placed]]:
    """The weights of layer number `layer` (in SRAM, or to be streamed later), and by name what else it has per output
    channel."""
    if op.kind.data != "conv":
        return None, {}
    params, region = t.to_plain(op.params), op.region.data
    channels = at_levels(region.start[1], unit.levels)
    source = weight_source(unit, op, params)
    if op.map.data.weights == "unit" and not is_read_once(unit, op, params):
        extent = four([region.extent[1], *source.dims[1:]])
        start = (channels, Affine(), Affine(), Affine())
        placed = keep(unit, source.tensor, source.element, start, extent, source.dims, source.strides, layer)
        source = replace(source, placed=placed)
    tensors = op.tensors[1:]
    names = params.get("vectors", "bias").split()
    extent, bound = (1, region.extent[1], 1, 1), (1, region.bound[1], 1, 1)
    vectors = {}
    for name, tensor in zip(names, tensors, strict=bool(tensors)):
        kind = element_in(tensor)
        start, strides = (Affine(), channels, Affine(), Affine()), (0, ELEMENT_BYTES[kind], 0, 0)
        vectors[name] = keep(unit, unit.tensors[tensor].buffer, kind, start, extent, bound, strides, layer)
    return source, vectors


def is_read_once(unit: UnitLowering, op: t.ComputeOp, params: dict[str, Any]) -> bool:
    """Whether the cores take the weights in several pieces, each of them once: then they need not be in SRAM whole,
    and the first pieces are used, and the memory of the last layer's is free, before all have come."""
    if params["weight_batch"] or unit.loops or unit.program.hold:
        return False
    region = op.region.data
    start = box_at_levels(region, unit.levels)
    nest = build(
        op.map.data, start, region.extent, region.bound, params, unit.target.cluster.cores, 0, is_matrix=True
    )
    names: list[LoopName] = [GROUP, 1, CHANNELS_IN]
    depth = nest.depth(names)
    return depth > 0 and all(name in names for name, _ in nest.loops[:depth])


def element_in(tensor: SSAValue) -> Element:
    return element_of(cast(TensorType[Any], tensor.type).element_type)


def weight_source(unit: UnitLowering, op: t.ComputeOp, params: dict[str, Any]) -> WeightSource:
    """The weights of a convolution as they lie in DRAM."""
    tensor, bound = op.tensors[0], op.region.data.bound
    element, batch = element_in(tensor), params["weight_batch"]
    dims, strides = (bound[1], params["channels"], *params["kernel"]), params["weight_strides"]
    if batch:
        dims, strides = (*dims[:3], bound[0]), (*strides[:3], batch)
    size = ELEMENT_BYTES[element]
    return WeightSource(
        None, unit.tensors[tensor].buffer, element, four(dims), four([s * size for s in strides]), bool(batch)
    )


def keep(
    unit: UnitLowering,
    tensor: SSAValue,
    element: Element,
    start: tuple[Affine, ...],
    extent: Extents,
    bound: Extents,
    strides: Four,
    layer: int,
) -> Placed:
    """Part of a weight tensor in SRAM, in the order in which it lies in DRAM."""
    tile = t.Tile(element, extent, memory_order(strides, bound))
    depth = unit.depth_of(*start)
    alloc = isa.AllocOp("sram", tile_bytes(tile), unit.copies(depth))
    placed = Placed(element, start, extent, bound, byte_strides(tile), alloc.buffer)
    copy = isa.Copy(
        engine="gdma",
        src_view=View(element, offset_of(start, strides), strides),
        dst_view=placed.own_view,
        box=Box(start, extent, bound),
        multicast=is_shared(start, unit.clusters),
    )
    unit.bodies[depth].add_ops([alloc, isa.emit(copy, tensor, alloc.buffer, **unit.tags(layer))])
    return placed
