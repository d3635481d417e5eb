"""A report adds up: every byte, cycle, product and picojoule of it is accounted for, in every mode.

The sums are formed here from the report and the target alone.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mixed_models import sandwich
from networks import Net
from stops import aimed
from timing_cases import COMPILED, compiled

import frustum
from frustum.backend.compile import fixed
from frustum.backend.executables import executable_of
from frustum.backend.pipeline import Choices, Run
from frustum.backend.targets import load
from frustum.dialects import graph
from frustum.dialects.isa.program import ELEMENT_BYTES, MEMORIES
from frustum.runtime.model.chain import placed

MODES = ("timing", "functional", "full")
COPYING = ("gdma", "iodma", "mvdma", "bus", "cdma")
COMPUTING = ("matrix", "vector")


def price_of(target, memory):
    cluster = target.chip.cluster
    owner = {"dram": target.chip, "sram": cluster}.get(memory, cluster.core)
    return getattr(owner, memory).energy_pj_per_byte


def check_flows(report):
    """Of every copy: what is read, filled in, expanded and repeated is what is written."""
    for flow in report["flows"]:
        extra = flow["filled_bytes"], flow["expanded_bytes"], flow["repeated_bytes"]
        if flow["engine"] in COPYING:
            assert flow["from"] and flow["to"] and flow["read_bytes"] + sum(extra) == flow["written_bytes"], flow
            assert flow["filled_bytes"] >= 0 and flow["repeated_bytes"] >= 0
        else:
            assert (flow["from"] is None) != (flow["to"] is None) and extra == (0, 0, 0), flow
            assert (flow["from"] is None) == (flow["read_bytes"] == 0)
            assert (flow["to"] is None) == (flow["written_bytes"] == 0)


def passing(report):
    """Bytes that are read and written at DRAM ports for the host and for other chips."""
    host, moved = report["host"], report["moved_between_chips_bytes"]
    return moved + host["to_host_bytes"], moved + host["from_host_bytes"]


def check_dram(report):
    dram, (given, taken) = report["dram"], passing(report)
    read = given + sum(flow["read_bytes"] for flow in report["flows"] if flow["from"] == "dram")
    written = taken + sum(flow["written_bytes"] for flow in report["flows"] if flow["to"] == "dram")
    assert (dram["read_bytes"], dram["write_bytes"]) == (read, written)
    classes = ("weight", "input", "output", "intermediate", "other")
    assert dram["total_bytes"] == read + written == sum(dram[f"{name}_bytes"] for name in classes)
    fetched = sum(flow["read_bytes"] for flow in report["flows"] if flow["engine"] == "fetch")
    assert dram["other_bytes"] == fetched
    assert sum(layer["dram_bytes"] for layer in report["layers"]) <= dram["total_bytes"]


def check_engines(report):
    """Each engine is busy, stalled or idle in every cycle, and moved what its flows say; those of a name on several
    chips count together."""
    chips = len({each["chip"] for each in report["subgraphs"]})
    if report["engines"] is None:
        assert report["cycles"] is None
        return
    moved = {}
    for name, engine in report["engines"].items():
        assert engine["busy"] + engine["stalled"] + engine["idle"] == chips * report["cycles"]["total"], name
        assert min(engine.values()) >= 0, name
        kind = name.rsplit(".", 1)[-1]
        moved[kind] = moved.get(kind, 0) + engine["bytes"]
    for kind, size in moved.items():
        mine = [flow for flow in report["flows"] if flow["engine"] == kind]
        if kind in COPYING:
            assert size == sum(flow["written_bytes"] - flow["repeated_bytes"] for flow in mine), kind
        else:
            assert size == sum(flow["read_bytes"] + flow["written_bytes"] for flow in mine), kind
    assert sum(unit["exchanged_bytes"]["chip"] for unit in report["units"]) == moved["cdma"]


def check_energy(report, target):
    energy, executed = dict(report["energy_pj"]), 0
    for memory in MEMORIES:
        size = sum(flow["read_bytes"] for flow in report["flows"] if flow["from"] == memory)
        size += sum(flow["written_bytes"] for flow in report["flows"] if flow["to"] == memory)
        size += sum(passing(report)) if memory == "dram" else 0
        assert energy[memory] == pytest.approx(size * price_of(target, memory))
    price = target.chip.cluster.core.matrix.energy_pj_per_mac
    prices = {1: price.int8, 2: price.sixteen_bit, 4: price.f32}
    for name, spent in energy.items():
        each = prices.get(ELEMENT_BYTES.get(name.removeprefix("mac_")))
        executed += round(spent / each) if name.startswith("mac_") and each else 0
    if all(prices.values()):
        assert executed == report["macs"]["executed"]
    total = energy.pop("total")
    assert total == pytest.approx(sum(energy.values()))


def check_work(report, choices, executables):
    """Once, no layer makes more than all of its map; the network may need less of it."""
    macs = report["macs"]
    own = sum(sum(each.program.useful_macs) for each in executables)
    assert 0 <= macs["executed"] - macs["recomputed"] <= own >= macs["useful"]
    if choices.policy == "none":
        assert macs["executed"] >= macs["useful"]
    if choices.compression == "none":
        assert report["dram"]["ratio"] is None or report["dram"]["ratio"] >= 1
        if report["cycles"] is not None and report["cycles"]["ratio"] is not None:
            assert report["cycles"]["ratio"] >= 1


def check(report, target, choices, *executables):
    check_flows(report)
    check_dram(report)
    check_engines(report)
    check_energy(report, target)
    check_work(report, choices, executables)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(COMPILED, st.sampled_from(MODES))
def test_reports_of_random_networks_add_up(case, mode):
    made = compiled(case)
    assume(made is not None)
    network, _, choices = case
    executable, target = made
    report = frustum.run(executable, {} if mode == "timing" else network.inputs, mode=mode).report
    check(report, target, choices, executable)
    if mode == "full":  # counts do not depend on the mode
        for other in ("timing", "functional"):
            again = frustum.run(executable, {} if other == "timing" else network.inputs, mode=other).report
            for part in ("dram", "flows", "macs", "energy_pj", "line_buffer", "peak_bytes"):
                assert again[part] == report[part], part
            assert untimed(again["units"]) == untimed(report["units"])


def untimed(units):
    """Units without what only a timed run knows."""
    return [{key: value for key, value in unit.items() if key != "waits"} for unit in units]


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("placement", [None, "0,1"])
@pytest.mark.parametrize("mode", MODES)
def test_a_report_with_pieces_on_the_host_and_on_several_chips_adds_up(mode, placement):
    made = frustum.compile(sandwich(), target="manycore", policy="none", compress_weights="none")
    chain = placed(made.chain, placement)
    x = np.random.default_rng(3).standard_normal((1, 32, 32, 32)).astype(np.float32)
    report = frustum.run(chain, {} if mode == "timing" else {"x": x}, mode=mode).report
    assert report["host"]["moved_bytes"] == 2 * x.nbytes
    check(report, load("manycore"), Choices(policy="none"), *chain.executables)


def report_on(build, target, **choices):
    net = Net()
    module, _ = net.module(build(net))
    made = executable_of(fixed(aimed(module, target), Choices(**choices), Run()), Choices(**choices))
    return frustum.run(made, {}, mode="timing").report


def test_products_that_nobody_needs_do_not_make_the_roofline_higher():
    """Of the convolution a third of the rows and columns is read on."""
    report = report_on(
        lambda net: net.pool("max", net.conv(net.input(1, 64, 48, 48), 64, 3), 1, 3), "edge",
        policy="pyramid",
    )  # fmt: skip
    needed = 16 * 16 * 64 * 64 * 3 * 3
    assert report["macs"]["useful"] == needed < report["macs"]["executed"]
    assert 1 <= report["cycles"]["ratio"] < 3


@pytest.mark.parametrize("policy", ["none", "pyramid"])
def test_of_an_input_that_is_cut_the_cut_is_compulsory(policy):
    """A quarter of the rows of 8 maps of 32 x 32, every other column of them backwards."""

    def build(net):
        x, unread = net.input(1, 8, 32, 32), net.input(1, 5, 9, 9)
        cut = net.layer(graph.SliceOp(x, (0, 0, 4, 31), (1, 8, 8, 16), (1, 1, 1, -2)))
        assert not unread.uses
        return net.unary("relu", cut)

    report = report_on(build, "edge", policy=policy)
    size = 4 * 8 * 8 * 16
    assert report["dram"]["compulsory_bytes"] == 2 * size
    assert report["dram"]["input_bytes"] == report["dram"]["output_bytes"] == size
    assert report["cycles"]["ratio"] >= 1
