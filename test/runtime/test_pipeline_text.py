"""What can be wrong with the text of a pipeline, and how it is told."""

from dataclasses import dataclass

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.runtime.pipeline_text import PipelineError, parse_passes


@dataclass(frozen=True)
class Fold(ModulePass):
    """A pass with options."""

    name = "frustum-fold"
    depth: int = 2
    order: str = "bands"

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"depth is at least 0, not {self.depth}")

    def apply(self, ctx: Context, op: ModuleOp) -> None: ...


@dataclass(frozen=True)
class Cut(ModulePass):
    """A pass with an option that has no default."""

    name = "frustum-cut"
    rows: int

    def apply(self, ctx: Context, op: ModuleOp) -> None: ...


AVAILABLE = {"frustum-fold": lambda: Fold, "frustum-cut": lambda: Cut}


def test_passes_come_in_order_with_their_options() -> None:
    text = "frustum-cut{rows=3},frustum-fold{order=rows depth=1},frustum-fold"
    assert parse_passes(AVAILABLE, text) == (Cut(3), Fold(1, "rows"), Fold())


def test_no_text_is_no_passes() -> None:
    assert parse_passes(AVAILABLE, "") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frustum-flod", "pipeline:1:1: error: unknown pass 'frustum-flod'; did you mean 'frustum-fold'?"),
        ("xyzzy", "pipeline:1:1: error: unknown pass 'xyzzy'"),
        (
            "frustum-fold{dept=1}",
            "pipeline:1:14: error: pass 'frustum-fold' has no option 'dept'; did you mean 'depth'? "
            "(it has depth, order)",
        ),
        ("frustum-fold{depth=deep}", "pipeline:1:14: error: option 'depth' of pass 'frustum-fold' is int, not deep"),
        ("frustum-fold{depth}", "pipeline:1:14: error: option 'depth' of pass 'frustum-fold' is int, not no value"),
        ("frustum-fold{order=true}", "error: option 'order' of pass 'frustum-fold' is str, not true"),
        ("frustum-fold{depth=-1}", "pipeline:1:1: error: pass 'frustum-fold': depth is at least 0, not -1"),
        ("frustum-cut", "pipeline:1:1: error: pass 'frustum-cut' needs option 'rows' (int)"),
        ("frustum-fold, frustum-cut", "pipeline:1:14: error: Expected pass name here"),
        ("frustum-fold{depth=1", "pipeline:1:21: error: Malformed pass arguments"),
    ],
)
def test_wrong_text(text: str, message: str) -> None:
    with pytest.raises(PipelineError) as error:
        parse_passes(AVAILABLE, text)
    first, source, caret = str(error.value).splitlines()
    assert message in first
    assert source == text
    assert set(caret.strip()) <= {"^", "~"}


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(PipelineError) as error:
        parse_passes(AVAILABLE, "frustum-flod,frustum-cut,frustum-fold{a=1}")
    places = [line.split(": ")[0] for line in str(error.value).splitlines() if "error" in line]
    assert places == ["pipeline:1:1", "pipeline:1:14", "pipeline:1:39"]
