# Tests: test/passes/plan/network/test_groups.py
"""What the cores of a cluster do for a group, as its layers come one by one: products, vectors, copies, and what is
made again."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Core, Target
from frustum.dialects.target.durations import byte_energy_pj, mac_energy_pj
from frustum.dialects.tile import ConvLayer, StackLayer
from frustum.passes.analysis.layer import Layer
from frustum.passes.plan.layer_work import passes_of
from frustum.passes.plan.model import LAYER_CYCLES, MOST_RECOMPUTED, PIECE_SHARE
from frustum.passes.plan.network.needs import FAR, GroupLayer, GroupNeeds
from frustum.passes.plan.network.tile_shapes import BY_COLUMNS, BY_ROWS, Ints, Mask, TileShapes

Floats = NDArray[np.float64]


class GroupWork:
    """Cycles of a growing group, and what of it is computed more than once."""

    def __init__(self, needs: GroupNeeds, target: Target, parts: int, *, counts_overlaps: bool):
        self.needs = needs
        self.shapes: TileShapes = needs.shapes
        self.target = target
        self.parts = parts
        self.core: Core = target.core
        self.cores: int = target.cluster.cores
        self.cycles: Ints = np.zeros(needs.size, np.int64)
        self.spent: Ints = np.zeros(needs.size, np.int64)
        self.behind_reader: dict[int, Ints] = {}
        """Cycles of a pass behind the last layer that reads a map."""
        self.before_maker: dict[int, Ints] = {}
        """Cycles of a pass from the layer on that makes a map."""
        self.energy_pj: Floats = np.zeros(needs.size, np.float64)
        self.macs: Floats = np.zeros(needs.size, np.float64)
        self.useful_macs: int = 0
        self.overlaps = np.zeros(needs.size, np.bool_) if counts_overlaps else None

    def is_allowed(self) -> Mask:
        """Where little, or nothing if overlaps count, is computed again."""
        little: Mask = self.macs <= MOST_RECOMPUTED * self.useful_macs
        return little if self.overlaps is None else little & ~self.overlaps

    def add(self, made: GroupLayer) -> None:
        """A layer, before those that are there."""
        layer, need, shapes = made.layer, made.need, self.shapes
        for read in made.node.reads:
            self.behind_reader.setdefault(read.map, self.cycles)
        rolls = shapes.is_roll & (need.lead > -FAR)
        rows = np.where(rolls, made.made, need.rows.extent)
        images = self.needs.images(max(layer.out_dims[0], layer.work_dims[0]))
        plane = images * rows * made.columns
        if self.overlaps is not None or layer.is_matrix:
            self.count_again(made, rolls)
        passes = 1 if layer.is_matrix else passes_of(layer.steps, self.core.vector)
        if layer.is_matrix:
            busy = self.matrix_cycles(layer, images, rows, made.columns)
        else:
            busy = self.vector_cycles(layer, plane, passes)
        self.cycles = self.cycles + busy + LAYER_CYCLES * (passes > 0)
        if not (layer.kind.is_place or self.is_loaded_so(made)):
            self.spent = self.spent + self.all_passes(made, rolls, plane, busy)
        self.before_maker[made.number] = self.cycles

    def is_loaded_so(self, made: GroupLayer) -> bool:
        """Slices that are stacked for one product behind, whose pieces are loaded as they are to be (`plan/runs.py`).
        """
        kind = made.layer.kind
        if not isinstance(kind, StackLayer) or kind.kernel == 1 or made.is_stored:
            return False
        users = [self.needs.order.layer(k).kind for k in self.needs.order.maps[made.number].users]
        return len(users) == 1 and isinstance(users[0], ConvLayer) and users[0].groups == 1

    def copied(self, moved: Ints) -> Ints:
        """Cycles of all passes in which the cores copy so many bytes of all clusters from one place to another."""
        rate = self.needs.clusters * self.cores * self.core.mvdma.bytes_per_cycle
        return 2 * moved // rate + LAYER_CYCLES

    def count_again(self, made: GroupLayer, rolls: Mask) -> None:
        """What is made of a layer's map over all tiles, and where some of it is made twice."""
        layer, need, shapes = made.layer, made.need, self.shapes
        images, channels, height, width = layer.out_dims
        down, right = need.rows.covered(shapes.tiles[0], height), need.columns.covered(shapes.tiles[1], width)
        if self.overlaps is not None:
            self.overlaps |= ~shapes.is_roll & ((down > height) | (right > width))
            if self.needs.clusters > 1:  # what all clusters need alike, each of them makes
                self.overlaps |= (shapes.dealt == BY_ROWS) & (need.rows.step == 0) & ~shapes.is_roll
                self.overlaps |= (shapes.dealt == BY_COLUMNS) & (need.columns.step == 0)
        if layer.is_matrix:
            _, per_group, taps = product_of(layer)
            macs = np.where(rolls, height, down) * right * (images * channels * per_group * taps)
            self.macs = self.macs + macs
            self.energy_pj = self.energy_pj + self.parts * mac_energy_pj(
                self.core.matrix, macs, layer.maps[0].element_bytes
            )
            self.useful_macs += layer.macs

    def matrix_cycles(self, layer: Layer, images: Ints, rows: Ints, columns: Ints) -> Ints:
        """Cycles of products on a tile of so many images, rows and columns, or of the copies to and from the cores."""
        groups, per_group, taps = product_of(layer)
        operand_bytes = layer.maps[0].element_bytes
        steps = self.line_fills(images, rows, columns, layer.out_dims[1] // groups) * (groups * per_group * taps)
        moved = layer.out_dims[1] * (layer.out_bytes + sum(m.element_bytes for m in layer.maps[1:]))
        moved += groups * per_group * operand_bytes  # about as many positions as the output has
        rate = self.cores * self.core.mvdma.bytes_per_cycle
        copied = images * rows * columns * moved // rate
        return np.maximum(steps * self.core.matrix.cycles_per_step.of(operand_bytes), copied)

    def vector_cycles(self, layer: Layer, plane: Ints, passes: int) -> Ints:
        """Cycles of so many passes over the elements of a tile."""
        widest = max(layer.out_bytes, *(m.element_bytes for m in layer.maps))
        reduced = math.prod(layer.maps[0].dims[2:]) if layer.kind.cuts_operand else 1
        steps = plane * (
            layer.out_dims[1] * reduced * passes * self.core.vector.cycles_per_element.of(widest)
        )
        return ceil_div(steps, self.core.vector.lanes * self.cores)

    def all_passes(self, made: GroupLayer, rolls: Mask, plane: Ints, busy: Ints) -> Ints:
        """A layer's cycles over all passes in which it has something to do: `busy` or the copies to and from the cores,
        and the first load and last store of each pass."""
        shapes, node = self.shapes, made.node
        _, channels, height, width = made.layer.out_dims
        passes = (
            np.where(rolls, ceil_div(height, made.made), shapes.counts[1])
            * shapes.counts[0]
            * made.turns
        )
        made_bytes = plane * channels * made.layer.out_bytes
        read_bytes = np.zeros_like(plane)
        for read in node.reads:
            read_bytes = (
                read_bytes + plane * math.prod(read.dims[1:]) // (height * width) * read.element_bytes
            )
        piece = self.core.nram.capacity_bytes // PIECE_SHARE
        ends = np.minimum(made_bytes // self.cores, piece) + np.minimum(read_bytes // self.cores, piece)
        copied = made_bytes + read_bytes + node.weight_bytes
        moved, all_bytes = copied // self.cores, copied * passes * self.target.chip.clusters
        memories = self.target.cluster.sram, self.core.nram
        self.energy_pj = self.energy_pj + sum(byte_energy_pj(memory, all_bytes) for memory in memories)
        rate, latency = self.core.mvdma.bytes_per_cycle, 2 * self.target.cluster.sram.latency_cycles
        return passes * (np.maximum(busy, moved // rate) + ends // rate + latency)

    def line_fills(self, images: Ints, rows: Ints, columns: Ints, channels: int) -> Ints:
        """Fills of the lines for all output channels of a group, on the core that has the most: rows, columns, images
        or channels dealt to the cores, whichever takes fewest."""
        unit, cores = self.core.matrix, self.cores
        slices, share = ceil_div(channels, unit.channels), ceil_div(ceil_div(channels, cores), unit.channels)
        fewest = ceil_div(images * rows * columns, unit.lines) * share
        own_rows = np.where(self.shapes.is_raster, rows, ceil_div(rows, cores))  # pieces have all rows of a step
        for windows in (
            images * own_rows * columns,
            images * rows * ceil_div(columns, cores),
            ceil_div(images, cores) * rows * columns,
        ):
            fewest = np.minimum(fewest, ceil_div(windows, unit.lines) * slices)
        return fewest


def product_of(layer: Layer) -> tuple[int, int, int]:
    """Groups of a product, input channels of each, and taps of its kernel."""
    conv = layer.kind
    assert isinstance(conv, ConvLayer)
    return conv.groups, conv.channels, math.prod(conv.kernel)
