"""Attention whose keys and values do not fit SRAM computes the same, and moves what the best plan by hand moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_nets import attention, check
from stops import aimed, executable, modules_at_stops, target

from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects.module import COST_PARTS, numbers_of
from frustum.passes.plan.cost import CostParts
from frustum.passes.plan.unit_ops import units_of
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count


def small(name, sram_bytes, nram_bytes=None, wram_bytes=None):
    """A target with so many bytes of SRAM in each cluster, and of NRAM and WRAM in each core."""
    whole = target(name)
    cluster = replace(whole.cluster, sram=replace(whole.cluster.sram, capacity_bytes=sram_bytes))
    if nram_bytes is not None:
        core = replace(cluster.core, nram=replace(cluster.core.nram, capacity_bytes=nram_bytes))
        cluster = replace(cluster, core=core)
    if wram_bytes is not None:
        core = replace(cluster.core, wram=replace(cluster.core.wram, capacity_bytes=wram_bytes))
        cluster = replace(cluster, core=core)
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", ["edge", "default", "df"])
def test_blocks_of_keys_come_while_the_layer_computes(name, dtype):
    (layer,) = check(*attention((2, 2), (16, 16), 40, 100, batch=2), small(name, 8192), dtype)
    assert layer.layer.is_batched and layer.map.data.weights == "stream"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("carry", ["f32", "element", "auto"])
def test_results_between_blocks_are_wide_if_asked(carry):
    module, inputs = attention((1, 1), (16, 16), 300, 400)
    (layer,) = check(module, inputs, small("df", 16384, 6144, 2048), "f16", carry=carry)
    assert layer.layer.is_wide == (carry == "f32")  # in f16 fewer bytes move


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("is_apart", [False, True])
def test_groups_share_what_comes(rows, is_apart):
    module, inputs = attention((6, 3), (16, 8), rows, 220, is_apart=is_apart, is_merged=not is_apart)
    (layer,) = check(module, inputs, small("edge", 10240))
    assert layer.layer.is_batched


def test_channels_may_come_first():
    module, inputs = attention((4, 2), (16, 8), 30, 220, batch=2, is_channels_first=True)
    (layer,) = check(module, inputs, small("edge", 10240))
    assert layer.layer.is_batched


@pytest.mark.slow
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


BY_HAND = [
    (1024, 64, 256, 0.659), (2048, 64, 256, 1.932), (2048, 64, 512, 1.317), (2048, 128, 512, 3.855),
    (2048, 128, 1024, 2.628), (4096, 128, 512, 12.188), (4096, 128, 2048, 5.256), (8192, 128, 512, 41.529),
]  # fmt: skip
"""Queries and keys, size, KiB of SRAM: MB of the least passes over the keys with all memory beside the rows for keys
that stay, 2Nd + 2Ld + 2(L - K)d(p - 1) words."""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("rows", "size", "kib", "megabytes"), BY_HAND)
def test_as_few_bytes_as_the_plan_by_hand(rows, size, kib, megabytes):
    module, _ = attention((1, 1), (size, size), rows, rows, is_apart=True)
    module = aimed(module, small("df", kib << 10))
    for stop in ("typed", "fused", "tiled"):
        Run().advance(module, [stop], Choices(dtype="f16"))
    (unit,) = units_of(module)
    parts = CostParts(*numbers_of(unit, COST_PARTS))
    assert parts.weight_bytes + parts.loaded_bytes + parts.stored_bytes <= 1.015e6 * megabytes


TWO_PASSES = [each for each in BY_HAND if each[3] < each[0] * each[1] * 11e-6]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("rows", "size", "kib", "megabytes"), TWO_PASSES)
def test_nothing_waits_where_values_come_in_parts(rows, size, kib, megabytes):
    module, _ = attention((1, 1), (size, size), rows, rows, is_apart=True)
    module = aimed(module, small("df", kib << 10))
    for stop in ("typed", "fused", "tiled"):
        Run().advance(module, [stop], Choices(dtype="f16", carry="f32"))
    (unit,) = units_of(module)
    parts = CostParts(*numbers_of(unit, COST_PARTS))
    assert parts.weight_bytes + parts.loaded_bytes + parts.stored_bytes <= 1e6 * megabytes


WIDE = {(2048, 64, 256): 1.05, (2048, 128, 512): 1.05, (4096, 128, 512): 1.25, (8192, 128, 512): 1.25}
"""What f32 results so far may move at most, as a part of the same: rows with results in f32 leave less for keys of all
that is on chip, NRAM and WRAM too; 8192 x 128 take 11 passes instead of 9."""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("case", WIDE)
def test_wide_results_leave_room_for_keys(case):
    rows, size, kib = case
    module, _ = attention((1, 1), (size, size), rows, rows, is_apart=True)
    module = aimed(module, small("df", kib << 10))
    for stop in ("typed", "fused", "tiled"):
        Run().advance(module, [stop], Choices(dtype="f16", carry="f32"))
    (unit,) = units_of(module)
    parts = CostParts(*numbers_of(unit, COST_PARTS))
    (megabytes,) = (own for *rest, own in BY_HAND if tuple(rest) == case)
    assert parts.weight_bytes + parts.loaded_bytes + parts.stored_bytes <= WIDE[case] * 1e6 * megabytes


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("heads", "dtype", "settings"), [(1, "f16", {"causal_from": 0}), (2, "f32", {})])
def test_keys_come_to_the_only_core_and_stay_there(heads, dtype, settings):
    module, inputs = attention((heads, heads), (16, 16), 600, 300, **settings)
    (layer,) = check(module, inputs, small("df", 8192, 4096, 8192), dtype, carry="f32")
    found = layer.map.data
    assert found.direct and found.in_wram


@pytest.mark.slow
@pytest.mark.soak
def test_keys_come_through_sram_where_cores_share_them():
    (layer,) = check(*attention((1, 1), (16, 16), 600, 300), small("edge", 8192), "f16")
    assert layer.map.data.chunk and not layer.map.data.direct and not layer.map.data.in_wram


@pytest.mark.parametrize("carry", ["auto", "f32"])
def test_wide_results_do_not_wait_where_that_takes_long(carry):
    module, _ = attention((1, 1), (64, 64), 2048, 2048, is_apart=True)
    module = aimed(module, target("edge"))
    Run().advance(module, ["typed"], Choices(dtype="f16", carry=carry))
    (found,) = (op for op in module.walk() if isinstance(op, g.AttentionOp))
    assert "frustum.value_parts" in found.attributes


IN_CORE = [
    ("bf16", "df", (1, 1), (16, 16), {"causal_from": 0}), ("f16", "edge", (2, 1), (16, 16), {"causal_from": 100}),
    ("f16", "default", (2, 2), (16, 16), {"batch": 2}), ("bf16", "edge", (2, 1), (16, 8), {}),
    ("f16", "df", (1, 1), (16, 16), {"mask": (1, 200)}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize(("dtype", "name", "heads", "sizes", "settings"), IN_CORE)
def test_wide_results_stay_in_the_cores_and_end_where_queries_were(dtype, name, heads, sizes, settings):
    module, inputs = attention(heads, sizes, 130, 200, **settings)
    (layer,) = check(module, inputs, small(name, 8192, 4096, 2048), dtype, carry="f32")
    assert layer.layer.is_wide and layer.map.data.in_core
    assert layer.map.data.in_place == (sizes[0] == sizes[1] and "mask" not in settings)


PARTED = [("df", {}), ("df", {"causal_from": 0}), ("edge", {"softcap": 1.5, "mask": (1, 300)})]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("name", "settings"), PARTED)
def test_values_come_in_parts(name, settings):
    module, inputs = attention((1, 1), (16, 16), 200, 300, is_apart=True, is_merged=False, **settings)
    (layer,) = check(module, inputs, small(name, 17 << 10, 3 << 10, 2 << 10), "f16", carry="f32")
    assert not layer.layer.is_batched and layer.layer.value_size < 16


def test_what_is_counted_is_what_was_planned():
    module, _ = attention((1, 1), (64, 64), 300, 500)
    found = modules_at_stops(module, small("df", 64 << 10), Choices(dtype="f16"))
    (unit,) = units_of(found["tiled"])
    parts = CostParts(*numbers_of(unit, COST_PARTS))
    counted = count_of(executable(found["fixed"]))
    assert counted["input"] == parts.weight_bytes + parts.loaded_bytes
    assert counted["output"] == parts.stored_bytes == 300 * 64 * 2


def count_of(built):
    """DRAM bytes by class."""
    machine = Machine(built)
    return count(machine.expanded, machine.target, built.code.page_bytes).dram_bytes_by_class


def test_wide_results_are_divided_while_those_behind_them_come():
    """The loop behind all blocks: what is loaded, then what is computed of it and stored."""
    module, _ = attention((1, 1), (16, 16), 130, 200, causal_from=0)
    module = aimed(module, small("df", 8192, 4096, 2048))
    Run().advance(module, ["typed", "fused", "tiled", "placed", "lowered"], Choices(dtype="bf16", carry="f32"))
    loops = [list(op.body.block.ops) for op in module.walk() if isinstance(op, isa.RepeatOp)]
    (found,) = (ops for ops in loops if any(isinstance(op, isa.BinaryOp) and op.kind.data == "div" for op in ops))
    stages = [(op.name.partition(".")[2], op.stage.value.data) for op in found if not isinstance(op, isa.AllocOp)]
    assert stages[:2] == [("copy", 0)] * 2 and stages[-1] == ("copy", 1)
    assert len(stages) > 4 and {stage for _, stage in stages[2:]} == {1}
