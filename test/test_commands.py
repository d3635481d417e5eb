"""`make test`, `make test-slow` and `make soak`: together all tests, none in two, and quick ones in every folder."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from quick_tests import COLLECTED

ROOT = Path(__file__).resolve().parents[1]
LEAST_TESTS, LEAST_IN_ALL = 8010, 8960
"""So many the first two run, as when they parted, and all three (models beside the clone add some)."""
TARGETS = ("test", "test-slow", "soak")
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


def runs(target, markers):
    """Whether a command runs a test with these markers."""
    found = re.search(r" pytest .*-m (\"[^\"]+\"|\S+)", recipe(target))
    assert found is not None
    return Expression.compile(found[1].strip('"')).evaluate(lambda word, **_: word in markers)


def test_each_test_is_in_one_of_the_three(collected):
    for name, markers in collected.items():
        assert sum(runs(target, markers) for target in TARGETS) == 1, name


@pytest.mark.parametrize("target", TARGETS)
def test_neither_leaves_anything_else_out(target):
    assert not re.search(LEAVES_OUT, recipe(target))


def test_none_vanished(collected):
    assert len(collected) >= LEAST_IN_ALL
    assert sum(not runs("soak", markers) for markers in collected.values()) >= LEAST_TESTS


def test_every_folder_has_quick_tests(collected):
    folders = {str(Path(name.partition("::")[0]).parent) for name in collected}
    quick = {str(Path(name.partition("::")[0]).parent) for name in collected if "slow" not in collected[name]}
    assert folders - quick == set()


def test_all_is_run_for_a_change():
    text = (ROOT / ".ci/run").read_text()
    assert re.findall(r"^make (\S+)$", text, re.M) == ["test", "test-slow", "check"]
