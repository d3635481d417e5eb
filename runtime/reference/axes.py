# Tests: test/dialects/graph/axes/test_axes.py
"""Elements of views and operands, gathered from the tensors that they are of: what access relations mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from frustum.dialects.axes.access import Affine, Piece, View
from frustum.dialects.axes.axis import Axis, leaves, weights
from frustum.dialects.axes.network import Ranges
from frustum.dialects.axes.tensor import Tensor
from frustum.runtime.kernels import Array


def gathered(
    pieces: Sequence[Piece],
    axes: Sequence[Axis],
    arrays: Mapping[Tensor, Array],
    ranges: Ranges | None = None,
) -> Array:
    """Elements at every position of these leaves, one dimension for each. `arrays`: whole tensors, in their dimensions.

    Raises AssertionError where a position has no element, or two pieces have one.
    """
    places = _places(axes, ranges or {})
    shape = tuple(stop - start for start, stop in ((ranges or {}).get(a, (0, a.extent)) for a in axes))
    result = np.zeros(shape, np.result_type(*(arrays[piece.tensor].dtype for piece in pieces)))
    elements, is_known = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for piece in pieces:
        open_, value = np.ones(shape, bool), np.zeros(shape, result.dtype)
        mine = np.ones(shape, bool)
        for guard in piece.guards:
            position = _position(guard.position, places)
            outside = open_ & ~((position >= guard.start) & (position < guard.stop))
            if guard.fill is None:
                mine &= ~outside
            else:
                value[outside] = guard.fill
            open_ &= ~outside
        flat = _flat(piece, places)
        value[open_] = arrays[piece.tensor].reshape(-1)[np.broadcast_to(flat, shape)[open_]]
        result[mine] = value[mine]
        elements += mine & open_
        is_known |= mine
    assert is_known.all() and elements.max(initial=0) <= 1, "every position has one element, or a fill"
    return result


def _flat(piece: Piece, places: Mapping[Axis, Array]) -> Array:
    """Numbers of elements in the dense tensor."""
    steps, index = weights(piece.tensor.axes), dict(piece.index)
    total: Array = np.asarray(0)
    for axis, position in index.items():
        total = total + steps[axis.leaves[-1]] * _position(position, places)
    return total


def _places(axes: Sequence[Axis], ranges: Ranges) -> dict[Axis, Array]:
    found = {}
    for k, axis in enumerate(axes):
        start, stop = ranges.get(axis, (0, axis.extent))
        found[axis] = np.arange(start, stop).reshape([-1 if k == j else 1 for j in range(len(axes))])
    return found


def _position(position: Affine, places: Mapping[Axis, Array]) -> Array:
    total: Array = np.asarray(position.offset)
    for axis, coefficient in position.refined().terms:
        total = total + coefficient * places[axis]
    total = total // position.divisor
    last = position.extent - 1
    match position.bend:
        case "wrap":
            return total % position.extent
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
