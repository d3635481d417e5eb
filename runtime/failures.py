"""What can go wrong in a command, and the exit code and words it ends with."""

from __future__ import annotations

import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from frustum.backend.pipeline import Choices

GOOD, INTERNAL_ERROR, BAD_INPUT, NUMBERS_DIFFER, DOES_NOT_FIT = range(5)
INTERRUPTED = 130
"""What shells give a program that SIGINT ended."""

CODES = {
    "frustum.runtime.failures:UsageError": BAD_INPUT,
    "frustum.runtime.failures:Differs": NUMBERS_DIFFER,
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


def write_reproducer(
    error: BaseException, arguments: Sequence[str], fault: CompilerFault | None = None
) -> Path | None:
    """A file from which the error can be reported: command, versions, traceback, and the module that `frustum-opt` runs
    to the same error.

    It lies in a new folder that only the user can enter.  Its location; None where it cannot be written.
    """
    for parent in (tempfile.gettempdir(), str(Path.cwd())):
        try:
            file = Path(tempfile.mkdtemp(prefix="frustum-crash-", dir=parent)) / "reproducer.mlir"
            _write_reproducer(file, _circumstances(error, arguments), fault)
        except OSError:
            continue
        return file
    return None


def _write_reproducer(file: Path, circumstances: Sequence[str], fault: CompilerFault | None) -> None:
    if fault is None:
        file.write_text("\n".join(circumstances) + "\n", encoding="utf-8", errors="backslashreplace")
        return
    from frustum.runtime.tools.reproducer import write_module_before_fault

    write_module_before_fault(file, fault, circumstances)


def _circumstances(error: BaseException, arguments: Sequence[str]) -> list[str]:
    """What to know beside the module, as comments of MLIR text."""
    lines = [
        f"frustum {shlex.join(arguments)}",
        f"Python {platform.python_version()} on {platform.platform()}, {', '.join(_versions())}",
        *"".join(traceback.format_exception(error)).splitlines(),
    ]
    return [f"// {line}".rstrip() for line in lines]


def _versions() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("frustum", "xdsl", "numpy", "onnx", "onnxruntime"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return found


def say(text: str) -> None:
    """One message on stderr."""
    print(text, file=sys.stderr, flush=True)
