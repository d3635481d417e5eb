"""Compressed blocks: exact for every bit pattern, the same to a second reader, small where they should be."""

import numpy as np
import plain_codec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from frustum.dialects.weights import codec

WIDTHS = st.sampled_from(codec.WIDTHS)
MODES = st.sampled_from(codec.CODECS)


@st.composite
def weights(draw):
    """Bytes of elements: any, few different ones, or mostly zeros; and the width of an element."""
    width, count = draw(WIDTHS), draw(st.integers(0, 300))
    shape = (count * width,)
    kind = draw(st.sampled_from(["any", "few", "zeros", "seeded"]))
    if kind == "any":
        return width, draw(hnp.arrays(np.uint8, shape))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "few":
        return width, rng.choice(rng.integers(0, 256, draw(st.integers(1, 4))), shape).astype(np.uint8)
    elements = rng.integers(0, 256, (count, width)).astype(np.uint8)
    if kind == "zeros":
        elements[rng.random(count) < draw(st.sampled_from([0.5, 0.95, 1.0]))] = 0
    return width, elements.reshape(-1)


@given(weights(), MODES)
@settings(max_examples=200, deadline=None)
def test_every_bit_pattern_comes_back(given_, mode):
    width, raw = given_
    block = codec.compress(raw, width, mode)
    assert len(block) <= codec.HEADER_BYTES + len(raw)
    padded = np.concatenate([block, np.zeros(5, np.uint8)])
    np.testing.assert_array_equal(codec.expand(block, len(raw)), raw)
    np.testing.assert_array_equal(codec.expand(padded, len(raw)), raw)
    assert plain_codec.expand(padded.tolist(), len(raw)) == raw.tolist()


@given(st.lists(weights(), min_size=1, max_size=5), MODES)
@settings(max_examples=50, deadline=None)
def test_many_blocks_are_those_made_one_by_one(several, mode):
    width = several[0][0]
    runs = [raw[: len(raw) // width * width] for _, raw in several]
    data, ends = codec.compress_all(np.concatenate(runs), np.cumsum([len(run) for run in runs]), width, mode)
    slots = codec.in_slots(data, ends, 16)
    assert slots.shape[1] % 16 == 0 and slots.shape[1] - np.diff(ends, prepend=0).max() < 16
    for run, slot, start, stop in zip(runs, slots, [0, *ends], ends, strict=False):
        np.testing.assert_array_equal(data[start:stop], codec.compress(run, width, mode))
        np.testing.assert_array_equal(codec.expand(slot, len(run)), run)


def test_codes_longer_than_twelve_bits_are_made_shorter():
    """Frequencies as Fibonacci's numbers would give the rarest of 20 symbols 19 bits."""
    counts = [1, 1]
    while len(counts) < 20:
        counts.append(counts[-1] + counts[-2])
    raw = np.repeat(np.arange(20, dtype=np.uint8), counts)
    block = codec.compress(raw, 1, "huffman")
    assert codec.header(block)[0] == codec.HUFFMAN
    np.testing.assert_array_equal(codec.expand(block, len(raw)), raw)
    assert len(block) < len(raw) / 2.9  # the entropy is 2.56 bits


RNG = np.random.default_rng(0)
DENSE = np.clip(RNG.normal(0, 30, 1 << 16), -127, 127).astype(np.int8)
PRUNED = np.where(RNG.random(1 << 16) < 0.9, 0, DENSE).astype(np.int8)
HALF = np.where(RNG.random(1 << 16) < 0.9, 0, RNG.normal(0, 0.05, 1 << 16)).astype(np.float16)


def entropy(values):
    share = np.unique(values, return_counts=True)[1] / values.size
    return float(-(share * np.log2(share)).sum())


@pytest.mark.parametrize(
    ("values", "mode", "at_most"),
    [
        (DENSE, "huffman", entropy(DENSE) / 8 + 0.01),  # an optimal code is within a bit of it, here nearer
        (PRUNED, "zero", 0.21),  # two bytes for each of the 10 %
        (PRUNED, "auto", 0.15),
        (HALF, "zero", 0.16),  # three bytes of each twenty
        (HALF, "auto", 0.14),
    ],
)
def test_sizes(values, mode, at_most):
    raw = values.view(np.uint8)
    block = codec.compress(raw, values.itemsize, mode)
    assert len(block) / len(raw) < at_most


@pytest.mark.parametrize(
    ("change", "size", "message"),
    [
        (lambda b: b[:5], 64, "a header of 8 bytes, found 5"),
        (lambda b: [9, *b[1:]], 64, "a method .* found 09 01 00 00"),
        (lambda b: [b[0], 3, *b[2:]], 64, "a width .* found 03 03 00 00"),
        (lambda b: b, 65, "do not make 65 bytes"),
        (lambda b: b[:10], 64, "do not end within 10"),
        (lambda b: [2, *b[1:]], 65, "a stream of .* bytes for 65"),
        (lambda b: [0, *b[1:]], 64, "raw bytes in"),
        (lambda b: [1, *b[1:4], 90, *b[5:]], 64, "a stream of 90 bytes for 64 in a block of"),
        (lambda b: [*b[:8], 40, *b[9:]], 64, "do not end within"),
    ],
)
def test_damaged_blocks_are_told(change, size, message):
    raw = np.tile(np.array([0, 0, 0, 7], np.uint8), 16)
    block = codec.compress(raw, 1, "auto").tolist()
    assert block[0] == codec.ZERO_RUNS | codec.HUFFMAN
    with pytest.raises(codec.CodecError, match=message):
        codec.expand(np.array(change(block), np.uint8), size)
