"""Depthwise convolutions on the vector unit: the same numbers as the matrix unit makes, and the choice between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from agreement import check_agreement
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_networks import IntegerNet
from networks import Net
from stops import executable, modules_at_stops, run_module, target
from timing_cases import check_executable

from frustum.backend.pipeline import Choices
from frustum.dialects.isa.program import Conv, Depthwise, instructions
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

WINDOWS = st.fixed_dictionaries({
    "kernel": st.sampled_from([(3, 3), (5, 5), (2, 3), (1, 7), (4, 2)]),
    "strides": st.sampled_from([(1, 1), (2, 2), (1, 3)]),
    "dilations": st.sampled_from([(1, 1), (2, 1), (2, 3)]),
    "pads": st.tuples(*[st.integers(0, 3)] * 4),
})  # fmt: skip


def with_core(whole, **units):
    """A target with other units in its cores."""
    core = replace(whole.core, **units)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, core=core)))


def slow(place, unit):
    """A target on which one unit of the core is as slow as one can be."""
    whole = target(place)
    if unit == "vector":
        passes = replace(whole.core.vector.passes, elementary=64)
        return with_core(whole, vector=replace(whole.core.vector, passes=passes, lanes=1))
    steps = replace(whole.core.matrix.cycles_per_step, int8=64, sixteen_bit=64, f32=64)
    return with_core(whole, matrix=replace(whole.core.matrix, cycles_per_step=steps))


OTHER = {"matrix": "vector", "vector": "matrix"}


def compiled(module, place, dtype, unit):
    """The fixed module where the other unit of the core is slow."""
    return modules_at_stops(module, slow(place, OTHER[unit]), Choices(dtype=dtype, policy="none"))["fixed"]


def both(module, inputs, place, dtype="f32"):
    """The outputs by unit; each is used where it is asked for."""
    found = {}
    for unit, kind in (("matrix", Conv), ("vector", Depthwise)):
        fixed = compiled(module, place, dtype, unit)
        made = executable(fixed, Choices(dtype=dtype))
        kinds = {type(each) for each in instructions(made.program.body)} & {Conv, Depthwise}
        assert kinds == {kind}
        found[unit] = Machine(made).run(inputs, mode="functional", checked=True).outputs
    return found


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=8)
@given(
    st.data(), WINDOWS, st.integers(2, 19), st.sampled_from([("edge", "f32"), ("tiny", "f32"), ("default", "f16")]),
)  # fmt: skip
def test_floats_are_those_of_the_matrix_unit(data, windows, channels, way):
    net, (place, dtype) = Net(), way
    size = (data.draw(st.integers(1, 2)), channels, data.draw(st.integers(10, 20)), data.draw(st.integers(20, 30)))
    act, bias = data.draw(st.sampled_from([None, "relu", "hard_swish"])), data.draw(st.booleans())
    module, inputs = net.module(net.conv(net.input(*size), channels, groups=channels, act=act, bias=bias, **windows))
    found = both(module, inputs, place, dtype)
    check_agreement(found, dtype)
    if dtype == "f32":
        (expected,) = run_module(module, inputs).values()
        (made,) = found["vector"].values()
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=8)
@given(
    st.data(), WINDOWS.filter(lambda each: each["kernel"][0] == each["kernel"][1]), st.integers(2, 19),
    st.sampled_from(["edge", "tiny", "default"]),
)  # fmt: skip
def test_integers_are_the_same_bits(data, windows, channels, place):
    net = IntegerNet(seed=channels)
    x = net.integer_input(1, channels, data.draw(st.integers(10, 20)), data.draw(st.integers(20, 30)))
    flags = {name: data.draw(st.booleans()) for name in ("accumulator", "bias", "w_zero")}
    flags["clip"] = not flags["accumulator"] and data.draw(st.booleans())
    windows = {**windows, "kernel": windows["kernel"][0]}
    module, inputs = net.module(net.product(x, channels, groups=channels, **flags, **windows))
    found = both(module, inputs, place)
    (expected,) = run_module(module, inputs).values()
    for outputs in found.values():
        (made,) = outputs.values()
        np.testing.assert_array_equal(made, expected)


@pytest.mark.slow
@pytest.mark.parametrize("act", [None, "relu"])
def test_a_residual_of_integers_is_added_in_real_numbers(act):
    net = IntegerNet(seed=2)
    x, other = net.integer_input(1, 12, 9, 11), net.integer_input(1, 12, 9, 11)
    module, inputs = net.module(net.residual(x, 12, other, act, groups=12))
    found = both(module, inputs, "edge")
    np.testing.assert_array_equal(*(next(iter(outputs.values())) for outputs in found.values()))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "dtype"), [("edge", "f16"), ("tiny", "f32")])
def test_time_bytes_and_energy_are_those_of_the_second_model(place, dtype):
    net = Net()
    x = net.conv(net.input(1, 8, 20, 17), 16, 1, act="relu")
    module, _ = net.module(net.conv(net.conv(x, 16, 5, groups=16, act="sigmoid"), 24, 1))
    check_executable(executable(compiled(module, place, dtype, "vector"), Choices(dtype=dtype)), slow(place, "matrix"))


@pytest.mark.slow
def test_products_are_counted_as_the_matrix_unit_counts_them():
    net = Net()
    module, _ = net.module(net.conv(net.input(1, 16, 20, 20), 16, 3, groups=16))
    macs = []
    for unit in ("matrix", "vector"):
        machine = Machine(executable(compiled(module, "default", "f32", unit)))
        counted = count(machine.expanded, machine.target, machine.executable.code.page_bytes)
        macs.append((counted.layer_macs.tolist(), counted.energy_pj["mac_f32"]))
    assert macs[0] == macs[1]


@pytest.mark.slow
def test_the_faster_unit_is_taken():
    """With one lane the vector unit is the slower one; a channel multiplier and groups stay on the matrix unit."""
    net = Net()
    module, _ = net.module(net.conv(net.input(1, 64, 28, 28), 64, groups=64))
    wide = target("default")
    narrow = with_core(wide, vector=replace(wide.core.vector, lanes=1))
    assert Depthwise in kinds_of(module, wide)
    assert Depthwise not in kinds_of(module, narrow)
    for outputs, groups in ((128, 64), (64, 32), (64, 1)):
        net = Net()
        module, _ = net.module(net.conv(net.input(1, 64, 28, 28), outputs, groups=groups))
        assert Depthwise not in kinds_of(module, wide)


def kinds_of(module, place):
    fixed = modules_at_stops(module, place, Choices(dtype="f16"))["fixed"]
    return {type(each) for each in instructions(executable(fixed, Choices(dtype="f16")).program.body)}
