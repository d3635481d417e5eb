"""`make compat`: the quick tests with the least and with the newest versions that `pyproject.toml` allows.

The least of all with the least Python; the newest with every Python of the range that this machine has.  Each gets an
environment of its own below `.compat/`, kept for the next time.  Ends with a line for each, and 1 where one failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENTS = ROOT / ".compat"


@dataclass(frozen=True)
class Case:
    """A Python, and which end of the ranges."""

    python: str
    path: str
    end: str

    @property
    def name(self) -> str:
        return f"{self.python}-{self.end}"

    @property
    def bin(self) -> Path:
        return ENVIRONMENTS / self.name / "bin"

    def install(self) -> None:
        """The packages of this end, and Frustum as an editable installation."""
        if not self.bin.exists():
            run([self.path, "-m", "venv", str(self.bin.parent)])
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        limits = ENVIRONMENTS / f"{self.name}.txt"
        limits.write_text("\n".join(least() if self.end == "least" else []))
        run([*pip, "--upgrade", "--constraint", str(limits), "--editable", ".[test]"])

    def test(self, more: list[str]) -> bool:
        """Whether the quick tests pass."""
        command = [str(self.bin / "python"), "-m", "pytest", "-q", "-n", "auto", "-m", "not slow", *more]
        return subprocess.run(command, cwd=ROOT).returncode == 0


def least() -> list[str]:
    """`name==version` for the lower end of each dependency."""
    pairs = (re.match(r"([\w.]+)>=([\d.]+)", each) for each in PROJECT["dependencies"])
    return [f"{pair[1]}=={pair[2]}" for pair in pairs if pair]


def pythons() -> dict[str, str]:
    """The interpreters on this machine within `requires-python`, the least first: name and path."""
    low, high = (int(each) for each in re.findall(r"3\.(\d+)", PROJECT["requires-python"]))
    found = {name: path_of(name) for name in (f"python3.{minor}" for minor in range(low, high))}
    return {name: path for name, path in found.items() if path}


def path_of(python: str) -> str | None:
    """The first that starts: of the path, where a version manager's stand-in may have none behind it, then pyenv's."""
    minor = python.removeprefix("python")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(python), *sorted(map(str, root.glob(f"versions/{minor}.*/bin/{python}")))]
    return next((path for path in candidates if path and starts(path)), None)


def starts(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def run(command: list[str]) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases to run, as in python3.11-least,python3.13-newest")
    options, more = parser.parse_known_args()
    found = pythons()
    cases = [Case(*next(iter(found.items())), "least"), *(Case(*python, "newest") for python in found.items())]
    if options.only:
        cases = [case for case in cases if case.name in options.only.split(",")]
    ENVIRONMENTS.mkdir(exist_ok=True)
    lines = []
    for case in cases:
        case.install()
        started = time.perf_counter()
        good = case.test(more)
        lines.append((good, f"{case.name}: {'good' if good else 'FAILED'}, {time.perf_counter() - started:.0f} s"))
    print(*(line for _, line in lines), sep="\n")
    return 0 if lines and all(good for good, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
