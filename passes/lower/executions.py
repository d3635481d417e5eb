"""The sizes that an instruction's executions have, once its box is clipped, over all loops and cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Operation

from frustum.dialects.isa.program import MAX_LOOPS, Affine, Span
from frustum.dialects.isa.sync import enclosing_loops

Ints = NDArray[np.int64]


class Executions:
    """Executions of an instruction inside loops of `counts` passes that differ in any of some spans; loops, clusters
    and cores that no span names are left out."""

    def __init__(self, spans: Sequence[Span], counts: Sequence[int], clusters: int, cores: int) -> None:
        sizes = [*counts, *(1,) * (MAX_LOOPS - len(counts)), clusters, cores]
        used = np.any([_names(span) for span in spans], axis=0)
        self.index: Ints = np.indices([n if u else 1 for n, u in zip(sizes, used, strict=True)])
        self.index = self.index.reshape(len(sizes), -1)

    def at(self, function: Affine) -> Ints:
        """The value in each execution."""
        values: Ints = function.base + np.array(coefficients(function)) @ self.index
        return values

    def clip(self, span: Span) -> tuple[Ints, Ints, Ints]:
        """First position, how many follow from it on (at least 0), and how many were cut off before it."""
        nominal = self.at(span.start)
        lower = np.maximum(nominal, 0)
        stop = np.minimum(nominal + span.extent, span.bound)
        if span.limit is not None:
            stop = np.minimum(stop, self.at(span.limit))
        return lower, np.maximum(stop - lower, 0), lower - nominal


def clipped_extents(
    spans: Sequence[Span], counts: Sequence[int], clusters: int, cores: int
) -> tuple[Ints, Ints]:
    """Every combination of extents `[spans, combinations]` that occurs, and how often.

    Spans that name no loop in common are looked at apart, so that large nests stay small.
    """
    parts = []
    for members in _related(spans):
        mine = [spans[k] for k in members]
        executions = Executions(mine, counts, clusters, cores)
        extents = np.stack([executions.clip(span)[1] for span in mine])
        parts.append((members, *np.unique(extents, axis=1, return_counts=True)))
    choices = np.indices([len(times) for _, _, times in parts]).reshape(len(parts), -1)
    result = np.zeros((len(spans), choices.shape[1]), np.int64)
    total = np.ones(choices.shape[1], np.int64)
    for (members, distinct, times), chosen in zip(parts, choices, strict=True):
        result[members] = distinct[:, chosen]
        total *= times[chosen]
    return result, total


def _related(spans: Sequence[Span]) -> list[list[int]]:
    """Numbers of the spans, those together that share a loop, cluster or core, if through others."""
    groups: list[tuple[list[int], Ints]] = []
    for number, span in enumerate(spans):
        members, names = [number], _names(span)
        apart = []
        for others, their_names in groups:
            if (names & their_names).any():
                members, names = [*others, *members], names | their_names
            else:
                apart.append((others, their_names))
        groups = [*apart, (members, names)]
    return [members for members, _ in groups]


def _names(span: Span) -> Ints:
    """Which of the loops, the cluster and the core the span depends on."""
    limit = Affine() if span.limit is None else span.limit
    names: Ints = (np.array([coefficients(span.start), coefficients(limit)]) != 0).any(axis=0)
    return names


def enclosing_counts(op: Operation) -> list[int]:
    """Passes of the loops around an operation, outermost first."""
    return [loop.count.value.data for loop in enclosing_loops(op)]


def coefficients(function: Affine) -> list[int]:
    """What a step of each loop, of the cluster and of the core adds."""
    return [*function.loops, *(0,) * (MAX_LOOPS - len(function.loops)), function.cluster, function.core]
