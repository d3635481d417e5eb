"""Which constants may become one."""

import numpy as np
import pytest

from frustum.passes.graph.patterns.digits import cancels, is_offset, reverts, swamps

MAGIC = 12582912.0


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (([0.5], [0.25]), False),
        (([0.5], [-0.49]), False),  # a few digits, as biases lose beside means
        (([MAGIC], [-MAGIC]), True),
        (([MAGIC, 0, 0, 0], [-MAGIC, 1, 2, 3]), True),  # in one of many channels
        (([0.5, 1, 2, 3], [-0.5, 1, 2, 3]), False),  # no larger than others
        (([0.0], [0.0]), False),
        (([], []), False),
    ],
)
def test_constants_that_leave_less_than_they_round(parts, found):
    first, second = (np.array(part, np.float64) for part in parts)
    assert cancels(np.abs(first) + np.abs(second), first + second) is found


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (2.0, 3.0, False),
        (1e30, 1e-30, True),  # infinite where it is multiplied by 1e9
        (1e-30, 1e30, True),
        (1e30, 1e30, True),  # no number of f32
        (1e-30, 1e-30, True),  # nor that
        (0.0, 5.0, False),
        (1e-30, 0.5, False),  # as small as before
        (3.0, np.inf, True),
    ],
)
def test_factors_that_bring_back_what_is_lost(first, second, found):
    assert reverts(np.array(first), np.array(second)) is found


def test_a_dead_channel_keeps_no_other_from_its_factor():
    assert not reverts(np.array([1.0, 1e-30]), np.array([2.0, 1e-30]))


def test_a_term_that_rounds_the_other():
    assert swamps(np.array([0.3]), np.array([MAGIC])) and swamps(np.array([MAGIC]), np.array([0.3]))
    assert not swamps(np.array([0.0]), np.array([MAGIC])) and not swamps(np.array([0.3]), np.array([100.0]))
    assert is_offset(np.array([MAGIC]), np.array([3.0, 4.0])) and not is_offset(np.array([127.0]), np.array([1.0]))
