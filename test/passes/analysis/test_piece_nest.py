"""Loop nests by brute force: the pieces of all cores and passes make every position of the region exactly once."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.isa.program import Affine
from frustum.dialects.tile import ConvLayer, SubMap, UnaryLayer
from frustum.passes.analysis.piece_nest import CHANNELS_IN, build


def conv(groups, channels):
    """A convolution of one tap."""
    return ConvLayer((1, 1), (1, 1), (1, 1), groups, channels, (channels, 1, 1, 1), 0)


def positions(nest, cores, bound, outer=()):
    """How often each position of the map is made, over all passes of the nest and all cores."""
    made = np.zeros(bound, int)
    for indices in product(*(range(count) for _, count in nest.loops)):
        for core in range(cores):
            spans = (span.clip((*outer, *indices), core=core) for span in nest.piece.box.spans)
            made[tuple(slice(low, max(low, high)) for low, high in spans)] += 1
    return made


@st.composite
def regions(draw):
    """(start, extent, bound): a tile that may reach over the map's borders."""
    bound = tuple(draw(st.integers(1, 9)) for _ in range(4))
    extent = tuple(draw(st.integers(1, size)) for size in bound)
    return (
        tuple(draw(st.integers(-2 if e > 2 else 0, b - 1)) for e, b in zip(extent, bound, strict=True)),
        extent,
        bound,
    )


def expected(start, extent, bound):
    made = np.zeros(bound, int)
    made[tuple(slice(max(0, s), max(0, s + e)) for s, e in zip(start, extent, strict=True))] = 1
    return made


@given(regions(), st.data(), st.integers(1, 3))
def test_vector_pieces_cover_the_region_once(region, data, cores):
    start, extent, bound = region
    submap = SubMap(tuple(data.draw(st.integers(1, e)) for e in extent), data.draw(st.integers(0, 3)))
    nest = build(submap, tuple(map(Affine, start)), extent, bound, UnaryLayer("relu"), cores, 0)
    np.testing.assert_array_equal(positions(nest, cores, bound), expected(start, extent, bound))


@given(regions(), st.data(), st.integers(1, 3), st.sampled_from(["space", "channels"]))
def test_convolutions_cover_the_region_once_for_every_chunk_of_channels(region, data, cores, outer):
    start, extent, bound = region
    channels = data.draw(st.integers(1, 7))
    submap = SubMap(tuple(data.draw(st.integers(1, e)) for e in extent), data.draw(st.integers(0, 3)),
                    data.draw(st.integers(1, channels)), outer)  # fmt: skip
    nest = build(submap, tuple(map(Affine, start)), extent, bound, conv(1, channels), cores, 0)
    chunks = -(-channels // submap.channels)
    np.testing.assert_array_equal(positions(nest, cores, bound), chunks * expected(start, extent, bound))
    assert not nest.loops or nest.position(CHANNELS_IN) in (None, len(nest.loops) - 1)


@given(st.integers(1, 3), st.integers(2, 4), st.integers(2, 5), st.data())
def test_parts_of_groups_stay_inside_their_group(cores, groups, group_outputs, data):
    """Pieces smaller than a group: all outputs once, no piece across a border."""
    bound = (1, groups * group_outputs, 3, 4)
    piece = data.draw(st.integers(1, group_outputs - 1))
    submap = SubMap(
        (1, piece, 2, 4), data.draw(st.integers(1, 3)), 5, data.draw(st.sampled_from(["space", "channels"]))
    )
    nest = build(submap, (Affine(),) * 4, bound, bound, conv(groups, 5), cores, 0)
    np.testing.assert_array_equal(positions(nest, cores, bound), np.ones(bound, int))
    for indices in product(*(range(count) for _, count in nest.loops)):
        first = nest.group.at(indices)
        low, high = nest.piece.box.spans[1].clip(indices)
        assert low >= high or (first <= low and high <= first + group_outputs)


def test_a_region_that_moves_with_a_tile_loop_is_covered_in_every_tile():
    """Tiles of 5 rows in pieces of 2, dealt to 2 cores: a piece must not reach into the next tile."""
    start = (Affine(), Affine(), Affine(0, (5,)), Affine())
    nest = build(SubMap((1, 1, 2, 4), 2), start, (1, 1, 5, 4), (1, 1, 12, 4), UnaryLayer("relu"), 2, 1)
    for tile in range(3):
        made = positions(nest, 2, (1, 1, 12, 4), outer=(tile,))
        np.testing.assert_array_equal(made, expected((0, 0, 5 * tile, 0), (1, 1, 5, 4), (1, 1, 12, 4)))
