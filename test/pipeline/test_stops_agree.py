"""Every level runs, and the same inputs through any two stops of the pipeline give the same outputs.

`typed` is run by the graph's kernels, `fused` and `tiled` through their units, `placed` tile by tile, `lowered` and
`fixed` by the machine in checked mode: no unwritten byte is read, nothing out of range, no race.
"""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check_agreement
from every_operation import NETWORKS, network
from stops import executable, modules_at_stops, run_module

from frustum.backend.compile import fixed
from frustum.backend.executables import executable_of
from frustum.backend.file.executable import write_executable
from frustum.backend.pipeline import STOPS, Choices, Run
from frustum.passes.weights import write_module
from frustum.runtime.model.sources import read_stage

RUN_STOPS = ("typed", "fused", "placed", "fixed")
"""One for each way of running; the neighbours of these are run in `test_every_stop_runs`."""
WAYS = [
    *((target, policy, "f32") for target in ("default", "tiny") for policy in ("none", "optimal", "greedy")),
    *((target, "optimal", "f32") for target in ("edge", "manycore", "df")),
    ("default", "pyramid", "f32"), ("default", "optimal", "f16"),
    *((target, "greedy", "f32") for target in ("edge", "manycore", "units4", "line64", "df")),
    ("tiny", "greedy", "f16"), ("tiny", "none", "bf16"), ("default", "greedy", "bf16"), ("edge", "none", "f16"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.soak(but=140)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("name", NETWORKS)
def test_stops_agree(name, way):
    target, policy, dtype = way
    module, inputs = network(name)
    modules = modules_at_stops(module, target, Choices(dtype=dtype, policy=policy))
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in RUN_STOPS}
    check_agreement(outputs, dtype)


@pytest.mark.slow
def test_every_stop_runs():
    """The module as given, and each of the stops: the same outputs, to the bit where only maps were added."""
    module, inputs = network("inception")
    modules = {"imported": module, **modules_at_stops(module, "tiny", Choices())}
    assert tuple(modules) == STOPS
    outputs = {stop: run_module(modules[stop], inputs) for stop in STOPS}
    check_agreement(outputs, "f32")
    for before, after in (("fused", "tiled"), ("lowered", "fixed")):
        np.testing.assert_array_equal(outputs[before]["y0"], outputs[after]["y0"])


@pytest.mark.slow
@pytest.mark.soak(but=8)
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "f32") for name in NETWORKS), ("inception", "bf16"), ("products", "f16")]
)
def test_dumped_stops_continue_to_the_same_bytes(name, dtype, tmp_path):
    choices = Choices(dtype=dtype)
    modules = modules_at_stops(network(name)[0], "tiny", choices)
    expected = bytes_of(executable(modules["fixed"], choices), tmp_path)
    for stop in STOPS[1:]:
        path = tmp_path / f"{stop}.mlir"
        write_module(modules[stop], path)
        read, _ = read_stage(str(path))
        again = executable_of(fixed(read, Choices(), Run()), Choices())
        assert bytes_of(again, tmp_path) == expected, stop


def bytes_of(made, folder):
    path = folder / "made.frustum"
    write_executable(made, path)
    return path.read_bytes()
