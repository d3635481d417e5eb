"""Blocks of pages are run, and what they print is in the pages (examples/pages.py)."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("pages", ROOT / "examples" / "pages.py")
assert _SPEC is not None and _SPEC.loader is not None
pages = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pages)


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_what_a_page_prints_is_what_its_blocks_print(page):
    text = page.read_text()
    assert pages.rewritten(text, page.name, page.parent) == text, "run `python examples/pages.py`"


def block(language: str, code: str, output: str | None = None) -> str:
    return f"```{language}\n{code}\n```\n" + ("" if output is None else f"\n```text\n{output}```\n")


def test_outputs_are_put_in():
    page = block("python", "x = 3\nprint(x)", "old\n") + "And\n\n" + block("sh", "echo a && echo b >&2", "")
    assert pages.rewritten(page) == page.replace("old\n", "3\n").replace("```text\n```", "```text\na\nb\n```")


def test_blocks_of_a_page_share_names_and_files():
    page = "In `in/a.txt`:\n\n" + block("yaml", "key: 1") + block("python", "from pathlib import Path")
    page += block("python", "x = Path('in/a.txt').read_text()") + block("python", "print(x, end='')", "")
    page += block("sh", "cat in/a.txt", "")
    assert pages.rewritten(page).count("```text\nkey: 1\n```") == 2


def test_a_page_begins_where_another_ends(tmp_path):
    (tmp_path / "one.md").write_text(block("python", "x = 1") + block("python", "x += 1") + block("python", "x = 9"))
    page = "<!-- first: 2 blocks of one.md -->\n\n" + block("python", "print(x)", "")
    assert "```text\n2\n```" in pages.rewritten(page, beside=tmp_path)


@pytest.mark.slow
def test_frustum_runs_with_its_words():
    commands = "frustum inspect 'no such' || echo \"code $?\"", "frustum targets"
    found = pages.rewritten("".join(block("sh", command, "") for command in commands))
    assert "code 2" in found and "edge" in found and "Traceback" not in found


def test_a_page_stays_where_only_a_machine_differs():
    here = "Took import 0.1 s\nerror 1.2e-06, absolute 4.9e-09 against onnxruntime 1.2.3\n1,234 cycles\n"
    there = "Took import 0.3 s, load 1 s\nerror 0.0e+00, absolute 1e-08 against onnxruntime 1.3\n1,234 cycles\n"
    page = block("python", f"print({there!r}, end='')", here)
    assert pages.rewritten(page) == page
    older = page.replace("1,234 cycles\n```", "1,230 cycles\n```")
    assert pages.rewritten(older) != older


def test_what_is_not_run_is_left_alone():
    page = "<!-- not run: it takes a day -->\n" + block("sh", "exit 1", "as it was\n") + block("text", "free")
    assert pages.rewritten(page) == page


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (block("python", "\nraise ValueError('no')"), "page:2: ValueError: no"),
        (block("sh", "exit 4"), "ends with exit code 4"),
        (block("sh", "frustum run nothing.onnx", ""), "ends with exit code 2"),
        (block("sh", "echo said"), "no ```text block behind for what this prints:\nsaid"),
    ],
)
def test_what_fails_is_named(code, said):
    with pytest.raises(pages.PageError) as error:
        pages.rewritten(code)
    assert said in str(error.value)


def test_the_command_names_the_pages_it_writes(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(block("python", "print(1)", ""))
    assert pages.main([str(page)]) == 0
    assert "written anew" in capsys.readouterr().out and "```text\n1\n```" in page.read_text()
    assert pages.main([str(page)]) == 0 and capsys.readouterr().out == ""
    page.write_text(block("python", "1 / 0"))
    assert pages.main([str(page)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
