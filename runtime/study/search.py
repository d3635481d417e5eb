# Tests: test/runtime/study/test_explore.py
"""Which points of a space are tried: all, random ones, or those that an optimiser proposes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Protocol

from frustum.runtime.failures import UsageError
from frustum.runtime.study.space import Space

Choice = tuple[int, ...]
"""The number of a value of each axis."""
AHEAD = 8
"""Points that the optimiser proposes before it must know what came of the first of them: more than most machines have
cores.  A fixed number, so that what it proposes does not depend on which worker is done first."""


class Search(Protocol):
    """What proposes points, and wants to know what came of them in the order in which it proposed them."""

    @property
    def ahead(self) -> int | None:
        """How many points it proposes before it has to be told of the first; None: all."""

    def ask(self) -> Choice | None:
        """Another point; None: there is none."""

    def tell(self, values: Sequence[float] | None) -> None:
        """The objectives of the first point that was proposed and not told of; None: it did not run."""


def search_of(space: Space) -> Search:
    """UsageError where the optimiser is not installed."""
    if space.strategy == "optimise":
        return _Optimise(space)
    return _Listed(_all(space) if space.strategy == "grid" else _random(space))


def _all(space: Space) -> Iterator[Choice]:
    for number, choice in enumerate(space.choices()):
        if number == space.points:
            return
        yield choice


def _random(space: Space) -> Iterator[Choice]:
    """Different points, as many as are asked for or there are."""
    generator, seen = random.Random(space.seed), set[Choice]()
    while len(seen) < min(space.points or 0, space.size):
        choice = tuple(generator.randrange(len(axis.values)) for axis in space.axes)
        if choice not in seen:
            seen.add(choice)
            yield choice


class _Listed:
    """Points that are known before any has run."""

    ahead: int | None = None

    def __init__(self, choices: Iterator[Choice]) -> None:
        self.choices = choices

    def ask(self) -> Choice | None:
        return next(self.choices, None)

    def tell(self, values: Sequence[float] | None) -> None:
        """Nothing is learnt from it."""


class _Optimise:
    """Optuna's tree-structured Parzen estimator for several objectives.

    Source: Ozaki et al., "Multiobjective tree-structured Parzen estimator", JAIR 73 (2022).
    """

    ahead: int | None = AHEAD

    def __init__(self, space: Space) -> None:
        try:
            import optuna
        except ImportError as error:
            raise UsageError(
                "error: strategy optimise needs the package optuna: pip install 'frustum[explore]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=space.seed)
        self.study = optuna.create_study(directions=["minimize"] * len(space.objectives), sampler=sampler)
        self.space, self.trials = space, list[optuna.Trial]()
        self.failed = optuna.trial.TrialState.FAIL
        self.left = space.points or 0

    def ask(self) -> Choice | None:
        if not self.left:
            return None
        self.left -= 1
        trial = self.study.ask()
        self.trials.append(trial)
        return tuple(
            trial.suggest_categorical(axis.name, list(range(len(axis.values)))) for axis in self.space.axes
        )

    def tell(self, values: Sequence[float] | None) -> None:
        trial = self.trials.pop(0)
        if values is None:
            self.study.tell(trial, state=self.failed)
        else:
            self.study.tell(trial, list(values))
