# Tests: test/dialects/target/test_host.py
"""The host's processor as part of a target: what runs there takes by its rates.

Source: docs/techniques/machine.md, "Host".
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Annotated

from frustum.dialects.target.declared import Parameter

HOST_PER_SECOND = 10**10
"""Multiply-accumulates, and bytes, of a host of which a target says nothing."""


@dataclass(frozen=True)
class Host:
    """The processor that runs what the device lacks: one core that fits beside an accelerator."""

    macs_per_cycle: Annotated[
        float | None, Parameter("multiply-accumulates; 10 G/s if absent", 1e-6, 1e9, "MAC/cycle")
    ] = None
    bytes_per_cycle: Annotated[
        float | None, Parameter("bytes read and written; 10 GB/s if absent", 1e-6, 1e9, "B/cycle")
    ] = None

    def cycles(self, macs: int, size_bytes: int, clock_hz: int) -> int:
        """What a piece takes, arithmetic beside memory.  Exact: rates are fractions, as the file has them."""
        absent = Fraction(HOST_PER_SECOND, clock_hz)
        macs_rate, bytes_rate = (
            absent if rate is None else Fraction(repr(rate)) for rate in (self.macs_per_cycle, self.bytes_per_cycle)
        )
        return ceil(max(macs / macs_rate, size_bytes / bytes_rate))


OF_CLOCK = Host()
"""Of a target that says nothing of its host."""
