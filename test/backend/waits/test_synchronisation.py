"""Random programs through `frustum-allocate`, `frustum-hoist-loads` and `frustum-schedule`:
no race, no deadlock, no buffer overwritten."""

from random import Random

import pytest
from happens_before import check, check_sharing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from programs import Generator, Shape, machine, module_of, run_passes

from frustum.backend.hoist_loads import HoistLoads
from frustum.backend.memory.allocation import Allocate
from frustum.backend.waits.schedule import Schedule

SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2)]


def compiled(seed: int, shape: Shape, clusters: int, cores: int, capacity: int, event_slots: int):
    """The program of a random module after both passes; None if it was refused."""
    target = machine(clusters, cores, capacity=capacity, event_slots=event_slots)
    module = module_of(target, *Generator(Random(seed), shape).program())
    return run_passes(module, Allocate(), HoistLoads(), Schedule())


@pytest.mark.slow
@settings(
    max_examples=5 * settings().max_examples,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.integers(0, 1 << 32),
    units=st.sampled_from(SHAPES),
    capacity=st.sampled_from([256, 384, 512, 1 << 20]),
    event_slots=st.sampled_from([24, 32, 4096]),
)
def test_every_conflict_is_ordered(seed, units, capacity, event_slots):
    program = compiled(seed, Shape(), *units, capacity, event_slots)
    if program is not None:
        check_sharing(program, *units)
        check(program, *units)


@pytest.mark.slow
@settings(
    max_examples=3 * settings().max_examples,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.integers(0, 1 << 32),
    units=st.sampled_from(SHAPES),
    capacity=st.sampled_from([256, 512, 1 << 20]),
    share=st.sampled_from([0.3, 0.9]),
)
@example(seed=117, units=(2, 1), capacity=256, share=0.9)  # a write hides no earlier one, and implies none
@example(seed=587, units=(2, 2), capacity=1 << 20, share=0.9)
def test_every_conflict_of_rolling_buffers_is_ordered(seed, units, capacity, share):
    program = compiled(seed, Shape(rolling=share), *units, capacity, 4096)
    if program is not None:
        check_sharing(program, *units)
        check(program, *units)


@pytest.mark.slow
@settings(
    max_examples=3 * settings().max_examples,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.integers(0, 1 << 32),
    units=st.sampled_from(SHAPES),
    capacity=st.sampled_from([256, 320, 512, 1 << 20]),
    event_slots=st.sampled_from([16, 24, 40, 4096]),
)
def test_units_that_share_addresses_need_no_barriers(seed, units, capacity, event_slots):
    shape = Shape(units=5, instructions=5, executions=45)
    program = compiled(seed, shape, *units, capacity, event_slots)
    if program is not None:
        check_sharing(program, *units)
        check(program, *units)


def test_the_oracle_sees_a_wait_that_is_missing():
    program = compiled(1, Shape(), 2, 2, 1 << 20, 4096)
    check(program, 2, 2)
    for op in program.walk():
        if getattr(op, "waits", None) is not None:
            op.set_waits(())
    with pytest.raises(AssertionError, match="race of"):
        check(program, 2, 2)
