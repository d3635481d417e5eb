"""Partitions sized with compressed weights: what fits only so is fused, and what does not fit in the end is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module, target
from xdsl.context import Context

from frustum.backend.compile import fixed
from frustum.backend.executables import executable_of
from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph
from frustum.dialects.module import HELD_BYTES
from frustum.passes.graph import measure_weights
from frustum.passes.graph.measure_weights import MeasureWeights
from frustum.passes.weights import store_of
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count


def pruned(share=0.95):
    """Three convolutions of 48 channels, 83 kB of f32 weights each, of which this share is 0."""
    net = Net(5)
    x = net.input(1, 48, 24, 24)
    module, inputs = net.module(net.conv(net.conv(net.conv(x, 48, 3), 48, 3), 48, 3))
    store, random = store_of(module), np.random.default_rng(1)
    for weight in weights_of(module):
        array = np.asarray(store[weight.key.data])
        store[weight.key.data] = np.where(random.random(array.shape) < share, 0, array).astype(np.float32)
    return module, inputs


def weights_of(module):
    return [op for op in module.walk() if isinstance(op, graph.WeightOp) and len(graph.shape_of(op.result)) == 4]


def small(sram_bytes):
    df = target("df")
    cluster = replace(df.cluster, sram=replace(df.cluster.sram, capacity_bytes=sram_bytes))
    return replace(df, chip=replace(df.chip, cluster=cluster))


def compiled(module, inputs, machine, **options):
    """Bytes of DRAM without program and tables, and units."""
    choices = Choices(policy="optimal", **options)
    executed = executable_of(fixed(aimed(module, machine), choices, Run()), choices)
    runner = Machine(executed)
    result = runner.run(inputs, mode="full", checked=True)
    for name, array in run_module(module, inputs).items():
        np.testing.assert_allclose(np.asarray(result.outputs[name], np.float32), array, rtol=1e-4, atol=1e-4)
    found = count(runner.expanded, runner.target, executed.code.page_bytes).dram_bytes_by_class
    return sum(size for kind, size in found.items() if kind != "other"), found, len(executed.program.units)


@pytest.mark.slow
@pytest.mark.soak
def test_what_fits_only_compressed_is_fused():
    """250 kB of weights do not fit 160 KiB, a tenth of them does: maps between the layers stay, weights come once."""
    module, inputs = pruned()
    machine = small(160 << 10)
    raw, raw_classes, raw_units = compiled(module, inputs, machine)
    late, _, late_units = compiled(module, inputs, machine, compression="auto", raw_sizes=True)
    held, classes, units = compiled(module, inputs, machine, compression="auto")
    assert late_units == raw_units and held < late < raw
    assert classes.get("intermediate", 0) == 0 and units <= raw_units
    assert classes["weight"] < 0.2 * raw_classes["weight"]


@pytest.mark.slow
@pytest.mark.soak
def test_what_is_too_large_in_the_end_is_planned_again_with_weights_as_they_are(monkeypatch):
    """An estimate that is far too low costs nothing but time."""
    module, inputs = pruned(share=0.0)
    machine = small(160 << 10)
    raw, _, _ = compiled(module, inputs, machine, compression="auto", raw_sizes=True)
    monkeypatch.setattr(measure_weights, "held_bytes", lambda *_: 16)
    found, _, _ = compiled(module, inputs, machine, compression="auto")
    assert found == raw


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("codec", ["zero", "huffman", "auto"])
def test_estimates_are_near_what_the_blocks_take(codec):
    module, _ = pruned(share=0.9)
    module = aimed(module, "df")
    MeasureWeights(codec=codec).apply(Context(), module)
    held = [op.attributes[HELD_BYTES].value.data for op in weights_of(module)]
    choices = Choices(policy="none", compression=codec)
    executed = executable_of(fixed(module, choices, Run()), choices)
    stored = sum(e.bytes for e in executed.program.externals if e.class_ == "weight" and ":" in e.name)
    assert 0.8 * stored <= sum(held) <= 1.25 * stored
    MeasureWeights(codec="none").apply(Context(), module)
    assert not any(HELD_BYTES in op.attributes for op in weights_of(module))


def test_weights_of_groups_and_dense_ones_are_as_they_are():
    net = Net(5)
    x = net.input(1, 8, 8, 8)
    module, _ = net.module(net.conv(net.conv(x, 8, 3, groups=8), 8, 1))
    module = aimed(module, "df")
    MeasureWeights(codec="zero").apply(Context(), module)
    assert not any(HELD_BYTES in op.attributes for op in weights_of(module))
