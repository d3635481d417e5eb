"""Every order on every shipped machine for maps of 1 to 8 rows and columns, random chains of windows on small maps, and
2,000 seeded combinations of orders, policies, borders, owners, batches and machines.

    python -m pytest -n 0 test/soak/soak_orders.py --hypothesis-profile=soak
    python -m pytest -n auto test/soak/soak_orders.py -k combination
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from networks import Net
from order_cases import case_of, judged
from stops import run_module
from window_chains import BORDERS, MACHINES, ORDERED, POLICIES, WORDS, chains, check, first_broad

import frustum
from frustum.backend import targets
from frustum.dialects.target.fit import DoesNotFit

EXAMPLES = 2000
CHUNKS, EACH = 40, 50


@pytest.mark.parametrize("words", [*WORDS, *(first_broad(words) for words in WORDS)])
@pytest.mark.parametrize("name", targets.names())
@pytest.mark.parametrize("borders", ["overlap", "exchange"])
def test_every_order_on_every_machine_for_every_size(name, words, borders):
    for rows, columns in product(range(1, 9), repeat=2):
        net = Net(3)
        a = net.conv(net.input(1, 2, rows, columns), 3, 3, act="relu")
        module, inputs = net.module(net.conv(net.pool("max", a, 3, 1, pads=(1, 1, 1, 1)), 2, (1, 3)))
        try:
            executable = frustum.compile(module, name, "f32", order=words, borders=borders)
        except DoesNotFit as refused:
            assert words in str(refused)
            continue
        found = frustum.run(executable, inputs, checked=True)
        for key, array in run_module(module, inputs).items():
            np.testing.assert_allclose(found.outputs[key], array, rtol=1e-4, atol=1e-4)
            assert found.report["dram"]["output_bytes"] == array.nbytes


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(chains(8), MACHINES, ORDERED, BORDERS, POLICIES)
def test_chains_of_windows(chain, machine, order, borders, policy):
    check(chain, machine, order=order, borders=borders, policy=policy)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_combination_gives_numbers_or_is_refused_by_name(chunk):
    found = Counter(judged(case_of(seed)) for seed in range(chunk * EACH, (chunk + 1) * EACH))
    print(f"chunk {chunk}: {dict(found)}")
    assert found["good"] >= EACH // 2, found
