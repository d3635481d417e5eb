# Tests: test/runtime/tools/test_api.py
"""A report as people have it: the figures, as text, JSON, a page or a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol, cast

from frustum.runtime.failures import UsageError
from frustum.runtime.report.schema import ReportData


class DrawnCurve(Protocol):
    """DRAM bytes of a network against SRAM capacity (`runtime/study/planned.py`)."""

    @property
    def name(self) -> str:
        """Of the network."""
        ...

    def svg(self) -> str:
        """The picture, as an element of a page."""
        ...


class Drawing(Protocol):
    """What shows the run that a report is of (`runtime/show/drawing.py`)."""

    def page(self, report: Report, stops: Path | None, curves: Sequence[DrawnCurve]) -> str: ...

    def trace(self) -> bytes: ...

    def annotate(self, report: Report, path: Path) -> None: ...


class Report(dict[str, Any]):
    """The figures by the keys of schema 1: `report["cycles"]["total"]`; `report.data` is the same with types."""

    drawing: Drawing | None = None
    """Of the run; None in a report that was read or copied."""

    @property
    def data(self) -> ReportData:
        return cast("ReportData", self)

    def __repr__(self) -> str:
        return f"<frustum.Report: {', '.join(self._summary())}>"

    def _repr_html_(self) -> str:
        return "<br>".join(escape(each) for each in self._summary())

    def __reduce__(self) -> tuple[type[Report], tuple[dict[str, Any]]]:
        return Report, (dict(self),)

    def _summary(self) -> list[str]:
        cycles, ratio = self.get("cycles"), self["dram"]["ratio"]
        times = "" if ratio is None else f", {ratio:.3f} x compulsory"
        return [
            f"{self['model']} on {self['target']}, {self['dtype']}, policy {self['policy']}",
            f"{self['dram']['total_bytes']:,} DRAM bytes{times}",
            *([] if cycles is None else [f"{cycles['total']:,} cycles"]),
        ]

    def json(self) -> str:
        return json.dumps(self, indent=1) + "\n"

    def write(self, path: Path | str) -> None:
        """Write the JSON; a file that cannot be written is an `OSError` and leaves nothing half-written."""
        path = Path(path)
        text = self.json()
        part = path.with_name(path.name + ".part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def text(self, verbose: bool = False, colours: bool = False) -> str:
        """What the terminal shows: one screen, or (`verbose`) every figure behind it."""
        from frustum.runtime.report.screen import screen
        from frustum.runtime.report.terminal import render

        brief = screen(self, colours)
        return f"{brief}\n{render(self)}" if verbose else brief

    def html(self, dump_ir: Path | str | None = None, curves: Sequence[DrawnCurve] = ()) -> str:
        """One self-contained page that shows the run, as `--html` writes it; `dump_ir`: the folder with the IR of every
        stop that the page leads to; `curves`: those of `frustum.curve`.  UsageError where no time was counted, or many
        inputs ran."""
        return self._drawing("html").page(self, None if dump_ir is None else Path(dump_ir), curves)

    def trace(self) -> bytes:
        """A trace for Perfetto, as `--trace` writes it (protobuf; package `perfetto`).  UsageError as for `html`."""
        return self._drawing("trace").trace()

    def annotate(self, path: Path | str) -> None:
        """Write a copy of the model with unit, DRAM bytes and cycles in each node (.onnx, for Netron), or its graph for
        Model Explorer (.json), as `--annotate` does.  UsageError where the model is not known as ONNX."""
        self._drawing("annotate").annotate(self, Path(path))

    def _drawing(self, what: str) -> Drawing:
        if self.drawing is None:
            raise UsageError(f"error: {what} shows a run: this report was read or copied, and has figures alone")
        return self.drawing
