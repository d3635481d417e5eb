"""A network as layers over named axes: what planner, reference executor and lowering know of an operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from frustum.dialects.axes.access import Affine, Link, Piece, link_of
from frustum.dialects.axes.axis import Axis, Dim, align, leaves, weights
from frustum.dialects.axes.tensor import Kind, Tensor

Ranges = Mapping[Axis, tuple[int, int]]
"""Half-open parts of axes; an axis without one has its whole extent."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Box = dict[Axis, tuple[int, int]]
"""Half-open ranges of a tensor's axes."""


class Combine(StrEnum):
    """How partial results along a reduced axis merge: added, the larger (or smaller), or rescaled to a running maximum,
    which only readers that sum over the same axis may see before the end."""

    SUM = "sum"
    MAX = "max"
    ONLINE = "online"


@dataclass(frozen=True)
class Operand:
    """What a layer reads: pieces at positions of the layer's axes; `is_all`: every position of the layer needs all, and
    the pieces are at positions of `dims`."""

    pieces: tuple[Piece, ...]
    is_all: bool = False
    dims: tuple[Dim, ...] = ()

    def links(self) -> Iterable[tuple[Tensor, dict[Axis, Link | None]]]:
        """Of each piece the link of every axis of its tensor; None: all of that axis is needed."""
        return self.settled_links if self.is_settled else self._find_links()

    def _find_links(self) -> Iterator[tuple[Tensor, dict[Axis, Link | None]]]:
        for piece in self.pieces:
            yield piece.tensor, {} if self.is_all else dict(_links(piece))

    @cached_property
    def settled_links(self) -> list[tuple[Tensor, dict[Axis, Link | None]]]:
        """`links` of a network whose axes are split no more."""
        return list(self._find_links())

    @property
    def is_settled(self) -> bool:
        return all(piece.is_settled for piece in self.pieces)


def _links(piece: Piece) -> Iterator[tuple[Axis, Link | None]]:
    for leaf, digit in piece.by_leaf:
        yield leaf, None if digit is None else link_of(digit)


@dataclass(eq=False)
class Layer:
    """A loop nest over axes with one result.

    `axes`: those of the result, then the reduced ones. `macs` and `passes` are multiply-accumulates and elementary
    operations of the vector unit for each point of all axes. `storage_of`: the operand whose storage the result may
    take. `domain`: points where one of these positions is negative are neither computed nor read.
    """

    name: str
    role: str
    result: Tensor
    operands: tuple[Operand, ...]
    reduced: dict[Axis, Combine]
    macs: int = 0
    passes: int = 0
    storage_of: int | None = None
    domain: tuple[Affine, ...] = ()
    source: object = field(default=None, repr=False)
    _settled: tuple[Dim, dict[Axis, Combine]] | None = field(default=None, init=False, repr=False)

    @property
    def combine(self) -> dict[Axis, Combine]:
        """The rule of every reduced leaf."""
        if self._settled is not None:
            return self._settled[1]
        return {leaf: rule for axis, rule in self.reduced.items() for leaf in axis.leaves}

    @property
    def axes(self) -> Dim:
        if self._settled is not None:
            return self._settled[0]
        return tuple(dict.fromkeys((*self.result.axes, *self.combine)))

    def settle(self) -> None:
        """No axis is split from now on."""
        self._settled = None
        self._settled = self.axes, self.combine
        for operand in self.operands:
            for piece in operand.pieces:
                piece.settle()

    @property
    def points(self) -> int:
        return math.prod(axis.extent for axis in self.axes)

    @property
    def can_be_cut(self) -> bool:
        """Whether a part of some axis needs a part of some operand, or makes a part of the result, alone."""
        return any(not axis.is_tap and self.allows(axis) for axis in self.axes)

    def allows(self, axis: Axis) -> bool:
        """Whether passes over the axis make parts: of the result, or that combine."""
        return not any(operand.is_all for operand in self.operands) and (
            axis in self.combine or axis in self.result.axes
        )

    def may_overwrite(self, tensor: Tensor) -> bool:
        """Whether every point of the result alone reads its position of the tensor, and so may take its place."""
        pieces = [(operand, piece) for operand in self.operands for piece in operand.pieces if piece.tensor is tensor]
        if not pieces or any(operand.is_all or piece.index != pieces[0][1].index for operand, piece in pieces):
            return False
        positions = [position and position.refined() for _, position in pieces[0][1].by_leaf]
        if any(each is None or not each.is_linear or len(each.terms) > 1 for each in positions):
            return False
        ends = [(axis.extent, own.hull({})) for axis, own in pieces[0][1].by_leaf if own is not None]
        if any(low < 0 or high > extent for extent, (low, high) in ends):  # what lies beyond has no place
            return False
        read = [axis for each in positions if each is not None for axis, _ in each.terms]
        moved = {axis for axis in self.result.axes if axis.extent > 1}
        return len({*read}) == len(read) and moved <= {*read} <= {*self.result.axes}

    def part(self, ranges: Ranges) -> list[list[tuple[Tensor, Box]]]:
        """Of each operand the boxes of tensors, of their leaves, that a part of the axes needs, clipped to the tensors.
        A box that is empty is left out."""
        return [
            [box for piece in operand.pieces if (box := box_of(piece, operand, ranges))]
            for operand in self.operands
        ]


def box_of(piece: Piece, operand: Operand, ranges: Ranges) -> tuple[Tensor, Box] | None:
    """The box of a tensor that a part of a layer's axes needs of one piece; None where that is nothing."""
    if operand.is_all:
        return piece.tensor, {axis: (0, axis.extent) for axis in piece.tensor.axes}
    for guard in piece.guards:
        low, high = guard.position.hull(ranges)
        if high <= guard.start or low >= guard.stop:
            return None
    box = {}
    for axis, position in piece.by_leaf:
        low, high = (0, axis.extent) if position is None else position.hull(ranges)
        box[axis] = max(low, 0), min(high, axis.extent)
    return (piece.tensor, box) if all(low < high for low, high in box.values()) else None


@dataclass
class AxisNetwork:
    """Layers in order, and the tensors that they make and read."""

    name: str
    layers: list[Layer]
    tensors: list[Tensor]

    def __post_init__(self) -> None:
        _settle(self.layers)
        for tensor in self.tensors:
            tensor.settle()
        for layer in self.layers:
            layer.settle()
        taken: dict[str, int] = {}
        for tensor in self.tensors:
            _name_apart(tensor.axes, tensor.name, taken)
        for layer in self.layers:
            _name_apart(layer.combine, layer.name, taken)

    @cached_property
    def maker(self) -> dict[Tensor, Layer]:
        return {layer.result: layer for layer in self.layers}

    @cached_property
    def readers(self) -> dict[Tensor, list[Layer]]:
        found: dict[Tensor, dict[Layer, None]] = {}
        for layer in self.layers:
            for operand in layer.operands:
                for piece in operand.pieces:
                    found.setdefault(piece.tensor, {})[layer] = None
        return {tensor: list(readers) for tensor, readers in found.items()}

    @property
    def compulsory_bytes(self) -> int:
        """Every input and weight as far as it is read, and every output that a layer makes, once."""
        read = (t for t in self.tensors if t.kind in (Kind.INPUT, Kind.WEIGHT) and t in self.readers)
        found = sum(self._needed_elements(t) * t.element_bits // 8 for t in read)
        return found + sum(t.size_bytes for t in self.maker if t.is_output)

    def _needed_elements(self, tensor: Tensor) -> int:
        return math.prod(int(each.sum()) for each in self._needed[tensor].values())

    @cached_property
    def _needed(self) -> dict[Tensor, dict[Axis, Mask]]:
        """Of every tensor the positions along each axis that outputs need, from the last layer back; again until
        nothing is new where layers read what later ones make."""
        needed: dict[Tensor, dict[Axis, Mask]] = {
            t: {axis: np.full(axis.extent, t.is_output) for axis in t.axes} for t in self.tensors
        }
        new = self._need(needed, None)
        while new and self._has_early_reads:
            new = self._need(needed, new)
        return needed

    @cached_property
    def _has_early_reads(self) -> bool:
        """Whether a layer reads its own result, or that of a later layer."""
        place = {layer: k for k, layer in enumerate(self.layers)}
        return any(
            place[reader] <= place[layer] for layer in self.layers for reader in self.readers.get(layer.result, [])
        )

    def _need(
        self, needed: dict[Tensor, dict[Axis, Mask]], new: dict[Tensor, set[Axis]] | None
    ) -> dict[Tensor, set[Axis]]:  # fmt: skip
        """Adds what layers read for what is needed of their results, where that is new along these axes (None: all);
        what is then new of results that were passed."""
        found: dict[Tensor, set[Axis]] = {}
        for layer in reversed(self.layers):
            made, moved = needed[layer.result], found.pop(layer.result, set())
            moved |= set() if new is None else new.get(layer.result, set())
            for operand in layer.operands if moved or new is None else ():
                for piece in operand.pieces:
                    for axis, position in piece.by_leaf:
                        if new is not None and (position is None or not any(map(position.moves, moved))):
                            continue
                        is_all = operand.is_all or position is None
                        seen = needed[piece.tensor][axis]
                        before = int(seen.sum())
                        seen |= True if is_all or position is None else position.seen(axis.extent, made)
                        if int(seen.sum()) > before:
                            found.setdefault(piece.tensor, set()).add(axis)
        return {tensor: axes for tensor, axes in found.items() if tensor in self.maker}

    def read_share(self, tensor: Tensor, layers: Iterable[Layer] | None = None) -> Fraction:
        """How much of a tensor lies in the smallest box around what these layers read of it; all, if none is named."""
        found: Box = {}
        for layer in self.readers.get(tensor, []) if layers is None else layers:
            for other, box in (each for boxes in layer.part({}) for each in boxes if each[0] is tensor):
                assert other is tensor
                for axis, (low, high) in box.items():
                    a, b = found.get(axis, (low, high))
                    found[axis] = min(a, low), max(b, high)
        return math.prod((Fraction(high - low, axis.extent) for axis, (low, high) in found.items()), start=Fraction(1))


def _name_apart(axes: Iterable[Axis], owner: str, taken: dict[str, int]) -> None:
    """Axes have the name of the first tensor or layer that has them before their own; numbered where it comes again."""
    for axis in axes:
        if not axis.is_named:
            name = f"{owner}.{axis.name}"
            count = taken[name] = taken.get(name, 0) + 1
            axis.name, axis.is_named = name if count == 1 else f"{name}#{count}", True


def _settle(layers: Iterable[Layer]) -> None:
    """Splits axes until every plain read pairs leaves with leaves."""
    pieces = [piece for layer in layers for operand in layer.operands for piece in operand.pieces]
    has_split = True
    while has_split:
        has_split = False
        for axis, position in (found for piece in pieces for found in piece.index):
            other = _whole(position.refined(), axis.extent)
            if other is None or len(axis.leaves) == len(leaves(other)):
                continue
            before = len(axis.leaves), len(leaves(other))
            align((axis,), other)
            has_split |= before != (len(axis.leaves), len(leaves(other)))


def _whole(position: Affine, extent: int) -> Dim | None:
    """The axes, outermost first, if the position runs over all of the extent in their order."""
    if not position.is_linear or position.offset:
        return None
    ordered = sorted(position.terms, key=lambda term: -term[1])
    axes = tuple(axis for axis, _ in ordered)
    is_dense = weights(axes) == dict(ordered)
    return axes if is_dense and math.prod(a.extent for a in axes) == extent else None
