"""Makes every .mlir file with RUN lines a test of pytest too, so that one command runs and counts everything."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# `make test` gives the same verdict every time; `make soak` looks further, at other examples each time.
settings.register_profile("test", derandomize=True, deadline=None, max_examples=50)
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


SLOW = (
    "pipeline", "passes/fuse", "passes/plan/network", "passes/graph/test_choose_layout.py",
    "passes/lower/unit/test_prefetch.py", "passes/test_zoo.py", "passes/tile/test_lower_units.py",
    "backend/waits/test_schedule.py", "backend/test_split_compile.py",
    "backend/waits/test_synchronisation.py", "benchmarks", "examples",
    "runtime/model/test_chain_split.py", "runtime/test_fuzz.py", "runtime/device/test_line_buffer.py",
    "runtime/reference/test_reference_models.py", "runtime/time/test_timing_model.py",
    "runtime/model/test_weights_options.py", "docs/test_adding.py", "docs/test_site.py", "test_packaging.py",
)  # fmt: skip
"""What `make compat` leaves out: folders and files of which a test takes more than three seconds (`--durations`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    slow = [here / each for each in SLOW]
    for item in items:
        if item.path in slow or any(folder in item.path.parents for folder in slow):
            item.add_marker(pytest.mark.slow)


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
