"""Blocks against the definition: dominance and post-dominance found by taking nodes away."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st
from processor_time import allowed

from frustum.passes.analysis.blocks import DataFlow


@st.composite
def flows(draw):
    """One source; each node reads one to three of the nodes before it."""
    count = draw(st.integers(2, 12))
    return DataFlow(
        [[]]
        + [draw(st.lists(st.integers(max(0, i - 4), i - 1), min_size=1, max_size=3)) for i in range(1, count)]
    )


def reachable(edges, starts, without):
    found, stack = set(), [s for s in starts if s != without]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [n for n in edges[node] if n != without]
    return found


def by_definition(flow):
    """{(fork, join): nodes} where all ways to the join pass the fork, and all from there the join; the nearest."""
    count = len(flow.reads)
    users = [[u for u in range(count) if i in flow.reads[u]] for i in range(count)]
    ends = [i for i in range(count) if not users[i]]
    dominates = {
        (a, b): b not in reachable(users, [0], a) for a in range(count) for b in range(count) if a != b
    }
    post = {
        (b, a): not any(e in reachable(users, [a], b) for e in ends)
        for a in range(count)
        for b in range(count)
        if a != b
    }
    found = {}
    for fork in range(count):
        joins = [j for j in range(count) if j != fork and post[(j, fork)]]
        forks = lambda j: [f for f in range(count) if f != j and dominates[(f, j)]]  # noqa: E731
        if (
            len(set(users[fork])) > 1
            and joins
            and fork in forks(min(joins))
            and max(forks(min(joins))) == fork
        ):
            join = min(joins)
            inside = {n for n in range(fork + 1, join + 1) if n in reachable(users, [fork], None)}
            found[(fork, join)] = tuple(sorted(n for n in inside if join in reachable(users, [n], None)))
    return found


@given(flows())
def test_blocks_are_what_dominance_says(flow):
    assert {(b.entry, b.exit): b.nodes for b in flow.blocks()} == by_definition(flow)


def test_residual_addition_is_a_block():
    assert [(b.entry, b.nodes) for b in DataFlow([[], [0], [1], [2, 0], [3]]).blocks()] == [(0, (1, 2, 3))]


def test_inception_with_a_block_inside_a_branch():
    #           0 -> 1 -> (2, 3) -> 4    and 0 -> 5, 0 -> 6;   7 joins 4, 5, 6
    flow = DataFlow([[], [0], [1], [1], [2, 3], [0], [0], [4, 5, 6], [7]])
    assert [(b.entry, b.exit, b.nodes) for b in flow.blocks()] == [
        (0, 7, (1, 2, 3, 4, 5, 6, 7)),
        (1, 4, (2, 3, 4)),
    ]


def test_a_branch_that_leaves_makes_no_block():
    assert DataFlow([[], [0], [0], [1, 2], [1], [3]]).blocks() == []


def test_a_layer_that_reads_one_map_twice_makes_no_block():
    assert DataFlow([[], [0, 0], [1]]).blocks() == []


def test_a_thousand_layers_in_well_under_a_second():
    """Residual blocks, each in a branch of the one around it: the worst nesting, and a long chain of them."""
    nested = [[]] + [[i] for i in range(500)] + [[500 + i, 500 - i] for i in range(500)]
    chained = [[]] + [[i - 1] if i % 3 else [i - 1, i - 3] for i in range(1, 1000)]
    for reads in (nested, chained):
        flow = DataFlow(reads)
        started = time.process_time()
        joins = flow.forks
        assert time.process_time() - started < allowed(0.2)
        assert len(joins) > 300


def test_what_a_node_ends_in():
    flow = DataFlow([[], [0], [0], [1, 2], [1]])
    assert (flow.post_dominator(2), flow.post_dominator(1), flow.between(0, 3)) == (3, None, (1, 2, 3))
