"""Limits of processor time that hold on slow and busy machines too."""

from __future__ import annotations

import time

USUAL = 0.06
"""Seconds of a million additions on the machine on which the limits were set."""


def slowness() -> float:
    """How many times as long as that machine this one takes as it is now; 1 where it is faster."""
    started, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.process_time() - started) / USUAL)


def allowed(seconds: float) -> float:
    """So much time on that machine, on this one as it is now."""
    return seconds * slowness()
