# Tests: test/runtime/model/test_cache.py
"""What was compiled, in three checksums: the model, the target, and how it was compiled.

Every report, every manifest and every entry of the cache carries them, so that nobody compares what is not alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frustum.dialects.target import Target, digest
from frustum.runtime.files import cannot_read
from frustum.runtime.model.options import FileInputs, Keywords, Request

if TYPE_CHECKING:
    from onnx import ModelProto
    from xdsl.dialects.builtin import ModuleOp

    from frustum.runtime.model.options import Model

CHUNK_BYTES = 1 << 22
ZOO_PREFIX = "zoo:"
NOT_PIPELINE = frozenset({"model", "target", "dump_ir", "weights_seed", "cache", "no_cache", "keeps_modules"})
"""Of what is asked, what does not say how passes run."""
CALIBRATING = frozenset({"calibration", "calibration_seed"})
"""What says nothing for other types than int8."""
EXTERNAL = b"location"
"""A key of ONNX's that stands in every model with weights in other files."""


def hashes_of(request: Request, target: Target) -> dict[str, str]:
    """The checksums of what a request is made from, for the target that it is compiled for."""
    return {
        "model": model_digest(request.model, request.weights_seed or 0),
        "target": digest(target),
        "pipeline": pipeline_digest(request),
    }


def model_digest(model: Model, weights_seed: int = 0) -> str:
    """SHA-256 of the bytes of a model, with the weights in files of their own; of a network of the zoo, of its name and
    the seed of its weights.  UsageError where a file cannot be read."""
    if not isinstance(model, str | Path):
        return checksum(_parts_in_memory(model))
    if str(model).startswith(ZOO_PREFIX):
        return checksum([f"{model} {weights_seed}".encode()])
    return checksum(_parts(Path(model)))


def pipeline_digest(request: Keywords) -> str:
    """SHA-256 of all options that say how a model is compiled; those that say nothing are left out."""
    silent = NOT_PIPELINE if request.dtype == "int8" else NOT_PIPELINE | CALIBRATING
    said = {}
    for each in fields(Request):
        value = getattr(request, each.name, None)
        if each.name not in silent and value not in (None, False, (), {}):
            said[each.name] = _plain(value)
    return checksum([json.dumps(said, sort_keys=True).encode()])


def checksum(parts: Iterator[bytes] | Sequence[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _parts(path: Path) -> Iterator[bytes]:
    """The bytes of a model's file, and of the files that it names."""
    names_others = False
    with cannot_read(path), path.open("rb") as file:
        before = b""
        while chunk := file.read(CHUNK_BYTES):
            names_others |= EXTERNAL in before[-len(EXTERNAL) :] + chunk
            before = chunk
            yield chunk
    if names_others and path.suffix != ".mlir":
        for other in _external_files(path):
            with cannot_read(other), other.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    if path.suffix == ".mlir":
        from frustum.dialects.module import WEIGHTS

        text = path.read_text(encoding="utf-8", errors="replace")
        _, _, rest = text.partition(f'{WEIGHTS} = "')
        store = path.parent / rest.partition('"')[0]
        if rest and store.is_file():
            yield store.read_bytes()


def _external_files(path: Path) -> list[Path]:
    """The files with weights of an ONNX model, each once; none where it is no model, which importing it says."""
    import onnx
    from google.protobuf.message import DecodeError
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    try:
        proto = onnx.load(str(path), load_external_data=False)
    except DecodeError:
        return []
    outside = (each for each in _get_all_tensors(proto) if uses_external_data(each))
    return [path.parent / name for name in dict.fromkeys(ExternalDataInfo(each).location for each in outside)]


def _parts_in_memory(model: ModelProto | ModuleOp) -> Iterator[bytes]:
    from xdsl.dialects.builtin import ModuleOp

    if not isinstance(model, ModuleOp):
        yield model.SerializeToString(deterministic=True)
        return
    import numpy as np

    from frustum.passes.weights import store_of

    yield str(model).encode()
    for name, array in store_of(model).items():
        yield name.encode()
        yield np.ascontiguousarray(array).view(np.uint8).tobytes()


def _plain(value: Any) -> Any:
    """As JSON has it; arrays, and files of them, by their checksum."""
    if isinstance(value, FileInputs):
        with cannot_read(value.path):
            return checksum([value.path.read_bytes()])
    if isinstance(value, Path):
        with cannot_read(value):
            return checksum([value.read_bytes()])
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "dtype"):
        import numpy as np

        return [str(value.dtype), value.shape, checksum([np.ascontiguousarray(value).tobytes()])]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
