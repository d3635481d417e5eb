"""500 random networks among operations of other dialects, with every policy: as `test/pipeline/test_foreign.py`.

python -m pytest -n 0 test/soak/soak_foreign.py
"""

from __future__ import annotations

import pytest
from foreign import POLICIES, check_all, mixed_modules
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.backend.pipeline import Choices

PLAIN = (
    Choices(),
    *(Choices(order=order) for order in ("serpentine", "z-order")),
    Choices(borders="exchange"),
    Choices(compression="huffman"),
    Choices(compression="zero"),
)
WITH_CDMA = (Choices(weights="shared"), Choices(order="row-major{depth=breadth-first}"))
VARIANTS = {"tiny": PLAIN, "default": (*PLAIN, *WITH_CDMA)}
EACH = 125


@pytest.mark.parametrize("where", list(VARIANTS))
@pytest.mark.parametrize("feeds", [False, True])
@settings(max_examples=EACH)
@given(data=st.data())
def test_every_pass_keeps_what_is_not_ours(feeds, where, data):
    mixed = data.draw(mixed_modules(5, feeds))
    for policy in POLICIES:
        check_all(mixed, policy, data.draw(st.sampled_from(VARIANTS[where])), where)
