"""A module at any stop to an executable."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr

from frustum.backend.encode import encode
from frustum.backend.executable import Executable, build_executable
from frustum.backend.pipeline import Choices, Run, is_measured, stop_of, stops_after
from frustum.backend.read_program import read_program
from frustum.dialects.fit import DoesNotFit, OrderDoesNotFit
from frustum.dialects.graph import shape_of
from frustum.dialects.isa.program import Element, Program
from frustum.dialects.target import ATTRIBUTE as TARGET
from frustum.dialects.target import Target, to_attribute
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.module import element_bytes, target_of
from frustum.passes.fuse.policy import chosen
from frustum.passes.import_onnx import MODEL
from frustum.passes.lower.weight_blocks import COMPRESSION
from frustum.passes.tile.order_words import parse_order
from frustum.passes.weights import WeightStore, store_of

ACCURACY = "frustum.accuracy"
"""Module attribute: for the report, how exact a quantised network is; JSON."""

SRAM_SHARES = (1.0, 0.9, 0.8, 0.65, 0.5, 0.35)
"""Shares of SRAM that units may use, in the order tried: buffers of one unit may leave holes."""
MEASURED_SHARES = (1.0, 0.9)
"""The same with weights as small as compression is expected to make them, before those with weights as they are."""
JOINED_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)
"""Shares of code and events that joined sections may take, in the order tried; 0: a section for each unit."""
JOINED_AT_FIRST = 1.1
"""The share tried before 1: the code is smaller than estimated, and the encoder says if it is not."""
TABLES, INSTRUCTIONS = "address tables", "instruction memory"
"""In the messages that a section has too many tables, or pages too much code."""
NUMPY: dict[Element, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
}

AtStop = Callable[[str, ModuleOp], None]


@dataclass
class Compiled:
    """An executable and how long each pass took."""

    executable: Executable
    seconds: float
    passes: dict[str, float] = field(default_factory=dict)


def compile_module(
    module: ModuleOp, target: Target | None, choices: Choices, at_stop: AtStop = lambda stop, module: None
) -> Compiled:
    """Continue a module from the stop it is at; `target` None keeps the module's own.

    Raises `DoesNotFit` when no partition fits, `Unsupported` for layers without an engine.
    """
    started = time.perf_counter()
    if target is not None:
        module.attributes[TARGET] = to_attribute(target)
    run = Run(at_stop)
    module = fixed(module, choices, run)
    began = time.perf_counter()
    executable = executable_of(module, choices)
    run.seconds["encode"] = time.perf_counter() - began
    return Compiled(executable, time.perf_counter() - started, run.seconds)


def fixed(module: ModuleOp, choices: Choices, run: Run, stop: str | None = None) -> ModuleOp:
    """The module at stop `fixed`; partitions are made smaller until the allocator finds room for all buffers, and
    sections shorter until the address tables of each have room.  `stop`: where it is, if it does not show."""
    stop = stop or stop_of(module)
    early = ("typed",) if is_cut_by_fusion(module, choices) else ("typed", "fused")
    before = [s for s in stops_after(stop) if s in early]
    after = [s for s in stops_after(stop) if s not in early]
    run.advance(module, before, choices)
    shares = [(share, choices.raw_sizes) for share in (SRAM_SHARES if "tiled" in after else SRAM_SHARES[:1])]
    if "tiled" in after and is_measured(choices):
        shares = [*((share, False) for share in MEASURED_SHARES), *((share, True) for share in SRAM_SHARES)]
    joined = [choices.joined, *(share for share in JOINED_SHARES if share < choices.joined)]
    if choices.joined == 1:
        joined.insert(0, JOINED_AT_FIRST)
    joined = joined if "lowered" in after else [choices.joined]
    first: DoesNotFit | None = None
    most: int | None = None  # bytes between units, in DRAM, when all of SRAM may be used
    cut = stops_to(after, "tiled")
    while True:
        is_last = len(shares) == len(joined) == 1
        attempt = module if is_last else module.clone()
        try:
            share, raw_sizes = shares[0]
            tried_choices = replace(choices, sram=share, raw_sizes=raw_sizes, joined=joined[0])
            run.advance(attempt, cut, tried_choices)
            if first is not None and is_bound(choices) and most is not None and between_bytes(attempt) > most:
                raise OrderDoesNotFit(first.what, first.where, first.needed, first.available)
            most = between_bytes(attempt) if most is None else most
            run.advance(attempt, after[len(cut) :], tried_choices)
            if joined[0] > 1 and "fixed" in after:
                encode(read_program(attempt), target_of(attempt).cluster.instruction_memory_bytes)
        except OrderDoesNotFit as error:
            raise error.under(traversal(choices)) from None
        except DoesNotFit as error:
            first = first or error
            tried = shares if "sram" in str(error).lower() else joined if is_of_sections(error) else [None]
            if len(tried) < 2:
                raise (first.under(traversal(choices)) if is_bound(choices) else first) from None
            tried.pop(0)
            continue
        return attempt


def stops_to(stops: Sequence[str], last: str) -> Sequence[str]:
    """The stops up to this one; all of them, if it is not among them."""
    return stops[: stops.index(last) + 1] if last in stops else stops


def is_bound(choices: Choices) -> bool:
    """Whether an order was asked for that may run layer by layer: no map may move to DRAM for its sake."""
    if choices.order is None:
        return False
    return choices.borders == "exchange" or parse_order(choices.order).depth == "breadth-first"


def between_bytes(module: ModuleOp) -> int:
    """Of the maps that units leave in DRAM for other units."""
    return sum(
        math.prod(shape_of(result)) * element_bytes(result)
        for unit in module.walk()
        if isinstance(unit, UnitOp)
        for number, result in enumerate(unit.results)
        if number not in unit.kept and any(isinstance(use.operation, UnitOp) for use in result.uses)
    )


def traversal(choices: Choices) -> str:
    """The order and the borders that were asked for, in the words of the options."""
    order = [] if choices.order is None else [f"order {choices.order}"]
    borders = [] if choices.borders is None else [f"borders {choices.borders}"]
    return " with ".join(order + borders)


def is_of_sections(error: DoesNotFit) -> bool:
    """Whether shorter sections may help: address tables or code do not fit."""
    return TABLES in str(error) or INSTRUCTIONS in str(error)


def is_cut_by_fusion(module: ModuleOp, choices: Choices) -> bool:
    """Whether the pass that fuses cuts units into tiles too, so that a smaller share of SRAM concerns it."""
    policy = chosen(choices.policy, choices.rules, choices.thresholds, target_of(module).options)[0]
    return policy == "optimal"


def executable_of(module: ModuleOp, choices: Choices) -> Executable:
    """Encode a fixed module and join its weights."""
    program = read_program(module)
    target = target_of(module)
    options: dict[str, Any] = {
        "policy": chosen(choices.policy, choices.rules, choices.thresholds, target.options)[0],
        "layers": layer_facts(module),
        "units": unit_facts(module),
    }
    if isinstance(model := module.attributes.get(MODEL), StringAttr):
        options["model"] = model.data
    if isinstance(accuracy := module.attributes.get(ACCURACY), StringAttr):
        options["accuracy"] = json.loads(accuracy.data)
    if isinstance(compression := module.attributes.get(COMPRESSION), StringAttr):
        options["weights"] = json.loads(compression.data)
    return build_executable(
        program, weights_of(program, store_of(module)), options, target.cluster.instruction_memory_bytes
    )


def weights_of(program: Program, store: WeightStore) -> list[tuple[int, NDArray[Any]]]:
    """Address and data of every weight, in the device's type, and of every address table."""
    tables = [(e.address, np.asarray(store[e.name])) for e in program.externals if e.class_ == "program"]
    return tables + [
        (e.address, np.asarray(store[e.name]).astype(NUMPY[e.element], copy=False))
        for e in program.externals
        if e.class_ == "weight"
    ]


def layer_facts(module: ModuleOp) -> list[dict[str, Any]]:
    """Kind and unit of every layer, for reports."""
    kinds, units = _words(module, "frustum.layer_kinds"), _numbers(module, "frustum.layer_units")
    return [{"op": kind, "unit": unit} for kind, unit in zip(kinds, units, strict=True)]


def unit_facts(module: ModuleOp) -> list[dict[str, Any]]:
    """Mode, tiles, bytes of rows and columns that it keeps, and why it stopped growing of every unit, for reports."""
    columns = zip(
        _words(module, "frustum.unit_modes"),
        _words(module, "frustum.unit_stopped_by"),
        _numbers(module, "frustum.unit_tiles"),
        _numbers(module, "frustum.unit_kept_bytes"),
        strict=True,
    )
    keys = ("mode", "stopped_by", "tiles", "kept_bytes")
    return [dict(zip(keys, facts, strict=True)) for facts in columns]


def _words(module: ModuleOp, name: str) -> list[str]:
    attribute = module.attributes.get(name)
    return (
        [a.data for a in attribute.data if isinstance(a, StringAttr)]
        if isinstance(attribute, ArrayAttr)
        else []
    )


def _numbers(module: ModuleOp, name: str) -> list[int]:
    attribute = module.attributes.get(name)
    if not isinstance(attribute, ArrayAttr):
        return []
    return [a.value.data for a in attribute.data if isinstance(a, IntegerAttr)]
