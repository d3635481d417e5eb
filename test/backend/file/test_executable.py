"""The file: reproducible, verified before it is used, written whole or not at all."""

import hashlib
import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import weights_address, weights_image
from random_program import Maker

from frustum.backend.file import container
from frustum.backend.file.container import ENTRY, HEADER, ExecutableError, WriteError
from frustum.backend.file.executable import (
    PAGE_BYTES,
    Executable,
    build_executable,
    open_executable,
    write_executable,
)
from frustum.backend.targets import load
from frustum.dialects.isa.program import External, Node, Program, Repeat, TableLoad
from frustum.dialects.target import to_json
from frustum.dialects.target.fit import DoesNotFit

EDGE = json.dumps(to_json(load("edge")), sort_keys=True)


def program(*weights: External) -> Program:
    made = Maker(7).program(40)
    others = [external for external in made.externals if external.class_ != "weight"]
    return Program(
        **{
            **{name: getattr(made, name) for name in made.__dataclass_fields__},
            "body": without_tables(made.body),
            "externals": (*others, *weights),
            "target": EDGE,
        }
    )


def without_tables(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Random loads of tables find none."""
    kept = (node for node in body if not isinstance(node, TableLoad))
    return tuple(replace(n, body=without_tables(n.body)) if isinstance(n, Repeat) else n for n in kept)


def example() -> Executable:
    a = External("a", "weight", 8192, 64, (4, 4), "f32")
    b = External("b", "weight", 8192 + 96, 16, (5,), "f16")
    weights: list[tuple[int, Any]] = [
        (b.address, np.arange(5, dtype=np.float16)),
        (a.address, np.arange(16, dtype=np.float32).reshape(4, 4)),
    ]
    return build_executable(program(a, b), weights, {"policy": "none"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_executable(example(), tmp_path / "net.fru")
    return tmp_path / "net.fru"


def test_a_file_gives_back_the_program(file: Path) -> None:
    made, read = example(), open_executable(file)
    assert read.program == made.program
    assert read.code == made.code
    assert read.manifest == made.manifest
    assert read.path == file


def test_weights_are_the_same_in_memory_and_mapped(file: Path) -> None:
    made, read = example(), open_executable(file)
    expected = np.zeros(112, np.uint8)
    expected[:64] = np.arange(16, dtype=np.float32).view(np.uint8)
    expected[96:106] = np.arange(5, dtype=np.float16).view(np.uint8)
    for executable in (made, read):
        assert weights_address(executable) == 8192
        assert np.array_equal(weights_image(executable), expected)


def test_mapped_weights_are_copied_on_write(file: Path) -> None:
    before = file.read_bytes()
    image = weights_image(open_executable(file))
    assert isinstance(image, np.memmap) and image.offset % PAGE_BYTES == 0
    image[0] = 255
    assert file.read_bytes() == before


def test_the_same_program_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    write_executable(example(), tmp_path / "again.fru")
    write_executable(open_executable(file), tmp_path / "copied.fru")
    assert file.read_bytes() == (tmp_path / "again.fru").read_bytes()
    assert file.read_bytes() == (tmp_path / "copied.fru").read_bytes()


def test_the_manifest_tells_what_is_known(file: Path) -> None:
    manifest = open_executable(file).manifest
    assert manifest["inputs"] == [
        {"name": "data", "dtype": "float64", "shape": [1, 4, 4, 4], "address": 4096}
    ]
    assert manifest["outputs"] == []
    assert manifest["compulsory_bytes"] == {"weight": 16 * 4 + 5 * 2, "input": 64 * 4, "output": 0}
    assert manifest["useful_macs"] == [1, 2, 3, 4, 5]
    assert manifest["options"] == {"policy": "none"}
    assert sum(manifest["page_bytes"]) == len(example().code.bytes)


def test_a_program_without_weights(tmp_path: Path) -> None:
    write_executable(build_executable(program(), []), tmp_path / "net.fru")
    read = open_executable(tmp_path / "net.fru")
    assert weights_address(read) == 0 and len(weights_image(read)) == 0


def test_the_length_of_the_file_is_known_before_it_is_written(file: Path) -> None:
    assert example().file_bytes == file.stat().st_size == open_executable(file).file_bytes


def test_weights_are_streamed(tmp_path: Path) -> None:
    size = 32 << 20
    weight = External("w", "weight", 0, size, (size // 4,), "f32")
    executable = build_executable(program(weight), [(0, np.ones(size // 4, np.float32))])
    tracemalloc.start()
    write_executable(executable, tmp_path / "net.fru")
    image = weights_image(open_executable(tmp_path / "net.fru"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert image.view(np.float32)[-1] == 1


def test_a_page_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"page 0: program page does not fit: .* 64 B of instruction memory"):
        build_executable(program(), [], instruction_memory_bytes=64)


# ---------------------------------------------------------------------- writing


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"^cannot write .*/missing/net.fru: No such file or directory"):
        write_executable(example(), tmp_path / "missing" / "net.fru")
    (tmp_path / "folder.fru").mkdir()
    with pytest.raises(WriteError, match=r"^cannot write .*/folder.fru: Is a directory"):
        write_executable(example(), tmp_path / "folder.fru")
    with pytest.raises(OSError, match=r"^cannot write /: not the name of a file"):
        write_executable(example(), "/")
    assert os.listdir(tmp_path) == ["folder.fru"]


def test_a_failure_in_the_middle_keeps_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "_write_pieces", full)
    with pytest.raises(WriteError, match=r"^cannot write .*: No space left on device"):
        write_executable(example(), file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


# ---------------------------------------------------------------------- damaged files


def test_every_flipped_bit_is_noticed_or_harmless(file: Path) -> None:
    good = file.read_bytes()
    used = set(range(HEADER.size + 4 * ENTRY.size))
    for stored in container.read_container(file, ["manifest", "code", "debug", "weights"]).values():
        used |= set(range(stored.offset, stored.offset + stored.length))
    for at in sorted(used)[::37]:
        bad = bytearray(good)
        bad[at] ^= 16
        file.write_bytes(bad)
        with pytest.raises(ExecutableError, match=r"net.fru: (damaged|not an executable|has format version)"):
            open_executable(file)


@pytest.mark.parametrize("keep", [0, 5, 8, 40, 64, 200, 1000, -1])
def test_a_file_cut_off_is_refused(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ExecutableError, match=r"net.fru: (damaged|not an executable)"):
        open_executable(file)


def rewrite(file: Path, **changes: Any) -> None:
    """Change the header or the table, with a correct checksum of both."""
    data = file.read_bytes()
    _, version, count, length, _ = HEADER.unpack_from(data)
    entries = list(ENTRY.iter_unpack(data[HEADER.size : HEADER.size + count * ENTRY.size]))
    name, offset, size, digest = entries[changes.get("section", 0)]
    entry = (changes.get("name", name), changes.get("offset", offset), changes.get("size", size), digest)
    entries[changes.get("section", 0)] = entry
    table = b"".join(ENTRY.pack(*e) for e in entries)
    numbers = {"version": version, "count": count, "length": length}
    start = (container.MAGIC, *(changes.get(name, number) for name, number in numbers.items()))
    digest = hashlib.sha256(HEADER.pack(*start, bytes(32)) + table).digest()
    file.write_bytes(HEADER.pack(*start, digest) + table + data[HEADER.size + len(table) :])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "has format version 1; compile it again$"),
        ({"version": 0}, "has format version 0; compile it again$"),
        ({"version": 3}, "has format version 3; this Frustum reads version 2$"),
        ({"length": 7}, r"damaged: \d+ bytes long, but should be 7"),
        ({"count": 2**31}, "damaged: 2147483648 sections"),
        ({"size": 2**62}, "section 'manifest' is not inside the file or is there twice"),
        ({"offset": 2**63}, "section 'manifest' is not inside the file or is there twice"),
        ({"name": b"code"}, "section 'code' is not inside the file or is there twice"),
        ({"name": b"other"}, "damaged: has sections other, code, debug, weights instead of manifest"),
        ({"size": 10}, "damaged: the checksum of section 'manifest' does not match"),
    ],
)
def test_lies_are_refused(file: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(file, **changes)
    tracemalloc.start()
    with pytest.raises(ExecutableError, match=message):
        open_executable(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def replace_section(file: Path, index: int, data: bytes) -> None:
    """Give a section other contents, with correct checksums."""
    read = container.read_container(file, ["manifest", "code", "debug", "weights"])
    pieces = {name: container.read_section(file, stored) for name, stored in read.items()}
    pieces[list(pieces)[index]] = data
    sections = [
        container.Section(name, [piece], PAGE_BYTES if name == "weights" else 64)
        for name, piece in pieces.items()
    ]
    container.write_container(file, sections)


@pytest.mark.parametrize(
    ("section", "data", "message"),
    [
        (0, b"{", "damaged manifest: JSONDecodeError"),
        (0, b"[]", "damaged manifest: target: found nothing"),
        (0, b"{}", "damaged manifest: target: found nothing"),
        (0, b"\xff", "damaged manifest: UnicodeDecodeError"),
        (1, b"\0\0\0\0", "damaged manifest: page_bytes: found"),
        (1, b"\0" * len(example().code.bytes), "damaged code: word 0: unknown opcode 0"),
        (2, b"\0\0\0\0", "damaged manifest: ValueError"),
        (2, b"\0" * 8, "damaged code: .* instructions, but layers of 1 and units of 1"),
        (3, b"\0" * 8, "damaged: 8 bytes of weights, the manifest says 112"),
    ],
)
def test_wrong_contents_are_refused(file: Path, section: int, data: bytes, message: str) -> None:
    replace_section(file, section, data)
    with pytest.raises(ExecutableError, match=message):
        open_executable(file)


def test_a_folder_or_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExecutableError, match="not an executable of Frustum: a directory"):
        open_executable(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_executable(tmp_path / "missing.fru")


def test_the_manifest_in_the_file_is_canonical_json(file: Path) -> None:
    stored = container.read_container(file, ["manifest", "code", "debug", "weights"])["manifest"]
    text = container.read_section(file, stored).decode()
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    assert str(file.parent) not in text
