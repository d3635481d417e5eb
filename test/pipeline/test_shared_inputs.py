"""Inputs that all clusters share, of which each computes its rows or columns: on the machine in checked mode."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import executable, machine_of, run_module
from units import Group, as_units, placed

from frustum.backend.pipeline import Choices, Run
from frustum.dialects.graph import MatmulOp
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import Unprojectable, project
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.network.layer_order import ops_of_section
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import network_of
from frustum.runtime.report.counters import count

SIZE, CHANNELS = 16, 4
MAP_BYTES = CHANNELS * SIZE * SIZE * 4


def chain():
    """Two layers with windows of 3 x 3, stride 2 in the second."""
    net = Net(3)
    x = net.input(1, CHANNELS, SIZE, SIZE)
    return net.module(net.conv(net.conv(x, CHANNELS, 3), CHANNELS, 3, strides=(2, 2)))


def measured(groups):
    """DRAM bytes by class on four clusters, when the numbers are those of the network."""
    module, inputs = chain()
    tiles = placed(as_units(module, machine_of(16), groups))
    Run().advance(tiles, ["lowered"], Choices())
    made = executable(tiles)
    machine = Machine(made)
    result = machine.run(inputs, mode="full", checked=True)
    for name, array in run_module(module, inputs).items():
        np.testing.assert_allclose(np.asarray(result.outputs[name], np.float32), array, rtol=1e-4, atol=1e-4)
    return count(machine.expanded, machine.target, made.code.page_bytes).dram_bytes_by_class


def part(clusters, *, shared, depth=1, parts=4):
    tile = [1, CHANNELS, SIZE // 2, SIZE // 2]
    tile[clusters] //= parts
    return Partition(tuple(tile), clusters, depth, shared=shared)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [2, 3])
def test_an_input_that_is_shared_is_read_once(clusters):
    shared = measured([Group((0, 1), part(clusters, shared=True))])
    boxes = measured([Group((0, 1), part(clusters, shared=False))])
    assert shared["input"] == MAP_BYTES
    line = CHANNELS * SIZE * 4
    assert boxes["input"] == MAP_BYTES + 3 * 3 * line  # windows of 5 from 2 before on, every 2: 3 lines twice


@pytest.mark.slow
def test_an_input_stays_while_tiles_go_over_it():
    assert measured([Group((0, 1), part(2, shared=True, depth=2, parts=8))])["input"] == MAP_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("borders", ["exchange", "raster"])
def test_what_rolls_is_not_shared(borders):
    module, _ = chain()
    unit = unit_in(module)
    with pytest.raises(Unprojectable, match=f"with borders {borders} inputs are loaded as they are needed"):
        project(unit, Partition((1, CHANNELS, 2, SIZE // 2), 0, 1, borders, shared=True), 4)


def test_a_map_in_sram_stays_as_it_is_there():
    module, _ = chain()
    unit = unit_in(module, resident=True)
    for shared in (False, True):
        (region,) = project(unit, part(2, shared=shared), 4).inputs
        assert region.extent == (1, CHANNELS, 7, SIZE)


@pytest.mark.slow
def test_a_product_and_what_adds_its_input_read_one_map():
    """As operand of a product, and as what is added to one, rows are seen with other strides of their only image."""
    net = Net(3)
    x = net.input(1, SIZE, CHANNELS)
    hidden = net.layer(MatmulOp(x, net.weight(CHANNELS, SIZE)))
    module, _ = net.module(net.layer(MatmulOp(hidden, net.weight(SIZE, CHANNELS), residual=x)))
    assert len(layers_of([op for op in ops_of_section(network_of(module)) if isinstance(op, MatmulOp)]).inputs) == 1


def unit_in(module, *, resident=False):
    """Both layers of `chain`; `resident`: the input is in SRAM."""
    ops = ops_of_section(network_of(module))
    layers = [op for op in ops if op.name == "fgraph.conv"]
    return layers_of(layers, [layers[-1].results[0]], {layers[0].operands[0]} if resident else ())
