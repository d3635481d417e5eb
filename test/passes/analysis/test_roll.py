"""Rolling rows against brute force: which rows exist after each step, and which the windows of each step read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import Net

from frustum.dialects import graph
from frustum.dialects.graph import shape_of
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import ROWS, Unprojectable, layers_of, project, ring_rows, roll


@st.composite
def units(draw, layers=6):
    """The layers of a random network with branches as one unit; what nobody reads leaves it, and one more."""
    net = Net()
    maps = [net.input(1, 2, draw(st.integers(12, 24)), 12)]
    for _ in range(draw(st.integers(1, layers))):
        x = maps[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(maps))
        maps.append(draw(st.sampled_from([windowed, windowed, beside, joined, doubled]))(draw, net, x, maps))
    made = [value for value in dict.fromkeys(maps) if value is not maps[0]]
    outputs = [value for value in made if not value.uses]
    if made and draw(st.booleans()):
        outputs = list(dict.fromkeys([draw(st.sampled_from(made)), *outputs]))
    return net, outputs


def windowed(draw, net, x, maps):
    kernel, stride, dilation = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(1, 2))
    height = shape_of(x)[2]
    if (kernel - 1) * dilation >= height:
        kernel, dilation = 1, 1
    low, high = (draw(st.integers(-1 if height > 9 else 0, (kernel - 1) * dilation)) for _ in range(2))
    rest = {"strides": (stride, 1), "dilations": (dilation, 1), "pads": (low, 0, high, 0)}
    if (height + low + high - (kernel - 1) * dilation - 1) // stride < 1:
        return x
    if draw(st.booleans()):
        return net.conv(x, 2, (kernel, 1), bias=False, **rest)
    return net.layer(graph.PoolOp("max", x, kernel=(kernel, 1), **rest))


def beside(draw, net, x, maps):
    """A sum with another map of the same shape."""
    return net.binary("add", x, draw(st.sampled_from([v for v in maps if shape_of(v) == shape_of(x)])))


def joined(draw, net, x, maps):
    fitting = [v for v in maps if shape_of(v)[2:] == shape_of(x)[2:]]
    return net.layer(graph.ConcatOp([x, draw(st.sampled_from(fitting))], 1))


def doubled(draw, net, x, maps):
    _, _, h, w = shape_of(x)
    return x if h > 30 else net.layer(graph.ResizeOp("nearest", x, (2 * h, w), scale=(0.5, 1.0), offset=(0.0, 0.0)))


def steps_of(net, outputs, rows):
    """The unit, how it rolls, whether it can."""
    unit = layers_of([op for op in net.block.ops if not isinstance(op, graph.WeightOp)], outputs)
    try:
        return unit, roll(unit, rows)
    except Unprojectable:
        return unit, None


def read(op, operand, row):
    """Rows that the windows of one output row read, inside the map or not; written down from the operation."""
    if isinstance(op, graph.ConvOp | graph.PoolOp):
        kernel = shape_of(op.w)[2] if isinstance(op, graph.ConvOp) else op.kernel[0]
        return [row * op.strides[0] - op.pads[0] + tap * op.dilations[0] for tap in range(kernel)]
    if isinstance(op, graph.ResizeOp):
        axis = operand.access[ROWS]
        first = row // axis.den * axis.den * axis.num // axis.den + axis.low  # its pieces start at whole pairs
        return [first, first + axis.extent(row % axis.den + 1) - 1]
    return [row]


def reads_in_step(unit, made, number):
    """Rows of a map that one step reads: by all layers, and by being stored."""
    rows = set(made[number]) if number in unit.stored else set()
    for j, (op, layer, sources) in enumerate(zip(unit.ops, unit.layers, unit.sources, strict=True)):
        for operand, source in zip(layer.maps, sources, strict=True):
            if unit.number_of(source) == number:
                rows.update(r for row in made[j] for r in read(op, operand, row))
    return rows


def of_step(rolling, step):
    first = rolling.rows * step + rolling.start
    return range(first, first + rolling.rows)


def inside(rows, height):
    return {row for row in rows if 0 <= row < height}


@given(units(), st.integers(1, 6))
def test_every_row_is_made_once_and_before_it_is_read(drawn, rows):
    unit, steps = steps_of(*drawn, rows)
    if steps is None:
        return
    rolls = steps.maps
    exists = [set() for _ in rolls]
    for step in range(steps.count):
        made = [inside(of_step(r, step), unit.dims_of(k)[ROWS]) for k, r in enumerate(rolls)]
        for number, new in enumerate(made):
            assert not exists[number] & new
            exists[number] |= new
        for number in range(len(rolls)):
            wanted = inside(reads_in_step(unit, made, number), unit.dims_of(number)[ROWS])
            assert wanted <= exists[number], (number, step)
    for j in unit.stored:
        assert exists[j] == set(range(unit.layers[j].out_dims[ROWS]))


@pytest.mark.slow
@given(units(), st.integers(1, 6))
def test_rings_hold_what_is_read_and_not_a_row_more(drawn, rows):
    """In the middle of endless maps: from the oldest row that a step reads of a buffer to the newest row in it."""
    unit, steps = steps_of(*drawn, rows)
    if steps is None:
        return
    rolls, middle = steps.maps, 100
    made = [set(of_step(r, middle)) for r in rolls]
    for number, rolling in enumerate(rolls):
        members = unit.groups.get(unit.root(number), (number,))
        used = {row for m in members for row in reads_in_step(unit, made, m) | made[m]}
        kept = max(used) - min(used) + 1
        assert max(rolling.kept, rolling.rows) == kept, number
        assert rolling.kept in (0, kept)


@given(units(), st.integers(1, 6))
def test_no_layer_runs_ahead_of_its_readers_more_than_it_must(drawn, rows):
    unit, steps = steps_of(*drawn, rows)
    if steps is None:
        return
    rolls, middle = steps.maps, 100
    made = [set(of_step(r, middle)) for r in rolls]
    for number in range(len(rolls)):
        others = reads_in_step(unit, [set() if k == number else m for k, m in enumerate(made)], number)
        align = unit.layers[number].align[ROWS] if number < len(unit.layers) else 1
        if number not in unit.stored:
            assert max(made[number]) - max(others) < align


@pytest.mark.parametrize(
    ("height", "rows", "starts", "count"),
    [(28, 8, [-3, -4, -2], 2), (28, 2, [-3, -4, -2], 8), (32, 8, [-15, -16, -8], 3)],
)
def test_a_first_step_with_little_to_do_is_saved(height, rows, starts, count):
    """Two convolutions and a pool: the first one leads by a row, so that 28 rows in steps of 16 take two steps; the
    last one is full.  Where no step is saved all leads are moved by a whole step."""
    net = Net()
    y = net.pool("max", net.conv(net.conv(net.input(1, 2, height, 8), 2, 3), 2, 3))
    unit = layers_of(list(net.block.ops), [y])
    steps = roll(unit, rows, saves=True)
    assert ([r.start for r in steps.maps[:3]], steps.count) == (starts, count)
    plain = roll(unit, rows)
    assert [r.start + r.rows for r in plain.maps[:3]] == [1, 0, 0]


@pytest.mark.parametrize(
    ("kept", "rows", "copies", "height", "once", "ring"),
    [(6, 4, 1, 100, True, 6), (6, 4, 2, 100, True, 10), (6, 4, 2, 8, True, 8), (6, 4, 2, 8, False, 10)],
)
def test_ring_rows(kept, rows, copies, height, once, ring):
    assert ring_rows(kept, rows, copies, height, once=once) == ring


def test_two_ways_of_different_strides_are_refused():
    net = Net()
    x = net.input(1, 2, 8, 8)
    a = net.conv(x, 2, 3, strides=(2, 1))
    b = net.layer(graph.PoolOp("max", net.conv(x, 2, 3), kernel=(5, 1), strides=(1, 1), pads=(0, 0, 0, 0)))
    y = net.binary("add", a, b)
    unit = layers_of(list(net.block.ops), [y])
    with pytest.raises(Unprojectable, match="two ways through the unit have different strides"):
        roll(unit, 1)


def test_a_layer_that_needs_all_rows_is_refused():
    net = Net()
    y = net.layer(graph.SoftmaxOp(net.conv(net.input(1, 2, 8, 8), 2), 2))
    unit = layers_of(list(net.block.ops), [y])
    with pytest.raises(Unprojectable, match=r"layer 1 \(softmax\) needs all rows of its operand at once"):
        roll(unit, 1)


def test_a_map_seen_in_another_form_is_refused():
    net = Net()
    y = net.layer(graph.ReduceOp("mean", net.conv(net.input(1, 2, 8, 8), 2), (1,)))
    unit = layers_of(list(net.block.ops), [y])
    with pytest.raises(Unprojectable, match=r"layer 1 \(reduce\) sees the map of layer 0 \(conv\) in another form"):
        project(unit, Partition((1, 1, 1, 1), 2, 1), 1)


def vgg5():
    """The shapes of the bench case: 3x3 convolutions with padding 1, two pools (Alwani et al., 2016)."""
    net = Net()
    x = net.input(1, 3, 224, 224)
    for outputs in (64, 64, 0, 128, 128, 0, 256):
        x = net.conv(x, outputs, act="relu") if outputs else net.pool("max", x)
    return layers_of(list(net.block.ops), [x])


def test_the_five_convolutions_of_vgg_keep_344064_bytes_beyond_the_rows_of_a_step():
    """Two more rows of each convolution's input but the first one's: the paper's storage without its columns."""
    unit = vgg5()
    steps = roll(unit, 1)
    kept = 0
    for layer, rolling in zip(unit.layers, steps.maps[: len(unit.layers)], strict=True):
        _, channels, _, columns = layer.out_dims
        kept += max(0, rolling.kept - rolling.rows) * channels * columns * layer.out_bytes
    assert kept == 344_064
    assert [r.rows for r in steps.maps[: len(unit.layers)]] == [4, 4, 2, 2, 2, 1, 1]


@pytest.mark.parametrize(("rows", "fits"), [(2, False), (8, True)])
def test_what_one_step_makes_is_not_read_in_the_next(rows, fits):
    """Numbers of channels that a unit makes, stores, and reads for every row: gone after the step that makes them."""
    net = Net()
    x, numbers = net.input(1, 4, 8, 8), net.unary("relu", net.input(1, 4, 1, 1))
    out = net.binary("mul", x, numbers)
    unit = layers_of([numbers.owner, out.owner], [numbers, out])
    partition = Partition((1, 4, rows, 8), 2, 1, borders="exchange")
    if fits:
        assert project(unit, partition, 1).counts[2] == 1
        return
    with pytest.raises(Unprojectable, match="needs in every step what is made in one"):
        project(unit, partition, 1)
