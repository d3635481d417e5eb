"""What an address cache holds while tables come and go."""

from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.isa.program import TABLE_ENTRIES
from frustum.dialects.isa.tables.stored_table import AddressCache, CacheLoad


def test_the_least_recently_used_goes_first():
    cache = AddressCache(100)
    assert cache.bring({"a": 50, "b": 40}, ()) == [CacheLoad("a", 0, ()), CacheLoad("b", 1, ())]
    assert cache.bring({"a": 50}, ("b",)) == []
    assert cache.bring({"c": 10}, ()) == [CacheLoad("c", 2, ())]
    assert cache.bring({"d": 30}, ()) == [CacheLoad("d", 1, (1,))]  # b: a was used after it
    assert cache.entry_of("d") == 1 and set(cache.held) == {"a", "c", "d"}


def test_what_is_kept_stays_though_it_is_older():
    cache = AddressCache(100)
    cache.bring({"a": 40}, ())
    cache.bring({"b": 40}, ("a",))
    assert cache.bring({"c": 50}, ("a",)) == [CacheLoad("c", 1, (1,))]


@given(st.lists(st.sets(st.integers(0, 90), max_size=30), max_size=20))
def test_it_never_overflows_and_entries_are_distinct(sections):
    """Sections that use at most half of the cache each, the one before kept."""
    cache, before, replayed = AddressCache(1000), (), {}
    for numbers in sections:
        sizes, room = {}, 500
        for number in sorted(numbers):
            if (size := 1 + number * 7 % 120) <= room:
                sizes[str(number)] = size
                room -= size
        for load in cache.bring(sizes, before):
            for entry in load.evicts:
                del replayed[entry]
            assert load.entry not in replayed
            replayed[load.entry] = load.key
        assert all(key in cache.held for key in (*sizes, *before))
        assert {entry: key for key, (entry, _) in cache.held.items()} == replayed
        assert sum(size for _, size in cache.held.values()) <= 1000 and len(replayed) <= TABLE_ENTRIES
        before = tuple(sizes)
