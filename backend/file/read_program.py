"""The plain program that a scheduled `fisa` module stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.traits import is_side_effect_free
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.foreign import is_foreign, name_of
from frustum.dialects.isa import program as p
from frustum.dialects.isa.attributes import BufferType
from frustum.dialects.isa.format import WAITS_INSIDE
from frustum.dialects.isa.instruction import Instruction, value_of
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp, RepeatOp
from frustum.dialects.module import DTYPE, LAYERS, OWN_ELEMENTS, TARGET, UNITS, USEFUL_MACS
from frustum.dialects.target import from_attribute, to_json


def read_program(module: ModuleOp) -> p.Program:
    """The module's program; VerifyException where a buffer has no address or the target is missing."""
    programs = [op for op in module.ops if isinstance(op, ProgramOp)]
    if len(programs) != 1:
        raise VerifyException(f"expected one 'fisa.program' in the module, found {len(programs)}")
    check_alone(programs[0])
    reader = _Reader()
    body = reader.body(programs[0].body.block, 0)
    core_slots, cluster_slots = slots_of(p.instructions(body))
    return p.Program(
        body=body,
        externals=tuple(reader.externals),
        name=programs[0].sym_name.data,
        dtype=_text(module, DTYPE),
        target=_target(module),
        layers=_values(module, LAYERS),
        units=_values(module, UNITS),
        useful_macs=_values(module, USEFUL_MACS),
        own_elements=_values(module, OWN_ELEMENTS),
        core_slots=core_slots,
        cluster_slots=cluster_slots,
        peak_bytes=reader.peak_bytes,
    )


def check_alone(program: ProgramOp) -> None:
    """Raise `VerifyException` where operations of other dialects stand in a program: the device cannot run them.

    It leaves out those that nobody misses: they have no effect but results, which no instruction reads.
    """
    for op in program.body.block.ops:
        if is_foreign(op) and not is_side_effect_free(op):
            raise VerifyException(
                f"'{name_of(op)}' is no operation of a program, and the device cannot run it: an executable is made of "
                "a network without operations of other dialects"
            )


def read_nodes(program: ProgramOp) -> tuple[p.Node, ...]:
    """The text of a program alone, without operations of other dialects; VerifyException where a buffer has no
    address."""
    return _Reader().body(program.body.block, 0)


def slots_of(instructions: Iterable[p.Instruction]) -> tuple[int, int]:
    """How many slots every core and every cluster needs."""
    core, cluster = 0, 0
    for instruction in instructions:
        on_core = instruction.engine in p.CORE_ENGINES
        used = [(w.slot, _is_core_slot(w.scope, on_core)) for w in instruction.waits]
        if instruction.signal is not None:
            used.append((instruction.signal, on_core))
        core = max([core, *(slot + 1 for slot, of_core in used if of_core)])
        cluster = max([cluster, *(slot + 1 for slot, of_core in used if not of_core)])
    return core, cluster


def _is_core_slot(scope: p.Scope, on_core: bool) -> bool:
    return on_core if scope == "own" else scope in ("cores", "all_cores")


def with_holds(instruction: p.Instruction) -> list[p.Instruction]:
    """The instruction behind as many `wait` instructions of its engine as its waits beyond two need."""
    waits, engine = instruction.waits, instruction.engine
    if len(waits) <= WAITS_INSIDE or engine is None:
        return [instruction]
    common = {"stage": instruction.stage, "layer": instruction.layer, "unit": instruction.unit}
    holds: list[p.Instruction] = [
        p.Hold(engine=engine, waits=waits[first : first + WAITS_INSIDE], **common)
        for first in range(WAITS_INSIDE, len(waits), WAITS_INSIDE)
    ]
    return [*holds, replace(instruction, waits=waits[:WAITS_INSIDE])]


class _Reader:
    """Reads bodies; knows where every buffer lies."""

    def __init__(self) -> None:
        self.externals: list[p.External] = []
        self.peak_bytes: dict[p.Memory, int] = {}
        self.places: dict[SSAValue, tuple[p.Memory, int, p.Ring | None]] = {}

    def body(self, block: Block, depth: int) -> tuple[p.Node, ...]:
        nodes: list[p.Node] = []
        for op in block.ops:
            if isinstance(op, Instruction):
                nodes.extend(with_holds(self._instruction(op)))
            elif isinstance(op, RepeatOp):
                body = self.body(op.body.block, depth + 1)
                nodes.append(p.Repeat(op.count.value.data, body, op.stage.value.data))
            elif isinstance(op, AllocOp):
                ring = p.Ring(op.depth.value.data, op.bytes.value.data, depth)
                self._place(op, ring.depth, ring if depth and ring.depth > 1 else None)
            elif isinstance(op, ExternalOp):
                self._external(op)
            elif not is_foreign(op):
                raise VerifyException(f"'{name_of(op)}' is no operation of a program")
        return tuple(nodes)

    def _external(self, op: ExternalOp) -> None:
        address = self._place(op, 1, None)
        values = {name: value_of(a) for name, a in op.properties.items()}
        class_ = values.pop("class")
        values["model_dtype"] = values.get("model_dtype", "")
        self.externals.append(p.External(**{**values, "class_": class_, "address": address}))

    def _place(self, op: AllocOp | ExternalOp, copies: int, ring: p.Ring | None) -> int:
        if op.address is None:
            raise VerifyException(f"'{op.name}' has no address: run frustum-allocate first")
        assert isinstance(op.buffer.type, BufferType)
        memory, address = op.buffer.type.memory, op.address.value.data
        self.places[op.buffer] = memory, address, ring
        end = address + copies * op.bytes.value.data
        self.peak_bytes[memory] = max(self.peak_bytes.get(memory, 0), end)
        return int(address)

    def _instruction(self, op: Instruction) -> p.Instruction:
        views: dict[str, p.View] = {}
        for operand, view in op.VIEWS:
            buffer = getattr(op, operand)
            if buffer is not None:
                if buffer not in self.places:
                    raise VerifyException(f"'{op.name}': {operand} is a buffer that is made behind it")
                memory, address, ring = self.places[buffer]
                relative: p.View = getattr(op, view).data
                if relative.wrap is not None and ring is not None:
                    raise VerifyException(
                        f"'{op.name}': {view} wraps, so its buffer is one ring, but it has {ring.depth} copies"
                    )
                views[view] = replace(relative, offset=relative.offset + address, memory=memory, ring=ring)
        return op.plain(**views)


def _target(module: ModuleOp) -> str:
    attribute = module.attributes.get(TARGET)
    if not isinstance(attribute, DictionaryAttr):
        raise VerifyException(f"the module has no target: attribute {TARGET}")
    return json.dumps(to_json(from_attribute(attribute)), sort_keys=True)


def _text(module: ModuleOp, name: str) -> str:
    attribute = module.attributes.get(name)
    if not isinstance(attribute, StringAttr):
        raise VerifyException(f"the module has no {name}")
    return attribute.data


def _values(module: ModuleOp, name: str) -> tuple[Any, ...]:
    attribute: Attribute | None = module.attributes.get(name)
    if attribute is None:
        return ()
    if not isinstance(attribute, ArrayAttr | DenseArrayBase):
        raise VerifyException(f"{name} is a list, found {attribute}")
    values: tuple[Any, ...] = value_of(attribute)
    return values
