"""Address tables: the worked numbers of the specification, and gathering through a table equals convolving."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.isa.tables import address_table as at
from frustum.dialects.isa.tables.stored_table import HEAD, key_of, read_table, stored_bytes, write_table

LAYOUTS = ("nchw", "nhwc", "cnhw", "nchwc")
BLOCK = 4


def layout_of(name, n, c, h, w):
    return {
        "nchw": lambda: at.nchw(c, h, w),
        "nhwc": lambda: at.nhwc(c, h, w),
        "cnhw": lambda: at.cnhw(n, h, w),
        "nchwc": lambda: at.nchwc(c, h, w, BLOCK),
    }[name]()


def stored(x, layout):
    """The map's memory in this layout, and behind it a shared element holding 0."""
    n, c, h, w = (np.arange(extent) for extent in x.shape)
    channel = np.array([layout.channel(int(i)) for i in c])
    place = n[:, None, None, None] * layout.n + channel[:, None, None] + h[:, None] * layout.h + w * layout.w
    memory = np.full(int(place.max()) + 1, 1 << 20, np.int64)
    memory[place] = x
    return np.append(memory, 0)


def direct(x, w, strides, dilations, groups):
    """The definition, in integers; `x` has its border."""
    n, _, h, wide = x.shape
    m, per_group, kh, kw = w.shape
    size = [
        (extent - (k - 1) * d - 1) // s + 1
        for extent, k, d, s in zip((h, wide), (kh, kw), dilations, strides, strict=True)
    ]
    out = np.zeros((n, m, *size), np.int64)
    for o, i, v, u in itertools.product(range(m), range(per_group), range(kh), range(kw)):
        channel = o // (m // groups) * per_group + i
        top, left = v * dilations[0], u * dilations[1]
        seen = x[:, channel, top:, left:][:, :: strides[0], :: strides[1]]
        out[:, o] += seen[:, : size[0], : size[1]] * w[o, i, v, u]
    return out


def through_table(memory, g, w, groups, order):
    """`sum_k A[base + rel] * B[k]` for every thread and group."""
    threads, products = at.AXES[order]
    per_group = len(w) // groups
    results = []
    for group in range(groups):
        address = np.add.outer(at.base(g, group, order), at.rel(g, phase_of(g, group), order))
        weights = (
            w[group * per_group : (group + 1) * per_group]
            .transpose(0, *(1 + "cvu".index(axis) for axis in products))
            .reshape(per_group, -1)
        )
        extents = {"n": g.images, "y": g.rows, "x": g.columns}
        sums = (memory[address] @ weights.T).reshape(*(extents[axis] for axis in threads), -1)
        results.append(sums.transpose(threads.index("n"), 3, threads.index("y"), threads.index("x")))
    return np.concatenate(results, axis=1)


def phase_of(g, group):
    """Which `rel` a group needs: groups that start at the same place of a block, or never leave theirs, share one."""
    block = g.layout.block
    return 0 if not block or block % g.channels == 0 else group * g.channels % block


def test_worked_numbers_of_the_specification():
    g = at.Geometry(1, 2, 2, 1, (3, 3), (1, 1), (1, 1), at.nchw(1, 4, 4))
    assert at.base(g) == [0, 1, 4, 5]
    assert at.rel(g) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert at.differences(at.rel(g)) == [0, 1, 1, 2, 1, 1, 2, 1, 1]
    assert at.base(g, element_bytes=4) == [0, 4, 16, 20]


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("order", at.ORDERS)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sum_over_the_table_is_the_convolution(layout, groups, order):
    """For every layout x stride 1-4 x dilation 1-3 x groups."""
    rng = np.random.default_rng(7)
    x = rng.integers(-9, 9, (2, 12, 13, 14))
    for stride, dilation in itertools.product(range(1, 5), range(1, 4)):
        w = rng.integers(-9, 9, (6, 12 // groups, 3, 2))
        expected = direct(x, w, (stride, stride), (dilation, dilation), groups)
        g = at.Geometry(
            2,
            *expected.shape[2:],
            12 // groups,
            (3, 2),
            (stride, stride),
            (dilation, dilation),
            layout_of(layout, *x.shape),
        )
        np.testing.assert_array_equal(through_table(stored(x, g.layout), g, w, groups, order), expected)


@given(st.data())
def test_any_strided_layout_and_padding_either_way(data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    images, channels, kernel = draw(1, 2), draw(1, 3), (draw(1, 4), draw(1, 4))
    strides, dilations = (draw(1, 4), draw(1, 4)), (draw(1, 3), draw(1, 3))
    pads = tuple(draw(0, 2) for _ in range(4))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    h, w = draw(max(1, spans[0]), 12), draw(max(1, spans[1]), 12)
    order = data.draw(st.sampled_from(at.ORDERS))
    name = data.draw(st.sampled_from(LAYOUTS))
    rng = np.random.default_rng(draw(0, 99))
    x, weights = rng.integers(-9, 9, (images, channels, h, w)), rng.integers(-9, 9, (2, channels, *kernel))
    bordered = np.pad(x, ((0, 0), (0, 0), pads[:2], pads[2:]))
    expected = direct(bordered, weights, strides, dilations, 1)
    g = at.Geometry(
        images, *expected.shape[2:], channels, kernel, strides, dilations, layout_of(name, *bordered.shape)
    )
    in_memory = through_table(stored(bordered, g.layout), g, weights, 1, order)
    np.testing.assert_array_equal(in_memory, expected)

    tight = at.Geometry(
        images, *expected.shape[2:], channels, kernel, strides, dilations, layout_of(name, *x.shape)
    )
    memory = stored(x, tight.layout)
    table = np.array(at.padded(tight, (-pads[0], -pads[2]), (h, w), len(memory) - 1, order))
    plain = np.add.outer(at.base(g, 0, order), at.rel(g, 0, order))
    np.testing.assert_array_equal(memory[table], stored(bordered, g.layout)[plain])


def test_fully_connected_layers_and_products_use_the_same_form():
    rng = np.random.default_rng(3)
    a, b = rng.integers(-9, 9, (5, 7)), rng.integers(-9, 9, (7, 4))
    for matrix, strides in ((a, (7, 1)), (np.ascontiguousarray(a.T), (1, 5))):
        layout = at.Layout(0, strides[1], 0, strides[0])  # threads are rows of a, products run along it
        g = at.Geometry(1, 1, 5, 7, (1, 1), (1, 1), (1, 1), layout)
        address = np.add.outer(at.base(g), at.rel(g))
        np.testing.assert_array_equal(matrix.reshape(-1)[address] @ b, a @ b)


@pytest.mark.parametrize("channels, forms", [(1, 1), (2, 1), (4, 1), (8, 1), (3, 4), (6, 2)])
def test_groups_share_offsets_unless_they_start_at_different_places_of_a_block(channels, forms):
    g = at.Geometry(1, 2, 2, channels, (3, 3), (1, 1), (1, 1), at.nchwc(channels * 8, 4, 4, BLOCK))
    assert len({phase_of(g, group) for group in range(8)}) == forms


def test_narrowest_unsigned_width():
    assert [at.width_bytes([0, top]) for top in (255, 256, 65535, 65536, 1 << 32)] == [1, 2, 2, 4, 8]
    assert at.width_bytes([1, -1]) is None


def test_running_differences_are_taken_where_they_are_narrower():
    assert at.encoding([0, 200, 400]) == (True, 1)
    assert at.encoding([0, 100, 200]) == (False, 1)
    assert at.encoding([0, 300, 1]) == (False, 2)  # goes back: no unsigned difference


def test_the_order_that_reads_the_fewest_lines_wins():
    rows, last = (
        at.Geometry(1, 4, 16, 16, (3, 3), (1, 1), (1, 1), layout)
        for layout in (at.nchw(16, 6, 18), at.nhwc(16, 6, 18))
    )
    for g in (rows, last):
        cost = {order: at.lines_read(g, order, 16, 64, 4) for order in at.ORDERS}
        assert cost[at.best_order(g, 16, 64, 4)] == min(cost.values())
    assert at.best_order(rows, 16, 64, 4) == "channel-major"
    assert at.best_order(last, 16, 64, 4) == "tap-major"


def test_lines_of_a_group_by_hand():
    g = at.Geometry(1, 1, 4, 2, (1, 1), (1, 1), (1, 1), at.Layout(0, 16, 0, 1))
    assert at.lines_read(g, "channel-major", 4, 16, 1) == 2  # one line for each channel
    assert at.lines_read(g, "channel-major", 2, 16, 1) == 4  # ... and group
    assert at.lines_read(g, "channel-major", 4, 64, 1) == 1  # both channels in one line


@given(st.integers(1, 2), st.integers(1, 20), st.integers(1, 20), st.integers(1, 40), st.integers(1, 5))
def test_parts_get_smaller_down_to_one_thread_and_channel(images, rows, columns, channels, kernel):
    g = at.Geometry(
        images, rows, columns, channels, (kernel, kernel), (1, 2), (1, 1), at.nchw(channels, 30, 60)
    )
    parts = list(at.parts_of(g))
    assert parts[0] == g and (parts[-1].channels, parts[-1].threads) == (1, 1)
    for before, part in itertools.pairwise(parts):
        assert at.entries_bytes(part, "channel-major") < at.entries_bytes(before, "channel-major")
        for field in ("images", "rows", "columns", "channels"):
            assert 1 <= getattr(part, field) <= getattr(before, field)
        assert part.window <= before.window


@pytest.mark.parametrize("order", at.ORDERS)
def test_a_stored_table_is_read_as_it_was_written(order):
    g = at.Geometry(2, 3, 5, 7, (3, 2), (2, 1), (1, 2), at.nhwc(9, 20, 20))
    walk = at.TableWalk(row=70_000, channel=9, group=1)
    data = write_table(g, order, 4, walk)
    table = read_table(data)
    assert len(data) == stored_bytes(g, order, walk) and len(data) >= HEAD.size + math.prod((2, 3, 5))
    assert table.walk == walk and read_table(write_table(g, order, 4)).walk == at.STILL
    assert (table.images, table.rows, table.columns, table.channels, table.kernel) == (2, 3, 5, 7, (3, 2))
    assert (table.order, table.element_bytes) == (order, 4)
    assert table.base.tolist() == at.base(g, 0, order)
    assert table.rel.tolist() == at.rel(g, 0, order)
    assert key_of(data) == key_of(write_table(g, order, 4, walk)) != key_of(write_table(g, order, 2, walk))
