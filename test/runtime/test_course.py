"""The time left of a run: what is known of its steps, and the speed of this machine."""

import pytest

from frustum.dialects.loops import TIMES
from frustum.dialects.share_done import know, listening, reach, tell
from frustum.runtime.course import (
    AGAIN,
    COSTS,
    LOADED,
    RUN,
    SIZES,
    WITH_NUMBERS,
    Course,
    StepCost,
    compile_course,
)

COMPILE = [step for step in COSTS if step not in ("start", "open", "emulate", "simulate", "load", "decode", "report")]


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def cost(step: str, **sizes: float) -> float:
    return COSTS[step].seconds(SIZES | sizes)


def with_numbers(step: str, **sizes: float) -> float:
    more = WITH_NUMBERS.get(step)
    return cost(step, **sizes) + (more.seconds(SIZES | sizes) if more else 0.0)


def test_a_step_costs_more_for_more_layers_weights_and_products():
    sizes = {"layers": 3.0, "megabytes": 5.0, "gigamacs": 7.0}
    assert StepCost(1.0, layer=10.0, megabyte=100.0, gigamac=1000.0).seconds(sizes) == 1 + 30 + 500 + 7000


def test_at_first_all_steps_are_ahead():
    assert Course(None, Hand()).left() == pytest.approx(cost("start") + sum(map(cost, COMPILE)))
    run = cost("start") + sum(map(cost, COMPILE)) + sum(map(with_numbers, RUN["full"]))
    assert Course("full", Hand()).left() == pytest.approx(run)


def test_only_loops_compiled_on_the_way_are_taken_from_the_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TIMES, "compiling_seconds", 30.0)
    clock = Hand()
    course = Course(None, clock)
    clock.now, TIMES.compiling_seconds = 2.0, 31.5
    assert course.share(1.5) == pytest.approx(0.25)


def test_a_machine_of_half_the_speed_takes_twice_as_long():
    clock = Hand()
    course = Course(None, clock)
    clock.now = 2 * cost("start") + 0.25  # the quarter of a second that is trusted is also there
    course.enter("import", 0.0)
    assert course.left() == pytest.approx(2 * sum(map(cost, COMPILE)))


def test_what_was_compiled_before_only_loads_and_runs():
    course = Course("full", Hand())
    course.know(layers=10, megabytes=1, gigamacs=2)
    course.enter("open", 0.0)
    sizes = {"layers": 10, "megabytes": 1, "gigamacs": 2}
    left = sum(with_numbers(step, **sizes) + LOADED.get(step, 0.0) for step in ("open", *RUN["full"]))
    course._taken = course._expected  # the clock stood still
    assert course.left() == pytest.approx(left)


def test_without_numbers_the_program_is_decoded_faster():
    timing = Course("timing", Hand())
    timing.enter("decode", 0.0)
    timing._taken = timing._expected  # the clock stood still
    assert timing.left() == pytest.approx(sum(map(cost, RUN["timing"][1:])))


def test_steps_follow_the_stops_of_a_module():
    clock = Hand()
    course = Course(None, clock)
    course.enter("import", 0.0)
    course.enter("compile", 0.0)
    assert course._step == "simplify"
    steps = []
    with listening(course):
        for stop in ("typed", "fused", "tiled", "placed", "lowered", "fixed", "lowered", "fixed"):
            reach(stop)
            steps.append(course._step)
    assert steps == ["fuse", "tile", "lower", "lower", "lower", "weights", "lower again", "count"]
    with listening(course):
        reach("tiled")  # buffers did not fit: again
    assert course._step == "lower"


def test_nothing_is_compared_where_weights_are_not_weighed():
    course = Course(None, Hand())
    with listening(course):
        know(weighed=0)
        reach("tiled")
        reach("fixed")
    assert course._step == "count"
    assert course.left() == pytest.approx(0)


def test_lowering_again_takes_a_part_of_what_lowering_took():
    clock = Hand()
    course = Course(None, clock)
    course.reach("tiled")
    clock.now += 8
    course.reach("fixed")
    speed = course._taken / course._expected
    expected = speed * (cost("weights") + cost("count")) + AGAIN * 8
    assert course.left() == pytest.approx(expected)


def test_a_step_that_takes_longer_is_not_over():
    clock = Hand()
    course = Course("full", clock)
    course.enter("emulate", 0.0)
    course._taken = course._expected
    clock.now += 100 * cost("emulate")
    assert course.left() > cost("report")
    course.enter("emulate", 0.5)  # half of it is done, which took so long
    assert course.left() == pytest.approx(100 * cost("emulate") / 3 + cost("report"), rel=0.01)


def test_of_a_stage_without_a_measurement_nobody_knows():
    course = Course("full", Hand())
    course.enter("calibrate", 0.0)
    assert course.left() is None
    course.enter("compile", 0.0)
    assert course.left() is not None


def test_shares_of_compiling_are_told():
    heard: list[float] = []
    with listening(compile_course(heard.append)):
        reach("typed")
        tell(0.5)
    assert len(heard) == 2
    assert all(0 <= share < 1 for share in heard)
