"""Attention whose keys and values do not fit SRAM computes the same, and moves what the best plan by hand moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_nets import attention, check
from stops import executable, modules_at_stops, target

from frustum.backend.pipeline import Choices
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count


def small(name, sram_bytes):
    """A target with so many bytes of SRAM in each cluster."""
    whole = target(name)
    sram = replace(whole.cluster.sram, capacity_bytes=sram_bytes)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram)))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", ["edge", "default", "df"])
def test_blocks_of_keys_come_while_the_layer_computes(name, dtype):
    (layer,) = check(*attention((2, 2), (16, 16), 40, 100, batch=2), small(name, 8192), dtype)
    assert layer.layer.is_batched and layer.map.data.weights == "stream"


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("is_apart", [False, True])
def test_groups_share_what_comes(rows, is_apart):
    module, inputs = attention((6, 3), (16, 8), rows, 220, is_apart=is_apart, is_merged=not is_apart)
    (layer,) = check(module, inputs, small("edge", 10240))
    assert layer.layer.is_batched


@pytest.mark.parametrize("settings", [{"causal_from": 0}, {"causal_from": 80}, {"softcap": 1.5, "mask": (1, 200)}])
def test_scores_are_adjusted(settings):
    (layer,) = check(*attention((2, 1), (16, 16), 120, 200, **settings), small("edge", 12288))
    assert layer.layer.is_batched


def test_a_row_that_sees_no_key_is_zero():
    module, inputs = attention((1, 1), (16, 16), 40, 300, mask=(1, 300))
    inputs["x3"][:, 30:] = -np.inf
    check(module, inputs, small("edge", 8192), "f16")
    inputs["x3"][:] = -np.inf
    check(module, inputs, small("edge", 8192), "f16")


@pytest.mark.parametrize(
    ("rows", "size", "kib", "megabytes"),
    [
        (1024, 64, 256, 0.659), (2048, 64, 512, 1.317), (2048, 128, 1024, 2.628),
    ],
)  # fmt: skip
def test_as_few_bytes_as_the_plan_by_hand(rows, size, kib, megabytes):
    """Passes over the keys with all memory beside the rows for keys that stay: 2Nd + 2Ld + 2(L - K)d(p - 1) words."""
    module, _ = attention((1, 1), (size, size), rows, rows, is_apart=True)
    found = modules_at_stops(module, small("df", kib << 10), Choices(dtype="f16"))["fixed"]
    built = executable(found)
    machine = Machine(built)
    counted = count(machine.expanded, machine.target, built.code.page_bytes)
    moved = counted.dram_read_bytes + counted.dram_write_bytes
    assert moved <= 1.02e6 * megabytes
