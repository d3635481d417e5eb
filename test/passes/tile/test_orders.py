"""Orders of traversal: every tile once, and what each order promises."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from frustum.passes.tile.orders import (
    DIRECTIONS,
    ORDERS,
    Bands,
    Grid,
    in_step,
    morton,
    nests_of,
    steps_of,
    tiles_of,
)

GRIDS = st.builds(Grid, st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 3, 4, 6]))
BANDS = st.builds(Bands, st.integers(1, 4), st.sampled_from(DIRECTIONS))


@given(st.sampled_from(ORDERS), GRIDS, BANDS)
def test_every_tile_has_one_owner_and_one_place(order, grid, band):
    made = [tile for way in tiles_of(order, grid, band) for tile in way]
    assert sorted(made) == list(product(range(grid.rows), range(grid.columns)))
    assert len(tiles_of(order, grid, band)) == grid.owners


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(ORDERS), GRIDS, BANDS, st.integers(1, 6))
def test_loops_go_the_way_that_the_order_says(order, grid, band, most_loops):
    nests = nests_of(steps_of(order, grid, band), grid, most_loops)
    assert all(len(nest.loops) <= most_loops for nest in nests)
    for owner, way in enumerate(tiles_of(order, grid, band)):
        assert [p for nest in nests for p in nest.positions(owner) if grid.has(p)] == way


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(ORDERS), GRIDS, BANDS, st.integers(1, 6), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_whoever_works_beyond_its_own_tiles_is_out_of_reach(order, grid, band, most_loops, reach):
    """A dimension of one tile has no index: a position anywhere along it is the tile."""
    sizes = grid.rows, grid.columns
    assume(sizes != (1, 1))
    nests = nests_of(steps_of(order, grid, band), grid, most_loops, reach)
    for owner, way in enumerate(tiles_of(order, grid, band)):
        places = [p for nest in nests for p in nest.positions(owner)]
        tiles = [tuple(i if n > 1 else 0 for i, n in zip(p, sizes, strict=True)) for p in places]
        assert [p for p in tiles if all(-r <= i < n + r for i, n, r in zip(p, sizes, reach, strict=True))] == way


@settings(max_examples=200)
@given(st.sampled_from(ORDERS), GRIDS, BANDS, st.integers(1, 6))
def test_where_parts_are_fixed_all_clusters_go_the_same_way(order, grid, band, most_loops):
    """One owner of a grid stands for all clusters, each of which goes through a part of its own."""
    grid = Grid(grid.rows, grid.columns)
    for nest in nests_of(steps_of(order, grid, band), grid, most_loops):
        assert list(nest.positions(0)) == list(nest.positions(7))


@pytest.mark.parametrize("owners", [1, 2, 3, 4])
def test_owners_that_keep_a_distance_are_in_step(owners):
    ways = [[(row, column + 2 * k) for row, column in ((0, 0), (1, 1))] for k in range(owners)]
    apart = (0, 2) if owners > 1 else (0, 0)
    assert in_step(ways) == [((0, 0), apart), ((1, 1), apart)]
    if owners > 2:
        ways[-1][1] = (1, 0)
        assert in_step(ways) is None


def owners(order, grid, band=Bands()):  # noqa: B008  # frozen
    names = "ABCD"
    own = {tile: names[k] for k, way in enumerate(tiles_of(order, grid, band)) for tile in way}
    return ["".join(own[r, c] for c in range(grid.columns)) for r in range(grid.rows)]


def test_mirrored_is_the_picture_of_the_specification():
    assert owners("mirrored", Grid(4, 4, 4)) == ["ABBA", "CDDC", "CDDC", "ABBA"]


@pytest.mark.parametrize("grid", [Grid(8, 8, 4), Grid(6, 4, 4), Grid(4, 8, 2)])
def test_tiles_on_both_sides_of_a_portion_have_one_owner(grid):
    own = owners("mirrored", grid)
    assert all(row[c] == row[c + 1] for row in own for c in range(1, grid.columns - 1, 2))
    if grid.owners == 4:
        assert all(own[r] == own[r + 1] for r in range(1, grid.rows - 1, 2))


def test_quadrants_are_regions_each_from_top_left_to_bottom_right():
    assert owners("quadrants", Grid(4, 4, 4)) == ["AABB", "AABB", "CCDD", "CCDD"]
    assert all(way == sorted(way) for way in tiles_of("quadrants", Grid(4, 4, 4)))


def test_neighbours_on_a_checkerboard_have_different_owners():
    for n in (2, 4):
        own = owners("checkerboard", Grid(5, 6, n))
        assert all(a != b for row in own for a, b in pairwise(row))
        assert all(a != b for above, below in pairwise(own) for a, b in zip(above, below, strict=True))
    (alone,) = tiles_of("checkerboard", Grid(3, 3))
    assert [(r + c) % 2 for r, c in alone] == [0] * 5 + [1] * 4


def test_bands_are_rows_or_columns_of_any_depth_in_any_direction():
    grid = Grid(4, 3)
    assert tiles_of("bands", grid, Bands(2))[0][:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert tiles_of("bands", grid, Bands(2, "right-left"))[0][:4] == [(0, 2), (1, 2), (0, 1), (1, 1)]
    assert tiles_of("bands", grid, Bands(2, "top-down"))[0][:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert tiles_of("bands", grid, Bands(2, "bottom-up"))[0][:4] == [(3, 0), (3, 1), (2, 0), (2, 1)]
    assert tiles_of("bands", grid, Bands(3))[0][:3] == [(0, 0), (1, 0), (2, 0)]
    assert owners("bands", Grid(4, 3, 2), Bands(1)) == ["AAA", "BBB", "AAA", "BBB"]
    assert owners("bands", Grid(4, 4, 2), Bands(1, "top-down")) == ["ABAB"] * 4


def test_the_next_tile_of_a_serpentine_is_a_neighbour():
    (way,) = tiles_of("serpentine", Grid(5, 4))
    assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in pairwise(way))


def test_z_order_interleaves_bits():
    (way,) = tiles_of("z-order", Grid(4, 4))
    assert way[:8] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    assert [morton(tile) for tile in way] == list(range(16))
    assert morton((0b101, 0b011)) == 0b100111
    (uneven,) = tiles_of("z-order", Grid(3, 5))
    assert [morton(tile) for tile in uneven] == sorted(morton(tile) for tile in uneven)


def test_rows_and_columns():
    assert tiles_of("row-major", Grid(2, 3))[0] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert tiles_of("column-major", Grid(2, 3))[0] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert owners("row-major", Grid(2, 4, 2)) == ["ABAB", "ABAB"]
    assert owners("row-major", Grid(4, 1, 4)) == ["A", "B", "C", "D"]


@pytest.mark.parametrize("order", ["row-major", "column-major", "quadrants", "bands"])
def test_plain_orders_are_one_nest(order):
    grid = Grid(8, 6)
    assert len(nests_of(steps_of(order, grid), grid, 2)) == 1
