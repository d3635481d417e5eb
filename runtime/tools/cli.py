"""frustum: compile neural networks, run them on an emulated accelerator.

Exit codes: 0 good, 1 internal error (a reproducer is written), 2 bad usage or bad input, 3 numbers differ,
4 does not fit the target, 5 `diff --fail-on` is met, 130 interrupted.  Every error is one line on stderr for each
problem; FRUSTUM_DEBUG=1 shows tracebacks.

What can be typed is declared in runtime/model/options.py; a command's module is loaded when it runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from frustum.dialects.loops import TIMES
from frustum.runtime.compatibility import warn_outside_range
from frustum.runtime.failures import (
    BAD_INPUT,
    GOOD,
    INTERNAL_ERROR,
    INTERRUPTED,
    CompilerFault,
    exit_code_of,
    message_of,
    say,
)  # fmt: skip
from frustum.runtime.garbage import collect_rarely
from frustum.runtime.model.options import (
    CompileOptions,
    InspectOptions,
    RunOptions,
    TargetsOptions,
    WarmUpOptions,
    add_options,
    flag_of,
    options_from,
    options_of,
)  # fmt: skip
from frustum.runtime.report.terminal import show
from frustum.runtime.study.options import (
    CompareOptions,
    CurveOptions,
    DiffOptions,
    ExplainOptions,
    ExploreOptions,
    PlanOptions,
)  # fmt: skip

PIPELINE = "--pipeline"
SHELLS = ("bash", "zsh", "fish")
BARE = {flag_of(each): said.bare for each, said in options_of(RunOptions) if said.bare}
COMMANDS: dict[str, tuple[type[Any], str]] = {
    "run": (RunOptions, "compile (or load), emulate, report"),
    "compile": (CompileOptions, "write the executable and manifest.json to a folder"),
    "inspect": (InspectOptions, "what is in an executable, a compiled folder, a model"),
    "plan": (PlanOptions, "the plan as a tree, with what each node moves and holds"),
    "curve": (CurveOptions, "DRAM bytes against SRAM capacity"),
    "explore": (ExploreOptions, "sweep keys of the target and options, keep the Pareto front"),
    "explain": (ExplainOptions, "why the plan is as it is, with other ways counted beside it"),
    "compare": (CompareOptions, "published figures beside ours, the bound and the source"),
    "diff": (DiffOptions, "what changed between two reports, unit by unit"),
    "targets": (TargetsOptions, "list the shipped targets, print one, or check a file"),
    "warm-up": (WarmUpOptions, "compile the emulator's loops now"),
}
"""Options, whose docstring is the description, and help.  Each is a module beside this one (`_` for `-`), with
`main(options) -> exit code`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; the exit code."""
    words, subject = list(sys.argv[1:] if arguments is None else arguments), "frustum"
    if arguments is None:
        collect_rarely()
    try:
        typed = _typed(words)
        subject, command = typed.get("model", subject), typed.pop("command")
        options = options_from(COMMANDS[command][0], typed)
        warn_outside_range()
        TIMES.announce = say
        code: int = import_module(f"frustum.runtime.tools.{command.replace('-', '_')}").main(options)
        show("")
        return code
    except BrokenPipeError:  # `frustum inspect ... | head` is no error; keep Python from flushing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except KeyboardInterrupt:
        say("frustum: interrupted")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("FRUSTUM_DEBUG") == "1":
            traceback.print_exc()
        return _failed(error, words, subject)


# --- what can be typed -------------------------------------------------------------------------------------


def _typed(words: Sequence[str]) -> dict[str, Any]:
    """The command and the options that are said; what --help and --version print is through before they end it.

    SystemExit with code 2 and one line on stderr where the words are wrong.
    """
    try:
        return vars(_parser().parse_args(_joined(words)))
    except SystemExit:
        show("")
        raise


def _joined(words: Sequence[str]) -> list[str]:
    """The words with `--pipeline` and what is behind it as one: edits may begin with a minus, as options do; and flags
    that may stand alone with what they say then: the word behind them is not theirs."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == PIPELINE:
            found[-1] += f"={word}"
        else:
            found.append(f"{word}={BARE[word]}" if word in BARE else word)
    return found


def _parser() -> _Parser:
    parser = _Parser(
        prog="frustum", description="Compile neural networks, and run them on an emulated accelerator."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print versions and exit")
    parser.add_argument(
        "--print-completion", action=_Completion, choices=SHELLS, help="print what completes words in this shell"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (kind, said) in COMMANDS.items():
        add_options(commands.add_parser(name, help=said, description=kind.__doc__), kind)
    return parser


class _Parser(argparse.ArgumentParser):
    """Errors in one line, options in full; what is not said is left out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **settings)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments") and message.endswith(".onnx"):
            message += "; a file to check against is --check=FILE.onnx, in one word"
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} ({self.prog} --help shows what there is)\n")


class _Version(argparse.Action):
    """Looks versions up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        show(f"frustum {version('frustum')}, xDSL {version('xdsl')}, onnx {version('onnx')}\n")
        parser.exit()


class _Completion(argparse.Action):
    """Loads what knows the shells only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, values: Any, *__: object) -> None:
        from frustum.runtime.completion import script

        show(script(parser, values))
        parser.exit()


# --- what went wrong ---------------------------------------------------------------------------------------


def _failed(error: Exception, words: Sequence[str], subject: str) -> int:
    """Say what went wrong; the exit code."""
    code = exit_code_of(error)
    if code is not None:
        say(message_of(error, subject))
        return code
    fault = error if isinstance(error, CompilerFault) else None
    if fault is not None and isinstance(fault.__cause__, Exception):
        error = fault.__cause__
    kept = _write_reproducer(error, words, fault)
    where = f"a reproducer is in {kept}" if kept else "no reproducer could be written"
    first_line = (str(error).splitlines() or [""])[0]
    say(
        f"frustum: internal error: {type(error).__name__}: {first_line} ({where}; FRUSTUM_DEBUG=1 shows the traceback)"
    )
    return INTERNAL_ERROR


def _write_reproducer(error: Exception, words: Sequence[str], fault: CompilerFault | None) -> Path | None:
    """A file from which the error can be reported: command, versions, traceback, and the module that `frustum-opt` runs
    to the same error.

    It lies in a new folder that only the user can enter.  Its location; None where it cannot be written.
    """
    comments = _circumstances(error, words)
    for parent in (tempfile.gettempdir(), str(Path.cwd())):
        try:
            file = Path(tempfile.mkdtemp(prefix="frustum-crash-", dir=parent)) / "reproducer.mlir"
            if fault is None:
                file.write_text("\n".join(comments) + "\n", encoding="utf-8", errors="backslashreplace")
            else:
                from frustum.runtime.tools.reproducer import write_module_before_fault

                write_module_before_fault(file, fault, comments)
        except OSError:
            continue
        return file
    return None


def _circumstances(error: BaseException, words: Sequence[str]) -> list[str]:
    """What to know beside the module, as comments of MLIR text."""
    lines = [
        f"frustum {shlex.join(words)}",
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


if __name__ == "__main__":
    sys.exit(main())
