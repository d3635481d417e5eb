"""3,000 random graphs of all layers, on random machines, by all policies, in checked mode: numbers agree.

Seeded, in chunks that run side by side:

    python -m pytest -n auto test/soak/soak_graphs.py
    python -m pytest -n 0 test/soak/soak_graphs.py -k "[7]"
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from random_network import GRAPHS, networks
from random_run import WAYS, check_run

from frustum.dialects.target.fit import DoesNotFit

CHUNKS, EACH = 60, 50


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_graphs_agree(chunk):
    refused = 0

    @seed(chunk)
    @settings(max_examples=EACH, database=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(networks(6, GRAPHS), WAYS)
    def run(network, way):
        nonlocal refused
        try:
            check_run(network, way)
        except DoesNotFit:
            refused += 1
            assume(False)

    run()
    print(f"chunk {chunk}: {refused} did not fit")
