"""Time, bytes and energy against a model that was written apart from the emulator: every figure is equal.

`test/soak/soak_timing.py` does the same on more programs.
"""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from timing_cases import COMPILED, check_equal, check_hand_made, compiled

HAND_MADE = 40


def test_hand_made_programs_take_what_the_model_says():
    finished = sum(check_hand_made(seed) for seed in range(HAND_MADE))
    assert finished >= HAND_MADE / 2


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(COMPILED)
def test_compiled_networks_take_what_the_model_says(case):
    made = compiled(case)
    assume(made is not None)
    executable, target = made
    check_equal(executable.program, target, executable.code.page_bytes)
