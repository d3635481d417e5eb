"""Cycles of plans, by hand, against the exact closed forms of the machine, and against the emulator."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from axis_networks import SHAPES, mlp, network, windows
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.plan.core_chains import ChainCycles
from frustum.dialects.plan.count import count
from frustum.dialects.plan.cycles import run_bytes, timed
from frustum.dialects.plan.layer_cycles import MODES, ClusterCycles, products_of
from frustum.dialects.plan.parse import read_plan
from frustum.dialects.target.durations import Convolution, address_cycles, matrix_work
from frustum.passes.plan.tree.wishes import Wishes
from frustum.runtime.model.options import Request
from frustum.runtime.study.planned import planned
from frustum.runtime.tools.plan import networks_with

EDGE = targets.load("edge")
RESTART = 2 * 12
"""Cycles for the first piece of a layer to come, and the last one to leave."""
CLUSTER = ClusterCycles(EDGE.cluster)


def tree(text):
    return read_plan(f'plan @net for "edge" {text}').node


def names(axes):
    return [axis.name for axis in axes]


@pytest.fixture(scope="module")
def perceptron():
    return network(mlp, *SHAPES)


def depthwise(x, w):
    return (g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1), groups=6),)


# ------------------------------------------------------------ layers


def test_either_factor_fills_the_lines(perceptron):
    up = perceptron.layers[0]
    lines, turned = products_of(up)
    assert names(lines.positions) == names(turned.channels) == ["x0.0"]
    assert names(lines.channels) == names(turned.positions) == ["matmul.c"]
    assert len(lines.sums) == 1 and not lines.groups and not lines.taps
    assert not list(products_of(perceptron.layers[1])), "an activation is no product"


def test_windows_have_taps_and_channels_are_groups_where_both_have_them():
    net = network(windows, (1, 2, 12, 10), (4, 2, 3, 3), (2, 4, 3, 3))
    conv = next(products_of(net.layers[0]))
    assert names(conv.positions) == names(net.layers[0].result.axes[1:]) and len(conv.taps) == 2
    assert conv.row_taps == conv.taps[1:] and conv.stride == 1 and not conv.is_by_channel
    alone = next(products_of(network(depthwise, (1, 6, 8, 8), (6, 1, 3, 3)).layers[0]))
    assert len(alone.groups) == 1 and alone.is_by_channel


def test_a_product_by_hand(perceptron):
    """6 rows, 8 channels to 20 hidden ones: four cores make 5 each, in one pass of 8 steps of 2 cycles; 96 B of rows,
    320 B of weights and 240 B of results cross 4 engines of 16 B a cycle: 656 / 64, and the port as fast."""
    up = perceptron.layers[0]
    found = CLUSTER.of(up, tuple(products_of(up)), {}, {0: 96.0, 1: 320.0, -1: 240.0})
    assert (found.matrix, found.vector, found.copies) == (16, 0, 656 / 64)
    assert found.alone == 16


def test_vector_work_by_hand(perceptron):
    """120 elements, 30 for each core, in 2 steps of 16 lanes, for each of its passes."""
    act = perceptron.layers[1]
    assert CLUSTER.of(act, (), {}, {0: 240.0, -1: 240.0}).vector == 2 * act.passes


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6), columns=st.sampled_from([1, 2, 4, 8, 16, 32]), inner=st.integers(1, 40),
    outer=st.integers(1, 70), kernel=st.sampled_from([1, 3, 5]), stride=st.integers(1, 2),
)  # fmt: skip
def test_full_lines_are_the_exact_form(rows, columns, inner, outer, kernel, stride):
    """Where every fill of the 16 lines is full, `matrix_work` says the same; else no more.  Meanwhile a full table says
    where the operands are."""
    work = Convolution(16 * rows // min(columns, 16) or 1, columns, inner, outer, 2, 1, kernel, kernel, stride)
    unit, box = EDGE.cluster.core.matrix, (1, work.rows, columns, inner)
    exact = min(matrix_work(unit, work, mode).busy_cycles for mode in MODES)
    exact = max(exact, address_cycles(unit, box, kernel * kernel, part=box))
    windows_ = work.rows * work.columns
    if windows_ % 16 == 0:
        assert CLUSTER.on_matrix(work) == exact
    else:
        assert CLUSTER.on_matrix(work) >= exact


def test_arrays_of_candidates_are_the_numbers_one_by_one():
    net = network(windows, (1, 2, 12, 10), (4, 2, 3, 3), (2, 4, 3, 3))
    layer = net.layers[0]
    rows = layer.result.axes[1]
    steps = np.array([1, 2, 3, 5, 12])
    stored = {0: 100.0 * steps, -1: 80.0 * steps}
    products = tuple(products_of(layer))
    all_at_once = CLUSTER.of(layer, products, {rows: steps}, stored)
    for k, step in enumerate(steps.tolist()):
        own = CLUSTER.of(layer, products, {rows: step}, {name: float(size[k]) for name, size in stored.items()})
        assert (all_at_once.matrix[k], all_at_once.copies[k]) == (own.matrix, own.copies)


# ------------------------------------------------------------ plans


def in_chain(net, rows):
    """Layers that follow each other in the cores: of the first its operands, of the last its result cross the SRAM
    port, and all weights."""
    up, _, down = net.layers
    weights = [layer.operands[1].pieces[0].tensor.size_bytes for layer in (up, down)]
    first, last = up.operands[0].pieces[0].tensor, down.result
    stored = [{0: first.size_bytes, 1: weights[0], -1: 0}, {0: 0, -1: 0}, {0: 0, 1: weights[1], -1: last.size_bytes}]
    part = {first.axes[0]: rows}
    share = rows / first.axes[0].extent
    stored = [{k: size * (share if k != 1 else 1) for k, size in each.items()} for each in stored]
    parts = [
        CLUSTER.of(layer, tuple(products_of(layer)), part, own) for layer, own in zip(net.layers, stored, strict=True)
    ]
    return ChainCycles.of(EDGE.cluster, parts).cycles + RESTART


def test_what_is_streamed_comes_before_a_chain(perceptron):
    """One compute of three layers that hand each other all: 832 B over a port of 8 B a cycle, after the latency."""
    plan = tree('{ compute matmul, unary, "matmul#2" }')
    found = timed(perceptron, plan, EDGE)
    assert found.dram_bytes == count(perceptron, plan).dram_bytes == 96 + 320 + 320 + 96
    assert found.cycles == math.ceil(832 / 8 + EDGE.chip.dram.latency_cycles + in_chain(perceptron, 6))


def test_what_is_streamed_takes_the_port_or_the_cores(perceptron):
    """One layer after the other, since all that they make is written.  The products have 416 B each over a port of 8 B
    a cycle, of which slices are no cheaper, so that they come before the cores begin; cores take 16 and 40 cycles, and
    12 of latency.  The second product's weights come while the first one computes, but for what it leaves of the port.
    """
    net = network(lambda x, w, v: ((up := g.MatmulOp(x, w)), g.MatmulOp(up.result, v)), *SHAPES)
    plan = tree('{ resident matmul compute matmul compute "matmul#2" }')
    found = timed(net, plan, EDGE)
    port, latency = 416 / 8, EDGE.chip.dram.latency_cycles
    first = port + max(port, 16 + 12) + latency + RESTART
    assert found.taken[id(plan.children[0])] == first
    second = port + max(port, 40 + 12) + latency + RESTART
    assert found.taken[id(plan.children[1])] == second - min(port + latency, first - port)


def test_a_result_that_nobody_reads_leaves_the_core():
    """An output has no readers, yet is written to SRAM: 128 KiB in and as much out, 64 B a cycle; cores take less."""
    net = network(lambda x: (g.UnaryOp("relu", x),), (64, 1024))
    plan = tree("{ resident x0, unary compute unary }")
    found = timed(net, plan, EDGE)
    (compute,) = plan.children
    assert found.taken[id(compute)] == 2 * 64 * 1024 * 2 / 64 + 12 + RESTART > 64 * 1024 / 64


def test_residents_come_first_and_passes_overlap(perceptron):
    """Rows in three passes: weights come before the loop; of each pass counts what a chain of the layers takes, and
    once what comes before its first piece."""
    plan = tree('{ resident x1, x2 for x0.0 step 2 of 6 { compute matmul, unary, "matmul#2" } }')
    found = timed(perceptron, plan, EDGE)
    (loop,) = plan.children
    port = 2 * 64 / 8  # two rows of 16 B in, and out, runs of 32 B: as long as those of 64 B
    assert found.taken[id(loop)] == 3 * in_chain(perceptron, 2) + port + EDGE.chip.dram.latency_cycles
    assert found.cycles == math.ceil(640 / 8 + EDGE.chip.dram.latency_cycles + found.taken[id(loop)])


def test_what_a_pass_loads_comes_ahead_only_where_there_is_room(perceptron):
    """Hidden channels in two passes, whose weights are resident: 640 B; the same in a memory that takes no second copy
    of them, where each pass loads its own first."""
    body = 'for matmul.c step 10 of 20 { resident x0, x1, x2 compute matmul, unary, "matmul#2" }'
    plan = tree(f'{{ resident "matmul#2" {body} }}')
    sram = EDGE.cluster.sram
    small = count(perceptron, plan).sram_bytes + 100
    tight = replace(EDGE, chip=replace(
        EDGE.chip, cluster=replace(EDGE.cluster, sram=replace(sram, capacity_bytes=small))
    ))  # fmt: skip
    ahead, behind = (timed(perceptron, plan, target).cycles for target in (EDGE, tight))
    assert behind > ahead


def test_runs_are_what_lies_behind_each_other(perceptron):
    x = perceptron.tensors[0]
    rows, channels = x.axes
    assert run_bytes(x, {}) == 2 * 6 * 8
    assert run_bytes(x, {rows: (1, 3)}) == 2 * 2 * 8
    assert run_bytes(x, {channels: (0, 4)}) == 2 * 4


def test_clusters_share_the_work_and_pay_for_links():
    """Hidden channels over clusters: each has a quarter of them, and all receive sums over links.  Sums of 2,048
    rows are much, products of 16 hidden channels little: links are what takes longest."""
    net, target = network(mlp, (2048, 8), (8, 64), (64, 8)), targets.load("default")
    inside = '{ compute matmul, unary, "matmul#2" }'
    one = timed(net, tree(f'{{ resident x0, x1, x2, "matmul#2" {inside} }}'), target)
    loop = f"for matmul.c step 16 of 64 over clusters {inside}"
    four = timed(net, tree(f'{{ resident x0, x1, x2, "matmul#2" {loop} }}'), target)
    assert target.cluster.cdma is not None and one.link_bytes == 0 < four.link_bytes
    assert four.cycles > four.link_bytes / (4 * target.cluster.cdma.bytes_per_cycle)
    assert four.dram_bytes == one.dram_bytes


def test_energy_adds_bytes_and_products(perceptron):
    """By hand: DRAM and SRAM for what crosses the port; SRAM, and NRAM twice, for what cores take; products."""
    plan = tree("{ { compute matmul } { compute unary } { compute \"matmul#2\" } }")
    found, core = timed(perceptron, plan, EDGE), EDGE.cluster.core
    crossed = found.dram_bytes * (EDGE.chip.dram.energy_pj_per_byte + EDGE.cluster.sram.energy_pj_per_byte)
    taken = (96 + 320 + 240) + (240 + 240) + (240 + 320 + 96)
    inside = taken * (EDGE.cluster.sram.energy_pj_per_byte + 2 * core.nram.energy_pj_per_byte)
    macs = 2 * 6 * 8 * 20 * core.matrix.energy_pj_per_mac.sixteen_bit
    assert found.energy_pj == pytest.approx(crossed + inside + macs)


# ------------------------------------------------------------ the emulator


def model(tmp_path, name, nodes, x, y, **weights):
    rng = np.random.default_rng(0)
    drawn = {key: rng.standard_normal(shape).astype(np.float32) * 0.1 for key, shape in weights.items()}
    constants = [numpy_helper.from_array(array, key) for key, array in drawn.items()]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))]
    graph = helper.make_graph(nodes, name, info[:1], info[1:], constants)
    path = tmp_path / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def node(kind, inputs, **attributes):
    return helper.make_node(kind, inputs, ["y"], kind, **attributes)


LAYERS = {
    "product": ([node("MatMul", ["x", "w"])], (1, 256, 512), (1, 256, 256), {"w": (512, 256)}),
    "convolution": (
        [node("Conv", ["x", "w"], pads=[1] * 4)], (1, 32, 56, 56), (1, 32, 56, 56), {"w": (32, 32, 3, 3)},
    ),
    "depthwise": (
        [node("Conv", ["x", "w"], pads=[1] * 4, group=64)], (1, 64, 40, 40), (1, 64, 40, 40), {"w": (64, 1, 3, 3)},
    ),
    "norm": ([node("LayerNormalization", ["x", "s"], axis=-1)], (1, 512, 256), (1, 512, 256), {"s": (256,)}),
    "pool": ([node("MaxPool", ["x"], kernel_shape=[2, 2], strides=[2, 2])], (1, 64, 64, 64), (1, 64, 32, 32), {}),
    "activation": ([node("Sigmoid", ["x"])], (1, 64, 48, 48), (1, 64, 48, 48), {}),
}  # fmt: skip


@pytest.mark.slow
def test_layers_are_as_long_as_the_emulator_counts(tmp_path):
    """One layer each, of which both have the same plan: within 15 % in the median, 26 % in all."""
    off = []
    for name, (nodes, x, y, weights) in LAYERS.items():
        path = model(tmp_path, name, nodes, x, y, **weights)
        networks, _, _ = networks_with(Request(model=path, target=EDGE, dtype="f16"))
        plans = [planned(each, EDGE, wishes=Wishes("time", EDGE)) for each in networks]
        found = sum(plan.counted.cycles for plan in plans)
        command = [sys.executable, "-m", "frustum.runtime.tools.cli", "run", path, "--target", "edge", "--dtype", "f16"]
        command += ["--mode", "timing", "--compress-weights", "none", "--policy", "tree", "--json"]
        report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        off.append(abs(found / report["cycles"]["total"] - 1))
    assert np.median(off) <= 0.15 and max(off) <= 0.26, dict(zip(LAYERS, off, strict=True))


def test_what_rolls_along_an_outer_loop_does_not_come_ahead():
    """A map in passes over columns, and over rows in each: its columns stay for the next pass over columns in one ring
    for all rows, so loads and products take turns.  Over rows alone they overlap."""
    net = network(lambda x, w: (g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1)),), (1, 16, 64, 64), (16, 16, 3, 3))
    own = "resident x0 compute conv"
    rolling = f"for conv.x step 16 of 64 rolling {{ for conv.y step 8 of 64 rolling {{ {own} }} }}"
    raster = timed(net, tree(f"{{ resident x1 {rolling} }}"), EDGE)
    rows = timed(net, tree(f"{{ resident x1 for conv.y step 4 of 64 rolling {{ {own} }} }}"), EDGE)
    (layer,) = net.layers
    loads = 4 * 16 * 64 * 64 / EDGE.chip.dram.port_bytes_per_cycle
    products = float(CLUSTER.of(layer, tuple(products_of(layer)), {}, {}).matrix)
    assert raster.cycles > loads + products > rows.cycles


def test_at_ease_slices_are_as_wide_as_the_least_run_in_dram_wants_them():
    """16 columns of weights of 2 bytes are runs of 32 bytes, of which the port of `edge` takes 64: with 32 columns, in
    two copies, slices take 8 x 32 x 2 elements more."""
    net = network(mlp, (6, 8), (8, 200), (200, 8))
    counted = timed(net, tree('{ compute matmul, unary, "matmul#2" }'), EDGE)
    assert counted.at_ease is not None and EDGE.chip.dram.minimum_run_bytes == 64
    (first, plain), *_ = counted.needed.items()
    assert first[1] == "matmul" and counted.at_ease.needed[first] - plain == 2 * 16 * 8 * 2
    assert count(net, tree('{ compute matmul, unary, "matmul#2" }')).at_ease is None
