"""Garbage is looked for rarely while the compiler works, and as before afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from frustum.runtime.garbage import HEAVY_BYTES, SETTINGS, collect_beside, collected_rarely


def test_settings_are_as_before_after_an_error():
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="inside"), collected_rarely():
        assert gc.get_threshold() == SETTINGS
        raise ValueError("inside")
    assert gc.get_threshold() == before


@pytest.mark.slow
@pytest.mark.parametrize(("weight_bytes", "is_gone"), [(HEAVY_BYTES, False), (HEAVY_BYTES + 1, True)])
def test_garbage_is_looked_for_beside_large_weights(weight_bytes, is_gone):
    class Circle:
        pass

    gc.collect()
    gc.disable()
    try:
        one = Circle()
        one.self, seen = one, weakref.ref(one)
        del one
        collect_beside(weight_bytes)
        assert (seen() is None) == is_gone
    finally:
        gc.enable()


def test_a_process_of_its_own_sets_aside_what_it_imported_and_made():
    """Once after the imports, and at its end; nothing of that in a process that is somebody else's."""
    program = """
import atexit, gc
from frustum.runtime.garbage import collect_rarely, collected_rarely
with collected_rarely():
    assert gc.get_freeze_count() == 0
atexit.register(lambda: print(gc.get_freeze_count() > first))
collect_rarely()
with collected_rarely():
    first = gc.get_freeze_count()
    assert first > 0
made = [[number] for number in range(1000)]
with collected_rarely():
    assert gc.get_freeze_count() <= first
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")
