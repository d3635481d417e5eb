"""The figures in the pages: written from one file, and of README those of this code."""

import re

import figures
import pytest

from frustum.runtime.tools import cli


@pytest.mark.slow
@pytest.mark.parametrize("page", figures.PAGES)
def test_pages_show_what_was_measured(page: str) -> None:
    text = (figures.ROOT / page).read_text()
    assert text == figures.written(text, figures.kept()), f"{page}: make figures, or figures.py --pages"


def test_every_section_is_in_a_page_and_every_page_names_sections_that_exist() -> None:
    texts = {page: (figures.ROOT / page).read_text() for page in figures.PAGES}
    shown = [name for text in texts.values() for name in re.findall(r"<!-- figures ([\w-]+) -->", text)]
    assert sorted(shown) == sorted(figures.SECTIONS)
    assert all(text.count("<!-- figures ") == text.count("<!-- /figures -->") for text in texts.values())
    light = {name for name, section in figures.SECTIONS.items() if not section.heavy}
    assert light <= set(figures.kept()) <= set(figures.SECTIONS)


def test_what_is_written_in_a_page_is_read_again() -> None:
    page = "before\n<!-- figures one -->\nold\n<!-- /figures -->\nbetween\n<!-- figures two -->\n<!-- /figures -->\n"
    stamp = {"commit": "abc", "date": "2000-01-01"}
    found = figures.written(
        page, {"one": {**stamp, "text": "u"}, "two": {**stamp, "head": ["a", "b"], "rows": [["1", "2"]]}}
    )
    line = "Measured on 2000-01-01 at commit abc.\n"
    assert found == (
        f"before\n<!-- figures one -->\n```\nu\n```\n{line}<!-- /figures -->\nbetween\n"
        f"<!-- figures two -->\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n{line}<!-- /figures -->\n"
    )
    assert figures.written(page, {}).count("Not measured yet: `python benchmarks/figures.py ") == 2


@pytest.mark.slow
def test_readme_shows_units_bytes_and_cycles_of_this_code(capsys: pytest.CaptureFixture[str]) -> None:
    """All lines of the report but those of seconds and of the comparison, which mode timing does not have."""
    words = [word for word in figures.MAIN_JOB if word != "--check"]
    assert cli.main([*words, "--mode", "timing"]) == 0
    found = _counted(capsys.readouterr().out)
    assert "layers" in found and "cycles" in found and "DRAM " in found
    assert found == _counted(figures.kept()["main-job"]["text"]), "README is of another code: make figures"


def _counted(text: str) -> str:
    return re.split(r"\n(?:Check|Took) ", text.strip("\n"))[0].rstrip("\n")
