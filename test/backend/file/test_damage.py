"""Damaged executables are refused before anything of them is used: fast, and without large allocations."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networks import Net
from stops import target

from frustum.backend.file import container
from frustum.backend.file.executable import PAGE_BYTES, SECTIONS, open_executable, write_executable
from frustum.backend.pipeline import Choices
from frustum.backend.split_compile import Splitting, compile_pieces
from frustum.runtime.machine import Machine

MOST_BYTES, MOST_SECONDS = 4 << 20, 1.0


@cache
def original() -> bytes:
    """The file of a small network with weights."""
    net = Net()
    module, _ = net.module(net.conv(net.input(1, 4, 12, 12), 4, act="relu"))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "net.frustum"
        made = compile_pieces(module, target("edge"), Choices(policy="none"), Splitting("never"))
        write_executable(made.executables[0], path)
        return path.read_bytes()


@cache
def sections() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "net.frustum"
        path.write_bytes(original())
        stored = container.read_container(path, SECTIONS)
        return {name: container.read_section(path, stored[name]) for name in SECTIONS}


def opened(data: bytes, **contents: bytes):
    """What opening a file gives: an executable, or an ExecutableError with its message; nothing else may happen.

    With `contents` the file is written anew, with correct lengths and checksums, and these sections in it.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "net.frustum"
        path.write_bytes(data)
        if contents:
            container.write_container(
                path,
                [
                    container.Section(name, [contents.get(name, own)], PAGE_BYTES if name == "weights" else 64)
                    for name, own in sections().items()
                ],
            )
        tracemalloc.start()
        started = time.thread_time()  # of this thread: other processes do not count
        try:
            found = open_executable(path)
        except container.ExecutableError as error:
            assert str(error).startswith(f"{path}: ")
            found = str(error).removeprefix(f"{path}: ")
        seconds = time.thread_time() - started
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MOST_BYTES and seconds < MOST_SECONDS
    return found


def test_the_original_is_opened():
    assert not isinstance(opened(original()), str)
    assert not isinstance(opened(original(), code=sections()["code"]), str)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 1 << 30), st.integers(1, 255))
@example(40, 1)  # header
@example(4000, 1)  # padding before the weights
def test_any_flipped_byte_is_refused(place, change):
    data = bytearray(original())
    data[place % len(data)] ^= change
    assert isinstance(opened(bytes(data)), str)


def test_every_byte_counts():
    """Header, table, sections and what aligns them make up the file."""
    data = original()
    for place in range(0, len(data), 61):
        bad = bytearray(data)
        bad[place] ^= 1
        assert isinstance(opened(bytes(bad)), str), place


@given(st.integers(0, 1 << 30), st.binary(max_size=40))
def test_truncated_or_longer_files_are_refused(keep, more):
    data = original()
    cut = data[: keep % len(data)]
    assert isinstance(opened(cut), str)
    if more:
        assert isinstance(opened(data + more), str)


@pytest.mark.slow
@given(st.sampled_from(["code", "debug"]), st.binary(max_size=200), st.integers(0, 1 << 20))
def test_wrong_contents_with_right_checksums_are_refused_or_harmless(name, noise, place):
    own = bytearray(sections()[name])
    place %= len(own)
    own[place : place + len(noise)] = noise
    opened(original(), **{name: bytes(own)})


def paths(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from paths(each, (*path, key))


LIES = st.one_of(
    st.sampled_from([None, True, -1, 0, 2**31, 2**62, 2**63, 10**30, 1e300, "", "x", [], {}, [0], [-1], [2**62]]),
    st.integers(),
    st.text(max_size=5),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data(), LIES)
def test_a_manifest_that_lies_is_refused_or_harmless(data, lie):
    """Harmless: sizes stay within the target's memories, and the machine can be set up for it."""
    manifest = json.loads(sections()["manifest"])
    path = data.draw(st.sampled_from([p for p in paths(manifest) if p]))
    holder = manifest
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = lie
    found = opened(original(), manifest=json.dumps(manifest).encode())
    if not isinstance(found, str):
        capacities = Machine(found).capacities
        assert capacities[0] <= target("edge").chip.dram.capacity_bytes or path[0] == "target"


@pytest.mark.parametrize(
    ("path", "lie", "message"),
    [
        (("externals", "x0", "bytes"), 2**62, "damaged manifest: externals 'x0': found 4611686018427387904 bytes"),
        (("externals", "x0", "address"), -1, "externals 'x0': found address -1"),
        (("externals", "x0", "shape"), [2**40, 2**40], "externals 'x0': found shape"),
        (("externals", "x0", "element"), "f64", "externals 'x0': found f64"),
        (("externals", "x0", "model_dtype"), "S99999999", "externals 'x0': found S99999999"),
        (("peak_bytes", "sram"), 2**50, "peak_bytes.sram: found 1125899906842624"),
        (("peak_bytes", "tape"), 1, "peak_bytes: found tape"),
        (("slots", "core"), 2**31, "slots.core: found 2147483648"),
        (("page_bytes",), [2**40], r"page_bytes: found \[1099511627776\]"),
        (("name",), "../../passwd", "name: found ../../passwd"),
        (("target", "chip", "dram", "capacity_bytes"), "much", "target: .*capacity_bytes"),
        (("options", "layers"), [{}], "op: found nothing"),
        (("useful_macs",), [-1], r"useful_macs: found \[-1\]"),
    ],
)
def test_lies_are_named(path, lie, message):
    manifest = json.loads(sections()["manifest"])
    holder = manifest
    for key in path[:-1]:
        is_named = isinstance(holder, list)
        holder = next(each for each in holder if each["name"] == key) if is_named else holder[key]
    holder[path[-1]] = lie
    found = opened(original(), manifest=json.dumps(manifest).encode())
    assert isinstance(found, str) and re.search(message, found), found
