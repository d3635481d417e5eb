"""The bound on bytes of DRAM against the cheapest schedule of 2,000 random graphs of at most 10 values, by trying all.

    python -m pytest -n 0 test/soak/soak_bounds.py
"""

import pytest
from small_graphs import FAMILIES, compare

EACH = 2000 // len(FAMILIES)


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
