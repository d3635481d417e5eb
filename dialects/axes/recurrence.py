"""Recurrences: layers that read what they, or later layers, make at earlier positions of an axis.

A carried state is a window that reaches back, over a tensor that has a row for every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from frustum.dialects.axes.access import Affine
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor


@dataclass(frozen=True, eq=False)
class AxisRecurrence:
    """Layers of which every one needs what all others make at earlier positions of `axis`, in their order; `axis` None:
    there is no one axis.  `carried`: results of them that some layer reads at other positions than its own."""

    layers: tuple[Layer, ...]
    axis: Axis | None
    carried: frozenset[Tensor]


def earlier_along(layer: Layer, tensor: Tensor) -> Axis | None:
    """The axis along which all that a layer reads of a tensor lies before the layer's position; None: there is none."""
    found: set[Axis] | None = None
    for operand in layer.operands:
        for piece in operand.pieces:
            if piece.tensor is tensor:
                own = () if operand.is_all else piece.by_leaf
                before = {axis for axis, position in own if _is_earlier(layer, axis, position)}
                found = before if found is None else found & before
    return next((axis for axis in tensor.axes if axis in (found or ())), None)


def _is_earlier(layer: Layer, axis: Axis, position: Affine | None) -> bool:
    is_shifted = position is not None and position.is_linear and position.terms == ((axis, 1),)
    return is_shifted and position is not None and position.offset < 0 and axis in layer.axes


def is_at_own_position(layer: Layer, tensor: Tensor, axes: Iterable[Axis]) -> bool:
    """Whether every position of the layer reads just this position of a tensor along these axes."""
    axes = set(axes)
    for operand in layer.operands:
        for piece in operand.pieces:
            for axis, position in piece.by_leaf if piece.tensor is tensor else ():
                if axis in axes and (operand.is_all or position is None or not _is_plain(position)):
                    return False
    return True


def _is_plain(position: Affine) -> bool:
    is_one = position.is_linear and not position.offset and len(position.terms) == 1
    return is_one and position.terms[0][1] == 1


def recurrences_of(layers: Sequence[Layer]) -> list[AxisRecurrence]:
    """The recurrences of layers in their order, each with its layers in that order."""
    place = {layer: k for k, layer in enumerate(layers)}
    makers = {layer.result: layer for layer in layers}
    before: dict[Layer, set[Layer]] = {layer: set() for layer in layers}
    """Of each layer those whose results it needs."""
    early: list[tuple[Layer, Layer]] = []
    for layer in layers:
        for tensor in {piece.tensor for operand in layer.operands for piece in operand.pieces} & makers.keys():
            maker = makers[tensor]
            before[layer].add(maker)
            if place[maker] >= place[layer]:
                early.append((layer, maker))
    if not early:
        return []
    for reader, maker in early:  # what is read before it is made is made in step with its reader, in a cycle or not
        before[maker].add(reader)
    after: dict[Layer, set[Layer]] = {layer: set() for layer in layers}
    for layer, makers_of in before.items():
        for maker in makers_of:
            after[maker].add(layer)
    found, known = list[AxisRecurrence](), set[Layer]()
    for reader, _ in sorted(early, key=lambda pair: place[pair[0]]):
        if reader not in known:
            group = _reached(reader, before) & _reached(reader, after)
            known |= group
            found.append(_recurrence(sorted(group, key=place.__getitem__), early, layers))
    return found


def _recurrence(group: list[Layer], early: list[tuple[Layer, Layer]], layers: Sequence[Layer]) -> AxisRecurrence:
    axes = {earlier_along(reader, maker.result) for reader, maker in early if reader in group}
    axis = axes.pop() if len(axes) == 1 else None
    carried = {
        layer.result for layer in group for reader in layers
        if axis is not None and not is_at_own_position(reader, layer.result, (axis,))
    }  # fmt: skip
    return AxisRecurrence(tuple(group), axis, frozenset(carried))


def _reached(start: Layer, edges: Mapping[Layer, Iterable[Layer]]) -> set[Layer]:
    found, waiting = {start}, [start]
    while waiting:
        new = [layer for layer in edges[waiting.pop()] if layer not in found]
        found.update(new)
        waiting += new
    return found
