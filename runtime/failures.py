# Tests: test/runtime/tools/test_cli_errors.py
"""What can go wrong in a command, and the exit code and words it ends with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frustum.dialects.errors import Error

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from frustum.backend.pipeline import Choices

GOOD, INTERNAL_ERROR, BAD_INPUT, NUMBERS_DIFFER, DOES_NOT_FIT, WORSE = range(6)
NO_MEMORY = "this computer has not enough memory for it"
"""Where Python does not say more."""
INTERRUPTED = 130
"""What shells give a program that SIGINT ended."""


class UsageError(Error):
    """What was asked for cannot be done; the message is ready to print."""


class Differs(Error):
    """Outputs are further from the reference than they may be; the message is ready to print."""

    exit_code = NUMBERS_DIFFER


class WorseThanAllowed(Error):
    """A condition of `frustum diff --fail-on` is met; the message is ready to print."""

    exit_code = WORSE


class CompilerFault(Exception):
    """An internal error of the compiler (its cause), with the module that it was given, and how that was compiled: by
    the default pipeline with these choices, or by these passes."""

    def __init__(self, module: ModuleOp, choices: Choices, passes: Sequence[ModulePass] | None) -> None:
        super().__init__("the compiler failed")
        self.module = module
        self.choices = choices
        self.passes = passes

    def __str__(self) -> str:
        cause = self.__cause__
        return super().__str__() + (f": {type(cause).__name__}: {cause}" if cause is not None else "")


def exit_code_of(error: BaseException) -> int | None:
    """The exit code of an error that speaks to the user; None for an internal one."""
    if isinstance(error, Error):
        return error.exit_code
    return BAD_INPUT if isinstance(error, MemoryError) else None


def message_of(error: BaseException, subject: str = "frustum") -> str:
    """One line for each problem, each with the word `error:` in it; `subject` is what it is about, if nothing says."""
    text = str(error) or (NO_MEMORY if isinstance(error, MemoryError) else type(error).__name__)
    if text.startswith("error:"):
        return f"frustum: {text}"
    return text if "error:" in text else f"{subject}: error: {text}"


def say(text: str) -> None:
    """One message on stderr."""
    print(text, file=sys.stderr, flush=True)
