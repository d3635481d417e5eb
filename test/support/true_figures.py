"""What figures of a report say of each other, whatever ran."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

PARTS = ("weight", "input", "output", "intermediate", "other")


def false_figures(report: Mapping[str, Any]) -> list[str]:
    """Every statement about bounds, sums and ratios that this report breaks, with its figures."""
    return [*_of_dram(report["dram"]), *_of_cycles(report["cycles"]), *_of_engines(report)]


def _of_dram(dram: Mapping[str, Any]) -> Iterator[str]:
    total, moved = dram["total_bytes"], dram["total_bytes"] - dram["other_bytes"]
    compulsory, compressed = dram["compulsory_bytes"], dram["compressed_compulsory_bytes"]
    yield from _same("read and written bytes", dram["read_bytes"] + dram["write_bytes"], total)
    yield from _same("parts of the bytes", sum(dram[f"{part}_bytes"] for part in PARTS), total)
    yield from _quotient("dram.ratio", dram["ratio"], moved, compulsory)
    yield from _quotient("dram.ratio_to_compressed", dram["ratio_to_compressed"], moved, compressed)
    if "total_ratio" in dram:
        yield from _quotient("dram.total_ratio", dram["total_ratio"], total, compulsory)
    yield from _at_least("compulsory bytes, compressed ones", compulsory, compressed)
    yield from _at_least("moved bytes, compressed compulsory ones", moved, compressed)
    if dram["bound_bytes"] is not None:
        yield from _at_least("bound_bytes, compressed compulsory ones", dram["bound_bytes"], compressed)
        yield from _at_least("moved bytes, bound_bytes", moved, dram["bound_bytes"])


def _of_cycles(cycles: Mapping[str, Any] | None) -> Iterator[str]:
    if cycles is None:
        return
    yield from _quotient("cycles.ratio", cycles["ratio"], cycles["total"], cycles["roofline"])
    if cycles["bound"] is not None:
        yield from _at_least("cycles, bound", cycles["total"], cycles["bound"])
        yield from _at_least("bound, roofline", cycles["bound"], math.floor(cycles["roofline"]))


def _of_engines(report: Mapping[str, Any]) -> Iterator[str]:
    if report["engines"] is None:
        return
    for name, engine in report["engines"].items():
        if min(engine[key] for key in ("busy", "stalled", "idle")) < 0:
            yield f"engine {name}: {engine}"


def _same(what: str, found: float, expected: float) -> Iterator[str]:
    if found != expected:
        yield f"{what}: {found}, not {expected}"


def _at_least(what: str, larger: float, smaller: float) -> Iterator[str]:
    if larger < smaller:
        yield f"{what}: {larger} is less than {smaller}"


def _quotient(what: str, found: float | None, above: float, below: float) -> Iterator[str]:
    if (found is None) != (not below) or (below and not math.isclose(found or 0.0, above / below, rel_tol=1e-9)):
        yield f"{what}: {found}, not {above} / {below}"
