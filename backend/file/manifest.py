# Tests: test/backend/file/test_damage.py
"""The manifest of an executable: a program without its instructions, as JSON.

What the manifest of an executable may say, so that nothing is allocated or run on the word of a damaged one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from math import isfinite
from pathlib import PurePath
from typing import Any, TypeAlias

from frustum.dialects.host_type import MODEL_DTYPE, HostType
from frustum.dialects.isa import program as p
from frustum.dialects.target import Target, TargetError, from_json

Json: TypeAlias = dict[str, Any]

COMPULSORY: tuple[p.ExternalClass, ...] = ("weight", "input", "output")


def manifest_of(program: p.Program, page_bytes: tuple[int, ...], options: Mapping[str, Any]) -> Json:
    """What the executable tells about a program; `options` are those of the compiler, as JSON values."""
    return {
        "name": program.name,
        "dtype": program.dtype,
        "target": json.loads(program.target),
        "externals": [_external(external) for external in program.externals],
        "inputs": _interface(program, "input"),
        "outputs": _interface(program, "output"),
        "layers": list(program.layers),
        "units": list(program.units),
        "useful_macs": list(program.useful_macs),
        "slots": {"core": program.core_slots, "cluster": program.cluster_slots},
        "peak_bytes": dict(program.peak_bytes),
        "page_bytes": list(page_bytes),
        "compulsory_bytes": compulsory_bytes(program),
        "options": dict(options),
        **({"own_elements": list(program.own_elements)} if program.own_elements else {}),
    }


def program_of(manifest: Json, body: tuple[p.Node, ...]) -> p.Program:
    """The program that `manifest_of` described; KeyError, TypeError or ValueError if it did not."""
    return p.Program(
        body=body,
        externals=tuple(_read_external(external) for external in manifest["externals"]),
        name=str(manifest["name"]),
        dtype=str(manifest["dtype"]),
        target=json.dumps(manifest["target"], sort_keys=True),
        layers=tuple(map(str, manifest["layers"])),
        units=tuple(map(str, manifest["units"])),
        useful_macs=tuple(map(int, manifest["useful_macs"])),
        own_elements=tuple(map(int, manifest.get("own_elements", ()))),
        core_slots=int(manifest["slots"]["core"]),
        cluster_slots=int(manifest["slots"]["cluster"]),
        peak_bytes={memory: int(peak) for memory, peak in manifest["peak_bytes"].items()},
    )


def read_json(data: bytes) -> Any:
    """The value that JSON text gives; ValueError also for numbers that are none, which JSON has no word for."""
    return json.loads(data, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def to_bytes(manifest: Json) -> bytes:
    """Canonical: equal manifests give equal bytes."""
    text = json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def compulsory_bytes(program: p.Program) -> dict[str, int]:
    """Bytes that must cross the DRAM port at least once, by class: weights, network inputs, network outputs."""
    return {
        class_: sum(_value_bytes(e) for e in program.externals if e.class_ == class_) for class_ in COMPULSORY
    }


def _value_bytes(external: p.External) -> int:
    return math.prod(external.shape) * p.ELEMENT_BYTES[external.element]


def _interface(program: p.Program, class_: p.ExternalClass) -> list[Json]:
    return [
        {
            "name": external.name,
            "dtype": external.model_dtype or external.element,
            "shape": list(external.shape),
            "address": external.address,
        }
        for external in program.externals
        if external.class_ == class_
    ]


def _external(external: p.External) -> Json:
    return {
        "name": external.name,
        "class": external.class_,
        "address": external.address,
        "bytes": external.bytes,
        "shape": list(external.shape),
        "element": external.element,
        "model_dtype": external.model_dtype,
    }


def _read_external(data: Json) -> p.External:
    return p.External(
        name=str(data["name"]),
        class_=data["class"],
        address=int(data["address"]),
        bytes=int(data["bytes"]),
        shape=tuple(map(int, data["shape"])),
        element=data["element"],
        model_dtype=str(data["model_dtype"]),
    )


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
        _check(memory in p.MEMORIES, "peak_bytes", memory)
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
            if "nodes" in fact:
                _list(fact, "nodes", str)
    for figures in _get(options, "alternatives", dict).values() if "alternatives" in options else ():
        _check(isinstance(figures, dict), "alternatives", figures)
        for figure in ("dram_bytes", "cycles", "energy_pj"):
            _get(figures, figure, int)
    for name in _get(options, "in_dram", dict) if "in_dram" in options else ():
        _get(options["in_dram"], name, str)
    if "least_work" in options:
        _check_least_work(_get(options, "least_work", dict))
    if "whole_network" in options:
        whole = _get(options, "whole_network", dict)
        _check(_is_size(_get(whole, "pieces", int), LONGEST), "whole_network", whole["pieces"])
        _check_least_work(_get(whole, "least_work", dict))


def _check_least_work(facts: Mapping[str, Any]) -> None:
    """What `passes/analysis/least_work.py` writes: layers that read earlier ones."""
    inputs = len(_list(facts, "inputs", str))
    for key in ("input_bytes", "input_needed_bytes"):
        sizes = _list(facts, key, int)
        _check(len(sizes) == inputs and all(_is_size(each, LONGEST) for each in sizes), "least_work", sizes)
    for name, size in _get(facts, "output_bytes", dict).items():
        _check(_is_size(size, LONGEST), f"least_work of '{name}'", size)
    for name, own in _get(facts, "weights", dict).items():
        is_known = isinstance(own, list) and len(own) == 3 and all(_is_size(each, LONGEST) for each in own)
        _check(is_known, f"least_work of '{name}'", own)
    layers = _list(facts, "layers", dict)
    for number, layer in enumerate(layers):
        _get(layer, "name", str)
        _get(layer, "mix", str)
        _list(layer, "weights" if "weights" in layer else "reads", str if "weights" in layer else int)
        reads = _list(layer, "reads", int)
        _check(all(-inputs <= read < number for read in reads), f"least_work of '{layer['name']}'", reads)
        figures = [layer.get(name, 0) for name in ("macs", "operands", "matrix", "vector")]
        if layer.get("macs"):
            _check(_get(layer, "element", int) in p.ELEMENT_BYTES.values(), f"least_work of '{layer['name']}'", layer)
        arguments = [name for name in ("matrix product", "attention", "closure") if name in layer]
        for each in (root for name in ("roots", "own") if name in layer for root in _list(layer, name, int)):
            _check(-inputs <= each < number, f"least_work of '{layer['name']}'", each)
        figures += [each for name in arguments for each in _list(layer, name, int)]
        _check(all(_is_size(each, LONGEST) for each in figures), f"least_work of '{layer['name']}'", figures)
    for output in _list(facts, "outputs", list):
        is_pair = len(output) == 2 and isinstance(output[0], str) and isinstance(output[1], int)
        _check(is_pair and -inputs <= output[1] < len(layers), "least_work", output)


_FACTS: dict[str, dict[str, type]] = {
    "layers": {"op": str, "unit": int},
    "units": {"mode": str, "stopped_by": str, "tiles": int, "kept_bytes": int, "owners": str},
}


def _check_external(external: Mapping[str, Any], capacity_bytes: int) -> None:
    name, size = _get(external, "name", str), _get(external, "bytes", int)
    where = f"externals '{name}'"
    _check(_get(external, "class", str) in p.EXTERNAL_CLASSES, where, external["class"])
    element = _get(external, "element", str)
    _check(element in p.ELEMENT_BYTES, where, element)
    address = _get(external, "address", int)
    _check(_is_size(size, capacity_bytes), where, f"{size} bytes")
    _check(_is_size(address, capacity_bytes - size), where, f"address {address}")
    shape = _list(external, "shape", int)
    is_shape = all(_is_size(extent, capacity_bytes) for extent in shape) and len(shape) <= MOST_DIMS
    _check(is_shape, where, f"shape {shape}")
    least = math.prod(extent for extent in shape if extent) * p.ELEMENT_BYTES[element]
    _check(least <= capacity_bytes, where, f"shape {shape}")
    if external["class"] in ("input", "output"):
        needed = math.prod(shape) * p.ELEMENT_BYTES[element]
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
