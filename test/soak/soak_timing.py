"""1000 programs take what the second model of time says, in every figure.

python -m pytest -n 0 -s test/soak/soak_timing.py
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from timing_cases import COMPILED, check_executable, check_hand_made, compiled


@pytest.mark.parametrize("block", range(25))
def test_hand_made_programs(block):
    finished = sum(check_hand_made(seed) for seed in range(1000 + 20 * block, 1020 + 20 * block))
    assert finished >= 10


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(COMPILED)
def test_compiled_networks(case):
    made = compiled(case)
    assume(made is not None)
    executable, target = made
    check_executable(executable, target)
