"""What is said of plans that cut a recurrence."""

import pytest
from random_plans import PAGE_PLANS
from recurrent_nets import filtered, lstm, page_lstm

from frustum.dialects.plan.check import PlanError, check_plan
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import extents_of, read_plan

LSTM = "r, i, f, g, o, keep, new, c, act, h"
STATE = "r reads h of earlier steps along x.0: "
WRONG = {
    "{ compute w, LSTM }": STATE + "put it and h inside one 'for x.0 step 1 of 5'",
    "{ for x.0 step 1 of 5 { compute w, r } compute i, f, g, o, keep, new, c, act, h }": STATE + "put it and h inside",
    "for x.0 step 2 of 5 rolling { compute w, LSTM }": STATE + "the loop around it makes several steps at once",
    "for x.0 ranges [0, 1, 2, 5] { compute w, LSTM }": STATE + "the loop around it makes several steps at once",
    "for x.0 step 5 of 5 { for x.0 step 1 of 5 { compute w, LSTM } }": STATE + "2 loops over x.0 are around it",
    "for x.0 step 1 of 5 map backward { compute w, LSTM }": STATE + "its steps follow each other; leave out 'map back",
    "for x.0 step 1 of 5 over clusters { compute w, LSTM }": STATE + "its steps follow each other; leave out 'over cl",
    "for x.0 step 1 of 5 pipelined { compute w, LSTM }": STATE + "its steps follow each other; leave out 'pipelined'",
    "for x.0 step 1 of 5 { compute w, i, r, f, g, o, keep, new, c, act, h }": "i reads r, which is made after it",
    "for r.n step 2 of 4 { for x.0 step 1 of 5 { compute w, LSTM } }": "for r.n: r has 2 axes of the class",
    "for x.0 step 1 of 5 { resident h compute w, LSTM }": (
        "resident h: the next pass over x.0 reads h: state it around the loop, or make that rolling"
    ),
    "for x.0 step 1 of 5 rolling { resident h compute w, r compute i, f, g, o, keep, new, c, act, h }": (
        "resident h: h makes it in a later child: state it around the loop over its steps"
    ),
    "{ resident c, act at c for x.0 step 1 of 5 { compute w, LSTM } }": "the next pass reads c later; leave out 'at'",
}
RIGHT = (
    "for x.0 step 1 of 5 rolling { compute w, LSTM }",
    "for x.0 ranges [0, 1, 2, 3, 4, 5] { compute w, LSTM }",
    "for x.1 step 1 of 3 over clusters { for x.0 step 1 of 5 rolling { compute w, LSTM } }",
    "{ compute w for x.0 step 1 of 5 { for r.c step 8 of 16 { compute r } compute i, f, g, o, keep, new, c, act, h } }",
)


def plan_of(network, text):
    return read_plan(f'plan @net for "edge" {text.replace("LSTM", LSTM)}', lambda _: extents_of(network), "a.plan")


@pytest.mark.parametrize("text", WRONG)
def test_what_cuts_a_recurrence_is_said(text):
    network = lstm(5, 4, 3).network
    plan = plan_of(network, text)
    with pytest.raises(PlanError) as error:
        check_plan(network, plan.node)
    assert WRONG[text] in str(error.value)
    assert str(plan.located(error.value)).startswith("a.plan:1:")


@pytest.mark.parametrize("text", RIGHT)
def test_what_cuts_none_is_a_plan(text):
    network = lstm(5, 4, 3).network
    assert count(network, plan_of(network, text).node).points["r"] == 5 * 3 * 4 * 16


def test_what_one_step_needs_of_itself_is_made_before():
    network = lstm(5, 4, 3).network
    plan = plan_of(network, "for x.0 step 1 of 5 { compute w, keep, r, i, f, g, o, new, c, act, h }")
    with pytest.raises(PlanError, match="keep reads f, which is made after it"):
        check_plan(network, plan.node)


def test_a_layer_that_looks_ahead_stands_after_the_loop():
    network = filtered(5, 4, ahead=1).network
    with pytest.raises(PlanError, match=r"a layer inside reads c of steps 0 to 1 in one pass, .* put that layer after"):
        count(network, plan_of(network, "for x.0 step 1 of 5 rolling { compute keep, c, y }").node)
    apart = plan_of(network, "{ resident a, c for x.0 step 1 of 5 rolling { compute keep, c } compute y }")
    assert count(network, apart.node).dram_bytes == network.compulsory_bytes


def test_the_plan_of_the_page_moves_what_the_page_says():
    (text,) = [each for each in PAGE_PLANS if "@lstm" in each]
    network = page_lstm()
    again = text.replace("resident lstm.h ", "")
    plans = [read_plan(each, lambda _: extents_of(network), "a.plan").node for each in (text, again)]
    once, twice = (count(network, plan) for plan in plans)
    assert (once.read_bytes, once.write_bytes) == (10_240 + 66_048, 10_240)
    assert once.dram_bytes == network.compulsory_bytes
    assert twice.dram_bytes - once.dram_bytes == 10_112
