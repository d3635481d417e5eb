# Tests: test/passes/plan/tree/test_zones.py
"""Zones of a network: layers of which clusters deal one class of axes among each other.

Inside a zone each cluster makes its range of the class.  What one zone makes and another one reads, every cluster
receives in whole.  A unit has layers of one zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.rates import steps_of_class
from frustum.passes.plan.tree.intervals import IntervalKeys, LayerInterval
from frustum.passes.plan.tree.spans import Dealt, Extents, Reads

ZoneOf = Mapping[Layer, int]
"""Of each layer the number of its zone."""


@dataclass(frozen=True, eq=False)
class Zone:
    """Layers with their class, as a search sees them: what they read, extents of the share of one cluster, keys."""

    reads: Reads
    extents: Extents
    keys: IntervalKeys

    @property
    def dealt(self) -> Dealt:
        return self.reads.dealt


@dataclass(frozen=True, eq=False)
class Dealing:
    """Of each layer of a network the class of which every cluster makes its range."""

    clusters: int
    classes: tuple[Class, ...]
    number: ZoneOf

    @staticmethod
    def of_one(layers: Sequence[Layer], group: Class = frozenset(), clusters: int = 1) -> Dealing:
        """One class for all layers."""
        return Dealing(clusters, (group,), dict.fromkeys(layers, 0))


def dealt_of(reads: Reads, group: Class, layers: Sequence[Layer], clusters: int) -> Dealt:
    """A class with the ranges of its axes, of these layers."""
    own = tuple(layer for layer in layers if not group.isdisjoint(layer.axes))
    if not own:
        return Dealt(group, clusters)
    axis = next(axis for axis in reversed(own[-1].axes) if axis in group)
    sums = any(axis in group and axis not in layer.result.axes for layer in own for axis in layer.combine)
    may_idle = not sums and not LayerInterval(reads.network, reads, own).is_windowed(group)
    return Dealt(group, clusters, steps_of_class(axis, group, own, clusters, may_idle=may_idle))


class Zones:
    """The zones of a dealing, in an order of layers."""

    reads: Reads
    layers: tuple[Layer, ...]
    dealing: Dealing
    extents: Extents
    """Of all clusters together."""
    zones: tuple[Zone, ...]
    ends: list[int]
    """Of each layer's place where the run of layers of its zone ends."""

    def __init__(self, reads: Reads, layers: tuple[Layer, ...], dealing: Dealing, numbers: dict[object, int]) -> None:
        self.reads, self.layers, self.dealing = reads, layers, dealing
        axes = (*(layer.axes for layer in layers), *(tensor.axes for tensor in reads.network.tensors))
        self.extents = Extents({axis: axis.extent for own in axes for axis in own})
        self.zones = tuple(self._zones(numbers))
        self.ends = self._ends()

    def _zones(self, numbers: dict[object, int]) -> Iterator[Zone]:
        members: list[list[Layer]] = [[] for _ in self.dealing.classes]
        for layer in self.layers:
            members[self.dealing.number[layer]].append(layer)
        for group, own in zip(self.dealing.classes, members, strict=True):
            dealt = dealt_of(self.reads, group, own, self.dealing.clusters)
            reads = self.reads.dealing(dealt, tuple(own))
            touched = (axis for layer in own for t in reads.touched[layer] for axis in t.axes)
            axes = (*(axis for layer in own for axis in layer.axes), *touched)
            extents = Extents({axis: dealt.share(axis) for axis in axes})
            yield Zone(reads, extents, IntervalKeys(reads, self.layers, numbers))

    def _ends(self) -> list[int]:
        """Of each layer's place where the run of layers of its zone ends."""
        ends, end = list[int](), len(self.layers)
        for k in range(len(self.layers) - 1, -1, -1):
            if k + 1 < len(self.layers) and self._number(k) != self._number(k + 1):
                end = k + 1
            ends.append(end)
        return ends[::-1]

    def _number(self, place: int) -> int:
        return self.dealing.number[self.layers[place]]

    def of(self, first: int, stop: int) -> Zone | None:
        """The zone that layers [first, stop) have in common."""
        return self.zones[self._number(first)] if stop <= self.ends[first] else None

    def zone(self, layer: Layer) -> Zone:
        return self.zones[self.dealing.number[layer]]

    # ------------------------------------------------------------ tensors between units

    @cached_property
    def shared(self) -> dict[Tensor, Axis]:
        """Tensors of which each cluster holds its range alone, with the axis: those that all layers make and read so.
        What stays between units is held in whole where one of them does not."""
        found = dict[Tensor, Axis]()
        for tensor, users in self.reads.users.items():
            numbers = {self.dealing.number[layer] for layer in users}
            own = self.zones[numbers.pop()].reads if len(numbers) == 1 else None
            cut = [axis for axis in tensor.axes if own is not None and axis in own.dealt.axes]
            if own is not None and cut and tensor not in own.gathered:
                found[tensor] = cut[0]
        return found

    def held(self, tensor: Tensor) -> float:
        """Bytes of a tensor that each cluster holds between units."""
        axis = self.shared.get(tensor)
        zone = None if axis is None else self.zone(self.reads.users[tensor][0])
        return self.reads.size(tensor, self.extents) if zone is None else zone.reads.size(tensor, zone.extents)

    def lie_alike(self, one: Tensor, other: Tensor) -> bool:
        """Whether clusters hold both in whole, or both in ranges."""
        return (one in self.shared) == (other in self.shared)

    def is_dealt(self, tensor: Tensor) -> bool:
        """Whether a zone has ranges of a tensor."""
        return not self._dealt.isdisjoint(tensor.axes)

    @cached_property
    def _dealt(self) -> Class:
        """The axes that are dealt in some zone."""
        return frozenset().union(*self.dealing.classes)

    def sent(self, tensor: Tensor) -> float:
        """Bytes of a tensor that each cluster sends to the others: where it makes a range and all hold the whole."""
        maker = self.reads.network.maker.get(tensor)
        zone = None if maker is None else self.zone(maker)
        if zone is None or tensor in self.shared or not zone.dealt.has(tensor):
            return 0.0
        others = zone.dealt.clusters - 1
        return self.reads.size(tensor, self.extents) / zone.dealt.clusters * others
