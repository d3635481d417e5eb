"""What pages and comments point to is there: files, sections of pages, and nothing outside of the repository."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
CODE = [path for folder in ("dialects", "passes", "backend", "runtime") for path in (ROOT / folder).rglob("*.py")]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
PAGE = re.compile(r"\b((?:[\w-]+/)*[\w-]+\.md)\b(?:,? \"([^\"]+)\")?")


def headings(page: Path) -> set[str]:
    return {line.lstrip("#").strip().replace("`", "") for line in page.read_text().splitlines() if line.startswith("#")}


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_pages_that_code_cites_exist() -> None:
    """A page is cited by its path from the root, with the heading in quotes if one is named."""
    wrong = []
    for file in CODE:
        for name, heading in PAGE.findall(re.sub(r"\s+", " ", file.read_text())):
            page = ROOT / name
            if not page.is_file() or (heading and heading not in headings(page)):
                wrong.append(f"{file.relative_to(ROOT)}: {name} {heading}")
    assert wrong == []


FILE = re.compile(r"`((?:dialects|passes|backend|runtime|test|benchmarks|examples)/[\w./]+)`")


def test_files_that_pages_name_exist() -> None:
    """All but those that a recipe makes, and the column of old paths."""
    wrong = []
    for page in [p for p in PAGES if p.name != "adding.md"]:
        text = page.read_text()
        now, _, moved = text.partition("## Old paths and new ones")
        new = [row.split(" | ")[-1] for row in moved.splitlines() if row.startswith("| `")]
        wrong += [f"{page.name}: {file}" for file in FILE.findall(now + "\n".join(new)) if not (ROOT / file).exists()]
    assert wrong == []


MEASURED = re.compile(r"[\d.]+ % (?:more|fewer) cycles|\d k cycles|\d MB in \d|% of the time of a compilation")
WRITTEN = re.compile(r"<!-- figures .*?<!-- /figures -->|^```.*?^```", re.DOTALL | re.MULTILINE)
DIARY = ("decisions.md", "CHANGELOG.md")
"""Why things are as they are, with what was measured when they were decided."""


def test_no_measured_figure_of_a_page_is_typed_by_hand() -> None:
    pages = [page for page in PAGES if page.name not in DIARY]
    found = {page.name: MEASURED.findall(WRITTEN.sub("", page.read_text())) for page in pages}
    assert {name: figures for name, figures in found.items() if figures} == {}
