"""The order in which the axes of a tensor lie in buffers: that of its dimensions, but for what readers see as one.

A reader that counts through several axes as through one (boxes of all rows and columns of a map side by side) moves by
any number of positions only where these axes lie one behind the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Bend, Piece, digits
from frustum.dialects.axes.axis import Axis, extent_of
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.passes.lower.tree.spans import NotLowered

Order = tuple[Axis, ...]


def orders_of(pieces: Iterable[Piece]) -> dict[Tensor, Order]:
    """Of tensors that pieces read through several axes as one, the order of their axes, outermost first."""
    runs: dict[Tensor, list[Order]] = {}
    for piece in pieces:
        if all(position is not None for _, position in piece.by_leaf):
            runs.setdefault(piece.tensor, []).extend(run for run, _ in runs_of(piece) if len(run) > 1)
    return {tensor: order_of(tensor.axes, own) for tensor, own in runs.items() if own}


def order_of(axes: Order, runs: Iterable[Order]) -> Order:
    """The axes with each run together, where its outermost axis is; a run that others do not leave together is left."""
    known, order = list[Order](), axes
    for run in runs:
        first = order.index(run[0])
        before = [axis for axis in order[:first] if axis not in run]
        behind = [axis for axis in order[first:] if axis not in run]
        tried = (*before, *run, *behind)
        if all(is_together(tried, other) for other in known):
            known.append(run)
            order = tried
    return order


def is_together(order: Order, run: Order) -> bool:
    first = order.index(run[0])
    return order[first : first + len(run)] == run


def runs_of(piece: Piece) -> Iterator[tuple[Order, Position]]:
    """Where the axes of a tensor are read: the parts of one, or all that are digits of one position, together,
    outermost first. NotLowered where nothing says it."""
    own = dict[Axis, Position]()
    for axis, position in piece.index:
        if axis.parts is not None and position.is_linear:
            yield axis.leaves, position.refined()
            continue
        for leaf, digit in digits((axis,), position):
            if digit is None:
                raise NotLowered(f"no position says what is read of {piece.tensor.name}")
            own[leaf] = digit.refined()
    while own:
        axis, position = min(own.items(), key=lambda item: item[1].divisor)
        run: Order = (axis,)
        weight = position.divisor
        del own[axis]
        while position.bend == "wrap" and position.extent == extent_of(run):
            weight *= run[0].extent
            outer = next((a for a, p in own.items() if is_digit(p, position, weight)), None)
            if outer is None:
                break
            last, run = own.pop(outer), (outer, *run)
            extent = extent_of(run) if last.bend else 0
            position = Position(position.terms, position.offset, position.divisor, last.bend, extent)
        yield run, position


def is_digit(outer: Position, inner: Position, weight: int) -> bool:
    """Whether a position counts how often another one has gone around `weight` of its steps."""
    return outer.terms == inner.terms and outer.offset == inner.offset and outer.divisor == weight


def steps_of(layer: Layer, order: Callable[[Tensor], Order]) -> dict[Axis, int]:
    """Of axes of a layer the multiples by which loops may move it, so that rounded positions move by whole ones."""
    found = dict[Axis, int]()
    for piece in (piece for operand in layer.operands for piece in operand.pieces):
        positions = [guard.position.refined() for guard in piece.guards]
        for run, position in runs_of(piece):
            parts = [(run, position)] if is_together(order(piece.tensor), run) else digits_of(run, position)
            positions += [each for _, each in parts]
        for position in positions:
            period = position.divisor * (position.extent if position.bend == "wrap" else 1)
            for axis, factor in position.terms:
                found[axis] = math.lcm(found.get(axis, 1), period // math.gcd(factor, period))
    return {axis: step for axis, step in found.items() if step > 1}


def digits_of(run: Order, position: Position) -> Iterator[tuple[Order, Position]]:
    """The axes of a run by themselves."""
    if position.is_linear and not position.bend:
        weight = extent_of(run)
        for axis in run:
            weight //= axis.extent
            digit = position.digit(weight, axis.extent, is_first=axis is run[0])
            if digit is None:
                raise NotLowered(f"no position says what is read along {axis.name}")
            yield (axis,), digit
        return
    divisor = position.divisor
    for axis in reversed(run):
        is_bent = axis is not run[0] or position.bend == "wrap"
        bend: Bend = "wrap" if is_bent else position.bend
        extent = axis.extent if is_bent else position.extent
        yield (axis,), Position(position.terms, position.offset, divisor, bend, extent)
        divisor *= axis.extent
