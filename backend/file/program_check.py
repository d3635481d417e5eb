# Tests: test/backend/test_split_compile.py
"""What the code of an executable may say, so that nothing is allocated or divided on the word of a damaged one.

Checksums say that a file is what somebody wrote; these checks, that it is a program at all.  Where operands lie is
watched when they are used.

The address tables of an executable, looked at before anything runs: each is one, and its instructions can use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from frustum.backend.file.container import ExecutableError
from frustum.dialects.isa import program as p
from frustum.dialects.isa.tables.stored_table import StoredTable, TableError, check_use, find_table
from frustum.dialects.target import from_json

MOST_EXECUTIONS = 1 << 24
"""Of all instructions of a program together.  Each costs about a hundred bytes; ResNet-50 has 20,000 to 630,000."""


def check_program(program: p.Program, page_bytes: Sequence[int]) -> None:
    """ExecutableError unless a run takes bounded memory, and numbers are those of things that there are."""
    count = executions(program.body)
    if count > MOST_EXECUTIONS:
        _refuse(program, f"its loops run {count:,} instructions, at most {MOST_EXECUTIONS:,} are run")
    if program.layers and len(program.useful_macs) > len(program.layers):
        _refuse(program, f"useful_macs of {len(program.useful_macs)} layers, there are {len(program.layers)}")
    has_cdma = from_json(json.loads(program.target)).cluster.cdma is not None
    for number, (instruction, loops) in enumerate(_with_loops(program.body)):
        if instruction.engine == "cdma" and not has_cdma:
            _refuse(program, f"instruction {number}: the target has no cdma")
        checked = (*_numbers(instruction, program, page_bytes), *_numbers_of_views(instruction, loops))
        for what, found, least, most in checked:
            if not least <= found <= most:
                name = type(instruction).__name__.lower()
                _refuse(program, f"instruction {number} ({name}): {what}: found {found}, allowed {least} to {most}")


def _refuse(program: p.Program, why: str) -> NoReturn:
    raise ExecutableError(f"program '{program.name}' is damaged: {why}")


def executions(body: Sequence[p.Node]) -> int:
    """How many instructions run in all, on one of the units that run them."""
    return sum(
        (node.count + _last_stage(node.body)) * max(1, executions(node.body)) if isinstance(node, p.Repeat) else 1
        for node in body
    )


def _with_loops(body: Sequence[p.Node], loops: int = 0) -> Iterator[tuple[p.Instruction, int]]:
    """The instructions in textual order, each with how many loops are around it."""
    for node in body:
        if isinstance(node, p.Repeat):
            yield from _with_loops(node.body, loops + 1)
        else:
            yield node, loops


def _last_stage(body: Sequence[p.Node]) -> int:
    return max((node.stage for node in body), default=0)


def _numbers(
    instruction: p.Instruction, program: p.Program, page_bytes: Sequence[int]
) -> Iterator[tuple[str, int, int, int]]:
    """What is checked of an instruction: what it is, the number, the least and the most that is allowed."""
    yield "layer", instruction.layer, 0, len(program.layers) + MOST_UNNAMED
    yield "unit", instruction.unit, 0, len(program.units) + MOST_UNNAMED
    match instruction:
        case p.Fetch():
            yield "page", instruction.page, 0, len(page_bytes) - 1
        case p.TableLoad():
            yield "bytes", instruction.bytes, 0, max((e.bytes for e in program.externals), default=0)
        case p.Conv() | p.Pool() | p.Depthwise():
            for what in ("kernel", "strides", "dilations"):
                for found in getattr(instruction, what):
                    yield what, found, 1, MOST
            if isinstance(instruction, p.Conv):
                yield "groups", instruction.groups, 1, max(1, instruction.box.extent[1])
                yield "channels", instruction.channels.extent, 1, MOST
        case p.LineBuffer():
            yield "lines", instruction.lines, 1, MOST
            yield "blocks", instruction.blocks, 1, MOST


def _numbers_of_views(instruction: p.Instruction, loops: int) -> Iterator[tuple[str, int, int, int]]:
    """Of the operands, the same."""
    views = [(each.name, getattr(instruction, each.name)) for each in fields(instruction)]
    for name, view in views:
        if isinstance(view, p.View):
            if view.ring is not None:
                yield f"{name}: copies of a ring", view.ring.depth, 1, MOST
                yield f"{name}: loops around a ring", view.ring.level, 0, loops
            if view.wrap is not None:
                yield f"{name}: dimension that wraps", view.wrap.dim, 0, 3
                yield f"{name}: positions that wrap", view.wrap.size, 1, MOST


MOST_UNNAMED = 1 << 10
"""Layers without a name, in programs that no compiler made."""
MOST = (1 << 31) - 1
"""Where only the least is in question."""


Bytes = NDArray[np.uint8]


def check_tables(program: p.Program, weights: Sequence[tuple[int, Bytes]]) -> None:
    """TableError, naming the table or the layer, for a table that is none or is not that of an instruction which the
    text of the program says finds it in its entry."""
    held: dict[int, StoredTable] = {}
    known: dict[tuple[int, int], StoredTable] = {}
    checked: set[tuple[int, int]] = set()
    for node in _in_order(program.body):
        if isinstance(node, p.TableLoad):
            place = node.src_view.offset.base, node.bytes
            if place not in known:
                known[place] = find_table(weights, *place)
            held[node.entry] = known[place]
        elif isinstance(node, p.Conv) and node.table in held and (id(node), id(held[node.table])) not in checked:
            checked.add((id(node), id(held[node.table])))
            try:
                check_use(held[node.table], node)
            except TableError as error:
                layers = program.layers
                layer = f" of layer '{layers[node.layer]}'" if node.layer < len(layers) else ""
                raise TableError(f"address table in entry {node.table}{layer}: {error}") from error


def _in_order(body: Sequence[p.Node]) -> Iterator[p.Node]:
    """As the program has them; bodies of loops with tables twice, as their last tables are there for their first
    instructions."""
    for node in body:
        if isinstance(node, p.Repeat):
            inside = list(_in_order(node.body))
            yield from inside
            if any(isinstance(each, p.TableLoad) for each in inside):
                yield from inside
        else:
            yield node
