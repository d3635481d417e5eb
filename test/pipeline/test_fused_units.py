"""Units that roll, that leave maps in SRAM and that send them to other clusters, on the machine in checked mode."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import pytest
from happens_before import check
from networks import Net
from stops import executable, run_module, target
from units import Group, as_units, layers_in, placed
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph
from frustum.dialects.graph import shape_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.unit import Partition
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import network_of
from frustum.runtime.report.counters import Counters, count


@dataclass(frozen=True)
class Ran:
    """The module at stop `lowered`, what one run counted, and its cycles."""

    lowered: ModuleOp
    counters: Counters
    cycles: int

    def copies(self, engine):
        return [op for op in self.lowered.walk() if isinstance(op, CopyOp) and op.engine.data == engine]

    @property
    def dram_bytes(self):
        """Without program and tables."""
        classes = self.counters.dram_bytes_by_class
        return sum(classes.values()) - classes["other"]


def run_units(module, inputs, target_name, groups):
    """Cut by hand and run to the end in checked mode: outputs as the network's and the tile level's."""
    tiles = placed(as_units(module, target_name, groups))
    wanted, reference = run_module(module, inputs), run_module(tiles, inputs)
    Run().advance(tiles, ["lowered"], Choices())
    made = executable(tiles)
    machine = Machine(made)
    result = machine.run(inputs, mode="full", checked=True)
    for name, array in wanted.items():
        found = np.asarray(result.outputs[name], np.float32)
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(found, reference[name], rtol=1e-5, atol=1e-5, err_msg=name)
    counters = count(machine.expanded, machine.target, made.code.page_bytes)
    return Ran(tiles, counters, result.timeline.total_cycles)


def rolled(rows, columns, channels, images=1, dealt=0):
    return Partition((images, channels, rows, columns), dealt, 2, "exchange")


def compulsory(module, inputs):
    """Bytes of the inputs, the outputs and the weights in f32, each moved once."""
    network = network_of(module)
    weights = [op.result for op in network.walk() if isinstance(op, graph.WeightOp)]
    return sum(
        4 * prod(shape_of(v)) for v in (*network.body.block.args, *weights, *network.terminator.values)
    )


# ------------------------------------------------------------ rolling


def windows():
    """Windows of several sizes and strides, one after the other."""
    net = Net(1)
    x = net.input(2, 3, 20, 16)
    a = net.conv(x, 8, 3, act="relu")
    b = net.pool("max", net.conv(net.conv(a, 8, 1), 6, 5), 2, 2)
    return net.module(net.conv(b, 4, 3)), 4


def branches():
    """Branches side by side, two of them deeper, joined by a concatenation, and a sum over it."""
    net = Net(2)
    x = net.input(2, 6, 17, 12)
    a = net.conv(x, 8, 3, act="relu")
    parts = [net.conv(a, 4, 1), net.conv(a, 5, 3), net.conv(net.conv(a, 3, 1), 7, 5)]
    parts.append(net.conv(net.pool("max", a, 3, 1, pads=(1, 1, 1, 1)), 3, 1))
    both = net.conv(net.layer(graph.ConcatOp(parts, 1)), 8, 3)
    return net.module(net.conv(net.binary("add", both, a, "relu"), 4, 3, strides=(2, 2))), 4


def dense():
    """Every layer reads all maps before it: concatenations inside concatenations."""
    net = Net(3)
    maps = net.conv(net.input(1, 4, 15, 9), 4, 3)
    for _ in range(3):
        maps = net.layer(graph.ConcatOp([maps, net.conv(maps, 3, 3)], 1))
    return net.module(net.unary("relu", maps)), 13


def outputs():
    """Two outputs, of which one is half as high and is read again."""
    net = Net(5)
    a = net.conv(net.input(2, 4, 12, 8), 8, 3)
    return net.module(a, net.conv(net.conv(a, 8, 3, strides=(2, 2)), 8, 3)), 8


WIDTHS = {windows: 8, branches: 6, dense: 9, outputs: 4}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("network", WIDTHS, ids=lambda n: n.__name__)
def test_a_rolling_unit_moves_every_byte_once(network, rows):
    (module, inputs), channels = network()
    ran = run_units(module, inputs, "edge", [whole(module, rolled(rows, WIDTHS[network], channels, 2))])
    assert ran.dram_bytes == compulsory(module, inputs)


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("target", ["edge", "default"])
@pytest.mark.parametrize("network", WIDTHS, ids=lambda n: n.__name__)
def test_rings_go_on_over_images_and_column_strips(network, target):
    (module, inputs), channels = network()
    columns, dealt = (1, 3) if target == "default" else (-(-WIDTHS[network] // 4), 0)
    partition = rolled(2, columns, channels, 1, dealt)
    ran = run_units(module, inputs, target, [whole(module, partition)])
    assert any(view.wrap is not None and view.wrap.phase.loops for view in views(ran))


def whole(module, partition):
    return Group(tuple(range(len(layers_in(module)))), partition)


def views(ran):
    return [view.data for op in ran.copies("mvdma") for view in (op.src_view, op.dst_view)]


# ------------------------------------------------------------ resident maps


def three():
    net = Net(1)
    x = net.input(1, 3, 16, 24)
    return net.module(net.conv(net.conv(net.conv(x, 8, 3, act="relu"), 8, 3), 4, 3))


ROWS, COLUMNS, CHANNELS = 2, 3, 1
CUTS = {
    COLUMNS: lambda channels: Partition((1, channels, 8, 6), 3, 2),
    ROWS: lambda channels: Partition((1, channels, 4, 24), 2, 2),
    CHANNELS: lambda channels: Partition((1, channels // 4, 16, 24), 1, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("cuts", list(product(CUTS, repeat=2)), ids=str)
def test_clusters_send_what_others_need_of_a_resident_map(cuts):
    """Two maps that stay in SRAM, between three layers that are dealt to the clusters in different ways."""
    module, inputs = three()
    first, second = cuts
    groups = [
        Group((0,), CUTS[first](8), (0,)),
        Group((1,), CUTS[second](8), (1,)),
        Group((2,), CUTS[first](4)),
    ]
    ran = run_units(module, inputs, "default", groups)
    assert ran.copies("cdma")
    assert (
        ran.dram_bytes < compulsory(module, inputs) + 3 * 16 * 24 * 4
    )  # the input again at the borders, no more


@pytest.mark.slow
def test_clusters_that_read_rows_are_sent_these_rows():
    """A map made by channels: each cluster sends the others its channels of their rows, and of the borders."""
    module, inputs = three()
    rows = CUTS[ROWS](4)
    ran = run_units(module, inputs, "default", [Group((0,), CUTS[CHANNELS](8), (0,)), Group((1, 2), rows)])
    boxes = [op.box.data for op in ran.copies("cdma")]
    assert [box.extent for box in boxes] == [(1, 2, 8, 24)] * 6


@pytest.mark.slow
def test_a_resident_map_between_rolling_units():
    module, inputs = three()
    groups = [Group((0, 1), rolled(2, 24, 8), (1,)), Group((2,), rolled(3, 12, 4))]
    ran = run_units(module, inputs, "edge", groups)
    assert ran.dram_bytes == compulsory(module, inputs)
    assert not ran.copies("cdma")


@pytest.mark.slow
def test_sends_of_a_rolling_unit():
    module, inputs = three()
    groups = [Group((0, 1), rolled(2, 6, 8, dealt=3), (1,)), Group((2,), rolled(3, 6, 4, dealt=3))]
    assert run_units(module, inputs, "default", groups).copies("cdma")


# ------------------------------------------------------------ order


def small():
    net = Net(1)
    x = net.input(1, 2, 8, 8)
    return net.module(net.conv(net.conv(net.conv(x, 4, 3, act="relu"), 4, 3), 4, 3))[0]


def chain_of(first, second):
    return [Group((0,), first, (0,)), Group((1,), first, (1,)), Group((2,), second)]


ORDERS = {
    "columns": ("default", chain_of(Partition((1, 4, 4, 2), 3, 2), Partition((1, 4, 8, 2), 3, 2))),
    "rows": ("default", chain_of(Partition((1, 4, 2, 8), 2, 2), Partition((1, 4, 2, 8), 2, 2))),
    "channels": ("default", chain_of(Partition((1, 1, 8, 8), 1, 2), Partition((1, 1, 8, 8), 1, 2))),
    "rolling sends": (
        "default",
        [Group((0, 1), rolled(2, 2, 4, dealt=3), (1,)), Group((2,), rolled(2, 2, 4, dealt=3))],
    ),
    "rings over strips": ("edge", [Group((0, 1, 2), rolled(2, 4, 4))]),
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", ORDERS)
def test_sends_and_rings_are_ordered(name):
    """Every two executions that touch the same bytes are ordered, by an oracle that knows nothing of the compiler."""
    target_name, groups = ORDERS[name]
    module = placed(as_units(small(), target_name, groups))
    Run().advance(module, ["lowered", "fixed"], Choices())
    program = next(op for op in module.walk() if isinstance(op, ProgramOp))
    chip = target(target_name).chip
    sends = [op for op in program.walk() if isinstance(op, CopyOp) and op.engine.data == "cdma"]
    assert bool(sends) == (target_name == "default")
    assert check(program, chip.clusters, chip.cluster.cores) > 300  # pairs that touch the same bytes
