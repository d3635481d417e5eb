"""The pieces of a unit's steps cover its maps; what is made twice and what is kept is found."""

import numpy as np
import pytest
from shown import shown

from frustum.runtime.show.frustum import frustums


@pytest.mark.slow
def test_pieces_cover_each_map():
    expanded = shown().timeline.expanded
    found = frustums(expanded)
    assert found
    for unit in found.values():
        assert unit["drawn"] == unit["steps"]
        for layer in unit["layers"]:
            made = np.zeros((layer["rows"], layer["cols"]), int)
            for step, owner, (a, b, c, d), _, again in layer["pieces"]:
                assert 0 <= step < unit["drawn"] and 0 <= owner < unit["owners"]
                for e, f, g, h in again:
                    assert a <= e < f <= b and c <= g < h <= d
                    assert made[e:f, g:h].all(), "it had been made"
                made[a:b, c:d] += 1
            assert made.all(), "nothing of a map is left out"


def test_a_fused_layer_reads_what_the_layer_before_made():
    expanded = shown().timeline.expanded
    unit = next(each for each in frustums(expanded).values() if len(each["layers"]) > 1)
    for maker, reader in zip(unit["layers"], unit["layers"][1:], strict=False):
        rows = np.zeros(maker["rows"], bool)
        for _, _, (a, b, _, _), _, _ in maker["pieces"]:
            rows[a:b] = True
        for _, _, _, (e, f, _, _), _ in reader["pieces"]:
            assert rows[e:f].all()
