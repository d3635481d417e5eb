"""What plans move and hold, against counts by hand."""

import pytest
from axis_networks import CHANNELS, HIDDEN, ROWS, SHAPES, mlp, network, windows

from frustum.dialects import graph as g
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.count import count
from frustum.dialects.plan.tree import Compute, Halo, Loop, Part, Resident, Sequence, steps


def test_layer_by_layer_every_tensor_crosses_the_port():
    net = network(mlp, *SHAPES)
    names = [layer.name for layer in net.layers]
    plan = Sequence(tuple(Compute((name,)) for name in names))
    hidden = 2 * ROWS * HIDDEN
    assert count(net, plan).dram_bytes == net.compulsory_bytes + 4 * hidden


def test_layers_of_one_compute_pass_tiles_on_chip():
    net = network(mlp, *SHAPES)
    names = tuple(layer.name for layer in net.layers)
    assert count(net, Compute(names)).dram_bytes == net.compulsory_bytes


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_sum_over_hidden_channels_waits_in_sram_or_moves_each_pass(is_kept):
    net = network(mlp, *SHAPES)
    names = tuple(layer.name for layer in net.layers)
    hidden = net.layers[0].result.axes[1]
    loop = Loop(hidden.name, steps(HIDDEN, 5), Sequence((Compute(names),)))
    kept = Resident("x0", 0, 0), Resident(net.layers[2].result.name, 0, 0)
    found = count(net, Sequence((loop,), kept[: 1 + is_kept]))
    result, passes = 2 * ROWS * CHANNELS, 4
    assert found.dram_bytes == net.compulsory_bytes + (0 if is_kept else 2 * (passes - 1) * result)
    assert found.points[names[0]] == ROWS * CHANNELS * HIDDEN


@pytest.mark.parametrize("halo", [Halo.RECOMPUTED, Halo.ROLLING])
def test_halos_are_recomputed_or_roll(halo):
    net = network(windows, (1, 2, 12, 10), (4, 2, 3, 3), (2, 4, 3, 3))
    first, second = net.layers
    rows = second.result.axes[1]
    loop = Loop(rows.name, steps(12, 4), Sequence((Compute((first.name, second.name)),)), halo)
    weights = tuple(Resident(f"x{k}", 0, 0) for k in (1, 2))
    found = count(net, Sequence((loop,), weights))
    made = {Halo.RECOMPUTED: 5 + 6 + 5, Halo.ROLLING: 12}[halo]
    assert found.points[first.name] == made * 10 * 4 * 2 * 9
    assert found.points[second.name] == 12 * 10 * 2 * 4 * 9


def grouped(x, w, scale, v):
    """The norm splits the channels of what it reads, which the first layer makes whole."""
    first = g.ConvOp(x, w, None, (1, 1), (0, 0, 0, 0))
    norm = g.NormaliseOp(first.result, scale, None, axes=(1, 2, 3), epsilon=1e-5, groups=2)
    return first, norm, g.ConvOp(norm.result, v, None, (1, 1), (0, 0, 0, 0))


def test_an_axis_that_was_split_counts_once():
    net = network(grouped, (1, 3, 5, 5), (6, 3, 1, 1), (1, 6, 1, 1), (4, 6, 1, 1))
    alone = Sequence(tuple(Compute((layer.name,)) for layer in net.layers))
    first, sums, norm, _ = (layer.result for layer in net.layers)
    passed = 3 * first.size_bytes + 2 * sums.size_bytes + 2 * norm.size_bytes
    assert count(net, alone).dram_bytes == net.compulsory_bytes + passed
    held = Sequence(alone.children, (Resident(first.name, 0, 2),))
    assert count(net, held).dram_bytes == net.compulsory_bytes + passed - 3 * first.size_bytes


def halved(x, w, v):
    first = g.ConvOp(x, w, None, (1, 1), (0, 0, 0, 0))
    return first, g.ConvOp(first.result, v, None, (2, 1), (0, 0, 0, 0))


@pytest.mark.parametrize("is_part", [True, False])
def test_a_resident_that_a_pass_does_not_touch_takes_nothing(is_part):
    net = network(halved, (1, 2, 12, 10), (4, 2, 1, 1), (2, 4, 1, 1))
    first, second = net.layers
    rows, part = first.result.axes[1], Part(second.result.axes[0].name, 0, 2)
    kept = Resident(first.name, 0, 1), Resident(second.name, 1, 1, part if is_part else None)
    loop = Loop(rows.name, steps(12, 1), Sequence((Compute((first.name,)), Compute((second.name,))), kept))
    found = count(net, Sequence((loop,), (Resident("x1", 0, 0), Resident("x2", 0, 0))))
    once = sum(tensor.size_bytes for tensor in net.tensors if tensor is not first.result)
    assert found.dram_bytes == net.compulsory_bytes < once, "the second layer skips rows, nobody makes them"


def test_a_tree_that_is_no_plan_is_refused_in_words():
    net = network(mlp, *SHAPES)
    up, act, down = (layer.name for layer in net.layers)
    hidden = net.layers[0].result.axes[1]
    with pytest.raises(PlanError, match="no compute has"):
        count(net, Compute((up, act)))
    with pytest.raises(PlanError, match="move its maker before it"):
        count(net, Compute((act, up, down)))
    channels = next(iter(net.layers[0].combine))
    with pytest.raises(PlanError, match="whole after the last pass"):
        count(net, Loop(channels.name, steps(CHANNELS, 4), Sequence((Compute((up, act, down)),))))
    with pytest.raises(PlanError, match="no axis is called"):
        count(net, Loop("rows", (0, 1), Sequence((Compute((up, act, down)),))))
    assert hidden.name
