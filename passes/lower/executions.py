"""The sizes that an instruction's executions have, once its box is clipped, over all loops and cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.isa.program import MAX_LOOPS, Affine, Span

Ints = NDArray[np.int64]


class Executions:
    """Executions that differ in any of some affine functions; loops that none of them names are left out."""

    def __init__(self, functions: Sequence[Affine], counts: Sequence[int], clusters: int, cores: int) -> None:
        sizes = [*counts, *(1,) * (MAX_LOOPS - len(counts)), clusters, cores]
        used = np.any([_coefficients(f) for f in functions], axis=0)
        self.index: Ints = np.indices([n if u else 1 for n, u in zip(sizes, used, strict=True)])
        self.index = self.index.reshape(len(sizes), -1)

    @classmethod
    def of(cls, spans: Sequence[Span], counts: Sequence[int], clusters: int, cores: int) -> Executions:
        """Executions of an instruction inside loops of `counts` passes, as far as these spans differ in them."""
        functions = [each for span in spans for each in (span.start, span.limit) if each is not None]
        return cls(functions, counts, clusters, cores)

    def at(self, function: Affine) -> Ints:
        """The value in each execution."""
        values: Ints = function.base + np.array(_coefficients(function)) @ self.index
        return values

    def clip(self, span: Span) -> tuple[Ints, Ints, Ints]:
        """First position, how many follow from it on (at least 0), and how many were cut off before it."""
        nominal = self.at(span.start)
        lower = np.maximum(nominal, 0)
        stop = np.minimum(nominal + span.extent, span.bound)
        if span.limit is not None:
            stop = np.minimum(stop, self.at(span.limit))
        return lower, np.maximum(stop - lower, 0), lower - nominal


def _coefficients(function: Affine) -> list[Any]:
    return [*function.loops, *(0,) * (MAX_LOOPS - len(function.loops)), function.cluster, function.core]
