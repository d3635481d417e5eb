"""Plans as text: there and back, equal parts once, and what is said of texts that are none."""

import random_plans
from hypothesis import given, settings

from frustum.dialects.plan.dialect import plan_op, tree_of
from frustum.dialects.plan.parse import parse_plan
from frustum.dialects.plan.text import plan_text


def there_and_back(tree):
    text = plan_text("net", "edge", tree)
    assert parse_plan(text) == ("net", "edge", tree), text
    op = plan_op("net", "edge", tree)
    op.verify()
    assert tree_of(op) == tree
    return text


@given(random_plans.trees())
@settings(max_examples=60, deadline=None)
def test_any_tree_goes_there_and_back(tree):
    there_and_back(tree)


@given(random_plans.planned())
@settings(max_examples=30, deadline=None)
def test_a_plan_goes_there_and_back(planned):
    there_and_back(planned.plan)
