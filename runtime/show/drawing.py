# Tests: test/runtime/tools/test_api.py
"""A run as a page, as a trace, or in a copy of its model, and what none of them can show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from frustum.dialects.choices import Mode
from frustum.runtime.failures import UsageError
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.execution import RanChain, timelines_of
from frustum.runtime.report.figures import DrawnCurve, Report

if TYPE_CHECKING:
    from onnx import ModelProto


NOUNS = {"trace": "trace", "html": "page"}


def refuse_drawing(what: Literal["trace", "html"], mode: Mode, is_stream: bool, dashes: str = "") -> None:
    """UsageError where a run in this mode, or of a stream of inputs, cannot be shown so; `dashes` of the options that
    are named, if they are of the command line."""
    if mode == "functional":
        raise UsageError(
            f"error: {dashes}{what} needs {dashes}mode full or timing: mode functional counts no time"
        )
    if is_stream:
        raise UsageError(f"error: {dashes}{what} and {dashes}stream: a {NOUNS[what]} is of one input")
    if what == "trace" and find_spec("perfetto") is None:
        raise UsageError(f"error: {dashes}trace needs the package perfetto: pip install 'frustum[trace]'")


@dataclass(frozen=True)
class RunDrawing:
    """What a report needs to be shown: the pieces and their runs."""

    chain: Chain
    ran: RanChain
    mode: Mode
    is_stream: bool
    model: Callable[[], ModelProto | Path | None]
    """What ran, as ONNX; None where nobody knows."""

    def page(self, report: Report, stops: Path | None, curves: Sequence[DrawnCurve]) -> str:
        """The page; `stops`: the folder of `--dump-ir`.  UsageError as `refuse_drawing` has it."""
        refuse_drawing("html", self.mode, self.is_stream)
        from frustum.runtime.show.page import page

        return page(self.chain, self.ran, report, stops, curves)

    def trace(self) -> bytes:
        """Protobuf for Perfetto.  UsageError as `refuse_drawing` has it."""
        refuse_drawing("trace", self.mode, self.is_stream)
        from frustum.runtime.show.trace import trace_bytes

        return trace_bytes(timelines_of(self.chain, self.ran))

    def annotate(self, report: Report, path: Path) -> None:
        """Write a copy of the model with the report's figures.  UsageError as `write_annotated` has it, and where there
        is no model."""
        from frustum.runtime.show.annotate import write_annotated

        model = self.model()
        if model is None:
            raise UsageError(
                f"{report['model']}: error: there is no model to annotate: --annotate needs the .onnx file or zoo:NAME"
            )
        write_annotated(path, model, report)
