"""Every instruction's effect against the plain machine: random boxes, clipped, bordered, on several cores."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from isa_cases import Layout, agree, outputs, span, windows_of

from frustum.dialects.isa import program as p
from frustum.runtime.device.memory import DTYPES

A = p.Affine
SEEDS = range(6)


def tiles(rng, size, extra=(0, 0)):
    """Start and extent of a dimension dealt to 2 passes of loop 0, 2 clusters and 2 cores, more or less evenly;
    the last may lie beyond the end and the first may begin before 0."""
    extent = int(rng.integers(1, size // 2 + 2))
    start = A(int(rng.integers(-2, 1)), (int(rng.integers(0, extent + 1)),), int(rng.integers(0, extent + 1)),
              int(rng.integers(0, extent + 1)))  # fmt: skip
    return start, extent


def box_of(rng, sizes, clip=True):
    spans = []
    for size in sizes:
        start, extent = tiles(rng, size) if clip else (A(0), size)
        limit = A(int(rng.integers(1, size + 1))) if rng.integers(3) == 0 else None
        spans.append(p.Span(start, extent, size, limit))
    return p.Box.of(*spans)


def twice(*body):
    return p.Program((p.Repeat(2, body),))


@pytest.mark.slow(but=35)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("route", ["gdma", "iodma", "mvdma", "bus", "cdma", "multicast", "store"])
@pytest.mark.parametrize("fill", [None, 2.5])
def test_copy(seed, route, fill):
    rng, layout = np.random.default_rng(seed), Layout()
    box = box_of(rng, (2, 5, 6, 7))
    routes = {
        "gdma": ("gdma", "dram", "sram"), "iodma": ("iodma", "dram", "nram"), "mvdma": ("mvdma", "sram", "nram"),
        "bus": ("bus", "sram", "wram"), "cdma": ("cdma", "sram", "sram"), "multicast": ("gdma", "dram", "sram"),
        "store": ("mvdma", "nram", "sram"),
    }  # fmt: skip
    engine, source, target = routes[route]
    moves = {"moves": (64,), "cluster": 512, "core": 128}
    copy = p.Copy(
        engine=engine, src_view=layout.view(source, box.extent, **moves),
        dst_view=layout.view(target, box.extent, copies=2, level=1, **(moves if route == "store" else {})),
        box=box, fill=fill, multicast=route == "multicast", peer=A(1, cluster=-1) if route == "cdma" else None,
    )  # fmt: skip
    agree_or_idle(twice(copy), seed)


def agree_or_idle(program, seed, exact=True):
    """As `agree`; a program whose boxes all turned out empty must leave everything as it was."""
    try:
        return agree(program, 2, 2, seed, exact)
    except AssertionError as error:
        if "nothing was written" not in str(error):
            raise
        return None


def conv_case(rng, layout, groups=1, accumulate=False, element="f32", batch=2):
    kernel, strides, dilations = (tuple(int(k) for k in rng.integers(1, 4, 2)) for _ in range(3))
    strides = tuple(min(s, 2) for s in strides)
    pads = rng.integers(0, 3, (2, 2))
    size = rng.integers(6, 9, 2)
    out = [max(1, outputs(int(size[k]), kernel[k], strides[k], dilations[k], pads[k])) for k in range(2)]
    per_group = int(rng.integers(1, 4)) if groups > 1 else 1
    co = groups * per_group if groups > 1 else 5
    channels = 4
    rows, cols = (tiles(rng, n) for n in out)
    co_extent = co if groups > 1 else 3
    co_start = A(0) if groups > 1 else A(0, (), 2)
    box = p.Box.of(span(0, batch, batch), p.Span(co_start, co_extent, co), p.Span(rows[0], rows[1], out[0]),
                   p.Span(cols[0], cols[1], out[1]))  # fmt: skip
    seen = [
        windows_of(start, int(size[k]), kernel[k], strides[k], dilations[k], int(pads[k][0]), extent)
        for k, (start, extent) in enumerate((rows, cols))
    ]
    ci = span(A.index(0, 3), 3, channels) if accumulate else span(0, channels, channels)
    nominal = (batch, groups * ci.extent, seen[0].extent, seen[1].extent)
    last = {"element": "f32"}
    return p.Conv(
        in_view=layout.view("nram", nominal, element, moves=(16,)),
        weight_view=layout.view("wram", (co_extent, ci.extent, *kernel), element),
        bias_view=layout.view("wram", (0, co_extent, 0, 0)),
        acc_view=layout.view("nram", (batch, co_extent, rows[1], cols[1]), **last) if accumulate else None,
        out_view=layout.view("nram", (batch, co_extent, rows[1], cols[1]), element), box=box, channels=ci,
        rows=seen[0], cols=seen[1], kernel=kernel, strides=strides, dilations=dilations, groups=groups,
        accumulate=0 if accumulate else None, act=p.Act("relu") if rng.integers(2) else None,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("groups", [1, 4])
def test_conv(seed, groups):
    rng = np.random.default_rng(seed)
    agree_or_idle(twice(conv_case(rng, Layout(), groups)), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("residual", [False, True])
def test_depthwise(seed, residual):
    """Each channel by itself, those of other cores clipped; a window may lie in the padding alone."""
    rng, layout = np.random.default_rng(seed), Layout()
    kernel, strides, dilations = (tuple(int(k) for k in rng.integers(1, 4, 2)) for _ in range(3))
    pads, size, batch, channels = rng.integers(0, 3, (2, 2)), rng.integers(7, 10, 2), 2, 5
    out = [max(1, outputs(int(size[k]), kernel[k], strides[k], dilations[k], pads[k])) for k in range(2)]
    rows, cols = (tiles(rng, n) for n in out)
    box = p.Box.of(span(0, batch, batch), p.Span(A(0, (), 2), 3, channels), p.Span(rows[0], rows[1], out[0]),
                   p.Span(cols[0], cols[1], out[1]))  # fmt: skip
    seen = [
        windows_of(start, int(size[k]), kernel[k], strides[k], dilations[k], int(pads[k][0]), extent)
        for k, (start, extent) in enumerate((rows, cols))
    ]
    made = (batch, 3, rows[1], cols[1])
    op = p.Depthwise(
        in_view=layout.view("nram", (batch, 3, seen[0].extent, seen[1].extent), moves=(16,)),
        weight_view=layout.view("wram", (3, 1, *kernel)), bias_view=layout.view("wram", (0, 3, 0, 0)),
        out_view=layout.view("nram", made), residual_view=layout.view("nram", made) if residual else None, box=box,
        rows=seen[0], cols=seen[1], kernel=kernel, strides=strides, dilations=dilations,
        act=p.Act("relu") if rng.integers(2) else None,
    )  # fmt: skip
    agree_or_idle(twice(op), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("continues", [False, True])
def test_conv_accumulates_over_channel_chunks(seed, continues):
    """Channels in chunks of 3 and 1: started at 0 or from what is there, kept in NRAM, finished in the last pass."""
    rng = np.random.default_rng(seed)
    conv = replace(conv_case(rng, Layout(), accumulate=True), continues=continues)
    agree_or_idle(twice(conv), seed)


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_conv_of_narrow_types_computes_in_f32(element):
    rng, layout = np.random.default_rng(3), Layout()
    conv = conv_case(rng, layout, element=element)
    maps, weights = (p.Box.of(*[span(0, n, n) for n in (1, 1, 1, count)]) for count in (2000, 200))
    row = (0, 0, 0, DTYPES[element].itemsize)
    body = (
        narrowed(layout, maps, p.View(element, A(conv.in_view.offset.base), row, "nram")),
        narrowed(layout, weights, layout.view("nram", weights.extent, element)),
    )
    shared = layout.view("sram", weights.extent, element)
    there = p.Copy(engine="mvdma", src_view=body[1].out_view, dst_view=shared, box=weights)
    inside = p.View(element, conv.weight_view.offset, row, "wram")
    back = p.Copy(engine="bus", src_view=shared, dst_view=inside, box=weights)
    agree(p.Program((*body, there, back, p.Repeat(2, (conv,)))), 2, 2)


def narrowed(layout, box, target):
    """Write f32 numbers to `target` in its own type."""
    return p.Unary(kind="identity", in_view=layout.view("nram", box.extent), out_view=target, box=box)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["max", "avg", "avg_with_pad"])
def test_pool(seed, kind):
    rng, layout = np.random.default_rng(seed), Layout()
    kernel, stride, size = (3, 2), (2, 1), (9, 8)
    low, high = (1, 1), (1, 0)
    out = [-(-(size[k] + low[k] + high[k] - kernel[k]) // stride[k]) + 1 for k in range(2)]  # ceil_mode
    rows, cols = (tiles(rng, n) for n in out)
    seen = [
        windows_of(start, size[k], kernel[k], stride[k], 1, low[k], extent)
        for k, (start, extent) in enumerate((rows, cols))
    ]
    box = p.Box.of(span(0, 2, 2), p.Span(A(0, (2,)), 2, 3), p.Span(*rows, out[0]), p.Span(*cols, out[1]))
    pool = p.Pool(
        kind=kind[:3], in_view=layout.view("nram", (2, 2, seen[0].extent, seen[1].extent)),
        out_view=layout.view("nram", box.extent), box=box, rows=seen[0], cols=seen[1], kernel=kernel, strides=stride,
        dilations=(1, 1), include_pad="pad" in kind, pad_low=low, pad_high=high, act=p.Act("neg"),
    )  # fmt: skip
    agree_or_idle(twice(pool), seed, exact=kind == "max")


@pytest.mark.parametrize("seed", SEEDS)
def test_unary_and_binary(seed):
    rng, layout = np.random.default_rng(seed), Layout()
    box = box_of(rng, (2, 5, 6, 7))
    first = p.Unary(kind="leaky_relu", alpha=0.5, in_view=layout.view("nram", box.extent),
                    out_view=layout.view("nram", box.extent, copies=3, level=1), box=box)  # fmt: skip
    per_channel = layout.view("nram", (0, box.extent[1], 0, 0))
    second = p.Binary(kind="mul", a_view=first.out_view, b_view=per_channel, act=p.Act("relu"),
                      out_view=layout.view("nram", box.extent), box=box)  # fmt: skip
    agree_or_idle(twice(first, second), seed)


@pytest.mark.parametrize("axis", range(4))
def test_softmax(axis):
    rng, layout = np.random.default_rng(axis), Layout()
    box = p.Box.of(*[span(A(0, (1,), core=1) if d != axis else 0, 4, 5) for d in range(4)])
    softmax = p.Softmax(in_view=layout.view("nram", box.extent), out_view=layout.view("nram", box.extent), box=box,
                        axis=axis)  # fmt: skip
    agree(twice(softmax), 2, 2, int(rng.integers(9)), exact=False)


@pytest.mark.parametrize("case", [((3,), 0, False), ((1, 2), 0, True), ((2, 3), 2, False), ((2,), 3, True)])
@pytest.mark.parametrize("operands", [(), ("scale_view",), ("scale_view", "shift_view")])
def test_normalise(case, operands):
    """Over whole axes and whole groups of channels, the last of which the map's end cuts off."""
    layout, (axes, group, rms) = Layout(), case
    channels = span(A(0, (2 * group,)), 2 * group, 3 * group) if group else span(0, 4, 4)
    box = p.Box.of(span(A(0, core=1), 1, 2), channels, span(0, 3, 3), span(0, 5, 5))
    views = {name: layout.view("nram", (0, box.extent[1], 0, box.extent[3])) for name in operands}
    normalise = p.Normalise(
        in_view=layout.view("nram", box.extent), out_view=layout.view("nram", box.extent), box=box, axes=axes,
        group=group, rms=rms, epsilon=1e-3, **views,
    )  # fmt: skip
    agree(twice(normalise), 2, 2, exact=False)


@pytest.mark.parametrize("ahead", [-2, 0, 3])
def test_hide(ahead):
    layout = Layout()
    box = p.Box.of(span(0, 2, 2), span(A(-1, (2,)), 5, 6), span(0, 2, 2), span(A(0, core=2, cluster=1), 4, 7))
    hide = p.Hide(in_view=layout.view("nram", box.extent), out_view=layout.view("nram", box.extent), box=box,
                  ahead=ahead)  # fmt: skip
    agree(twice(hide), 2, 2)


@pytest.mark.parametrize(
    ("kind", "accumulate"), [*itertools.product(["mean", "sum", "max", "min"], [None, 0]), ("variance", None)]
)
def test_reduce(kind, accumulate):
    layout = Layout()
    box = p.Box.of(span(0, 2, 2), span(A(0, core=2), 2, 3), span(A(-1, (3,)), 4, 5), span(0, 4, 4))
    fold = p.Reduce(
        kind=kind, in_view=layout.view("nram", box.extent), out_view=layout.view("nram", (2, 2, 0, 0)), box=box,
        axes=(2, 3), scale=0.125 if kind == "mean" else 1.0, accumulate=accumulate,
    )  # fmt: skip
    agree(twice(fold), 2, 2, exact=kind != "variance")


@pytest.mark.parametrize("size", [3, 4, 5])
def test_lrn(size):
    """Channel tiles of 3 with their neighbours: the first and last of them are cut at the map's ends."""
    layout = Layout()
    start = A(0, (3,))
    box = p.Box.of(span(0, 1, 1), p.Span(start, 3, 5), span(A(0, core=2), 2, 3), span(0, 3, 3))
    channels = p.Span(start - (size - 1) // 2, 3 + size - 1, 5)
    lrn = p.Lrn(
        in_view=layout.view("nram", (1, channels.extent, 2, 3)), out_view=layout.view("nram", box.extent), box=box,
        channels=channels, size=size, alpha=0.5, beta=0.75, bias=1.5,
    )  # fmt: skip
    agree(twice(lrn), 2, 2, exact=False)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_resize(mode, rounding):
    """Rows in tiles of 4 outputs by loop, of 2 by core; the tile of the input starts at what each pass needs."""
    layout = Layout()
    box = p.Box.of(span(0, 1, 1), span(0, 2, 2), span(A(0, (4,), core=2), 3, 9), span(A(0, cluster=4), 4, 7))
    rows = p.Span(A(-1, (2,), core=1), 5, 5)
    resize = p.Resize(
        mode=mode, rounding=rounding, in_view=layout.view("nram", (1, 2, 5, 7)),
        out_view=layout.view("nram", box.extent), box=box, rows=rows, cols=span(0, 7, 4), scale=(0.5, 0.5),
        offset=(-0.25, 0.25),
    )  # fmt: skip
    agree(twice(resize), 2, 2, exact=False)
