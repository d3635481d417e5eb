"""Random plans of random small networks: values in checked mode, and the DRAM bytes that the plan is counted to move.

What is not lowered yet says so (`NotLowered`); anything else that goes wrong is a fault.
"""

import lowered_plans
import pytest
import random_plans
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.count import count
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.spans import NotLowered

KIB = (16, 64, 512)
SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}
FOUND = [Phase.explicit, Phase.reuse, Phase.generate]
"""Phases of a search that shows what it finds: cases are small, and a smaller one takes minutes."""


def check(case, kib, cores=None):
    try:
        count(case.axes, case.plan)
    except PlanError:
        assume(False)
    try:
        moved, counted = lowered_plans.check_lowered(case, lowered_plans.machine("edge", kib * 1024, cores))
    except (NotLowered, DoesNotFit):
        return
    if lowered_plans.is_plain(case) and not lowered_plans.keeps_middles(case):
        assert moved <= counted  # what passes would store again is stored once


@given(random_plans.planned())
@settings(max_examples=8, **SLOW)
def test_random_plans(case):
    check(case, 512)


@pytest.mark.slow
@given(random_plans.planned(), st.sampled_from(KIB), st.sampled_from([None, 1, 2]))
@settings(max_examples=300, phases=FOUND, **SLOW)
def test_many_random_plans(case, kib, cores):
    check(case, kib, cores)


@given(random_plans.planned(most=2, depth=0))
@settings(max_examples=5, **SLOW)
def test_bytes_of_computes_are_those_that_are_counted(case):
    try:
        moved, counted = lowered_plans.check_lowered(case, lowered_plans.machine("edge"))
    except (NotLowered, DoesNotFit):
        return
    if lowered_plans.is_plain(case):
        assert moved == counted or (moved < counted and lowered_plans.reads_alike(case))
