"""The bound on bytes of DRAM: below what any schedule moves, by trying all, and below what the machine counted."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import replace

import pytest
from networks import Net

import frustum
from frustum.backend.targets import load
from frustum.dialects import graph as g
from frustum.runtime.report.dram_bound import attention_words, dram_bound, product_words


def moves_from(needs, red, blue, memory):
    """Each step from a state, with what it moves."""
    for v in range(len(needs)):
        bit = 1 << v
        if red & bit:
            yield 0, (red & ~bit, blue)
            if not blue & bit:
                yield 1, (red, blue | bit)
        elif red.bit_count() < memory:
            if blue & bit:
                yield 1, (red | bit, blue)
            if needs[v] and all(red >> u & 1 for u in needs[v]):
                yield 0, (red | bit, blue)


def fewest_moves(needs, inputs, outputs, memory):
    """Words that the red-blue pebble game moves at least: vertex v of `needs` is computed from needs[v], with at most
    `memory` words on chip; inputs begin in DRAM, outputs must end there.  Dijkstra over pairs of sets."""
    start, wanted = (0, sum(1 << v for v in inputs)), sum(1 << v for v in outputs)
    best, waiting = {start: 0}, [(0, start)]
    while waiting:
        cost, (red, blue) = heapq.heappop(waiting)
        if cost > best[red, blue]:
            continue
        if blue & wanted == wanted:
            return cost
        for more, state in moves_from(needs, red, blue, memory):
            if cost + more < best.get(state, 1 << 30):
                best[state] = cost + more
                heapq.heappush(waiting, (cost + more, state))
    return None


def product_graph(m, n, k):
    """Entries of both operands, then a chain of sums for each entry of the result."""
    needs = [()] * (m * k + k * n)
    outputs = []
    for i, j in itertools.product(range(m), range(n)):
        before = ()
        for c in range(k):
            needs.append((i * k + c, m * k + c * n + j, *before))
            before = (len(needs) - 1,)
        outputs.append(before[0])
    return needs, range(m * k + k * n), outputs


@pytest.mark.parametrize(("m", "n", "k"), [(1, 2, 1), (2, 2, 1), (1, 1, 2), (1, 2, 2), (3, 2, 1)])
def test_products_move_no_less(m, n, k):
    needs, inputs, outputs = product_graph(m, n, k)
    for memory in range(4, 7):
        least = fewest_moves(needs, inputs, outputs, memory)
        assert least is not None
        assert max(m * k + k * n + m * n, product_words(memory, 1, m, n, k)) <= least


@pytest.mark.parametrize(
    ("rows", "keys", "size", "memory"), [(64, 64, 2, 64), (40, 90, 3, 80), (128, 32, 4, 128)]
)
def test_attention_with_blocks_of_any_size_moves_no_less(rows, keys, size, memory):
    """Blocks of queries that stay with their results, keys and values one after the other, part of them resident."""
    for block in range(1, memory // (2 * size)):
        passes = math.ceil(rows / block)
        resident = min(keys, memory // (2 * size) - block)
        moved = 2 * rows * size + 2 * keys * size + 2 * (keys - resident) * size * (passes - 1)
        assert attention_words(memory, rows * keys, size, size) <= moved


def small(sram):
    target = load("df")
    cluster = target.chip.cluster
    return replace(
        target,
        chip=replace(target.chip, cluster=replace(cluster, sram=replace(cluster.sram, capacity_bytes=sram))),
    )


def test_the_report_names_the_argument():
    """A product whose operands are far larger than the memories; and one that fits."""
    for size, by in ((512, "matrix product"), (64, "compulsory")):
        net = Net()
        module, _ = net.module(net.layer(g.MatmulOp(net.input(size, size), net.input(size, size))))
        exe = frustum.compile(module, small(65536), "f32", compress_weights="none")
        dram = frustum.run(exe, {}, mode="timing").report["dram"]
        moved = dram["total_bytes"] - dram["other_bytes"]
        assert dram["compulsory_bytes"] <= dram["bound_bytes"] <= moved
        assert dram["bound_by"].startswith(by)
        assert (dram["bound_bytes"] > dram["compulsory_bytes"]) == (by != "compulsory")


def test_two_layers_that_pass_a_map_on_chip_are_not_bounded_alone():
    net = Net()
    y = net.layer(g.MatmulOp(net.unary("exp", net.input(512, 512)), net.input(512, 512)))
    module, _ = net.module(y)
    exe = frustum.compile(module, small(65536), "f32", compress_weights="none")
    assert frustum.run(exe, {}, mode="timing").report["dram"]["bound_by"] == "compulsory"


def test_the_greatest_argument_counts():
    target = small(8192)
    facts = {"name": "p", "matrix product": [1, 4096, 4096, 4096, 2, 100], "attention": [1, 1, 1, 2, 100]}
    found = dram_bound(target, 1000, [{"layers": [facts, {"name": "q"}]}])
    assert found.by == "matrix product 'p'"
    assert found.bytes > 1000
