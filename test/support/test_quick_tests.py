"""What `make test` and `make test-slow` leave out, and that they fail where their tests take too long."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CONFTEST = """
import pytest
from quick_tests import ProcessorTime, keep_some

def pytest_addoption(parser):
    parser.addoption("--most-seconds", type=float)

def pytest_configure(config):
    config.pluginmanager.register(ProcessorTime(config, config.getoption("most_seconds")))

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    keep_some(items)
"""
TESTS = """
import subprocess, sys, time, pytest

def busy(seconds):
    started = time.process_time()
    while time.process_time() - started < seconds:
        pass

def test_here():
    busy(0.2)

def test_in_a_command():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])

def test_waits():
    time.sleep(0.5)

@pytest.mark.slow(but=2)
@pytest.mark.parametrize("size", ["a", "b", "c", "d", "e"])
def test_cases(size): ...

@pytest.mark.slow
def test_alone(): ...

@pytest.mark.slow
@pytest.mark.soak(but=3)
@pytest.mark.parametrize("size", ["a", "b", "c"])
@pytest.mark.parametrize("shape", ["x", "y", "z"])
def test_pairs(shape, size): ...

@pytest.mark.slow(but=1)
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("size", range(5))
def test_of_each(size): ...

@pytest.mark.slow
@pytest.mark.soak
def test_wide(): ...
"""
INI = """
[pytest]
markers = 
    slow(but)
    soak(but)
"""


@pytest.fixture
def run(tmp_path):
    """pytest over these tests, with more words."""
    for name, text in (("conftest.py", CONFTEST), ("test_some.py", TESTS), ("pytest.ini", INI)):
        (tmp_path / name).write_text(text)

    def run(*more):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", f"pythonpath={HERE}", *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run


def names(run, expression):
    """Tests that an expression selects."""
    lines = run("-m", expression, "-q", "--collect-only").stdout.splitlines()
    return [line.partition("::")[2] for line in lines if "::" in line]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_beyond_the_limit_fails_and_names_the_slowest(run, workers):
    done = run("-m", "not slow", "--most-seconds", "0.01", "-n", workers)
    assert done.returncode == 1
    assert "the limit there is" in done.stdout
    named = [line.split()[2] for line in done.stdout.splitlines() if " s  test_some" in line]
    assert set(named[:2]) == {"test_some.py::test_here", "test_some.py::test_in_a_command"}


@pytest.mark.slow
def test_a_run_within_it_says_what_it_took(run):
    done = run("-m", "not slow", "--most-seconds", "60")
    assert done.returncode == 0, done.stdout
    assert "processor time of all tests: " in done.stdout
    assert "6 passed, 18 deselected" in done.stdout


@pytest.mark.slow
def test_the_rest_is_slow(run):
    found = names(run, "slow")
    assert found[:4] == [*(f"test_cases[{case}]" for case in "bde"), "test_alone"]


@pytest.mark.slow
def test_what_is_left_to_soak(run):
    """Cases that stay have all values of all parameters; what is quick is no case of `soak`."""
    pairs = {f"test_pairs[{shape}-{size}]" for shape in "xyz" for size in "abc"}
    stays = {f"test_pairs[{pair}]" for pair in ("x-a", "y-b", "z-c")}
    assert {*names(run, "slow and not soak")[4:]} == stays | {"test_of_each[1]", "test_of_each[3]"}
    assert {*names(run, "soak")} == (pairs - stays) | {"test_of_each[2]", "test_of_each[4]", "test_wide"}
    assert names(run, "not slow")[-1] == "test_of_each[0]"
