"""Attention as one layer: every level computes what the graph says, whatever the target and how it is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_nets import attention, check, of_planes
from networks import Net
from stops import executable, modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.layer_work import work_of
from frustum.passes.plan.pieces import plan_layer
from frustum.runtime.machine import Machine
from frustum.runtime.time.work import work


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("target_name", ["edge", "default"])
def test_heads_and_rows_are_cut(target_name, dtype):
    layers = check(*attention((4, 4), (16, 16), 70, 90, batch=2), target_name, dtype)
    assert [layer.kind.data for layer in layers] == ["attention"]


@pytest.mark.slow
def test_keys_are_cut_where_the_scores_of_all_do_not_fit():
    (layer,) = check(*attention((2, 2), (32, 32), 256, 1024), "edge", "f16")
    assert layer.map.data.channels < 1024


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("heads", [(6, 3), (8, 1), (3, 3)])
@pytest.mark.parametrize("is_apart", [False, True])
def test_groups_of_heads_share_keys_and_values(heads, is_apart):
    check(*attention(heads, (16, 8), 20, 33, is_apart=is_apart, is_merged=not is_apart), "edge")


@pytest.mark.slow
@pytest.mark.parametrize("constants, rest", [("q", {}), ("k", {"is_apart": True}), ("kv", {"is_channels_first": True})])
@pytest.mark.parametrize("target_name", ["edge", "default"])
def test_operands_are_weights(target_name, constants, rest):
    check(*attention((4, 4), (16, 16), 40, 200, constants=constants, is_merged=not rest, **rest), target_name, "f16")


@pytest.mark.parametrize("target_name", ["edge", "default"])
def test_channels_come_first(target_name):
    check(*attention((6, 3), (16, 8), 20, 33, batch=2, mask=(20, 33), is_channels_first=True), target_name)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("plane, key_plane", [((6, 5), (6, 5)), ((5, 9), (8, 3)), ((1, 7), (6, 1))])
@pytest.mark.parametrize("target_name", ["edge", "default"])
def test_rows_are_positions_of_planes(target_name, plane, key_plane):
    sizes = {"heads": (6, 3), "sizes": (16, 8), "softcap": 1.5, "batch": 2}
    (layer,) = check(*of_planes(plane, key_plane, **sizes), target_name)
    assert layer.layer.widths == (plane[1], key_plane[1])


@pytest.mark.slow
def test_keys_of_planes_are_cut_in_rows():
    (layer,) = check(*of_planes((12, 20), (24, 20), heads=(2, 2), sizes=(32, 32)), "edge", "f16")
    assert layer.map.data.channels % 20 == 0
    assert layer.map.data.channels < 480


@pytest.mark.slow
@pytest.mark.parametrize("target_name", ["edge", "default"])
def test_planes_are_read_as_convolutions_leave_them(target_name):
    net, size = Net(), 8
    x = net.input(1, 3 * size, 6, 6)
    made = net.conv(x, 9 * size, 1)
    flat = net.layer(g.ReshapeOp(made, (1, 9 * size, 36)))
    attended = net.layer(
        g.AttentionOp(flat, flat, flat, heads=(3, 3), sizes=(size, size), firsts=(0, 3 * size, 6 * size), scale=0.3,
                      is_channels_first=True)
    )  # fmt: skip
    back = net.layer(g.ReshapeOp(attended, (1, 3 * size, 6, 6)))
    module, inputs = net.module(net.conv(back, 3 * size, 1, residual=x))
    layers = check(module, inputs, target_name)
    assert [layer.kind.data for layer in layers].count("attention") == 1
    found = modules_at_stops(module, target_name, Choices())["placed"]
    moved = [op for op in found.walk() if isinstance(op, t.StoreOp)]
    assert len(moved) == 1


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("mask", [(20, 33), (2, 1, 20, 33), (1, 6, 1, 33), (6, 20, 1)])
def test_what_is_added_to_scores_is_broadcast(mask, softcap):
    check(*attention((6, 2), (8, 12), 20, 33, batch=2, mask=mask, softcap=softcap), "edge")


@pytest.mark.slow
def test_a_row_that_sees_no_key_is_zero():
    module, inputs = attention((2, 2), (16, 16), 40, 300, mask=(40, 300))
    inputs["x3"][7:30] = -np.inf
    inputs["x3"][3, 60:] = -np.inf
    inputs["x3"][4, :280] = -np.inf
    check(module, inputs, target("edge"), "f16")


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [-6, 0, 13])
@pytest.mark.parametrize("target_name", ["edge", "default"])
def test_later_keys_are_hidden(target_name, ahead):
    check(*attention((4, 2), (16, 16), 90, 100, causal_from=ahead), target_name)


@pytest.mark.slow
@pytest.mark.soak
def test_blocks_of_hidden_keys_are_not_computed():
    module, inputs = attention((2, 2), (32, 32), 512, 512, causal_from=0)
    check(module, inputs, "edge", "f16")
    plain, _ = attention((2, 2), (32, 32), 512, 512)
    causal, whole = (macs_of(each) for each in (module, plain))
    assert causal < 0.7 * whole


def macs_of(module):
    """Multiply-accumulates that the machine does."""
    machine = Machine(executable(modules_at_stops(module, "edge", Choices(dtype="f16"))["fixed"]))
    return int(work(machine.expanded, machine.expanded.core, machine.target).macs.sum())


def twice(**changes):
    """A network whose scores the matrix unit of `default` has time to make twice."""
    return attention((4, 4), (32, 32), 256, 512, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("carry", ["auto", "f32"])
def test_scores_are_made_twice_where_the_vector_unit_has_more_to_do(dtype, carry):
    """Of f32 a step takes eight cycles, so that it has not; wide scores are made once."""
    (layer,) = check(*twice(), "default", dtype, carry=carry)
    assert layer.map.data.twice == (dtype != "f32" and carry == "auto")


@pytest.mark.slow
def test_a_small_matrix_unit_makes_scores_once():
    (layer,) = check(*twice(), "edge", "f16")
    assert not layer.map.data.twice


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"softcap": 1.5}, {"causal_from": 3}])
def test_scores_with_something_between_are_made_once(changes):
    (layer,) = check(*twice(**changes), "default", "f16")
    assert not layer.map.data.twice


@pytest.mark.slow
@pytest.mark.parametrize("changes", [
    {"mask": (4, 1, 512)}, {"mask": (4, 256, 1)}, {"batch": 2, "mask": (2, 1, 1, 512)},
])  # fmt: skip
def test_what_is_added_to_scores_is_added_twice(changes):
    (layer,) = check(*twice(**changes), "default", "f16", carry="element")
    assert layer.map.data.twice


def test_the_only_piece_of_a_core_makes_scores_twice():
    """No loop has the next piece meanwhile: what is made again comes before what reads it."""
    (layer,) = check(*attention((1, 1), (2, 2), 8, 8), "tiny", "f16")
    assert layer.map.data.twice and layer.map.data.extent[3] * 4 == 8


def test_what_a_core_makes_first_leaves_while_it_makes_the_rest():
    """Of its share of the rows a core makes several pieces, though one would load keys and values once."""
    module, _ = attention((4, 4), (32, 32), 1024, 1024)
    (op,) = [each for each in module.walk() if isinstance(each, g.AttentionOp)]
    (layer,) = layers_of([op]).layers
    layer = replace(layer, maps=tuple(replace(own, element_bytes=2) for own in layer.maps), out_bytes=2)
    plan = plan_layer(work_of(layer, (1, 32, 1, 1024)), target("default"), "unit", MAX_LOOPS)
    assert plan.map.extent[3] < 1024 // target("default").cluster.cores


@pytest.mark.slow
def test_tiles_are_not_cut_where_the_matrix_unit_waits_for_the_first_weights_of_each():
    """In f32 a tile of half as many rows would take it as long, less what it waits for."""
    (layer,) = check(*attention((4, 4), (32, 32), 256, 256), "default")
    assert layer.map.data.extent[3] == target("default").core.matrix.lines


@pytest.mark.slow
@pytest.mark.soak
def test_blocks_of_scores_made_twice_become_less():
    """The highest scores grow from block to block, and blocks are several."""
    module, inputs = attention((4, 4), (32, 32), 1024, 1024)
    inputs["x1"][..., :] *= np.linspace(0.1, 4, 1024, dtype=np.float32)[None, :, None]
    (layer,) = check(module, inputs, "default", "f16")
    assert layer.map.data.twice and layer.map.data.channels < 1024


@pytest.mark.slow
@pytest.mark.parametrize("dtype, atol", [("f16", 4e-3), ("bf16", 4e-2)])
def test_rows_that_see_no_key_or_are_far_from_0_are_numbers(dtype, atol):
    """Masked by -inf a row is 0; by the lowest of f16 in all places, or by as much as makes steps of f16 and bf16
    coarse, no power exceeds its type, and a row that is moved as a whole stays within the values that it weighs."""
    module, inputs = twice(mask=(4, 256, 1))
    mask = inputs["x3"]
    mask[:] = 0
    mask[:, 7:30] = -np.inf
    mask[:, 40] = -65504
    mask[:, 50], mask[:, 51] = 33000, -33000
    stops = modules_at_stops(module, "default", Choices(dtype=dtype, carry="element"))
    (layer,) = (op for op in stops["placed"].walk() if isinstance(op, t.ComputeOp))
    assert layer.map.data.twice
    (got,) = run_module(stops["fixed"], inputs, checked=True).values()
    (wanted,) = run_module(module, inputs).values()
    assert np.isfinite(got).all() and (got[0, 7:30] == 0).all()
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(got[0, 60:], wanted[0, 60:], rtol=0, atol=atol * scale)
    assert np.abs(got).max() <= 1.01 * np.abs(inputs["x2"]).max()


def test_two_instructions_of_the_vector_unit_see_scores_made_twice():
    """One looks for the highest, one adds powers up."""
    found = modules_at_stops(twice()[0], "default", Choices(dtype="f16"))["lowered"]
    ops = [op for op in found.walk() if isinstance(op, isa.ConvOp | isa.ReduceOp)]
    assert [op.kind.data for op in ops if isinstance(op, isa.ReduceOp)] == ["max", "sum"]
    again = [op for op in ops if isinstance(op, isa.ConvOp) and op.act is not None]
    assert [op.act.data.kind for op in again] == ["exp"]
    assert again[0].continues is not None and again[0].accumulate is None


def test_hidden_keys_have_no_part_in_scores_made_twice():
    module, inputs = twice(mask=(4, 1, 512))
    inputs["x3"][..., 100:] = -np.inf
    (layer,) = check(module, inputs, "default", "f16", carry="element")
    assert layer.map.data.twice
