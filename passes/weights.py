"""The weights of a module, kept beside its IR: a store of named arrays.

The IR holds keys (`fgraph.weight "key"`). The module attribute `frustum.weights` names the store: a
safetensors file (eight bytes of header length, a JSON header, raw little-endian arrays) beside the module's text, or,
for a module built in this process, a token.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    DictionaryAttr,
    FileLineColLoc,
    ModuleOp,
    StringAttr,
    UnitAttr,
    UnknownLoc,
    bf16,
    f16,
    f32,
    i8,
    i16,
    i32,
)
from xdsl.ir import Attribute, Operation
from xdsl.printer import Printer

from frustum.dialects.isa.program import IMAGE_CLASSES
from frustum.dialects.isa.sync import ExternalOp
from frustum.dialects.module import INTEGERS, TARGET, WEIGHTS
from frustum.passes.analysis.module import free_name
from frustum.passes.errors import ModelError

BY_NAME: dict[str, Attribute] = {"f32": f32, "f16": f16, "bf16": bf16}
NUMPY: dict[Attribute, np.dtype[Any]] = {
    f32: np.dtype(np.float32),
    f16: np.dtype(np.float16),
    bf16: np.dtype(ml_dtypes.bfloat16),
}
DEVICE_INTEGERS: dict[np.dtype[Any], Attribute] = {
    np.dtype(np.int8): i8,
    np.dtype(np.int16): i16,
    np.dtype(np.int32): i32,
}
NUMPY_BY_NAME: dict[str, np.dtype[Any]] = {
    **{name: NUMPY[element] for name, element in BY_NAME.items()},
    **{f"i{8 * dtype.itemsize}": dtype for dtype in DEVICE_INTEGERS},
}
NUMPY_INTEGERS = {element: dtype for dtype, element in DEVICE_INTEGERS.items()}


def numpy_of(element: Attribute) -> np.dtype[Any]:
    return NUMPY[element] if element in NUMPY else NUMPY_INTEGERS[element]


def most_whole(element: Attribute) -> int:
    """A type of floating point has all integers up to here."""
    return int(1 << (ml_dtypes.finfo(numpy_of(element)).nmant + 1))


def is_float(element: Attribute) -> bool:
    """Whether `element` is a floating-point type the device has."""
    return element in NUMPY


TOKEN = "memory:"

Array: TypeAlias = np.ndarray[Any, Any]


class NoSuchWeight(ModelError, KeyError):
    """An operation names weights that are not in the store of its module."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"the weights of the module have no '{self.key}'"


class WeightStore(Mapping[str, Array]):
    """Named arrays. An entry is an array (perhaps mapped from a file) or is computed when first asked for."""

    def __init__(self, arrays: dict[str, Array] | None = None) -> None:
        self._entries: dict[str, Array | Callable[[], Array]] = dict(arrays or {})

    def __getitem__(self, key: str) -> Array:
        try:
            entry = self._entries[key]
        except KeyError:
            raise NoSuchWeight(key) from None
        if callable(entry):
            entry = self._entries[key] = entry()
        return entry

    def __setitem__(self, key: str, array: Array) -> None:
        self._entries[key] = array

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, stem: str, array: Array | Callable[[], Array]) -> str:
        """Stores an array (or how to compute it) under a new key, `stem` or `stem.1`, ...; returns the key."""
        key = free_name(stem, self._entries)
        self._entries[key] = array
        return key


_STORES: WeakKeyDictionary[StringAttr, WeightStore] = WeakKeyDictionary()
"""Stores of modules built in this process; the module's own attribute keeps its store alive."""
_OPENED: WeakKeyDictionary[ModuleOp, WeightStore] = WeakKeyDictionary()
"""Stores opened from the file a module names."""
_numbers = itertools.count()


def attach(module: ModuleOp, store: WeightStore) -> None:
    """Makes `store` the module's own."""
    token = StringAttr(f"{TOKEN}{next(_numbers)}")
    _STORES[token] = store
    module.attributes[WEIGHTS] = token


def store_of(module: ModuleOp) -> WeightStore:
    """The module's store: an empty new one where it has none yet; ModelError where it cannot be found.

    A file's name is relative to the folder of the module's own text, which its location tells.
    """
    name = module.attributes.get(WEIGHTS)
    if not isinstance(name, StringAttr):
        store = WeightStore()
        attach(module, store)
        return store
    if name.data.startswith(TOKEN):
        if name not in _STORES:
            raise ModelError(f"the weights {name.data} were in another process: write them with the module")
        return _STORES[name]
    if module not in _OPENED:
        location = module.location
        folder = Path(location.filename.data).parent if isinstance(location, FileLineColLoc) else Path()
        _OPENED[module] = load(folder / name.data)
    return _OPENED[module]


def load(path: Path | str) -> WeightStore:
    """The store in a safetensors file, memory-mapped; additions stay in memory."""
    path = Path(path).resolve()
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise ModelError(f"{path}: error: cannot read the weights: {error.strerror}") from error
    return WeightStore(_read(path, changed))


def save(module: ModuleOp, path: Path | str, keys: Iterable[str] | None = None) -> None:
    """Writes the module's weights: those under `keys`, or else those its operations name."""
    store = store_of(module)
    chosen = list(keys if keys is not None else used_keys(module))
    write_safetensors(Path(path), {key: store[key] for key in chosen})


def write_module(module: ModuleOp, path: Path | str) -> None:
    """Writes `NAME.mlir` and beside it `NAME.safetensors`, each whole or not at all; the module stays as it is.

    The text says nothing of the file that the module was read from: a reader looks for the weights beside the new one.
    """
    path = Path(path)
    weights = path.with_suffix(".safetensors")
    save(module, weights)
    own, place = module.attributes.get(WEIGHTS), module.location
    module.attributes[WEIGHTS] = StringAttr(weights.name)
    module.location = UnknownLoc()
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            ModulePrinter(file, print_debuginfo=True).print_module(module)
            file.write("\n")
        partial.replace(path)
    finally:
        module.location = place
        partial.unlink(missing_ok=True)
        if own is not None:
            module.attributes[WEIGHTS] = own


class ModulePrinter(Printer):
    """Prints a module with its target as an alias before it, a line for each part of the machine: it is the longest
    attribute, and says nothing of the module's own.  Whatever reads MLIR reads that too."""

    alias: Attribute | None = None

    def print_module(self, module: ModuleOp) -> None:
        self.alias = module.attributes.get(TARGET)
        if isinstance(self.alias, DictionaryAttr):
            self.print_string(f"{TARGET_ALIAS} = {_wrapped(self.alias)}\n\n")
        self.print_op(module)

    def print_attribute(self, attribute: Attribute) -> None:
        if isinstance(attribute, DictionaryAttr) and attribute is self.alias:
            self.print_string(TARGET_ALIAS)
        else:
            super().print_attribute(attribute)


TARGET_ALIAS = "#target"
ALIAS_WIDTH = 100
"""Letters, more or less, of a line of an alias."""


def _wrapped(attribute: Attribute, indent: str = "") -> str:
    """The text of an attribute; of a dictionary that is long with a line for each entry."""
    text = str(attribute)
    if not isinstance(attribute, DictionaryAttr) or len(indent) + len(text) <= ALIAS_WIDTH:
        return text
    inner = f"{indent}  "
    entries = (f"{_entry_key(name)} = {_wrapped(each, inner)}" for name, each in attribute.data.items())
    return "{\n" + ",\n".join(f"{inner}{entry}" for entry in entries) + f"\n{indent}}}"


def _entry_key(name: str) -> str:
    """As a dictionary has it, in quotes if it is no identifier."""
    return str(DictionaryAttr({name: UnitAttr()}))[1:-1]


def used_keys(module: ModuleOp) -> list[str]:
    """The keys that operations of any level name, each once, in order."""
    named = (key for op in module.walk() for key in (_key(op), *_keys_of_integers(op)))
    return list(dict.fromkeys(filter(None, named)))


def _keys_of_integers(op: Operation) -> list[str]:
    """What a constant was computed from (`passes/dequantised.py`)."""
    noted = op.attributes.get(INTEGERS)
    values = noted.data.values() if isinstance(noted, DictionaryAttr) else ()
    return [value.data for value in values if isinstance(value, StringAttr)]


def _key(op: Operation) -> str | None:
    """In the property `key`, or, of a buffer that is loaded with the program, in its name."""
    if isinstance(op, ExternalOp):
        return op.external_name.data if op.class_.data in IMAGE_CLASSES else None
    key = op.properties.get("key")
    return key.data if isinstance(key, StringAttr) else None


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> dict[str, Array]:
    """`changed` is the file's time, so that a rewritten file is read again."""
    return read_safetensors(path)


DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = struct.Struct("<Q")
ALIGNMENT_BYTES = 8


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes the arrays in their order; the file appears complete or not at all."""
    header: dict[str, dict[str, object]] = {}
    stop = 0
    for key, array in arrays.items():
        start, stop = stop, stop + array.nbytes
        header[key] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, stop],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(LENGTH.pack(len(text)) + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file, memory-mapped and read-only; ModelError where it is none."""
    try:
        bytes_ = np.memmap(path, dtype=np.uint8, mode="r")
        (length,) = LENGTH.unpack(bytes_[: LENGTH.size].tobytes())
        header = json.loads(bytes_[LENGTH.size : LENGTH.size + length].tobytes())
        header.pop("__metadata__", None)
        body = bytes_[LENGTH.size + length :]
        return {key: _view(body, entry) for key, entry in header.items()}
    except OSError as error:
        raise ModelError(f"{path}: error: cannot read the weights: {error.strerror}") from error
    except (ValueError, KeyError, struct.error) as error:
        raise ModelError(f"{path}: error: not a safetensors file, or not all of it") from error


def _view(body: np.ndarray[Any, Any], entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    start, stop = entry["data_offsets"]
    return body[start:stop].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
