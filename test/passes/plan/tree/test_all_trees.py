"""The search, against the best of all trees of small networks."""

from dataclasses import replace

import pytest
import random_plans
from all_trees import AllTrees
from hypothesis import HealthCheck, given, settings
from tiny_networks import tiny

from frustum.dialects.plan.count import count
from frustum.dialects.plan.tree import Compute, Loop, Sequence, steps
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree.good_plans import fitting_plan

NEAR = 1.01
FEW = [
    ("excited", 144), ("normed", 70), ("normed", 44), ("block", 74), ("heads", 92), ("heads", 58), ("excited", 108),
    ("strided", 152), ("strided", 120), ("skipped", 128), ("normed", 50), ("heads", 38), ("wide", 56), ("scores", 66),
    ("windows", 186), ("windows", 234), ("parted", 52),
]  # fmt: skip
"""Networks, and bytes of SRAM that are scarce for them: those that take a few seconds."""
MORE = [
    ("scores", 50), ("excited", 122), ("mlp", 60), ("mlp", 42), ("mlp", 36), ("mlp", 26), ("block", 62),
    ("joined", 52), ("joined", 64), ("skipped", 152), ("strided", 100), ("windows", 156), ("windows", 116),
    ("windows", 92), ("joined", 36), ("heads", 46),
]  # fmt: skip
WORSE = {
    # nothing less than a whole row fits beside the others: 792
    ("windows", 116): 684,
    # of nests those are kept that are best where nothing lies in SRAM, or everything; not with one tensor there: 60,
    # 84 and 564
    ("least mlp", 18): 56,
    ("least mlp", 20): 52,
    ("windows", 186): 360,
    # the count finds more SRAM than the price says, and a plan for less memory is taken: 140
    ("joined", 52): 90,
    # of five classes of two positions each the fifth, a sum, is in no pair of loops: none is found
    ("strided", 120): 224,
    # no loop around several units is over rows that roll; and a layer alone, which has no plan, bounds longer units
    ("strided", 100): 308,
    # what cannot be streamed in slices is priced for the whole body, and lies there for one layer: 108
    ("least windows", 30): 102,
    # sums that wait in DRAM are not searched: 108
    ("least windows", 32): 96,
    # a way that takes no more SRAM and moves less costs a thousandth of a byte, which is not there in full memory: 126
    ("least windows", 26): 120,
    # SRAM in 64 shares: 8 of 14 bytes leave 5.9: 112 and 46
    ("least normed", 14): 80,
    ("least normed", 28): 44,
}
"""Where the search misses the best tree: the DRAM bytes of that tree, by the reason, with what the search found on
2026-11-28.  Whoever makes the search better takes cases off."""


def found_bytes(name, capacity):
    """DRAM bytes of the plan that the search finds; None where there is none."""
    try:
        plan, counted = fitting_plan(tiny(name), capacity)
    except DoesNotFit:
        return None
    assert count(tiny(name), plan).sram_bytes <= capacity
    return counted.dram_bytes


def check(name, capacity):
    found = found_bytes(name, capacity)
    if (name, capacity) not in WORSE:
        assert found is not None
        assert AllTrees(tiny(name)).least(capacity, found / NEAR) is None
        return
    least = WORSE[name, capacity]
    assert is_missed(found, least), "take the case off"
    _, best = AllTrees(tiny(name)).least(capacity, least + 1)
    assert best.dram_bytes == least


def is_missed(found, least):
    return found is None or found > NEAR * least


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("name", "capacity"), FEW)
def test_no_tree_is_better_than_the_plan_that_is_found(name, capacity):
    check(name, capacity)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("name", "capacity"), MORE)
def test_no_tree_is_better_in_more_cases(name, capacity):
    check(name, capacity)


def test_a_worse_plan_is_beaten():
    """Layer by layer every tensor crosses the port: with tensors in SRAM meanwhile none does so twice."""
    net = tiny("normed")
    alone = count(net, Sequence(tuple(Compute((layer.name,)) for layer in net.layers)))
    capacity = sum(tensor.size_bytes for tensor in net.tensors)
    plan, best = AllTrees(tiny("normed"), depth=0).least(capacity, alone.dram_bytes)
    assert best.dram_bytes == net.compulsory_bytes < alone.dram_bytes
    assert count(net, plan).dram_bytes == best.dram_bytes


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("name", "depth"), [("least windows", 1), ("least windows", 2), ("least normed", 1)])
def test_no_random_tree_is_better_than_all(name, depth):
    """Of the trees that are tried: steps of one length, whole tensors in storage of their own."""
    net, tried = tiny(name), 0
    best = AllTrees(tiny(name), depth).best()

    @settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(random_plans.plans(net, depth + 1))
    def check_one(plan):
        nonlocal tried
        plan = plain(plan)
        if plan is None or loops_within(plan) > depth:
            return
        counted, tried = count(net, plan), tried + 1
        assert any(dram <= counted.dram_bytes and sram <= counted.sram_bytes for dram, sram in best), plan

    check_one()
    assert tried > 10


def plain(node):
    """The tree with whole tensors in storage of their own; None where ranges are of uneven length."""
    if isinstance(node, Compute):
        return node
    if isinstance(node, Loop):
        body, first = plain(node.body), node.edges[1]
        return (body and node.edges == steps(node.edges[-1], first) and replace(node, body=body)) or None
    children = tuple(plain(child) for child in node.children)
    residents = tuple(replace(r, part=None, storage_of="") for r in node.residents)
    return None if None in children else replace(node, children=children, residents=residents)


def loops_within(node):
    if isinstance(node, Loop):
        return 1 + loops_within(node.body)
    return max(map(loops_within, node.children)) if isinstance(node, Sequence) else 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["least windows", pytest.param("least normed", marks=pytest.mark.soak),
                                  pytest.param("least mlp", marks=pytest.mark.soak)])  # fmt: skip
def test_the_search_finds_the_best_trees_for_every_size(name):
    missed = {}
    for dram, sram in AllTrees(tiny(name)).best():
        if is_missed(found_bytes(name, sram), dram):
            missed[name, sram] = dram
    assert missed == {case: least for case, least in WORSE.items() if case[0] == name}
