# Tests: test/pipeline/test_adds_up.py
"""The executable of a fixed module: its code, weights and address tables, and what reports are told of it."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.file.encoder import Code
from frustum.backend.file.executable import Executable, build_executable
from frustum.backend.file.read_program import read_program
from frustum.backend.pipeline import Choices
from frustum.dialects import module as m
from frustum.dialects.isa.program import Element, Program
from frustum.dialects.isa.sync import ExternalOp
from frustum.passes.analysis.module import target_of
from frustum.passes.fuse.policy import chosen
from frustum.passes.weights import WeightStore, store_of

NUMPY: dict[Element, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
}


def executable_of(
    module: ModuleOp, choices: Choices, program: Program | None = None, code: Code | None = None
) -> Executable:
    """Encode a fixed module and join its weights; `program` and `code` where they are there already."""
    program = program or read_program(module)
    target = target_of(module)
    options: dict[str, Any] = {
        "policy": chosen(choices.policy, choices.rules, choices.thresholds, target.options)[0],
        "compress_weights": choices.asked_compression,
        "may_compress": choices.may_compress,
        "layers": layer_facts(module),
        "units": unit_facts(module),
    }
    why = {op.external_name.data: m.text_of(op, m.WHY_IN_DRAM) for op in module.walk() if isinstance(op, ExternalOp)}
    if any(why.values()):
        options["in_dram"] = {name: text for name, text in why.items() if text}
    if (model := m.text_of(module, m.MODEL)) is not None:
        options["model"] = model
    if (accuracy := m.text_of(module, m.ACCURACY)) is not None:
        options["accuracy"] = json.loads(accuracy)
    if (compression := m.text_of(module, m.COMPRESSION)) is not None:
        options["weights"] = json.loads(compression)
    if (alternatives := m.text_of(module, m.ALTERNATIVES)) is not None:
        options["alternatives"] = json.loads(alternatives)
    if (least := m.text_of(module, m.LEAST_WORK)) is not None:
        options["least_work"] = json.loads(least)
    if (whole := m.text_of(module, m.WHOLE_NETWORK)) is not None:
        options["whole_network"] = json.loads(whole)
    weights = weights_of(program, store_of(module))
    return build_executable(program, weights, options, target.cluster.instruction_memory_bytes, code)


def tables_of(program: Program, store: WeightStore) -> list[tuple[int, NDArray[Any]]]:
    """Address and bytes of every address table."""
    return [(e.address, np.asarray(store[e.name])) for e in program.externals_of("program")]


def weights_of(program: Program, store: WeightStore) -> list[tuple[int, NDArray[Any]]]:
    """Address and data of every weight, in the device's type, and of every address table."""
    return tables_of(program, store) + [
        (e.address, np.asarray(store[e.name]).astype(NUMPY[e.element], copy=False))
        for e in program.externals_of("weight")
    ]


def layer_facts(module: ModuleOp) -> list[dict[str, Any]]:
    """Operator, unit and the model's nodes of every layer, for reports; no nodes where it is one by its own name."""
    names, kinds = (m.texts_of(module, each) for each in (m.LAYERS, m.LAYER_KINDS))
    units, nodes = m.numbers_of(module, m.LAYER_UNITS), [json.loads(each) for each in m.texts_of(module, m.LAYER_NODES)]
    found = [{"op": kind, "unit": unit} for kind, unit in zip(kinds, units, strict=True)]
    for name, fact, own in zip(names, found, nodes, strict=False):
        if own and own != [name]:
            fact["nodes"] = own
    return found


def unit_facts(module: ModuleOp) -> list[dict[str, Any]]:
    """Mode, tiles, bytes of rows and columns that it keeps, who owns its tiles, and why it stopped growing of every
    unit, for reports."""
    columns = zip(
        m.texts_of(module, m.UNIT_MODES),
        m.texts_of(module, m.UNIT_STOPPED_BY),
        m.numbers_of(module, m.UNIT_TILES),
        m.numbers_of(module, m.UNIT_KEPT_BYTES),
        m.texts_of(module, m.UNIT_OWNERS),
        strict=True,
    )
    keys = ("mode", "stopped_by", "tiles", "kept_bytes", "owners")
    found = [dict(zip(keys, facts, strict=True)) for facts in columns]
    predictions = ("predicted_cycles", m.UNIT_PREDICTED_CYCLES), ("own_cycles", m.UNIT_OWN_CYCLES)
    for key, attribute in predictions:
        for fact, cycles in zip(found, m.numbers_of(module, attribute), strict=False):
            if cycles >= 0:
                fact[key] = cycles
    for fact, element in zip(found, m.texts_of(module, m.UNIT_CARRY), strict=False):
        if element:
            fact["carry"] = element
    return found
