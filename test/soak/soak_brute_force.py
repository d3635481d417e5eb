"""Policy optimal on random networks of all layers, up to ten of them, is brute force; and no preset moves less.

Seeded, in chunks that run side by side:

    python -m pytest -n auto test/soak/soak_brute_force.py
    python -m pytest -n 0 test/soak/soak_brute_force.py -k "least and [7]"
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, seed, settings
from plan_cases import GRAPHS_ON_MACHINES, check_least, check_presets

CHUNKS, EACH, MOST_LAYERS = 20, 25, 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_least(chunk):
    soak(chunk, lambda case: check_least(case, MOST_LAYERS))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_presets(chunk):
    soak(CHUNKS + chunk, check_presets)


def soak(number, check):
    @seed(number)
    @settings(max_examples=EACH, database=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(GRAPHS_ON_MACHINES)
    def run(case):
        check(case)

    run()
