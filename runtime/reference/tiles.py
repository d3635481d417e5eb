"""The tile level, executed in numpy: every tile of every cluster is loaded, computed and stored as the IR says.

It computes nothing that the IR does not name, and checks what the later levels rely on: a layer reads only elements
that its tiles hold (`layers`, `buffers`), a tile has its type's extents, every output element is stored
exactly once.  Every cluster has an SRAM of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph, tile
from frustum.dialects.isa.program import Box, Four
from frustum.dialects.module import TARGET
from frustum.dialects.target import from_attribute
from frustum.runtime.device.memory import DTYPES
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.reference import moving  # noqa: F401  (its layers)
from frustum.runtime.reference.buffers import TileBuffer, empty_buffer
from frustum.runtime.reference.layers import Held, Ranges, TileWork, compute

SeeTile: TypeAlias = Callable[[tile.ComputeOp, Ranges, Array], Array | None]
"""Called with what a layer makes of some positions of its map, before it is rounded; what it gives takes its place."""


@dataclass
class FillingTensor:
    """An output tensor as it fills; how often each element was stored."""

    values: Array
    times: Array

    @classmethod
    def like(cls, value: SSAValue, dtype: np.dtype[Any]) -> FillingTensor:
        shape = graph.shape_of(value)
        return cls(np.zeros(shape, dtype), np.zeros(shape, np.uint8))

    def put(self, view: tile.TensorView, ranges: Ranges, values: Array) -> None:
        index = elements(view, ranges, self.values.size)
        self.values.reshape(-1)[index] = values
        np.add.at(self.times.reshape(-1), index, 1)

    def finished(self) -> Array:
        """The whole tensor."""
        wrong = int((self.times != 1).sum())
        assert not wrong, f"{wrong} of {self.times.size} elements are not stored exactly once"
        return self.values


def elements(view: tile.TensorView, ranges: Ranges, size: int) -> Array:
    """Element numbers in a tensor of `size` elements of the positions in `ranges`, seen through a view."""
    index = np.full((1,) * len(ranges), view.offset, np.intp)
    for d, ((low, high), stride) in enumerate(zip(ranges, view.strides, strict=True)):
        places = np.arange(low, high) * stride
        if d == 1 and view.block > 1:
            places = np.arange(low, high) // view.block * stride + np.arange(low, high) % view.block
        index = index + places.reshape([-1 if k == d else 1 for k in range(len(ranges))])
    assert not index.size or (index.min() >= 0 and index.max() < size), f"{view} of {ranges} leaves the tensor"
    return index


def run_tiles(
    unit: tile.UnitOp, operands: Sequence[Any], constants: Mapping[SSAValue, Array], see: SeeTile | None = None
) -> list[Any]:
    """The results of a unit: arrays, and of tiles that stay in SRAM a `TileBuffer` of each cluster.

    `operands` are such too, `constants` the values of the weights in its body.
    """
    block = unit.body.block
    tensors = [result for result in unit.results if not isinstance(result.type, tile.TileType)]
    outputs = {result.index: FillingTensor.like(result, _dtype(result)) for result in tensors}
    arguments: dict[SSAValue, Any] = dict(zip(block.args, operands, strict=True))
    buffers = {value: given for value, given in arguments.items() if isinstance(value.type, tile.TileType)}
    clusters, places = _clusters(unit), _places(block.ops)
    for root in {root for root, _ in places.values()} - buffers.keys():
        buffers[root] = [empty_buffer(tile.tile_of(root)) for _ in range(clusters)]
        for cluster, buffer in enumerate(buffers[root]):
            buffer.move((0, 0, 0, 0), cluster)
    places |= {value: (value, 0) for value in buffers}
    state = _Run({**arguments, **constants}, outputs, buffers, places, see=see)
    ends = [op for op in block.ops if tile.is_at_end(op, unit)]
    ops = [op for op in block.ops if op not in ends]
    for passes in _passes(unit, clusters):
        state.run(ops, passes)
    state.run(ends, [(0, 0, 0, 0)] * clusters)
    for op in block.ops:
        if isinstance(op, tile.MoveOp):
            state.move(op)
    assert isinstance(block.last_op, tile.YieldOp)
    kept = iter(block.last_op.tiles)
    return [outputs[result.index].finished() if result.index in outputs else buffers[next(kept)]
            for result in unit.results]


def side_by_side(op: tile.ConcatOp, parts: Sequence[Any]) -> list[TileBuffer]:
    """Tiles of several units as one, of each cluster."""
    whole = tile.tile_of(op.result)
    for part in op.tiles:
        _check_part(tile.tile_of(part), whole)
    return [TileBuffer.joined(whole, of_cluster) for of_cluster in zip(*parts, strict=True)]


def _dtype(tensor: SSAValue) -> np.dtype[Any]:
    name: Any = str(graph.tensor_of(tensor).element_type)
    return DTYPES[name]


def _passes(unit: tile.UnitOp, clusters: int) -> Iterable[Sequence[Sequence[int]]]:
    """The indices of each cluster's tiles in the order of the unit's loops or sweeps."""
    order, counts = unit.loop_order, unit.tile_counts
    if unit.sweeps is None:
        for passed in product(*(range(counts[d]) for d in order)):
            yield [[passed[order.index(d)] for d in range(len(order))]] * clusters
        return
    for channels, images in product(range(counts[1]), range(counts[0])):
        for sweep in unit.sweeps.data:
            for places in zip(*(sweep.positions(k) for k in range(clusters)), strict=True):
                yield [(images, channels, *place) for place in places]


def _places(ops: Iterable[Operation]) -> dict[SSAValue, tuple[SSAValue, int]]:
    """Of tiles that have an origin: the one in whose buffer they lie, and the channel there."""
    ops = list(ops)
    found: dict[SSAValue, tuple[SSAValue, int]] = {}
    for op in reversed(ops):
        for result in op.results:
            if isinstance(result.type, tile.TileType) and result.type.data.origin is not None:
                found.setdefault(result, (result, 0))
        if isinstance(op, tile.ConcatOp) and not tile.is_in_core(op.result):
            root, channel = found[op.result]
            for part in op.tiles:
                assert part not in found, "a tile is an operand of two concatenations"
                own = tile.tile_of(part)
                _check_part(own, tile.tile_of(root))
                found[part] = root, channel
                channel += own.extents[1]
    return found


def _check_part(part: tile.Tile, whole: tile.Tile) -> None:
    """A part of a concatenation differs from it in its channels alone."""
    rest = [(t.extents[0], *t.extents[2:], t.order, t.origin and (t.origin[0], *t.origin[2:]), t.ring, t.element)
            for t in (part, whole)]
    assert rest[0] == rest[1], f"{part} does not lie in {whole}"


def _clusters(unit: tile.UnitOp) -> int:
    """How many clusters the target of the unit's module has."""
    module: Operation = unit
    while (above := module.parent_op()) is not None:
        module = above
    attribute = module.attributes.get(TARGET)
    assert isinstance(attribute, DictionaryAttr), f"the module has no {TARGET}"
    return from_attribute(attribute).chip.clusters


@dataclass
class _Run:
    """Tensors at hand, outputs, and by cluster what has been loaded and computed: in buffers of its own where tiles
    stay in their place, of the last tile otherwise."""

    tensors: dict[SSAValue, Any]
    outputs: dict[int, FillingTensor]
    buffers: dict[SSAValue, list[TileBuffer]]
    places: dict[SSAValue, tuple[SSAValue, int]]
    held: dict[tuple[SSAValue, int], Held] = field(default_factory=dict)
    see: SeeTile | None = None

    def run(self, ops: Sequence[Operation], passes: Sequence[Sequence[int]]) -> None:
        """One tile of each cluster, operation by operation: what one sends others read in the same pass."""
        if not ops:
            return
        for cluster, indices in enumerate(passes):
            self.move_buffers(indices, cluster)
        for op in ops:
            for cluster, indices in enumerate(passes):
                if isinstance(op, (tile.LoadOp, tile.ComputeOp, tile.SendOp, tile.StoreOp)):
                    self.step(op, indices, cluster)

    def step(
        self, op: tile.LoadOp | tile.ComputeOp | tile.SendOp | tile.StoreOp, indices: Sequence[int], cluster: int
    ) -> None:
        """What one operation does with a tile of one cluster; what stays in the core its reader makes."""
        ranges = clipped(op.region.data, indices, cluster)
        match op:
            case tile.LoadOp():
                self.load(op, ranges, cluster)
            case tile.ComputeOp():
                if not tile.is_in_core(op.result):
                    self.compute(op, indices, cluster)
            case tile.SendOp():
                self.send(op, ranges, cluster)
            case tile.StoreOp():
                if not _is_empty(ranges):
                    stored = self.seen(op.tile, ranges, op.region.data.bound, cluster).read(ranges)
                    self.outputs[op.output.value.data].put(op.view.data, ranges, stored)

    def move_buffers(self, indices: Sequence[int], cluster: int) -> None:
        for each in self.buffers.values():
            each[cluster].move(indices, cluster)

    def seen(self, value: SSAValue, ranges: Ranges, bound: Four, cluster: int) -> Held:
        """A tile as far as some positions need it."""
        if tile.is_in_core(value):
            return self.in_core(value, ranges, bound, cluster)
        if value not in self.places:
            return self.held[value, cluster]
        root, channel = self.places[value]
        return self.buffers[root][cluster].held(ranges, bound, channel)

    def load(self, op: tile.LoadOp, ranges: Ranges, cluster: int) -> None:
        before = self.held.get((op.result, cluster))
        if before is not None and before.ranges == ranges:
            return  # the same part as for the tile before
        source = self.tensors[op.source].reshape(-1)
        loaded = source[elements(op.view.data, ranges, source.size)]
        self.keep(op.result, ranges, loaded, op.region.data, cluster)

    def compute(self, op: tile.ComputeOp, indices: Sequence[int], cluster: int) -> None:
        """A layer on its region; of the last of a run piece by piece, each of which is made from the beginning."""
        box = op.region.data
        ranges = clipped(box, indices, cluster)
        result = np.zeros([high - low for low, high in ranges], np.float32)
        if result.size and any(tile.is_in_core(value) for value in op.tiles):
            first = [start.at(indices, cluster) for start in box.start]
            for piece in _pieces(ranges, first, op.map.data.extent):
                ends = zip(piece, ranges, strict=True)
                place = tuple(slice(low - start, high - start) for (low, high), (start, _) in ends)
                result[place] = self.made(op, piece, cluster)
        elif result.size:
            result = self.made(op, ranges, cluster)
        self.keep(op.result, ranges, result, box, cluster)

    def made(self, op: tile.ComputeOp, ranges: Ranges, cluster: int) -> Array:
        """Some positions of a layer's result, before they are rounded."""
        access, element = [a.data for a in op.access.data], DTYPES[tile.tile_of(op.result).element]
        tensors = [self.tensors[value] for value in op.tensors]
        work = TileWork(ranges, op.region.data.bound, [], access, tensors, op.layer, element)
        tiles = [self.seen(value, work.needed(k), self.bound_of(value), cluster) for k, value in enumerate(op.tiles)]
        made = compute(replace(work, tiles=tiles))
        other = None if self.see is None else self.see(op, ranges, made)
        return made if other is None else other

    def in_core(self, value: SSAValue, ranges: Ranges, bound: Four, cluster: int) -> Held:
        """What one core makes of a map, as far as some positions need it."""
        inside = tuple((max(low, 0), min(high, size)) for (low, high), size in zip(ranges, bound, strict=True))
        if _is_empty(inside):
            return Held(np.zeros((0,) * len(inside)), ((0, 0),) * len(inside), bound)
        if isinstance(value.owner, tile.ComputeOp):
            made = self.made(value.owner, inside, cluster)
            return Held(narrow(made, DTYPES[tile.tile_of(value).element]), inside, bound)
        assert isinstance(value.owner, tile.ConcatOp) and inside[1] == (0, bound[1]), f"{value} is read in parts"
        bounds = [self.bound_of(part) for part in value.owner.tiles]
        parts = [self.in_core(part, (inside[0], (0, own[1]), *inside[2:]), own, cluster).values
                 for part, own in zip(value.owner.tiles, bounds, strict=True)]
        return Held(np.concatenate(parts, 1), inside, bound)

    def bound_of(self, value: SSAValue) -> Four:
        """The size of the map of which a tile is a part."""
        if isinstance(value.owner, tile.ConcatOp):
            n, _, h, w = self.bound_of(value.owner.tiles[0])
            return n, sum(self.bound_of(part)[1] for part in value.owner.tiles), h, w
        if isinstance(value.owner, (tile.LoadOp, tile.ComputeOp)):
            return value.owner.region.data.bound
        return self.buffers[value][0].bound

    def keep(self, value: SSAValue, ranges: Ranges, values: Array, box: Box, cluster: int) -> None:
        kept = tile.tile_of(value)
        if value in self.places:
            root, channel = self.places[value]
            self.buffers[root][cluster].bound = self.bound_of(root)
            self.buffers[root][cluster].write(ranges, values, channel)
            return
        assert box.extent == kept.extents, f"a region of {box.extent} is not a tile of {kept.extents}"
        self.held[value, cluster] = Held(narrow(values, DTYPES[kept.element]), ranges, box.bound)

    def send(self, op: tile.SendOp, ranges: Ranges, cluster: int) -> None:
        if _is_empty(ranges):
            return
        root, channel = self.places[op.tile]
        to = cluster + op.by.value.data
        assert 0 <= to < len(self.buffers[root]), f"cluster {cluster} sends {ranges} to cluster {to}, which is none"
        values = self.buffers[root][cluster].read(ranges, channel)
        self.buffers[root][to].write(ranges, values, channel)

    def move(self, op: tile.MoveOp) -> None:
        """Position p of `dims` comes from position p + low of the source, or is `fill` outside of it."""
        dims, low, bound = ([int(v) for v in a.get_values()] for a in (op.dims, op.low, op.bound))
        source = self.tensors[op.source].reshape(-1)
        wanted = tuple((first, first + size) for first, size in zip(low, dims, strict=True))
        inside = tuple((max(0, first), min(stop, end)) for (first, stop), end in zip(wanted, bound, strict=True))
        if _is_empty(inside):
            inside = ((0, 0),) * len(dims)
        assert op.fill is not None or inside == wanted, "positions outside of the source need a fill"
        there = Held(source[elements(op.source_view.data, inside, source.size)], inside, tuple(bound))
        moved = there.window(wanted, op.fill.value.data if op.fill else 0.0)
        self.outputs[op.output.value.data].put(op.target_view.data, tuple((0, size) for size in dims), moved)


def clipped(box: Box, indices: Sequence[int], cluster: int) -> Ranges:
    """The positions of a region for one tile; all dimensions empty where one is."""
    ranges = tuple(span.clip(indices, cluster) for span in box.spans)
    return ((0, 0),) * len(ranges) if _is_empty(ranges) else ranges


def _pieces(ranges: Ranges, first: Sequence[int], extent: Four) -> Iterable[Ranges]:
    """Pieces of these extents, counted from the nominal beginning of a region, as far as they are in its ranges."""
    along = [[(max(low, start), min(high, start + size)) for start in range(begin, high, size)]
             for (low, high), begin, size in zip(ranges, first, extent, strict=True)]
    return (piece for piece in product(*along) if not _is_empty(piece))


def _is_empty(ranges: Ranges) -> bool:
    return any(low >= high for low, high in ranges)
