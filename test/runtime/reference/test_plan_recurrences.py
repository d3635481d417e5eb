"""Plans of recurrences on values: equal to loops over steps by hand, and bytes that are worked out by hand."""

from random import Random

import numpy as np
import pytest
from recurrent_nets import checked, checked_plan, filtered, gru, lstm, rnn, stacked
from recurrent_plans import RecurrentPlans

from frustum.dialects.plan import ranges
from frustum.dialects.plan.check import PlanError, check_plan
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.runtime.reference.plan import AbsentElement, run_plan

STEPS, CHANNELS, BATCH = 5, 4, 3
LSTM = "r, i, f, g, o, keep, new, c, act, h"
GRU = "r, total, z, gate, reset, some, raw, n, less, part, h"
ROW = 4 * CHANNELS
"""Bytes of one step of a state."""
X, W, R, H = STEPS * ROW, 4 * 4 * CHANNELS**2, 4 * 4 * CHANNELS**2, STEPS * ROW
"""Bytes of the input, the weights of input and state, and the result."""
GATES = 4 * H

# text of a plan -> bytes that are read, and written
PLANS = {
    # weights stay, and of either state one row
    "{ resident W, R for x.0 step 1 of 5 rolling { resident h compute w, LSTM } }": (X + W + R, H),
    # all steps of the state stay
    "{ resident W, R, h for x.0 step 1 of 5 rolling { compute w, LSTM } }": (X + W + R, H),
    "{ resident W, R, h, c for x.0 step 1 of 5 { compute w, LSTM } }": (X + W + R, H),
    # the result is written, and all but its last row read again by the next step
    "{ resident W, R for x.0 step 1 of 5 rolling { compute w, LSTM } }": (X + W + R + H - ROW, H),
    # products of the input for all steps at once, through DRAM; so are both states, and `act` reads `c` too
    "{ compute w resident R for x.0 step 1 of 5 { compute LSTM } }": (
        X + W + GATES + R + 2 * (H - ROW) + H, GATES + 2 * H,
    ),
    # the same with products and one state resident
    "{ resident w compute w resident R, c for x.0 step 1 of 5 { compute LSTM } }": (X + W + R + H - ROW, H),
    # three steps of the state stay: the last step alone reads another one
    "{ resident w compute w resident R, c, h [x.0 0:3] for x.0 step 1 of 5 { compute LSTM } }": (X + W + R + ROW, H),
    # recurrent weights come in every step
    "{ resident W for x.0 step 1 of 5 rolling { resident h compute w, LSTM } }": (X + W + STEPS * R, H),
    # what computes hand each other goes through DRAM
    "{ resident W, R, h for x.0 step 1 of 5 rolling { compute w, r compute i, f, g, o, keep, new, c, act, h } }": (
        X + W + R + GATES, H + GATES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", PLANS)
def test_an_lstm_moves_what_its_plan_says(text):
    case = lstm(STEPS, CHANNELS)
    counted = checked(case, text.replace("LSTM", LSTM))
    assert (counted.read_bytes, counted.write_bytes) == PLANS[text]
    assert case.network.compulsory_bytes == X + W + R + H


BEGUN = 2 * BATCH * ROW
BATCHES = {
    "{ resident W, R for x.1 step 1 of 3 { for x.0 step 1 of 5 rolling { resident h compute w, LSTM } } }": W + R,
    "{ resident W, R for x.0 step 1 of 5 rolling { resident h for x.1 step 2 of 3 { compute w, LSTM } } }": W + R,
    "for x.1 step 1 of 3 { resident W, R for x.0 step 1 of 5 rolling { resident h compute w, LSTM } }": 3 * (W + R),
    "for x.1 step 2 of 3 over clusters { resident W, R for x.0 step 1 of 5 rolling { resident h compute w, LSTM } }": (
        W + R
    ),
}


@pytest.mark.parametrize("text", BATCHES)
def test_loops_over_the_batch_lie_around_the_steps_or_inside(text):
    case = lstm(STEPS, CHANNELS, BATCH, is_begun=True)
    counted = checked(case, text.replace("LSTM", LSTM))
    assert counted.read_bytes == BATCHES[text] + BATCH * X + BEGUN
    assert counted.write_bytes == BATCH * H


def test_a_state_that_rolls_takes_two_rows():
    whole, rolls = (
        checked(lstm(steps, CHANNELS), plan.replace("LSTM", LSTM).replace("LAST", str(steps)))
        for plan, steps in (
            ("{ resident W, R, h for x.0 step 1 of LAST rolling { compute w, LSTM } }", 9),
            ("{ resident W, R for x.0 step 1 of LAST rolling { resident h compute w, LSTM } }", 9),
        )
    )
    assert whole.sram_bytes - rolls.sram_bytes == (9 - 2) * ROW


def test_a_reader_of_the_last_step():
    case = lstm(STEPS, CHANNELS, is_last=True)
    text = "{ resident W, R, h for x.0 step 1 of 5 rolling { compute w, LSTM } compute y }"
    counted = checked(case, text.replace("LSTM", LSTM))
    assert counted.dram_bytes == case.network.compulsory_bytes == X + W + R + ROW


@pytest.mark.parametrize(
    "text",
    [
        "{ resident W, R for x.0 step 1 of 5 rolling { resident h compute w, GRU } }",
        "for x.1 step 1 of 3 { compute w for x.0 step 1 of 5 { compute GRU } }",
    ],
)
def test_a_gru(text):
    checked(gru(STEPS, CHANNELS, BATCH), text.replace("GRU", GRU))


ITSELF = {
    "{ resident W, R for x.0 step 1 of 5 rolling { resident h compute w, h } }": (0, 0),
    "{ resident W, R for x.0 step 1 of 5 { compute w, h } }": (H - ROW, 0),
    "{ resident w compute w resident R, h at w for x.0 step 1 of 5 { compute h } }": (0, 0),
}


@pytest.mark.parametrize("text", ITSELF)
def test_a_layer_that_reads_itself(text):
    """In storage of its own, or in that of the products of the input: of these each step reads one row."""
    counted = checked(rnn(STEPS, CHANNELS), text)
    weights, (read, written) = 2 * 4 * CHANNELS**2, ITSELF[text]
    assert (counted.read_bytes, counted.write_bytes) == (X + weights + read, H + written)


@pytest.mark.parametrize("back", [1, 2, 3])
@pytest.mark.parametrize("where", ["{ resident a for x.0 step 1 of 5 rolling { resident c", "{ for x.0 step 1 of 5 {"])
def test_states_of_several_steps_before(back, where):
    case = filtered(STEPS, CHANNELS, back=back)
    counted = checked(case, where + " compute keep, c } }")
    read = ROW + X if "rolling" in where else STEPS * ROW + X + (STEPS - back) * ROW
    assert (counted.read_bytes, counted.write_bytes) == (read, H)


def test_a_state_that_does_not_stay_is_missed(monkeypatch):
    real = ranges._rolls
    monkeypatch.setattr(ranges, "_rolls", lambda has, read: ((new, (0, 0)) for new, _ in real(has, read)))
    case = filtered(STEPS, CHANNELS)
    text = 'plan @net for "edge" for x.0 step 1 of 5 rolling { resident c compute keep, c }'
    plan = read_plan(text, lambda _: extents_of(case.network)).node
    with pytest.raises(AbsentElement, match=r"keep reads c at x.0 0, .*which is not there \(pass: x.0 1:2\)"):
        run_plan(case.network, plan, case.arrays)


def test_steps_at_once_are_missed_where_nobody_checks():
    case = filtered(STEPS, CHANNELS)
    plan = read_plan('plan @net for "edge" compute keep, c', lambda _: extents_of(case.network)).node
    with pytest.raises(AbsentElement, match=r"keep reads c at x.0 0, .*which is not there"):
        run_plan(case.network, plan, case.arrays, is_checked=False)


def test_the_last_state_is_of_all_steps():
    """A figure that no window of a few steps has."""
    case = filtered(STEPS, CHANNELS)
    x, a = case.arrays["x"][:, 0], case.arrays["a"][0]
    wanted = sum(a ** (STEPS - 1 - k) * own for k, own in enumerate(x))
    np.testing.assert_allclose(case.wanted["c"][-1, 0], wanted, rtol=1e-5)


NETWORKS = (
    lambda: lstm(4, 3, 3, 2, is_begun=True), lambda: lstm(4, 3, 2, is_last=True), lambda: gru(4, 3, 2),
    lambda: filtered(5, 2, back=2, batch=3), lambda: filtered(5, 2, ahead=-1, batch=2),
    lambda: filtered(5, 2, ahead=1, batch=2), lambda: stacked(4, 3, 2), lambda: rnn(4, 3),
)  # fmt: skip


@pytest.mark.parametrize("number", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 8))])
def test_random_plans_of_recurrences(number):
    """Those that break no rule have the values, and move what is counted."""
    legal = 0
    for seed in range(number * 40, (number + 1) * 40):
        case = NETWORKS[seed % len(NETWORKS)]()
        plan = RecurrentPlans(Random(seed), case.network).plan()
        try:
            check_plan(case.network, plan)
        except PlanError:
            continue
        try:
            counted = checked_plan(case, plan)
        except PlanError as problem:
            assert "put that layer after the loop" in str(problem)
            continue
        assert counted.dram_bytes >= case.network.compulsory_bytes
        legal += 1
    assert legal > 10
