"""Equal work runs at once: which units of a row share one numpy call, found for all rows of a table together.

Units whose clipped boxes are equal form a group; where the addresses of all its operands are arithmetic progressions
over clusters and cores, one call with two leading axes serves it.  Otherwise the group falls into blocks of clusters
with equal cores, and at last into single units.  The addresses are those of *flat* memories: all memories of a kind
one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from frustum.dialects.isa.program import Hide, Lrn, Resize
from frustum.runtime.device.expand import NO_MEMORY, Expanded, Rows
from frustum.runtime.device.form import Ints

Block = np.ndarray
"""Unit numbers `[outer, inner]`."""


class Calls(NamedTuple):
    """Groups of executions, in the order of their rows; `unit` is one of each group."""

    row: Ints  # calls
    unit: Ints  # calls
    lead: Ints  # calls, 2: how many units, outer and inner
    base: Ints  # calls, OPERANDS: flat byte address of the first unit's operand
    step: Ints  # calls, 2, OPERANDS: bytes from one unit to the next, outer and inner


def group(expanded: Expanded, rows: Rows, capacities: Sequence[int], chosen: Ints) -> Calls:
    """The calls that do the work of the rows `chosen`; `capacities` are the bytes of one memory of each kind."""
    flat = flat_addresses(expanded, rows, chosen, capacities, (0,) * len(capacities))
    calls = progressions(flat, _keys(expanded, rows, chosen), _run(expanded, rows))
    return calls._replace(row=chosen[calls.row])


def flat_addresses(
    expanded: Expanded, rows: Rows, chosen: Ints, capacities: Sequence[int], starts: Sequence[int]
) -> Ints:
    """Addresses `[OPERANDS, rows, units]` of the rows `chosen` where the memories of a kind lie one after another,
    from where the kind of each operand starts."""
    kind = expanded.memory[rows.static[chosen]].T[:, :, None]
    room, start = (np.array(each)[kind] * (kind != NO_MEMORY) for each in (capacities, starts[: len(capacities)]))
    return rows.address[:, chosen] + rows.place[:, chosen] * room + start


def _run(expanded: Expanded, rows: Rows) -> int:
    """How many units of a table belong together: the cores of a cluster, or all clusters."""
    return rows.units if rows.units == expanded.clusters else expanded.cores


def progressions(flat: Ints, keys: Ints, run: int) -> Calls:
    """Groups of units with equal `keys` `[rows, units]`, where the addresses `flat` `[operands, rows, units]` are
    progressions over runs of units that begin at multiples of `run`, and over the units of these."""
    parts = []
    for its_rows, its_pattern in _by_pattern(_patterns(keys)):
        for first in np.unique(its_pattern[its_pattern >= 0]).tolist():
            members = np.flatnonzero(its_pattern == first)
            parts += _calls(its_rows, flat, _choices(members, run))
    return _in_order(parts, len(flat))


def _keys(expanded: Expanded, rows: Rows, chosen: Ints) -> Ints:
    """A number for each row and unit, equal where the work is the same; -1 where there is none."""
    look = np.array([isinstance(s, Resize | Lrn | Hide) for s in expanded.instructions], bool)
    looks = look[rows.static[chosen], None]
    parts = [*(part[:, chosen] for part in (rows.extent, rows.read, rows.low, rows.high))]
    if looks.any():
        parts += [np.where(looks, part[:, chosen], 0) for part in (rows.lower, rows.origin)]
    return numbered([plane for part in parts for plane in part], rows.active[chosen])


def numbered(parts: Sequence[Ints], active: Ints) -> Ints:
    """A number for each row and unit, equal in a row where all parts are; -1 where it is not active."""
    key = np.zeros(active.shape, np.int64)
    span = 1
    for part in parts:
        if (part == part[:, :1]).all():
            continue
        low = part.min()
        size = int(part.max() - low) + 1
        if span * size >= 1 << 62:
            key, span = _dense(key)
        key = key * size + (part - low)
        span *= size
    return np.where(active, key, -1)


def _dense(key: Ints) -> tuple[Ints, int]:
    """The same classes numbered without gaps, and how many there are."""
    values, inverse = np.unique(key, return_inverse=True)
    return inverse.reshape(key.shape), len(values)


def _patterns(keys: Ints) -> Ints:
    """For each row and unit the first unit of the row with the same key, -1 where the key is."""
    equal = keys[:, :, None] == keys[:, None, :]
    return np.where(keys < 0, -1, equal.argmax(axis=2))


def _by_pattern(pattern: Ints) -> Iterator[tuple[Ints, Ints]]:
    """(rows, their common pattern)"""
    if not len(pattern):
        return
    found, inverse = np.unique(pattern, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    for number, its_pattern in enumerate(found):
        yield np.flatnonzero(inverse == number), its_pattern


def _choices(members: Ints, cores: int) -> list[list[Block]]:
    """Ways to divide units into blocks, the fewest blocks first."""
    blocks = _blocks(members, cores)
    choices = [blocks, [np.array([[unit]]) for unit in members.tolist()]]
    if len(blocks) > 1 and members[-1] - members[0] == len(members) - 1:
        choices.insert(0, [members[None, :]])
    return choices


def _blocks(members: Ints, cores: int) -> list[Block]:
    """Runs of clusters with the same run of cores."""
    runs: list[list[Ints]] = []
    for run in np.split(members, np.flatnonzero((np.diff(members) != 1) | (members[1:] % cores == 0)) + 1):
        last = runs[-1][-1] if runs else None
        if last is not None and len(last) == len(run) and run[0] - last[0] == cores:
            runs[-1].append(run)
        else:
            runs.append([run])
    return [np.stack(run) for run in runs]


def _calls(rows: Ints, flat: Ints, choices: list[list[Block]]) -> list[Calls]:
    """Calls for these rows: each row takes the first choice in which all its addresses are progressions."""
    found = []
    for blocks in choices:
        parts = [_try(rows, flat, block) for block in blocks]
        fits = np.logical_and.reduce([fit for fit, _ in parts])
        found += [_chosen(calls, fits) for _, calls in parts]
        rows = rows[~fits]
        if not len(rows):
            break
    return found


def _try(rows: Ints, flat: Ints, block: Block) -> tuple[Ints, Calls]:
    """Whether each row can run the block in one call, and that call."""
    address = flat[:, rows[:, None, None], block]  # operands, rows, outer, inner
    base = address[:, :, 0, 0]
    steps = []
    fits = np.ones(len(rows), bool)
    for axis in (2, 3):
        if block.shape[axis - 2] == 1:
            steps.append(np.zeros_like(base))
            continue
        between = np.diff(address, axis=axis)
        step = between[:, :, 0, 0]
        steps.append(step)
        fits &= (between == step[:, :, None, None]).all(axis=(0, 2, 3))
    size = len(rows)
    lead = np.broadcast_to(np.array(block.shape), (size, 2))
    return fits, Calls(rows, np.full(size, block[0, 0]), lead, base.T, np.stack(steps, 1).transpose(2, 1, 0))


def _chosen(calls: Calls, which: Ints) -> Calls:
    return Calls(*(part[which] for part in calls))


def _in_order(parts: list[Calls], operands: int) -> Calls:
    if not parts:
        none = np.zeros(0, np.int64)
        return Calls(none, none, none.reshape(0, 2), none.reshape(0, operands), none.reshape(0, 2, operands))
    whole = Calls(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    return _chosen(whole, np.argsort(whole.row, kind="stable"))
