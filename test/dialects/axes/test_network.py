"""What a network of axes has to move, against counts of positions."""

import random

import numpy as np
import pytest
from axis_networks import network

from frustum.dialects import graph as g
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import covered
from frustum.dialects.plan.count import count
from frustum.dialects.plan.tree import Compute


@pytest.mark.parametrize("seed", range(20))
def test_positions_in_any_box(seed):
    rng = random.Random(seed)
    axes = [Axis(name, rng.randint(1, 6)) for name in "abc"[: rng.randint(1, 3)]]
    marked, boxes = np.zeros([axis.extent for axis in axes], bool), []
    for _ in range(rng.randint(0, 4)):
        box = {axis: (start := rng.randrange(axis.extent), rng.randint(start + 1, axis.extent)) for axis in axes}
        boxes.append(box)
        marked[tuple(slice(*box[axis]) for axis in axes)] = True
    assert covered(boxes) == marked.sum()


def test_rows_that_no_window_reads_are_not_compulsory():
    net = network(lambda x: (g.PoolOp("max", x, (2, 2), (3, 3), (0, 0, 0, 0)),), (1, 2, 10, 10))
    read, made = 2 * 8 * 8, 2 * 3 * 3
    assert net.compulsory_bytes == 2 * (read + made) == count(net, Compute((net.layers[0].name,))).dram_bytes


def test_parts_that_layers_read_apart_count_together():
    def build(x, w):
        parts = [g.SliceOp(x, (0, k), (4, 3)) for k in (0, 2)]
        return *parts, g.BinaryOp("add", parts[0].result, parts[1].result), g.UnaryOp("relu", w)

    net = network(build, (4, 8), (4, 4))
    assert net.compulsory_bytes == 2 * (4 * 5 + 4 * 4 + 4 * 4)
