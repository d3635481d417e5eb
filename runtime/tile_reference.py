"""The tile level, executed in numpy: every tile of every cluster is loaded, computed and stored as the IR says.

It computes nothing that the IR does not name, and checks what the later levels rely on: a layer reads only elements
that its tiles hold (`tile_layers`), a tile has its type's extents, every output element is stored exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph, tile
from frustum.dialects.isa.program import Box
from frustum.dialects.target import ATTRIBUTE as TARGET
from frustum.dialects.target import from_attribute
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.memory import DTYPES
from frustum.runtime.tile_layers import Held, Ranges, Work, compute


@dataclass
class Stored:
    """An output tensor as it fills; how often each element was stored."""

    values: Array
    times: Array

    @classmethod
    def like(cls, value: SSAValue, dtype: np.dtype[Any]) -> Stored:
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


def run_tiles(unit: tile.UnitOp, operands: Sequence[Array], constants: Mapping[SSAValue, Array]) -> list[Array]:
    """The results of a unit; `constants` are the values of the weights in its body."""
    block = unit.body.block
    outputs = [Stored.like(result, DTYPES[element]) for result, element in _elements_of(unit)]
    state = _Run({**dict(zip(block.args, operands, strict=True)), **constants}, outputs)
    for indices in product(*map(range, unit.tile_counts)):
        for cluster in range(_clusters(unit)):
            state.run(block.ops, indices, cluster)
    for op in block.ops:
        if isinstance(op, tile.MoveOp):
            state.move(op)
    return [output.finished() for output in outputs]


def _elements_of(unit: tile.UnitOp) -> Iterable[tuple[SSAValue, Any]]:
    return ((result, str(graph.tensor_of(result).element_type)) for result in unit.results)


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
    """Tensors at hand, outputs, and of the tile in work what has been loaded and computed."""

    tensors: dict[SSAValue, Array]
    outputs: list[Stored]
    held: dict[SSAValue, Held] = field(default_factory=dict)

    def run(self, ops: Iterable[Operation], indices: Sequence[int], cluster: int) -> None:
        """One tile of one cluster."""
        for op in ops:
            if isinstance(op, tile.LoadOp):
                self.load(op, clipped(op.region.data, indices, cluster))
            elif isinstance(op, tile.ComputeOp):
                self.compute(op, clipped(op.region.data, indices, cluster))
            elif isinstance(op, tile.StoreOp):
                ranges = clipped(op.region.data, indices, cluster)
                if not _is_empty(ranges):
                    self.outputs[op.output.value.data].put(op.view.data, ranges, self.held[op.tile].read(ranges))

    def load(self, op: tile.LoadOp, ranges: Ranges) -> None:
        before = self.held.get(op.result)
        if before is not None and before.ranges == ranges:
            return  # the same part as for the tile before
        source = self.tensors[op.source].reshape(-1)
        self.keep(op.result, ranges, source[elements(op.view.data, ranges, source.size)], op.region.data)

    def compute(self, op: tile.ComputeOp, ranges: Ranges) -> None:
        box = op.region.data
        result = np.zeros([high - low for low, high in ranges], np.float32)
        if result.size:
            work = Work(ranges, box.bound, [self.held[t] for t in op.tiles], [a.data for a in op.access.data],
                        [self.tensors[t] for t in op.tensors], tile.to_plain(op.params), _element(op.result))
            result = compute(op.kind.data, work)
        self.keep(op.result, ranges, result, box)

    def keep(self, value: SSAValue, ranges: Ranges, values: Array, box: Box) -> None:
        assert isinstance(value.type, tile.TileType)
        kept = value.type.data
        assert box.extent == kept.extents, f"a region of {box.extent} is not a tile of {kept.extents}"
        self.held[value] = Held(narrow(values, DTYPES[kept.element]), ranges, box.bound)

    def move(self, op: tile.MoveOp) -> None:
        """Position p of `dims` comes from position p + low of the source, or is `fill` outside of it."""
        dims, low, bound = ([int(v) for v in a.get_values()] for a in (op.dims, op.low, op.bound))
        source = self.tensors[op.source].reshape(-1)
        wanted = tuple((first, first + size) for first, size in zip(low, dims, strict=True))
        inside = tuple((max(0, first), min(stop, end)) for (first, stop), end in zip(wanted, bound, strict=True))
        if _is_empty(inside):
            inside = ((0, 0),) * len(dims)
        assert op.fill is not None or inside == wanted, "positions outside of the source need a fill"
        there = Held(source[elements(op.source_view.data, inside, source.size)], inside, _four(bound))
        moved = there.window(wanted, op.fill.value.data if op.fill else 0.0)
        self.outputs[op.output.value.data].put(op.target_view.data, tuple((0, size) for size in dims), moved)


def _element(value: SSAValue) -> np.dtype[Any]:
    """The numpy type of a tile's elements."""
    assert isinstance(value.type, tile.TileType)
    return DTYPES[value.type.data.element]


def _four(values: Sequence[int]) -> tuple[int, int, int, int]:
    n, c, h, w = values
    return n, c, h, w


def clipped(box: Box, indices: Sequence[int], cluster: int) -> Ranges:
    """The positions of a region for one tile; all dimensions empty where one is."""
    ranges = tuple(span.clip(indices, cluster) for span in box.spans)
    return ((0, 0),) * len(ranges) if _is_empty(ranges) else ranges


def _is_empty(ranges: Ranges) -> bool:
    return any(low >= high for low, high in ranges)
