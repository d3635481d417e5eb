"""DRAM bytes of a network, counted a second time: from its tile level alone, box by box, in plain integers.

A load is repeated when one of the tile loops up to the innermost that moves it, or its buffer, goes on; loops run in
the order that the unit names.  What all clusters load alike crosses the DRAM port once.  Weights held for the unit are
loaded when their channels change, streamed ones for every tile.  Tiles that stay in SRAM, and what clusters send each
other, cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from frustum.dialects import graph, tile
from frustum.dialects.module import TARGET
from frustum.dialects.target import from_attribute

BIAS_BYTES = 4
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass
class Traffic:
    """DRAM bytes: maps written, boxes of maps read, weights and biases read."""

    written: int = 0
    read: int = 0
    weights: int = 0


def traffic_of(module):
    """Of a module at stop `placed`."""
    clusters = from_attribute(module.attributes[TARGET]).chip.clusters
    total = Traffic()
    for unit in (op for op in module.walk() if isinstance(op, tile.UnitOp)):
        total.written += sum(bytes_of(r) for r in unit.results if not isinstance(r.type, tile.TileType))
        for op in unit.body.block.ops:
            if isinstance(op, tile.LoadOp):
                size = BYTES[op.result.type.data.element]
                total.read += size * sum(loaded(op.region.data, unit, clusters, origin=origin_of(op)))
            elif isinstance(op, tile.MoveOp):
                total.read += moved(op) * element_bytes(op.source)
            elif isinstance(op, tile.ComputeOp) and op.tensors:
                total.weights += weight_bytes(op, unit, clusters)
    return total


def bytes_of(tensor):
    return prod(graph.shape_of(tensor)) * element_bytes(tensor)


def element_bytes(tensor):
    return BYTES[str(tensor.type.element_type)]


def inside(start, extent, bound):
    """Positions of `[start, start + extent)` in `[0, bound)`."""
    return max(0, min(start + extent, bound) - max(start, 0))


def origin_of(load):
    """Where the buffer begins into which is loaded, if it has a place of its own."""
    start = load.result.type.data.origin
    return start if start and not load.result.type.data.ring else ()


def loaded(region, unit, clusters, always=False, origin=()):
    """Elements of every box that is loaded; `always`: anew for every tile."""
    counts, order = unit.tile_counts, unit.loop_order
    moving = [any(len(s.loops) > d and s.loops[d] for s in (*region.start, *origin)) for d in range(4)]
    depth = max((k + 1 for k, d in enumerate(order) if moving[d] and counts[d] > 1), default=0)
    open_loops = order if always else order[:depth]
    own = range(clusters) if any(s.cluster for s in region.start) else range(1)
    for indices in product(*(range(counts[d]) if d in open_loops else (0,) for d in range(4))):
        for cluster in own:
            yield prod(
                inside(
                    sum(c * i for c, i in zip(start.loops, indices, strict=False))
                    + start.base
                    + start.cluster * cluster,
                    extent,
                    bound,
                )
                for start, extent, bound in zip(region.start, region.extent, region.bound, strict=False)
            )


def moved(op):
    low, dims, bound = (list(a.get_values()) for a in (op.low, op.dims, op.bound))
    return prod(inside(*span) for span in zip(low, dims, bound, strict=False))


def weight_bytes(op, unit, clusters):
    """Of weights and bias; seen as boxes of output channels (and entries of d0 that have their own)."""
    per_channel = op.layer.channel_weights * element_bytes(op.tensors[0])
    streamed = op.map.data.weights == "stream"
    channels = only(op.region.data, (0, 1) if op.layer.is_batched else (1,))
    total = per_channel * sum(loaded(channels, unit, clusters, always=streamed))
    if len(op.tensors) > 1:
        total += BIAS_BYTES * sum(loaded(only(op.region.data, (1,)), unit, clusters))
    return total


def only(region, dimensions):
    """The box with one fixed position along all other dimensions."""
    fixed = type(region.start[0])()
    return type(region)(
        tuple(s if d in dimensions else fixed for d, s in enumerate(region.start)),
        tuple(e if d in dimensions else 1 for d, e in enumerate(region.extent)),
        tuple(b if d in dimensions else 1 for d, b in enumerate(region.bound)),
    )
