"""Needs that others include; whole programs: test_synchronisation.py and test_regions.py."""

import pytest

from frustum.backend.waits import dependences


class Unordered(dependences._Section):
    """No other order than that of one producer."""

    def __init__(self):
        pass

    def _after(self, z, x):
        return False


@pytest.mark.parametrize(
    ("wide", "narrow", "is_implied"),
    [("all_cores", "own", True), ("cores", "own", True), ("own", "cores", False), ("own", "all_cores", False),
     (None, None, False), (None, "own", False), ("own", None, True)],
)  # fmt: skip
def test_a_need_of_the_same_execution_is_implied_by_a_wider_scope_alone(wide, narrow, is_implied):
    """None is the order of an engine, in which no counter is waited for; equal needs: the first of both stays."""
    z, x = (dependences._Candidate(0, 1, 0, 0, scope, True, 5, 5) for scope in (wide, narrow))
    assert Unordered()._implies(z, x) == is_implied
