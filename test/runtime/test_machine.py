"""The machine as a whole: loading, inputs, order of execution, outputs."""

import gc

import numpy as np
import pytest
from small_network import COLUMNS, ROWS, expected, inputs, network

from frustum.runtime import machine
from frustum.runtime.machine import InputError, Machine


@pytest.mark.parametrize("skewed", [False, True])
def test_a_pipelined_loop_computes_what_the_plain_loop_does(skewed):
    arrays = inputs()
    result = Machine(network(skewed)).run(arrays, "functional")
    np.testing.assert_array_equal(result.outputs["y"], expected(arrays))
    assert result.timeline is None


@pytest.mark.parametrize(("element", "tolerance"), [("f16", 2e-3), ("bf16", 2e-2)])
def test_the_host_converts_at_its_boundary(element, tolerance):
    arrays = inputs()
    output = Machine(network(element=element)).run(arrays, "functional").outputs["y"]
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, expected(arrays), atol=tolerance * 8)
    assert (output != expected(arrays)).any(), "not rounded"


def test_a_machine_runs_again_with_other_inputs():
    again = Machine(network())
    for seed in range(3):
        arrays = inputs(seed)
        np.testing.assert_array_equal(again.run(arrays, "functional").outputs["y"], expected(arrays))


@pytest.mark.slow
def test_an_executable_is_decoded_once_and_forgotten_with_it():
    executable = network()
    first = Machine(executable)
    first.run(inputs(), "functional")
    assert Machine(executable).plan is first.plan and Machine(network()).plan is not first.plan
    before = len(machine._DECODED)
    del executable, first
    gc.collect()
    assert len(machine._DECODED) < before


def test_progress_is_told_in_shares():
    heard = []
    Machine(network()).run(inputs(), "functional", progress=lambda stage, share: heard.append((stage, share)))
    assert heard[0] == ("emulate", 0.0) and all(0 <= share <= 1 for _, share in heard)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "input 'x': missing; given: nothing"),
        ({"x": np.zeros((ROWS, 3), np.float32)}, f"input 'x': found float32 {ROWS}x3, expected float32 {ROWS}x64"),
        ({"x": np.zeros((ROWS, COLUMNS))}, f"input 'x': found float64 {ROWS}x64, expected float32 {ROWS}x64"),
        ({**inputs(), "z": np.zeros(1)}, "input 'z': the network has no such input; it has x"),
    ],
)
def test_inputs_must_be_those_of_the_network(given, text):
    with pytest.raises(InputError) as error:
        Machine(network()).run(given, "functional")
    assert str(error.value) == text


def test_time_alone_needs_no_inputs_and_gives_no_outputs():
    result = Machine(network()).run({}, "timing")
    assert result.outputs == {} and result.timeline is not None


def test_in_full_mode_the_outputs_are_those_of_functional_mode():
    machine, arrays = Machine(network()), inputs()
    full = machine.run(arrays)
    np.testing.assert_array_equal(full.outputs["y"], expected(arrays))
    assert full.timeline is not None
