# Tests: test/dialects/plan/test_cycles.py
"""What one cluster takes for a part of a layer: cycles of its engines, from the machine's closed forms.

The axes of a product say what the matrix unit makes of it: positions fill lines, channels are side by side, groups
come one after the other, sums go on in place.  Cores share the work along one of them.
Source: docs/techniques/machine.md, "Matrix unit" and "Vector unit"; `dialects/target/durations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from frustum.dialects.axes.access import Affine
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Combine, Layer, Operand
from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Cluster
from frustum.dialects.target.durations import Convolution, Mode, matrix_work, vector_cycles

Extents: TypeAlias = Mapping[Axis, int]
"""Positions of each axis in a part."""
MODES: tuple[Mode, ...] = ("split", "channels_last")


@dataclass(frozen=True)
class LayerCycles:
    """Cycles of a cluster's engines: matrix units, vector units, and copies between SRAM and cores."""

    matrix: float = 0.0
    vector: float = 0.0
    copies: float = 0.0

    @property
    def alone(self) -> float:
        """Where nothing else runs: copies go on while cores work."""
        return max(self.matrix + self.vector, self.copies)


@dataclass(frozen=True)
class Product:
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

    def work(self, extents: Extents, element_bytes: int, parts: tuple[int, int, int]) -> Convolution:
        """What one core does where so many share groups, positions and channels."""
        groups, positions, channels = (
            ceil_div(extent(axes, extents), part)
            for axes, part in zip((self.groups, self.positions, self.channels), parts, strict=True)
        )
        columns = min(positions, extents.get(self.positions[-1], 1) if self.positions else 1)
        width = extent(self.row_taps, extents)
        return Convolution(
            ceil_div(positions, columns), columns, extent(self.sums, extents), channels, element_bytes, groups,
            extent(self.taps, extents) // width, width, self.stride,
        )  # fmt: skip


def extent(axes: tuple[Axis, ...], extents: Extents) -> int:
    """Positions of several axes together."""
    return math.prod(extents.get(axis, axis.extent) for axis in axes)


def products_of(layer: Layer) -> Iterator[Product]:
    """The ways to see a layer as a product: either factor may fill the lines; none, where it is no product of two."""
    factors = [k for k, operand in enumerate(layer.operands) if layer.macs and _axes(operand) & set(layer.combine)]
    if len(factors) != 2 or any(rule is not Combine.SUM for rule in layer.combine.values()):
        return
    for lines, weights in (factors, factors[::-1]):
        a, b = _axes(layer.operands[lines]), _axes(layer.operands[weights])
        made = layer.result.axes
        positions = tuple(axis for axis in made if axis not in b)
        sums = tuple(axis for axis in layer.combine if not axis.is_tap)
        row, stride = _row(layer.operands[lines], positions)
        yield Product(
            positions, tuple(axis for axis in made if axis in b and axis not in a),
            tuple(axis for axis in made if axis in a and axis in b), sums,
            tuple(axis for axis in layer.combine if axis.is_tap), row, stride, lines, weights,
        )  # fmt: skip


def _axes(operand: Operand) -> set[Axis]:
    """Axes of the layer that move the positions of an operand."""
    return {axis for position in _positions(operand) for axis, _ in position.refined().terms}


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

    def of(self, layer: Layer, products: tuple[Product, ...], extents: Extents, stored: Mapping[int, float]) -> LayerCycles:
        """A part of a layer.  `stored`: bytes of each operand, and of the result (-1), that cross the SRAM port."""
        element_bytes = width_of(layer.operands[0].pieces[0].tensor.element_bits)
        copies, one_for_all = sum(stored.values()), 0.0
        vector = self.on_vectors(layer, extents, element_bytes)
        matrix = math.inf
        for product in products:
            for parts in self.shares(product, extents):
                found = self.on_matrix(product.work(extents, element_bytes, parts))
                if found < matrix:
                    matrix, is_shared = found, parts[2] == 1 and parts[0] == 1
                    one_for_all = stored.get(product.weights, 0.0) if is_shared else 0.0
        if products and matrix <= vector:
            return LayerCycles(matrix, 0.0, self.copied(copies - one_for_all, one_for_all))
        return LayerCycles(0.0, vector, self.copied(copies, 0.0))

    def shares(self, product: Product, extents: Extents) -> Iterator[tuple[int, int, int]]:
        """Ways of cores to share a product: along groups, positions or channels."""
        for axes, k in ((product.groups, 0), (product.positions, 1), (product.channels, 2)):
            cores = min(self.cluster.cores, extent(axes, extents))
            yield (cores if k == 0 else 1, cores if k == 1 else 1, cores if k == 2 else 1)

    def on_matrix(self, work: Convolution) -> float:
        unit = self.cluster.core.matrix
        return float(min(matrix_work(unit, work, mode).busy_cycles for mode in MODES))

    def on_vectors(self, layer: Layer, extents: Extents, element_bytes: int) -> float:
        """All points on the vector units: of a product a pass for each multiply-accumulate."""
        points = ceil_div(extent(layer.axes, extents), self.cluster.cores)
        return float(vector_cycles(self.cluster.core.vector, max(layer.macs, layer.passes), points, element_bytes))

    def copied(self, own: float, for_all: float) -> float:
        """Bytes of which each core takes its share, and bytes that all take: over the bus."""
        cluster = self.cluster
        moved = own / (cluster.cores * cluster.core.mvdma.bytes_per_cycle)
        return max(moved, for_all / cluster.bus.bytes_per_cycle, (own + for_all) / cluster.sram.port_bytes_per_cycle)


def width_of(bits: int) -> int:
    """Bytes of an element for an engine."""
    return 1 if bits <= 8 else 2 if bits <= 16 else 4
