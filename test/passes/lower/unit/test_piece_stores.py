"""Regions that leave a tile piece by piece: all of it goes, each position once, whatever the pieces are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.isa.program import Affine, Box, Span
from frustum.dialects.tile import ConvLayer, SubMap
from frustum.passes.analysis.piece_nest import build
from frustum.passes.lower.unit.memory_map import Placed
from frustum.passes.lower.unit.piece_stores import Leaving, ends_of, part_of_pieces

CLUSTERS, ROWS = 3, 2
CONV = ConvLayer((1, 1), (1, 1), (1, 1), 1, 1, (1, 1, 1, 1), 0)


def tile(extent, bound, start):
    strides = (extent[1] * extent[2] * extent[3] * 2, extent[2] * extent[3] * 2, extent[3] * 2, 2)
    return Placed("f16", start, extent, bound, strides)


def leaving(made, region, least_run_bytes=1):
    return Leaving(made, region, 1, made.strides, least_run_bytes, lambda part, stage: None)


def positions(box, index, cluster, origin):
    """Of a clipped box, in the map: `origin` is where its nominal start lies."""
    ranges = []
    for span, first in zip(box.spans, origin, strict=True):
        start, stop = span.clip(index, cluster)
        moved = first.at(index, cluster) - span.start.at(index, cluster)
        ranges.append(range(start + moved, stop + moved))
    return list(product(*ranges))


def nest_of(made, extent, cores, core_dim):
    submap = SubMap(extent, core_dim, 1, "space")
    return build(submap, made.start, made.extent, made.bound, CONV, cores, 0)


sizes = st.integers(1, 7)


@given(
    extent=st.tuples(st.just(1), sizes, sizes, sizes), piece=st.tuples(st.just(1), sizes, sizes, sizes),
    cores=st.sampled_from([1, 2]), core_dim=st.sampled_from([1, 2, 3]), first=st.integers(0, 6),
    count=st.integers(1, 7), moves=st.booleans(),
)  # fmt: skip
def test_all_of_a_region_goes_once(extent, piece, cores, core_dim, first, count, moves):
    """Rows are dealt to clusters or all in each; the region is all rows, or some that move with it."""
    rows = extent[ROWS]
    bound = (
        1,
        extent[1],
        rows * CLUSTERS - 1 if moves else rows,
        extent[3],
    )  # the last cluster has a row less
    own = Affine(0, (), rows if moves else 0)
    made = tile(extent, bound, (Affine(), Affine(), own, Affine()))
    nest = nest_of(made, tuple(map(min, piece, extent)), cores, core_dim)
    spans = [Span(s, e, b) for s, e, b in zip(made.start, made.extent, bound, strict=True)]
    spans[ROWS] = Span(own + min(first, rows - 1), min(count, rows - min(first, rows - 1)), bound[ROWS])
    region = Box.of(*spans)
    part = part_of_pieces(leaving(made, region), nest.piece, made, cores)
    if part is None:
        assert spans[ROWS].extent < rows, "the whole of a tile always goes piece by piece"
        return
    for cluster in range(CLUSTERS):
        found = []
        for index in product(*(range(passes) for _, passes in nest.loops)):
            found += positions(part.box, index, cluster, part.start)
        assert sorted(found) == positions(region, (), cluster, region.start)


def test_rows_that_another_cluster_wants_go_as_the_pieces_that_have_them_are_made():
    """Of 16 rows, made 4 at a time, another cluster wants rows 5 to 12: half of the second and the fourth piece."""
    made = tile((1, 2, 16, 3), (1, 2, 16, 3), (Affine(),) * 4)
    nest = nest_of(made, (1, 2, 4, 3), 1, 1)
    region = Box((Affine(), Affine(), Affine(5), Affine()), (1, 2, 8, 3), made.bound)
    part = part_of_pieces(leaving(made, region), nest.piece, made, 1)
    assert part is not None
    counts = [len(positions(part.box, (k,), 0, part.start)) for k in range(4)]
    assert counts == [0, 3 * 6, 4 * 6, 1 * 6]


def test_a_row_that_is_less_than_a_piece_goes_as_a_whole():
    made = tile((1, 2, 16, 3), (1, 2, 16, 3), (Affine(),) * 4)
    nest = nest_of(made, (1, 2, 4, 3), 1, 1)
    region = Box((Affine(), Affine(), Affine(15), Affine()), (1, 2, 1, 3), made.bound)
    assert part_of_pieces(leaving(made, region), nest.piece, made, 1) is None


def test_short_runs_go_as_a_whole():
    """Pieces of 2 columns are runs of 4 bytes; rows of 8 columns follow each other."""
    made = tile((1, 1, 8, 8), (1, 1, 8, 8), (Affine(),) * 4)
    nest = nest_of(made, (1, 1, 8, 2), 1, 1)
    whole = Box((Affine(),) * 4, made.extent, made.bound)
    assert part_of_pieces(leaving(made, whole, 64), nest.piece, made, 1) is None
    assert part_of_pieces(leaving(made, whole, 8), nest.piece, made, 1) is not None


UNEVEN = [(52, -1, 15, 8), (52, -1, 15, 4), (26, 0, 7, 3), (10, -2, 6, 4)]


@pytest.mark.parametrize(("rows", "start", "extent", "height"), UNEVEN)
def test_pieces_end_with_the_region_and_with_the_map(rows, start, extent, height):
    """Rows of which clusters own as many each, the last one fewer, with rows around them, in pieces that do not come
    out even: what leaves is what is in the piece, in the own rows, and in the map."""
    clusters, own_rows = 4, -(-rows // 4)
    first = Affine(start, cluster=own_rows)
    pieces = Span(first + Affine.index(0, height), height, rows, first + extent)
    wanted = Span(Affine(cluster=own_rows), own_rows, rows)
    bound, limit = ends_of(pieces, wanted)
    left = Span(pieces.start - wanted.start, height, bound, limit)
    for cluster, i in product(range(clusters), range(-(-extent // height))):
        begin = own_rows * cluster
        low, high = left.clip([i], cluster)
        made = set(range(*pieces.clip([i], cluster))) & set(range(*wanted.clip([i], cluster)))
        assert set(range(begin + low, begin + high)) == made
