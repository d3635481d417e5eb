"""Every published case is counted, no figure is below its bound, and what is asked of ours holds.

python -m pytest -n auto -s test/soak/soak_published.py     (-s: prints the table)
"""

from __future__ import annotations

import pytest

import frustum
from frustum.runtime.study.published.cases import cases, cells


@pytest.mark.parametrize("name", cases())
def test_case(name):
    rows = frustum.compare(name)
    for each in rows:
        print("| " + " | ".join(cells(each)) + " |")
        assert each.bound is None or each.ours >= each.bound * (1 - 1e-9), each
    assert rows
