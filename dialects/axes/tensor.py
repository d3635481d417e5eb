"""Root storage of a network of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from frustum.dialects.axes.axis import Dim, leaves


class Kind(StrEnum):
    """Where a tensor comes from."""

    INPUT = "input"
    WEIGHT = "weight"
    INTERMEDIATE = "intermediate"
    STATE = "state"


@dataclass(eq=False)
class Tensor:
    """A product of axes. `element_bits` counts the stored form; `sums` is the type in which sums have to wait that are
    not whole yet, where that of elements does not hold them."""

    name: str
    dims: tuple[Dim, ...]
    element_bits: int
    kind: Kind
    is_output: bool = False
    sums: str = ""
    _settled: Dim | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return self.name

    @property
    def axes(self) -> Dim:
        return leaves(axis for dim in self.dims for axis in dim) if self._settled is None else self._settled

    def settle(self) -> None:
        """No axis is split from now on."""
        self._settled = None
        self._settled = self.axes

    @property
    def size_bytes(self) -> int:
        return -(-math.prod(axis.extent for axis in self.axes) * self.element_bits // 8)
