"""frustum: compile neural networks, run them on an emulated accelerator.

Exit codes: 0 good, 1 internal error (a reproducer is written), 2 bad usage or bad input, 3 numbers differ,
4 does not fit the target.  Every error is one line on stderr for each problem; FRUSTUM_DEBUG=1 shows tracebacks.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from frustum.dialects.loops import TIMES
from frustum.runtime.compatibility import warn_outside_range
from frustum.runtime.failures import (
    GOOD,
    INTERNAL_ERROR,
    INTERRUPTED,
    CompilerFault,
    exit_code_of,
    message_of,
    say,
    write_reproducer,
)
from frustum.runtime.report.terminal import show
from frustum.runtime.tools.arguments import parse_arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; the exit code."""
    words, subject = list(sys.argv[1:] if arguments is None else arguments), "frustum"
    try:
        options = _parsed(words)
        subject = getattr(options, "model", subject)
        warn_outside_range()
        TIMES.announce = say
        name = options.command.replace("-", "_")
        code: int = import_module(f"frustum.runtime.tools.commands.{name}").main(options)
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


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options; what --help and --version print is through before they end the command."""
    try:
        return parse_arguments(words)
    except SystemExit:
        show("")
        raise


def _failed(error: Exception, words: Sequence[str], subject: str) -> int:
    """Say what went wrong; the exit code."""
    code = exit_code_of(error)
    if code is not None:
        say(message_of(error, subject))
        return code
    fault = error if isinstance(error, CompilerFault) else None
    if fault is not None and isinstance(fault.__cause__, Exception):
        error = fault.__cause__
    kept = write_reproducer(error, words, fault)
    where = f"a reproducer is in {kept}" if kept else "no reproducer could be written"
    first_line = (str(error).splitlines() or [""])[0]
    say(
        f"frustum: internal error: {type(error).__name__}: {first_line} ({where}; FRUSTUM_DEBUG=1 shows the traceback)"
    )
    return INTERNAL_ERROR


if __name__ == "__main__":
    sys.exit(main())
