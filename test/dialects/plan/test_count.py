"""What plans move and hold, against counts by hand."""

import pytest
from xdsl.dialects.builtin import f16
from xdsl.ir import Block

from frustum.dialects import graph as g
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.tensor import Kind
from frustum.dialects.graph.axes.reader import Reader
from frustum.dialects.plan.count import PlanError, count
from frustum.dialects.plan.tree import Compute, Halo, Loop, Resident, Sequence, steps


def network(build, *shapes):
    reader, block = Reader(), Block(arg_types=[g.tensor_type(f16, shape) for shape in shapes])
    for k, own in enumerate(block.args):
        reader.views[own] = reader.root(f"x{k}", own, Kind.INPUT if k == 0 else Kind.WEIGHT)
    ops = build(*block.args)
    for op in ops:
        reader.read(op)
    reader.views[ops[-1].results[0]].pieces[0].tensor.is_output = True
    return AxisNetwork("net", reader.layers, reader.tensors)


def mlp(x, w, v):
    up = g.MatmulOp(x, w)
    act = g.UnaryOp("gelu", up.result)
    return up, act, g.MatmulOp(act.result, v)


ROWS, CHANNELS, HIDDEN = 6, 8, 20
SHAPES = (ROWS, CHANNELS), (CHANNELS, HIDDEN), (HIDDEN, CHANNELS)


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


def windows(x, w, v):
    first = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
    return first, g.ConvOp(first.result, v, None, (1, 1), (1, 1, 1, 1))


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
