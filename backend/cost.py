# Tests: test/backend/test_split_compile.py
"""What executables are compared by: cycles and bytes of DRAM of a run, as somebody counts who knows the machine.

Source: docs/techniques/output-split.md, "When".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from numpy.typing import NDArray

from frustum.dialects.isa.program import Program


@dataclass(frozen=True)
class Cost:
    """Of one run, or of several one after the other."""

    cycles: int
    dram_bytes: int
    """At the port: weights, maps, code and tables."""
    code_bytes: int = 0
    """Of these code and tables."""

    @property
    def data_bytes(self) -> int:
        """Weights and maps, as plans count them."""
        return self.dram_bytes - self.code_bytes

    def is_within(self, other: Cost) -> bool:
        """Neither more cycles nor more bytes."""
        return self.cycles <= other.cycles and self.dram_bytes <= other.dram_bytes

    def is_better(self, other: Cost) -> bool:
        """Neither more cycles nor more bytes, and fewer of one."""
        return self.is_within(other) and not other.is_within(self)

    def __str__(self) -> str:
        return f"{self.cycles:,} cycles and {self.dram_bytes:,} bytes of DRAM"


@dataclass(frozen=True)
class Count:
    """What a run of a program costs, and the parts of it that belong to layers: no code, and not the time before the
    first of them."""

    cost: Cost
    layers: Mapping[str, Cost]

    def of(self, layers: Iterable[str]) -> Cost:
        """The share of some layers; what is none of the program's has none."""
        return total(self.layers[name] for name in layers if name in self.layers)


Image: TypeAlias = Sequence[tuple[int, NDArray[Any]]]
"""Addresses in DRAM, and what the host writes there before a run."""
CountRun: TypeAlias = Callable[[Program, Sequence[int], Image], Count]
"""Counts a run of a program whose code has pages of so many bytes, and whose address tables are in an image."""


def total(costs: Iterable[Cost]) -> Cost:
    """Of programs that run one after the other."""
    known = list(costs)
    return Cost(*(sum(getattr(each, own.name) for each in known) for own in fields(Cost)))
