"""Policy optimal on random networks with products, softmax, norms, residuals, attention and moves: brute force finds no
cheaper plan, and no preset moves less (more of both: test/soak/soak_brute_force.py)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from plan_cases import GRAPHS_ON_MACHINES, check_least, check_presets

HEALTH = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


@settings(max_examples=12, derandomize=True, suppress_health_check=HEALTH)
@given(GRAPHS_ON_MACHINES)
def test_no_way_through_is_cheaper(case):
    check_least(case, most_layers=5)


@settings(max_examples=6, derandomize=True, suppress_health_check=HEALTH)
@given(GRAPHS_ON_MACHINES)
def test_no_preset_moves_less(case):
    check_presets(case)
