"""Tensors that units move between each other in other forms stay in SRAM, dense: every level gives the same numbers, in
checked mode, and DRAM has inputs, weights and outputs alone."""

from __future__ import annotations

import pytest
from agreement import check_agreement
from networks import Net
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.isa.program import Affine, Box, Span, View
from frustum.dialects.isa.sync import AllocOp, ExternalOp
from frustum.dialects.module import TENSOR
from frustum.passes.lower.through_cores import dense, pieces_of


def rolled(net, x, by, axis):
    """Positions of an axis moved around its end."""
    shape = graph.shape_of(x)
    parts = []
    for start, size in ((by, shape[axis] - by), (0, by)):
        starts, sizes = [0] * 4, list(shape)
        starts[axis], sizes[axis] = start, size
        parts.append(net.layer(graph.SliceOp(x, tuple(starts), tuple(sizes))))
    return net.layer(graph.ConcatOp(parts, axis))


def windows(net):
    """Windows of 3 x 4 of a shifted map, each with a softmax over its positions, and back."""
    x = net.unary("tanh", net.input(1, 12, 8, 6))
    x = rolled(net, rolled(net, x, 1, 1), 2, 2)
    apart = net.layer(graph.ReshapeOp(x, (1, 4, 3, 2, 4, 6)))
    beside = net.layer(graph.TransposeOp(apart, (0, 1, 3, 2, 4, 5)))
    rows = net.layer(graph.SoftmaxOp(net.layer(graph.ReshapeOp(beside, (8, 12, 6))), 1))
    back = net.layer(
        graph.TransposeOp(net.layer(graph.ReshapeOp(rows, (1, 4, 2, 3, 4, 6))), (0, 1, 3, 2, 4, 5))
    )
    return net.unary("tanh", net.layer(graph.ReshapeOp(back, (1, 12, 8, 6))))


def turned_around(net):
    """Channels and columns of a convolution's map change places, between two convolutions."""
    x = net.conv(net.input(1, 3, 7, 9), 5)
    return net.conv(net.layer(graph.TransposeOp(x, (0, 3, 2, 1))), 4)


def joined_behind(net):
    """Halves of the columns in the other order."""
    x = net.unary("tanh", net.input(2, 3, 5, 10))
    halves = [net.layer(graph.SliceOp(x, (0, 0, 0, first), (2, 3, 5, 5))) for first in (5, 0)]
    return net.unary("tanh", net.layer(graph.ConcatOp([net.unary("neg", halves[0]), halves[1]], 3)))


@pytest.mark.parametrize("way", ["default f32", "edge f16", "units4 f32"])
@pytest.mark.parametrize("build", [windows, turned_around, joined_behind], ids=lambda build: build.__name__)
def test_every_level_agrees_without_dram(build, way):
    target, dtype = way.split()
    net = Net()
    module, inputs = net.module(build(net))
    modules = modules_at_stops(module, target, Choices(dtype=dtype, policy="optimal"))
    found = {
        stop: run_module(modules[stop], inputs, checked=stop == "fixed")
        for stop in ("typed", "placed", "fixed")
    }
    check_agreement(found, dtype)
    ops = list(modules["fixed"].walk())
    kept = [op for op in ops if isinstance(op, AllocOp) and TENSOR in op.attributes]
    classes = [op.class_.data for op in ops if isinstance(op, ExternalOp)]
    assert kept
    assert "intermediate" not in classes


@pytest.mark.parametrize("target", ["default", "edge"])
def test_input_in_two_forms_is_loaded_once(target):
    """A softmax of an input's rows in another order, and the input itself behind it: it comes in one copy, whole."""
    net = Net()
    x = net.input(1, 12, 8, 6)
    rows = net.layer(graph.SoftmaxOp(net.layer(graph.ReshapeOp(x, (3, 4, 48))), 2))
    back = net.layer(graph.ReshapeOp(net.layer(graph.TransposeOp(rows, (1, 0, 2))), (1, 12, 8, 6)))
    module, inputs = net.module(net.conv(net.binary("add", back, x), 3))
    modules = modules_at_stops(module, target, Choices(dtype="f32", policy="optimal"))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")
    inputs_of = [
        op for op in modules["fixed"].walk() if isinstance(op, ExternalOp) and op.class_.data == "input"
    ]
    loads = [use.operation for op in inputs_of for use in op.buffer.uses]
    assert [load.box.data.extent for load in loads] == [(1, 1, 1, 12 * 8 * 6)]


def test_other_policies_and_orders_leave_tensors_in_dram():
    net = Net()
    module, _ = net.module(windows(net))
    for choices in (Choices(policy="none"), Choices(policy="optimal", keep=False)):
        ops = modules_at_stops(module.clone(), "default", choices)["lowered"].walk()
        assert any(isinstance(op, ExternalOp) and op.class_.data == "intermediate" for op in ops)


BOXES = [
    ((1, 7, 5, 6), 4, 64), ((3, 1, 2, 9), 1, 16), ((2, 8, 4, 4), 4, 4096), ((2, 1, 1, 1), 4, 64),
    ((2, 3, 5, 3), 4, 512),
]  # fmt: skip
"""Extents, cores, bytes; the first dimension is never limited (`may_be_staged`)."""


@pytest.mark.parametrize(("extent", "cores", "room"), BOXES)
@pytest.mark.parametrize("is_limited", [False, True])
def test_pieces_cover_the_box_once(extent, cores, room, is_limited):
    """Of all cores and passes together, each position once, and no piece takes more than the room."""
    limits = [Affine(min(e - 1, 8)) if is_limited and d else None for d, e in enumerate(extent)]
    spans = [Span(Affine(-1), e, 9, limit) for e, limit in zip(extent, limits, strict=True)]
    box, view = Box.of(*spans), View("f16", Affine(), dense(extent, View("f16", Affine(), (400, 2, 80, 16))))
    piece, counts = pieces_of(box, view, room, cores, 0)
    seen = []
    for number in range(cores):
        for index in all_of(counts):
            ranges = [range(*span.clip(index, 0, number)) for span in piece.spans]
            seen += [(a, b, c, d) for a in ranges[0] for b in ranges[1] for c in ranges[2] for d in ranges[3]]
    wanted = [range(*span.clip()) for span in spans]
    assert sorted(seen) == [
        (a, b, c, d) for a in wanted[0] for b in wanted[1] for c in wanted[2] for d in wanted[3]
    ]
    assert 2 * piece.extent[0] * piece.extent[1] * piece.extent[2] * piece.extent[3] <= room


def all_of(counts):
    """The indices of all passes of loops."""
    found = [()]
    for count in counts:
        found = [(*index, i) for index in found for i in range(count)]
    return found
