"""Plans over clusters on values: each cluster has its memory, and nothing reads what has not been sent there."""

import plan_nets
import pytest
import random_plans
from hypothesis import HealthCheck, given, seed, settings
from plan_values import check_values

from frustum.dialects.plan.parse import extents_of, read_plan


def planned(build, text):
    case = plan_nets.case(build)
    case.plan = read_plan(f'plan @net for "edge" {text}', lambda _: extents_of(case.axes), "plan").node
    return case


LAYERS = "matmul_1, matmul_2, matmul_3"
PERCEPTRON = {
    "rows": f"for x0.0 step 10 of 40 over clusters {{ compute {LAYERS} }}",
    "hidden": f"for matmul_2.c step 10 of 48 over clusters {{ compute {LAYERS} }}",
    "hidden, resident": f"{{ resident matmul_3 for matmul_2.c step 10 of 48 over clusters {{ compute {LAYERS} }} }}",
    "hidden in passes": f"""for matmul_2.c step 16 of 48 over clusters {{
        for matmul_2.c step 5 of 48 {{ compute {LAYERS} }} }}""",
    "hidden, resident in passes": f"""for matmul_2.c step 16 of 48 over clusters {{
        resident matmul_3 for matmul_2.c step 5 of 48 {{ compute {LAYERS} }} }}""",
    "hidden, in shares": f"""{{ resident matmul_3 sharded x0.0
        for matmul_2.c step 10 of 48 over clusters {{ compute {LAYERS} }} }}""",
}


@pytest.mark.parametrize("how", PERCEPTRON)
def test_rows_and_sums(how):
    run = check_values(planned(plan_nets.mlp, PERCEPTRON[how]))
    assert bool(run.link_bytes) == ("hidden" in how)


def random_cases(number, count, most=random_plans.MOST_LAYERS):
    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_plans.distributed(most))
    def run(case):
        check_values(case)

    run()


@pytest.mark.parametrize("number", range(3))
def test_random_plans(number):
    random_cases(number, 12, most=3)
