"""Damaged compiled folders are refused as a whole before anything runs: fast, and without large allocations."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_models import sandwich

import frustum
from frustum.backend.file.container import ENTRY, HEADER
from frustum.runtime.failures import UsageError
from frustum.runtime.model.compiled_folder import MANIFEST, sealed
from frustum.runtime.tools import cli

MOST_BYTES, MOST_SECONDS = 8 << 20, 1.0
X = {"x": np.zeros((1, 32, 32, 32), np.float32)}
PIECES = ("net_0.frustum", "net_1.onnx", "net_2.frustum")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """Two executables with a piece of the host between them."""
    folder = tmp_path_factory.mktemp("compiled")
    onnx.save(sandwich(), folder / "net.onnx")
    assert cli.main(["compile", str(folder / "net.onnx"), "-o", str(folder / "out"), "--target", "edge"]) == 0
    assert {path.name for path in (folder / "out").iterdir()} == {MANIFEST, *PIECES}
    return folder / "out"


@pytest.fixture
def folder(compiled, tmp_path) -> Path:
    shutil.copytree(compiled, tmp_path / "out")
    return tmp_path / "out"


def refused(folder: Path) -> str:
    """What is said of a folder that must not run."""
    handed: list[str] = []
    tracemalloc.start()
    started = time.thread_time()
    try:
        frustum.run(folder, X, on_output=lambda name, _: handed.append(name))
    except UsageError as error:
        said = str(error)
    else:
        pytest.fail("it ran")
    seconds = time.thread_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not handed and seconds < MOST_SECONDS and peak < MOST_BYTES
    assert len(said.splitlines()) == 1 and ": error: " in said
    return said


def resealed(folder: Path, change) -> None:
    """The manifest changed, with a checksum that is right again."""
    data = json.loads((folder / MANIFEST).read_text())
    del data["sha256"]
    change(data)
    (folder / MANIFEST).write_bytes(sealed(data))


def test_the_folder_runs(folder):
    assert set(frustum.run(folder, X).outputs) == {"y", "r1"}


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from([MANIFEST, *PIECES]), st.integers(0, 1 << 30), st.integers(1, 255))
def test_any_flipped_byte_of_any_file_is_refused(compiled, name, place, change):
    """In place: hypothesis does not make a folder for each example."""
    path = compiled / name
    good = path.read_bytes()
    bad = bytearray(good)
    bad[place % len(bad)] ^= change
    path.write_bytes(bad)
    try:
        assert name in refused(compiled)
    finally:
        path.write_bytes(good)


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("name", [MANIFEST, *PIECES])
@pytest.mark.parametrize("keep", [0, 1, 8, 63, 64, 65, 0.5, -1])
def test_truncated_files_are_refused(folder, name, keep):
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    assert name in refused(folder)


@pytest.mark.parametrize("name", [MANIFEST, *PIECES])
def test_missing_files_are_refused(folder, name):
    (folder / name).unlink()
    assert "has no manifest.json" in refused(folder) or f"{folder / name}: error: cannot be read" in refused(
        folder
    )


def test_swapped_files_are_refused(folder):
    first, last = folder / PIECES[0], folder / PIECES[2]
    first.rename(folder / "spare")
    last.rename(first)
    (folder / "spare").rename(last)
    assert f"{first}: error: damaged: " in refused(folder)


@pytest.mark.parametrize("file", ["../net_0.frustum", "/etc/passwd", "a/b", "..", ".", "", "net_0.frustum/"])
def test_files_outside_the_folder_are_refused(folder, file):
    shutil.copy(folder / PIECES[0], folder.parent)
    resealed(folder, lambda data: data["pieces"][0].update(file=file))
    assert "error: " in refused(folder)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", [MANIFEST, *PIECES])
@pytest.mark.parametrize("what", ["pipe", "zeros", "folder"])
def test_what_is_no_file_is_neither_waited_for_nor_read(folder, name, what):
    path = folder / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "zeros":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert f"{path}: error: cannot be read: it is no regular file" == refused(folder)


def test_a_link_to_the_same_bytes_is_good(folder):
    (folder / PIECES[0]).rename(folder.parent / "elsewhere")
    (folder / PIECES[0]).symlink_to(folder.parent / "elsewhere")
    assert set(frustum.run(folder, X).outputs) == {"y", "r1"}


def test_files_of_any_length_are_not_read_to_be_refused(folder):
    """Holes, which take no room on the disk."""
    for name in (PIECES[1], MANIFEST):
        with (folder / name).open("r+b") as file:
            file.truncate(1 << 36)
        assert f"{folder / name}: error: damaged: " in refused(folder)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema=2), "not the manifest of a compiled folder, or of another version"),
        (lambda data: data["pieces"].pop(1), "piece 'net_2' reads 'h', which nothing gives"),
        (lambda data: data["pieces"].reverse(), "piece 'net_2' reads 'r1', which nothing gives|reads 'h'"),
        (lambda data: data["pieces"][0].update(chip=9), "piece 'net_0' is on chip 9"),
        (lambda data: data["pieces"][0].update(chip=float("inf")), "Infinity is no number of JSON"),
        (lambda data: data["pieces"][0].update(kind="cloud"), "a piece of kind 'cloud'"),
        (
            lambda data: data["pieces"][0].update(bytes=1),
            "net_0.frustum: error: damaged: it is not the file that",
        ),
        (lambda data: data["pieces"][0].update(outputs=["h"]), "its inputs and outputs are not those that"),
        (lambda data: data["inputs"][0].update(dtype=[1]), "TypeError|ValueError"),
        (lambda data: data["outputs"].append({"name": "z"}), "no piece gives the output 'z'"),
        (lambda data: data["machine"].update(clock_hz=0), "clock_hz"),
    ],
)
def test_a_manifest_that_lies_is_refused(folder, change, message):
    resealed(folder, change)
    said = refused(folder)
    assert re.search(message, said), said


LIES = st.one_of(
    st.sampled_from([None, True, -1, 0, 2**62, 10**30, 1e300, float("inf"), "", "x", "../x", [], {}, [0], [2**62]]),
    st.integers(), st.text(max_size=5),
)  # fmt: skip


def paths(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from paths(each, (*path, key))


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data(), LIES)
def test_any_lie_is_refused_in_one_line_or_harmless(compiled, data, lie):
    path = compiled / MANIFEST
    good = path.read_bytes()
    manifest = json.loads(good)
    del manifest["sha256"]
    place = data.draw(st.sampled_from([p for p in paths(manifest) if p]))
    holder = manifest
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = lie
    path.write_bytes(sealed(manifest))
    try:
        code = cli.main(["inspect", str(compiled)])
    finally:
        path.write_bytes(good)
    assert code in (0, 2)


HOWS = ("cli.main(['run', folder])", "frustum.run(folder, x)", "cli.main(['inspect', folder])")


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_a_folder_needs_nothing_of_the_compiler(compiled, how):
    """It runs where there is no xDSL and none of the passes (the host's pieces need the packages onnx and
    onnxruntime)."""
    program = (
        "import sys\n"
        "for name in ('xdsl', 'frustum.passes', 'frustum.backend.pipeline'): sys.modules[name] = None\n"
        "import numpy as np, frustum\nfrom frustum.runtime.tools import cli\n"
        f"folder, x = {str(compiled)!r}, {{'x': np.zeros((1, 32, 32, 32), np.float32)}}\n"
        f"assert {how} in (0, None) or 'y' in frustum.run(folder, x).outputs\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_folder_of_an_older_format_is_to_be_compiled_again(folder, capsys):
    resealed(folder, lambda data: data.pop("format"))
    assert refused(folder) == f"{folder / MANIFEST}: error: has format version 1; compile it again"
    assert cli.main(["run", str(folder)]) == 2
    assert "has format version 1; compile it again" in capsys.readouterr().err


def test_a_folder_of_a_newer_format_is_refused(folder):
    resealed(folder, lambda data: data.update(format=3))
    assert refused(folder) == f"{folder / MANIFEST}: error: has format version 3; this Frustum reads version 2"


def test_an_older_executable_in_a_folder_is_to_be_compiled_again(folder, capsys):
    path = folder / PIECES[0]
    data = bytearray(path.read_bytes())
    magic, _, count, length, _ = HEADER.unpack_from(data)
    rest = bytes(data[HEADER.size : HEADER.size + ENTRY.size * count])
    start = HEADER.pack(magic, 1, count, length, bytes(32))
    data[: HEADER.size] = HEADER.pack(magic, 1, count, length, hashlib.sha256(start + rest).digest())
    path.write_bytes(data)
    assert refused(folder) == f"{path}: error: has format version 1; compile it again"
    assert cli.main(["run", str(path)]) == 2
    assert "has format version 1; compile it again" in capsys.readouterr().err
