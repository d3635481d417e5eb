"""Makes every .mlir file with RUN lines a test of pytest too, so that one command runs and counts everything."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from frustum.backend.file.executable import Executable

# `make test` and `make test-slow`, whose examples are dearer, give the same verdict every time; `make soak` looks
# further, at other examples each time.
settings.register_profile("test", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("slow", settings.get_profile("test"), max_examples=12)
settings.register_profile("soak", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("test")


@pytest.fixture(scope="session", autouse=True)
def no_announcement() -> None:
    """In a fresh clone the first test that needs a loop compiles it; what commands say is compared all the same."""
    from frustum.dialects import loops

    loops.LONG_SECONDS = float("inf")


@pytest.fixture(scope="session", autouse=True)
def no_cache() -> Iterator[None]:
    """Whatever is tested is compiled here, also by commands in processes of their own."""
    before = os.environ.get("FRUSTUM_CACHE")
    os.environ["FRUSTUM_CACHE"] = ""
    yield
    del os.environ["FRUSTUM_CACHE"]
    if before is not None:
        os.environ["FRUSTUM_CACHE"] = before


@pytest.fixture(scope="session")
def squeezenet() -> "Executable":
    """A whole network on `edge`, for tests of what is said of runs; the policy is one that plans soon."""
    import frustum

    return frustum.compile("zoo:squeezenet", "edge", "f16", policy="optimal").executable


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-seconds", type=float, help="fail where all tests together take more processor time")


def pytest_configure(config: pytest.Config) -> None:
    from quick_tests import ProcessorTime

    config.pluginmanager.register(ProcessorTime(config, config.getoption("most_seconds")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from quick_tests import COLLECTED, keep_some

    keep_some(items)
    config.stash[COLLECTED] = {item.nodeid: frozenset(mark.name for mark in item.iter_markers()) for item in items}


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """9,000 tests, and all that they import, stay to the end: garbage is not looked for among them, and else rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 5)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "LitFile | None":
    if file_path.suffix == ".mlir" and "RUN:" in file_path.read_text():
        return LitFile.from_parent(parent, path=file_path)
    return None


class LitFile(pytest.File):
    """One .mlir file."""

    def collect(self) -> "list[LitItem]":
        return [LitItem.from_parent(self, name="lit")]


class LitItem(pytest.Item):
    """Its RUN lines."""

    def runtest(self) -> None:
        from lit_format import run_file

        result = run_file(str(self.path))
        if result.code.name in ("UNSUPPORTED", "SKIPPED"):
            pytest.skip(result.output)
        if result.code.isFailure:
            raise LitFailure(f"{result.code.name}\n{result.output}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:
        if isinstance(excinfo.value, LitFailure):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"lit {self.path.name}"


class LitFailure(Exception):
    """What lit printed about a test that failed."""


def pytest_unconfigure() -> None:
    import sys

    if "lit_format" in sys.modules:
        sys.modules["lit_format"].WARM.close()
