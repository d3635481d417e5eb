"""Units of which rows and columns are kept, on the machine in checked mode."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from raster_networks import chains, one_unit, vgg_like
from stops import aimed, executable, run_module
from units import layers_in
from xdsl.context import Context

from frustum.backend.pipeline import Choices, Run
from frustum.dialects.graph import shape_of
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import Unprojectable
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.tile.force_partition import ForcePartition
from frustum.runtime.machine import Machine
from frustum.runtime.model.execution import units_of
from frustum.runtime.reference.graph import network_of
from frustum.runtime.report.counters import count


def run_unit(module, inputs, target, partition):
    """One unit on the machine in checked mode: the network's outputs; what crossed the DRAM port, by class, and the
    bytes that the report calls kept."""
    tiles = one_unit(module, target, partition)
    Run().advance(tiles, ["lowered"], Choices())
    made = executable(tiles)
    machine = Machine(made)
    result = machine.run(inputs, mode="full", checked=True)
    for name, array in run_module(module, inputs).items():
        found = np.asarray(result.outputs[name], np.float32)
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-4, err_msg=name)
    found = count(machine.expanded, machine.target, made.code.page_bytes).dram_bytes_by_class
    return found, units_of(made.manifest)[0].kept_bytes


@pytest.mark.slow
def test_random_units_run():
    done = []

    @settings(max_examples=8)
    @given(chains())
    def check(drawn):
        try:
            run_unit(drawn.module, drawn.inputs, drawn.target, drawn.partition)
        except (Unprojectable, DoesNotFit):
            return
        done.append(True)

    check()
    assert len(done) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_feature_maps_cross_dram_once(depth):
    """As published for the first layers of VGG: only the unit's input and output, each once, nothing computed again."""
    module, inputs = vgg_like()
    network = network_of(module)
    partition = Partition((1, 5, 1, 2), 0, depth, "raster")
    found, kept_bytes = run_unit(module, inputs, "df", partition)
    (x,), (y,) = network.body.block.args, network.terminator.values
    elements = [shape[1] * shape[2] * shape[3] for shape in (shape_of(x), shape_of(y))]
    assert (found["input"], found["output"]) == tuple(4 * count for count in elements)
    assert not found.get("intermediate", 0)
    assert kept_bytes == kept_beyond_a_step(columns=2)


@pytest.mark.slow
def test_two_bands_of_columns_hold_only_what_is_in_the_map():
    """With overlap: of each map half the columns and what the windows behind it reach beyond the middle."""
    module, inputs = vgg_like()
    _, trimmed = run_unit(module, inputs, "df", Partition((1, 5, 1, 2), 3, 1, "exchange", trimmed=True))
    _, whole = run_unit(module, inputs, "df", Partition((1, 5, 1, 2), 3, 1, "exchange"))
    columns = [(2, 16, 2 * 4 + 6 + 4), (3, 16, 2 * 4 + 5 + 4), (3, 8, 2 * 2 + 2 + 2), (4, 8, 2 * 2 + 1 + 2), (4, 4, 3)]
    assert trimmed == sum(4 * c * 2 * min(w, of_map) for c, w, of_map in columns) < whole


def kept_beyond_a_step(columns):
    """Of every map with a 3x3 window after it: of two rows all columns and two more, of the others two columns; where
    a step makes one row, two rows lie in one lane."""
    total = 0
    for channels, width, times in [(2, 16, 4), (3, 16, 4), (3, 8, 2), (4, 8, 2), (4, 4, 1)]:
        made, across = times, columns * times
        kept = min(2, made)
        ring = -(-2 // made) * width + across + 2
        total += channels * (kept * ring + (made - kept) * (across + 2) - made * across)
    return 4 * total


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_maps_between_units_cross_dram_just_twice(alone):
    """As published for groups of layers: asked for as shapes whose rows roll, each map is written and read once."""
    module, inputs = vgg_like()
    module = aimed(module, "df")
    between = [shape_of(op.results[0]) for op in layers_in(module)[:-1]] if alone else []
    FuseLayers(**({"policy": "none"} if alone else {"cuts": ""})).apply(Context(), module)
    ForcePartition(tile=(1, 0, 1, 0), borders="exchange").apply(Context(), module)
    Run().advance(module, ["placed", "lowered"], Choices())
    made = executable(module)
    machine = Machine(made)
    machine.run(inputs, mode="timing")
    found = count(machine.expanded, machine.target, made.code.page_bytes).dram_bytes_by_class
    assert found.get("intermediate", 0) == sum(2 * 4 * prod(shape) for shape in between)
