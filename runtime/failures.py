# Tests: test/runtime/tools/test_cli_errors.py
"""What can go wrong in a command, and the exit code and words it ends with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from frustum.backend.pipeline import Choices

GOOD, INTERNAL_ERROR, BAD_INPUT, NUMBERS_DIFFER, DOES_NOT_FIT, WORSE = range(6)
INTERRUPTED = 130
"""What shells give a program that SIGINT ended."""

CODES = {
    "frustum.runtime.failures:UsageError": BAD_INPUT,
    "frustum.runtime.failures:Differs": NUMBERS_DIFFER,
    "frustum.runtime.failures:WorseThanAllowed": WORSE,
    "frustum.passes.errors:ModelError": BAD_INPUT,
    "frustum.dialects.target:TargetError": BAD_INPUT,
    "frustum.passes.fuse.policy:PolicyError": BAD_INPUT,
    "frustum.backend.file.container:ExecutableError": BAD_INPUT,
    "frustum.runtime.machine:InputError": BAD_INPUT,
    "frustum.runtime.host.host_model:HostError": BAD_INPUT,
    "frustum.runtime.host.oracle:OracleError": BAD_INPUT,
    "frustum.runtime.pipeline_text:PipelineError": BAD_INPUT,
    "frustum.dialects.isa.tables.stored_table:TableError": BAD_INPUT,
    "frustum.runtime.diagnostics:Reported": BAD_INPUT,
    "frustum.dialects.target.fit:DoesNotFit": DOES_NOT_FIT,
    "builtins:MemoryError": BAD_INPUT,
}
"""Errors that speak to the user.  By name, so that none of their modules is loaded for it."""


class UsageError(Exception):
    """What was asked for cannot be done; the message is ready to print."""


class Differs(Exception):
    """Outputs are further from the reference than they may be; the message is ready to print."""


class WorseThanAllowed(Exception):
    """A condition of `frustum diff --fail-on` is met; the message is ready to print."""


class CompilerFault(Exception):
    """An internal error of the compiler (its cause), with the module that it was given, and how that was compiled: by
    the default pipeline with these choices, or by these passes."""

    def __init__(self, module: ModuleOp, choices: Choices, passes: Sequence[ModulePass] | None) -> None:
        super().__init__("the compiler failed")
        self.module, self.choices, self.passes = module, choices, passes


def exit_code_of(error: BaseException) -> int | None:
    """The exit code of an error that speaks to the user; None for an internal one."""
    names = (f"{kind.__module__}:{kind.__qualname__}" for kind in type(error).__mro__)
    return next((CODES[name] for name in names if name in CODES), None)


def message_of(error: BaseException, subject: str = "frustum") -> str:
    """One line for each problem, each with the word `error:` in it; `subject` is what it is about, if nothing says."""
    text = str(error)
    if text.startswith("error:"):
        return f"frustum: {text}"
    return text if "error:" in text else f"{subject}: error: {text}"


def say(text: str) -> None:
    """One message on stderr."""
    print(text, file=sys.stderr, flush=True)
