"""The bound on bytes of DRAM: below what any schedule moves, by trying all, and below what the machine counted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from networks import Net
from random_bounds import bounded, check_bounded
from small_graphs import FAMILIES, Small, compare
from xdsl.dialects.builtin import f32

import frustum
from frustum.backend.targets import load
from frustum.dialects import graph as g
from frustum.passes.analysis.least_work import least_work
from frustum.runtime.report.dram_bound import attention_words, dram_bound

EXAMPLES = {"normed": 30, "product": 40, "windows": 30, "attention": 20, "any_graph": 40}


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_schedule_of_a_small_graph_moves_less(family):
    """Random graphs with all sizes of memory from the smallest in which they can be made; `make soak` tries 2,000."""
    tried = [compare(family, seed, most=9) for seed in range(EXAMPLES[family])]
    compared = [each for each in tried if each is not None]
    assert len(compared) >= 8
    if family == "normed":
        assert any(by == "closure" for each in compared for by in each)


def blocked(m, n, k, words):
    """Words of a product of m x k by k x n in blocks of the result that stay on chip."""
    side = math.isqrt(words + 1) - 1
    rows, columns = min(side, m), min(side, n)
    return m * n + k * (math.ceil(n / columns) * m + math.ceil(m / rows) * n)


def banded(m, k, hidden, n, words):
    """Words of a chain of two products in bands of rows whose operand and result stay on chip."""
    rows = max(1, min(m, (words - k - n) // (k + n + 1)))
    return m * (k + n) + math.ceil(m / rows) * hidden * (k + n)


@pytest.mark.parametrize(
    "sizes", [(512, 512, 512, 512), (1024, 256, 1024, 256), (300, 700, 200, 900), (64, 64, 4096, 64)]
)
@pytest.mark.parametrize("words", [512, 4096, 40000])
def test_chains_in_blocks_and_in_bands_move_no_less(sizes, words):
    m, k, hidden, n = sizes
    small = Small(np.random.default_rng(0))
    y = small.layer(g.MatmulOp(small.input(m, k), small.input(k, hidden)))
    y = small.layer(g.MatmulOp(small.layer(g.UnaryOp("relu", y)), small.input(hidden, n)))
    facts = least_work(small.network(y), load("df"))
    compulsory = m * (k + n) + hidden * (k + n)
    found = dram_bound(4 * words, 4 * compulsory, [facts])
    apart = blocked(m, hidden, k, words) + blocked(m, n, hidden, words)
    assert 4 * compulsory <= found.bytes <= 4 * min(apart, banded(m, k, hidden, n, words))
    if sizes == (512,) * 4 and words == 4096:
        assert found.by.startswith("chain of products") and found.bytes > 3 * 4 * compulsory


def test_a_result_that_is_cheap_to_make_again_is_no_root():
    """An outer product costs one product an element: nothing can be said of what reads it."""
    small = Small(np.random.default_rng(0))
    y = small.layer(g.MatmulOp(small.input(512, 1), small.input(1, 512)))
    y = small.layer(g.MatmulOp(y, small.input(512, 512)))
    facts = least_work(small.network(y), load("df"))
    assert dram_bound(4 * 4096, 1000, [facts]).by == "compulsory"


def test_an_operand_of_two_products_is_the_own_one_of_neither():
    """The first of both has its input for itself, the second nothing."""
    small = Small(np.random.default_rng(0))
    x, w = small.input(512, 512), small.input(512, 512)
    y = small.layer(g.MatmulOp(small.layer(g.MatmulOp(x, w)), w))
    first, second = least_work(small.network(y), load("df"))["layers"]
    assert first["own"] == [-1] and first["roots"] == [-2]
    assert "matrix product" not in second


def test_windows_use_each_word_as_often_as_it_is_in_them():
    small = Small(np.random.default_rng(0))
    x, w = small.input(1, 256, 40, 40), small.input(256, 256, 3, 3)
    y = small.layer(g.ConvOp(x, w, pads=(1, 1, 1, 1)))
    (layer,) = least_work(small.network(y), load("df"))["layers"]
    inside = 3 * 40 - 2
    assert layer["matrix product"][:4] == [256 * 256 * inside**2, 9, 256 * 4, 256 * 1600]


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


def closure_of(build, *shape):
    """The greatest closure of a network of one input."""
    small = Small(np.random.default_rng(0))
    facts = least_work(small.network(build(small, small.input(*shape, element=f32))), load("df"))
    found = [each["closure"][:2] for each in facts["layers"] if "closure" in each]
    return max(found, key=lambda each: each[1], default=None)


def excited(small, x):
    y = small.layer(g.ConvOp(x, small.input(8, 4, 3, 3), pads=(1, 1, 1, 1)))
    s = small.layer(g.ReduceOp("mean", y, (2, 3)))
    s = small.layer(g.ConvOp(s, small.input(8, 8, 1, 1)))
    return small.layer(g.ConvOp(small.layer(g.BinaryOp("mul", y, s)), small.input(4, 8, 1, 1)))


def attended(small, x):
    q, k, v = (small.layer(g.MatmulOp(x, small.input(8, 8))) for _ in range(3))
    y = small.layer(g.AttentionOp(q, k, v, heads=(2, 2), sizes=(4, 4), scale=1.0, is_merged=True))
    return small.layer(g.BinaryOp("add", x, y))


@pytest.mark.parametrize(
    ("build", "shape", "groups", "words"),
    [
        (lambda s, x: s.layer(g.NormaliseOp(x, axes=(1, 2, 3), epsilon=0.0)), (3, 4, 5, 6), 3, 120),
        (lambda s, x: s.layer(g.SoftmaxOp(x, 1)), (7, 30), 7, 30),
        (lambda s, x: s.layer(g.SliceOp(s.layer(g.SoftmaxOp(x, 1)), (0, 0), (7, 9))), (7, 30), 7, 9),
        (excited, (2, 4, 10, 10), 2, 400),
        (attended, (3, 16, 8), 3, 128),
    ],
)
def test_closures(build, shape, groups, words):
    """Parts that are needed whole, and ways through what is made of them: four channels through eight and back."""
    assert closure_of(build, *shape) == [groups, words]


@pytest.mark.parametrize(
    "build",
    [
        lambda s, x: s.layer(g.UnaryOp("relu", x)),
        lambda s, x: s.layer(g.ReduceOp("mean", x, (2, 3))),
    ],
)
def test_no_closures(build):
    """No sum, and nothing behind the sum."""
    assert closure_of(build, 1, 2, 4, 4) is None


def test_nothing_is_said_of_what_pieces_hand_over_nor_of_products_with_compressed_weights():
    product = {"name": "p", "matrix product": [1 << 36, 1, 4096, 1 << 24, 2, 1 << 25], "roots": [-1]}
    piece = {"inputs": ["x"], "input_bytes": [1 << 25], "layers": [product]}
    assert dram_bound(8192, 1 << 26, [piece]).by == "matrix product 'p'"
    assert dram_bound(8192, 1 << 26, [piece], {"x"}).by == "compulsory"
    assert dram_bound(8192, 1 << 26, [piece], is_compressed=True).by == "compulsory"
    product["closure"] = [2, 1 << 20, 4, 0]
    found = dram_bound(8192, 1 << 26, [piece], is_compressed=True)
    assert found == ((1 << 26) + 2 * ((1 << 22) - 8192), "closure 'p'")


def small(sram):
    target = load("df")
    cluster = target.chip.cluster
    return replace(
        target,
        chip=replace(target.chip, cluster=replace(cluster, sram=replace(cluster.sram, capacity_bytes=sram))),
    )


def counted(y, net, **choices):
    """Figures of DRAM of a network on a machine with little SRAM, and what it moved."""
    module, _ = net.module(y)
    exe = frustum.compile(module, small(65536), "f32", compress_weights="none", **choices)
    dram = frustum.run(exe, {}, mode="timing").report["dram"]
    assert dram["compulsory_bytes"] <= dram["bound_bytes"] <= dram["total_bytes"] - dram["other_bytes"]
    return dram


@pytest.mark.slow
def test_the_report_names_the_argument():
    """A product whose operands are far larger than the memories; and one that fits."""
    for size, by in ((512, "matrix product"), (64, "compulsory")):
        net = Net()
        dram = counted(net.layer(g.MatmulOp(net.input(size, size), net.input(size, size))), net)
        assert dram["bound_by"].startswith(by)
        assert (dram["bound_bytes"] > dram["compulsory_bytes"]) == (by != "compulsory")


@pytest.mark.slow
def test_a_function_of_elements_before_a_product_changes_no_bound():
    net = Net()
    dram = counted(net.layer(g.MatmulOp(net.unary("exp", net.input(512, 512)), net.input(512, 512))), net)
    assert dram["bound_by"].startswith("matrix product")


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(bounded(2))
def test_no_compiled_network_moves_less(case):
    """Random networks, machines, types, policies, carries and codecs; 1,000 in test/soak/soak_bounds.py."""
    check_bounded(case)
