"""Thousands of damaged inputs of every kind, others each time: SOAK_SEED chooses them, SOAK_INPUTS how many of each."""

import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import mutations
import pytest

FIRST = int(os.environ.get("SOAK_SEED", random.randrange(10**9)))
INPUTS = int(os.environ.get("SOAK_INPUTS", 3000))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", mutations.KINDS)
def test_a_damaged_input_is_refused_in_words(kind: str) -> None:
    found = []
    for seed in range(FIRST, FIRST + INPUTS):
        with TemporaryDirectory() as folder:
            fault = mutations.fault_of(kind, seed, Path(folder))
        if fault is not None:
            found.append(str(fault))
    assert not found, f"from SOAK_SEED={FIRST}:\n" + "\n".join(found)
