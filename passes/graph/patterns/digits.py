# Tests: test/passes/graph/patterns/test_digits.py
"""Which constants may become one: those whose roundings, which the model asks for, are lost in the noise.

    (x + 12582912) - 12582912  rounds x to whole numbers: the sum of the two constants is 0, which rounds nothing
    (x * 1e30) * 1e-30         is infinite where x is above 3e8: the product of the two is 1
"""

from __future__ import annotations

import numpy as np

from frustum.passes.weights import Array

KEPT = 2.0**9
"""A constant this much larger than what it leaves rounds f32 numbers to 2^-15 of them: a third of what `--check` allows
in f32."""
TINY, HUGE = 2.0**-64, 2.0**64
"""Factors between these neither overflow nor underflow, whatever a network usually multiplies by them."""


def cancels(size: Array, total: Array) -> bool:
    """Whether constants of this size in all (the sum of their magnitudes) leave so little that their roundings show.

    One of many channels may cancel, as batch normalisation takes a bias out again, where it is no larger than others.
    """
    left = np.abs(total)
    typical = float(np.median(left)) if left.size else 0.0
    return bool(np.any(size > KEPT * np.maximum(left, typical)))


def is_offset(shift: Array, scale: Array) -> bool:
    """Whether a shift is so large beside a scale that adding it rounds what has been scaled."""
    return bool(np.abs(shift).max(initial=0.0) > KEPT * np.abs(scale).max(initial=0.0))


def swamps(first: Array, second: Array) -> bool:
    """Whether one of two terms rounds the other in their sum, unless that is 0."""
    return any(is_offset(a, b) for a, b in ((first, second), (second, first)) if np.any(b))


def reverts(first: Array, second: Array) -> bool:
    """Whether the second factor brings back what the first may have made infinite, or 0; or their product may make such
    where neither does."""
    first, second = np.broadcast_arrays(np.abs(first), np.abs(second))
    with np.errstate(all="ignore"):
        product = (first * second).astype(np.float32)
    overflows = ~(product <= HUGE) | ((first > HUGE) & (second < 1))
    underflows = (first > 0) & (first < TINY) & (second > 1)
    vanishes = bool(np.any((product == 0) & (first > 0) & (second > 0))) and float(product.max(initial=0.0)) < TINY
    return bool(np.any(overflows | underflows)) or vanishes
