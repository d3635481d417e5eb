"""Published design points on the real network, counted by the machine (`benchmarks/fusion.py points` has all)."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = ("two bands of columns",)
SCRIPT = f"""
import fusion, json
points = [p for p in fusion.POINTS if p.what in {NAMES!r}]
assert all(p.sram_bytes == 512 * 1024 and p.map_bytes and p.kept_bytes for p in points)
print(json.dumps([fusion.point_row(p) for p in points]))
"""


def test_five_layers_of_vgg_in_two_bands_in_half_a_mebibyte():
    """Feature-map bytes to the byte, reuse storage and multiplications again at most as published.

    A process of its own: `networks` of the benchmarks is not that of the tests.
    """
    path = os.pathsep.join([*sys.path, str(ROOT / "benchmarks")])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT / "benchmarks", env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert [row[1] for row in rows] == list(NAMES)
    assert not [cell for row in rows for cell in row if "MISSED" in cell], rows
