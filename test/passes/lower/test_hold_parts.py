"""Part of a tensor stays in SRAM where there is no room for all of it: the same numbers, fewer bytes of DRAM."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check_agreement
from attention_models import TRANSFORMER
from networks import Net
from searches import with_sram
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices, Edit
from frustum.dialects import graph
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import AllocOp, ExternalOp
from frustum.dialects.module import TENSOR
from frustum.passes.lower.through_cores import Flow, loaded_bytes

ALONE = tuple(Edit("without", f"frustum-{name}") for name in ("tile-leave-room", "lower-load-parts"))
WITHOUT = (*ALONE, Edit("without", "frustum-lower-hold-parts"))


def turned_between(net):
    """Channels and columns of a map change places between two convolutions."""
    x = net.conv(net.input(1, 8, 32, 32), 16)
    return [net.conv(net.layer(graph.TransposeOp(x, (0, 3, 2, 1))), 8)]


def read_in_two_forms(net):
    """An input, and a softmax of its rows in another order."""
    x = net.input(1, 16, 24, 32)
    rows = net.layer(graph.SoftmaxOp(net.layer(graph.ReshapeOp(x, (4, 4, 768))), 2))
    back = net.layer(graph.ReshapeOp(net.layer(graph.TransposeOp(rows, (1, 0, 2))), (1, 16, 24, 32)))
    return [net.conv(net.binary("add", back, x), 3)]


def read_again_and_given(net):
    """A map that the network gives, with its columns and rows the other way round behind it."""
    x = net.conv(net.input(1, 8, 24, 40), 12)
    return [x, net.conv(net.layer(graph.TransposeOp(x, (0, 1, 3, 2))), 4)]


def loaded(module, clusters):
    """Bytes that all copies from DRAM read."""
    tensors = [op for op in module.walk() if isinstance(op, ExternalOp)]
    users = [(tensor, use.operation) for tensor in tensors for use in tensor.buffer.uses]
    copies = [(tensor, op) for tensor, op in users if isinstance(op, CopyOp) and op.src is tensor.buffer]
    return sum(loaded_bytes(Flow(tensor, [], [op]), clusters) for tensor, op in copies)


CASES = [
    (turned_between, "edge", 32, "f16"),
    (turned_between, "default", 24, "f32"),
    (read_in_two_forms, "edge", 32, "f16"),
    (read_in_two_forms, "default", 48, "f16"),
    (read_again_and_given, "edge", 36, "f32"),
    (read_again_and_given, "units4", 32, "bf16"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("build", "machine", "kib", "dtype"), CASES)
def test_part_stays_and_numbers_do(build, machine, kib, dtype):
    net = Net()
    module, inputs = net.module(*build(net))
    where = with_sram(machine, kib)
    without, modules = (
        modules_at_stops(module.clone(), where, Choices(dtype=dtype, policy="optimal", edits=edits))
        for edits in (WITHOUT, ALONE)
    )
    kept = [op.attributes.get(TENSOR) for op in modules["fixed"].walk() if isinstance(op, AllocOp)]
    assert any(name is not None and name.data.endswith(".held") for name in kept)
    clusters = where.chip.clusters
    assert loaded(modules["lowered"], clusters) < loaded(without["lowered"], clusters)
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "placed", "fixed")}
    check_agreement(found, dtype)


@pytest.mark.slow
def test_presets_leave_tensors_in_dram():
    net = Net()
    module, _ = net.module(*turned_between(net))
    ops = modules_at_stops(module, with_sram("edge", 32), Choices(dtype="f16", policy="none"))["lowered"].walk()
    assert not any(isinstance(op, AllocOp) and TENSOR in op.attributes for op in ops)


@pytest.mark.slow
def test_tensors_read_backwards_are_left_alone():
    """Halves that change places are one copy whose second position lies before its first."""
    TRANSFORMER["RotaryEmbedding"](np.random.default_rng(758)).check(target="edge")
