# Tests: test/runtime/tools/test_cli_errors.py
"""The module of a reproducer: as it was before the pass that fails, with a line that says how to run that pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnregisteredOp
from xdsl.passes import ModulePass

from frustum.backend.compile import fixed
from frustum.backend.pipeline import Run, passes_to, stop_of, stops_after
from frustum.passes.weights import write_module
from frustum.runtime.failures import CompilerFault

__all__ = ["write_module_before_fault"]


@dataclass(frozen=True)
class Moment:
    """A module, and the passes that fail on it."""

    module: ModuleOp
    passes: tuple[ModulePass, ...]

    @property
    def command(self) -> str:
        passes = ",".join(str(each.pipeline_pass_spec()) for each in self.passes)
        unknown = any(isinstance(op, UnregisteredOp) for op in self.module.walk())
        return f"frustum-opt %s -p '{passes}'" + (" --allow-unregistered-dialect" if unknown else "")


def write_module_before_fault(path: Path, fault: CompilerFault, comments: Sequence[str]) -> None:
    """The module before the pass that fails, its weights beside it, behind the line that runs it and comments.

    The passes are run again to find that one: the compiler is deterministic, and keeps no copies while all goes well.
    """
    moment = before_fault(fault) or Moment(fault.module, all_passes(fault))
    write_module(moment.module, path)
    text = path.read_text(encoding="utf-8")
    head = [f"// RUN: {moment.command}", *comments]
    path.write_text("\n".join(head) + f"\n{text}", encoding="utf-8", errors="backslashreplace")


def all_passes(fault: CompilerFault) -> tuple[ModulePass, ...]:
    """What was to be run, where it is not known which of it fails."""
    if fault.passes is not None:
        return tuple(fault.passes)
    stops = stops_after(stop_of(fault.module))
    return tuple(step for stop in stops for step in passes_to(stop, fault.choices))


def before_fault(fault: CompilerFault) -> Moment | None:
    """The module before the pass that fails in the same way again; None where none does."""
    tracing = _Tracing()
    module = fault.module.clone()
    try:
        if fault.passes is None:
            fixed(module, fault.choices, tracing)
        for step in fault.passes or ():
            tracing.apply(step, Context(), module)
            module.verify()
    except Exception as error:
        return tracing.last if is_same(error, fault.__cause__) else None
    return None


def is_same(error: BaseException, other: BaseException | None) -> bool:
    """Whether two errors are of one kind."""
    return type(error) is type(other) and str(error).splitlines()[:1] == str(other).splitlines()[:1]


class _Tracing(Run):
    """A run that keeps the module before the last pass."""

    last: Moment | None = None

    def apply(self, step: ModulePass, context: Context, module: ModuleOp) -> None:
        self.last = Moment(module.clone(), (step,))
        super().apply(step, context, module)
