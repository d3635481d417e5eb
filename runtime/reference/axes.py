# Tests: test/dialects/graph/axes/test_axes.py
"""Elements of views and operands, gathered from the tensors that they are of: what access relations mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from frustum.dialects.axes.access import Affine, Piece, View
from frustum.dialects.axes.axis import Axis, leaves, weights
from frustum.dialects.axes.network import Ranges
from frustum.dialects.axes.tensor import Tensor
from frustum.runtime.kernels import Array

Fetch = Callable[[Tensor, Array], Array]
"""Elements of a tensor by their numbers in its dense form."""


def gathered(
    pieces: Sequence[Piece],
    axes: Sequence[Axis],
    arrays: Mapping[Tensor, Array] | Fetch,
    ranges: Ranges | None = None,
) -> Array:
    """Elements at every position of these leaves, one dimension for each. `arrays`: whole tensors, in their dimensions,
    or what gives their elements, as f64.

    Raises AssertionError where a position has no element, or two pieces have one.
    """
    places = places_of(axes, ranges or {})
    shape = tuple(stop - start for start, stop in ((ranges or {}).get(a, (0, a.extent)) for a in axes))
    if isinstance(arrays, Mapping):
        whole = arrays
        kind = np.result_type(*(whole[piece.tensor].dtype for piece in pieces))
        fetch: Fetch = lambda tensor, flat: whole[tensor].reshape(-1)[flat]  # noqa: E731
    else:
        fetch, kind = arrays, np.dtype(np.float64)
    result = np.zeros(shape, kind)
    elements, is_known = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for piece in pieces:
        open_, value = np.ones(shape, bool), np.zeros(shape, result.dtype)
        mine = np.ones(shape, bool)
        for guard in piece.guards:
            at = position(guard.position, places)
            outside = open_ & ~((at >= guard.start) & (at < guard.stop))
            if guard.fill is None:
                mine &= ~outside
            else:
                value[outside] = guard.fill
            open_ &= ~outside
        if open_.any():
            value[open_] = fetch(piece.tensor, np.broadcast_to(_flat(piece, places), shape)[open_])
        result[mine] = value[mine]
        elements += mine & open_
        is_known |= mine
    assert is_known.all() and elements.max(initial=0) <= 1, "every position has one element, or a fill"
    return result


def axes_of(pieces: Sequence[Piece], axes: Sequence[Axis]) -> list[Axis]:
    """Those of the axes on which it depends what is read."""
    positions = [p for piece in pieces for _, p in piece.index]
    positions += [guard.position for piece in pieces for guard in piece.guards]
    moving = {axis for each in positions for axis, _ in each.refined().terms}
    return [axis for axis in axes if axis in moving]


def _flat(piece: Piece, places: Mapping[Axis, Array]) -> Array:
    """Numbers of elements in the dense tensor."""
    steps, index = weights(piece.tensor.axes), dict(piece.index)
    total: Array = np.asarray(0)
    for axis, own in index.items():
        total = total + steps[axis.leaves[-1]] * position(own, places)
    return total


def places_of(axes: Sequence[Axis], ranges: Ranges) -> dict[Axis, Array]:
    """The positions of each axis, as a dimension of its own."""
    found = {}
    for k, axis in enumerate(axes):
        start, stop = ranges.get(axis, (0, axis.extent))
        found[axis] = np.arange(start, stop).reshape([-1 if k == j else 1 for j in range(len(axes))])
    return found


def position(affine: Affine, places: Mapping[Axis, Array]) -> Array:
    """Where an affine position is at all places of the axes."""
    total: Array = np.asarray(affine.offset)
    for axis, coefficient in affine.refined().terms:
        total = total + coefficient * places[axis]
    total = total // affine.divisor
    last = affine.extent - 1
    match affine.bend:
        case "wrap":
            return total % affine.extent
        case "edge":
            return np.clip(total, 0, last)
        case "reflect":
            return last - abs(last - abs(total))
        case _:
            return total


def view_array(view: View, arrays: Mapping[Tensor, Array]) -> Array:
    """All elements of a view, in its dimensions."""
    axes = leaves(axis for own in view.dims for axis in own)
    return gathered(view.pieces, axes, arrays).reshape(view.shape)
