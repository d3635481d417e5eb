"""Layers beside products and channels-last maps see their tensors as these do; units of them compute the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from agreement import check_agreement
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from stops import aimed, modules_at_stops, run_module
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.graph import shape_of
from frustum.passes.analysis.layer import layer_of
from frustum.passes.analysis.layer.nest import chosen_form
from frustum.passes.errors import Unsupported
from frustum.passes.graph.choose_forms import ChooseForms


def with_forms(net, *results):
    module, _ = net.module(*results)
    ChooseForms().apply(Context(), module)
    module.verify()
    return [
        op
        for op in module.walk()
        if op.name in ("fgraph.binary", "fgraph.unary", "fgraph.reduce", "fgraph.softmax")
    ]


def test_layers_around_a_product_see_its_channels():
    net = Net()
    y = net.layer(g.MatmulOp(net.input(2, 6, 8), net.weight(8, 4)))
    ops = with_forms(net, net.layer(g.SoftmaxOp(net.binary("add", y, net.weight(4)), 2)))
    assert [chosen_form(op) for op in ops] == [(3, 3, 1), (3, 3, 1)]
    assert {layer_of(op).out_dims for op in ops} == {(1, 4, 1, 12)}


def test_scores_have_images_for_heads():
    net = Net()
    scores = net.layer(g.MatmulOp(net.input(2, 3, 6, 8), net.input(2, 3, 8, 5)))
    ops = with_forms(net, net.layer(g.SoftmaxOp(net.binary("add", scores, net.weight(1, 1, 6, 5)), 3)))
    assert [chosen_form(op) for op in ops] == [(0, 0, 3, 1)] * 2
    assert layer_of(ops[0]).maps[1].dims == (1, 5, 1, 6)


def test_norms_of_planes_see_rows_and_columns_as_convolutions_do():
    net = Net()
    made = net.layer(g.NormaliseOp(net.conv(net.input(1, 4, 6, 5), 4), net.weight(4, 1, 1), axes=(2, 3), epsilon=1e-5))
    module, _ = net.module(net.conv(made, 4))
    ChooseForms().apply(Context(), module)
    norm = made.owner
    assert layer_of(norm).out_dims == layer_of(norm).maps[0].dims == (1, 4, 6, 5) and layer_of(norm).axes_all == (2, 3)


def test_products_around_attention_have_its_images():
    net = Net()
    x = net.input(2, 6, 8)
    q, k, v = (net.layer(g.MatmulOp(x, net.weight(8, 8))) for _ in range(3))
    y = net.layer(g.AttentionOp(q, k, v, heads=(2, 2), sizes=(4, 4), scale=0.5, is_merged=True))
    (added,) = with_forms(net, net.binary("add", net.layer(g.MatmulOp(y, net.weight(8, 8))), x))
    assert chosen_form(added) == (0, 3, 1)
    assert layer_of(q.owner).out_dims == layer_of(y.owner).maps[0].dims == (2, 8, 1, 6)


def test_a_norm_over_the_last_axis_of_a_map_keeps_rows_and_columns():
    net = Net()
    x = net.input(1, 5, 6, 8)
    mean = net.layer(g.ReduceOp("mean", x, (3,)))
    ops = with_forms(net, net.binary("sub", x, mean))
    assert [chosen_form(op) for op in ops] == [(0, 2, 3, 1)] * 2
    assert layer_of(ops[0]).out_dims == (1, 1, 5, 6)


def test_layers_beside_convolutions_stay_as_they_are():
    net = Net()
    x = net.conv(net.input(1, 3, 6, 8), 4)
    ops = with_forms(net, net.conv(net.layer(g.SoftmaxOp(net.unary("tanh", x), 3)), 4))
    assert [chosen_form(op) for op in ops] == [None, None]


def test_what_no_form_can_say_is_left():
    """A sum along the channels and another axis at once, beside a product."""
    net = Net()
    y = net.layer(g.MatmulOp(net.input(2, 6, 8), net.weight(8, 4)))
    ops = with_forms(net, net.layer(g.ReduceOp("sum", y, (1, 2))))
    assert [chosen_form(op) for op in ops] == [None]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_loops_reach_every_element_once(rank, data):
    """The strides of a layer's result, over its loops, are the places of a dense tensor."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    net = Net()
    x = net.layer(g.MatmulOp(net.input(*shape[:-1], 3), net.weight(3, shape[-1])))
    small = [extent if data.draw(st.booleans()) else 1 for extent in shape]
    for op in filter(chosen_form, with_forms(net, net.binary("mul", x, net.input(*small)))):
        layer = layer_of(op)
        places = sum(
            np.arange(extent).reshape([-1 if i == d else 1 for i in range(4)]) * stride
            for d, (extent, stride) in enumerate(zip(layer.out_dims, layer.out_view.strides, strict=True))
        )
        assert sorted(np.ravel(places)) == list(range(math.prod(shape_of(op.results[0]))))


ONE_POSITION = {
    "softmax": lambda x: g.SoftmaxOp(x, 1),
    "sum": lambda x: g.ReduceOp("sum", x, axes=(1,)),
    "largest": lambda x: g.ReduceOp("max", x, axes=(1,)),
    "norm": lambda x: g.NormaliseOp(x, axes=(1,), epsilon=1e-2),
    "rms": lambda x: g.NormaliseOp(x, axes=(1,), epsilon=1e-2, rms=True),
}


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("layer", ONE_POSITION)
@pytest.mark.parametrize("is_product", [True, False])
def test_an_axis_of_one_position_is_summed_by_itself(layer, is_product):
    """No other axis is part of its loop, whether the form is that of a product or of its own."""
    net = Net()
    x = net.input(2, 1, 3, 8)
    if is_product:
        x = net.layer(g.MatmulOp(x, net.weight(8, 4)))
    module, inputs = net.module(net.layer(ONE_POSITION[layer](x)))
    modules = modules_at_stops(module, "tiny", Choices(policy="none"))
    check_agreement({stop: run_module(modules[stop], inputs) for stop in ("typed", "placed", "fixed")}, "f32")


def test_elements_normalised_one_by_one_need_a_loop_that_is_free():
    net = Net()
    x = net.input(2, 3, 1, 4, 5)
    y = net.layer(g.NormaliseOp(x, net.weight(3, 1, 4, 5), axes=(2,), epsilon=1e-2))
    assert (layer_of(y.owner).out_dims, layer_of(y.owner).kind.axes) == ((1, 1, 2, 60), (0,))
    z = net.layer(g.NormaliseOp(x, net.weight(2, 1, 1, 4, 1), net.weight(2, 1, 1, 1, 5), axes=(2,), epsilon=1e-2))
    with pytest.raises(Unsupported, match="each element is normalised by itself in four loops of"):
        layer_of(z.owner)


def test_products_beside_attention_have_its_images_though_an_mlp_behind_has_not():
    """On `edge` an MLP of four images would read its weights once for each; what attention reads does not."""
    net = Net()
    x = net.input(4, 49, 256)
    q, k, v = (net.layer(g.MatmulOp(x, net.weight(256, 256))) for _ in range(3))
    y = net.layer(g.AttentionOp(q, k, v, heads=(8, 8), sizes=(32, 32), scale=0.2, is_merged=True))
    total = net.binary("add", net.layer(g.MatmulOp(y, net.weight(256, 256))), x)
    hidden = net.layer(g.MatmulOp(total, net.weight(256, 1024)))
    module, _ = net.module(net.binary("add", net.layer(g.MatmulOp(hidden, net.weight(1024, 256))), total))
    module = aimed(module, "edge")
    ChooseForms().apply(Context(), module)
    forms = [chosen_form(op) for op in module.walk() if isinstance(op, g.MatmulOp)]
    assert forms == [(0, 3, 1)] * 4 + [None] * 2


def test_images_are_picked_in_the_form_of_their_readers():
    """Sums along the last axis see it as channels, and so does what takes one image; what takes columns does not, and
    its reader then sees each axis as a loop of its own, as it does."""
    net = Net()
    x, other = net.input(3, 2, 5, 7), net.input(3, 2, 5, 9)
    image = net.layer(g.PickOp(x, (1, 0, 0, 0), (1, 2, 5, 7), (1, 1, 1, 1)))
    columns = net.layer(g.PickOp(other, (0, 0, 0, 2), (3, 2, 5, 7), (1, 1, 1, 1)))
    ops = with_forms(net, *(net.layer(g.ReduceOp("mean", each, (3,), True)) for each in (image, columns)))
    assert [chosen_form(op) for op in (image.owner, columns.owner, *ops)] == [
        (0, 2, 3, 1), None, (0, 2, 3, 1), (0, 1, 2, 3),
    ]
    layer = layer_of(image.owner)
    assert layer.out_dims == (1, 7, 2, 5)
    assert layer.maps[0].dims == (3, 7, 2, 5)
    assert layer.maps[0].access[0].low == 1


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("axes", [(0,), (0, 1), (0, 2, 3), (0, 1, 2, 3), (1, 2, 3), (2, 3)])
def test_norms_along_any_axes_are_units(axes):
    """Images are normalised over only where they are no loop of their own: pieces are of single images."""
    net = Net()
    rows = net.layer(g.NormaliseOp(net.input(2, 3, 4, 5), axes=axes, epsilon=1e-5))
    module, inputs = net.module(net.unary("tanh", rows))
    modules = modules_at_stops(module, "edge", Choices(dtype="f32", policy="optimal"))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")
