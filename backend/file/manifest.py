"""The manifest of an executable: a program without its instructions, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from frustum.dialects.isa.program import ELEMENT_BYTES, External, ExternalClass, Node, Program

Json: TypeAlias = dict[str, Any]

COMPULSORY: tuple[ExternalClass, ...] = ("weight", "input", "output")


def manifest_of(program: Program, page_bytes: tuple[int, ...], options: Mapping[str, Any]) -> Json:
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


def program_of(manifest: Json, body: tuple[Node, ...]) -> Program:
    """The program that `manifest_of` described; KeyError, TypeError or ValueError if it did not."""
    return Program(
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


def compulsory_bytes(program: Program) -> dict[str, int]:
    """Bytes that must cross the DRAM port at least once, by class: weights, network inputs, network outputs."""
    return {
        class_: sum(_value_bytes(e) for e in program.externals if e.class_ == class_) for class_ in COMPULSORY
    }


def _value_bytes(external: External) -> int:
    return math.prod(external.shape) * ELEMENT_BYTES[external.element]


def _interface(program: Program, class_: ExternalClass) -> list[Json]:
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


def _external(external: External) -> Json:
    return {
        "name": external.name,
        "class": external.class_,
        "address": external.address,
        "bytes": external.bytes,
        "shape": list(external.shape),
        "element": external.element,
        "model_dtype": external.model_dtype,
    }


def _read_external(data: Json) -> External:
    return External(
        name=str(data["name"]),
        class_=data["class"],
        address=int(data["address"]),
        bytes=int(data["bytes"]),
        shape=tuple(map(int, data["shape"])),
        element=data["element"],
        model_dtype=str(data["model_dtype"]),
    )
