# Tests: test/passes/plan/network/trials/test_hidden_held.py
"""Hidden maps that go through DRAM, of which the last channels stay in SRAM.

Where a product's hidden map does not fit beside what its makers read, some channels of it may, as many as the streamed
weights leave room for.  They are made last and summed up first, before the others come back in rounds: so neither
these nor their share of the sums is ever in DRAM.  All parts have numbers of channels that can be halved often: tiles
and pieces are halvings, and those of an odd number leave lanes of the matrix unit idle.

Source: as `hidden_chunks.py`, of which this is the case with one chunk on chip.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from frustum.passes.analysis.module import value_bytes
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import Hidden, InChunks, PartWriter, through_dram
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.weights import store_of


def hold_hidden(order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int) -> list[InChunks]:
    """Make every hidden map that goes through DRAM in these units in parts, of which the last fits so many bytes of
    SRAM beside what is around it; what was done."""
    found = []
    for hidden in through_dram(order, units):
        held = held_channels(hidden, sram_bytes)
        if held:
            sizes = [*parts_of(hidden.channels - held, hidden.channels // model.FEWEST_OF_PARTS), held]
            found.append(put(hidden, sizes, PartWriter(hidden.makers[-1], store_of(module))))
    return found


def held_channels(hidden: Hidden, sram_bytes: int) -> int:
    """Channels that stay: the largest power of two that takes at most `model.HELD_HIDDEN` of what the larger of the
    maps around leaves of SRAM; 0 where that is next to none, or all."""
    read = {product.a for product in hidden.products}
    around = max(sum(map(value_bytes, read)), value_bytes(hidden.sums.result))
    each = value_bytes(hidden.sums.a) // hidden.channels * len(hidden.products)
    most = int(model.HELD_HIDDEN * max(sram_bytes - around, 0)) // each
    held = largest_power(most) if most else 0
    return held if model.HELD_CHANNELS <= held < hidden.channels else 0


def parts_of(channels: int, least: int) -> list[int]:
    """So many channels in powers of two, the largest first; fewer than `least` that are left go with the last."""
    parts = []
    while channels:
        part = largest_power(channels)
        part = channels if channels - part < least else part
        parts.append(part)
        channels -= part
    return parts


def largest_power(number: int) -> int:
    """The largest power of two up to a number."""
    return 1 << number.bit_length() - 1


def put(hidden: Hidden, sizes: Sequence[int], writer: PartWriter) -> InChunks:
    """Parts of so many channels behind each other, and behind the last of them their sums, from the last one on."""
    sums, ends = hidden.sums, [0, *itertools.accumulate(sizes)]
    ranges = list(itertools.pairwise(ends))
    parts = [writer.part(hidden, own) for own in ranges]
    writer.last = sums
    result: SSAValue | None = None
    for own, part in zip(reversed(ranges), reversed(parts), strict=True):
        result = writer.share(sums, part, own, result, is_last=own is ranges[0])
    assert result is not None
    return writer.instead_of(result, (sums, *reversed(hidden.makers)))
