"""Networks with compressed weights: the same bits, in checked mode, for fewer bytes of DRAM."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integer_networks import IntegerNet
from networks import Net
from random_network import networks
from stops import executable, modules_at_stops
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects.isa import CopyOp, ExternalOp
from frustum.dialects.module import COMPRESSION
from frustum.dialects.weights.codec import CODECS
from frustum.passes.lower.compress_weights import CompressWeights
from frustum.passes.weights import store_of, used_keys
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def prune(module, share=0.9):
    """Set this share of the weights to 0."""
    store, rng = store_of(module), np.random.default_rng(7)
    for key in used_keys(module):
        array = np.asarray(store[key])
        if array.ndim > 1:
            store[key] = np.where(rng.random(array.shape) < share, np.zeros_like(array), array)


def compressed(lowered, codec="auto"):
    """A copy of a module at stop `lowered`, compressed, and what came of it."""
    module = lowered.clone()
    CompressWeights(codec=codec).apply(Context(), module)
    module.verify()
    return module, json.loads(module.attributes[COMPRESSION].data)


def run(module, inputs, *, checked=False):
    """Outputs as bits, and what was counted."""
    built = executable(module)
    machine = Machine(built)
    outputs = machine.run(inputs, mode="functional", checked=checked).outputs
    bits = {name: np.asarray(array).tobytes() for name, array in outputs.items()}
    return bits, count(machine.expanded, machine.target, built.code.page_bytes)


def agree(lowered, inputs, codec):
    """Compressed and not; gives bytes of weights before and after, and what the pass says."""
    module, said = compressed(lowered, codec)
    raw, compact = run(lowered, inputs), run(module, inputs, checked=True)
    assert compact[0] == raw[0], "other bits"
    before, after = (each[1].dram_bytes_by_class["weight"] for each in (raw, compact))
    others = {name: size for name, size in raw[1].dram_bytes_by_class.items() if name not in ("weight", "other")}
    assert others.items() <= compact[1].dram_bytes_by_class.items()
    # raw ones may wait there (`weights_ahead.py`); where the last buffer begins, alignment decides
    assert compact[1].peak_bytes["wram"] <= raw[1].peak_bytes["wram"] + ALIGNMENT
    return before, after, said


def integers(net):
    x = net.integer_input(1, 40, 13, 11)
    y = net.product(x, 72, 3)
    return (net.product(net.product(y, 50, 1, clip=True), 33, 3, strides=(2, 2)),)


def integers_in_groups(net):
    x = net.integer_input(1, 48, 9, 9)
    return (net.product(net.product(x, 96, groups=4), 96, groups=96),)


def products(net):
    return (net.matrix(net.matrix(net.integer_input(3, 700), 400, clip=True), 110, trans_b=True),)


ALIGNMENT = 16
"""Bytes, of all machines here."""

WAYS = [*product(["default"], CODECS), ("tiny", "auto"), ("edge", "auto"), ("manycore", "zero")]


@pytest.mark.slow
@pytest.mark.soak(but=4)
@pytest.mark.parametrize(("target", "codec"), WAYS)
@pytest.mark.parametrize("network", [integers, integers_in_groups, products], ids=lambda n: n.__name__)
def test_integers(network, target, codec):
    net = IntegerNet(seed=1)
    module, inputs = net.module(*network(net))
    prune(module)
    before, after, said = agree(modules_at_stops(module, target, Choices())["lowered"], inputs, codec)
    assert after <= before
    if target != "tiny":  # whose pieces have less than 512 bytes
        assert after < before and said["compressed_tensors"] > 0


def floats():
    net = Net(seed=2)
    x = net.input(1, 24, 14, 14)
    y = net.conv(net.conv(x, 64, 3, act="relu"), 96, 1)
    return net.module(net.conv(y, 64, 3, strides=(2, 2)))


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("target", ["default", "edge"])
def test_floats(target, dtype):
    module, inputs = floats()
    lowered = modules_at_stops(module, target, Choices(dtype=dtype))["lowered"]
    before, after, said = agree(lowered, inputs, "huffman")
    assert after < 0.95 * before and said["compressed_tensors"] >= 3  # exponents of random weights have few values


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 6, suppress_health_check=SLOW_DRAWS)
@given(networks(), st.sampled_from(["tiny", "default", "manycore"]), st.sampled_from(["f32", "f16"]))
def test_random_networks(network, target, dtype):
    prune(network.module, 0.95)
    agree(modules_at_stops(network.module, target, Choices(dtype=dtype))["lowered"], network.inputs, "auto")


def pruned():
    """A network of 90 % zeros, lowered for `default`, and its inputs."""
    net = IntegerNet(seed=1)
    module, inputs = net.module(*integers(net))
    prune(module)
    return modules_at_stops(module, "default", Choices())["lowered"], inputs


@pytest.mark.slow
def test_a_pruned_network_moves_fewer_bytes():
    """What is counted is what the executable holds, for here every tensor is loaded once; and it is near 2 bytes for
    each weight that is left."""
    lowered, inputs = pruned()
    before, after, said = agree(lowered, inputs, "zero")
    weights = [op for op in compressed(lowered, "zero")[0].walk() if isinstance(op, ExternalOp)]
    stored = sum(op.bytes.value.data for op in weights if op.class_.data == "weight")
    assert (before, after) == (said["raw_bytes"], said["stored_bytes"]) == (before, stored)
    left = sum(int(np.count_nonzero(store_of(lowered)[key])) for key in used_keys(lowered) if "w" in key)
    assert 2 * left < after < 0.32 * before


@pytest.mark.slow
def test_compressing_twice_is_compressing_once():
    lowered, _ = pruned()
    once, _ = compressed(lowered, "zero")
    assert str(compressed(once, "zero")[0]) == str(once)


@pytest.mark.slow
def test_two_attempts_share_their_blocks():
    lowered, _ = pruned()
    once, again = compressed(lowered, "zero")[0], compressed(lowered, "zero")[0]
    assert str(once) == str(again)
    for key in used_keys(lowered):  # other weights under the same keys
        store_of(lowered)[key] = np.roll(np.asarray(store_of(lowered)[key]), 1)
    names = [op.external_name.data for op in compressed(lowered, "zero")[0].walk() if isinstance(op, ExternalOp)]
    assert any(name.endswith(":zero.1") for name in names)


@pytest.mark.slow
def test_incompressible_weights_stay_as_they_are():
    net = IntegerNet(seed=1)
    module, inputs = net.module(*integers(net))
    lowered = modules_at_stops(module, "default", Choices())["lowered"]
    before, after, said = agree(lowered, inputs, "zero")
    assert before == after and said["compressed_tensors"] == 0
    assert set(said["raw_loads"]) == {"is not smaller"}
    assert not any(isinstance(op, CopyOp) and op.expand for op in compressed(lowered, "zero")[0].walk())
