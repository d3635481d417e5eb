"""Units that leave SRAM for parts of the tensors that move several times.

Where SRAM has no room for all of a tensor that several units load, part of it may stay there (`lower/hold_parts.py`),
beside the tiles of all units from the first to the last of these.  Units of large tiles leave little; what smaller
tiles load again of each other's borders is often less than what such a part saves.

Source: partial residency, as of keys and values in `passes/plan/attention/streamed_attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.layer_order import Map
from frustum.passes.plan.network.optimal import NetworkPlan


@dataclass(frozen=True)
class MovedTensor:
    """A tensor in DRAM: the first and the last unit that stores or loads it, its bytes, and how many of DRAM each of
    these that stays in SRAM saves."""

    first: int
    last: int
    size: int
    saved: int


def with_room(
    plan: NetworkPlan, planned: Callable[[float], NetworkPlan | None], sram_bytes: int, *, is_for_bytes: bool
) -> NetworkPlan:
    """The plan, or the one of `planned` for a part of SRAM with which the fewest bytes move where parts of tensors take
    the rest; but for bytes (`is_for_bytes`) not where cycles rise by far more than bytes fall (`is_dearer`)."""
    if any(node.layer is None and not plan.order.is_row(k) for k, node in enumerate(plan.order.nodes)):
        return plan  # moves are planned as if they moved bytes, and whole tensors may stay instead of them
    best = start = with_parts(plan, sram_bytes)
    possible = sum(each.size * each.saved for each in moved_tensors(plan)) - start.held_bytes
    if possible < model.HELD_AT_LEAST * plan.dram_bytes:
        return start
    for share in model.SHARES_BESIDE:
        other = planned(share)
        if other is None:
            break
        other = with_parts(other, sram_bytes, round((1 - share) * sram_bytes))
        if moved_bytes(other) > model.BESIDE_HOPELESS * moved_bytes(start):
            break
        is_less = moved_bytes(other) < min(moved_bytes(best), (1 - model.HELD_PART_AT_LEAST) * moved_bytes(start))
        if is_less and (is_for_bytes or not is_dearer(other, start)):
            best = other
    return best


def moved_bytes(plan: NetworkPlan) -> int:
    """DRAM bytes, without those that parts of tensors in SRAM save."""
    return plan.dram_bytes - plan.held_bytes


def is_dearer(other: NetworkPlan, plan: NetworkPlan) -> bool:
    """Whether modelled cycles rise by a larger factor than the square of that by which bytes fall: of smaller tiles the
    models say more than the machine does."""
    return other.alone_cycles > plan.alone_cycles * (moved_bytes(plan) / moved_bytes(other)) ** model.BESIDE_SLOWER


def with_parts(plan: NetworkPlan, sram_bytes: int, unused: int = 0) -> NetworkPlan:
    """The plan with what its units may leave in so many bytes of SRAM, of which it was made for `unused` less, to parts
    of tensors, those first of which each byte saves most."""
    usable = int(sram_bytes * model.KEPT_SRAM_SHARE)
    room = [usable - used_bytes(unit, sram_bytes - unused) for unit in plan.units]
    reserved, held = [0] * len(room), 0
    for tensor in sorted(moved_tensors(plan), key=lambda each: (-each.saved, each.last - each.first)):
        units = range(tensor.first, tensor.last + 1)
        size = min(tensor.size, *(room[k] - reserved[k] for k in units))
        if size * tensor.saved < model.HELD_PART_AT_LEAST * plan.dram_bytes:
            continue
        held += size * tensor.saved
        for k in units:
            reserved[k] += size
    return replace(plan, reserved=tuple(reserved), held_bytes=held)


def used_bytes(unit: UnitChoice, sram_bytes: int) -> int:
    """Of SRAM while a unit runs: its own, and what passes by."""
    own = sram_bytes // model.MOVES_SRAM if unit.plan is None else unit.plan.cost.sram.total_bytes
    return sram_bytes - unit.free_bytes + own


def moved_tensors(plan: NetworkPlan) -> Iterator[MovedTensor]:
    """Inputs that several units load, and maps that go through DRAM as they were made."""
    order = plan.order
    unit_of = {k: number for number, unit in enumerate(plan.units) for k in range(unit.first, unit.stop)}
    for map_ in order.maps:
        readers = sorted({unit_of[k] for k in map_.users})
        if map_.is_constant or not readers or not is_plain(plan, map_):
            continue
        readers = [k for k in readers if map_.number not in {own.map for own in plan.units[k].resident}]
        if map_.producer is None:
            if len(readers) > 1:
                yield MovedTensor(readers[0], readers[-1], map_.bytes, len(readers) - 1)
            continue
        maker = unit_of[map_.producer]
        later = [k for k in readers if k > maker]
        if later and map_.number not in {own.map for own in plan.units[maker].kept}:
            yield MovedTensor(maker, later[-1], map_.bytes, len(later) + (not map_.is_output))


def is_plain(plan: NetworkPlan, map_: Map) -> bool:
    """Whether layers make and read it, one by one."""
    numbers: Sequence[int] = [*map_.users, *([] if map_.producer is None else [map_.producer])]
    nodes = [plan.order.nodes[k] for k in numbers]
    return all(node.layer is not None and not node.is_concat for node in nodes)
