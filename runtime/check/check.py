"""Checked mode: a program that reads what nobody wrote, leaves its memory or races is stopped, and told where.

It watches from outside: everything follows from the expanded program, whose addresses do not depend on data.
Executions are visited in program order.  Two accesses to the same bytes by different engines, one of them a write,
race unless signals and waits, or a barrier, make certain that one is complete before the other starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from frustum.dialects.isa.program import CORE_ENGINES, MEMORIES, Hold
from frustum.runtime.check.access import Access, accesses
from frustum.runtime.check.clocks import Clock, OrderError, clocks
from frustum.runtime.check.shadow import Conflict, Shadow, Stamps
from frustum.runtime.device.expand import DRAM, SRAM, Expanded, Rows
from frustum.runtime.progress import REPORTS, Progress


class AccessError(Exception):
    """An access outside its memory, or a read of bytes that no instruction wrote."""


class RaceError(Exception):
    """Two accesses to the same bytes that nothing orders, or a wait that its signals come after."""


def check(expanded: Expanded, capacities: Sequence[int], progress: Progress | None = None) -> None:
    """Raise `AccessError` or `RaceError` at the first fault of the program; `capacities` in the order of MEMORIES."""
    try:
        core, cluster = clocks(expanded)
    except OrderError as error:
        raise RaceError(_never(expanded, error)) from None
    stamps = Stamps((expanded.core, core), (expanded.cluster, cluster))
    known = [e for e in expanded.program.externals if e.class_ in ("input", "weight", "program")]
    shadow = Shadow(expanded, capacities, stamps, [(e.address, e.bytes) for e in known])
    total = len(expanded.core) + len(expanded.cluster)
    for number, (rows, row) in enumerate(expanded.in_order()):
        clock = core if rows is expanded.core else cluster
        _visit(expanded, capacities, shadow, clock, rows, row)
        if progress is not None and number % max(1, total // REPORTS) == 0:
            progress("check", number / total)


def named(expanded: Expanded, number: int) -> str:
    """How messages call an instruction."""
    return _name(expanded, number)


def beyond(expanded: Expanded, row: int, unit: int, address: int, begin: int, end: int) -> str:
    """What is wrong with a convolution of the core table whose address table leads out of its input's buffer; bytes of
    the memory, `[begin, end)` are the buffer's."""
    rows = expanded.core
    kind, place = int(expanded.memory[rows.static[row], 0]), int(rows.place[0, row, unit])
    return (
        f"{_execution(expanded, rows, row, unit)}: its address table leads to address {address} of"
        f" {_memory(expanded, kind, place)}, outside its buffer [{begin}, {end})"
    )


def left(expanded: Expanded, number: int) -> str:
    """What is wrong with an instruction whose operands leave the memories of their kind, found without a check."""
    return f"{_name(expanded, number)}: an operand lies outside its memory; a checked run says which, and where"


def _visit(
    expanded: Expanded, capacities: Sequence[int], shadow: Shadow, clock: Clock, rows: Rows, row: int
) -> None:
    """All units of one row."""
    for unit in range(rows.units):
        for access in accesses(expanded, rows, row, unit):
            capacity = capacities[access.kind]
            if access.lowest < 0 or access.end > capacity:
                raise AccessError(
                    f"{_execution(expanded, rows, row, unit)}: {_does(access)} bytes"
                    f" [{access.lowest}, {access.end}) of {_memory(expanded, access.kind, access.place)},"
                    f" which has {capacity}"
                )
            note = shadow.write if access.is_write else shadow.read
            conflict = note(access, shadow.stamps.of(rows, row, unit), clock.start[row, unit])
            if conflict is not None:
                raise _fault(expanded, (rows, row, unit), access, conflict)


def _fault(
    expanded: Expanded, execution: tuple[Rows, int, int], access: Access, conflict: Conflict
) -> AccessError | RaceError:
    memory = _memory(expanded, access.kind, conflict.place)
    here = f"{_execution(expanded, *execution)}: {_does(access)} address {conflict.address} of {memory}"
    if conflict.other is None:
        return AccessError(f"{here}, which no instruction wrote")
    other = _execution(expanded, *conflict.other)
    does = "writes" if conflict.other_writes else "reads"
    return RaceError(f"{here}, which {other} {does}; nothing orders the two")


def _never(expanded: Expanded, error: OrderError) -> str:
    here = _execution(expanded, error.rows, error.row, error.unit)
    return f"{here}: waits for {error.value} signals, of which {error.found} come before it in program order"


def _does(access: Access) -> str:
    return "writes" if access.is_write else "reads"


def _execution(expanded: Expanded, rows: Rows, row: int, unit: int) -> str:
    """`conv 12 (layer 'Conv_3') at loops [4, 0] on cluster 1, core 2`"""
    number = int(rows.static[row])
    loops = ", ".join(map(str, rows.index[row, : expanded.depths[number]].tolist()))
    where = _where(expanded, expanded.instructions[number].engine, unit)
    return f"{_name(expanded, number)} at loops [{loops}] on {where}"


def _name(expanded: Expanded, number: int) -> str:
    """`conv 12 (layer 'Conv_3')`, `copy 3 by gdma`"""
    instruction, layers = expanded.instructions[number], expanded.program.layers
    name = "wait" if isinstance(instruction, Hold) else type(instruction).__name__.lower()
    layer = f" (layer '{layers[instruction.layer]}')" if instruction.layer < len(layers) else ""
    engine = "" if instruction.engine in (None, "matrix", "vector") else f" by {instruction.engine}"
    return f"{name} {number}{layer}{engine}"


def _where(expanded: Expanded, engine: str | None, unit: int) -> str:
    if engine not in CORE_ENGINES:
        return f"cluster {unit}"
    cluster, core = divmod(unit, expanded.cores)
    return f"cluster {cluster}, core {core}"


def _memory(expanded: Expanded, kind: int, place: int) -> str:
    if kind == DRAM:
        return MEMORIES[kind]
    if kind == SRAM:
        return f"{MEMORIES[kind]} of cluster {place}"
    cluster, core = divmod(place, expanded.cores)
    return f"{MEMORIES[kind]} of cluster {cluster}, core {core}"
