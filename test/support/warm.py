"""A warm process that runs lines such as `frustum-opt a.mlir | filecheck a.mlir`, each in a forked child.

Starting Python and importing xDSL takes longer than most tests; here it happens once.  The warm process has
one thread, so that it can fork safely, and every line gets a child of its own, so that nothing leaks.
"""

import importlib
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

LIMIT_SECONDS = 60

# command: where its `main(arguments)` is, and whether the arguments start with the command's own name
TOOLS = {
    "frustum-opt": ("frustum.runtime.tools.opt:main", False),
    "xdsl-opt": ("warm:xdsl_opt", False),
    "filecheck": ("filecheck.main:main", True),
}
PRELOAD = ("xdsl.xdsl_opt_main", "xdsl.dialects.test", "xdsl.dialects.func", "xdsl.transforms.canonicalize")


@dataclass(frozen=True)
class Command:
    """One tool of a pipe: `not` in front of it, `2>&1` behind it."""

    words: list[str]
    fails: bool = False
    merges: bool = False


class Warm:
    """The warm process, started on first use."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of processor time, that its children took
        self._process: subprocess.Popen[str] | None = None

    def run(self, pipes: list[list[Command]], cwd: str) -> tuple[bool, str]:
        """Whether every command of every pipe ends as it should, and what they wrote."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"cwd": cwd, "pipes": [[vars(command) for command in pipe] for pipe in pipes]}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        passed, log, seconds = json.loads(self._process.stdout.readline())
        self.seconds += seconds
        return passed, log

    def close(self) -> None:
        """End the warm process."""
        if self._process is not None:
            self._process.communicate()

    @staticmethod
    def _start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-W", "error::DeprecationWarning", __file__]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def xdsl_opt(arguments: list[str]) -> None:
    from xdsl.xdsl_opt_main import xDSLOptMain

    xDSLOptMain(args=arguments).run()


def serve() -> None:
    """Answer requests, one a line, until the input ends."""
    for name in PRELOAD:
        importlib.import_module(name)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what tools print past sys.stdout must not mix with the answers
        for line in sys.stdin:
            print(_in_child(json.loads(line)), file=answers, flush=True)


def _in_child(request: dict) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_SECONDS)
        os.chdir(request["cwd"])
        with os.fdopen(writing, "w") as answer:
            json.dump(_run([[Command(**c) for c in pipe] for pipe in request["pipes"]]), answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    _, status, used = os.wait4(child, 0)
    result = json.loads(answer or json.dumps([False, f"died with status {status} (-14: over {LIMIT_SECONDS} s)"]))
    return json.dumps([*result, used.ru_utime + used.ru_stime])


def _run(pipes: list[list[Command]]) -> tuple[bool, str]:
    log = []
    passed = True
    for pipe in pipes:
        text = ""
        for command in pipe:
            code, text, errors = _run_one(command, text)
            passed &= (code != 0) == command.fails
            log.append(f"$ {' '.join(command.words)}  -> {code}\n{errors}")
        log.append(text)
    return passed, "\n".join(filter(None, log))


def _run_one(command: Command, given: str) -> tuple[int, str, str]:
    place, with_name = TOOLS[command.words[0]]
    module, name = place.split(":")
    output, errors = io.StringIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    with redirect_stdout(output), redirect_stderr(output if command.merges else errors):
        try:
            main = getattr(importlib.import_module(module), name)
            code = main(command.words if with_name else command.words[1:]) or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
    return code, output.getvalue(), errors.getvalue()


if __name__ == "__main__":
    sys.modules["warm"] = sys.modules["__main__"]
    serve()
