# Tests: test/passes/plan/tree/test_search.py
"""Which ranges of axes layers make and read in each pass over a class: arrays of candidates by passes.

From the last layer back: what no later layer reads along the class is cut in proportion, everything else follows from
the windows of its readers.  A pass in which nothing is made has the range [NOTHING, -NOTHING).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.access import Affine, Guard, Piece
from frustum.dialects.axes.axis import Axis, Dim
from frustum.dialects.axes.network import AxisNetwork, Layer, Operand
from frustum.dialects.axes.recurrence import AxisRecurrence, recurrences_of
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.plan.check import ELEMENTS
from frustum.dialects.plan.rates import edges_of, longest

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
NOTHING = 1 << 40
"""Above all positions: where a pass has nothing, its range begins here and ends before all. 2026-11-28."""


class Extents(dict[Axis, int]):
    """Positions of each axis; and, of those tensors of which it was asked, the bytes that they make."""

    sizes: dict[Tensor, float]

    def __init__(self, found: Mapping[Axis, int]) -> None:
        super().__init__(found)
        self.sizes = {}


@dataclass(frozen=True)
class AxisRead:
    """Where a layer reads one axis of a tensor."""

    tensor: Tensor
    axis: Axis
    position: Affine | None
    """None: all of it, wherever the layer is."""
    guards: tuple[Guard, ...] = ()
    """Where it is read at all; elsewhere another piece of the operand is."""

    def guard_along(self, axis: Axis) -> Guard | None:
        """What decides whether a position that the axis does not move is read."""
        return next((guard for guard in self.guards if guard.position.moves(axis)), None)


@dataclass(frozen=True, eq=False)
class PassRanges:
    """Half-open ranges, [candidates, passes]."""

    low: Ints
    high: Ints

    @cached_property
    def lengths(self) -> Ints:
        return np.maximum(self.high - self.low, 0)

    @cached_property
    def most(self) -> Ints:
        return self.lengths.max(axis=-1)

    @cached_property
    def total(self) -> Ints:
        return self.lengths.sum(axis=-1)

    @cached_property
    def used(self) -> Ints:
        """Passes in which there is something."""
        return (self.lengths > 0).sum(axis=-1)

    @cached_property
    def whole(self) -> int:
        """From the first position to the last one, over all passes; one, where there is none: others divide by it."""
        return max(1, int(self.high.max()) - int(self.low.min()))

    @cached_property
    def news(self) -> PassRanges:
        """Without what earlier passes have had; all of it where ranges go back, as where positions wrap around."""
        known = np.where(self.is_forward[..., None], _before(self.high), -NOTHING)
        return settled(np.maximum(self.low, known), self.high)

    @cached_property
    def is_forward(self) -> NDArray[np.bool_]:
        """Whether no pass begins or ends before an earlier one, [candidates]."""
        is_empty = self.low >= self.high
        begins = _before(np.where(is_empty, -NOTHING, self.low)) <= self.low
        is_forward: NDArray[np.bool_] = np.all(is_empty | (begins & (_before(self.high) <= self.high)), axis=-1)
        return is_forward

    def joined(self, other: PassRanges) -> PassRanges:
        if other is self:
            return self
        return PassRanges(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def beside(self, readers: PassRanges) -> Ints:
        """The most positions that earlier passes have made and that this pass or a later one still reads."""
        oldest = np.minimum.accumulate(readers.low[..., ::-1], axis=-1)[..., ::-1]
        found = np.maximum(_before(self.high) - oldest, 0).max(axis=-1)
        return np.where(self.is_forward, found, 0)


def _before(high: Ints) -> Ints:
    """How far earlier passes have come."""
    found = np.maximum.accumulate(high, axis=-1)
    return np.concatenate([np.full_like(found[..., :1], -NOTHING), found[..., :-1]], axis=-1)


def settled(low: Ints, high: Ints) -> PassRanges:
    is_empty = low >= high
    if not is_empty.any():
        return PassRanges(low, high)
    return PassRanges(np.where(is_empty, NOTHING, low), np.where(is_empty, -NOTHING, high))


@dataclass(frozen=True)
class Dealt:
    """A class of axes of which each cluster has a range of its own."""

    axes: frozenset[Axis] = frozenset()
    clusters: int = 1
    steps: Mapping[Axis, int] = field(default_factory=dict)
    """How far apart ranges begin, where these are no equal parts."""

    def has(self, tensor: Tensor) -> bool:
        return not self.axes.isdisjoint(tensor.axes)

    def share(self, axis: Axis) -> int:
        """Positions of one cluster, at most."""
        return longest(axis, self.step(axis), self.clusters) if axis in self.axes else axis.extent

    def step(self, axis: Axis) -> int:
        """How far apart ranges begin."""
        return self.steps.get(axis) or ceil_div(axis.extent, self.clusters)

    def edges(self, axis: Axis) -> tuple[int, ...]:
        """Where ranges begin, and the end of the last one."""
        return edges_of(axis, self.step(axis), self.clusters)


class Reads:
    """What every layer of a network reads, axis by axis; computed once.  `layers`: those whose axes are dealt."""

    network: AxisNetwork
    dealt: Dealt
    layers: tuple[Layer, ...]
    sum_bits: int
    """Of sums that wait between passes; those of wider elements are as wide as these."""
    axes_of: dict[Tensor, Dim]
    recurrences: list[AxisRecurrence]
    """Layers that carry states, in the order of the network."""
    index: dict[Tensor, int]

    wait: float
    """DRAM bytes that cost as much as waiting for what a layer before has stored there."""

    def __init__(self, network: AxisNetwork, sum_bits: int = 0, wait: float = 0.0) -> None:
        self.network, self.dealt, self.sum_bits, self.wait = network, Dealt(), sum_bits, wait
        self.layers = tuple(network.layers)
        self.of: dict[Layer, tuple[AxisRead, ...]] = {layer: tuple(_reads(layer)) for layer in network.layers}
        self.axes: dict[Layer, frozenset[Axis]] = {
            layer: frozenset(axis for axis in layer.axes if not axis.is_tap) for layer in network.layers
        }
        self.axes_of = {tensor: tensor.axes for tensor in network.tensors}
        self.index = {tensor: k for k, tensor in enumerate(network.tensors)}
        self._copies: dict[Tensor, float] = {}
        self.users: dict[Tensor, tuple[Layer, ...]] = {tensor: () for tensor in network.tensors}
        """Its maker, then its readers."""
        self.touched: dict[Layer, tuple[Tensor, ...]] = {
            layer: tuple(dict.fromkeys((*(piece.tensor for k in layer.operands for piece in k.pieces), layer.result)))
            for layer in network.layers
        }
        for layer in network.layers:
            for tensor in self.touched[layer]:
                self.users[tensor] += (layer,)
        self.recurrences = recurrences_of(network.layers)
        for tensor in (tensor for each in self.recurrences for tensor in each.carried):
            self.users[tensor] = tuple(sorted(self.users[tensor], key=lambda layer: layer.result is not tensor))
        self._shares: dict[tuple[Tensor, tuple[Layer, ...]], float] = {}
        self._least_shares: dict[tuple[Tensor, tuple[Layer, ...]], float] = {}
        self._plain: dict[tuple[Layer, Tensor], dict[Axis, Axis]] = {}

    def dealing(self, dealt: Dealt, layers: tuple[Layer, ...]) -> Reads:
        """The same where clusters deal a class of axes of these layers among each other."""
        found = copy.copy(self)
        found.dealt, found.layers, found._copies = dealt, layers, {}
        found.__dict__.pop("gathered", None)
        return found

    def size(self, tensor: Tensor, extents: Extents) -> float:
        """Bytes of all of a tensor that one cluster has."""
        found = extents.sizes.get(tensor)
        if found is None:
            gathered = self.gathered.get(tensor, 1)
            found = math.prod([extents[axis] for axis in self.axes_of[tensor]]) * gathered * tensor.element_bits / 8
            extents.sizes[tensor] = found
        return found

    def copies(self, tensor: Tensor) -> float:
        """DRAM bytes of all clusters together, as a multiple of those of one: what all need is sent to all at once."""
        found = self._copies.get(tensor)
        if found is None:
            cut = [axis for axis in tensor.axes if axis in self.dealt.axes and tensor not in self.gathered]
            found = self._copies[tensor] = math.prod(axis.extent / self.dealt.share(axis) for axis in cut)
        return found

    def widening(self, tensor: Tensor) -> float:
        """How much wider sums of a tensor are that wait between passes; 1 of what is no sum."""
        maker = self.network.maker.get(tensor)
        is_sum = maker is not None and not maker.combine.keys() <= {*tensor.axes}
        bits = ELEMENTS[tensor.sums] if tensor.sums else self.sum_bits
        return max(1.0, bits / tensor.element_bits) if is_sum else 1.0

    def traffic(self, tensor: Tensor, extents: Extents) -> float:
        """DRAM bytes of all of a tensor, for all clusters."""
        return self.size(tensor, extents) * self.copies(tensor)

    @cached_property
    def gathered(self) -> dict[Tensor, int]:
        """Tensors that clusters make in shares and that some layer reads in whole."""
        return {
            read.tensor: self.dealt.clusters for layer in self.layers for read in self.of[layer]
            if read.axis in self.dealt.axes and not self._is_in_shares(layer, read)
        }  # fmt: skip

    def _is_in_shares(self, layer: Layer, read: AxisRead) -> bool:
        dealt = self.axes[layer] & self.dealt.axes
        return read.position is not None and any(read.position.moves(axis) for axis in dealt)

    def plain(self, layer: Layer, tensor: Tensor) -> dict[Axis, Axis]:
        """Axes of a layer that run through a tensor step by step, each with the tensor's axis."""
        key = layer, tensor
        if key not in self._plain:
            if tensor is layer.result:
                self._plain[key] = {axis: axis for axis in tensor.axes}
            else:
                found: dict[Axis, set[Axis | None]] = {}
                for read in self.of[layer]:
                    if read.tensor is tensor:
                        found.setdefault(read.axis, set()).add(_plain_axis(read))
                alone = {own: axes.pop() for own, axes in found.items() if len(axes) == 1}
                self._plain[key] = {axis: own for own, axis in alone.items() if axis is not None}
        return self._plain[key]

    def share(self, tensor: Tensor, layers: tuple[Layer, ...]) -> float:
        """How much of a tensor these layers read."""
        key = tensor, layers
        if key not in self._shares:
            self._shares[key] = float(self.network.read_share(tensor, layers))
        return self._shares[key]

    def least_share(self, tensor: Tensor, layers: tuple[Layer, ...]) -> float:
        """How much of a tensor these layers read, without what lies between the positions."""
        key = tensor, layers
        if key not in self._least_shares:
            seen = {axis: np.zeros(axis.extent, np.bool_) for axis in self.axes_of[tensor]}
            for layer in layers:
                for read in self.of[layer]:
                    if read.tensor is tensor:
                        at = read.position
                        seen[read.axis] |= True if at is None else at.seen(read.axis.extent, {})
            self._least_shares[key] = math.prod(float(each.mean()) for each in seen.values())
        return self._least_shares[key]

    def storage_of(self, layer: Layer) -> Tensor | None:
        """The operand whose storage the result may take."""
        if layer.storage_of is None:
            return None
        pieces = layer.operands[layer.storage_of].pieces
        return pieces[0].tensor if len(pieces) == 1 else None

    def along(self, read: AxisRead, axis: Axis, own: PassRanges) -> PassRanges | None:
        """What the read sees where its layer has these ranges of one axis and all of the others; None: the same in all
        passes."""
        position = read.position
        if position is None:
            return None
        if not position.moves(axis):
            return self._guarded(read, axis, own)
        if position.terms == ((axis, 1),) and position.is_linear and not position.offset:
            return own
        ranges: dict[Axis, Any] = {axis: (own.low, own.high)}
        low, high = position.hull(ranges)
        found = settled(np.maximum(low, 0), np.minimum(high, read.axis.extent))
        is_empty = own.low >= own.high
        if is_empty.any():
            found = PassRanges(np.where(is_empty, NOTHING, found.low), np.where(is_empty, -NOTHING, found.high))
        return found

    def _guarded(self, read: AxisRead, axis: Axis, own: PassRanges) -> PassRanges | None:
        """The same of a position that the axis does not move: it is read in passes in which a guard holds."""
        guard, position = read.guard_along(axis), read.position
        if guard is None or position is None:
            return None
        ranges: dict[Axis, Any] = {axis: (own.low, own.high)}
        low, high = guard.position.hull(ranges)
        is_read = (low < guard.stop) & (high > guard.start) & (own.low < own.high)
        first, last = position.hull({})
        return PassRanges(
            np.where(is_read, max(first, 0), NOTHING), np.where(is_read, min(last, read.axis.extent), -NOTHING)
        )


def _plain_axis(read: AxisRead) -> Axis | None:
    position = read.position
    if position is None or not position.is_linear or position.offset or len(position.terms) != 1:
        return None
    ((axis, step),) = position.terms
    return axis if step == 1 and not axis.is_tap and axis.extent == read.axis.extent else None


def _reads(layer: Layer) -> Iterable[AxisRead]:
    for operand in layer.operands:
        for piece in operand.pieces:
            if operand.is_all:
                yield from (AxisRead(piece.tensor, axis, None) for axis in piece.tensor.axes)
            else:
                for axis, position in piece.by_leaf:
                    own = None if position is None else position.refined()
                    yield AxisRead(piece.tensor, axis, own, tuple(_guards_of(operand, piece, axis, own)))


def _guards_of(operand: Operand, piece: Piece, axis: Axis, position: Affine | None) -> Iterable[Guard]:
    """Of one position along a tensor's axis the guards that say beside which other pieces it is read."""
    if position is None or position.terms:
        return
    others = (dict(other.by_leaf).get(axis) for other in operand.pieces if other.tensor is piece.tensor)
    moving = {own for other in others if other is not None for own, _ in other.refined().terms}
    for guard in piece.guards:
        if guard.fill is None and not moving.isdisjoint(own for own, _ in guard.position.refined().terms):
            yield guard
