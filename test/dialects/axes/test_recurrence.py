"""What is carried along an axis, and what it needs."""

from dataclasses import replace

import pytest
from recurrent_nets import Steps, filtered, gru, lstm

from frustum.dialects import graph as g
from frustum.dialects.axes.classes import classes_of, why_not
from frustum.dialects.axes.recurrence import earlier_along, recurrences_of
from frustum.dialects.axes.structure import structure_of
from frustum.dialects.axes.tensor import Kind


def names(layers):
    return [layer.name for layer in layers]


def test_an_lstm_is_one_recurrence_of_two_states():
    network = lstm(5, 4, 3).network
    (found,) = recurrences_of(network.layers)
    assert names(found.layers) == ["r", "i", "f", "g", "o", "keep", "new", "c", "act", "h"]
    assert (found.axis.name, {tensor.name for tensor in found.carried}) == ("x.0", {"h", "c"})
    reader, maker = (next(layer for layer in network.layers if layer.name == name) for name in ("r", "h"))
    assert earlier_along(reader, maker.result) is found.axis
    assert earlier_along(maker, network.maker[reader.result].result) is None


def test_layers_in_order_carry_nothing():
    network = lstm(5, 4).network
    assert recurrences_of([layer for layer in network.layers if layer.name in ("w", "r", "i")]) == []


def test_a_reader_that_stands_before_the_maker_keeps_step_with_it():
    """Without a cycle: the order says so."""
    network = filtered(5, 4, ahead=-1).network
    keep, c, y = network.layers
    in_order, before = recurrences_of([keep, c, y]), recurrences_of([y, keep, c])
    assert [names(each.layers) for each in in_order] == [["keep", "c"]]
    assert [names(each.layers) for each in before] == [["y", "keep", "c"]]


def two(steps, channels):
    """Two recurrences, the second one over what the first makes."""
    net, shape = Steps(), (steps, 1, channels)
    x = net.given("x", *shape, kind=Kind.INPUT)
    states = [net.state(shape, x) for _ in range(2)]
    a = net.binary("a", "add", states[0], x)
    b = net.binary("b", "mul", net.binary("scaled", "add", a, states[1]), a)
    net.carries(states[0], a)
    net.carries(states[1], b)
    return net.done(b)


def test_recurrences_that_do_not_need_each_other_are_two():
    assert [names(each.layers) for each in recurrences_of(two(5, 4).layers)] == [["a"], ["scaled", "b"]]


def test_positions_that_are_not_all_earlier_carry_nothing():
    keep, c = filtered(5, 4).network.layers
    assert earlier_along(keep, c.result).name == "x.0"
    keep.operands += (replace(keep.operands[-1], is_all=True),)
    assert earlier_along(keep, c.result) is None


@pytest.mark.parametrize("back", [1, 2])
def test_a_last_step_needs_those_before_it(back):
    """Of steps two back every second one."""
    net, shape = Steps(), (6, 1, 4)
    x = net.given("x", *shape, kind=Kind.INPUT)
    state = net.state(shape, x)
    c = net.binary("c", "add", state, x)
    net.carries(state, c, back)
    slice_ = g.SliceOp(c, (5, 0, 0), (1, 1, 4), (1, 1, 1))
    net.reader.read(slice_)
    last = net.done(net.unary("last", "abs", slice_.results[0]))
    assert last.compulsory_bytes == 4 * 4 * (6 // back + 1)


def test_a_loop_over_steps_is_one_of_the_classes_and_over_channels_is_none():
    network = gru(5, 4).network
    layers = network.layers[1:]
    steps = next(axis for axis in network.layers[0].axes if axis.name == "x.0")
    found = {group: why_not(group, layers) for group in classes_of(layers)}
    assert [steps in group for group, problem in found.items() if not problem] == [True]


def test_structures_tell_how_far_states_reach_back():
    texts = {structure_of(filtered(6, 4, back=back).network).text for back in (1, 2, 1)}
    assert len(texts) == 2
