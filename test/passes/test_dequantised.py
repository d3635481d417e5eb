"""Constants that are integers with scales: what becomes of both when elements are moved, and their bytes in a file."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import f32

from frustum.dialects import graph as g
from frustum.dialects.graph import tensor_type
from frustum.passes.dequantised import Dequantised, joined, note, stored_bytes
from frustum.passes.weights import WeightStore


@st.composite
def constants(draw, shape=None):
    shape = shape or tuple(draw(st.integers(1, 9)) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(0, len(shape) - 1))
    form = draw(st.sampled_from(["one", "channel", "block"]))
    block = draw(st.integers(1, 5)) if form == "block" else 0
    own = () if form == "one" else (shape[axis],)
    if block:
        own = tuple(-(-n // block) if d == axis else n for d, n in enumerate(shape))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = rng.standard_normal(own).astype(draw(st.sampled_from(["f2", "f4"])))
    zeros = rng.integers(-8, 8, own if draw(st.booleans()) else 1)
    if form == "one":
        scales, zeros, block, axis = scales.reshape(-1), zeros.reshape(-1), 0, 0
    return Dequantised(rng.integers(-8, 8, shape).astype(np.int8), scales, zeros, axis, 4, block)


def by_hand(known):
    """Element by element, as ONNX says."""
    found = np.empty(known.integers.shape, known.scales.dtype)
    for place in np.ndindex(*known.integers.shape):
        own = [n // known.block if d == known.axis else n for d, n in enumerate(place)] if known.block else None
        scale, zero = (
            each.reshape(-1)[0] if each.size == 1 else each[tuple(own)] if own else each[place[known.axis]]
            for each in (known.scales, known.zeros)
        )
        found[place] = np.float32(int(known.integers[place]) - int(zero)) * np.float32(scale)
    return found


@given(constants())
@settings(max_examples=40, deadline=None)
def test_values_are_those_of_the_formula(known):
    np.testing.assert_array_equal(known.values, by_hand(known))
    chosen = known.scales.reshape(-1)[known.numbers]
    np.testing.assert_array_equal(np.broadcast_to(known.spread(known.scales), chosen.shape), chosen)


@given(constants(), st.data())
@settings(max_examples=60, deadline=None)
def test_moved_elements_keep_their_numbers(known, data):
    order = data.draw(st.permutations(range(known.integers.ndim)))
    np.testing.assert_array_equal(known.turned(order).values, known.values.transpose(order))
    axis = data.draw(st.integers(0, known.integers.ndim - 1))
    extent = known.integers.shape[axis]
    first = data.draw(st.integers(0, extent - 1))
    run = range(first, data.draw(st.integers(first + 1, extent)))
    some = data.draw(st.lists(st.integers(0, extent - 1), min_size=1, max_size=8))
    for positions in (run, some):
        np.testing.assert_array_equal(known.taken(axis, positions).values, known.values.take(list(positions), axis))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_parts_behind_each_other(data):
    shape = (data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)))
    parts = [data.draw(constants(shape)) for _ in range(2)]
    axis = data.draw(st.integers(0, 1))
    found = joined(parts, axis)
    if found is not None:
        np.testing.assert_array_equal(found.values, np.concatenate([each.values for each in parts], axis))


def test_parts_of_blocks_are_joined():
    scales = np.arange(1, 5, dtype=np.float32).reshape(2, 2)
    part = Dequantised(np.ones((6, 2), np.int8), scales, np.zeros(1, np.int64), 0, 4, 4)
    found = joined([part, part], 0)
    assert found is not None and found.block == 2
    np.testing.assert_array_equal(found.values[:, 0], [1, 1, 1, 1, 3, 3] * 2)


@pytest.mark.parametrize(
    "shape, is_known", [((4, 6, 1, 1), True), ((1, 4, 6), True), ((24,), False), ((2, 2, 6), True)]
)
def test_a_reshape_keeps_scales_whose_axis_stays(shape, is_known):
    scales = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    known = Dequantised(np.arange(24, dtype=np.int8).reshape(4, 6), scales, np.zeros(1, np.int64), 1, 8, 3)
    found = known.reshaped(shape)
    assert (found is not None) == is_known
    if found is not None:
        np.testing.assert_array_equal(found.values, known.values.reshape(shape))


def test_bytes_are_those_of_the_file():
    store, q = WeightStore(), np.zeros((64, 10), np.int8)
    op = g.WeightOp("w", tensor_type(f32, q.shape))
    assert stored_bytes(op, store) is None
    note(op, store, "w", Dequantised(q, np.ones((2, 10), np.float16), np.zeros(1, np.int64), 0, 4, 32))
    assert stored_bytes(op, store) == 320 + 40
    note(op, store, "w", Dequantised(q, np.ones((2, 10), np.float16), np.zeros((2, 10), np.int64), 0, 4, 32))
    assert stored_bytes(op, store) == 320 + 40 + 10
    half = np.zeros(q.shape, bool)
    half[:32, :5] = True
    assert stored_bytes(op, store, half) == 80 + 10 + 3
    note(op, store, "w", Dequantised(q.astype(np.int32), np.ones(10, np.float32), np.zeros(1, np.int64), 1, 32))
    assert stored_bytes(op, store) is None
