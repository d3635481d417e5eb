"""3,000 random plans on values, against every operation on whole arrays, `count` and `check_plan`.

    python -m pytest -n auto test/soak/soak_plan_values.py
"""

import pytest
import random_plans
from hypothesis import HealthCheck, given, seed, settings
from plan_values import check_values

CHUNKS, EACH = 30, 100


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_plans(chunk):
    @seed(1000 + chunk)
    @settings(
        max_examples=EACH, database=None, derandomize=False, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(random_plans.planned(8, depth=4))
    def run(case):
        check_values(case)

    run()
