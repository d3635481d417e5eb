"""SHA-256 of the executables of the zoo: what a change that means to change nothing must leave as it was.

    python benchmarks/sums.py [NETWORK ...] [--targets default edge] > before
    python benchmarks/sums.py [NETWORK ...] [--targets default edge] --against before

Each network is compiled in f16 with the defaults; the sum is over the names and bytes of its folder's files.
With `--against`, exits with 1 and names the cases that differ.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from frustum.passes import zoo

FRUSTUM = [sys.executable, "-m", "frustum.runtime.tools.cli"]


def folder_sum(folder: Path) -> str:
    """One sum of all files below a folder, by path and content."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        total.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def compiled_sum(network: str, target: str) -> str:
    """The sum of a network's executable folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "executable"
        command = [*FRUSTUM, "compile", f"zoo:{network}", "--no-cache", "--target", target]
        command += ["--dtype", "f16", "-o", folder]
        subprocess.run(command, check=True, capture_output=True)
        return folder_sum(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=list(zoo.ZOO))
    parser.add_argument("--targets", nargs="+", default=["default", "edge"])
    parser.add_argument("--against", type=Path, help="a file that this script printed")
    given = parser.parse_args()
    lines = given.against.read_text().splitlines() if given.against else []
    before = dict(line.rsplit(" ", 1) for line in lines)
    differ = []
    for case in (f"{n} {t}" for n in given.networks for t in given.targets):
        started = time.perf_counter()
        found = compiled_sum(*case.split())
        print(case, found, flush=True)
        print(f"  {time.perf_counter() - started:.1f} s", file=sys.stderr)
        if before.get(case, found) != found:
            differ.append(case)
    if differ:
        print("differ:", ", ".join(differ), file=sys.stderr)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
