"""The time left that a run shows is true within 30 % at a quarter, half and three quarters of it, on the clock of the
CPU: alone on a machine, since what others do slows down some steps and not others.

Nothing can be shown while the interpreter starts (0.35 s): a quarter of a run with a warm cache may be over by then.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import progress

STARTED_SECONDS = 0.5


@pytest.mark.parametrize("mode", progress.MODES)
@pytest.mark.parametrize("model", progress.MODELS)
def test_the_time_left_is_true(tmp_path, model, mode):
    """One of three runs must be undisturbed."""
    words = ["run", model, "--mode", mode]
    for state in ("cold", "warm"):
        for attempt in range(3):
            cache = tmp_path / (f"cold{attempt}" if state == "cold" else "warm")
            if state == "warm" and attempt == 0:
                progress.shown_by(words, str(cache))
            found = progress.shown_by(words, str(cache))
            is_due = {p: left * p / (1 - p) > STARTED_SECONDS for p, (_, left) in found.items()}
            wrong = {p: pair for p, pair in found.items() if is_due[p] and not progress.is_true(*pair)}
            if not wrong:
                break
        assert not wrong, (state, found)
