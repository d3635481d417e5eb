# Tests: test/dialects/plan/test_cycles.py
"""What one cluster takes for a part of a layer: cycles of its engines, from the machine's closed forms.

The axes of a product say what the matrix unit makes of it: positions fill lines, channels are side by side, groups
come one after the other, sums go on in place.  Cores share the work along one of them.
Numbers of positions may be integers or arrays of candidates, as in `dialects/target/durations.py`.
Source: docs/techniques/machine.md, "Matrix unit" and "Vector unit"; `dialects/target/durations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

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

    def work(self, extents: PartExtents, element_bytes: int, parts: tuple[Int, Int, Int]) -> Convolution:
        """What one core does where so many share groups, positions and channels."""
        groups, positions, channels = (
            ceil_div(extent(axes, extents), part)
            for axes, part in zip((self.groups, self.positions, self.channels), parts, strict=True)
        )
        columns = smaller(positions, extents.get(self.positions[-1], 1) if self.positions else 1)
        width = extent(self.row_taps, extents)
        return Convolution(
            ceil_div(positions, columns), columns, extent(self.sums, extents), channels, element_bytes, groups,
            extent(self.taps, extents) // width, width, self.stride,
        )  # fmt: skip


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
        element_bytes, copies = width_of(layer), sum(stored.values())
        points = ceil_div(extent(layer.axes, extents), self.cluster.cores)
        work = max(layer.macs, layer.passes)
        vector: Cycles = vector_cycles(self.cluster.core.vector, work, points, element_bytes)
        if not products:
            return LayerCycles(0 * vector, vector, self.copied(copies, 0 * copies))
        ways = [
            (self.on_matrix(product.work(extents, element_bytes, parts)), stored.get(product.weights, 0.0) * is_shared)
            for product in products for parts, is_shared in self.shares(product, extents)
        ]  # fmt: skip
        matrix, for_all = ways[0]
        for cycles, shared in ways[1:]:
            for_all = for_all + (cycles < matrix) * (shared - for_all)
            matrix = smaller(matrix, cycles)
        if products[0].is_by_channel and products[0].taps:  # some channels on each unit
            return LayerCycles(matrix * vector / (matrix + vector), 0 * vector, self.copied(copies, 0 * copies))
        is_on_matrix = matrix <= vector if products[0].is_by_channel else 1
        for_all = for_all * is_on_matrix
        return LayerCycles(matrix * is_on_matrix, vector * (1 - is_on_matrix), self.copied(copies - for_all, for_all))

    def shares(self, product: MatrixProduct, extents: PartExtents) -> Iterator[tuple[tuple[Int, Int, Int], bool]]:
        """Ways of cores to share a product: groups, positions or channels; and whether all then need all weights."""
        groups, positions, channels = (
            smaller(self.cluster.cores, extent(axes, extents))
            for axes in (product.groups, product.positions, product.channels)
        )
        yield (groups, 1, 1), False
        yield (1, positions, 1), True
        yield (1, 1, channels), False

    def on_matrix(self, work: Convolution) -> Cycles:
        """One core: every fill of the lines counts as a full one."""
        unit = self.cluster.core.matrix
        windows = work.rows * work.columns
        passes = ceil_div(windows, unit.lines) * ceil_div(work.channels_out, unit.channels) * work.groups
        steps = passes * work.channels_in * work.kernel_h * work.kernel_w
        piece = smaller(work.columns, unit.lines)
        pieces = smaller(windows, unit.lines) / piece
        split, whole = (piece_writes(unit, work, mode, piece) * pieces for mode in MODES)
        return larger(passes * smaller(split, whole), steps * unit.cycles_per_step.of(work.element_bytes))

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
