"""Run the code blocks of Markdown pages and write what they print: `python examples/pages.py [PAGE.md ...]`.

Without pages those of PAGES.  A page is worked through from top to bottom in a temporary folder of its own:

- a block in `sh` or `python` is run.  Python blocks of a page share their names; a command that fails ends the page
- a block in `text` right behind holds what it prints, both streams, and is written here
- any other block behind a line that ends with a name and a colon (as in "`chip.yaml`:") is a file: it is put there
- a block behind `<!-- not run: why -->` is left alone, as are blocks in other languages
- a page with `<!-- first: 2 blocks of tutorial.md -->` begins where these blocks of that page beside it end

Times, versions and rounding errors are those of one machine: an output that differs in nothing else stays as it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]

BLOCK = re.compile(
    r"(?:^(?P<before>[^\n]*)\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$"
    r"(?P<printed>\n+^```text\n(?P<output>.*?)^```$)?",
    re.M | re.S,
)
FILE = re.compile(r"`(?P<name>[\w./-]+)`:\s*$")
FIRST = re.compile(r"^<!-- first: (?P<number>\d+) blocks of (?P<page>\S+) -->$", re.M)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*$")
OF_A_MACHINE = [
    (re.compile(r"^Took .*$", re.M), "Took"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:s|seconds)\b"), "TIME"),
    (re.compile(r"\b(?:onnxruntime|xdsl|numpy) \d[\w.]*"), "VERSION"),
    (re.compile(r"^(  \S+)(?: +(?:0|\d(?:\.\d+)?e-\d\d)){2}(?=  )", re.M), r"\1 ERRORS"),
    (re.compile(r"\b\d(?:\.\d+)?e(?:-\d\d|\+00)\b"), "ERROR"),
    (re.compile(r"frustum-(?:crash|check)-\w+"), "FOLDER"),
]
"""What another machine prints otherwise."""
SITE = "site"
"""Where `pip install` of a page puts packages: in its folder."""
LOOPS = re.compile(r"^compiling the emulator's loops.*\n", re.M)
"""What is said once after an installation."""


class PageError(Exception):
    """A block of a page fails."""


def same(one: str, other: str) -> bool:
    """Whether outputs differ in nothing but what machines differ in."""
    for pattern, word in OF_A_MACHINE:
        one, other = pattern.sub(word, one), pattern.sub(word, other)
    return one == other


def rewritten(text: str, name: str = "page", beside: Path = ROOT) -> str:
    """The page with the outputs of its blocks; PageError names the line of a block that fails.

    `beside` is the folder of the page, from which it names the one whose blocks run before.
    """
    with in_temporary_folder() as folder:
        work = Work(folder)
        if first := FIRST.search(text):
            blocks = list(BLOCK.finditer((beside / first["page"]).read_text()))
            for block in blocks[: int(first["number"])]:
                _printed_by(work, block, first["page"])

        def with_output(block: re.Match[str]) -> str:
            line = text.count("\n", 0, block.start("code")) + 1
            printed = _printed_by(work, block, f"{name}:{line}")
            if printed is None:
                return block[0]
            if block["printed"] is None:
                if printed:
                    raise PageError(f"{name}:{line}: no ```text block behind for what this prints:\n{printed}")
                return block[0]
            if same(printed, block["output"]):
                return block[0]
            return block[0][: block.start("output") - block.start()] + printed + "```"

        return BLOCK.sub(with_output, text)


def _printed_by(work: Work, block: re.Match[str], place: str) -> str | None:
    """What a block prints; None of one that is not run."""
    before = block["before"] or ""
    if NOT_RUN.search(before):
        return None
    if named := FILE.search(before):
        path = work.folder / named["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block["code"])
        return None
    run = {"sh": work.shell, "python": work.python}.get(block["language"])
    if run is None:
        return None
    try:
        said = run(block["code"]).replace(f"{work.folder}/", "").replace(str(work.folder), ".")
        return LOOPS.sub("", said)
    except PageError as error:
        raise PageError(f"{place}: {error}") from error


class Work:
    """The folder of a page, and the names of its Python blocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}

    def python(self, code: str) -> str:
        """What Python code prints."""
        return printed(lambda: exec(compile(code, "<page>", "exec"), self.names))

    def shell(self, code: str) -> str:
        """What commands print: `frustum` and `python FILE` in this process, where nothing is asked of a shell."""
        lines = code.replace("\\\n", " ").splitlines()
        return "".join(self._command(line) for line in lines if line.strip())

    def _command(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        plain = shlex.shlex(line, punctuation_chars="|&;<>()$*`")
        plain.whitespace_split = True
        asks_shell = any(set(word) & set("|&;<>$*`") for word in plain if word[:1] not in "'\"")
        if not asks_shell and not (self.folder / SITE).exists():
            if words[:1] == ["frustum"]:
                return printed(lambda: _frustum(words[1:]))
            if words[:1] == ["python"] and len(words) == 2:
                return printed(lambda: runpy.run_path(words[1], run_name="__main__"))
        command = ["sh", "-e", "-c", line]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._environment()
        )
        if done.returncode:
            raise PageError(f"{line}\nends with exit code {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """Of commands: `python`, `pip`, `frustum` are those that run this; what is installed is gone afterwards."""
        site = str(self.folder / SITE)
        paths = [site, *filter(None, [os.environ.get("PYTHONPATH")])]
        of_pip = {"PIP_TARGET": site, "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **of_pip, "PATH": path, "PYTHONPATH": os.pathsep.join(paths)}


def _frustum(words: Sequence[str]) -> None:
    from frustum.runtime.tools.cli import main

    try:
        code = main(list(words))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    if code:
        raise PageError(f"frustum {shlex.join(words)}\nends with exit code {code}")


def printed(act: Callable[[], object]) -> str:
    """What something prints here, on both streams; PageError with that where it fails."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)

    def text() -> str:
        out.flush()
        return out.buffer.getvalue().decode()  # type: ignore[attr-defined]

    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            act()
        except PageError as error:
            raise PageError(f"{error}\n{text()}") from error
        except Exception as error:
            raise PageError(f"{type(error).__name__}: {error}\n{text()}") from error
    return text()


@contextlib.contextmanager
def in_temporary_folder() -> Iterator[Path]:
    """A folder to work in; what was compiled for a page is taken for its further blocks, and for nobody else."""
    before = os.environ.get("FRUSTUM_CACHE")
    with tempfile.TemporaryDirectory(prefix="frustum-page-") as folder, tempfile.TemporaryDirectory() as cache:
        os.environ["FRUSTUM_CACHE"] = cache
        try:
            with contextlib.chdir(folder):
                yield Path(folder).resolve()
        finally:
            if before is None:
                del os.environ["FRUSTUM_CACHE"]
            else:
                os.environ["FRUSTUM_CACHE"] = before


def main(pages: Sequence[str]) -> int:
    for page in map(Path, pages or PAGES):
        text = page.read_text()
        try:
            new = rewritten(text, str(page), page.resolve().parent)
        except PageError as error:
            print(error, file=sys.stderr)
            return 1
        if new != text:
            page.write_text(new)
            print(f"{page}: outputs written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
