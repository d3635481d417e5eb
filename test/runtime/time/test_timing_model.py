"""Time, bytes and energy against a model that was written apart from the emulator: every figure is equal.

`test/soak/soak_timing.py` does the same on more programs.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from timing_cases import COMPILED, check_executable, check_hand_made, compiled

SETTINGS = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
BLOCK = 20


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_hand_made_programs_take_what_the_model_says(block):
    finished = sum(check_hand_made(seed) for seed in range(BLOCK * block, BLOCK * block + BLOCK))
    assert finished >= BLOCK / 2


@pytest.mark.slow
@SETTINGS
@given(COMPILED)
def test_compiled_networks_take_what_the_model_says(case):
    check_compiled(case)


@pytest.mark.slow
@pytest.mark.soak
@SETTINGS
@given(COMPILED)
def test_further_networks_take_what_the_model_says(case):
    check_compiled(case)


def check_compiled(case):
    made = compiled(case)
    assume(made is not None)
    executable, target = made
    check_executable(executable, target)
