# Tests: test/passes/plan/tree/test_costs.py
"""What nests take beside bytes over the DRAM port, in bytes that the port could have moved meanwhile.

A nest takes as long as its busiest engine: of the time that cores take, what the DRAM port does not hide.  Energy adds
to that of DRAM.  Either way units one after the other add up, and passes multiply, as bytes do; so the same search
finds the least of all three.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.count import SLICE, SLICE_COPIES
from frustum.dialects.plan.layer_cycles import (
    ClusterCycles,
    MatrixProduct,
    TimedPart,
    crossing_pj,
    products_of,
)
from frustum.dialects.target import Target
from frustum.passes.plan.tree.spans import Floats, Ints
from frustum.passes.plan.tree.wishes import IDLE, WishError, Wishes

APART = 0.5
"""Of the time in which engines could work at once, such a part they wait for each other at least: not all layers of a
nest become one chain. 2026-11-29."""


KnownCosts: TypeAlias = dict[tuple[object, ...], Floats]
"""Of candidates, by what says which these are."""


@dataclass(frozen=True)
class LayerParts:
    """Of some layers in candidate nests, [layers, candidates]: which axis a loop cuts (the place in the layer's axes;
    -1: none), how many positions of it a pass has, and how many such passes there are."""

    axis: Ints
    extent: Ints
    runs: Floats

    def at(self, numbers: Ints) -> LayerParts:
        """Of these candidates."""
        return LayerParts(self.axis[:, numbers], self.extent[:, numbers], self.runs[:, numbers])

    @staticmethod
    def unchanged(layers: int) -> LayerParts:
        """Of one pass over everything."""
        one = np.ones((layers, 1), np.int64)
        return LayerParts(-one, one, np.ones((layers, 1)))

    @staticmethod
    def joined(parts: list[LayerParts]) -> LayerParts:
        """Candidates of several."""
        rows = ([getattr(part, name) for part in parts] for name in ("axis", "extent", "runs"))
        return LayerParts(*(np.concatenate(each, axis=-1) for each in rows))


@dataclass
class NestCosts:
    """Of one machine: cycles, or energy, of candidates."""

    target: Target
    is_energy: bool
    idle: float
    ahead: bool
    known: KnownCosts
    """Of intervals by their numbers: other wishes need not find them again."""
    products: dict[Layer, tuple[MatrixProduct, ...]] = field(default_factory=dict)

    @staticmethod
    def of(wishes: Wishes, known: KnownCosts) -> NestCosts | None:
        """None where bytes alone count.  WishError for energy of a machine whose bytes take none."""
        if wishes.optimise == "bytes":
            return None
        assert wishes.target is not None, "time and energy are those of a target"
        found = NestCosts(wishes.target, wishes.optimise == "energy", wishes.idle, wishes.ahead, known)
        if found.is_energy and not crossing_pj(found.target):
            raise WishError(
                f"error: --optimise energy: bytes in DRAM and SRAM of {wishes.target.name} take no energy (set "
                "chip.dram.energy_pj_per_byte or chip.cluster.sram.energy_pj_per_byte, or take bytes or time)"
            )
        return found

    @property
    def least_run_bytes(self) -> int:
        """Shorter runs take as long at the DRAM port; they take no more energy."""
        return 0 if self.is_energy else self.target.chip.dram.minimum_run_bytes

    @property
    def first(self) -> float:
        """What a byte costs for which the first pass waits, or that leaves behind the last one: little, since it may
        come while other units compute."""
        return 0.0 if self.is_energy else IDLE[1]

    @property
    def between(self) -> float:
        """What a pass costs beside the bytes that it moves: the same small share of DRAM's latency."""
        dram = self.target.chip.dram
        return self.first * dram.latency_cycles * dram.port_bytes_per_cycle

    @property
    def wait(self) -> float:
        """What a load costs of what has been stored just before: the latency of both, in which hardly anything else
        moves."""
        dram = self.target.chip.dram
        return 0.0 if self.is_energy else 2 * dram.latency_cycles * dram.port_bytes_per_cycle * self.idle

    @cached_property
    def cluster(self) -> ClusterCycles:
        return ClusterCycles(self.target.cluster)

    def least(self, layers: Iterable[tuple[Layer, Mapping[Axis, int]]], moved: float) -> float:
        """Hardly any plan has less, in bytes: these are moved, and the engine with the most work is busy, that is with
        the layers as wholes, of so many positions of their axes."""
        if self.is_energy:
            return moved
        whole = [self.cluster.of(layer, tuple(products_of(layer)), extents, {}) for layer, extents in layers]
        busy = max(sum(float(each.matrix) for each in whole), sum(float(each.vector) for each in whole))
        return self.together(moved, busy)

    def together(self, moved: float, cycles: float) -> float:
        """Bytes that are moved and cycles, as one price; of energy the bytes alone."""
        idle = cycles * self.target.chip.dram.port_bytes_per_cycle - moved
        return moved if self.is_energy else moved + max(0.0, idle) * self.idle

    def sent(self, size: float) -> float:
        """What bytes cost that a cluster sends to others."""
        cdma = self.target.cluster.cdma
        if self.is_energy or cdma is None:
            return 0.0
        cycles = self.target.cluster.sram.latency_cycles + size / cdma.bytes_per_cycle
        return cycles * self.target.chip.dram.port_bytes_per_cycle * self.idle

    def of_nests(
        self, layers: tuple[Layer, ...], extents: Mapping[Axis, int], parts: list[LayerParts],
        tiles: Mapping[Tensor, Floats], inside: frozenset[Tensor], sliced: Mapping[Layer, Axis],
    ) -> Floats:  # fmt: skip
        """Bytes that the port could have moved, [candidates].  `parts`: of each loop from the outermost; `tiles`: bytes
        of tensors in a pass; `inside`: those that no other layers have; `sliced`: axes of sums along which operands
        stream."""
        cuts = [self.cut(layer, k, extents, parts) for k, layer in enumerate(layers)]
        stored = [self.stored(layer, tiles, inside) for layer in layers]
        runs = np.array([each for _, each in cuts])
        if self.is_energy:
            total = np.zeros(runs.shape[1])
            for k, layer in enumerate(layers):
                points = np.prod([*cuts[k][0].values()], axis=0, dtype=np.float64)
                total += runs[k] * self.cluster.energy_pj(layer, points, sum(stored[k].values()))
            return total / crossing_pj(self.target)
        self.products.update({layer: tuple(products_of(layer)) for layer in layers if layer not in self.products})
        found = self.cluster.of_all([
            TimedPart(layer, self.products[layer], cut, own)
            for layer, (cut, _), own in zip(layers, cuts, stored, strict=True)
        ])
        waits = np.array([
            self.waits(layer, k, parts, stored[k], cuts[k][0], sliced.get(layer)) for k, layer in enumerate(layers)
        ])
        engines = found.matrix + waits, found.vector, found.copies
        busiest = np.max([np.sum(runs * each, axis=0) for each in engines], axis=0)
        one_by_one = np.sum(runs * (found.alone + waits), axis=0)
        passes = math.prod((part.runs for part in parts), start=np.ones_like(runs)).max(axis=0)
        cycles = busiest + (one_by_one - busiest) * APART + self.cluster.restart * runs.sum(axis=0)
        cycles = cycles + passes * self.target.chip.dram.latency_cycles
        return cycles * self.target.chip.dram.port_bytes_per_cycle

    def waits(
        self, layer: Layer, k: int, parts: list[LayerParts], stored: Mapping[int, Floats],
        cut: Mapping[Axis, Ints], sliced: Axis | None,
    ) -> Floats:  # fmt: skip
        """Cycles in which the cores wait in a pass for sums that have begun: in passes before, or in slices before
        where the cores cannot hold them.  `sliced`: the axis along which what is summed comes in slices."""
        summed = [axis for axis in layer.combine if axis not in layer.result.axes]
        none = np.zeros(parts[0].runs.shape[1])
        if not summed or not layer.macs or -1 not in stored:
            return none
        goes_on = none > 0
        for part, axis in itertools.product(parts, summed):
            goes_on |= (part.axis[k] == layer.axes.index(axis)) & (part.runs[k] > 1)
        if sliced is None and not goes_on.any():
            return none
        carried = self.cluster.carried(stored[-1])
        share = SLICE_COPIES * np.minimum(1.0, SLICE / np.prod([cut[axis] for axis in summed], axis=0))
        is_held = self.cluster.holds(stored[-1] + share * sum(size for at, size in stored.items() if at >= 0))
        slices = 1.0 if sliced is None else np.where(is_held, 1.0, np.ceil(cut[sliced] / SLICE))
        return np.where(goes_on, slices, slices - 1) * carried

    def cut(
        self, layer: Layer, k: int, extents: Mapping[Axis, int], parts: list[LayerParts]
    ) -> tuple[dict[Axis, Ints], Floats]:  # fmt: skip
        """Positions of the layer's axes in a pass, and how many such passes there are."""
        axes = layer.axes
        whole = np.array([extents.get(axis, axis.extent) for axis in axes], np.int64)
        found = np.repeat(whole[:, None], parts[0].runs.shape[1], axis=1)
        runs = np.ones(found.shape[1])
        for part in parts:
            (at,) = np.nonzero(part.axis[k] >= 0)
            place = part.axis[k][at]
            found[place, at] = np.minimum(found[place, at], part.extent[k][at])
            runs = runs * part.runs[k]
        return dict(zip(axes, found, strict=True)), runs

    def stored(self, layer: Layer, tiles: Mapping[Tensor, Floats], inside: frozenset[Tensor]) -> dict[int, Floats]:
        """Bytes of operands and of the result that cross the SRAM port; vector units hand results to themselves.

        Tensors without axes are in no tiles: they are one element.
        """
        found = dict[int, Floats]()
        for k, operand in enumerate(layer.operands):
            own = [p.tensor for p in operand.pieces if layer.macs or p.tensor not in inside]
            if own:
                sizes = [tiles[t] if t.axes else np.full(1, t.element_bits / 8) for t in dict.fromkeys(own)]
                found[k] = sum(sizes, np.zeros(1))
        if layer.macs or layer.result not in inside or not found:
            found[-1] = tiles[layer.result]
        return found
