"""Maps of 1 to 8 rows and columns, which have fewer tiles than machines have clusters, in every order.

test/soak/soak_orders.py has every size, and more chains.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from networks import Net
from onnx import helper, numpy_helper
from owners import idle_work, times_stored
from stops import executable, run_module, target
from units import Group, as_units, layers_in, placed
from window_chains import BORDERS, MACHINES, ORDERED, POLICIES, WORDS, Chain, chains, check, machine
from xdsl.context import Context

import frustum
from frustum.backend import targets
from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph
from frustum.dialects import tile as t
from frustum.dialects.unit import Partition
from frustum.passes.tile.assign_order import AssignOrder
from frustum.passes.tile.orders import parse_order
from frustum.runtime.machine import Machine

pytestmark = pytest.mark.slow

HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
SIZES = ((1, 7), (6, 1), (3, 5))
CLUSTERS = (1, 2, 3, 5, 7)


def windows(rows, columns):
    net = Net(3)
    a = net.conv(net.input(1, 2, rows, columns), 3, 3, act="relu")
    return net.module(net.conv(net.pool("max", a, 3, 1, pads=(1, 1, 1, 1)), 2, (1, 3)))


def in_tiles(module, machine, tile, dealt):
    """The network as one unit in tiles."""
    whole = Group(tuple(range(len(layers_in(module)))), Partition((1, 2, *tile), dealt, 2))
    return placed(as_units(module, machine, [whole]))


def in_order(module, words):
    """A copy of a network in tiles, ordered."""
    module, order = module.clone(), parse_order(words)
    AssignOrder(order=order.order, bands=order.bands, direction=order.direction).apply(Context(), module)
    return module


@pytest.mark.parametrize("machine", [*targets.names(), *CLUSTERS], ids=str)
def test_every_element_is_made_by_one_owner_and_the_others_stay_idle(machine):
    """In every order and direction, for tiles of one row, of one column, of one element: fewer than clusters."""
    machine = small(machine) if isinstance(machine, int) else target(machine)
    clusters = machine.chip.clusters
    for size in SIZES:
        module, _ = windows(*size)
        for tile, dealt in (((1, size[1]), 2), ((size[0], 1), 3), ((1, 1), 2)):
            whole = in_tiles(module, machine, tile, dealt)
            for words in WORDS:
                tiles = in_order(whole, words)
                for unit in (op for op in tiles.walk() if isinstance(op, t.UnitOp)):
                    for times in times_stored(unit, clusters):
                        assert (times == 1).all(), (size, tile, words, times)
                    assert idle_work(unit, clusters) == 0 or unit.sweeps is None, (size, tile, words)


def small(clusters):
    return machine(clusters, 2, 16)


@pytest.mark.parametrize("words", [words for words in WORDS if "bands=2" not in words])
@pytest.mark.parametrize("name", targets.names())
def test_every_order_runs_on_every_machine(name, words):
    """In checked mode, with the numbers of the network itself."""
    for size in SIZES:
        net = Net(3)
        module, inputs = net.module(net.conv(net.input(1, 2, *size), 2, 3))
        found = frustum.run(frustum.compile(module, name, "f32", order=words), inputs, checked=True)
        for key, array in run_module(module, inputs).items():
            np.testing.assert_allclose(found.outputs[key], array, rtol=1e-4, atol=1e-4)
            assert found.report["dram"]["output_bytes"] == array.nbytes


@settings(suppress_health_check=HEALTH)
@given(chains(), MACHINES, ORDERED, BORDERS, POLICIES)
def test_chains_of_windows_on_small_maps(chain, machine, order, borders, policy):
    check(chain, machine, order=order, borders=borders, policy=policy)


def one_node(operator, shape):
    """A model of one node from `x` to `y`."""
    node = helper.make_node(operator, ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, 1, extents) for name, extents in (("x", shape), ("y", None))]
    made = helper.make_graph([node], "one", ends[:1], ends[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("first", ["Relu", "MaxPool", "GlobalAveragePool"])
def test_an_addition_of_one_position_before_a_window(first):
    """A piece of it in a run begins before the map of 1 x 1, whose one position is not one for all of the piece."""
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node(first, ["x"], ["a"], **(window if first == "MaxPool" else {})),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["y"], **window),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [1, 3, 1, 1]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "addition", ends[:1], ends[1:]))
    x = np.linspace(-1, 1, 3, dtype=np.float32).reshape(1, 3, 1, 1)
    for nram in (1000, 65536):
        check(Chain(model, False, x), machine(1, 1, None, sram=2048, nram=nram, dram=8, channels=1))


def test_a_mean_before_a_window_is_stored_where_a_window_begins_before_the_map():
    """A map of one row, dealt by rows to five clusters: the region of the first begins at row -1."""
    whole = machine(5, 4, 7, dram=64, channels=1)
    net = Net(5)
    mean = net.layer(graph.ReduceOp("mean", net.input(1, 3, 13, 16), (2, 3)))
    y = net.pool("max", net.unary("relu", mean), 3, 1, pads=(1, 1, 1, 1))
    module, inputs = net.module(y)
    cut = Group(tuple(range(len(layers_in(module)))), Partition((1, 3, 1, 1), 2, 1))
    tiles = placed(as_units(module, whole, [cut]))
    Run().advance(tiles, ["lowered"], Choices())
    found = Machine(executable(tiles)).run(inputs, mode="full", checked=True)
    for name, array in run_module(module, inputs).items():
        np.testing.assert_allclose(np.asarray(found.outputs[name], np.float32), array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nram", [2992, 2997, 3000, 3008])
def test_buffers_at_the_end_of_a_memory_are_aligned(nram):
    """Only some sizes of NRAM are multiples of 16."""
    made = one_node("Abs", [17, 300, 1, 1])
    power = helper.make_node("Pow", ["y", "p"], ["z"])
    made.graph.node.append(power)
    made.graph.initializer.append(numpy_helper.from_array(np.float32(1), "p"))
    made.graph.output[0].name = "z"
    frustum.compile(made, machine(1, 1, sram=4096, nram=nram))


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_vector_unit_may_have_fewer_lanes_than_an_element_takes_cycles(lanes):
    whole = machine(1, 1)
    core = replace(whole.core, vector=replace(whole.core.vector, lanes=lanes))
    cluster = replace(whole.cluster, core=core)
    whole = replace(whole, chip=replace(whole.chip, cluster=cluster))
    made = frustum.compile(one_node("Sigmoid", [1, 2, 5, 7]), whole)
    assert frustum.run(made, {}, mode="timing").report["cycles"]["total"] > 70 * 2 * 4 // lanes
