# Tests: test/dialects/plan/test_cycles.py
"""What one cluster takes for a part of a layer: cycles of its engines, from the machine's closed forms.

The axes of a product say what the matrix unit makes of it: positions fill lines, channels are side by side, groups
come one after the other, sums go on in place.  Cores share the work along one of them.
Numbers of positions may be integers or arrays of candidates, as in `dialects/target/durations.py`.
Source: docs/techniques/machine.md, "Matrix unit" and "Vector unit"; `dialects/target/durations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from frustum.dialects.axes.access import Affine
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Combine, Layer, Operand
from frustum.dialects.extents import Int, ceil_div
from frustum.dialects.target import Cluster, Target
from frustum.dialects.target.durations import (
    Convolution,
    Mode,
    byte_energy_pj,
    larger,
    mac_energy_pj,
    piece_writes,
    smaller,
    table_cycles,
    vector_cycles,
)

Cycles: TypeAlias = Any
"""A number, or an array of candidates."""
PartExtents: TypeAlias = Mapping[Axis, Int]
"""Positions of each axis in a part; axes without any are whole."""
MODES: tuple[Mode, ...] = ("split", "channels_last")


@dataclass(frozen=True)
class LayerCycles:
    """Cycles of a cluster's engines: matrix units, vector units, and copies between SRAM and cores."""

    matrix: Cycles
    vector: Cycles
    copies: Cycles

    @property
    def alone(self) -> Cycles:
        """Where nothing else runs: copies go on while cores work."""
        return larger(self.matrix + self.vector, self.copies)


@dataclass(frozen=True)
class MatrixProduct:
    """A layer of multiply-accumulates, with one factor in the lines of the matrix unit and one in its channels."""

    positions: tuple[Axis, ...]
    channels: tuple[Axis, ...]
    groups: tuple[Axis, ...]
    sums: tuple[Axis, ...]
    taps: tuple[Axis, ...]
    row_taps: tuple[Axis, ...]
    """Those along the row that fills the lines."""
    stride: int
    lines: int
    """Which operand fills the lines."""
    weights: int

    @property
    def is_by_channel(self) -> bool:
        """Whether each channel is made of one alone, as the vector unit can do it too."""
        return not self.sums and not self.channels

    def shared(self, extents: PartExtents, cores: int) -> tuple[CoreWork, CoreWork, CoreWork]:
        """What one core does where they share groups, positions, or channels."""
        groups, positions, channels = (extent(axes, extents) for axes in (self.groups, self.positions, self.channels))
        columns = extents.get(self.positions[-1], 1) if self.positions else 1
        taps, row_taps = extent(self.taps, extents), extent(self.row_taps, extents)
        rest = columns, extent(self.sums, extents), taps, row_taps, self.stride
        return (
            CoreWork(_share(groups, cores), positions, channels, *rest),
            CoreWork(groups, _share(positions, cores), channels, *rest),
            CoreWork(groups, positions, _share(channels, cores), *rest),
        )


class CoreWork(NamedTuple):
    """Of a product: positions of its axes by what the matrix unit makes of them, columns of a row among positions, taps
    along it among taps, and the stride there."""

    groups: Int
    positions: Int
    channels: Int
    columns: Int
    sums: Int
    taps: Int
    row_taps: Int
    stride: Int


@dataclass(frozen=True)
class TimedPart:
    """A part of a layer, and bytes of each operand, and of the result (-1), that cross the SRAM port."""

    layer: Layer
    products: tuple[MatrixProduct, ...]
    """As `products_of` says."""
    extents: PartExtents
    stored: Mapping[int, Cycles]


def _share(count: Int, cores: int) -> Int:
    """What one of several has at most; no more share it than there are of it."""
    return ceil_div(count, smaller(cores, count))


def extent(axes: tuple[Axis, ...], extents: PartExtents) -> Any:
    """Positions of several axes together."""
    return math.prod(extents.get(axis, axis.extent) for axis in axes)


def products_of(layer: Layer) -> Iterator[MatrixProduct]:
    """The ways to see a layer as a product: either factor may fill the lines; none, where it is no product of two."""
    factors = [k for k, operand in enumerate(layer.operands) if layer.macs and _axes(operand) & set(layer.combine)]
    if layer.macs and not layer.combine:
        factors = [0, 1]  # one product for each element
    if len(factors) != 2 or any(rule is not Combine.SUM for rule in layer.combine.values()):
        return
    for lines, weights in (factors, factors[::-1]):
        a, b = _axes(layer.operands[lines]), _axes(layer.operands[weights])
        made = layer.result.axes
        positions = tuple(axis for axis in made if axis not in b)
        sums = tuple(axis for axis in layer.combine if not axis.is_tap)
        row, stride = _row(layer.operands[lines], positions)
        yield MatrixProduct(
            positions, tuple(axis for axis in made if axis in b and axis not in a),
            tuple(axis for axis in made if axis in a and axis in b), sums,
            tuple(axis for axis in layer.combine if axis.is_tap), row, stride, lines, weights,
        )  # fmt: skip


def _axes(operand: Operand) -> set[Axis]:
    """Axes of the layer that move the positions of an operand, or say of which tensor it is."""
    guards = (guard.position for piece in operand.pieces for guard in piece.guards)
    return {axis for position in (*_positions(operand), *guards) for axis, _ in position.refined().terms}


def _positions(operand: Operand) -> Iterator[Affine]:
    for piece in operand.pieces:
        yield from (position for _, position in piece.by_leaf if position is not None)


def _row(operand: Operand, positions: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], int]:
    """Taps along the innermost axis of positions, and its stride."""
    for position in _positions(operand):
        terms = dict(position.refined().terms)
        if positions and positions[-1] in terms:
            return tuple(axis for axis in terms if axis.is_tap), max(1, abs(terms[positions[-1]]))
    return (), 1


def divided(layer: Layer, extents: PartExtents) -> Any:
    """Passes in which a part of what an online reduction weighs is multiplied with a number of f32, its sum so far;
    none of all of it: then the readers' sums are divided."""
    weighed = (axis for axis, rule in layer.combine.items() if rule is Combine.ONLINE and axis in layer.result.axes)
    cut: Any = sum(axis.extent > extents.get(axis, axis.extent) for axis in weighed)
    return 4 // width_of(layer) * (cut > 0)


@dataclass(frozen=True)
class ClusterCycles:
    """The engines of one cluster."""

    cluster: Cluster

    @property
    def restart(self) -> int:
        """Cycles in which a layer's first piece comes into the cores, and its last one leaves, in each pass."""
        return 2 * (self.cluster.sram.latency_cycles + self.cluster.core.nram.latency_cycles)

    def of(
        self, layer: Layer, products: tuple[MatrixProduct, ...], extents: PartExtents, stored: Mapping[int, Cycles]
    ) -> LayerCycles:  # fmt: skip
        """A part of a layer.  `stored`: bytes of each operand, and of the result (-1), that cross the SRAM port."""
        found = self.of_all([TimedPart(layer, products, extents, stored)])
        return LayerCycles(found.matrix[0], found.vector[0], found.copies[0])

    def of_all(self, parts: Sequence[TimedPart]) -> LayerCycles:
        """Of several layers at once, [parts, candidates]: of all as many candidates."""
        points = [ceil_div(extent(part.layer.axes, part.extents), self.cluster.cores) for part in parts]
        copies = [sum(part.stored.values()) for part in parts]
        shape = len(parts), *np.broadcast_shapes(*{*map(np.shape, (*points, *copies))})
        found, vector = np.zeros((3, *shape)), np.empty(shape)  # on the matrix unit, all bytes, those for all cores
        for k, part in enumerate(parts):
            work = max(part.layer.macs, part.layer.passes) + divided(part.layer, part.extents)
            vector[k] = vector_cycles(self.cluster.core.vector, work, points[k], width_of(part.layer))
            found[1, k] = copies[k]
        some = [k for k, part in enumerate(parts) if part.products]
        for width in {width_of(parts[k].layer) for k in some}:
            own = [k for k in some if width_of(parts[k].layer) == width]
            found[0, own], found[2, own] = self._fewest([parts[k] for k in own], width, shape[1:])
        matrix, copies_, for_all = found
        for k in some:
            first = parts[k].products[0]
            if first.is_by_channel and first.taps:  # some channels on each unit
                matrix[k] *= vector[k] / (matrix[k] + vector[k])
                vector[k], for_all[k] = 0, 0
            else:
                is_on_matrix = matrix[k] <= vector[k] if first.is_by_channel else True
                matrix[k] *= is_on_matrix
                vector[k] *= np.logical_not(is_on_matrix)
                for_all[k] *= is_on_matrix
        return LayerCycles(matrix, vector, self.copied(copies_ - for_all, for_all))

    def _fewest(self, parts: Sequence[TimedPart], element_bytes: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """Cycles of the way that takes the fewest, and the bytes that all cores need of it, [parts, candidates]."""
        table = np.empty((len(CoreWork._fields), len(parts), 2, 3, *shape), np.int64)
        shared = np.zeros((len(parts), 2, 3, *shape))
        for k, part in enumerate(parts):
            for p, product in enumerate(part.products):
                for way, work in enumerate(product.shared(part.extents, self.cluster.cores)):
                    for row, value in enumerate(work):
                        table[row, k, p, way] = value
                shared[k, p, 1] = part.stored.get(product.weights, 0.0)  # those who share positions need all weights
        own = CoreWork(*table.reshape(len(table), len(parts), 6, *shape))
        columns = np.minimum(own.positions, own.columns)
        cycles = self.on_matrix(
            Convolution(
                ceil_div(own.positions, columns), columns, own.sums, own.channels, element_bytes, own.groups,
                own.taps // own.row_taps, own.row_taps, own.stride,
            )
        )  # fmt: skip
        at = cycles.argmin(axis=1)[:, None]
        shared = shared.reshape(len(parts), 6, *shape)
        return np.take_along_axis(cycles, at, 1)[:, 0], np.take_along_axis(shared, at, 1)[:, 0]

    def on_matrix(self, work: Convolution) -> Cycles:
        """One core: every fill of the lines counts as a full one."""
        unit = self.cluster.core.matrix
        windows = work.rows * work.columns
        passes = ceil_div(windows, unit.lines) * ceil_div(work.channels_out, unit.channels) * work.groups
        steps = passes * work.channels_in * work.kernel_h * work.kernel_w
        piece = smaller(work.columns, unit.lines)
        pieces = smaller(windows, unit.lines) / piece
        split, whole = (piece_writes(unit, work, mode, piece) * pieces for mode in MODES)
        computing = larger(passes * smaller(split, whole), steps * unit.cycles_per_step.of(work.element_bytes))
        return larger(computing, table_cycles(work))

    def copied(self, own: Cycles, for_all: Cycles) -> Cycles:
        """Bytes of which each core takes its share, and bytes that all take: over the bus."""
        cluster = self.cluster
        moved = own / (cluster.cores * cluster.core.mvdma.bytes_per_cycle)
        over_port = (own + for_all) / cluster.sram.port_bytes_per_cycle
        return larger(larger(moved, for_all / cluster.bus.bytes_per_cycle), over_port)

    def carried(self, size: Cycles) -> Cycles:
        """Of sums that go on: all cores bring them at the same time, and take them away, over a port that one of them
        has at a time."""
        cluster = self.cluster
        own = size / cluster.cores
        at_once = own / cluster.core.mvdma.bytes_per_cycle
        return 2 * (at_once + (cluster.cores - 1) * own / cluster.sram.port_bytes_per_cycle)

    def holds(self, size: Cycles) -> Cycles:
        """Whether so many bytes, dealt to the cores, lie in their NRAM."""
        return size / self.cluster.cores <= self.cluster.core.nram.capacity_bytes

    def energy_pj(self, layer: Layer, points: Any, size: Any) -> Any:
        """Of a layer's part: multiply-accumulates, and bytes that cores take in and give."""
        core = self.cluster.core
        moved = byte_energy_pj(self.cluster.sram, size) + 2 * byte_energy_pj(core.nram, size)
        return mac_energy_pj(core.matrix, points * layer.macs, width_of(layer)) + moved


def crossing_pj(target: Target) -> float:
    """Picojoules of a byte that crosses the DRAM port."""
    return float(byte_energy_pj(target.chip.dram, 1) + byte_energy_pj(target.cluster.sram, 1))


def width_of(layer: Layer) -> int:
    """Bytes of an element for an engine: of the first operand."""
    bits = layer.operands[0].pieces[0].tensor.element_bits
    return 1 if bits <= 8 else 2 if bits <= 16 else 4
