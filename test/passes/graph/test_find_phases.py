"""Phases of maps are found where reshapes and transpositions deal them, and interleaved convolutions become one where
that takes no longer; both give the same elements."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module
from xdsl.context import Context
from xdsl.utils.exceptions import VerifyException

from frustum.dialects import graph
from frustum.passes.graph.find_phases import FindPhases
from frustum.passes.onnx.operators.products import axis_parts


def found_in(module, inputs, *, of_one=False):
    """The network with its phases found, which gives the same."""
    found = aimed(module, "edge")
    FindPhases(of_one=of_one).apply(Context(), found)
    found.verify()
    wanted, got = run_module(module, inputs), run_module(found, inputs)
    np.testing.assert_allclose(got["y0"], wanted["y0"], rtol=0, atol=2e-6)
    return found


def dealt(shape, split, perm, back):
    """The layers that reshape, transpose, reshape of a map become: name, factor, distance."""
    net = Net()
    turned = net.layer(graph.TransposeOp(net.layer(graph.ReshapeOp(net.unary("relu", net.input(*shape)), split)), perm))
    found = found_in(*net.module(net.layer(graph.ReshapeOp(turned, back))))
    return [(op.name, op.factor, op.apart) for op in found.walk() if isinstance(op, graph.PhasesOp)]


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        (((2, 12, 3, 4), (2, 2, 2, 3, 3, 4), (0, 3, 4, 1, 5, 2), (2, 3, 6, 8)), ("fgraph.depth_to_space", (2, 2), 3)),
        (((2, 18, 3, 4), (2, 3, 2, 3, 3, 4), (0, 1, 4, 2, 5, 3), (2, 3, 6, 12)), ("fgraph.depth_to_space", (2, 3), 1)),
        (((2, 3, 6, 8), (2, 3, 3, 2, 4, 2), (0, 3, 5, 1, 2, 4), (2, 12, 3, 4)), ("fgraph.space_to_depth", (2, 2), 3)),
        (((1, 3, 6, 8), (1, 3, 3, 2, 4, 2), (0, 1, 3, 5, 2, 4), (1, 12, 3, 4)), ("fgraph.space_to_depth", (2, 2), 1)),
        (((2, 12, 3, 4), (2, 2, 2, 3, 3, 4), (0, 3, 5, 1, 4, 2), (2, 3, 8, 6)), None),  # turns the plane
        (((2, 12, 3, 4), (2, 2, 2, 3, 3, 4), (0, 3, 4, 2, 5, 1), (2, 3, 6, 8)), None),  # columns before rows
        (((2, 12, 3, 4), (2, 2, 2, 3, 3, 4), (0, 3, 4, 1, 5, 2), (2, 3, 48)), None),  # no map
    ],
)
def test_dealt_phases_are_found(case, layer):
    assert dealt(*case) == ([] if layer is None else [layer])


def transposed(kernel, stride, pad, channels, outputs, groups=1, size=(5, 6)):
    """The convolutions of a transposed one as the import writes them, interleaved."""
    net = Net()
    x = net.input(1, channels, *size)
    lengths = [(extent - 1) * stride + kernel - 2 * pad for extent in size]
    rows, columns = (axis_parts(extent, kernel, stride, 1, pad, n) for extent, n in zip(size, lengths, strict=True))
    parts = [
        net.conv(x, outputs, (len(a.taps), len(b.taps)), pads=(a.low, b.low, a.high, b.high), groups=groups, act="relu")
        for a in rows
        for b in columns
    ]
    return net.module(net.layer(graph.InterleaveOp(parts, (stride, stride))))


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "outputs", "groups", "convolutions"),
    [
        (2, 2, 0, 7, 1, [(1, 1)]),  # all phases read the same position
        (9, 3, 3, 1, 1, [(3, 3)]),  # all phases read the same positions
        (4, 2, 1, 3, 1, [(3, 3)]),  # few outputs: zeros are cheaper than passes of the matrix unit
        (4, 2, 1, 16, 1, [(2, 2)] * 4),  # the matrix unit is full with the outputs of one
        (3, 2, 1, 3, 2, [(2, 2)]),  # groups, maps of odd sizes
        (5, 3, 0, 32, 1, [(2, 2), (2, 1), (1, 2), (1, 1)]),  # neighbouring phases of the same window are one
    ],
)
def test_convolutions_of_phases_are_one_where_that_is_worth_it(kernel, stride, pad, outputs, groups, convolutions):
    found = found_in(*transposed(kernel, stride, pad, 4, outputs * groups, groups))
    windows = [op.kernel for op in found.walk() if isinstance(op, graph.ConvOp)]
    assert sorted(set(windows)) == sorted(set(convolutions))
    assert len(windows) <= stride**2 and (len(convolutions) > 1 or len(windows) == 1)
    assert not any(isinstance(op, graph.InterleaveOp) for op in found.walk())


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "outputs", "is_one"),
    [
        (2, 2, 0, 7, True),
        (4, 2, 1, 16, False),  # four convolutions
        (3, 2, 1, 3, False),  # one would make more than the output has
    ],
)
def test_of_one_leaves_what_does_not_become_one_convolution_of_parts_of_one_size(kernel, stride, pad, outputs, is_one):
    found = found_in(*transposed(kernel, stride, pad, 4, outputs), of_one=True)
    assert any(isinstance(op, graph.InterleaveOp) for op in found.walk()) != is_one
    assert sum(isinstance(op, graph.ConvOp) for op in found.walk()) == (1 if is_one else stride**2)


def test_parts_that_are_read_elsewhere_stay():
    net = Net()
    x = net.input(1, 4, 5, 5)
    parts = [net.conv(x, 3, 2, pads=(a, b, 1, 1)) for a in (1, 0) for b in (1, 0)]
    module, inputs = net.module(net.layer(graph.InterleaveOp(parts, (2, 2))), parts[0])
    found = found_in(module, inputs)
    assert any(isinstance(op, graph.InterleaveOp) for op in found.walk())


@pytest.mark.parametrize(
    ("apart", "shape", "why"),
    [
        (2, (1, 3, 4, 4), "phases of 3 channels are 1 or 3 apart, found 2"),
        (1, (1, 3, 5, 4), r"the phases of \(1, 3, 5, 4\) are \(1, 12, 3, 2\)"),
    ],
)
def test_phases_must_be_those_of_the_map(apart, shape, why):
    with pytest.raises(VerifyException, match=why):
        graph.DepthToSpaceOp(Net().input(1, 12, 2, 2), (2, 2), apart, shape).verify()


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "blocks"),
    [
        (8, 4, 2, [(2, 2)] * 4),  # two kinds of windows along rows and columns
        (6, 4, 0, [(1, 1), (1, 2), (2, 1), (2, 2)]),  # the last phases are smaller
        (9, 4, 0, [(2, 2), (2, 3), (3, 2), (3, 3)]),
        (3, 2, 1, [(1, 1), (1, 2), (2, 1), (2, 2)]),  # each phase has its own
    ],
)
def test_phases_of_the_same_window_are_one_block(kernel, stride, pad, blocks):
    found = found_in(*transposed(kernel, stride, pad, 4, 32), of_one=True)
    windows = [op.kernel for op in found.walk() if isinstance(op, graph.ConvOp)]
    assert len(windows) == 4 and {*windows} <= {*blocks}
