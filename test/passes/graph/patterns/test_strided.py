"""What moves leave of a tensor is what numpy says they do."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net

from frustum.dialects import graph as g
from frustum.passes.graph.patterns.strided import Strided, count, place_of, regrouped
from frustum.passes.weights import WeightStore


def elements(seen):
    """The positions in the tensor, by axes."""
    total = np.array(seen.offset)
    for axis in seen.axes:
        total = total[..., np.newaxis] + np.array([place_of(axis, i) for i in range(count(axis))])
    return total


def random_move(rng, net, x):
    """A reshape, a transposition, a slice or a repetition."""
    shape = g.shape_of(x)
    kind = rng.integers(4)
    if kind == 0:
        whole = int(np.prod(shape))
        first = int(rng.choice([n for n in range(1, whole + 1) if whole % n == 0]))
        second = int(rng.choice([n for n in range(1, whole // first + 1) if whole // first % n == 0]))
        return net.layer(g.ReshapeOp(x, (first, second, whole // first // second)))
    if kind == 1:
        return net.layer(g.TransposeOp(x, tuple(int(i) for i in rng.permutation(len(shape)))))
    if kind == 2:
        steps = [int(rng.integers(1, 3)) for _ in shape]
        sizes = [int(rng.integers(1, n // step + 1)) if n >= step else 1 for n, step in zip(shape, steps, strict=True)]
        starts = [int(rng.integers(n - (m - 1) * s)) for n, m, s in zip(shape, sizes, steps, strict=True)]
        return net.layer(g.SliceOp(x, tuple(starts), tuple(sizes), tuple(steps)))
    ones = net.store.add("ones", np.ones((2, *(1 if n > 1 else 3 for n in shape)), np.float32))
    weight = net.layer(g.WeightOp(ones, g.tensor_type(g.tensor_of(x).element_type, net.store[ones].shape)))
    return net.binary("mul", x, weight)


def applied(op, array):
    match op:
        case g.ReshapeOp():
            return array.reshape(g.shape_of(op.result))
        case g.TransposeOp():
            return array.transpose(op.perm)
        case g.SliceOp():
            parts = zip(op.starts, g.shape_of(op.result), op.steps, strict=True)
            return array[tuple(slice(start, start + (n - 1) * step + 1, step) for start, n, step in parts)]
        case _:
            return np.broadcast_to(array, g.shape_of(op.result))


@pytest.mark.slow
def test_chains_of_moves():
    rng = np.random.default_rng(3)
    lengths = []
    for _ in range(200):
        net = Net()
        x = net.input(*(int(n) for n in rng.integers(1, 7, 3)))
        seen = Strided.whole(g.shape_of(x))
        array = np.arange(np.prod(g.shape_of(x))).reshape(g.shape_of(x))
        length = 0
        while length < 6:
            x = random_move(rng, net, x)
            seen, array = seen.after(x.owner, net.store), applied(x.owner, array)
            if seen is None:
                break
            np.testing.assert_array_equal(elements(seen), array)
            length += 1
        lengths.append(length)
    assert np.mean(lengths) > 3, "most moves have strides"


@pytest.mark.parametrize(
    ("digits", "shape", "axes"),
    [
        (((6, 1),), (2, 3), (((2, 3),), ((3, 1),))),
        (((2, 3), (3, 1)), (6,), (((6, 1),),)),  # digits that follow each other are one
        (((2, 10), (3, 0)), (6,), (((2, 10), (3, 0)),)),
        (((4, 7), (3, 1)), (6, 2), None),
        (((4, 7), (3, 1)), (2, 6), (((2, 14),), ((2, 7), (3, 1)))),
        (((4, 1),), (2, 3), None),
    ],
)
def test_axes_of_other_extents(digits, shape, axes):
    assert regrouped(digits, shape) == axes


def test_a_layer_that_computes_is_no_move():
    net = Net()
    y = net.unary("relu", net.input(2, 3))
    assert Strided.whole((2, 3)).after(y.owner, WeightStore()) is None
