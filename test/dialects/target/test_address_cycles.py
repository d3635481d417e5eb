"""What addresses cost: the rule against a count by hand, and the worked example."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.backend.targets import load
from frustum.dialects.target import from_attribute, from_json, read_target, to_attribute, to_json
from frustum.dialects.target.durations import address_cycles

UNIT = load("default").core.matrix
EDGE = load("edge")


def by_hand(box, taps, groups, part, each, *, has_groups=False):
    """The unit's way: for each group and piece it reads the bases and offsets that there are, four in a cycle, and
    computes one address to get from a piece to the next."""
    if 0 in box or not groups:
        return 0
    images, rows, columns, channels = box
    if part is None:
        return sum(each for _ in range(groups) for _ in range(images * rows * columns + channels * taps))
    cycles, is_first = 0, True
    t, k = 1, min(part[3], channels) * taps
    for d in range(3):
        t *= min(part[d], box[d])
    starts = [range(0, extent, size) for extent, size in zip(box, part, strict=True)]
    for _ in range(groups):
        for _ in itertools.product(*starts):
            if not is_first and not has_groups:
                cycles += each
            is_first = False
            cycles += len(range(0, t + k, 4))
    return cycles


SIZE = st.integers(1, 9)


@given(st.tuples(SIZE, SIZE, SIZE, st.integers(0, 9)), st.integers(1, 9), st.integers(1, 4),
       st.none() | st.tuples(SIZE, SIZE, SIZE, SIZE), st.integers(0, 9))
def test_the_rule_is_what_is_counted_by_hand(box, taps, groups, part, each):
    unit = replace(UNIT, address_cycles=each)
    assert address_cycles(unit, box, taps, groups, part) == by_hand(box, taps, groups, part, each)


@given(st.tuples(SIZE, SIZE, SIZE, SIZE), st.integers(1, 9), st.integers(2, 4))
def test_a_full_table_of_every_group_walks_nothing(box, taps, groups):
    found = address_cycles(UNIT, box, taps, groups, box, has_groups=True)
    assert found == by_hand(box, taps, groups, box, UNIT.address_cycles, has_groups=True)
    assert found == groups * -(-(box[0] * box[1] * box[2] + box[3] * taps) // 4)


def test_the_worked_example():
    """One 4 x 4 map, a 3 x 3 kernel: 4 threads and 9 products.  A full table of 13 entries takes 4 cycles; rows of two
    threads 2 x ceil(11 / 4) and a step; without a table 13 addresses of 4 cycles each."""
    box = 1, 2, 2, 1
    assert address_cycles(UNIT, box, 9, 1, box) == 4
    assert address_cycles(UNIT, box, 9, 1, (1, 1, 2, 1)) == 2 * 3 + 4
    assert address_cycles(UNIT, box, 9) == 13 * 4
    assert address_cycles(EDGE.core.matrix, box, 9) == 13 * 8
    assert address_cycles(UNIT, box, 9, 3) == 3 * 13 * 4
    assert address_cycles(UNIT, box, 9, 3, box) == 3 * 4 + 2 * 4


def test_the_rule_holds_for_arrays():
    boxes = np.array([(1, 4, 7, 3), (2, 1, 5, 8), (0, 3, 3, 3)]).T
    for part in (None, (1, 2, 4, 2)):
        found = address_cycles(UNIT, tuple(boxes), 9, 2, part)
        assert found.tolist() == [by_hand(box, 9, 2, part, UNIT.address_cycles) for box in boxes.T.tolist()]


def test_a_target_may_leave_the_price_out():
    shipped = load("edge")
    data = to_json(shipped)
    del data["chip"]["cluster"]["core"]["matrix"]["address_cycles"]
    assert from_json(data).core.matrix.address_cycles == 8
    free = to_json(shipped)
    free["chip"]["cluster"]["core"]["matrix"]["address_cycles"] = 0
    assert from_json(free).core.matrix.address_cycles == 0
    assert from_attribute(to_attribute(from_json(free))) == from_json(free)
    assert load("default").core.matrix.address_cycles == 4


@pytest.mark.parametrize("found", [-1, 1025])
def test_a_price_out_of_range_is_refused(found):
    from frustum.backend.targets import path
    from frustum.dialects.target import TargetError

    text = path("edge").read_text().replace("address_cycles: 8", f"address_cycles: {found}")
    with pytest.raises(TargetError, match=rf"address_cycles: found {found}, allowed a whole number, 0 to 1024 cycles"):
        read_target(text, "mine.yaml")
