"""`aliases_of` against all pairs: what a buffer has to wait for follows, directly or through others."""

import time

from hypothesis import given
from hypothesis import strategies as st
from processor_time import allowed

from frustum.backend.waits.loop_tree import Access, Instruction, Step
from frustum.backend.waits.schedule import aliases_of

uses = st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 20), st.integers(1, 8))
"""First child, how many more, first byte, size."""


def sharing(buffers):
    """Of buffers that the first and the last child of their lives use."""
    children = sorted({child for first, more, _, _ in buffers for child in (first, first + more)})
    instructions = [
        Instruction("gdma", (Step(0, child, 0),), (), accesses_at(buffers, child)) for child in children
    ]
    places = {n: ("sram", start, start + size) for n, (_, _, start, size) in enumerate(buffers)}
    return aliases_of(instructions, places)


def accesses_at(buffers, child):
    return tuple(
        Access(n, True) for n, (first, more, _, _) in enumerate(buffers) if child in (first, first + more)
    )


def reachable(found, buffer):
    seen, left = set(), [buffer]
    while left:
        for other in found.get(left.pop(), ()):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return seen


@given(st.lists(uses, max_size=10))
def test_every_earlier_buffer_at_the_same_bytes_is_reached(buffers):
    found = sharing(buffers)
    for b, (first, more, start, size) in enumerate(buffers):
        for a, (first_a, more_a, start_a, size_a) in enumerate(buffers):
            if a == b or start_a >= start + size or start >= start_a + size_a:
                assert a not in found.get(b, ())
            elif first_a <= first + more and first <= first_a + more_a:
                assert a in found[b]
            elif first_a < first:
                assert a in reachable(found, b)
                assert b not in found.get(a, ())


def test_many_buffers_at_one_address_wait_only_for_the_latest():
    count = 4000
    started = time.process_time()
    found = aliases_of(
        [Instruction("gdma", (Step(0, n, 0),), (), (Access(n, True),)) for n in range(count)],
        {n: ("sram", 0, 64) for n in range(count)},
    )
    assert found == {n: [n - 1] for n in range(1, count)}
    assert time.process_time() - started < allowed(1)
