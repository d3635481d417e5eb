"""The pages of docs/ as a site: it builds without a warning, and its links lead to what is there."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).resolve().parents[2]
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (the extra `docs`)")


class Page(HTMLParser):
    """Names of places in a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.names.add(value)
            elif name in ("href", "src") and value and not re.match(r"\w+:", value):
                self.links.append(value)


def build(source: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(to)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_site(site: Path) -> None:
    pages = (page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md"))
    assert [str(page) for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


def test_links_of_the_site_lead_to_what_is_there(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            file, place = urldefrag(unquote(link))
            there = (path.parent / file).resolve() if file.partition("?")[0] else path
            there = there.with_name(there.name.partition("?")[0])
            if not there.exists() or (place and there in pages and place not in pages[there].names):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == []


@pytest.mark.slow
def test_a_page_of_no_contents_and_a_link_to_nothing_are_errors(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text('extensions = ["myst_parser"]\nmyst_heading_anchors = 4\n')
    (tmp_path / "index.md").write_text("# Here\n\n[there](there.md#nothing)\n")
    (tmp_path / "there.md").write_text("# There\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    assert "there.md" in done.stderr and "nothing" in done.stderr and "toctree" in done.stderr
