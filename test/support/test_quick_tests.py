"""What `make test` leaves out, and that it fails where its tests take too long."""

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
"""
INI = """
[pytest]
markers = slow(but)
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


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_beyond_the_limit_fails_and_names_the_slowest(run, workers):
    done = run("-m", "not slow", "--most-seconds", "0.01", "-n", workers)
    assert done.returncode == 1
    assert "limit of `make test` on this machine" in done.stdout
    named = [line.split()[2] for line in done.stdout.splitlines() if " s  test_some" in line]
    assert set(named[:2]) == {"test_some.py::test_here", "test_some.py::test_in_a_command"}


@pytest.mark.slow
def test_a_run_within_it_says_what_it_took(run):
    done = run("-m", "not slow", "--most-seconds", "60")
    assert done.returncode == 0, done.stdout
    assert "processor time of all tests: " in done.stdout
    assert "5 passed, 4 deselected" in done.stdout


@pytest.mark.slow
def test_the_rest_is_slow(run):
    found = run("-m", "slow", "-q", "--collect-only").stdout.splitlines()
    assert found[:4] == [*(f"test_some.py::test_cases[{case}]" for case in "bde"), "test_some.py::test_alone"]
