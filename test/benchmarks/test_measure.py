"""The table of measurements."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import measure

SECONDS = {"import": 1.0, "compile": 2.0, "emulate": 3.0}
REPORT = {
    "seconds": SECONDS,
    "check": {"max_rel_error": 2e-6},
    "dram": {"ratio": 1.25},
    "cycles": {"ratio": 1.5},
}


def test_a_row_is_the_median_of_its_runs() -> None:
    slow = REPORT | {"seconds": SECONDS | {"compile": 9.0}}
    runs = [measure.Run(REPORT, 20.0, 512.0), measure.Run(slow, 30.0, 600.0), measure.Run(REPORT, 10.0, 500.0)]
    assert measure.row("resnet50", runs, 1.0, 3.0, 0.5) == (
        ["resnet50", "1.00", "2.00", "1.000", "3.000", "0.5000", "6.0", "8.0", "20.0", "512", "2.0e-06", "1.25", "1.50"]
    )
    assert len(measure.row("resnet50", runs, 1.0, 3.0, 0.5)) == len(measure.HEAD)
