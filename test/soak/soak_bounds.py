"""The bound on bytes of DRAM against the cheapest schedule of 2,000 random graphs of at most 10 values, by trying all;
and against what 1,000 random compiled networks move, in chunks that run side by side.

    python -m pytest -n 0 test/soak/soak_bounds.py
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from random_bounds import bounded, check_bounded
from small_graphs import FAMILIES, compare

EACH = 2000 // len(FAMILIES)
CHUNKS, COMPILED = 10, 100


@pytest.mark.parametrize("family", FAMILIES)
def test_no_schedule_moves_less(family):
    compared, seed = [], 0
    while len(compared) < EACH:
        found = compare(family, seed, most=10)
        compared += [] if found is None else [found]
        seed += 1
    counts = {}
    for each in compared:
        for by in each:
            counts[by] = counts.get(by, 0) + 1
    print(family, counts)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_compiled_network_moves_less(chunk):
    counts = Counter()

    @seed(chunk)
    @settings(max_examples=COMPILED, database=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(bounded(4))
    def run(case):
        counts[check_bounded(case)] += 1

    run()
    print(f"chunk {chunk}: {dict(counts)}")
