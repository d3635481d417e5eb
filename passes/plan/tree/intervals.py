# Tests: test/passes/plan/tree/test_search.py
"""Intervals of a network's layers: what they have outside, which classes may be looped over, and a key that equal
intervals share, wherever they are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.access import Affine
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, classes_of, why_not
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.recurrence import AxisRecurrence, is_at_own_position
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.plan.count import SLICE
from frustum.passes.plan.tree.spans import Extents, Ints, Reads

COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
"""Numbers of passes that are tried: about a quarter more each. 2026-11-28."""


@dataclass(frozen=True, eq=False)
class ClassCut:
    """A class of axes in candidate ranges: of the axis `reference` the pass from low to high, [candidates, passes]."""

    group: Class
    reference: Axis
    low: Ints
    high: Ints
    is_rolling: bool

    @property
    def passes(self) -> Ints:
        return (self.high > self.low).sum(axis=-1)


@dataclass(frozen=True)
class LayerInterval:
    """Layers [first, stop) of the order."""

    network: AxisNetwork
    reads: Reads
    layers: tuple[Layer, ...]

    @cached_property
    def touched(self) -> tuple[Tensor, ...]:
        return tuple(dict.fromkeys(t for layer in self.layers for t in self.reads.touched[layer]))

    @cached_property
    def makers(self) -> dict[Tensor, Layer]:
        return {layer.result: layer for layer in self.layers}

    @cached_property
    def outside(self) -> dict[Tensor, None]:
        """Tensors that others make or want, in their order."""
        inside = set(self.layers)
        return {
            t: None for t in self.touched
            if t not in self.makers or t.is_output or any(r not in inside for r in self.reads.users[t])
        }  # fmt: skip

    @cached_property
    def places(self) -> dict[Tensor, int]:
        """Of each tensor from outside its place among them."""
        return {tensor: k for k, tensor in enumerate(self.outside)}

    @cached_property
    def may_replace(self) -> NDArray[np.bool_]:
        """Of each tensor from outside whether it is made here and may lie where an operand of its maker lay."""
        return np.array([t in self.makers and self.makers[t].storage_of is not None for t in self.outside], np.bool_)

    @cached_property
    def at(self) -> Ints:
        """Of each tensor from outside its number in the network."""
        return np.array([self.reads.index[t] for t in self.outside], np.int64)

    @cached_property
    def is_made(self) -> NDArray[np.bool_]:
        """Of each tensor from outside whether it is made here."""
        return np.array([t in self.makers for t in self.outside], np.bool_)

    @cached_property
    def replacing(self) -> tuple[tuple[Tensor, Layer, Tensor], ...]:
        """Results that may lie where an operand lay, which no loop makes again: with their makers, and the operand."""
        found = ((new, maker, self.reads.storage_of(maker)) for new, maker in self.makers.items())
        return tuple((new, maker, old) for new, maker, old in found if old is not None and self.has_all(maker))

    def has_all(self, layer: Layer) -> bool:
        """Whether a layer has an axis of each class that may be looped over: else loops repeat it."""
        return not any(group.isdisjoint(self.reads.axes[layer]) for group, _ in self.classes)

    @cached_property
    def shares(self) -> dict[Tensor, float]:
        """Of each tensor from outside that is not made here how much of it is read here."""
        inside = set(self.layers)
        return {
            t: 1.0 if t in self.makers
            else self.reads.share(t, tuple(layer for layer in self.reads.users[t] if layer in inside))
            for t in self.touched
        }  # fmt: skip

    @cached_property
    def least_shares(self) -> dict[Tensor, float]:
        """`shares` without positions between those that are read: what no plan is below."""
        inside = set(self.layers)
        return {
            t: 1.0 if t in self.makers
            else self.reads.least_share(t, tuple(layer for layer in self.reads.users[t] if layer in inside))
            for t in self.touched
        }  # fmt: skip

    def beyond(self, other: LayerInterval) -> NDArray[np.bool_]:
        """Of each tensor from outside whether it is none from outside of another interval of the same order."""
        key = other.layers[0], len(other.layers)
        if key not in self._beyond:
            self._beyond[key] = np.array([t not in other.outside for t in self.outside], np.bool_)
        return self._beyond[key]

    @cached_property
    def _beyond(self) -> dict[tuple[Layer, int], NDArray[np.bool_]]:
        return {}

    @cached_property
    def is_connected(self) -> bool:
        """Whether every layer but the last has a reader inside: no loop else has what all of them share."""
        return len(self.lasting) <= 1

    def wait(self, tensor: Tensor) -> float:
        """What it costs to wait for a tensor that layers before have stored in DRAM; nothing for what is there."""
        is_stored = tensor in self.reads.network.maker and tensor in self.outside and tensor not in self.makers
        return self.reads.wait if is_stored else 0.0

    @cached_property
    def may_be_dealt(self) -> bool:
        """Whether each cluster can make its share of all layers without the others."""
        dealt = self.reads.dealt.axes
        return not any(dealt & self.reads.axes[layer] for layer in self.layers) or not why_not(dealt, self.layers)

    @cached_property
    def lasting(self) -> frozenset[Tensor]:
        """Results that no layer of the interval reads."""
        return frozenset(t for t in self.makers if not set(self.reads.users[t][1:]) & set(self.layers))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        own = (axis for layer in self.layers for axis in layer.axes if not axis.is_tap)
        return tuple(dict.fromkeys((*own, *(axis for t in self.touched for axis in t.axes))))

    @cached_property
    def classes(self) -> list[tuple[Class, bool]]:
        """Those that may be looped over, and whether windows move along each."""
        found = []
        for group in classes_of(self.layers):
            if not why_not(group, self.layers) and self.keeps_states_apart(group):
                found.append((group, self.is_windowed(group)))
        return found

    @cached_property
    def scalable(self) -> list[Class]:
        """Classes of which every pass of a loop around several units has one tile, of layers and of all that they read:
        no windows, and no tensor with an axis of the class that is read along another one, as keys are."""
        return [
            group for group, is_windowed in self.classes
            if not is_windowed and all(
                read.position is not None and any(read.position.moves(axis) for axis in self.reads.axes[layer] & group)
                for layer in self.layers for read in self.reads.of[layer] if read.axis in group
            )
        ]  # fmt: skip

    # ------------------------------------------------------------ states that are carried

    @cached_property
    def recurrences(self) -> list[AxisRecurrence]:
        """Those of which layers are inside."""
        return [each for each in self.reads.recurrences if not set(self.layers).isdisjoint(each.layers)]

    @cached_property
    def cuts_a_recurrence(self) -> bool:
        """Whether a step of what is inside needs, of itself, what is outside."""
        return any(not set(self.layers).issuperset(each.layers) for each in self.recurrences)

    @cached_property
    def carried(self) -> frozenset[Tensor]:
        """Results that later steps read."""
        return frozenset(tensor for each in self.recurrences for tensor in each.carried)

    @cached_property
    def in_step(self) -> frozenset[Layer]:
        """Layers that make one position in each pass over their steps."""
        return frozenset(layer for each in self.recurrences for layer in each.layers)

    @cached_property
    def steps(self) -> Class | None:
        """The class of the one axis along which all states are carried; None: there are none, or no loop makes their
        steps."""
        along = {each.axis for each in self.recurrences}
        groups = (group for group, _ in self.classes if along and along <= group)
        return next((group for group in groups if len({axis.extent for axis in along if axis}) == 1), None)

    @cached_property
    def may_be_nest(self) -> bool:
        """Whether one nest may have all layers."""
        return not self.recurrences or (not self.cuts_a_recurrence and self.steps is not None)

    def keeps_states_apart(self, group: Class) -> bool:
        """Whether no state is carried from one pass over a class to another one, but along its own axis."""
        return all(
            each.axis in group or is_at_own_position(layer, tensor, group)
            for each in self.recurrences for layer in each.layers for tensor in each.carried
        )  # fmt: skip

    def is_windowed(self, group: Class) -> bool:
        return any(
            read.position is not None and any(read.position.moves(axis) for axis in self.reads.axes[layer] & group)
            and (read.tensor is layer.result or read.axis not in self.reads.plain(layer, read.tensor).values())
            for layer in self.layers for read in self.reads.of[layer]
        )  # fmt: skip

    @cached_property
    def numbers(self) -> dict[Tensor, int]:
        return {tensor: k for k, tensor in enumerate(self.touched)}

    def reference(self, group: Class) -> Axis:
        """The axis that a loop over the class names: along which states are carried, or of the last layer that has
        one."""
        if group is self.steps:
            return next(each.axis for each in self.recurrences if each.axis is not None)
        return next(axis for layer in reversed(self.layers) for axis in self.reads.axes[layer] & group)


class IntervalKeys:
    """Keys of intervals: equal where layers, axes and tensors are equal up to their names."""

    reads: Reads
    layers: tuple[Layer, ...]
    numbers: dict[object, int]

    def __init__(self, reads: Reads, layers: tuple[Layer, ...], numbers: dict[object, int]) -> None:
        self.reads, self.layers, self.numbers = reads, layers, numbers
        self._from: dict[int, _Rows] = {}

    def of(self, first: int, own: LayerInterval, extents: Extents) -> int:
        """The number of an interval that begins so, where axes have these extents."""
        rows = self._from.setdefault(first, _Rows())
        while len(rows.prefix) < len(own.layers):
            layer = self.layers[first + len(rows.prefix)]
            rows.prefix.append(self.number((*rows.prefix[-1:], self._row(layer, rows))))
            rows.seen.append((len(rows.axes), len(rows.tensors)))
        length = len(own.layers)
        if length not in rows.keys:
            axes, tensors = rows.seen[length - 1]
            outside = tuple(tensor in own.outside for tensor in itertools.islice(rows.tensors, tensors))
            known = tuple(axis for axis in itertools.islice(rows.axes, axes) if axis in extents)
            rows.keys[length] = self.number((rows.prefix[length - 1], outside)), known
        number, known = rows.keys[length]
        return self.number((number, *map(extents.__getitem__, known)))

    def number(self, key: tuple[object, ...]) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _row(self, layer: Layer, rows: _Rows) -> tuple[object, ...]:
        axes, tensors = rows.axes, rows.tensors
        dealt, gathered = self.reads.dealt, self.reads.gathered

        def at(axis: Axis) -> object:
            known = len(axes)
            number = axes.setdefault(axis, known)
            return number if number < known else (number, axis.extent, axis.is_tap, axis in dealt.axes)

        def of(tensor: Tensor) -> object:
            known = len(tensors)
            number = tensors.setdefault(tensor, known)
            is_weight = tensor.kind is Kind.WEIGHT
            kind = tensor.element_bits, is_weight, tensor.is_output, gathered.get(tensor, 1)
            return number if number < known else (number, *kind)

        def where(position: Affine | None) -> object:
            if position is None:
                return None
            terms = tuple((at(axis), c) for axis, c in position.refined().terms)
            return terms, position.offset, position.divisor, position.bend, position.extent

        reads = tuple((of(read.tensor), at(read.axis), where(read.position)) for read in self.reads.of[layer])
        guards = tuple(
            (where(guard.position), guard.start, guard.stop)
            for operand in layer.operands for piece in operand.pieces for guard in piece.guards
        )  # fmt: skip
        reduced = tuple((at(axis), str(rule)) for axis, rule in layer.combine.items())
        result = of(layer.result), tuple(at(axis) for axis in layer.result.axes)
        touched = tuple(of(tensor) for tensor in self.reads.touched[layer])  # scalars have no axes to read along
        return (
            reads, guards, reduced, result, touched, layer.macs, layer.passes, layer.storage_of,
            tuple(where(position) for position in layer.domain),
        )  # fmt: skip


@dataclass
class _Rows:
    """Layers from one on, with the numbers of the axes and tensors that they name."""

    axes: dict[Axis, int] = field(default_factory=dict)
    tensors: dict[Tensor, int] = field(default_factory=dict)
    prefix: list[int] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)
    keys: dict[int, tuple[int, tuple[Axis, ...]]] = field(default_factory=dict)
    """Of so many layers the number of their rows and of what is outside, and their axes."""


def cuts_apart(reads: Reads) -> frozenset[int]:
    """Places in the order of layers at which units may end.

    Not inside of what carries states, nor inside of layers without sums that read each other place by place: as one
    they take no more room, and bytes move less.
    """
    layers = reads.network.layers
    place = {layer: k for k, layer in enumerate(layers)}
    joined = {
        k for each in reads.recurrences for k in range(place[each.layers[0]] + 1, place[each.layers[-1]] + 1)
    }  # fmt: skip
    first = 0
    while first < len(layers):
        stop = _without_sums(reads, place, first)
        joined.update(range(first + 1, stop))
        first = stop
    return frozenset(range(1, len(layers) + 1)) - joined


def _without_sums(reads: Reads, place: Mapping[Layer, int], first: int) -> int:
    """Where the longest group from this layer on ends, of layers without sums: what they make they alone read, but for
    the last one's result; and of what others make they read, place by place, only what the first one reads."""
    layers, stop = reads.network.layers, first + 1
    inside, waiting = {t for t in reads.touched[layers[first]] if t in reads.network.maker}, set[Tensor]()
    for k, layer in enumerate(layers[first:], first):
        made = {t for t in reads.touched[layer] if t in reads.network.maker and t is not layer.result}
        is_in_place = k == first or (made <= inside and all(_is_in_place(reads, layer, t) for t in made))
        if layer.combine or not is_in_place:
            break
        inside.add(layer.result)
        waiting.add(layer.result)
        waiting = {t for t in waiting if t.is_output or any(place[user] > k for user in reads.users[t])}
        if waiting <= {layer.result}:
            stop = k + 1
    return stop


def _is_in_place(reads: Reads, layer: Layer, tensor: Tensor) -> bool:
    """Whether a layer reads of a tensor, of elements as wide as its own, the place that it makes."""
    axes, result = reads.plain(layer, tensor), layer.result
    is_alike = len(tensor.axes) == len(result.axes) and result.element_bits <= tensor.element_bits
    return is_alike and all(axis in axes for axis in result.axes)


def is_inner_sum(layer: Layer, axis: Axis) -> bool:
    """Whether a product sums over the axis inside of two others: of one alone a piece may have one position."""
    own = [each for each in layer.combine if not each.is_tap and each not in layer.result.axes]
    return layer.macs > 0 and axis in own[2:]


def steps_of(interval: LayerInterval, group: Class, extents: Extents, most: int) -> list[int]:
    """Candidate steps along a class's reference axis, from the largest: along axes of weights, and of sums of products,
    multiples of channels or lines of a matrix unit; inside of two other sums of a product those that leave no rest:
    an instruction counts through all of them as one dimension."""
    if group is interval.steps:
        return [1]
    extent = extents[interval.reference(group)]
    of_weights = any(axis in group for t in interval.touched if t.kind is Kind.WEIGHT for axis in t.axes)
    is_summed = any(axis in group for layer in interval.layers if layer.macs for axis in layer.combine)
    grain = SLICE if (of_weights or is_summed) and extent > SLICE else 1
    is_inner = any(is_inner_sum(layer, axis) for layer in interval.layers for axis in layer.combine if axis in group)
    grain = math.lcm(1 if is_inner else grain, finer(interval, group, extents))
    found: dict[int, None] = {}
    for count in (*COUNTS, extent):
        if count <= extent:
            found[min(extent, -(-extent // (count * grain)) * grain)] = None
    steps = [step for step in found if step < extent and not (is_inner and extent % step)]
    if len(steps) > most:  # a few passes decide most; of the many, some
        few = steps[: most // 2]
        rest = steps[most // 2 :]
        left = most - len(few)
        steps = few + [rest[round(k * (len(rest) - 1) / (left - 1))] for k in range(left)]
    return list(dict.fromkeys(steps))


def finer(interval: LayerInterval, group: Class, extents: Extents) -> int:
    """Positions along a class's reference axis for one of the layers that have the fewest: a step of these is whole
    positions of all layers.  1 where that would leave one pass."""
    extent = extents[interval.reference(group)]
    own = {extents[axis] for layer in interval.layers for axis in interval.reads.axes[layer] & group}
    found = math.lcm(*(extent // each for each in own if each < extent and extent % each == 0))
    return found if 2 * found <= extent else 1


def cut_of(
    interval: LayerInterval, group: Class, steps: Sequence[int], extents: Extents, *, is_rolling: bool
) -> ClassCut:  # fmt: skip
    """A class in ranges of each of these steps; fewer passes than the most have empty ones at their end."""
    axis = interval.reference(group)
    extent = extents[axis]
    first = np.arange(-(-extent // min(steps)))[None, :] * np.array(steps)[:, None]
    low, high = np.minimum(first, extent), np.minimum(first + np.array(steps)[:, None], extent)
    return ClassCut(group, axis, low, high, is_rolling)
