"""Garbage is looked for rarely while the compiler works, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from frustum.runtime.garbage import SETTINGS, collected_rarely


def test_settings_are_as_before_after_an_error():
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="inside"), collected_rarely():
        assert gc.get_threshold() == SETTINGS
        raise ValueError("inside")
    assert gc.get_threshold() == before
