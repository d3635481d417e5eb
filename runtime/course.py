# Tests: test/runtime/test_course.py
"""What a run takes, step by step: known sizes give the seconds of each step on the machine that was measured, and the
steps that are over say how much slower or faster this one is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

from frustum.dialects.choices import Mode
from frustum.dialects.loops import TIMES
from frustum.dialects.share_done import WorkListener


class StepCost(NamedTuple):
    """Seconds of a step: some in any case, and more for each layer, MB of weights and 10^9 multiply-adds."""

    constant: float = 0.0
    layer: float = 0.0
    megabyte: float = 0.0
    gigamac: float = 0.0

    def seconds(self, sizes: Mapping[str, float]) -> float:
        """Of the step for a model with these `layers`, `megabytes` of weights and `gigamacs`."""
        more = self.layer * sizes["layers"] + self.megabyte * sizes["megabytes"] + self.gigamac * sizes["gigamacs"]
        return self.constant + more


# Seconds of CPU of squeezenet, inception_v1 and resnet50 of the zoo, f32 on `default`, which
# `benchmarks/progress.py --one` writes of each step: start 0.32, import 0.8, 0.8, 0.9; fuse 0.7, 1.8, 1.3;
# lower 0.33, 0.95, 0.8; weights 0.35, 0.7, 1.1; count 0.23, 0.63, 0.9; emulate 0.12, 0.4, 1.0; simulate 0.05, 0.25,
# 0.3; decode 0.08, 0.21, 0.22, in timing alone 0.04, 0.12, 0.1; with a warm cache open 0.11, 0.16, 0.17, load 0.1.
COSTS = {
    "start": StepCost(0.32), "open": StepCost(0.07, layer=0.0013), "import": StepCost(0.8, megabyte=0.001),
    "simplify": StepCost(layer=0.0003, megabyte=0.0005), "fuse": StepCost(layer=0.02),
    "tile": StepCost(0.1, layer=0.004), "lower": StepCost(layer=0.009, gigamac=0.07),
    "weights": StepCost(0.12, layer=0.004, megabyte=0.006, gigamac=0.02),
    "lower again": StepCost(layer=0.0027, gigamac=0.04), "count": StepCost(layer=0.005, gigamac=0.15),
    "load": StepCost(0.01), "decode": StepCost(layer=0.001),
    "emulate": StepCost(0.01, layer=0.001, megabyte=0.003, gigamac=0.15),
    "simulate": StepCost(layer=0.0022, gigamac=0.03), "report": StepCost(layer=0.0006, gigamac=0.004),
}  # fmt: skip
LOADED = {"load": 0.09}
"""More seconds of steps that load what compiling loads already, where nothing is compiled."""
WITH_NUMBERS = {"decode": StepCost(0.01, layer=0.0009, gigamac=0.02)}
"""What steps take besides where numbers are computed."""
AGAIN = 0.37
"""Of the time of `lower` what `lower again` takes, which begins later (the same table)."""
COMPILE = ("import", "simplify", "fuse", "tile", "lower", "weights", "lower again", "count")
COMPARED = ("weights", "lower again", "count")
"""Steps of compiling where the emulator's counts say whether weights are compressed."""
RUN = {mode: ("load", "decode", "simulate" if mode == "timing" else "emulate", "report") for mode in get_args(Mode)}
STOPS = {"typed": "fuse", "fused": "tile", "tiled": "lower"}
"""The step that begins where a module has come to a stop."""
SIZES = {"layers": 35.0, "megabytes": 5.0, "gigamacs": 0.4, "weighed": 1.0}
"""Of a model of which nothing is known yet: a small one.  Of a large one the sizes are known long before a quarter of
its run is over."""
TRUSTED_SECONDS = 0.25
"""The speed of the machine is taken to have been measured already for so long."""
LEAST_SHARE, UNEVEN = 0.1, 3
"""From such a share of a step on, what is left is held to be the rest of its shares, up to so many times: shares of the
emulator are calls, of which those behind cost more (resnet50: at 73 % of them 53 % of the time is over)."""
LEAST_LEFT = 0.15
"""Of a step that takes longer than expected so much is left until it ends."""


WALL_CLOCK = time.monotonic


def since_start(clock: Callable[[], float]) -> Callable[[], float]:
    """The same clock, which was 0 when the process began: so long as the process took until now."""
    began = clock() - time.process_time()
    return lambda: clock() - began


class Course(WorkListener):
    """One run on its way; `mode` is that of the emulator, None where a model is only compiled.

    `clock`: seconds since the process began.  `heard` is called whenever something was heard.
    """

    def __init__(
        self, mode: Mode | None = None, clock: Callable[[], float] | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._clock, self._loops_before = clock or since_start(WALL_CLOCK), TIMES.compiling_seconds
        self._heard, self._mode = heard, mode
        self._rest: tuple[str, ...] = RUN[mode] if mode is not None else ()
        self._ahead = (*COMPILE, *self._rest)
        self._sizes = dict(SIZES)
        self._step, self._began, self._share = "start", 0.0, 0.0
        self._taken, self._expected, self._lowered = TRUSTED_SECONDS, TRUSTED_SECONDS, 0.0

    # --- what is told --------------------------------------------------------------------------------------

    def enter(self, stage: str, share: float) -> None:
        """A stage of a run, as `Progress` is told of it."""
        if stage == "compile":
            stage = self._step if self._step in COMPILE[1:] else "simplify"
        if stage != self._step:
            self._begin(stage)
        self._share = share if stage == "emulate" else 0.0

    def part(self, share: float) -> None:
        """Shares of a pass are those of one search of several: nobody can say what is left from them."""
        self._heard()

    def reach(self, stop: str) -> None:
        if stop in STOPS:
            self._begin(STOPS[stop])
        elif stop == "lowered" and self._step == "weights":
            self._begin("lower again")
        elif stop == "fixed" and self._step in ("lower", "lower again"):
            self._begin("weights" if self._step == "lower" and self._sizes["weighed"] else "count")
        self._heard()

    def know(self, **sizes: float) -> None:
        self._sizes |= sizes

    # --- what is asked -------------------------------------------------------------------------------------

    def left(self) -> float | None:
        """Seconds to the end of the run; None in a step of which nothing is known."""
        if self._step not in COSTS:
            return None
        now, own = self._now() - self._began, self._speed * self._cost(self._step)
        rest = max(own - now, LEAST_LEFT * own)
        if self._share > LEAST_SHARE:
            even = (1 - self._share) / self._share * now
            rest = min(max(own - now, even / UNEVEN), even * UNEVEN)
        return rest + self._speed * sum(map(self._cost, self._after(self._step)))

    def share(self, left: float | None) -> float:
        """Of the run that is done where so many seconds are left; 0 where nobody knows."""
        return 0.0 if left is None else (now := self._now()) / max(now + left, 1e-9)

    # --- how it is found -----------------------------------------------------------------------------------

    def _begin(self, step: str) -> None:
        now = self._now()
        if self._step in COSTS:
            self._taken += now - self._began
            self._expected += self._cost(self._step)
        if self._step == "lower":
            self._lowered = now - self._began
        if step in ("open", "load") and "fuse" in self._ahead and self._step in ("start", "open"):
            self._ahead = ("open", *self._rest)
        self._step, self._began, self._share = step, now, 0.0

    def _after(self, step: str) -> tuple[str, ...]:
        return self._ahead[self._ahead.index(step) + 1 :] if step in self._ahead else self._ahead

    @property
    def _speed(self) -> float:
        return self._taken / self._expected

    def _cost(self, step: str) -> float:
        if step in COMPARED and not self._sizes["weighed"]:
            return 0.0
        if step == "lower again" and self._lowered:
            return AGAIN * self._lowered / self._speed
        cost, sizes = COSTS[step], self._sizes
        more = 0.0 if "fuse" in self._ahead else LOADED.get(step, 0.0)
        if self._mode != "timing" and step in WITH_NUMBERS:
            more += WITH_NUMBERS[step].seconds(sizes)
        return cost.seconds(sizes) + more

    def _now(self) -> float:
        return self._clock() - (TIMES.compiling_seconds - self._loops_before)


def compile_course(tell: Callable[[float], None]) -> Course:
    """The course of compiling alone from a module on; `tell` hears the share of it that is done."""
    began = time.monotonic()
    course = Course(None, lambda: time.monotonic() - began, lambda: tell(course.share(course.left())))
    course.enter("simplify", 0.0)
    return course
