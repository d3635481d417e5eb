"""Normalisation written as plain layers computes the same, and is written so only where it does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from programs import machine
from stops import aimed, executable, modules_at_stops, run_module
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.expand_normalise import ExpandNormalise, _NormExpansion, parts_of
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.weights import store_of
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count


@pytest.mark.slow(but=13)
@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("sram_bytes", [1 << 20, 1024, 512])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("case", [((1, 2, 3), 3), ((1, 2, 3), 1), ((2, 3), 1), ((3,), 1), ((1,), 1), ((1,), 2)])
def test_plain_layers_compute_the_same(case, rms, sram_bytes, clusters):
    net, (axes, groups) = Net(), case
    x = net.input(2, 6, 5, 7)
    op = g.NormaliseOp(
        x, net.weight(6, 1, 1), net.weight(6, 1, 1), axes=axes, epsilon=1e-3, groups=groups, rms=rms
    )
    module, inputs = net.module(net.layer(op))
    plain = module.clone()
    (found,) = [each for each in plain.walk() if isinstance(each, g.NormaliseOp)]
    _NormExpansion(found, store_of(plain), target=machine(clusters, 1, capacity=sram_bytes), most=10).run()
    plain.verify()
    for wanted, got in zip(run_module(module, inputs).values(), run_module(plain, inputs).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("columns", "is_left"), [(100, True), (100_000, False)])
def test_what_fits_is_left(columns, is_left):
    net = Net()
    module, _ = net.module(
        net.layer(g.NormaliseOp(net.input(1, 4, 4, columns), axes=(1, 2, 3), epsilon=1e-3, groups=2))
    )
    module = aimed(module, "edge")
    ExpandNormalise().apply(Context(), module)
    assert any(isinstance(each, g.NormaliseOp) for each in module.walk()) == is_left


@pytest.mark.parametrize("is_read", [False, True])
def test_large_groups_that_are_read_again_are_known_by_rows(is_read):
    """A group no cluster holds, and planes no core does: where a layer reads the result, it is made where that does."""
    net = Net()
    x = net.layer(g.NormaliseOp(net.input(1, 16, 200, 200), axes=(1, 2, 3), epsilon=1e-3, groups=2))
    module = aimed(net.module(net.conv(x, 4) if is_read else x)[0], "edge")
    ExpandNormalise().apply(Context(), module)
    looked_at = [g.shape_of(op.x) for op in module.walk() if isinstance(op, g.ReduceOp) and op.kind == "variance"]
    assert (looked_at == [(1, 16, 200, 200)]) == is_read and looked_at


@pytest.mark.parametrize(
    ("groups", "columns", "is_left"),
    [(1, 1000, False), (4, 1000, False), (8, 1000, True), (4, 100, True)],  # the last: little work in each
)
def test_few_groups_are_shared_by_all_cores(groups, columns, is_left):
    """`default` has 16 cores; each channel's plane is a part by itself, and the map is seen as convolutions see it."""
    net = Net()
    op = g.NormaliseOp(net.input(1, 64, 1, columns), axes=(1, 2, 3), epsilon=1e-3, groups=groups)
    module = aimed(net.module(net.layer(op))[0], "default")
    ExpandNormalise().apply(Context(), module)
    assert any(isinstance(each, g.NormaliseOp) for each in module.walk()) == is_left
    sums = [each for each in module.walk() if isinstance(each, g.ReduceOp) and each.axes == (2, 3)]
    assert [each.kind for each in sums] == [] if is_left else ["mean", "variance"]


@pytest.mark.parametrize("shape", [(1, 2999), (1, 3, 1, 1)])
def test_parts_of_one_element_do_not_vary(shape):
    net = Net()
    axes = tuple(range(1, len(shape)))
    module, _ = net.module(net.layer(g.NormaliseOp(net.input(*shape), axes=axes, epsilon=1e-5)))
    x = {"x0": np.random.default_rng(0).normal(2, 1, shape).astype(np.float32)}
    (found,) = [each for each in module.walk() if isinstance(each, g.NormaliseOp)]
    (want,) = run_module(module, x).values()
    _NormExpansion(found, store_of(module), target=machine(1, 1), most=10).run()
    Canonicalize().apply(Context(), module)
    module.verify()
    (got,) = run_module(module, x).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mean", "deviation"), [(0, 5000), (1000, 1), (0, 1e-3)])
@pytest.mark.parametrize("rms", [False, True])
def test_between_operand_and_result_all_is_wide(mean, deviation, rms):
    net = Net()
    op = g.NormaliseOp(net.input(4, 600), axes=(1,), epsilon=1e-9, rms=rms)
    module, _ = net.module(net.layer(op))
    ConvertType(to="f16").apply(Context(), module)
    (found,) = [each for each in module.walk() if isinstance(each, g.NormaliseOp)]
    _NormExpansion(found, store_of(module), target=machine(1, 1), most=10).run()
    module.verify()
    x = np.random.default_rng(0).normal(mean, deviation, (4, 600)).astype(np.float16)
    exact = x.astype(np.float64) - (0 if rms else x.mean(1, keepdims=True, dtype=np.float64))
    exact /= np.sqrt(np.square(exact).mean(1, keepdims=True) + 1e-9)
    (got,) = run_module(module, {"x0": x}).values()
    assert np.array_equal(got, got.astype(np.float16))
    np.testing.assert_allclose(got, exact, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("total", "most", "clusters", "of_turn", "found"),
    [
        (96, 10, 1, 8, (1, 12, 8)),  # one cluster has all, in parts as long as may be
        (96, 12, 4, 8, (1, 8, 12)),
        (7680, 12, 4, 8, (20, 32, 12)),  # at most eight parts of each cluster a turn
        (7680, 12, 4, None, (1, 640, 12)),
        (7680, 12, 4, 4, (40, 16, 12)),  # of a group that leaves little room
        (90, 10, 4, 8, (1, 9, 10)),  # no number of parts is a multiple of four
        (60, 20, 4, 8, (1, 4, 15)),  # shorter parts, so that each cluster has one
    ],
)
def test_parts_are_dealt_equally_where_they_can_be(total, most, clusters, of_turn, found):
    assert parts_of(total, most, clusters, of_turn) == found


@pytest.mark.parametrize(
    ("sram_bytes", "slices", "turns"),
    [
        (1 << 16, 2, 1),  # a quarter of what all clusters have: two groups at a time
        (1 << 15, 4, 1),  # a half: one at a time
        (18 << 10, 4, 8),  # 0.89: one at a time, in turns of few parts
        (16 << 10, 0, 1),  # all of it: no group stays
    ],
)
def test_a_group_that_fits_all_clusters_is_normalised_by_itself(sram_bytes, slices, turns):
    """Four groups of two channels, 64 KiB each, in four clusters."""
    net = Net()
    x = net.input(1, 8, 64, 128)
    op = g.NormaliseOp(x, net.weight(8, 1, 1), net.weight(8, 1, 1), axes=(1, 2, 3), epsilon=1e-3, groups=4)
    module, inputs = net.module(net.layer(op))
    plain = module.clone()
    (found,) = [each for each in plain.walk() if isinstance(each, g.NormaliseOp)]
    _NormExpansion(found, store_of(plain), target=machine(4, 1, capacity=sram_bytes), most=64).run()
    plain.verify()
    cut = [g.shape_of(each.result) for each in plain.walk() if isinstance(each, g.SliceOp)]
    assert len(cut) == slices
    seen = {g.shape_of(each.x) for each in plain.walk() if isinstance(each, g.ReduceOp)}
    assert max(seen, key=np.prod)[1] == 2 * turns
    for wanted, got in zip(run_module(module, inputs).values(), run_module(plain, inputs).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    ("target", "shape", "groups"), [("default", (1, 8, 448, 1024), 2), ("edge", (1, 160, 48, 48), 16)]
)
def test_groups_move_once(target, shape, groups):
    """Of 7 MB in f32, which take 0.875 of the SRAM of all clusters, and of 92 KB, which no core holds."""
    net = Net()
    x, scale, shift = net.input(*shape), net.weight(shape[1], 1, 1), net.weight(shape[1], 1, 1)
    op = g.NormaliseOp(x, scale, shift, axes=(1, 2, 3), epsilon=1e-3, groups=groups)
    module, inputs = net.module(net.layer(op))
    choices = Choices(dtype="f32", policy="optimal")
    made = executable(modules_at_stops(module, target, choices)["fixed"], choices)
    ran = Machine(made)
    moved = count(ran.expanded, ran.target, made.code.page_bytes).dram_bytes_by_class
    (whole,) = inputs.values()
    assert moved["input"] == moved["output"] == 4 * whole.size
    assert moved.get("intermediate", 0) == 0


@pytest.mark.parametrize(("groups", "is_taken"), [(8, False), (16, True), (32, True)])
def test_functions_go_into_norms_where_each_core_has_a_group(groups, is_taken):
    """`default` has 16 cores: the elements of 8 groups go through the function twice as fast where all do that."""
    net = Net()
    made = net.layer(g.NormaliseOp(net.input(1, 64, 4, 5), axes=(1, 2, 3), epsilon=1e-3, groups=groups))
    module, given = net.module(net.unary("silu", made))
    (wanted,) = run_module(module, given).values()
    module = aimed(module, "default")
    ExpandNormalise().apply(Context(), module)
    (norm,) = [op for op in module.walk() if isinstance(op, g.NormaliseOp)]
    assert (norm.act is not None) == is_taken
    assert any(isinstance(op, g.UnaryOp) for op in module.walk()) != is_taken
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_functions_that_others_read_beside_stay_apart():
    net = Net()
    made = net.layer(g.NormaliseOp(net.input(1, 64, 4, 5), axes=(1, 2, 3), epsilon=1e-3, groups=32))
    module = aimed(net.module(net.unary("silu", made), made)[0], "default")
    ExpandNormalise().apply(Context(), module)
    assert all(op.act is None for op in module.walk() if isinstance(op, g.NormaliseOp))
