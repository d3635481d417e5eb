# Tests: test/pipeline/test_stops_agree.py
"""Where the tiles of a network lie in SRAM: tiles that are one behind the other, or the same, have one home.

A tile lies in the buffer of the concatenation that it is an operand of, behind the operands before it (nested ones
too); the result of a layer that works in place lies where the last operand of its extents lay; a tile that a unit
yields or reads is the network's own value.  So one home may have tiles of several units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import tile as t
from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import Starts
from frustum.dialects.tile import Tile
from frustum.passes.lower.unit.memory_map import CHANNELS


@dataclass(eq=False)
class Home:
    """A buffer: the tile that it holds, and at which of its channels each of the values in it begins.

    `is_resident`: it outlives units; `buffer`, inside how many tile loops, and where the tile begins, once it is
    allocated.
    """

    tile: Tile
    channels: Mapping[SSAValue, int]
    is_resident: bool
    buffer: SSAValue | None = None
    depth: int = 0
    start: Starts | None = None

    @cached_property
    def is_alone(self) -> bool:
        return len(self.channels) == 1

    def has(self, *operations: type[Operation]) -> bool:
        """Whether one of these makes or uses one of the values."""
        return any(
            isinstance(op, operations)
            for value in self.channels
            for op in (value.owner, *(use.operation for use in value.uses))
        )


Link = tuple[SSAValue, int]
"""Another value of the same home, and how many channels behind."""


def find_homes(operations: Iterable[Operation]) -> dict[SSAValue, Home]:
    """The home of every tile of a network with these operations; raises PassFailedException where a tile would have
    to be in two places."""
    links: dict[SSAValue, list[Link]] = {}
    for a, b, offset in _links(operations, links):
        links[a].append((b, -offset))
        links.setdefault(b, []).append((a, offset))
    homes: dict[SSAValue, Home] = {}
    for value in links:
        if value not in homes:
            home = _home(_places(value, links))
            homes.update(dict.fromkeys(home.channels, home))
    return homes


def _links(
    operations: Iterable[Operation], links: dict[SSAValue, list[Link]]
) -> Iterator[tuple[SSAValue, SSAValue, int]]:
    """(operand, what it is part of, its first channel there); notes every tile."""
    for op in operations:
        for result in op.results:
            if isinstance(result.type, t.TileType):
                links.setdefault(result, [])
        if isinstance(op, t.ConcatOp):
            first = 0
            for operand in op.tiles:
                yield operand, op.result, first
                first += t.tile_of(operand).extents[CHANNELS]
        elif isinstance(op, t.ComputeOp) and op.map.data.in_place:
            extents = t.tile_of(op.result).extents
            yield op.result, next(x for x in reversed(op.tiles) if t.tile_of(x).extents == extents), 0
        elif isinstance(op, t.UnitOp):
            yield from _links_of_unit(op, links)


def place_of(op: t.ComputeOp) -> SSAValue:
    """The operand where the result of a layer that works in place lies."""
    if not isinstance(op.layer, t.VectorLayer):
        return op.tiles[-1]
    return next(tile for tile in op.tiles if _is_like(t.tile_of(tile), t.tile_of(op.result)))


def _is_like(tile: Tile, other: Tile) -> bool:
    return tile.element == other.element and tile.extents == other.extents


def _links_of_unit(
    unit: t.UnitOp, links: dict[SSAValue, list[Link]]
) -> Iterator[tuple[SSAValue, SSAValue, int]]:
    block = unit.body.block
    for argument, operand in zip(block.args, unit.operands, strict=True):
        if isinstance(argument.type, t.TileType):
            links.setdefault(argument, [])
            yield argument, operand, 0
    yield from _links(block.ops, links)
    end = block.last_op
    assert end is not None
    results = [r for r in unit.results if isinstance(r.type, t.TileType)]
    for value, result in zip(end.operands, results, strict=True):
        yield value, result, 0


def _places(value: SSAValue, links: Mapping[SSAValue, Sequence[Link]]) -> dict[SSAValue, int]:
    """All values that lie in one buffer with this one, and how many channels behind it."""
    places = {value: 0}
    waiting = [value]
    while waiting:
        here = waiting.pop()
        for there, offset in links[here]:
            place = places[here] + offset
            if there not in places:
                places[there] = place
                waiting.append(there)
            elif places[there] != place:
                raise PassFailedException(
                    f"a tile would have to begin at channels {place} and {places[there]} of one buffer: a tile is "
                    "operand of one concatenation"
                )
    return places


def _home(places: Mapping[SSAValue, int]) -> Home:
    """The home of values that lie one behind the other."""
    first = min(places.values())
    end = max(place + t.tile_of(v).extents[CHANNELS] for v, place in places.items())
    widest = t.tile_of(max(places, key=lambda v: t.tile_of(v).extents[CHANNELS]))
    for value in places:
        _check_alike(t.tile_of(value), widest)
    channels = {value: place - first for value, place in places.items()}
    is_resident = any(isinstance(v.owner, t.UnitOp) or _is_outside(v) for v in places)
    return Home(replace(widest, extents=replaced(widest.extents, CHANNELS, end - first)), channels, is_resident)


def _is_outside(value: SSAValue) -> bool:
    """Whether a value belongs to the network, not to a unit."""
    block = value.owner.parent if isinstance(value.owner, Operation) else value.owner
    return block is None or not isinstance(block.parent_op(), t.UnitOp)


def _check_alike(tile: Tile, whole: Tile) -> None:
    """Tiles of one home differ in their channels only; the order does not count axes of one element."""

    def other(a: Tile) -> Tile:
        origin = a.origin and replaced(a.origin, CHANNELS, (whole.origin or a.origin)[CHANNELS])
        order = tuple(d for d in a.order if tile.extents[d] > 1)
        return replace(a, extents=replaced(a.extents, CHANNELS, 0), origin=origin, order=order)

    if other(tile) != other(whole):
        raise PassFailedException(
            f"tiles of one buffer differ in more than their channels: {tile} and {whole}"
        )
