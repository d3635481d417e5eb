"""Tensors that units move between each other in other forms stay in SRAM, dense: every level gives the same numbers, in
checked mode, and DRAM has inputs, weights and outputs alone."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest
from agreement import check_agreement
from attention_nets import made_by_heads
from networks import Net
from searches import with_sram
from stops import modules_at_stops, run_module
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.ir import Block, Region
from xdsl.parser import Parser

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa import FIsa, emit
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine, Box, Copy, Span, View
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp, RepeatOp
from frustum.dialects.module import TENSOR
from frustum.passes.lower.executions import enclosing_counts
from frustum.passes.lower.memory_in_use import most_in_use, side_by_side
from frustum.passes.lower.through_cores import copy_of, cut_at, dense, needed, pieces_of, places_in, windows


def rolled(net, x, by, axis):
    """Positions of an axis moved around its end."""
    shape = graph.shape_of(x)
    parts = []
    for start, size in ((by, shape[axis] - by), (0, by)):
        starts, sizes = [0] * 4, list(shape)
        starts[axis], sizes[axis] = start, size
        parts.append(net.layer(graph.SliceOp(x, tuple(starts), tuple(sizes))))
    return net.layer(graph.ConcatOp(parts, axis))


def shifted_windows(net):
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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["default f32", "edge f16", "units4 f32"])
@pytest.mark.parametrize("build", [shifted_windows, turned_around, joined_behind], ids=lambda build: build.__name__)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_other_policies_and_orders_leave_tensors_in_dram():
    net = Net()
    module, _ = net.module(shifted_windows(net))
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


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("target", ["default", "edge", "df"])
@pytest.mark.parametrize("heads", [4, 3])
def test_an_output_that_is_read_again_is_stored_and_stays(target, heads):
    """Keys of before and now go out, and to a product: each cluster keeps its own heads, where these can be shared."""
    net = Net()
    past, new, queries = net.input(1, heads, 15, 8), net.input(1, heads, 1, 8), net.input(1, heads, 1, 8)
    keys = net.layer(graph.ConcatOp([past, new], axis=2))
    module, inputs = net.module(net.layer(graph.MatmulOp(queries, keys, trans_b=True)), keys)
    modules = modules_at_stops(module, target, Choices(dtype="f32", policy="optimal"))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")
    outputs = [op for op in modules["fixed"].walk() if isinstance(op, ExternalOp) and op.class_.data == "output"]
    uses = [use.operation for op in outputs for use in op.buffer.uses]
    assert all(use.dst.owner in outputs for use in uses), "outputs are written, and not read again"


def programs(text):
    """The children of a program in the text of the instruction level."""
    context = Context()
    for dialect in (Builtin, FIsa):
        context.load_dialect(dialect)
    module = Parser(context, f"builtin.module {{ fisa.program @p {{ {text} }} }}").parse_module()
    return next(list(op.body.block.ops) for op in module.walk() if isinstance(op, ProgramOp))


def copied(source, target, stage=0):
    """A copy within SRAM and NRAM of 64 bytes."""
    view = "<f16, 0, [0, 0, 0, 2]>"
    box = "box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 32 in 32>"
    kinds = " -> ".join(f"!fisa.buffer<{'sram' if name.startswith('%s') else 'nram'}>" for name in (source, target))
    return f"fisa.copy mvdma {source} {view} -> {target} {view} {box} stage {stage} : {kinds}\n"


def test_bytes_in_use_are_those_of_buffers_that_live_together():
    """Three buffers one behind the other, of which two are in use at a time; in a loop with two stages both stages'."""
    buffers = "".join(f"%n{k} = fisa.alloc bytes 64 : !fisa.buffer<nram>\n" for k in range(3))
    source = "%s = fisa.alloc bytes 64 : !fisa.buffer<sram>\n"
    uses = [copied("%s", f"%n{k}") + copied(f"%n{k}", "%s") for k in range(3)]
    children = programs(source + buffers + "".join(uses))
    assert max(most_in_use(children, "nram")) == 64
    assert max(side_by_side(children, "nram")) == 3 * 64
    staged = copied("%s", "%n0") + copied("%n0", "%s") + copied("%s", "%n1", 1) + copied("%n1", "%s", 1)
    staged += copied("%s", "%n2", 1) + copied("%n2", "%s", 1)
    children = programs(source + f"fisa.repeat 4 {{ {buffers} {staged} }}")
    assert max(most_in_use(children, "nram")) == 2 * 64
    twice = buffers.replace("bytes 64 :", "bytes 64 depth 2 :")
    assert max(most_in_use(programs(source + f"fisa.repeat 4 {{ {twice} {staged} }}"), "nram")) == 3 * 128


def test_each_part_is_sent_where_it_is_needed_alone():
    """Windows of a map rolled along its rows: most of them are made where they are needed, and go nowhere."""
    net = Net()
    x = rolled(net, net.unary("tanh", net.input(1, 32, 4, 16)), 2, 1)
    apart = net.layer(graph.TransposeOp(net.layer(graph.ReshapeOp(x, (1, 8, 4, 4, 16))), (0, 1, 3, 2, 4)))
    module, inputs = net.module(net.layer(graph.SoftmaxOp(net.layer(graph.ReshapeOp(apart, (8, 16, 16))), 1)))
    modules = modules_at_stops(module, "default", Choices(dtype="f32", policy="optimal"))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")
    kept = [op for op in modules["lowered"].walk() if isinstance(op, AllocOp) and TENSOR in op.attributes]
    assert kept
    ways = {}
    for op in modules["lowered"].walk():
        if isinstance(op, CopyOp) and op.engine.data == "cdma" and op.dst.owner in kept:
            ways.setdefault(op.src, set()).add(op.peer.data)
    assert ways
    assert min(map(len, ways.values())) < len(set.union(*ways.values()))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("tokens", "kib"), [(128, 80), (136, 103)])
def test_each_cluster_keeps_the_part_that_it_reads(tokens, kib):
    """SRAM has no room for all of the result in each cluster: what a head makes goes to those who read its rows."""
    module, inputs = made_by_heads(tokens)
    modules = modules_at_stops(module, with_sram("default", kib), Choices(dtype="f32", policy="optimal"))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")
    ops = list(modules["lowered"].walk())
    kept = [op for op in ops if isinstance(op, AllocOp) and TENSOR in op.attributes]
    assert kept
    assert {op.bytes.value.data for op in kept} == {tokens * 128 * 4 // 4}
    assert not any(isinstance(op, ExternalOp) and op.class_.data == "intermediate" for op in ops)
    sent = [op for op in ops if isinstance(op, CopyOp) and op.engine.data == "cdma" and op.dst.owner in kept]
    assert {op.peer.data.base for op in sent} == {-3, -2, -1, 1, 2, 3}


def test_clusters_are_sent_what_they_read():
    """Clusters make rows and read heads, whose channels do not lie one behind the other: each is sent its channels of
    the rows that others make, and nothing else."""
    tokens, heads, size = 64, 4, 16
    net = Net()
    weights = net.weight(heads * size, heads * size)
    made = net.layer(graph.MatmulOp(net.input(1, tokens, heads * size), weights))
    apart = net.layer(graph.ReshapeOp(made, (tokens, heads, size)))
    module, inputs = net.module(net.layer(graph.SoftmaxOp(net.layer(graph.TransposeOp(apart, (1, 0, 2))), 1)))
    modules = modules_at_stops(module, "default", Choices(dtype="f32", policy="optimal"))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")
    copies = [op for op in modules["lowered"].walk() if isinstance(op, CopyOp)]
    sent = [op for op in copies if op.engine.data == "cdma" and is_kept(op.dst)]
    put = [op for op in copies if op.engine.data == "mvdma" and is_kept(op.dst)]
    assert sent
    assert moved_elements(sent, 4) == tokens * heads * size * 3 // 4
    assert moved_elements(put, 4, cores=4) == tokens * heads * size // 4


def is_kept(buffer):
    return isinstance(buffer.owner, AllocOp) and TENSOR in buffer.owner.attributes


def moved_elements(copies, clusters, cores=1):
    """By all clusters, or all cores of them."""
    places = product(copies, range(clusters), range(cores))
    boxes = ((op.box.data, index, *place) for op, *place in places for index in all_of(enclosing_counts(op)))
    clipped = ([span.clip(*at) for span in box.spans] for box, *at in boxes)
    return sum(prod(max(0, last - first) for first, last in spans) for spans in clipped)


@pytest.mark.parametrize("seed", range(40))
def test_what_clusters_load_of_stores_is_all_that_they_need(seed):
    """Of random stores, some limited, and random parts that clusters load: what goes to each cluster has all that it
    loads of the store, and nothing that was not stored."""
    random, clusters = Random(seed), 4
    dims = [random.choice([1, 2]), random.choice([1, 3, 8]), random.choice([4, 5, 8]), random.choice([4, 6])]
    strides = dense(dims, View("f32", Affine(), (4, 3, 2, 1)))
    d, loaded_along = random.randrange(1, 4), random.randrange(1, 4)
    share = max(1, dims[d] // clusters)
    spans = [Span(Affine(), n, n) for n in dims]
    most = Affine(share, cluster=share) if random.random() < 0.5 else None
    spans[d] = Span(Affine(0, (1,), share), random.randint(1, share), dims[d], most)
    offset = spans[d].start * strides[d]
    copy = Copy(engine="gdma", src_view=View("f32", Affine(), dense(dims, View("f32", Affine(), strides))),
                dst_view=View("f32", offset, strides), box=Box.of(*spans))  # fmt: skip
    tile, tensor = AllocOp("sram", 4096, 1), AllocOp("sram", 4096, 1)
    op = emit(copy, tile.buffer, tensor.buffer, stage=0, layer=0, unit=0)
    Block([RepeatOp(share, Region(Block([op])), stage=0)])
    places = np.arange(prod(dims)).reshape(dims)
    own = ceil_div(dims[loaded_along], clusters)
    loaded = np.zeros((clusters, prod(dims)), np.bool_)
    for cluster in range(clusters):
        part = np.take(places, range(own * cluster, min(own * cluster + own + 1, dims[loaded_along])), loaded_along)
        loaded[cluster, part.ravel()] = True
    found = windows(op, loaded)
    stored = [moved_places(copy_of(op), op, cluster) for cluster in range(clusters)]
    for cluster, peer in product(range(clusters), repeat=2):
        sent = moved_places(needed(op, peer - cluster, found, clusters, is_there=False), op, cluster)
        wanted = set(np.flatnonzero(loaded[peer]))
        assert stored[cluster] & wanted <= sent <= stored[cluster]


def moved_places(copy, op, cluster):
    """The elements of the tensor that a cluster writes by a copy in the place of `op`."""
    found = places_in(copy.box, copy.dst_view, enclosing_counts(op), cluster)
    return {int(place) for places in found for place in places}


STORES = [
    # strides, starts, extents, bounds, part; the dimension that parts are cut along
    ((0, 4, 0, 64), (0, Affine(0, (4,), 4), 0, Affine(0, (0, 8))), (1, 4, 1, 8), (1, 16, 1, 32), 512, 3),
    ((0, 4, 0, 64), (0, Affine(0, (4,), 4), 0, Affine(0, (0, 8))), (1, 4, 1, 9), (1, 16, 1, 31), 512, None),
    ((0, 4, 0, 64), (0, 0, 0, -1), (1, 16, 1, 8), (1, 16, 1, 32), 512, None),
    ((0, 128, 0, 4), (0, 0, 0, 0), (1, 16, 1, 32), (1, 16, 1, 32), 96, None),
    ((1024, 64, 4, 0), (0, 0, 0, 0), (2, 16, 16, 1), (2, 16, 16, 1), 512, None),
    ((1024, 64, 4, 0), (0, 0, 0, 0), (2, 16, 16, 1), (2, 16, 16, 1), 1024, 0),
]  # fmt: skip
"""A head's channels of rows by rows; boxes that end behind the 31 rows that they store, in the last part; that begin
before the first; parts that are no whole rows; that share the rows of an image; and whole images."""


@pytest.mark.parametrize(("strides", "starts", "extent", "bound", "part", "wanted"), STORES)
def test_where_a_store_is_cut(strides, starts, extent, bound, part, wanted):
    spans = [Span(Affine.of(start), n, most) for start, n, most in zip(starts, extent, bound, strict=True)]
    offset = Affine()
    for span, stride in zip(spans, strides, strict=True):
        offset = offset + span.start * stride
    here, there = View("f32", Affine(), dense(extent, View("f32", Affine(), strides))), View("f32", offset, strides)
    copy = Copy(engine="gdma", src_view=here, dst_view=there, box=Box.of(*spans))
    tile, tensor = AllocOp("sram", 4096, 1), AllocOp("sram", 4096, 1)
    op = emit(copy, tile.buffer, tensor.buffer, stage=0, layer=0, unit=0)
    Block([RepeatOp(4, Region(Block([RepeatOp(4, Region(Block([op])), stage=0)])), stage=0)])
    assert cut_at(op, part, 4) == wanted
