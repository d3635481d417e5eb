"""`make test` and `make test-slow`: together all tests, no test in both, and quick ones in every folder."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from quick_tests import COLLECTED

ROOT = Path(__file__).resolve().parents[1]
LEAST_TESTS = 8010
"""So many there were when the commands parted (models beside the clone add some)."""
LEAVES_OUT = r"\s(-k|--ignore\S*|--deselect|--lf|--last-failed|-x)\b"


def recipe(target: str) -> str:
    """The lines of a target of the Makefile."""
    found = re.search(rf"^{target}: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert found is not None
    return found[1]


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> Mapping[str, frozenset[str]]:
    """All tests with their markers; skips where only some folders were asked for."""
    found = request.config.stash[COLLECTED]
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "test").rglob("*") if is_test(path)}
    missing = there - {name.partition("::")[0] for name in found}
    if len(missing) > len(there) / 2:
        pytest.skip("some files alone were asked for; `make test` collects all")
    assert missing == set()
    return found


def is_test(path: Path) -> bool:
    return bool(re.fullmatch(r"test_.*\.py", path.name)) or (path.suffix == ".mlir" and "RUN:" in path.read_text())


def test_each_test_is_in_one_of_the_two(collected):
    wanted = [re.search(r" pytest .*-m (\"[^\"]+\"|\S+)", recipe(target)) for target in ("test", "test-slow")]
    expressions = [Expression.compile(found[1].strip('"')) for found in wanted if found]
    assert len(expressions) == 2
    for name, markers in collected.items():
        runs = [each.evaluate(lambda word, markers=markers, **_: word in markers) for each in expressions]
        assert sum(runs) == 1, name


@pytest.mark.parametrize("target", ["test", "test-slow"])
def test_neither_leaves_anything_else_out(target):
    assert not re.search(LEAVES_OUT, recipe(target))


def test_none_vanished(collected):
    assert len(collected) >= LEAST_TESTS


def test_every_folder_has_quick_tests(collected):
    folders = {str(Path(name.partition("::")[0]).parent) for name in collected}
    quick = {str(Path(name.partition("::")[0]).parent) for name in collected if "slow" not in collected[name]}
    assert folders - quick == set()


def test_all_is_run_for_a_change():
    text = (ROOT / ".ci/run").read_text()
    assert re.findall(r"^make (\S+)$", text, re.M) == ["test", "test-slow", "check"]
