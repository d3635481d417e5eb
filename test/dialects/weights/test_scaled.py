"""Blocks of integers with scales: what they stand for, against the text of the format read bit by bit."""

import ml_dtypes
import numpy as np
import plain_codec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.dialects.weights import scaled
from frustum.dialects.weights.codec import CodecError
from frustum.dialects.weights.scaled import weights_in

ELEMENTS = ("f2", "f4", ml_dtypes.bfloat16)


@st.composite
def pieces(draw):
    """A piece cut from somewhere in a tensor with scales in runs along one axis, shared or single along others."""
    bits = draw(st.sampled_from(scaled.BITS))
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    extents = tuple(draw(st.integers(1, 7)) for _ in range(4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    number, step = np.zeros(extents, np.int64), 1
    axis, run = draw(st.integers(0, 3)), draw(st.integers(2, 9))
    for d in range(4):
        way = draw(st.sampled_from(["shared", "each"])) if d != axis else draw(st.sampled_from(["each", "runs"]))
        place = np.arange(extents[d]) * (way != "shared")
        place = (place + draw(st.integers(0, 8))) // run if way == "runs" else place
        number = number + (place * step).reshape([-1 if k == d else 1 for k in range(4)])
        step *= int(place.max()) + 1
    scales = rng.standard_normal(step).astype(draw(st.sampled_from(ELEMENTS)))
    zeros = draw(st.sampled_from([None, np.full(1, low), rng.integers(low, high + 1, step)]))
    q = rng.integers(low, high + 1, extents)
    return scaled.ScaledPiece(q, number, draw(st.sampled_from([scales, scales, scales, None])), zeros, bits)


def own(piece):
    """The numbers, by the formula of ONNX."""
    zeros = 0 if piece.zeros is None else piece.zeros[piece.number] if piece.zeros.size > 1 else piece.zeros[0]
    shifted = piece.integers - zeros
    if piece.scales is None:
        return shifted
    return (shifted.astype(np.float32) * piece.scales.astype(np.float32)[piece.number]).astype(piece.scales.dtype)


@given(pieces(), st.sampled_from(ELEMENTS), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_a_block_stands_for_what_dequantising_gives(piece, element, more):
    element = np.dtype(element)
    with np.errstate(over="ignore"):
        agree(piece, element, more)


def agree(piece, element, more):
    block = scaled.pack(piece, element.itemsize)
    found = weights_in(np.concatenate([block, np.zeros(more, np.uint8)]), piece.integers.shape, element)
    np.testing.assert_array_equal(found, own(piece).astype(element))
    read = plain_codec.scaled(block.tolist(), piece.integers.shape)
    np.testing.assert_array_equal(np.array(read).astype(element).reshape(found.shape), found)


def test_bytes_of_a_piece_are_its_integers_and_a_scale_for_each_run():
    q = np.arange(64 * 8).reshape(8, 64, 1, 1) % 16 - 8
    number = np.broadcast_to((np.arange(64) // 32)[:, None, None] + 2 * np.arange(8)[:, None, None, None], q.shape)
    scales = np.arange(1, 17, dtype=np.float16)
    assert len(scaled.pack(scaled.ScaledPiece(q, number, scales, None, 4), 2)) == 8 + 16 * 2 + 64 * 8 // 2
    zeros = np.arange(16) - 8
    assert len(scaled.pack(scaled.ScaledPiece(q, number, scales, zeros, 4), 2)) == 8 + 16 * 2 + 8 + 64 * 8 // 2


def test_a_piece_may_begin_inside_a_run():
    q = np.arange(50).reshape(1, 50, 1, 1) % 16 - 8
    number = ((np.arange(50) + 20) // 32).reshape(q.shape)
    layout = scaled.layout_of(number)
    assert layout.runs == (0, 32, 0, 0) and layout.phase == 20
    block = scaled.pack(scaled.ScaledPiece(q, number, np.array([2, 3, 4], np.float32), None, 4), 4)
    assert len(block) == 8 + 3 * 4 + 25
    np.testing.assert_array_equal(weights_in(block, q.shape, np.dtype("f4")), q * np.array([2, 3, 4])[number])


@pytest.mark.parametrize("at, byte", [(1, 4), (2, 0x4C), (2, 0x0C), (3, 3), (3, 0b1010), (4, 1), (6, 40)])
def test_a_damaged_header_is_named(at, byte):
    q = np.zeros((2, 64, 1, 1), np.int64)
    number = np.broadcast_to((np.arange(64) // 32)[:, None, None], q.shape)
    block = scaled.pack(scaled.ScaledPiece(q, number, np.ones(2, np.float16), None, 4), 2)
    weights_in(block, q.shape, np.dtype("f2"))
    block[at] = byte
    with pytest.raises(CodecError, match="a header of integers with scales"):
        weights_in(block, q.shape, np.dtype("f2"))


def test_a_block_that_ends_early_is_named():
    q = np.zeros((2, 64, 1, 1), np.int64)
    block = scaled.pack(scaled.ScaledPiece(q, q, np.ones(1, np.float16), None, 4), 2)
    with pytest.raises(CodecError, match="do not end within 73 bytes"):
        weights_in(block[:-1], q.shape, np.dtype("f2"))
