"""Loops in machine code: the cache that nothing breaks, what is counted, what is announced."""

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from frustum.dialects import loop_cache, loops
from frustum.runtime.tools import warm_up

LOOPS = """
from frustum.dialects.loops import compiled, entry

@compiled
def inner(x):
    return x + 1

@entry("int64(int64)")
def outer(x):
    return inner(x) * 2
"""
USE = "import sys; sys.path.insert(0, sys.argv[1]); import toy; print(toy.outer(20))"


@pytest.fixture(autouse=True)
def no_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has no home; the temporary folder is the test's."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a module of two loops."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "toy.py").write_text(LOOPS)
    return folder


def use(package: Path, warm_up: bool = False) -> tuple[int, int, int, Path | None]:
    """What a process finds that calls the loops: the result, functions compiled and loaded, where they are kept."""
    loop_cache._file_digest.cache_clear()
    times, entries = loops.TIMES, len(loops.ENTRIES)
    before = len(times.compiled), len(times.loaded)
    exec(compile((package / "toy.py").read_text(), package / "toy.py", "exec"), vars(ModuleType("toy")))
    ((function, signature),) = loops.ENTRIES[entries:]
    del loops.ENTRIES[entries:]
    result = 0
    if warm_up:
        function.compile(signature)
    else:
        result = function(20)
    kept = function._cache.cache_path
    return result, len(times.compiled) - before[0], len(times.loaded) - before[1], Path(kept) if kept else None


def make_read_only(package: Path) -> None:
    """No folder can be made there; by a file of its name, for root may write everywhere."""
    (package / "__pycache__").write_text("")


def test_a_second_process_compiles_nothing(package: Path) -> None:
    place = package / "__pycache__"
    assert use(package) == (42, 2, 0, place)
    assert use(package) == (42, 0, 1, place)  # the outer one holds what it needs of the inner one


def test_what_is_compiled_beforehand_is_what_a_call_takes(package: Path) -> None:
    assert use(package, warm_up=True)[1:3] == (2, 0)
    assert use(package)[:3] == (42, 0, 1)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("damage", ["cut short", "empty", "garbage", "one bit"])
def test_a_damaged_file_is_made_anew(package: Path, damage: str) -> None:
    use(package)
    files = sorted((package / "__pycache__").glob("*.loop"))
    assert len(files) == 2
    for file in files:
        content = file.read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        damaged = {"cut short": content[:-100], "empty": b"", "garbage": b"\x80\x05 garbage" * 99, "one bit": changed}
        file.write_bytes(damaged[damage])
    assert use(package)[:3] == (42, 2, 0)
    assert use(package)[:3] == (42, 0, 1)
    assert not list((package / "__pycache__").glob("*.part"))


def test_a_read_only_package_without_a_home_keeps_its_loops_in_a_folder_of_the_users_own(
    package: Path, tmp_path: Path
) -> None:
    make_read_only(package)
    place = loop_cache.private_folder()
    assert place is not None and place.parent == tmp_path
    assert use(package) == (42, 2, 0, place)
    assert use(package) == (42, 0, 1, place)
    assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("obstacle", ["link", "open to others", "file", "somebody else's"])
def test_a_folder_that_others_may_write_is_not_trusted(
    package: Path, tmp_path: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_read_only(package)
    place, elsewhere = loop_cache.private_folder(), tmp_path / "elsewhere"
    assert place is not None
    elsewhere.mkdir(mode=0o700)
    if obstacle == "open to others":
        place.chmod(0o777)
    elif obstacle == "somebody else's":
        user = os.getuid() + 1
        monkeypatch.setattr("os.getuid", lambda: user)
        place.rename(tmp_path / f"frustum-loops-{user}")
    else:
        place.rmdir()
        place.symlink_to(elsewhere) if obstacle == "link" else place.write_text("")
    for _ in range(2):
        assert use(package) == (42, 2, 0, None)  # compiled anew, kept nowhere
    assert not list(elsewhere.iterdir())


def test_what_was_compiled_at_install_time_is_read_where_the_user_writes_elsewhere(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(package, warm_up=True)
    user = tmp_path / "user"
    monkeypatch.setattr("numba.config.CACHE_DIR", str(user))
    result, compiled, loaded, place = use(package)
    assert (result, compiled, loaded) == (42, 0, 1)
    assert place is not None and place.parent == user and not list(place.iterdir())


def test_a_full_disk_costs_no_more_than_the_cache(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        assert use(package)[:3] == (42, 2, 0)
    assert not list((package / "__pycache__").glob("*.loop*"))
    assert use(package)[:3] == (42, 2, 0)


@pytest.mark.slow
def test_processes_that_fill_an_empty_cache_together_do_no_harm(package: Path) -> None:
    command = [sys.executable, "-c", USE, str(package)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    results = [process.communicate(timeout=100) for process in processes]
    assert results == [(b"42\n", b"")] * 3
    # One more process, not this one, in which no module `toy` was imported: machine code names where it came from.
    told = "; from frustum.dialects.loops import TIMES; print(len(TIMES.compiled), len(TIMES.loaded))"
    last = subprocess.run([*command[:2], USE + told, str(package)], capture_output=True, timeout=100)
    assert (last.stdout, last.stderr) == (b"42\n0 1\n", b"")


def test_a_changed_source_is_compiled_anew(package: Path) -> None:
    use(package)
    (package / "toy.py").write_text(LOOPS.replace("x + 1", "x + 2"))
    assert use(package)[:3] == (44, 2, 0)


def test_long_compiling_is_announced_once_and_short_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    times = loops.LoopTimes(announce=said.append)
    monkeypatch.setattr(loops, "LONG_SECONDS", 3600)
    with times.compiling("short"):
        pass
    assert said == []
    monkeypatch.setattr(loops, "LONG_SECONDS", 0)
    for name in ("first", "second"):
        with times.compiling(name), times.compiling("inner"):
            pass
    assert said == ["compiling the emulator's loops, once (`frustum warm-up` does it beforehand) ..."]
    assert times.compiled == ["short", "inner", "first", "inner", "second"]


def test_time_of_a_function_inside_another_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    times = loops.LoopTimes()
    with times.making(), times.making():
        time.perf_counter()
    assert times.seconds == 3  # read by the outer one, the inner one, the line inside, the outer one
    with times.making():
        pass
    assert times.seconds == 3 + 1


def test_warm_up_knows_every_module_with_loops() -> None:
    root = Path(loops.__file__).parents[1]
    found = set()
    for folder in ("dialects", "passes", "backend", "runtime"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"^@(numba\.)?n?jit\b", text, re.MULTILINE), f"{path}: `compiled` decorates loops"
            if re.search(r"^@(compiled|entry\()", text, re.MULTILINE):
                found.add("frustum." + ".".join(path.relative_to(root).with_suffix("").parts))
    assert found == set(warm_up.LOOPS)
