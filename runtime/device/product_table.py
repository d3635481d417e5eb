# Tests: test/runtime/device/test_functional.py
"""Which convolutions `products.py` computes, and all numbers that it needs, for all executions together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Conv, Element, Instruction, View
from frustum.runtime.device.addresses import Addresses
from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.form import Ints
from frustum.runtime.device.group import Calls, flat_addresses, numbered, progressions
from frustum.runtime.device.matrix import ACC, BIAS, IN, OUT, RESIDUAL, WEIGHT
from frustum.runtime.device.memory import leave, left, reach
from frustum.runtime.kernels import product_loop as c

TYPES: dict[Element, int] = {"f32": c.F32, "f16": c.F16, "bf16": c.BF16}
PLACES = {IN: c.IN_AT, WEIGHT: c.WEIGHT_AT, BIAS: c.BIAS_AT, ACC: c.ACC_AT, OUT: c.OUT_AT, RESIDUAL: c.RESIDUAL_AT}
"""Operands of a convolution of floats, and where their addresses stand in a row of cells."""
WEIGHT_PLANE, IN_PLANE = range(2)


@dataclass(frozen=True, eq=False)
class ProductTable:
    """Groups of units that compute alike, in program order; `calls` and `cells` as `product_loop.py` has them.

    Of a direct group the input lies in memory as the columns of the product do.  Addresses and steps of weights, and of
    the input of a direct group, are those of f32 elements; they say nothing of other types.
    """

    seq: Ints  # groups: place in the program order
    convs: list[Conv]  # of the program
    conv: Ints  # groups: index into `convs`
    calls: Ints  # groups, c.CALLS
    cells: Ints  # units of all groups, c.CELLS
    first: Ints  # groups: row of `cells`
    groups: Calls  # operands: weights and input
    direct: Ints  # groups: bool


def are_products(expanded: Expanded) -> Ints:
    """Which instructions are convolutions of floats that all lie at multiples of their size."""
    fits = np.array([isinstance(each, Conv) and _is_of_floats(each) for each in expanded.instructions], bool)
    rows, sizes = expanded.core, _sizes(expanded.instructions, fits)
    for slot in PLACES:
        odd = (rows.address[slot] % sizes[rows.static, slot, None] != 0) & rows.active
        fits[rows.static[odd.any(axis=1)]] = False
    return fits


def product_table(expanded: Expanded, capacities: Sequence[int], starts: Sequence[int], which: Ints) -> ProductTable:
    """The groups of the instructions `which`; `starts`: where each kind of memory begins in the flat array."""
    rows, statics = expanded.core, np.flatnonzero(which)
    chosen_ones = zip(expanded.instructions, which, strict=True)
    convs = [each for each, is_one in chosen_ones if is_one and isinstance(each, Conv)]
    chosen = np.flatnonzero(which[rows.static])
    conv_of = np.zeros(len(which), np.int64)
    conv_of[statics] = np.arange(len(statics))
    conv = conv_of[rows.static[chosen]]
    facts, fact = _all_facts(expanded, convs, statics, conv, chosen)
    flat = flat_addresses(expanded, rows, chosen, capacities, starts)
    flat = flat // _sizes(expanded.instructions, which)[rows.static[chosen]].T[:, :, None]
    facts, active = facts[fact], rows.active[chosen]
    extent, read, low, high = (part[:, chosen] for part in (rows.extent, rows.read, rows.low, rows.high))
    direct = (_are_direct(facts, extent, low, high) | ~active).all(axis=1)
    is_viewed = np.stack([facts[:, c.WEIGHT_TYPE] == c.F32, direct & (facts[:, c.IN_TYPE] == c.F32)])
    planes = flat[[WEIGHT, IN]] * is_viewed[:, :, None]
    calls = progressions(planes, numbered([*extent, read[1]], active), expanded.cores)
    table = facts[calls.row]
    _set_sizes(table, extent[:, calls.row, calls.unit].T, read[1, calls.row, calls.unit])
    row = chosen[calls.row]
    table[:, c.IS_FIRST], table[:, c.IS_LAST] = rows.is_first[row], rows.is_last[row]
    cells, first = _cells(calls, expanded.cores, flat, np.concatenate([read[2:], low[2:]]))
    kinds_of_memory = zip(starts, capacities, expanded.memory_counts, strict=False)
    ends = [start + room * count for start, room, count in kinds_of_memory]
    kinds = expanded.memory[statics][conv[calls.row]]
    size = _sizes(expanded.instructions, which)[statics][conv[calls.row]]
    odd = _leave(table, cells, calls.lead.prod(axis=1), np.array(starts)[kinds] // size, np.array(ends)[kinds] // size)
    if odd.any():
        raise left(expanded, int(statics[conv[calls.row[odd.argmax()]]]))
    return ProductTable(rows.seq[row], convs, conv[calls.row], table, cells, first, calls, direct[calls.row])


def _are_direct(facts: Ints, extent: Ints, low: Ints, high: Ints) -> Ints:
    """In which rows and units the columns are the input as it lies, or would lie without gaps: `[rows, units]`."""
    is_point = (facts[:, [c.KERNEL, c.KERNEL + 1, c.STRIDES, c.STRIDES + 1]] == 1).all(axis=1)
    step_h, step_w = facts[:, c.IN_STRIDES + 2, None], facts[:, c.IN_STRIDES + 3, None]
    is_dense = (extent[2] == 1) | (step_h == step_w * extent[3]) | (facts[:, c.IN_TYPE, None] != c.F32)
    has_border = (low[2:] != 0).any(axis=0) | (high[2:] != 0).any(axis=0)
    return is_point[:, None] & is_dense & ~has_border & (extent[0] == 1)


def _is_of_floats(conv: Conv) -> bool:
    return all(
        view is None or (view.element in TYPES and not any(s % ELEMENT_BYTES[view.element] for s in view.strides))
        for view in _views(conv).values()
    )


def _views(conv: Conv) -> dict[int, View | None]:
    return {
        IN: conv.in_view, WEIGHT: conv.weight_view, BIAS: conv.bias_view, ACC: conv.acc_view, OUT: conv.out_view,
        RESIDUAL: conv.residual_view,
    }  # fmt: skip


def _sizes(instructions: Sequence[Instruction], chosen: Ints) -> Ints:
    """Bytes of the elements of each operand, 1 where there is none."""
    sizes = np.ones((len(instructions), max(PLACES) + 1), np.int64)
    for number in np.flatnonzero(chosen).tolist():
        conv = instructions[number]
        assert isinstance(conv, Conv)
        for slot, view in _views(conv).items():
            if view is not None:
                sizes[number, slot] = ELEMENT_BYTES[view.element]
    return sizes


def _all_facts(
    expanded: Expanded, convs: Sequence[Conv], statics: Ints, conv: Ints, chosen: Ints
) -> tuple[Ints, Ints]:
    """The facts of every convolution with every table that it names, and which of them each row has."""
    tables = expanded.tables
    number = np.full(len(chosen), -1) if tables is None else tables.number[chosen]
    pairs, fact = np.unique(np.stack([conv, number]), axis=1, return_inverse=True)
    uses = {} if tables is None else tables.uses
    found = [_facts(convs[one], uses.get((int(statics[one]), its))) for one, its in pairs.T.tolist()]
    return np.array(found, np.int64).reshape(-1, c.CALLS), fact.reshape(-1)


def _facts(conv: Conv, addresses: Addresses | None) -> list[int]:
    """The columns of a call that all executions share; strides of the input are those of its table, if it has one."""
    per_group = conv.box.extent[1] // conv.groups
    row = [0] * c.CALLS
    row[c.GROUPS], row[c.PER_GROUP] = conv.groups, per_group
    for column, pair in ((c.KERNEL, conv.kernel), (c.STRIDES, conv.strides), (c.DILATIONS, conv.dilations)):
        row[column : column + 2] = pair
    for column, type_column, view in (
        (c.IN_STRIDES, c.IN_TYPE, conv.in_view), (c.WEIGHT_STRIDES, c.WEIGHT_TYPE, conv.weight_view),
        (c.OUT_STRIDES, c.OUT_TYPE, conv.out_view), (c.ACC_STRIDES, c.ACC_TYPE, conv.acc_view),
        (c.RESIDUAL_STRIDES, c.RESIDUAL_TYPE, conv.residual_view),
    ):  # fmt: skip
        if view is not None:
            row[column : column + 4] = [stride // ELEMENT_BYTES[view.element] for stride in view.strides]
            row[type_column] = TYPES[view.element]
    row[c.GROUP_STRIDE] = conv.channels.extent * row[c.IN_STRIDES + 1]
    if addresses is not None:
        assert addresses.strides is not None, "addresses that are no strides are gathered"
        n, channel, h, w, row[c.GROUP_STRIDE] = addresses.strides
        row[c.IN_STRIDES : c.IN_STRIDES + 4] = n, channel, h, w
    if conv.bias_view is not None:
        row[c.BIAS_STRIDE] = conv.bias_view.strides[1] // ELEMENT_BYTES[conv.bias_view.element]
        row[c.BIAS_TYPE] = TYPES[conv.bias_view.element]
    row[c.HAS_BIAS], row[c.HAS_RESIDUAL] = conv.bias_view is not None, conv.residual_view is not None
    row[c.ACT] = c.NO_ACT if conv.act is None else c.ACTS.get(conv.act.kind, c.OTHER_ACT)
    return row


def _set_sizes(table: Ints, extent: Ints, channels: Ints) -> None:
    """What clipping left; groups are cut whole."""
    table[:, c.IMAGES : c.COLUMNS + 1] = extent
    table[:, c.CHANNELS] = channels
    groups, left = table[:, c.GROUPS], extent[:, 1] // table[:, c.PER_GROUP]
    assert ((groups == 1) | (extent[:, 1] % table[:, c.PER_GROUP] == 0)).all(), "groups are cut whole"
    table[:, c.GROUPS] = np.where(groups == 1, 1, left)


def _leave(table: Ints, cells: Ints, count: Ints, start: Ints, end: Ints) -> Ints:
    """Which groups have units of which an operand goes outside all memories of its kind; `start` and `end` of these
    for each operand, in elements."""
    found = np.zeros(len(table), bool)
    group = np.repeat(np.arange(len(table)), count)
    box = table[:, c.IMAGES : c.COLUMNS + 1]
    windows = np.concatenate([table[group][:, [c.IMAGES, c.GROUPS, c.CHANNELS]], cells[:, c.READ : c.READ + 2]], axis=1)
    weights = table[:, [c.OUTPUTS, c.CHANNELS, c.KERNEL, c.KERNEL + 1]]
    back = table[:, c.IN_STRIDES : c.IN_STRIDES + 4]
    steps = np.stack([back[:, 0], table[:, c.GROUP_STRIDE], *back.T[1:]], axis=1)
    first, last = table[:, c.IS_FIRST] > 0, table[:, c.IS_LAST] > 0
    for slot, extent, stride, used in (
        (IN, windows, steps[group], first | True),
        (WEIGHT, weights[group], _strides(table, c.WEIGHT_STRIDES)[group], first | True),
        (BIAS, table[group][:, [c.OUTPUTS]], table[group][:, [c.BIAS_STRIDE]], last & (table[:, c.HAS_BIAS] > 0)),
        (ACC, box[group], _strides(table, c.ACC_STRIDES)[group], ~first | ~last),
        (OUT, box[group], _strides(table, c.OUT_STRIDES)[group], last),
        (RESIDUAL, box[group], _strides(table, c.RESIDUAL_STRIDES)[group], last & (table[:, c.HAS_RESIDUAL] > 0)),
    ):
        outside = leave(cells[:, PLACES[slot]], *reach(extent, stride), start[group, slot], end[group, slot])
        found[group[outside & used[group] & (extent > 0).all(axis=1)]] = True
    return found


def _strides(table: Ints, column: int) -> Ints:
    return table[:, column : column + 4]


def _cells(calls: Calls, cores: int, flat: Ints, borders: Ints) -> tuple[Ints, Ints]:
    """The units of all groups, and where those of each group begin."""
    inner, count = calls.lead[:, 1], calls.lead.prod(axis=1)
    first = np.cumsum(count) - count
    within = np.arange(count.sum()) - np.repeat(first, count)
    outer, inside = np.divmod(within, np.repeat(inner, count))
    row, unit = np.repeat(calls.row, count), np.repeat(calls.unit, count) + outer * cores + inside
    cells = np.empty((len(row), c.CELLS), np.int64)
    for slot, column in PLACES.items():
        cells[:, column] = flat[slot, row, unit]
    cells[:, c.READ : c.LOW + 2] = borders[:, row, unit].T
    return cells, first
