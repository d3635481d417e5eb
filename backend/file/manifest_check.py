"""What the manifest of an executable may say, so that nothing is allocated or run on the word of a damaged one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import isfinite
from pathlib import PurePath
from typing import Any

from frustum.dialects.host_type import MODEL_DTYPE, HostType
from frustum.dialects.isa.program import ELEMENT_BYTES, EXTERNAL_CLASSES, MEMORIES
from frustum.dialects.target import Target, TargetError, from_json

MOST_SLOTS = 2048
"""What the instructions can name."""
LONGEST = (1 << 63) - 1
MOST_DIMS = 32
"""Of an array in numpy 1; later ones have more."""
SHOWN = 80
"""Letters of what is found, in messages."""


class ManifestError(ValueError):
    """Names the key, and what is found there."""


def check_manifest(manifest: Any, code_bytes: int) -> None:
    """ManifestError unless sizes and addresses are possible on the target that the manifest names.

    `code_bytes`: length of the code, which the pages must make up.  What a key must be, not what it should be: that the
    compiler wrote it is what the checksum says.
    """
    target = _target(_get(manifest, "target", dict))
    _check_name(_get(manifest, "name", str))
    for external in _list(manifest, "externals", dict):
        _check_external(external, target.chip.dram.capacity_bytes)
    for memory, peak in _get(manifest, "peak_bytes", dict).items():
        _check(memory in MEMORIES, "peak_bytes", memory)
        _check(_is_size(peak, target.memory(memory).capacity_bytes), f"peak_bytes.{memory}", peak)
    for kind in ("core", "cluster"):
        slots = _get(_get(manifest, "slots", dict), kind, int)
        _check(_is_size(slots, MOST_SLOTS), f"slots.{kind}", slots)
    pages = _list(manifest, "page_bytes", int)
    _check(min(pages, default=0) >= 0 and sum(pages) == code_bytes, "page_bytes", pages)
    _check_layers(manifest)


def _check_layers(manifest: Mapping[str, Any]) -> None:
    """Names and figures of layers and units, for reports."""
    _get(manifest, "dtype", str)
    _list(manifest, "layers", str)
    _list(manifest, "units", str)
    macs = _list(manifest, "useful_macs", int)
    _check(all(_is_size(count, LONGEST) for count in macs), "useful_macs", macs)
    own = _list(manifest, "own_elements", int) if "own_elements" in manifest else []
    _check(all(_is_size(count, LONGEST) for count in own), "own_elements", own)
    options = _get(manifest, "options", dict)
    for key, kinds in _FACTS.items():
        for fact in _list(options, key, dict) if key in options else ():
            for name, kind in kinds.items():
                _get(fact, name, kind)


_FACTS: dict[str, dict[str, type]] = {
    "layers": {"op": str, "unit": int},
    "units": {"mode": str, "stopped_by": str, "tiles": int, "kept_bytes": int},
}


def _check_external(external: Mapping[str, Any], capacity_bytes: int) -> None:
    name, size = _get(external, "name", str), _get(external, "bytes", int)
    where = f"externals '{name}'"
    _check(_get(external, "class", str) in EXTERNAL_CLASSES, where, external["class"])
    element = _get(external, "element", str)
    _check(element in ELEMENT_BYTES, where, element)
    address = _get(external, "address", int)
    _check(_is_size(size, capacity_bytes), where, f"{size} bytes")
    _check(_is_size(address, capacity_bytes - size), where, f"address {address}")
    shape = _list(external, "shape", int)
    is_shape = all(_is_size(extent, capacity_bytes) for extent in shape) and len(shape) <= MOST_DIMS
    _check(is_shape, where, f"shape {shape}")
    least = math.prod(extent for extent in shape if extent) * ELEMENT_BYTES[element]
    _check(least <= capacity_bytes, where, f"shape {shape}")
    if external["class"] in ("input", "output"):
        needed = math.prod(shape) * ELEMENT_BYTES[element]
        _check(needed == size, where, f"shape {shape} in {size} bytes")
    dtype = _get(external, "model_dtype", str)
    _check(not dtype or _is_host_type(dtype), where, dtype)


def _is_host_type(text: str) -> bool:
    try:
        host = HostType.parse(text)
    except ValueError:
        return False
    scale_is_good = host.scale is None or (isfinite(host.scale) and host.scale > 0 and abs(host.zero) < LONGEST)
    return MODEL_DTYPE.fullmatch(host.dtype) is not None and scale_is_good


def _target(data: Mapping[str, Any]) -> Target:
    try:
        return from_json(data)
    except TargetError as error:
        raise ManifestError(f"target: {str(error).splitlines()[0]}") from error


def _check_name(name: str) -> None:
    _check(PurePath(name).name == name, "name", name)


def _get(data: Any, key: str, kind: type) -> Any:
    _check(isinstance(data, dict) and key in data, key, "nothing")
    value = data[key]
    _check(isinstance(value, kind) and not isinstance(value, bool), key, value)
    return value


def _list(data: Any, key: str, kind: type) -> list[Any]:
    values: list[Any] = _get(data, key, list)
    _check(all(isinstance(v, kind) and not isinstance(v, bool) for v in values), key, values)
    return values


def _is_size(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _check(holds: bool, where: str, found: object) -> None:
    if not holds:
        text = str(found)
        raise ManifestError(f"{where}: found {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}")
