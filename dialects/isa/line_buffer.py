"""The line buffer's set-up: how the blocks of the next convolution's rows are written into the lines."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa.instruction import (
    COMMON,
    INTEGER,
    INTEGERS,
    CommonFields,
    Instruction,
    Word,
    check_word,
    integers,
    value_of,
)
from frustum.dialects.isa.program import LINE_SOURCES, RUN_MODES, Engine, Four, LineSource, RunMode

NO_PADDING = integers((0, 0, 0, 0))


@irdl_op_definition
class LineBufferOp(Instruction):
    """Sets up the line buffer for the next convolution of the same core.

    All numbers are those of the convolution's largest box; clipped ones derive theirs from the same rule
    (`dialects/isa/line_buffer_plan.py`).  They count along one run of rows, for one input channel and kernel row.
    """

    name = "fisa.line_buffer"
    ENGINE: ClassVar[Engine | None] = "matrix"

    mode = prop_def(StringAttr)
    source = prop_def(StringAttr)
    blocks = prop_def(INTEGER)
    lines = prop_def(INTEGER)
    shift = prop_def(INTEGER)
    second_shift = prop_def(INTEGER)
    boundary = prop_def(INTEGER)
    padding = prop_def(INTEGERS, default_value=NO_PADDING)
    discard = opt_prop_def(INTEGERS)

    custom_directives = (Word,)
    assembly_format = (
        "custom<Word>($mode) custom<Word>($source) `blocks` $blocks `lines` $lines `shift` $shift `then`"
        " $second_shift `at` $boundary (`padding` $padding^)? (`discard` $discard^)?" + COMMON
    )

    def __init__(
        self,
        mode: RunMode,
        source: LineSource,
        *,
        blocks: int,
        lines: int,
        shift: int,
        second_shift: int,
        boundary: int,
        padding: Four = (0, 0, 0, 0),
        discard: tuple[int, int, int] | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields: dict[str, Any] = {
            "mode": mode,
            "source": source,
            "blocks": blocks,
            "lines": lines,
            "shift": shift,
            "second_shift": second_shift,
            "boundary": boundary,
            "padding": padding,
            "discard": discard,
        }
        self.fill_in((), common, fields)

    def check(self) -> None:
        check_word(self.name, "mode", self.mode, RUN_MODES)
        check_word(self.name, "source", self.source, LINE_SOURCES)
        for field in ("blocks", "lines", "shift", "second_shift", "boundary"):
            value = value_of(self.properties[field])
            if value < 1:
                raise VerifyException(f"'{self.name}': {field} is at least 1, found {value}")
        if self.second_shift.value.data > self.shift.value.data:
            raise VerifyException(
                f"'{self.name}': the second shift is at most the shift {self.shift.value.data}, "
                f"found {self.second_shift.value.data}"
            )
        padding = self.padding.get_values()
        if len(padding) != 4 or min(padding) < 0:
            raise VerifyException(
                f"'{self.name}': padding is [top, left, bottom, right], each at least 0, found {list(padding)}"
            )
        if self.discard is not None:
            self._check_discard(self.discard.get_values())

    def _check_discard(self, values: tuple[int, ...]) -> None:
        if self.mode.data == "split":
            raise VerifyException(f"'{self.name}': split writes discard no windows, found {list(values)}")
        if len(values) != 3 or values[0] < 1 or values[2] < 1 or values[0] + values[2] != values[1]:
            raise VerifyException(
                f"'{self.name}': discard is [first, period, count], the last of each period, found {list(values)}"
            )
