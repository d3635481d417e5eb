"""Maps of 1 to 8 rows and columns, which have fewer tiles than machines have clusters, in every order.

test/soak/soak_orders.py has every size, and more chains.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from networks import Net
from owners import idle_work, times_stored
from stops import aimed, run_module, target
from units import Group, as_units, layers_in, placed
from window_chains import BORDERS, MACHINES, ORDERED, POLICIES, QUANTUM, WORDS, chains, first_broad, machine
from xdsl.context import Context

import frustum
from frustum.backend import targets
from frustum.backend.pipeline import Choices, Run
from frustum.dialects import tile as t
from frustum.dialects.fit import DoesNotFit
from frustum.dialects.unit import Partition
from frustum.passes.import_onnx import import_onnx
from frustum.passes.tile.assign_order import AssignOrder
from frustum.passes.tile.order_words import parse_order
from frustum.runtime.oracle import oracle_outputs

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


def check(chain, machine, **options):
    """A chain in checked mode against onnxruntime, and of integers, bit for bit, against the network whose layers
    compute in integers."""
    try:
        executable = frustum.compile(chain.model, machine, split="never", **options)
    except DoesNotFit:
        return
    found = frustum.run(executable, {"x": chain.x}, checked=True).outputs["y"]
    wanted = oracle_outputs(chain.model, {"x": chain.x})["y"]
    if chain.is_quantised:  # products are rounded to 24 bits there: now and then to the other side of a half
        np.testing.assert_allclose(found, wanted, atol=2.01 * QUANTUM)
        module = aimed(import_onnx(chain.model, name="chain"), machine)
        Run().advance(module, ["typed"], Choices())
        np.testing.assert_array_equal(found, run_module(module, {"x": chain.x})["y"])
    else:
        np.testing.assert_allclose(found, wanted, atol=1e-4 * max(1e-3, np.abs(wanted).max()))


@settings(suppress_health_check=HEALTH)
@given(chains(), MACHINES, ORDERED, BORDERS, POLICIES)
def test_chains_of_windows_on_small_maps(chain, machine, order, borders, policy):
    check(chain, machine, order=order, borders=borders, policy=policy)
