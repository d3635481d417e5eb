"""3,000 random networks of the families that people run, with default options, in checked mode: numbers and figures
are right.

Seeded, in chunks that run side by side:

    python -m pytest -n auto test/soak/soak_families.py
    python -m pytest -n 0 test/soak/soak_families.py -k "[7-qdq]"
"""

import pytest
from family_runs import FAMILIES, check_cases

CHUNKS, EACH = 43, 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, chunk):
    check_cases(family, range(1000 + chunk * EACH, 1000 + (chunk + 1) * EACH))
