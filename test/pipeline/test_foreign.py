"""Operations of other dialects among ours: at every level they keep their order, their text and their values."""

from __future__ import annotations

import pytest
from foreign import POLICIES, check_all, mixed_modules
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.backend.pipeline import Choices

VARIANTS = (
    Choices(),
    Choices(order="serpentine"),
    Choices(borders="exchange"),
    Choices(compression="huffman"),
)


@pytest.mark.parametrize("feeds", [False, True])
@settings(max_examples=20)
@given(data=st.data())
def test_every_pass_keeps_what_is_not_ours(feeds, data):
    mixed = data.draw(mixed_modules(3, feeds))
    for policy in POLICIES:
        check_all(mixed, policy, data.draw(st.sampled_from(VARIANTS)))
