"""Orders x policies x borders x owners x batches x machines, sampled: numbers, or a refusal by name."""

from __future__ import annotations

from collections import Counter

import pytest
from order_cases import case_of, judged

CHUNKS, EACH = 20, 10


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_combination_gives_numbers_or_is_refused_by_name(chunk):
    found = Counter(judged(case_of(seed)) for seed in range(chunk * EACH, (chunk + 1) * EACH))
    assert found["good"] >= EACH // 2, found
