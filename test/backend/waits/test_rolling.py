"""A rolling buffer from text to numbers: two rows a pass into a ring, windows of four out of it."""

import re
from pathlib import Path

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from frustum.backend.file.executable import build_executable
from frustum.backend.file.read_program import read_program
from frustum.backend.memory.allocation import Allocate
from frustum.backend.set_target import SetTarget
from frustum.backend.waits.schedule import Schedule
from frustum.dialects.isa import AllocOp, FIsa
from frustum.runtime.check.check import RaceError
from frustum.runtime.machine import Machine

TEXT = Path(__file__).with_name("rolling.mlir").read_text()
ROWS, COLUMNS, WINDOW, STEP = 24, 8, 4, 2


def compiled(text: str = TEXT) -> ModuleOp:
    ctx = Context()
    ctx.load_dialect(Builtin)
    ctx.load_dialect(FIsa)
    module = Parser(ctx, text).parse_module()
    for each in (SetTarget("edge"), Allocate(), Schedule()):
        each.apply(ctx, module)
    module.verify()
    return module


def run(module: ModuleOp):
    x = np.arange(1, ROWS * COLUMNS + 1, dtype=np.float32).reshape(ROWS, COLUMNS)
    found = Machine(build_executable(read_program(module), [])).run({"x": x}, checked=True)
    return x, found.outputs["y"]


def windows(x):
    """Rows 2i - 2 to 2i + 1 for every pass i; rows above the map are 0."""
    padded = np.concatenate([np.zeros((STEP, COLUMNS), np.float32), x])
    return np.stack([padded[STEP * i : STEP * i + WINDOW] for i in range(ROWS // STEP)])


def test_windows_out_of_a_rolling_buffer_are_right_and_race_with_nothing():
    x, y = run(compiled())
    np.testing.assert_array_equal(y, windows(x))


@pytest.mark.parametrize(("ring", "most"), [(6, 2), (8, 3), (10, 4)])
def test_the_slack_that_a_ring_has_room_for(ring, most):
    """A ring holds a window of 4 rows and 2 rows for each pass of slack after the first; with more slack a load
    overwrites what a window still needs."""

    def text(slack):
        sized = TEXT.replace("mod 6", f"mod {ring}").replace("bytes 192", f"bytes {32 * ring}")
        return re.sub(r"rolling 2 :", f"rolling {slack} :", sized)

    x, y = run(compiled(text(most)))
    np.testing.assert_array_equal(y, windows(x))
    with pytest.raises(RaceError, match=r"copy 0 .* by gdma .* of sram .*, which copy 1 .* reads; nothing orders"):
        run(compiled(text(most + 1)))


def test_a_slack_smaller_than_the_stages_lie_apart_is_refused():
    """Pass i + 1 loads before pass i moves: it cannot wait for that."""
    with pytest.raises(VerifyException, match=r"has slack 1, but mvdma \(stage 1\) .* it needs slack 2"):
        compiled(TEXT.replace("rolling 2 :", "rolling 1 :"))


@pytest.mark.parametrize(("fields", "found"), [({"rolling": 0}, "rolling 0"), ({"rolling": 2, "depth": 2}, "depth 2")])
def test_a_rolling_buffer_has_slack_and_no_copies(fields, found):
    with pytest.raises(VerifyException, match=rf"'fisa.alloc': a rolling buffer has a slack .* found .*{found}"):
        AllocOp("sram", 64, **fields).verify()
