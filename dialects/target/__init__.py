"""The machine as data: every number that the compiler and the emulator know about it.

A target description is a YAML file (`read_target`); it travels in the IR as the module attribute
`frustum.target` (`to_attribute`, `from_attribute`) and in executables as JSON (`to_json`, `from_json`).
All of them are checked against the declarations below, which `docs/targets.md` prints.
What single actions take in cycles and energy is computed in `durations.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from frustum.dialects.choices import DTYPES, POLICIES
from frustum.dialects.errors import Error
from frustum.dialects.target.declared import (
    MULTIPLES,
    Declared,
    FieldProblem,
    Parameter,
    build,
    declared,
    plain,
)  # fmt: skip
from frustum.dialects.target.host import OF_CLOCK, Host

if TYPE_CHECKING:
    from xdsl.dialects.builtin import DictionaryAttr


_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


class TargetError(Error, ValueError):
    """A target description is wrong; the text holds every problem found."""


def _size(doc: str, low: int, high: int) -> Parameter:
    return Parameter(doc, low, high, "B")


def _rate(doc: str) -> Parameter:
    return Parameter(doc, 1, 65536, "B/cycle")


def _passes(doc: str) -> Parameter:
    return Parameter(doc, 1, 64, "passes")


def _cycles(doc: str) -> Parameter:
    return Parameter(doc, 1, 1024, "cycles")


def _energy(doc: str) -> Parameter:
    return Parameter(doc, 0.0, 1e6, "pJ")


@dataclass(frozen=True)
class Memory:
    """One memory.  On chip it has a port to read and one to write; a DRAM has one port for both."""

    capacity_bytes: Annotated[int, _size("size of one instance", 256, 1024 * _GIB)]
    port_bytes_per_cycle: Annotated[int, _rate("bandwidth of a port for transfers")]
    latency_cycles: Annotated[int, Parameter("delay of a completion, occupying nothing", 0, 10**6, "cycles")]
    energy_pj_per_byte: Annotated[float, Parameter("energy of a byte read or written", 0.0, 1e6, "pJ/B")]
    minimum_run_bytes: Annotated[
        int, _size("a shorter contiguous run takes the port's time of this", 1, 4096)
    ]


@dataclass(frozen=True)
class Engine:
    """Something that moves bytes: a DMA engine or the broadcast bus."""

    bytes_per_cycle: Annotated[int, _rate("what the engine itself can move")]


@dataclass(frozen=True)
class Transfers:
    """How DMA engines cut and overlap their transfers."""

    chunk_bytes: Annotated[int, _size("a transfer goes in chunks of this size", 16, _MIB)]
    in_flight: Annotated[int, Parameter("transfers one engine may have started and not completed", 1, 1024)]


@dataclass(frozen=True)
class CyclesByWidth:
    """Cycles for each width of element."""

    int8: Annotated[int, _cycles("elements of 8 bits")]
    sixteen_bit: Annotated[int, _cycles("elements of 16 bits (int16, f16, bf16)")]
    f32: Annotated[int, _cycles("elements of 32 bits (f32, int32)")]

    def of(self, element_bytes: int) -> int:
        return {1: self.int8, 2: self.sixteen_bit, 4: self.f32}[element_bytes]


@dataclass(frozen=True)
class EnergyByWidth:
    """Energy of one action for each width of element."""

    int8: Annotated[float, _energy("elements of 8 bits")]
    sixteen_bit: Annotated[float, _energy("elements of 16 bits (int16, f16, bf16)")]
    f32: Annotated[float, _energy("elements of 32 bits (f32, int32)")]

    def of(self, element_bytes: int) -> float:
        return {1: self.int8, 2: self.sixteen_bit, 4: self.f32}[element_bytes]


@dataclass(frozen=True)
class LineBuffer:
    """The lines between NRAM and the multipliers; one write reads one block."""

    lines: Annotated[int, Parameter("lines P: output positions of a pass", 1, 4096)]
    block_bytes: Annotated[int, _size("what one write reads", 8, 4096)]


@dataclass(frozen=True)
class MatrixUnit:
    """The multipliers: P lines x Q channels."""

    channels: Annotated[int, Parameter("output channels Q of a pass", 1, 4096)]
    line_buffer: Annotated[LineBuffer, Parameter("what feeds it; its lines are P")]
    cycles_per_step: Annotated[CyclesByWidth, Parameter("P x Q multiply-accumulates")]
    energy_pj_per_mac: Annotated[EnergyByWidth, Parameter("one multiply-accumulate")]
    address_cycles: Annotated[
        int,
        Parameter("an address that no table holds, or a step to a table's next piece; 8 if absent", 0, 1024, "cycles"),
    ] = 8

    @property
    def lines(self) -> int:
        return self.line_buffer.lines

    @property
    def macs_per_step(self) -> int:
        return self.lines * self.channels

    def macs_per_cycle(self, element_bytes: int) -> float:
        """Multiply-accumulates per cycle at best, for elements of 1, 2 or 4 bytes."""
        return self.macs_per_step / self.cycles_per_step.of(element_bytes)


@dataclass(frozen=True)
class VectorPasses:
    """How often the simple operations go over their elements."""

    elementary: Annotated[int, _passes("add, multiply, compare, select, convert, scale and shift")]
    transcendental: Annotated[int, _passes("exponential, logarithm, root, division, sigmoid, tanh, sine, cosine, erf")]
    pool_per_kernel_element: Annotated[int, _passes("pooling, for each element of its kernel")]
    lrn_per_window_element: Annotated[
        int, _passes("local response normalisation, for each channel of its window")
    ]
    reduction: Annotated[int, _passes("sum, maximum, minimum, mean")]
    resize_nearest: Annotated[int, _passes("resize to the nearest element")]
    resize_linear: Annotated[int, _passes("linear resize")]


@dataclass(frozen=True)
class VectorUnit:
    """Element-wise work, pooling, normalisation."""

    lanes: Annotated[int, Parameter("elements worked on at once", 1, 65536)]
    cycles_per_element: Annotated[CyclesByWidth, Parameter("of a lane, for an element in a pass")]
    passes: Annotated[VectorPasses, Parameter("over the elements; other operations are sums of these")]


@dataclass(frozen=True)
class Core:
    """A compute unit with memories of its own."""

    nram: Annotated[Memory, Parameter("its memory of neurons: feature maps and results")]
    wram: Annotated[Memory, Parameter("its memory of weights")]
    iodma: Annotated[Engine, Parameter("DRAM <-> NRAM, WRAM")]
    mvdma: Annotated[Engine, Parameter("SRAM <-> NRAM, WRAM")]
    matrix: Annotated[MatrixUnit, Parameter("convolutions and matrix products")]
    vector: Annotated[VectorUnit, Parameter("element-wise work, pooling, normalisation, reduction")]
    address_cache_bytes: Annotated[int, _size("address tables a core can hold at a time", 16, _GIB)]

    @property
    def line_buffer(self) -> LineBuffer:
        return self.matrix.line_buffer


@dataclass(frozen=True)
class Cluster:
    """Cores around one shared memory."""

    cores: Annotated[int, Parameter("cores of a cluster", 1, 256)]
    instruction_memory_bytes: Annotated[int, _size("program memory that the cores share", 256, _GIB)]
    event_slots: Annotated[int, Parameter("event counters of a cluster", 1, 65536)]
    sram: Annotated[Memory, Parameter("memory that its cores share")]
    gdma: Annotated[Engine, Parameter("DRAM <-> SRAM; a read may go to the SRAMs of several clusters")]
    cdma: Annotated[Engine | None, Parameter("SRAM -> SRAM of another cluster")]
    bus: Annotated[Engine, Parameter("broadcast: SRAM -> NRAM, WRAM of one, several or all cores")]
    core: Annotated[Core, Parameter("each of its cores")]


@dataclass(frozen=True)
class Chip:
    """Clusters around one DRAM."""

    clusters: Annotated[int, Parameter("clusters of a chip", 1, 1024)]
    dram: Annotated[Memory, Parameter("memory that its clusters share")]
    cluster: Annotated[Cluster, Parameter("each of its clusters")]


@dataclass(frozen=True)
class Options:
    """What the command line takes for this target when it is not told otherwise."""

    dtype: Annotated[str | None, Parameter("value of --dtype", choices=DTYPES)] = None
    policy: Annotated[
        str | None, Parameter("value of --policy; `custom`: the rules beside it", choices=POLICIES.and_also("custom"))
    ] = None
    rules: Annotated[str | None, Parameter("instead of a policy its rules, as in S1,1,4,8-12")] = None
    thresholds: Annotated[str | None, Parameter("of rules, as in 11=75,19=6")] = None


@dataclass(frozen=True)
class Target:
    """A whole machine: equal chips of equal clusters of equal cores."""

    name: Annotated[str, Parameter("how reports call it")]
    modelled_on: Annotated[str, Parameter("what it resembles")]
    clock_hz: Annotated[int, Parameter("cycles per second", 1, 10**12, "Hz")]
    chips: Annotated[int, Parameter("chips of the machine", 1, 1024)]
    host_link_bytes_per_cycle: Annotated[int, _rate("link between the host's memory and a chip's DRAM")]
    chip_link_bytes_per_cycle: Annotated[int | None, _rate("link between the DRAMs of two chips")]
    alignment_bytes: Annotated[int, _size("buffers start at multiples of this", 1, 4096)]
    transfers: Annotated[Transfers, Parameter("how DMA engines cut and overlap their transfers")]
    chip: Annotated[Chip, Parameter("each of its chips")]
    host: Annotated[Host, Parameter("what runs that the device lacks")] = OF_CLOCK
    options: Annotated[Options, Parameter("what the command line takes where it is not told otherwise")] = (
        Options()
    )

    @property
    def cluster(self) -> Cluster:
        return self.chip.cluster

    @property
    def core(self) -> Core:
        return self.chip.cluster.core

    def host_cycles(self, macs: int, size_bytes: int) -> int:
        """What a piece on the host takes, of this machine's cycles."""
        return self.host.cycles(macs, size_bytes, self.clock_hz)

    @property
    def cores_per_chip(self) -> int:
        return self.chip.clusters * self.cluster.cores

    @property
    def total_cores(self) -> int:
        return self.chips * self.cores_per_chip

    def memory(self, name: str) -> Memory:
        """The memory called dram, sram, nram or wram."""
        memories = {
            "dram": self.chip.dram,
            "sram": self.cluster.sram,
            "nram": self.core.nram,
            "wram": self.core.wram,
        }
        return memories[name]


EXTENDS = "extends"
"""The key of the target that a file says only the differences to."""
OWN = ("name",)
"""What every file says of itself."""


def read_target(
    text: str,
    file: str,
    check_options: Callable[[Mapping[str, Any]], list[FieldProblem]] = lambda options: [],
    base: Callable[[str], Target] | None = None,
) -> Target:
    """The target that a YAML text describes; `TargetError` names every problem with its line and column.

    `check_options` finds what only those know who heed the options: what it says is reported with all else.  `base` is
    the target that `extends` names: keys that the text does not have are that one's, section by section.
    """
    from frustum.dialects.target import strict_yaml

    document = strict_yaml.read(text, file)
    target, problems = (None, document.problems)
    if not problems:
        data, problems = _extended(document.data, base)
        if not problems:
            target, problems = build(Target, data)
        options = data.get("options") if isinstance(data, dict) else None
        if isinstance(options, dict):
            problems = [*problems, *check_options(options)]
        if target is not None:
            problems = [*problems, *cross_checks(target)]
        target = None if problems else target
    if target is None or document.second_keys:
        raise TargetError(document.report(problems))
    return target


def _extended(data: Any, base: Callable[[str], Target] | None) -> tuple[Any, list[FieldProblem]]:
    """What a text says with what the target says that it extends."""
    if not isinstance(data, dict) or EXTENDS not in data or base is None:
        return data, []
    name = data[EXTENDS]
    if not isinstance(name, str):
        return data, [FieldProblem((EXTENDS,), f"{EXTENDS}: found {name!r}, allowed a shipped target or a file")]
    try:
        whole = to_json(base(name))
    except TargetError as error:
        return data, [FieldProblem((EXTENDS,), f"{EXTENDS}: {str(error).removeprefix('error: ')}")]
    inherited = {key: value for key, value in whole.items() if key not in OWN}
    return _merged(inherited, {key: value for key, value in data.items() if key != EXTENDS}), []


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Sections key by key; all else as it is above."""
    found = dict(below)
    for key, value in above.items():
        old = below.get(key)
        found[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def cross_checks(target: Target) -> list[FieldProblem]:
    """What is wrong between keys, each of which is right by itself."""
    problems = []
    alignment, core = target.alignment_bytes, target.core
    if alignment & (alignment - 1):
        message = f"alignment_bytes: found {alignment}, allowed a power of two: blocks and vectors are"
        problems.append(FieldProblem(("alignment_bytes",), message))
    if target.chips > 1 and target.chip_link_bytes_per_cycle is None:
        message = f"chip_link_bytes_per_cycle: found nothing, and there are {target.chips} chips that need a link"
        problems.append(FieldProblem(("chip_link_bytes_per_cycle",), message))
    parts: list[tuple[tuple[str, ...], Memory]] = [
        (("chip", "cluster", "sram"), target.cluster.sram),
        (("chip", "cluster", "core", "nram"), core.nram),
        (("chip", "cluster", "core", "wram"), core.wram),
    ]
    for path, memory in parts:
        if memory.capacity_bytes < memory.minimum_run_bytes:
            message = (
                f"{'.'.join(path)}.capacity_bytes: found {memory.capacity_bytes} B, less than the"
                f" {memory.minimum_run_bytes} B of minimum_run_bytes"
            )
            problems.append(FieldProblem((*path, "capacity_bytes"), message))
    return problems


def json_schema() -> dict[str, Any]:
    """The declarations as a JSON Schema (draft 2020-12), with which editors complete and check keys."""
    schema = _section_schema(Target)
    schema["properties"][EXTENDS] = {
        "type": "string", "description": "a shipped target or a file: keys that are not said are those of that one",
    }  # fmt: skip
    schema["anyOf"] = [{"required": [EXTENDS, *OWN]}, {"required": schema.pop("required")}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Frustum target", **schema,
    }  # fmt: skip


def _section_schema(owner: type, is_part: bool = False) -> dict[str, Any]:
    properties = {name: _field_schema(each) for name, each in declared(owner).items()}
    needed = [name for name, each in declared(owner).items() if each.required]
    # a section of a target that extends another says some of its keys
    return {"type": "object", "properties": properties, "additionalProperties": False} | (
        {} if is_part else {"required": needed}
    )


def _field_schema(each: Declared) -> dict[str, Any]:
    parameter = each.parameter
    if each.is_section:
        found = _section_schema(each.kind, is_part=True)
    elif parameter.choices:
        found = {"enum": list(parameter.choices)}
    elif each.kind is str:
        found = {"type": "string", "minLength": 1}
    else:
        number = "integer" if each.kind is int else "number"
        found = {"type": number, "minimum": parameter.low, "maximum": parameter.high}
        if parameter.unit in MULTIPLES:
            multiples = "|".join((parameter.unit, *MULTIPLES[parameter.unit]))
            found = {"anyOf": [found, {"type": "string", "pattern": f"^[0-9]+ ({multiples})$"}]}
    if each.optional:
        found = {"anyOf": [found, {"type": "null"}]}
    unit = f" ({parameter.unit})" if parameter.unit else ""
    return found | {"description": f"{each.doc}{unit}"}


def to_json(target: Target) -> dict[str, Any]:
    """The target as nested dictionaries of numbers and text."""
    result: dict[str, Any] = plain(target)
    return result


def digest(target: Target) -> str:
    """SHA-256 of all that the target says, in hexadecimal: equal only for equal machines."""
    text = json.dumps(to_json(target), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def from_json(data: object) -> Target:
    """The target that `to_json` gave; `TargetError` names every problem with its path."""
    target, problems = build(Target, data)
    if target is None:
        raise TargetError("\n".join(f"target: error: {problem.message}" for problem in problems))
    return target


def to_attribute(target: Target) -> DictionaryAttr:
    """The target as it stands in the IR: integers i64, other numbers f64; what is absent is left out."""
    return _to_dictionary(plain(target))


def from_attribute(attribute: DictionaryAttr) -> Target:
    """The target that `to_attribute` gave; `TargetError` names every problem with its path."""
    return from_json(_from_dictionary(Target, attribute))


def _to_dictionary(data: Mapping[str, Any]) -> DictionaryAttr:
    from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, StringAttr, f64, i64

    def attribute(value: Any) -> Any:
        match value:
            case dict():
                return _to_dictionary(value)
            case int():
                return IntegerAttr(value, i64)
            case float():
                return FloatAttr(value, f64)
        return StringAttr(value)

    return DictionaryAttr({name: attribute(value) for name, value in data.items() if value is not None})


def _from_dictionary(owner: type, attribute: DictionaryAttr) -> dict[str, Any]:
    from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, StringAttr

    fields = declared(owner)
    data: dict[str, Any] = {name: None for name, field in fields.items() if field.optional}
    for name, value in attribute.data.items():
        match value:
            case DictionaryAttr() if name in fields and fields[name].is_section:
                data[name] = _from_dictionary(fields[name].kind, value)
            case IntegerAttr() | FloatAttr():
                data[name] = value.value.data
            case StringAttr():
                data[name] = value.data
            case _:
                data[name] = str(value)
    return data
