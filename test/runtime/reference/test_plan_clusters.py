"""Plans over clusters on values: each cluster has its memory, and nothing reads what has not been sent there."""

import re

import plan_nets
import pytest
import random_plans
from hypothesis import HealthCheck, given, seed, settings
from plan_values import check_values, run_of

from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.count import count as counted
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.runtime.reference.plan import AbsentElement
from frustum.runtime.reference.plan_stores import Store


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


CONVS = "conv_1, conv_2, conv_3, pool_4"
HALOS = {
    "recomputed": f"for pool_4.y step 4 of 10 over clusters recomputed {{ compute {CONVS} }}",
    "exchanged": f"for pool_4.y step 4 of 10 over clusters exchanged {{ compute {CONVS} }}",
    "rolling inside": f"""for pool_4.y step 5 of 10 over clusters {{
        for pool_4.y step 1 of 10 rolling {{ compute {CONVS} }} }}""",
    "exchanged, then rolling": """for pool_4.y step 5 of 10 over clusters exchanged {
        resident conv_1 compute conv_1 for pool_4.y step 1 of 10 { compute conv_2, conv_3, pool_4 } }""",
    "in shares": """{ resident x0 sharded x0.2, conv_1 sharded conv_1.y
        for conv_1.y step 7 of 20 over clusters { compute conv_1 }
        resident conv_2 for conv_2.y step 10 of 20 over clusters { compute conv_2 }
        for pool_4.x step 3 of 8 over clusters recomputed { compute conv_3, pool_4 } }""",
}


@pytest.mark.parametrize("how", HALOS)
def test_halos(how):
    case = planned(plan_nets.conv_stack, HALOS[how])
    if how == "exchanged, then rolling":
        with pytest.raises(PlanError, match=r"no other cluster has .* make the tensor resident around the passes"):
            counted(case.axes, case.plan)
        return
    run = check_values(case)
    assert bool(run.link_bytes) == (how in ("exchanged", "in shares"))


KEYS = """{ compute matmul_1, matmul_2, matmul_3
  HELD for attention_4.scores.key step 6 of 24 over clusters {
    compute attention_4.scores, attention_4.softmax, attention_4.context }
  compute matmul_5, binary_6, normalise_7.sums, normalise_7 }"""


@pytest.mark.parametrize("held, times", [("", 3), ("resident attention_4.context", 6)])
def test_attention_whose_keys_clusters_share(held, times):
    """Sums below a running maximum in each of four clusters, rescaled where they are added."""
    case = planned(plan_nets.attention, KEYS.replace("HELD", held))
    context = next(t for t in case.axes.tensors if t.name == "attention_4.context")
    assert check_values(case).link_bytes == times * context.size_bytes


BY_ROWS = """{
  resident attention_4.context sharded x0.1
  resident x0 until attention_4.context sharded x0.1
  for matmul_1.c.o step 1 of 4 {
    resident matmul_1 sharded x0.1, matmul_2 sharded x0.1, matmul_3 sharded x0.1
    for x0.1 step 8 of 24 over clusters { compute matmul_1, matmul_2, matmul_3 }
    for x0.1 step 8 of 24 over clusters {
      for attention_4.scores.key step 12 of 24 {
        resident matmul_2, matmul_3
        for x0.1 step 4 of 24 { compute attention_4.scores, attention_4.softmax, attention_4.context }
      }
    }
  }
  for x0.1 step 8 of 24 over clusters { compute matmul_5, binary_6, normalise_7.sums, normalise_7 }
}"""


def test_attention_whose_rows_clusters_share():
    """Each tensor from outside moves once, but the input, which the residual reads again; keys and values, in slices,
    go to two of three clusters."""
    case = planned(plan_nets.attention, BY_ROWS)
    run = check_values(case)
    tensors = {each.name: each.size_bytes for each in case.axes.tensors}
    assert run.read_bytes + run.write_bytes == case.axes.compulsory_bytes + tensors["x0"]
    assert run.link_bytes == 2 * (tensors["matmul_2"] + tensors["matmul_3"])


def test_rows_that_no_cluster_sends_are_missed(monkeypatch):
    monkeypatch.setattr(Store, "receive", lambda self, other, box: 0)
    with pytest.raises(AbsentElement, match=r"conv_2 reads conv_1 at .*which is not there"):
        run_of(planned(plan_nets.conv_stack, HALOS["exchanged"]))


REFUSED = "no other cluster has|an earlier pass has put|roll from cluster to cluster"
"""Halos that a neighbour does not have in time, storage that is overwritten too early, and rows that roll."""


def random_cases(number, count, most=random_plans.MOST_LAYERS):
    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_plans.distributed(most))
    def run(case):
        try:
            counted(case.axes, case.plan)
        except PlanError as problem:
            assert re.search(REFUSED, str(problem))
        else:
            check_values(case)

    run()


@pytest.mark.parametrize("number", range(3))
def test_random_plans(number):
    random_cases(number, 12, most=3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_a_thousand_random_plans(number):
    random_cases(100 + number, 125)
