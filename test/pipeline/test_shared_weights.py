"""Weights spread over the clusters: the same bits, in checked mode, from less SRAM and as many bytes of DRAM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integer_networks import IntegerNet
from random_network import networks
from stops import executable, modules_at_stops
from xdsl.context import Context

from frustum.backend.pipeline import Choices, passes_to
from frustum.dialects.isa import AllocOp, CopyOp
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.compress_weights import CompressWeights
from frustum.passes.lower.share_weights import ShareWeights
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def shared(lowered, codec=None):
    """A copy of a module at stop `lowered` with shared weights, compressed before if there is a codec."""
    module = lowered.clone()
    if codec:
        CompressWeights(codec=codec).apply(Context(), module)
    ShareWeights().apply(Context(), module)
    module.verify()
    return module


def held(module, target, choices=Choices()):  # noqa: B008  # frozen
    """A module at stop `lowered` whose weights are in SRAM as the plan says, ready to be shared."""
    module = modules_at_stops(module, target, choices)["placed"]
    for step in passes_to("lowered", replace(choices, weights="shared")):
        if not isinstance(step, ShareWeights):
            step.apply(Context(), module)
    return module


def run(module, inputs, *, checked=False):
    built = executable(module)
    machine = Machine(built)
    outputs = machine.run(inputs, mode="functional", checked=checked).outputs
    bits = {name: np.asarray(array).tobytes() for name, array in outputs.items()}
    return bits, count(machine.expanded, machine.target, built.code.page_bytes)


def held_bytes(module):
    """What all buffers of SRAM of a module take."""
    allocs = [op for op in module.walk() if isinstance(op, AllocOp) and op.memory == "sram"]
    return sum(op.bytes.value.data * op.depth.value.data for op in allocs)


def sends(module):
    return [op for op in module.walk() if isinstance(op, CopyOp) and op.engine.data == "cdma"]


def wide(net):
    """Rows go to the clusters, so all need all weights, which come in many pieces of input channels."""
    return (net.product(net.integer_input(1, 256, 32, 32), 64, 3),)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [None, "huffman"])
def test_four_clusters_hold_weights_once(codec):
    net = IntegerNet(seed=1)
    module, inputs = net.module(*wide(net))
    lowered = held(module, "default", Choices(policy="pyramid"))
    spread = shared(lowered, codec)
    assert sends(spread), "nothing is shared: the test needs another network"
    assert held_bytes(spread) < held_bytes(lowered)
    (bits, before), (same, after) = run(lowered, inputs), run(spread, inputs, checked=True)
    assert bits == same
    old, new = (each.dram_bytes_by_class["weight"] for each in (before, after))
    vector = 4 * 64  # of one number for each output channel: cores that share these out may read one of them twice
    assert old <= new <= old + vector or codec
    assert str(shared(spread)) == str(spread)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 6, suppress_health_check=SLOW_DRAWS)
@given(networks(), st.sampled_from(["default", "manycore"]), st.sampled_from(["f32", "f16"]))
def test_random_networks(network, target, dtype):
    lowered = held(network.module, target, Choices(dtype=dtype))
    assert run(lowered, network.inputs)[0] == run(shared(lowered), network.inputs, checked=True)[0]


@pytest.mark.slow
def test_clusters_without_cdma_cannot_share():
    net = IntegerNet(seed=1)
    module, _ = net.module(net.product(net.integer_input(1, 8, 6, 6), 8))
    lowered = held(module, "tiny")
    with pytest.raises(DoesNotFit, match=r"target tiny: clusters that share weights .* needed CDMA, available none"):
        shared(lowered)


@pytest.mark.slow
def test_one_cluster_has_nobody_to_share_with():
    net = IntegerNet(seed=1)
    module, _ = net.module(net.product(net.integer_input(1, 8, 6, 6), 8))
    lowered = held(module, "edge")
    assert str(shared(lowered)) == str(lowered)
