"""The plans of docs/ir-plan.md are text that is read, and what is printed of them is read again."""

import pytest
from random_plans import PAGE_PLANS

from frustum.dialects.plan.parse import parse_plan
from frustum.dialects.plan.text import plan_text
from frustum.dialects.plan.tree import layers_in


def test_the_page_has_its_networks():
    names = {parse_plan(text)[0] for text in PAGE_PLANS}
    six = {"vgg_head", "bert_layer", "mbconv_se", "unet_level", "lstm", "decode"}
    assert names == {"two_layers", "perceptron"} | six


@pytest.mark.parametrize("text", PAGE_PLANS)
def test_a_plan_of_the_page_goes_there_and_back(text):
    plan = parse_plan(text)
    printed = plan_text(*plan)
    assert parse_plan(printed) == plan
    assert plan_text(*parse_plan(printed)) == printed


def test_equal_layers_are_printed_once():
    (text,) = [text for text in PAGE_PLANS if "@two_layers" in text]
    plan = parse_plan(text)
    assert len(list(layers_in(plan[2]))) == 2 * 14
    assert "again l0.q to l0.project at l1.q" in plan_text(*plan)
