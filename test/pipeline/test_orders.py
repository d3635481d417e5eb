"""Every order of traversal on machines of 1, 2, 4 and 16 cores, on the machine in checked mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import executable, run_module, target
from units import Group, as_units, layers_in, placed
from xdsl.context import Context

from frustum.backend.pipeline import Choices, Run
from frustum.dialects import tile as t
from frustum.dialects.unit import Partition
from frustum.passes.tile.assign_order import AssignOrder
from frustum.passes.tile.orders import ORDERS
from frustum.runtime.machine import Machine

CORES = {1: (1, 1), 2: (1, 2), 4: (1, 4), 16: (4, 4)}
"""Clusters, and cores of each."""


def machine_of(cores):
    """The default target with so many cores."""
    whole = target("default")
    clusters, each = CORES[cores]
    cluster = replace(whole.cluster, cores=each)
    return replace(whole, chip=replace(whole.chip, clusters=clusters, cluster=cluster))


def network(rows, columns):
    """Windows of several sizes, a stride and a residual."""
    net = Net(7)
    a = net.conv(net.input(1, 3, 2 * rows, 2 * columns), 4, 3, strides=(2, 2), act="relu")
    b = net.conv(net.pool("max", a, 3, 1, pads=(1, 1, 1, 1)), 4, 5)
    return net.module(net.conv(net.binary("add", b, a, "relu"), 4, 3))


GRIDS = {"4x4": ((8, 8), (2, 2)), "3x5": ((8, 9), (3, 2)), "8x8": ((16, 16), (2, 2))}
"""Extents of the map and of a tile."""


def cut(module, machine, extent, order, **options):
    whole = Group(tuple(range(len(layers_in(module)))), Partition((1, 4, *extent), 2, 2))
    module = placed(as_units(module, machine, [whole]))
    AssignOrder(order=order, **options).apply(Context(), module)
    module.verify()
    return module


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_gives_the_same_numbers(order, cores, grid):
    size, extent = GRIDS[grid]
    module, inputs = network(*size)
    options = {"bands": 2, "direction": "bottom-up"} if order == "bands" else {}
    tiles = cut(module, machine_of(cores), extent, order, **options)
    assert any(op.sweeps is not None for op in tiles.walk() if isinstance(op, t.UnitOp))
    wanted, reference = run_module(module, inputs), run_module(tiles, inputs)
    Run().advance(tiles, ["lowered"], Choices())
    result = Machine(executable(tiles)).run(inputs, mode="full", checked=True)
    for name, array in wanted.items():
        np.testing.assert_allclose(reference[name], array, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.asarray(result.outputs[name], np.float32), array, rtol=1e-4, atol=1e-4)
