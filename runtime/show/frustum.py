"""The frustums of the units: which piece of each layer's map every step makes, what of it was made before (computed
again), and what the layers behind it read, of which the rest was kept or came from another core.

Everything is read off the boxes of the instructions that ran (`device/expand.py`).  A step is a pass through the loops
that all layers of the unit share; a layer is drawn by rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.form import Ints

MOST_STEPS = 48
MOST_OWNERS = 8
MOST_LAYERS = 24
ROWS, COLS = 2, 3


def frustums(expanded: Expanded) -> dict[int, dict[str, Any]]:
    """Of each unit with anything to draw: `steps` in all, `drawn` of them, `owners`, and of each of its `layers` the
    number, the map's rows and columns, and `pieces`: step, owner, box that is made, box that is read, and boxes
    within it that had been made before; a box is first row, row behind, first column, column behind."""
    members: dict[int, dict[int, list[int]]] = {}
    for number, instruction in enumerate(expanded.instructions):
        if instruction.engine in ("matrix", "vector"):
            members.setdefault(instruction.unit, {}).setdefault(instruction.layer, []).append(number)
    found = {unit: _frustum(expanded, layers) for unit, layers in members.items()}
    return {unit: each for unit, each in found.items() if each["layers"]}


def _frustum(expanded: Expanded, layers: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    counts = _shared_counts(expanded, [number for numbers in layers.values() for number in numbers])
    drawn = min(MOST_STEPS, int(np.prod(counts, dtype=np.int64)))
    owners = min(MOST_OWNERS, expanded.core.units)
    parts = []
    for layer, numbers in list(layers.items())[:MOST_LAYERS]:
        extents, pieces = _pieces(expanded, numbers, counts, drawn, owners)
        if pieces:
            parts.append({"layer": layer, "rows": extents[0], "cols": extents[1], "pieces": pieces})
    return {"steps": int(np.prod(counts, dtype=np.int64)), "drawn": drawn, "owners": owners, "layers": parts}


def _shared_counts(expanded: Expanded, numbers: Sequence[int]) -> list[int]:
    """How often the outermost loops run that all these instructions are in."""
    rows, counts = expanded.core, list[int]()
    most = [rows.index[rows.of(number)].max(axis=0, initial=0) + 1 for number in numbers]
    for level in range(min(expanded.depths[number] for number in numbers)):
        found = {int(each[level]) for each in most}
        if len(found) > 1:
            break
        counts += found
    return counts


def _pieces(
    expanded: Expanded, numbers: Sequence[int], counts: Sequence[int], drawn: int, owners: int
) -> tuple[tuple[int, int], list[list[Any]]]:
    """Rows and columns of the map, and the pieces of one layer."""
    rows = expanded.core
    made = np.full((drawn, owners, 4, 2), -1, np.int64)
    made[..., 0] = np.iinfo(np.int64).max
    seen = made.copy()
    whole = np.zeros(4, np.int64)
    kind = type(expanded.instructions[numbers[0]])
    for number in numbers:
        mine = rows.of(number)
        box = np.stack([rows.lower[:, mine], rows.lower[:, mine] + rows.extent[:, mine]], axis=-1)
        read = np.stack([rows.origin[:, mine], rows.origin[:, mine] + rows.read[:, mine]], axis=-1)
        active = rows.active[mine]
        whole = np.maximum(whole, np.where(active[None], box[..., 1], 0).max(axis=(1, 2), initial=0))
        step = np.zeros(len(mine), np.int64)
        for level, count in enumerate(counts):
            step = step * count + rows.index[mine, level]
        at, owner = np.nonzero(active[:, :owners] & (step < drawn)[:, None])
        for target, boxes in ((made, box), (seen, read)):
            if target is seen and type(expanded.instructions[number]) is not kind:
                continue  # what finishes a layer reads its own results
            chosen = boxes[:, at, owner].transpose(1, 0, 2)
            np.minimum.at(target[..., 0], (step[at], owner), chosen[..., 0])
            np.maximum.at(target[..., 1], (step[at], owner), chosen[..., 1])
    found = []
    flat, order = made.reshape(-1, 4, 2), np.flatnonzero(made[..., 0, 1].ravel() >= 0)
    for place, cell in enumerate(order.tolist()):
        own, before = flat[cell], flat[order[:place]]
        low, high = np.maximum(before[..., 0], own[:, 0]), np.minimum(before[..., 1], own[:, 1])
        again = {_box(np.stack([a, b], axis=-1)) for a, b in zip(low, high, strict=True) if (a < b).all()}
        own_step, owner_of = divmod(cell, owners)
        found.append([own_step, owner_of, _box(own), _box(seen.reshape(-1, 4, 2)[cell]), sorted(again)[:6]])
    return (int(whole[ROWS]), int(whole[COLS])), found


def _box(bounds: Ints) -> tuple[int, ...]:
    """Rows and columns of a box of four dimensions."""
    return tuple(bounds[[ROWS, COLS]].ravel().tolist())
