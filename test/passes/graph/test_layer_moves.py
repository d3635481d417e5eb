"""Moves of maps are written as layers where they are some, and give the same elements."""

from __future__ import annotations

import numpy as np
import pytest
from after_pass import after_pass
from networks import Net
from plan_cases import moved_bytes
from searches import with_sram
from stops import run_module
from xdsl.context import Context
from xdsl.utils.exceptions import VerifyException

from frustum.dialects import graph
from frustum.passes.graph.layer_moves import LayerMoves


def checked(net, *results):
    """The kinds of moves, in order, after the pass, which changes no element."""
    found = after_pass(LayerMoves(), net, *results)
    kinds = (graph.SliceOp, graph.PickOp, graph.TransposeOp, graph.TurnOp, graph.ConcatOp, graph.ReshapeOp)
    return [op for op in found.walk() if isinstance(op, kinds)]


def names(ops):
    return [op.name.removeprefix("fgraph.") for op in ops]


def test_a_slice_of_a_map_is_a_pick():
    net = Net()
    x = net.layer(graph.SliceOp(net.input(1, 6, 8, 8), (0, 2, 1, 0), (1, 3, 4, 3), (1, 1, 2, 3)))
    (op,) = checked(net, net.unary("relu", x))
    assert (op.name, op.starts, op.steps) == ("fgraph.pick", (0, 2, 1, 0), (1, 1, 2, 3))


def test_backwards_is_no_pick():
    net = Net()
    x = net.layer(graph.SliceOp(net.input(1, 2, 4, 4), (0, 0, 3, 0), (1, 2, 4, 4), (1, 1, -1, 1)))
    assert names(checked(net, net.unary("relu", x))) == ["slice"]


@pytest.mark.parametrize("half", [0, 1])
def test_half_of_shuffled_channels_is_a_pick(half):
    """As in ShuffleNet v2: [N, C/2, 2, HW] turned to two tensors, of which one is read."""
    net = Net()
    x = net.conv(net.input(1, 3, 4, 6), 8)
    pairs = net.layer(graph.TransposeOp(net.layer(graph.ReshapeOp(x, (4, 2, 24))), (1, 0, 2)))
    two = net.layer(graph.ReshapeOp(pairs, (2, 1, 4, 4, 6)))
    one = net.layer(graph.SliceOp(two, (half, 0, 0, 0, 0), (1, 1, 4, 4, 6)))
    ops = checked(net, net.unary("relu", net.layer(graph.ReshapeOp(one, (1, 4, 4, 6)))))
    assert names(ops) == ["pick"]
    assert (ops[0].starts, ops[0].steps) == ((0, half, 0, 0), (1, 2, 1, 1))


def test_a_slice_across_channels_is_left():
    net = Net()
    flat = net.layer(graph.ReshapeOp(net.conv(net.input(1, 3, 4, 4), 4), (1, 64)))
    assert "slice" in names(checked(net, net.layer(graph.SliceOp(flat, (0, 5), (1, 40)))))


def test_channels_last_is_a_turn_also_of_positions_in_a_row():
    net = Net()
    x = net.conv(net.input(1, 3, 4, 6), 5)
    y = net.layer(graph.TransposeOp(net.layer(graph.ReshapeOp(x, (1, 5, 24))), (0, 2, 1)))
    assert names(checked(net, net.unary("relu", y))) == ["turn", "reshape"]


def test_channels_first_is_a_turn():
    net = Net()
    x = net.layer(graph.TransposeOp(net.input(1, 4, 6, 3), (0, 3, 1, 2)))
    assert names(checked(net, net.conv(x, 2))) == ["turn"]


def test_other_transpositions_are_left():
    net = Net()
    x = net.layer(graph.TransposeOp(net.input(1, 4, 6, 3), (0, 1, 3, 2)))
    assert names(checked(net, net.unary("relu", x))) == ["transpose"]


def test_maps_of_several_scales_are_turned_before_they_are_joined():
    net = Net()
    x = net.input(1, 3, 8, 8)
    maps = [net.conv(x, 5), net.conv(x, 5, strides=(2, 2))]
    flat = [net.layer(graph.ReshapeOp(m, (1, 5, graph.shape_of(m)[2] ** 2))) for m in maps]
    y = net.layer(graph.TransposeOp(net.layer(graph.ConcatOp(flat, 2)), (0, 2, 1)))
    ops = checked(net, net.unary("relu", y))
    assert sorted(names(ops)) == ["concat", "reshape", "reshape", "turn", "turn"]
    assert next(op for op in ops if op.name == "fgraph.concat").axis == 1


def padded_average(value):
    net = Net()
    x = net.layer(graph.PadOp(net.conv(net.input(1, 3, 6, 6), 4), (0, 0, 1, 1), (0, 0, 1, 2), value))
    module, inputs = net.module(net.pool("avg", x, 3, 2))
    found = module.clone()
    LayerMoves().apply(Context(), found)
    found.verify()
    np.testing.assert_array_equal(run_module(found, inputs)["y0"], run_module(module, inputs)["y0"])
    return [op for op in found.walk() if isinstance(op, (graph.PadOp, graph.PoolOp))]


def test_a_border_of_zeros_is_in_the_average():
    (pool,) = padded_average(0.0)
    assert (pool.pads, pool.count_include_pad) == ((1, 1, 1, 2), True)


def test_another_border_is_left():
    assert names(padded_average(1.0)) == ["pad", "pool"]


def test_a_softmax_is_where_its_axis_is():
    net = Net()
    x = net.layer(graph.TransposeOp(net.conv(net.input(1, 3, 4, 6), 5), (0, 2, 3, 1)))
    y = net.layer(graph.TransposeOp(net.layer(graph.SoftmaxOp(x, 3)), (0, 3, 1, 2)))
    assert checked(net, net.unary("relu", y)) == []


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 5, 4)])
def test_a_second_factor_is_read_by_strides(shape, is_turned):
    """Turned by a move, or twice: by the product too."""
    rank, net = len(shape), Net()
    turned = graph.TransposeOp(net.input(*shape), (*range(rank - 2), rank - 1, rank - 2))
    x = net.input(*shape[:-2], 6, shape[-2 if is_turned else -1])
    assert checked(net, net.layer(graph.MatmulOp(x, net.layer(turned), trans_b=is_turned))) == []


def test_a_second_factor_whose_batch_moves_is_turned():
    net = Net()
    turned = graph.TransposeOp(net.input(3, 2, 5, 4), (1, 0, 3, 2))
    assert names(checked(net, net.layer(graph.MatmulOp(net.input(2, 3, 6, 4), net.layer(turned))))) == ["transpose"]


def test_steps_of_a_pick_are_above_zero():
    net = Net()
    op = graph.PickOp(net.input(1, 4, 2, 2), (0, 3, 0, 0), (1, 4, 2, 2), (1, -1, 1, 1))
    with pytest.raises(
        VerifyException, match=r"fgraph.pick: steps \(1, -1, 1, 1\) of \(1, 4, 2, 2\); allowed: steps above 0"
    ):
        op.verify()


def test_a_turn_puts_channels_last_or_first():
    net = Net()
    op = graph.TurnOp(net.input(1, 4, 2, 2), (0, 1, 3, 2))
    with pytest.raises(
        VerifyException, match=r"fgraph.turn: perm \(0, 1, 3, 2\); allowed: \(0, 2, 3, 1\), \(0, 3, 1, 2\)"
    ):
        op.verify()


def rotated(end=(0, 2, 1, 3), read_again=False, weight=(12, 1, 4)):
    """Halves of the channels of [N, heads, tokens, channels], multiplied and turned, as [N, tokens, heads, channels]:
    what is left of the moves."""
    net = Net()
    turned = net.layer(graph.TransposeOp(net.input(2, 3, 12, 8), (0, 2, 1, 3)))
    a, b = (net.layer(graph.SliceOp(turned, (0, 0, 0, k), (2, 12, 3, 4))) for k in (0, 4))
    c = net.weight(*weight)
    halves = [net.binary("mul", a, c), net.unary("neg", net.binary("mul", b, c))]
    joined = net.layer(graph.ConcatOp(halves, 3))
    y = net.layer(graph.TransposeOp(joined, end))
    return checked(net, *([y, joined] if read_again else [y]))


def test_transpositions_that_undo_each_other_go():
    ops = rotated()
    assert names(ops) == ["pick", "pick", "reshape", "concat"]  # the constant is seen otherwise once for both readers
    assert graph.shape_of(ops[-1].result) == (2, 3, 12, 8)


@pytest.mark.parametrize(
    "case",
    [
        {"end": (0, 3, 1, 2)},  # another order than before
        {"read_again": True},  # somebody reads the turned tensor
        {"weight": (12, 3, 4)},  # a constant would have to be turned
    ],
)
def test_transpositions_stay_where_one_is_needed(case):
    found = names(rotated(**case))
    assert found.count("transpose") + found.count("turn") >= 2


@pytest.mark.parametrize("where", ["edge", "default"])
def test_a_map_beside_itself_is_loaded_once(where):
    """Its second and third place are copies within the unit; DRAM has it read once and the result written."""
    net = Net()
    x = net.input(1, 2, 4, 4)
    joined = net.layer(graph.ConcatOp([x, x, x], 1))
    concat = checked(net, net.unary("relu", joined))[0]
    assert len(set(concat.operands)) == 3
    net = Net()
    x = net.input(1, 2, 4, 4)
    module, _ = net.module(net.unary("relu", net.layer(graph.ConcatOp([x, x], 1))))
    assert moved_bytes(module, with_sram(where, 3), "f32", "optimal") == 4 * 32 + 4 * 64
