"""The picture of the page that README opens with: `python examples/page_picture.py docs/pictures/page.png`.

Needs Debian's `chromium`.  The page is that of a run of `zoo:squeezenet` in f16 on `edge`; a browser draws letters as
it has them, so no test compares the picture.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from frustum.runtime.tools.cli import main

MODEL, TARGET, DTYPE = "zoo:squeezenet", "edge", "f16"
WINDOW = "1440,1000"


def draw(file: Path) -> None:
    """Run the model, and let the browser draw the page; SystemExit where there is no browser."""
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("error: there is no chromium on the path: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        how = ["--target", TARGET, "--dtype", DTYPE, "--mode", "timing", "--quiet"]
        if code := main(["run", MODEL, *how, "--html", str(page)]):
            sys.exit(code)
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu",
                   f"--user-data-dir={folder}/profile", f"--window-size={WINDOW}", f"--screenshot={file.resolve()}",
                   page.as_uri()]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
