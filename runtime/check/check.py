"""Checked mode: a program that reads what nobody wrote, leaves its memory or races is stopped, and told where.

It watches from outside: everything follows from the expanded program, whose addresses do not depend on data.
Executions are visited in program order.  Two accesses to the same bytes by different engines, one of them a write,
race unless signals and waits, or a barrier, make certain that one is complete before the other starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from frustum.runtime.check.clocks import Clock, OrderError, clocks
from frustum.runtime.check.shadow import Conflict, MemoryAccess, Shadow, Stamps, accesses
from frustum.runtime.device.expand import Expanded, Rows
from frustum.runtime.device.memory import AccessError, execution_name, memory_name
from frustum.runtime.progress import REPORTS, Progress


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


def _visit(
    expanded: Expanded, capacities: Sequence[int], shadow: Shadow, clock: Clock, rows: Rows, row: int
) -> None:
    """All units of one row."""
    for unit in range(rows.units):
        for access in accesses(expanded, rows, row, unit):
            capacity = capacities[access.kind]
            if access.lowest < 0 or access.end > capacity:
                raise AccessError(
                    f"{execution_name(expanded, rows, row, unit)}: {_does(access)} bytes"
                    f" [{access.lowest}, {access.end}) of {memory_name(expanded, access.kind, access.place)},"
                    f" which has {capacity}"
                )
            note = shadow.write if access.is_write else shadow.read
            conflict = note(access, shadow.stamps.of(rows, row, unit), clock.start[row, unit])
            if conflict is not None:
                raise _fault(expanded, (rows, row, unit), access, conflict)


def _fault(
    expanded: Expanded, execution: tuple[Rows, int, int], access: MemoryAccess, conflict: Conflict
) -> AccessError | RaceError:
    memory = memory_name(expanded, access.kind, conflict.place)
    here = f"{execution_name(expanded, *execution)}: {_does(access)} address {conflict.address} of {memory}"
    if conflict.other is None:
        return AccessError(f"{here}, which no instruction wrote")
    other = execution_name(expanded, *conflict.other)
    does = "writes" if conflict.other_writes else "reads"
    return RaceError(f"{here}, which {other} {does}; nothing orders the two")


def _never(expanded: Expanded, error: OrderError) -> str:
    here = execution_name(expanded, error.rows, error.row, error.unit)
    return f"{here}: waits for {error.value} signals, of which {error.found} come before it in program order"


def _does(access: MemoryAccess) -> str:
    return "writes" if access.is_write else "reads"


