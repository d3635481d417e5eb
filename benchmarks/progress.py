"""Whether the time left that `frustum run` shows is true: what stands on the terminal a quarter, half and three
quarters of the way, beside what was left then, in seconds of CPU, cold and with a warm cache.

    python benchmarks/progress.py [zoo:NAME | FILE.onnx ...]

`--one OUT WORDS...`: a single `frustum WORDS`, whose pairs are written to a file.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

POINTS = (0.25, 0.5, 0.75)
TRUE = 0.3
"""By how much of what is left the time shown may differ."""
MODELS = ("zoo:squeezenet", "zoo:inception_v1", "zoo:resnet50")
MODES = ("full", "timing")
LEFT = re.compile(r"(\w+) .* ([0-9.]+) s left$")


class Terminal(io.StringIO):
    """Keeps when each time left was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[float, float, str]] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if found := LEFT.search(text):
            self.shown.append((time.process_time(), float(found[2]), found[1]))
        return len(text)


def watch(out: str, words: list[str]) -> int:
    """One run of the command, whose clock is that of the CPU."""
    from frustum.runtime import course
    from frustum.runtime.tools.cli import main

    sys.stderr = terminal = Terminal()
    steps: list[tuple[float, str, float]] = []
    begin = course.Course._begin

    def noted(self: course.Course, step: str) -> None:
        steps.append((time.process_time(), self._step, self._cost(self._step) if self._step in course.COSTS else 0))
        begin(self, step)

    course.Course._begin = noted  # type: ignore[method-assign]
    course.WALL_CLOCK = time.process_time
    code = main(words)
    found = {"seconds": time.process_time(), "shown": terminal.shown, "steps": steps}
    Path(out).write_text(json.dumps(found))
    return code


def shown_by(words: list[str], cache: str) -> dict[float, tuple[float, float]]:
    """By share of the run that is over: the seconds shown as left, and those that were left."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--one", file.name, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"FRUSTUM_CACHE": cache})
        found = json.loads(Path(file.name).read_text())
    result = {}
    for point in POINTS:
        now = point * found["seconds"]
        _, left, _ = max((each for each in found["shown"] if each[0] <= now), default=(0.0, 0.0, ""))
        result[point] = (left, found["seconds"] - now)
    return result


def is_true(shown: float, left: float) -> bool:
    """Whether the time shown is what was left."""
    return abs(shown - left) <= TRUE * left


def table(models: list[str]) -> str:
    """All models, cold and warm, in each mode."""
    lines = ["| model | mode | cache | seconds | 25 % | 50 % | 75 % |", "|---|---|---|---|---|---|---|"]
    for model, mode in product(models, MODES):
        with tempfile.TemporaryDirectory() as cache:
            for state in ("cold", "warm"):
                found = shown_by(["run", model, "--mode", mode], cache)
                cells = [f"{left:.1f} of {true:.1f} ({left / true - 1:+.0%})" for left, true in found.values()]
                seconds = found[0.5][1] * 2
                lines.append(f"| {model} | {mode} | {state} | {seconds:.1f} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.exit(watch(sys.argv[2], sys.argv[3:]))
    table(sys.argv[1:] or list(MODELS))
