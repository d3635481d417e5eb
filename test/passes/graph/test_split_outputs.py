"""Where networks are cut, and that the pieces in a row compute what the whole does."""

from __future__ import annotations

import numpy as np
import pytest
from chains import branching, in_order
from hypothesis import given
from hypothesis import strategies as st
from networks import Net
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr

from frustum.dialects import graph
from frustum.dialects.module import MODEL_DTYPES
from frustum.passes.graph.split_outputs import Layers, SplitOutputs, joined, split
from frustum.passes.weights import attach, store_of
from frustum.runtime.reference.graph import ReferenceExecutor


def results(module, inputs):
    return ReferenceExecutor(store_of(module)).run_graph(module, inputs)


def alone(module, network):
    """A module with a copy of one of the networks."""
    found = ModuleOp([network.clone()], dict(module.attributes))
    attach(found, store_of(module))
    found.verify()
    return found


def chained(module, inputs, outputs):
    return in_order(lambda n, given: results(alone(module, n), given), graph.networks_of(module), inputs, outputs)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype


def names(network):
    return [op.location.desc.data for op in Layers(network).ops]


def worked():
    """The chain 1-2-4-6-8 whose layers 2, 4 and 6 are also outputs 3, 5, 7; 8 is output 9."""
    net = Net()
    one = net.unary("relu", net.input(1, 2, 4, 4))
    two = net.unary("tanh", one)
    four = net.unary("abs", two)
    six = net.unary("neg", four)
    return net.module(two, four, six, net.unary("sigmoid", six))


def test_worked_example():
    module, inputs = worked()
    expected = results(module, inputs)
    SplitOutputs().apply(Context(), module)
    module.verify()
    pieces = graph.networks_of(module)
    assert [names(piece) for piece in pieces] == [["unary_1", "unary_2"], ["unary_3"], ["unary_4"], ["unary_5"]]
    assert [piece.outputs for piece in pieces] == [("y0",), ("y1",), ("y2",), ("y3",)]  # 3, 5, 7, 9
    assert [piece.inputs for piece in pieces] == [("x0",), ("y0",), ("y1",), ("y2",)]
    assert_same(chained(module, inputs, expected), expected)


def test_a_network_without_output_branches_stays_as_it_is():
    net = Net()
    module, _ = net.module(net.unary("relu", net.input(1, 2, 4, 4)))
    before = str(module)
    SplitOutputs().apply(Context(), module)
    assert str(module) == before


def test_skips_across_a_cut_are_handed_on_under_the_name_of_their_layer():
    net = Net()
    skip = net.unary("relu", net.input(1, 2, 4, 4))
    out = net.unary("tanh", skip)
    module, inputs = net.module(out, net.binary("add", net.unary("abs", out), skip))
    expected = results(module, inputs)
    SplitOutputs().apply(Context(), module)
    first, second = graph.networks_of(module)
    assert first.outputs == ("y0", "unary_1") and second.inputs == ("y0", "unary_1")
    assert_same(chained(module, inputs, expected), expected)


def test_names_of_the_surroundings_are_not_taken():
    net = Net()
    skip = net.unary("relu", net.input(1, 2, 4, 4))
    out = net.unary("tanh", skip)
    module, _ = net.module(out, net.binary("add", net.unary("abs", out), skip))
    layers = Layers(graph.networks_of(module)[0], frozenset({"unary_1"}))
    assert layers.extract((0, 2), "first").outputs == ("y0", "unary_1.1")


def test_an_output_that_is_a_reshape_crosses_once():
    net = Net()
    a = net.unary("relu", net.input(1, 2, 4, 4))
    flat = net.layer(graph.ReshapeOp(a, (2, 16)))
    module, inputs = net.module(flat, net.unary("abs", a))
    expected = results(module, inputs)
    SplitOutputs().apply(Context(), module)
    first, second = graph.networks_of(module)
    assert first.outputs == ("y0",) and second.inputs == ("y0",)
    assert graph.shape_of(second.body.block.args[0]) == (2, 16)
    assert_same(chained(module, inputs, expected), expected)


def test_an_output_that_crosses_has_one_host_type_in_both_pieces():
    net = Net()
    a = net.unary("relu", net.input(1, 2, 4, 4))
    module, _ = net.module(a, net.binary("add", net.unary("abs", a), a))
    (whole,) = graph.networks_of(module)
    whole.attributes[MODEL_DTYPES] = ArrayAttr(map(StringAttr, ["float16", "float64", "float32"]))
    SplitOutputs().apply(Context(), module)
    found = [[text.data for text in network.attributes[MODEL_DTYPES]] for network in graph.networks_of(module)]
    assert found == [["float16", "float64"], ["float64", "float32"]]


def test_weights_go_where_they_are_used():
    net = Net()
    a = net.conv(net.input(1, 2, 4, 4), 2)
    module, _ = net.module(a, net.conv(a, 2))
    keys = {op.key.data for op in module.walk() if isinstance(op, graph.WeightOp)}
    SplitOutputs().apply(Context(), module)
    parts = [{op.key.data for op in n.walk() if isinstance(op, graph.WeightOp)} for n in graph.networks_of(module)]
    assert len(parts) == 2 and not parts[0] & parts[1] and parts[0] | parts[1] == keys


@pytest.mark.slow
@given(branching())
def test_pieces_compute_what_the_network_does(drawn):
    module, inputs = drawn.module, drawn.inputs
    expected = results(module, inputs)
    SplitOutputs().apply(Context(), module)
    module.verify()
    assert_same(chained(module, inputs, expected), expected)


@pytest.mark.slow
@given(branching(), st.data())
def test_any_cuts_give_what_the_network_gives_and_join_again(drawn, data):
    module, inputs = drawn.module, drawn.inputs
    expected = results(module, inputs)
    layers = Layers(graph.networks_of(module)[0])
    stop = layers.whole[1]
    cuts = sorted(data.draw(st.sets(st.integers(1, stop - 1), min_size=1))) if stop > 1 else []
    pieces = list(zip([0, *cuts], [*cuts, stop], strict=True))
    split(module, layers, pieces)
    module.verify()
    assert_same(chained(module, inputs, expected), expected)
    whole, found = joined(module)
    again = alone(module, whole)
    assert_same(results(again, inputs), expected)
    assert len(found) == len(pieces) and found[-1][1] == len(Layers(whole).ops)
    split(again, Layers(graph.networks_of(again)[0]), found)
    again.verify()
    assert [n.inputs for n in graph.networks_of(again)] == [n.inputs for n in graph.networks_of(module)]
    assert_same(chained(again, inputs, expected), expected)


def test_several_networks_are_left_as_they_are():
    module, _ = worked()
    SplitOutputs().apply(Context(), module)
    before = str(module)
    SplitOutputs().apply(Context(), module)
    assert str(module) == before


@pytest.mark.parametrize("count", [2, 3])
def test_an_output_named_twice_is_handed_out_twice(count):
    net = Net()
    a = net.unary("relu", net.input(1, 2, 4, 4))
    module, inputs = net.module(*[a] * count, net.unary("abs", a))
    expected = results(module, inputs)
    SplitOutputs().apply(Context(), module)
    first, second = graph.networks_of(module)
    assert first.outputs == tuple(f"y{i}" for i in range(count)) and second.inputs == ("y0",)
    assert_same(chained(module, inputs, expected), expected)
