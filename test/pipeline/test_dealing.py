"""Input channels dealt to the cores, which add their sums: the same numbers, in order, where the planner takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import check_agreement
from happens_before import check
from networks import Net
from stops import executable, modules_at_stops, run_module, target
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.pipeline import Choices, Run
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import AllocOp, ProgramOp
from frustum.dialects.tile import INPUTS, MapAttr
from frustum.runtime.machine import Machine

MAP = "frustum.map"


def layer(outputs, *, act="relu", bias=True, residual=False, kernel=3):
    """A convolution of 14 channels on 9x8, with what is done on its way out."""

    def build(net):
        x = net.input(1, 14, 9, 8)
        made = net.conv(x, outputs, kernel, bias=bias, act=None if residual else act)
        return net.binary("add", made, net.input(1, outputs, 9, 8), act) if residual else made

    return build


LAYERS = {
    "bias and activation": (layer(12), (1, 12, 9, 8)),
    "bias": (layer(12, act=None), (1, 12, 9, 8)),
    "activation": (layer(12, bias=False), (1, 12, 9, 8)),
    "neither": (layer(12, act=None, bias=False), (1, 12, 9, 8)),
    "residual": (layer(12, residual=True), (1, 12, 9, 8)),
    "residual without bias": (layer(12, bias=False, residual=True), (1, 12, 9, 8)),
    "rows and outputs cut": (layer(12, residual=True), (1, 8, 4, 8)),
    "columns shared": (layer(6), (1, 6, 9, 4)),
    "rows shared": (layer(6), (1, 3, 4, 3)),
    "one tap": (layer(12, kernel=1), (1, 4, 5, 8)),
}


def dealt(build, extent, channels):
    """A module at every stop whose convolutions have such pieces, with input channels dealt to the cores."""
    net = Net()
    module, inputs = net.module(build(net))
    choices = Choices(policy="optimal")
    modules = modules_at_stops(module, "default", choices)
    tiled: ModuleOp = modules["tiled"].clone()
    for op in tiled.walk():
        if op.name == "fgraph.conv":
            old = op.attributes[MAP].data
            op.attributes[MAP] = MapAttr(replace(old, extent=extent, cores=INPUTS, channels=channels))
    run = Run()
    run.advance(tiled, ["placed"], choices)
    placed = tiled.clone()
    run.advance(tiled, ["lowered", "fixed"], choices)
    return {"typed": modules["typed"], "placed": placed, "fixed": tiled}, inputs


@pytest.mark.slow
@pytest.mark.soak(but=10)
@pytest.mark.parametrize("channels", [4, 2, 1])
@pytest.mark.parametrize("name", LAYERS)
def test_cores_add_their_sums(name, channels):
    """14 channels on four cores, so many at a time: the last core has fewer in its only pass, or none in its last."""
    build, extent = LAYERS[name]
    modules, inputs = dealt(build, extent, channels)
    outputs = {stop: run_module(module, inputs, checked=stop == "fixed") for stop, module in modules.items()}
    check_agreement(outputs, "f32")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "rows and outputs cut"])
def test_the_sums_of_all_cores_are_there_before_they_are_added(name):
    build, extent = LAYERS[name]
    modules, _ = dealt(build, extent, 2)
    (program,) = [op for op in modules["fixed"].walk() if isinstance(op, ProgramOp)]
    assert check(program, 4, 4) > 100


def planned(net, output, dtype, machine="default"):
    """The module at every stop, with the maps of its convolutions."""
    module, inputs = net.module(output)
    modules = modules_at_stops(module, machine, Choices(policy="optimal", dtype=dtype))
    return modules, inputs, [op.attributes[MAP].data for op in modules["tiled"].walk() if op.name == "fgraph.conv"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_small_map_of_many_channels_has_its_input_channels_dealt(dtype):
    net = Net()
    modules, inputs, (submap,) = planned(net, net.conv(net.input(1, 128, 7, 7), 32, act="relu"), dtype)
    assert submap.cores == INPUTS
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(outputs, dtype)


@pytest.mark.slow
def test_sums_of_several_images_and_of_groups_are_not_dealt():
    for images, groups in ((2, 1), (1, 2)):
        net = Net()
        conv = net.conv(net.input(images, 128, 7, 7), 32, groups=groups)
        _, _, (submap,) = planned(net, conv, "f16")
        assert submap.cores != INPUTS


@pytest.mark.slow
def test_a_map_that_all_cores_need_crosses_the_bus_once():
    """Cores with output channels of their own: weights by their own engines, the map by the bus."""
    net = Net()
    modules, _, (submap,) = planned(net, net.conv(net.input(1, 512, 14, 14), 128, 1), "f16")
    assert submap.cores == 1
    into = {
        op.dst.type.memory: op.engine.data
        for op in modules["fixed"].walk()
        if isinstance(op, CopyOp) and op.src.type.memory == "sram" and op.dst.type.memory != "dram"
        and op.src_view.data.element == "f16"
    }  # fmt: skip
    assert into == {"nram": "bus", "wram": "mvdma"}


def one_core_of_units4():
    whole = target("units4")
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, cores=1)))


@pytest.mark.slow
def test_a_fully_connected_layer_streams_large_subsets_of_its_weights():
    """The example of docs/techniques/frustum.md: 16,000,000 weights of 2 bytes, 32 KiB of WRAM, 16 inputs."""
    net = Net()
    modules, _, _ = planned(net, net.dense(net.input(16, 4000), 4000), "f16", one_core_of_units4())
    allocs = [op for op in modules["fixed"].walk() if isinstance(op, AllocOp)]
    assert [op.bytes.value.data for op in allocs if op.buffer.type.memory == "wram"] == [16000]
    cycles = Machine(executable(modules["fixed"])).run({}, mode="timing").timeline.total_cycles
    products, bytes_moved = 16 * 4000 * 4000 * 2 // 256, 2 * 4000 * 4000
    assert cycles <= 1.1 * max(products, bytes_moved // 16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_streamed_weights_leave_the_bias_in_nram(dtype):
    net = Net()
    machine = one_core_of_units4()
    cluster = replace(machine.cluster, sram=replace(machine.cluster.sram, capacity_bytes=40_000))
    small = replace(machine, chip=replace(machine.chip, cluster=cluster))
    module, inputs = net.module(net.dense(net.input(16, 400), 1000, "relu"))
    modules = modules_at_stops(module, small, Choices(policy="optimal", dtype=dtype))
    (submap,) = [op.attributes[MAP].data for op in modules["tiled"].walk() if MAP in op.attributes]
    assert submap.weights == "stream"
    stops = ("typed", "placed", "fixed")
    check_agreement({s: run_module(modules[s], inputs, checked=s == "fixed") for s in stops}, dtype)
