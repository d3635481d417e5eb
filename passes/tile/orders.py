"""In which order, and by which owner, the tiles of a grid are made, and how an order is typed.  Pure functions.

An owner is what makes tiles on its own: a cluster.  `tiles_of` gives each owner's tiles in its order, every tile of the
grid once; `steps_of` the same before it is cut to the grid, so that owners stay in step with each other.
Source: docs/techniques/frustum.md, "Orders"; z-order: Morton 1966.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product, zip_longest
from typing import TypeAlias

from frustum.dialects.extents import ceil_div
from frustum.dialects.unit import OWNERS, Owners, Way

ORDERS = (
    "row-major", "column-major", "bands", "serpentine", "z-order", "quadrants", "checkerboard", "mirrored"
)  # fmt: skip
DIRECTIONS = ("left-right", "right-left", "top-down", "bottom-up")
Position: TypeAlias = tuple[int, int]
"""Row and column of a tile in its grid."""


@dataclass(frozen=True)
class Grid:
    """Tiles along the rows and the columns of a map, and who shares them."""

    rows: int
    columns: int
    owners: int = 1

    def has(self, position: Position) -> bool:
        return 0 <= position[0] < self.rows and 0 <= position[1] < self.columns

    @property
    def turned(self) -> Grid:
        return Grid(self.columns, self.rows, self.owners)


@dataclass(frozen=True)
class Bands:
    """How bands lie: `depth` tiles across, and the direction in which one is gone through, which also says whether
    bands are rows (left-right, right-left) or columns."""

    depth: int = 1
    direction: str = "left-right"


def tiles_of(order: str, grid: Grid, band: Bands = Bands()) -> list[list[Position]]:
    """Of each owner the tiles that it makes, in its order."""
    return [[p for p in steps if grid.has(p)] for steps in steps_of(order, grid, band)]


def steps_of(order: str, grid: Grid, band: Bands = Bands()) -> list[list[Position]]:
    """Of each owner the positions that it goes through, some of which may lie beyond the grid."""
    if order == "bands":
        return bands(grid, band)
    return WAYS[order](grid)


def row_major(grid: Grid) -> list[list[Position]]:
    """Row by row.  Owners take turns along the rows, or down the columns if that leaves fewer of them idle."""
    n = grid.owners
    across, down = ceil_div(grid.columns, n), ceil_div(grid.rows, n)
    if across * grid.rows <= down * grid.columns:
        return [[(r, n * j + k) for r in range(grid.rows) for j in range(across)] for k in range(n)]
    return [[(n * i + k, c) for i in range(down) for c in range(grid.columns)] for k in range(n)]


def column_major(grid: Grid) -> list[list[Position]]:
    return turned(row_major(grid.turned))


def serpentine(grid: Grid) -> list[list[Position]]:
    """As row by row, every other of an owner's rows from right to left."""
    found = []
    for steps in row_major(grid):
        rows = [list(row) for _, row in groupby(steps, key=lambda position: position[0])]
        found.append([p for i, row in enumerate(rows) for p in (reversed(row) if i % 2 else row)])
    return found


def bands(grid: Grid, band: Bands) -> list[list[Position]]:
    """Bands dealt to the owners in turn; along one, from side to side of it tile by tile."""
    if band.direction in ("top-down", "bottom-up"):
        along = "left-right" if band.direction == "top-down" else "right-left"
        return turned(bands(grid.turned, Bands(band.depth, along)))
    count = ceil_div(grid.rows, band.depth * grid.owners)
    columns = range(grid.columns) if band.direction == "left-right" else range(grid.columns - 1, -1, -1)
    return [
        [
            ((grid.owners * b + k) * band.depth + r, c)
            for b, c, r in product(range(count), columns, range(band.depth))
        ]
        for k in range(grid.owners)
    ]


def z_order(grid: Grid) -> list[list[Position]]:
    """By interleaved bits of row and column; every owner takes as long a part of the way as the others."""
    way = sorted(product(range(grid.rows), range(grid.columns)), key=morton)
    share = ceil_div(len(way), grid.owners)
    return [way[k * share : (k + 1) * share] for k in range(grid.owners)]


def morton(position: Position) -> int:
    """The bits of row and column in turn, the column's lowest first."""
    row, column = position
    number = 0
    for bit in range(max(row, column).bit_length()):
        number |= (column >> bit & 1) << 2 * bit | (row >> bit & 1) << 2 * bit + 1
    return number


def quadrants(grid: Grid) -> list[list[Position]]:
    """Each owner has one region of neighbouring tiles, and goes through it from top left to bottom right."""
    down, across = portions(grid)
    rows, columns = ceil_div(grid.rows, down), ceil_div(grid.columns, across)
    return [
        [(i * rows + r, j * columns + c) for r in range(rows) for c in range(columns)]
        for i, j in product(range(down), range(across))
    ]


def checkerboard(grid: Grid) -> list[list[Position]]:
    """Neighbours have different owners: the sum of row and column says which; first the tiles where it is even."""
    way = sorted(product(range(grid.rows), range(grid.columns)), key=lambda p: (p[0] + p[1]) % 2)
    return [[p for p in way if (p[0] + p[1]) % grid.owners == k] for k in range(grid.owners)]


def mirrored(grid: Grid) -> list[list[Position]]:
    """Portion by portion, of as many tiles as there are owners; the next portion is the mirror image of the last, so
    that the tiles on both sides of the border between them have one owner."""
    down, across = portions(grid)
    rows, columns = range(ceil_div(grid.rows, down)), range(ceil_div(grid.columns, across))
    return [
        [(mirror(r, i, down), mirror(c, j, across)) for r in rows for c in columns]
        for i, j in product(range(down), range(across))
    ]


def mirror(portion: int, place: int, size: int) -> int:
    """Position of a place in one of the portions of a line, every other of which is turned around."""
    return portion * size + (size - 1 - place if portion % 2 else place)


def portions(grid: Grid) -> Position:
    """Owners below and beside each other: as few tiles for each as can be, then as square as can be."""
    n = grid.owners
    ways = [(n // c, c) for c in range(1, n + 1) if n % c == 0]
    return min(
        ways,
        key=lambda w: (ceil_div(grid.rows, w[0]) * ceil_div(grid.columns, w[1]), abs(w[0] - w[1]), w[0]),
    )


def turned(ways: list[list[Position]]) -> list[list[Position]]:
    return [[(r, c) for c, r in way] for way in ways]


WAYS: dict[str, Callable[[Grid], list[list[Position]]]] = {
    "row-major": row_major,
    "column-major": column_major,
    "serpentine": serpentine,
    "z-order": z_order,
    "quadrants": quadrants,
    "checkerboard": checkerboard,
    "mirrored": mirrored,
}


# ------------------------------------------------------------------------------------------ strips


def directions_of(order: str, band: Bands) -> tuple[Way, ...]:
    """Where steps may go in an order: bands along themselves, the others along the rows or else along the columns."""
    if order != "bands":
        return ("down", "right")
    return (ALONG[band.direction],)


ALONG: dict[str, Way] = {"left-right": "right", "right-left": "left", "top-down": "down", "bottom-up": "up"}
"""Where tiles of a band follow each other."""


def are_strips(order: str, grid: Grid, band: Bands, way: Way) -> bool:
    """Whether in this order each owner goes through one strip of the grid from end to end, all side by side in the
    order of their numbers: then nothing that an owner needs is made later than what it needs it for.

    Strips are as wide as a band is deep (of other orders one tile); owners beyond the last strip are idle.  Strips one
    after the other, dealt in turn, each from top to bottom, are column-major, and from left to right row-major.
    """
    if (order, way) in (("column-major", "down"), ("row-major", "right")):
        return True
    found = tiles_of(order, grid, band)
    if way in ("right", "left"):
        found, grid = turned(found), grid.turned
    width = band.depth if order == "bands" else 1
    rows = range(grid.rows) if way in ("down", "right") else range(grid.rows - 1, -1, -1)
    across = [range(k * width, min((k + 1) * width, grid.columns)) for k in range(grid.owners)]
    strips = [[(r, c) for r in rows for c in columns] for columns in across]
    return grid.columns <= grid.owners * width and found == strips


# ------------------------------------------------------------------------------------------ loops

Steps: TypeAlias = tuple[tuple[Position, int], ...]
"""From the outermost loop: how far one pass moves, and how many there are."""


@dataclass(frozen=True)
class TileNest:
    """Positions of a way as loops: `start + sum(step * i) + cluster * apart`."""

    start: Position
    loops: Steps
    apart: Position = (0, 0)

    def positions(self, cluster: int = 0) -> Iterator[Position]:
        for indices in product(*(range(count) for _, count in self.loops)):
            row, column = (self.start[d] + cluster * self.apart[d] for d in (0, 1))
            for i, ((down, right), _) in zip(indices, self.loops, strict=True):
                row, column = row + i * down, column + i * right
            yield row, column


def nests_of(
    ways: list[list[Position]], grid: Grid, most_loops: int, reach: Position = (0, 0)
) -> list[TileNest]:
    """The ways of all owners as few nests of at most `most_loops` loops, one after the other.

    Where the owners keep one distance from each other in each step, they have nests together; otherwise, or if that
    takes fewer nests, each has its own, in which the others leave the grid.  An owner can leave a grid of one row or
    column along the other dimension only: along the one there is no index that would tell its places from the tile.
    `reach`: so many tiles beyond the grid, along rows and columns, some map still has a part of what a tile there
    needs.  An owner without a tile of its own has to be further away.
    """
    first = next((i for i, places in enumerate(zip_longest(*ways)) if not is_alike(places, grid, reach)), None)
    together = in_step([way[:first] for way in ways])
    joint = [TileNest(p, loops, d) for (p, d), loops in folded(together or [], most_loops)]
    if first is not None and together is not None:
        joint += nests_apart([way[first:] for way in ways], grid, most_loops, reach)
    apart = nests_apart(ways, grid, most_loops, reach) if grid.owners > 1 else joint
    return apart if together is None or len(apart) < len(joint) else joint


def is_alike(places: Sequence[Position | None], grid: Grid, reach: Position) -> bool:
    """Whether all owners have a place in a step, and none of them works there without a tile."""
    return all(p is not None and (grid.has(p) or not is_seen(p, grid, reach)) for p in places)


def is_seen(position: Position, grid: Grid, reach: Position) -> bool:
    """Whether an owner at a position beyond the grid would still do some work."""
    sizes = zip(position, (grid.rows, grid.columns), reach, strict=True)
    return not any(n > 1 and not -far <= place < n + far for place, n, far in sizes)


def nests_apart(
    ways: list[list[Position]], grid: Grid, most_loops: int, reach: Position = (0, 0)
) -> list[TileNest]:
    """Nests of one owner each, far away from which all others stand; of a single owner every cluster's, alike."""
    far = (grid.rows + reach[0], grid.columns + reach[1]) if grid.owners > 1 else (0, 0)
    found = []
    for k, way in enumerate(ways):
        inside = [(p, (0, 0)) for p in way if grid.has(p)]
        for (start, _), loops in folded(inside, most_loops):
            found.append(TileNest((start[0] - k * far[0], start[1] - k * far[1]), loops, far))
    return found


Step: TypeAlias = tuple[Position, Position]
"""Position of the first owner, and the distance from each to the next."""


def in_step(ways: list[list[Position]]) -> list[Step] | None:
    """What all owners do in each step; None where that is not the same but for a distance."""
    if len({len(way) for way in ways}) > 1:
        return None
    found = []
    for places in zip(*ways, strict=True):
        (row, column), second = places[0], places[min(1, len(places) - 1)]
        apart = second[0] - row, second[1] - column
        if any(p != (row + k * apart[0], column + k * apart[1]) for k, p in enumerate(places)):
            return None
        found.append((places[0], apart))
    return found


def folded(steps: list[Step], most_loops: int) -> list[tuple[Step, Steps]]:
    """A list of steps as loops: each round joins what follows at equal distances, and looks alike inside."""
    items: list[tuple[Step, Steps]] = [(step, ()) for step in steps]
    while True:
        joined = joined_once(items, most_loops)
        if len(joined) == len(items):
            return joined
        items = joined


def joined_once(items: list[tuple[Step, Steps]], most_loops: int) -> list[tuple[Step, Steps]]:
    found, first = [], 0
    while first < len(items):
        (start, apart), inner = items[first]
        end, move = first + 1, (0, 0)
        while end < len(items) and len(inner) < most_loops:
            (place, other), loops = items[end]
            before = items[end - 1][0][0]
            step = place[0] - before[0], place[1] - before[1]
            if other != apart or loops != inner or (end > first + 1 and step != move):
                break
            move, end = step, end + 1
        loops = inner if end == first + 1 else ((move, end - first), *inner)
        found.append(((start, apart), loops))
        first = end
    return found


DEPTHS = ("depth-first", "breadth-first")
OPTIONS = ("bands", "direction", "depth", "owners")
AUTO = "auto"
"""Of owners: clusters or cores, whatever is better."""
_FORM = re.compile(r"(?P<name>[a-z-]+)(?:\{(?P<options>[^{}]*)\})?")


@dataclass(frozen=True)
class OrderWords:
    """Order, tiles across a band, direction of bands, whether a portion goes up through all layers at a time, and who
    owns tiles (None: whatever is better)."""

    order: str
    bands: int = 1
    direction: str = "left-right"
    depth: str = "depth-first"
    owners: Owners | None = None


def parse_order(text: str) -> OrderWords:
    """Raises ValueError that says what is wrong and what is allowed."""
    match = _FORM.fullmatch(text.strip())
    if match is None or match["name"] not in ORDERS:
        raise ValueError(f"'{text}': expected one of {', '.join(ORDERS)}, perhaps with {{option=value,...}}")
    values: dict[str, str] = {}
    for part in (match["options"] or "").split(","):
        key, equals, value = part.strip().partition("=")
        if not part.strip():
            continue
        if not equals or key not in OPTIONS or key in values:
            known = "bands=N, direction=..., depth=..., owners=..."
            raise ValueError(f"'{text}': expected options {known}, found '{part}'")
        if key in ("bands", "direction") and match["name"] != "bands":
            raise ValueError(f"'{text}': {key} is an option of order bands, not of {match['name']}")
        values[key] = value
    owners = one_of(text, "owners", values.get("owners", AUTO), (AUTO, *OWNERS))
    if owners == "cores" and values.get("depth") == "breadth-first":
        raise ValueError(f"'{text}': breadth-first, layer by layer, tiles belong to clusters, not to cores")
    return OrderWords(
        match["name"],
        positive(text, values.get("bands", "1")),
        one_of(text, "direction", values.get("direction", DIRECTIONS[0]), DIRECTIONS),
        one_of(text, "depth", values.get("depth", DEPTHS[0]), DEPTHS),
        None if owners == AUTO else owners,  # type: ignore[arg-type]  # one of the words
    )


def positive(text: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) >= 1):
        raise ValueError(f"'{text}': bands is how many tiles deep a band is, at least 1, found '{value}'")
    return int(value)


def one_of(text: str, key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"'{text}': {key} is one of {', '.join(allowed)}, found '{value}'")
    return value
