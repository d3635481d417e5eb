"""Convolutions of floats by the compiled loops against their definition in numpy, `matrix.convolve`."""

from dataclasses import replace

import numpy as np
import pytest
from isa_cases import SIZES, Layout, load, outputs, span, windows_of
from plain_machine import new_memories

from frustum.dialects.isa import program as p
from frustum.runtime.device import products
from frustum.runtime.device.expand import expand
from frustum.runtime.device.functional import PRODUCTS, WORK, ExecutionPlan
from frustum.runtime.device.matrix import convolve
from frustum.runtime.device.memory import DTYPES

A = p.Affine
CLUSTERS, CORES = 2, 3


def case(rng, *, element="f32", groups=1, channels=3, per_group=4, images=1, act=None, point=False, last_layout=False):
    """A convolution whose rows are dealt to clusters and cores, with padding, bias and a residual."""
    layout = Layout()
    kernel, strides, dilations = (tuple(int(n) for n in rng.integers(1, 3, 2)) for _ in range(3))
    if point:
        kernel = strides = dilations = (1, 1)
    pads = (0, 0) if point else tuple(int(n) for n in rng.integers(0, 3, 2))
    size = (11, 7)
    out = [outputs(size[k], kernel[k], strides[k], dilations[k], (pads[k], pads[k])) for k in range(2)]
    outs = groups * per_group
    start = A(0, (), 3, 1)
    box = p.Box.of(
        span(0, images, images), span(0, outs, outs), p.Span(start, 2, max(out[0], 1)), span(0, out[1], out[1])
    )
    rows = windows_of(start, size[0], kernel[0], strides[0], dilations[0], pads[0], 2)
    cols = windows_of(A(0), size[1], kernel[1], strides[1], dilations[1], pads[1], out[1])
    shape = (images, groups * channels, rows.extent, cols.extent)
    result = layout.view("nram", box.extent, element)
    return p.Conv(
        in_view=layout.view("nram", shape, element),
        weight_view=layout.view("wram", (outs, channels, *kernel), element),
        bias_view=layout.view("wram", (0, outs, 0, 0)), residual_view=layout.view("nram", box.extent, element),
        out_view=_last(result, box.extent) if last_layout else result, box=box,
        channels=span(0, channels, channels), rows=rows, cols=cols, kernel=kernel, strides=strides,
        dilations=dilations, groups=groups, act=act and p.Act(act, 0.25, 2.0),
    )  # fmt: skip


def _last(view, extent):
    """The same bytes with channels as neighbours."""
    size = DTYPES[view.element].itemsize
    _, channels, rows, columns = extent
    return replace(view, strides=(size * channels * rows * columns, size, size * channels * columns, size * channels))


def both(conv, rng):
    """The NRAMs after the compiled loops and after the definition, in the type of the result."""
    dtype = DTYPES[conv.out_view.element]
    found = []
    memories = new_memories(CLUSTERS, CORES, SIZES, rng)
    for units in memories.values():
        for unit in units:
            unit.view(dtype)[:] = rng.standard_normal(unit.size // dtype.itemsize).astype(dtype)
    bias = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for unit in memories["wram"]:
        start = conv.bias_view.offset.base
        unit[start : start + bias.nbytes] = bias.view(np.uint8)
    plan = ExecutionPlan(expand(p.Program((conv,)), CLUSTERS, CORES), tuple(SIZES.values()))
    assert all(kind == PRODUCTS for kind, _, _ in plan.steps)
    defined = plan.with_effect(p.Conv, convolve)
    assert all(kind == WORK for kind, _, _ in defined.steps)
    before = load(memories, CLUSTERS, CORES).bytes[2].copy()
    for each in (plan, defined):
        ours = load(memories, CLUSTERS, CORES)
        each.run(ours)
        assert (ours.bytes[2] != before).any(), "nothing was written"
        found.append(ours.bytes[2].view(dtype).astype(np.float32))
    return found


def agree(conv, rng):
    found, expected = both(conv, rng)
    tolerance = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}[conv.out_view.element]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow(but=11)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", ["plain", "images", "groups", "depthwise", "multiplied", "point", "channels last"])
def test_the_loops_agree_with_the_definition(seed, element, kind):
    rng = np.random.default_rng(seed)
    shape = {
        "plain": {}, "images": {"images": 2}, "groups": {"groups": 3, "per_group": 2},
        "depthwise": {"groups": 5, "channels": 1, "per_group": 1},
        "multiplied": {"groups": 3, "channels": 1, "per_group": 2}, "point": {"point": True},
        "channels last": {"last_layout": True},
    }[kind]  # fmt: skip
    agree(case(rng, element=element, **shape), rng)


@pytest.mark.parametrize("kind", ["relu", "clip", "leaky_relu", "sigmoid", "hard_swish"])
def test_activations(kind):
    """Those that the loops know, and others, which numpy computes between."""
    rng = np.random.default_rng(0)
    agree(case(rng, act=kind), rng)


@pytest.mark.parametrize("bytes_", [1, 1 << 12, 1 << 14])
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_pieces_and_bands_of_rows_change_nothing(monkeypatch, bytes_, element):
    monkeypatch.setattr(products, "COLUMNS_BYTES", bytes_)
    rng = np.random.default_rng(1)
    agree(case(rng, element=element), rng)
    agree(case(rng, element=element, groups=5, channels=1, per_group=1), rng)
