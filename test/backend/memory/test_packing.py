"""Offsets of buffers that meet."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from frustum.backend.memory.packing import pack, pack_apart, usable


def interference(lives):
    interfering = [[] for _ in lives]
    for a, b in combinations(range(len(lives)), 2):
        if lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]:
            interfering[a].append(b)
            interfering[b].append(a)
    return interfering


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(1, 9)), max_size=14))
def test_buffers_that_meet_do_not_overlap(buffers):
    lives = [(start, start + length) for start, length, _ in buffers]
    sizes = [16 * units for *_, units in buffers]
    interfering = interference(lives)
    packing = pack(sizes, interfering, [start for start, _ in lives], 0)
    for a in range(len(buffers)):
        for b in interfering[a]:
            apart = packing.offsets[a] + sizes[a] <= packing.offsets[b]
            assert apart or packing.offsets[b] + sizes[b] <= packing.offsets[a]
    assert packing.peak == max((o + s for o, s in zip(packing.offsets, sizes, strict=True)), default=0)


def test_a_chain_of_equal_buffers_needs_two():
    lives = [(n, n + 1) for n in range(10)]
    assert pack([64] * 10, interference(lives), list(range(10)), 128).peak == 128


def test_the_search_goes_on_where_the_orders_do_not_fit():
    lives = [(1, 2), (1, 3), (4, 5), (2, 2), (3, 5), (4, 7)]  # every order gives 224
    sizes = [80, 64, 16, 64, 96, 80]
    assert pack(sizes, interference(lives), [start for start, _ in lives], 208).peak == 208


@given(st.integers(0, 5000), st.data())
def test_buffers_begin_at_multiples_whatever_the_capacity(capacity, data):
    """Those at the end of a memory too, of which the last bytes may be no whole unit."""
    count = data.draw(st.integers(1, 6))
    sizes = [16 * data.draw(st.integers(1, 20)) for _ in range(count)]
    wishes = [{n: 1.0 for n in range(count) if n != own} for own in range(count)]
    found = pack_apart(sizes, [[] for _ in sizes], wishes, list(range(count)), usable(capacity))
    assert 0 <= capacity - usable(capacity) < 16
    if not isinstance(found, int):
        assert all(offset % 16 == 0 for offset in found.offsets)
        assert all(offset + size <= capacity for offset, size in zip(found.offsets, sizes, strict=True))


def test_what_finds_no_place_comes_first():
    lives = [(1, 2), (1, 3), (4, 5), (2, 2), (3, 5), (4, 7)]
    sizes, none = [80, 64, 16, 64, 96, 80], [dict[int, float]() for _ in range(6)]
    apart = (sizes, interference(lives), none, [start for start, _ in lives], 208)
    assert isinstance(pack_apart(*apart), int)
    found = pack_apart(*apart, searches=40)
    assert not isinstance(found, int) and found.peak == 208
    for a, b in combinations(range(6), 2):
        ends = found.offsets[a] + sizes[a] <= found.offsets[b] or found.offsets[b] + sizes[b] <= found.offsets[a]
        assert ends or b not in interference(lives)[a]
