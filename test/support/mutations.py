"""Inputs with a small fault in them, from a seed, and what must become of them: a result, or an error that says what.

Each kind has `make(random, folder)`: it writes a damaged input there and gives what a user would do with it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import onnx_models
from mixed_models import sandwich

import frustum
from frustum.backend import targets
from frustum.backend.file import container
from frustum.backend.file.executable import PAGE_BYTES, SECTIONS
from frustum.passes.fuse.policy import problems_of
from frustum.runtime.check.check import RaceError
from frustum.runtime.device.memory import AccessError
from frustum.runtime.failures import exit_code_of
from frustum.runtime.host.inputs import read_inputs
from frustum.runtime.model import compiled_folder
from frustum.runtime.model.chain import random_values
from frustum.runtime.model.compiled_folder import open_file, open_folder
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.time.engine import DeadlockError
from frustum.runtime.tools import cli

SECONDS = 20
"""Of processor time, at most, for one input."""
BYTES = 1 << 30
"""Of memory beyond what the process has."""
STOPPED = (DeadlockError, AccessError, RaceError)
"""How the machine stops a program that is none: only where somebody wrote it, or made its checksums right."""
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 256, 1 << 15, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 62, -(1 << 63), (1 << 63) - 1)

Use = Callable[[], object]


@dataclass(frozen=True)
class Fault:
    """What went wrong with an input, and the seed that makes it again."""

    kind: str
    seed: int
    error: BaseException

    def __str__(self) -> str:
        return f"{self.kind} {self.seed}: {type(self.error).__name__}: {str(self.error)[:200]}"


class TooLong(BaseException):
    """More processor time than any of these inputs may take."""


def fault_of(kind: str, seed: int, folder: Path) -> Fault | None:
    """None where the input works, or is refused by an error that speaks to the user."""
    use = KINDS[kind](random.Random(f"{kind} {seed}"), folder)
    try:
        with guarded():
            use()
    except Exception as error:
        cause = error.__cause__ if type(error).__name__ == "CompilerFault" and error.__cause__ else error
        if isinstance(cause, MemoryError) or exit_code_of(error) is None:
            is_stopped = kind in ("sealed", "stage_text") and isinstance(cause, STOPPED)
            return None if is_stopped else Fault(kind, seed, cause)
        assert str(error).strip(), "an error without a word"
    except TooLong as error:
        return Fault(kind, seed, error)
    return None


@contextmanager
def guarded() -> Iterator[None]:
    """Limits on time and memory inside; a request beyond them is a MemoryError."""

    def stop(*_: object) -> None:
        raise TooLong(f"over {SECONDS} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if os.path.exists("/proc/self/statm") else 0
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


# --- originals ---------------------------------------------------------------------------------------------


@cache
def originals() -> Path:
    """A folder of good inputs: models, a model with external data, stages, compiled folders, arrays."""
    folder = Path(mkdtemp(prefix="frustum-fuzz-"))
    small = onnx_models.network()
    onnx.save(small, folder / "small.onnx")
    onnx.save(shapes(), folder / "shapes.onnx")
    onnx.save(sandwich(), folder / "host.onnx")
    onnx.save(small, folder / "external.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    for name, options in (("small", ["--dump-ir", str(folder / "ir")]), ("host", [])):
        arguments = ["compile", str(folder / f"{name}.onnx"), "-o", str(folder / name), "--target", "edge", *options]
        assert cli.main([*arguments, "--policy", "greedy"]) == 0
    np.savez(folder / "plain.npz", x=np.ones((1, 3, 8, 8), np.float32), n=np.arange(3))
    np.savez_compressed(folder / "packed.npz", x=np.ones((1, 3, 8, 8), np.float32))
    return folder


def shapes() -> onnx.ModelProto:
    """Pad, reshapes, a slice, a transposition, a concatenation, a resize: operators whose operands are sizes."""
    node, constant = onnx.helper.make_node, onnx.numpy_helper.from_array
    constants = {
        "pads": [0, 0, 1, 1, 0, 0, 1, 1], "to": [1, 4, 100], "back": [1, 4, 10, 10],
        "starts": [1], "ends": [9], "axes": [2], "steps": [2], "sizes": [1, 8, 4, 10],
    }  # fmt: skip
    nodes = [
        node("Pad", ["x", "pads"], ["p"]), node("Reshape", ["p", "to"], ["r"]), node("Reshape", ["r", "back"], ["b"]),
        node("Concat", ["b", "p"], ["c"], axis=1), node("Slice", ["c", "starts", "ends", "axes", "steps"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[0, 2, 3, 1]), node("Softmax", ["t"], ["y"], axis=-1),
        node("AveragePool", ["c"], ["z"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "shapes", [value("x", onnx.TensorProto.FLOAT, [1, 4, 8, 8])],
        [value(name, onnx.TensorProto.FLOAT, None) for name in "yz"],
        [constant(np.array(numbers, np.int64), name) for name, numbers in constants.items()],
    )  # fmt: skip
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


def compiled_and_run(path: Path, target: str | Path = "edge") -> None:
    """What `frustum run` does; in mode timing, for most inputs are wrong before any number is computed."""
    made = frustum.compile(path, target, policy="greedy")
    chain = made.chain
    ran = execute_chain(chain, random_values(chain.inputs, 0))
    report_of_chain(chain, ran).text(verbose=True)


def compiled_folder_chain(executable: object) -> compiled_folder.Chain:
    from frustum.runtime.model.chain import chain_of

    return chain_of(executable)  # type: ignore[arg-type]


def opened_and_run(path: Path) -> None:
    chain = open_folder(path)[0] if path.is_dir() else compiled_folder_chain(open_file(path))
    for mode in ("timing", "full"):
        ran = execute_chain(chain, random_values(chain.inputs, 0), mode)  # type: ignore[arg-type]
        report_of_chain(chain, ran).text(verbose=True)


# --- mutations ---------------------------------------------------------------------------------------------


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few bits, bytes or stretches changed, cut out, doubled or overwritten by numbers."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(found) or 1)
        match rng.randrange(6):
            case 0 if found:
                found[at] ^= 1 << rng.randrange(8)
            case 1 if found:
                found[at] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del found[at : at + rng.choice((1, 4, 100))]
            case 3:
                found[at:at] = found[at : at + rng.choice((1, 8, 64))]
            case 4:
                found[at : at + 8] = struct.pack("<q", rng.choice(NUMBERS))
            case _:
                found = found[:at] if rng.random() < 0.3 else found
    return bytes(found)


def onnx_bytes(rng: random.Random, folder: Path) -> Use:
    source = originals() / rng.choice(("small.onnx", "shapes.onnx", "host.onnx"))
    (folder / "m.onnx").write_bytes(changed_bytes(rng, source.read_bytes()))
    return lambda: compiled_and_run(folder / "m.onnx")


def onnx_fields(rng: random.Random, folder: Path) -> Use:
    """Numbers, texts and lists of the model's messages."""
    model = onnx.load(originals() / rng.choice(("small.onnx", "shapes.onnx", "host.onnx")))
    for _ in range(rng.choice((1, 1, 2, 4))):
        change_field(rng, rng.choice(list(messages(model))))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return lambda: compiled_and_run(folder / "m.onnx")


def messages(message: object) -> Iterator[object]:
    yield message
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.type == field.TYPE_MESSAGE:
            for each in value if isinstance_of_list(value) else [value]:
                yield from messages(each)


def isinstance_of_list(value: object) -> bool:
    return (hasattr(value, "__len__") and hasattr(value, "append")) or hasattr(value, "add")


def change_field(rng: random.Random, message: object) -> None:
    fields = [(f, v) for f, v in message.ListFields() if f.type != f.TYPE_MESSAGE]  # type: ignore[attr-defined]
    repeated = [(f, v) for f, v in message.ListFields() if isinstance_of_list(v)]  # type: ignore[attr-defined]
    if repeated and rng.random() < 0.3:
        field, value = rng.choice(repeated)
        if rng.random() < 0.5:
            del value[rng.randrange(len(value))]
        else:
            value.append(value[rng.randrange(len(value))])
        return
    if not fields:
        return
    field, value = rng.choice(fields)
    kind = field.cpp_type
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64, field.CPPTYPE_ENUM):
        most = (1 << (31 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_ENUM) else 63)) - 1
        new: object = rng.choice([n for n in (*NUMBERS, 4, 5, 9, 16, 23, 1000) if -most - 1 <= n <= most])
        if kind == field.CPPTYPE_UINT64:
            new = abs(int(str(new)))
    elif kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        new = rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    elif field.type == field.TYPE_BYTES:
        new = changed_bytes(rng, value if isinstance(value, bytes) else b"abc")
    else:
        text = value if isinstance(value, str) else "x"
        new = rng.choice(("", "x", "y", "a\0b", "é", text * 2, "z" * 5000, "Conv", "Reshape", "../x"))
    try:
        if isinstance_of_list(value):
            value[rng.randrange(len(value))] = new
        else:
            setattr(message, field.name, new)
    except (ValueError, TypeError):
        return  # not a value of this field


PLACES = ("a\0b", "a" * 5000, "../x", "/etc/passwd", "", ".", "weights/", "weights/x", "m.onnx", "\ud7ff")
VALUES = ("0", "-1", "1", "17", "3", ".nan", "1e9", "[" * 3000, "&a [*a]", "x" * 3000, "9" * 6000, "{}", "null",
          "!!python/object x")  # fmt: skip
JSON = (*NUMBERS, None, True, "", "x", "../x", "a\0b", [], {}, [1, 2], 0.5, float("nan"), float("inf"), 1e300, 10**400)
SHAPES = ("(1, 3, 8, 8)", "(1073741824,)", "(4294967296, 4)", "(-1,)", "()", "(2, 'x')", "(9" + "9" * 5000 + ",)")
DTYPES = ("'<f4'", "'|O'", "'<f8'", "'V2'", "'x'", "[('a', '<f4')]", "'<U100000000'", "'<f4', 'x': 1")
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)


def external_data(rng: random.Random, folder: Path) -> Use:
    model = onnx.load(originals() / "external.onnx", load_external_data=False)
    (folder / "weights").write_bytes((originals() / "weights").read_bytes())
    tensor = rng.choice(model.graph.initializer)
    texts = ("x", "", "-1", "1e3", "0x10", " 5", "\u0661", "9" * 20, "9" * 5000, str(1 << 62), "17", "+3", "1_0")
    for _ in range(rng.choice((1, 1, 2))):
        match rng.randrange(6):
            case 0:
                entry = rng.choice(tensor.external_data)
                entry.value = rng.choice(PLACES if entry.key == "location" else texts)
            case 1:
                entry = tensor.external_data.add()
                entry.key, entry.value = rng.choice(("offset", "length", "checksum", "key", "")), rng.choice(texts)
            case 2:
                tensor.dims[0] = rng.choice(NUMBERS)
            case 3:
                tensor.data_type = rng.choice((0, 1, 2, 7, 8, 9, 10, 16, 17, 21, 22, 23, 26, 99, -1, 1 << 30))
            case 4:
                (folder / "weights").write_bytes(changed_bytes(rng, (folder / "weights").read_bytes()))
            case _:
                tensor.dims.append(rng.choice(NUMBERS))
    if rng.random() < 0.3:  # for the host
        model.graph.node[1].op_type = "Asinh"
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    host = rng.choice(("auto", "only"))
    return lambda: external_run(folder / "m.onnx", host)


def external_run(path: Path, host: str) -> None:
    made = frustum.compile(path, "edge", policy="greedy", host=host)  # type: ignore[arg-type]
    chain = made.chain
    execute_chain(chain, random_values(chain.inputs, 0))


def target_text(rng: random.Random, folder: Path) -> Use:
    text = targets.path(rng.choice(targets.names())).read_text()
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        is_value = colon and rng.random() < 0.7
        lines[at] = f"{key}: {rng.choice(VALUES)}" if is_value else changed_text(rng, lines[at])
    file = folder / "t.yaml"
    file.write_bytes("\n".join(lines).encode(errors="replace"))
    is_run = rng.random() < 0.3

    def use() -> None:
        targets.load(file, problems_of)
        if is_run:
            compiled_and_run(originals() / "small.onnx", file)

    return use


def changed_text(rng: random.Random, text: str) -> str:
    return changed_bytes(rng, text.encode() or b" ").decode(errors="replace")


def stage_text(rng: random.Random, folder: Path) -> Use:
    """A number, a word or a line of a dumped stage."""
    source = rng.choice(sorted((originals() / "ir").glob("*.mlir")))
    lines = source.read_text().splitlines()
    body = [number for number, line in enumerate(lines) if len(line) < 1000]
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.choice(body)
        match rng.randrange(5):
            case 0 if len(lines) > 10:
                lines[at], lines[at - 1] = lines[at - 1], lines[at]
            case 1:
                lines[at] = ""
            case 2:
                lines[at] += "\n" + lines[at]
            case 3:
                lines[at] = changed_text(rng, lines[at])
            case _:
                words = [(i, c) for i, c in enumerate(lines[at]) if c.isdigit()]
                if words:
                    i, _ = rng.choice(words)
                    lines[at] = lines[at][:i] + str(rng.choice((*NUMBERS, 4, 5, 8, 9))) + lines[at][i + 1 :]
    file = folder / source.name
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    weights = source.with_suffix(".safetensors")
    data = weights.read_bytes()
    file.with_suffix(".safetensors").write_bytes(changed_bytes(rng, data) if rng.random() < 0.1 else data)
    return lambda: compiled_and_run(file)


def copied(source: Path, folder: Path) -> Path:
    place = folder / "folder"
    place.mkdir()
    for path in source.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


def folder_bytes(rng: random.Random, folder: Path) -> Use:
    place = copied(originals() / rng.choice(("small", "host")), folder)
    file = rng.choice(sorted(place.iterdir()))
    file.write_bytes(changed_bytes(rng, file.read_bytes()))
    return lambda: opened_and_run(place)


def sealed(rng: random.Random, folder: Path) -> Use:
    """A section of an executable, a host piece or the manifest, its checksums made right."""
    place = copied(originals() / rng.choice(("small", "host")), folder)
    file = rng.choice(sorted(place.iterdir()))
    if file.suffix == ".frustum":
        stored = container.read_container(file, SECTIONS)
        contents = {name: container.read_section(file, stored[name]) for name in SECTIONS}
        chosen = rng.choice(("manifest", "code", "code", "code", "debug"))
        if chosen == "manifest":
            data = json.loads(contents["manifest"])
            change_json(rng, data)
            contents["manifest"] = json.dumps(data).encode()
        elif chosen == "code":
            contents["code"] = changed_words(rng, contents["code"])
        else:
            contents["debug"] = changed_words(rng, contents["debug"])
        parts = [container.Section(n, [contents[n]], PAGE_BYTES if n == "weights" else 64) for n in SECTIONS]
        container.write_container(file, parts)
        if rng.random() < 0.5:
            return lambda: opened_and_run(file)
    elif file.suffix == ".onnx":
        model = onnx.load(file)
        change_field(rng, rng.choice(list(messages(model))))
        file.write_bytes(model.SerializeToString())
    reseal(rng, place, damage=file.name == compiled_folder.MANIFEST)
    return lambda: opened_and_run(place)


def reseal(rng: random.Random, place: Path, damage: bool) -> None:
    import hashlib

    from frustum.backend.file.executable import fingerprint

    path = place / compiled_folder.MANIFEST
    manifest = json.loads(path.read_bytes())
    del manifest["sha256"]
    for piece in manifest["pieces"]:
        file = place / piece["file"]
        piece["bytes"] = file.stat().st_size
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        piece["sha256"] = fingerprint(file) if piece["kind"] == "device" else digest
    if damage:
        change_json(rng, manifest)
    path.write_bytes(compiled_folder.sealed(manifest))


def changed_words(rng: random.Random, data: bytes) -> bytes:
    """Bits of the words, of which there stay as many."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(found))
        if rng.random() < 0.6:
            found[at] ^= 1 << rng.randrange(8)
        else:
            found[at : at + 4] = struct.pack("<i", rng.choice((0, 1, -1, 2, (1 << 31) - 1)))[: len(found) - at]
    return bytes(found)


def change_json(rng: random.Random, data: object) -> None:
    places: list[tuple[object, object]] = []

    def walk(value: object) -> None:
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in pairs:
            places.append((value, key))
            walk(inner)

    walk(data)
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places)
        if rng.random() < 0.1 and isinstance(holder, dict):
            holder.pop(key, None)
        else:
            try:
                holder[key] = rng.choice(JSON)  # type: ignore[index]
            except (KeyError, IndexError):
                continue


def arrays(rng: random.Random, folder: Path) -> Use:
    file = folder / "x.npz"
    data = (originals() / rng.choice(("plain.npz", "packed.npz"))).read_bytes()
    if rng.random() < 0.5:
        file.write_bytes(changed_bytes(rng, data))
    else:  # a header that declares something else, in a file that is whole
        order = rng.choice(("False", "True", "3"))
        words = f"{{'descr': {rng.choice(DTYPES)}, 'fortran_order': {order}, 'shape': {rng.choice(SHAPES)}, }}"
        size = struct.pack("<H", len(words) % 65536)
        body = b"\x93NUMPY" + bytes([rng.choice((1, 1, 2, 3, 9)), 0]) + size + words.encode() + bytes(64)
        with zipfile.ZipFile(file, "w", rng.choice(PACKINGS)) as archive:
            archive.writestr("x.npy", body)
    return lambda: read_inputs(file)


KINDS: dict[str, Callable[[random.Random, Path], Use]] = {
    "onnx_bytes": onnx_bytes,
    "onnx_fields": onnx_fields,
    "external_data": external_data,
    "target_text": target_text,
    "stage_text": stage_text,
    "folder_bytes": folder_bytes,
    "sealed": sealed,
    "arrays": arrays,
}
