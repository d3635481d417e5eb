"""Policy `optimal`: units, partitions, borders, weights and resident maps of a whole network by dynamic programming.

Source: docs/techniques/tfu.md, "Policy optimal"; notes on the method in `cuts.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.choices import Optimise
from frustum.dialects.plan.layer_cycles import crossing_pj
from frustum.dialects.target import Target
from frustum.dialects.unit import Partition
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan import model
from frustum.passes.plan.makespan import times_of
from frustum.passes.plan.network.candidates import HUGE, Setting, UnitChoice, values_of
from frustum.passes.plan.network.cuts import CutSearch, Solution
from frustum.passes.plan.network.groups import Group
from frustum.passes.plan.network.known_prices import KnownPrices, planned_for
from frustum.passes.plan.network.layer_order import LayerOrder, order_of, orders, outputs_of_section
from frustum.passes.plan.network.prices import Prices
from frustum.passes.plan.unit import evaluate, with_owners


@dataclass(frozen=True)
class OptimalOptions:
    """`borders`: overlap, exchange, sent or auto; `sram`: share of each cluster's SRAM that may be used; `keep`:
    whether maps between units may stay in SRAM; `optimise`: what is to be least (docs/optimal.md); `ends`: names of
    the layers behind which units end and nowhere else, None where that is searched too."""

    borders: str = "auto"
    sram: float = 1.0
    keep: bool = True
    optimise: Optimise = "time"
    ends: tuple[str, ...] | None = None


DEFAULTS = OptimalOptions()


@dataclass(frozen=True)
class NetworkPlan:
    """A whole network in units, and what the model expects."""

    order: LayerOrder
    units: tuple[UnitChoice, ...]
    target: Target

    @cached_property
    def dram_bytes(self) -> int:
        return sum(unit.exact_bytes for unit in self.units)

    @cached_property
    def cycles(self) -> int:
        """Of all units behind each other, weights loaded ahead of them; what the search adds up instead is the cycles
        of each alone."""
        times = times_of([unit.work(self.target) for unit in self.units], self.target)
        return round(times[-1].chain) if times else 0

    @cached_property
    def alone_cycles(self) -> int:
        """Of all units as if each were alone: also of those that are cut later, of which the chain of all knows the
        DRAM port alone."""
        return sum(unit.exact_cycles for unit in self.units)

    @cached_property
    def energy_pj(self) -> float:
        """Of bytes between memories and of products, modelled."""
        return sum(unit.energy_pj for unit in self.units) + self.dram_bytes * crossing_pj(self.target)

    def figures(self) -> dict[str, int]:
        """What a run is expected to take."""
        return {"dram_bytes": self.dram_bytes, "cycles": self.cycles, "energy_pj": round(self.energy_pj)}

    alternatives: dict[str, dict[str, int]] = field(default_factory=dict, compare=False)
    """The figures with each thing that can be least."""
    reserved: tuple[int, ...] = ()
    """Bytes of SRAM that each unit leaves to parts of tensors, if any; `held_bytes` of DRAM these save."""
    held_bytes: int = 0

    @property
    def between_bytes(self) -> int:
        """Of the maps that units leave in DRAM for others."""
        left = 0
        for unit in self.units:
            kept = {m.map for m in unit.kept}
            maps = [m for m in self.order.maps[unit.first : unit.stop] if m.last_use >= unit.stop]
            left += sum(m.bytes for m in maps if m.number not in kept or m.needs_dram)
        return left


def plan_network(
    network: g.NetworkOp, target: Target, options: OptimalOptions = DEFAULTS, section: Operation | None = None
) -> NetworkPlan | None:
    """The cheapest units over several orders of the layers, in DRAM bytes, then cycles, or where `is_for_time` in
    cycles, then bytes; None where some layer fits in no way.

    A network without operations of others is one section, None.
    """
    capacity = int(target.cluster.sram.capacity_bytes * options.sram)
    keep = options.keep and (target.chip.clusters == 1 or target.cluster.cdma is not None)
    outputs = outputs_of_section(network, section)
    layer_orders = [order_of(ops, outputs) for ops in orders(network, section)]
    first = layer_orders[0]
    is_small, fastest = len(first.nodes) <= model.SMALL, is_for_time(first, target)
    settings = [Setting(x, target, capacity, options.borders, keep, fastest) for x in layer_orders]
    planned = planned_for(settings[0])
    searches = [CutSearch(x, seams=seams_of(x.order, options), known=KnownPrices(planned)) for x in settings]
    plan = best_of(searches)
    if plan is None and not is_small and options.ends is None:  # some chain fits in no way as a whole
        plan = best_of([replace(search, seams=None) for search in searches])
    if plan is None:
        return plan
    if not fastest:
        return chosen(searches, plan, options.optimise)
    once = best_of(begun_anew(searches, lambda setting: replace(setting, once=True, slower={})))
    is_better = (
        once is not None and once.cycles <= model.ONCE * plan.cycles and once.dram_bytes <= plan.dram_bytes
    )
    return once if is_better else plan


def seams_of(order: LayerOrder, options: OptimalOptions) -> frozenset[int] | None:
    """Where cuts are looked for: everywhere (None), where a large network may have them, or where they are given."""
    if options.ends is not None:
        return order.cuts_behind(options.ends)
    return None if len(order.nodes) <= model.SMALL else order.seams


def chosen(searches: Sequence[CutSearch], fewest: NetworkPlan, optimise: Optimise) -> NetworkPlan:
    """Of the plans found with the fewest bytes, the fewest cycles and the least energy the one that is asked for."""
    fastest = within_budget(searches, fewest)
    if optimise == "bytes":
        in_cores = best_of(begun_anew(searches, lambda setting: replace(setting, in_cores=True)))
        rivals = [fewest] if in_cores is None else [fewest, in_cores]
        fewest = min(rivals, key=lambda plan: (plan.dram_bytes, plan.cycles))
    plans = {"bytes": fewest, "time": fastest}
    found = [fewest, fastest]
    target = fewest.target
    if optimise == "energy" and crossing_pj(target) > 0:
        anew = begun_anew(searches, lambda setting: replace(setting, byte_pj=crossing_pj(target)))
        found += [plan for plan in [best_of(anew)] if plan is not None]
    plans["energy"] = min(found, key=lambda plan: (plan.energy_pj, plan.cycles))
    figures = {name: plan.figures() for name, plan in plans.items()}
    return replace(plans[optimise], alternatives=figures)


def begun_anew(searches: Sequence[CutSearch], changed: Callable[[Setting], Setting]) -> list[CutSearch]:
    """The searches begun anew with another setting."""
    planned = planned_for(changed(searches[0].setting))
    return [
        replace(search, setting=changed(search.setting), costs={}, banned={}, known=KnownPrices(planned))
        for search in searches
    ]


def within_budget(searches: Sequence[CutSearch], fewest: NetworkPlan) -> NetworkPlan:
    """The plan with the fewest cycles that moves at most `model.BUDGET` times the bytes of the plan that moves the
    fewest, or what it takes not to be slower than with less SRAM; of large networks in the order of the layers of that
    one."""
    if len(fewest.order.nodes) <= model.SMALL:
        found = fewest
        for search in searches:
            wide = replace(search, most_states=model.WIDER * search.most_states, within_bound=True)
            found = faster(wide, fewest, found)
        return found
    own = next(search for search in searches if search.order is fewest.order)
    length, states = length_for(fewest), model.WIDER * states_of(fewest.order)
    while True:
        found = faster(replace(own, most_states=states, longest=length, within_bound=True), fewest, fewest)
        if length_for(found) <= length:
            return found
        length = length_for(found)


def faster(search: CutSearch, fewest: NetworkPlan, found: NetworkPlan) -> NetworkPlan:
    """The plan that this search finds so, where it is clearly faster than the one with the fewest bytes, or `found`."""
    wide = replace(search, bound=int(model.HIGHEST * fewest.dram_bytes))
    aim = for_time(wide, wide.ends(), fewest.dram_bytes, model.RUNGS)
    budget = max(int(model.BUDGET * fewest.dram_bytes), aim.dram_bytes)
    plan = plan_order(replace(wide, bound=budget), relax=False)
    share = model.CLEARLY_FASTER if aim.below is None else model.FASTER_BELOW
    most = share * fewest.cycles
    if plan is not None and plan.dram_bytes <= budget and plan.cycles < min(most, found.cycles):
        found = plan
    below = None if aim.below is None else plan_order(aim.below, relax=False)
    if below is None or below.cycles >= share * found.cycles:
        return found
    is_near = below.dram_bytes <= model.MOST * fewest.dram_bytes
    return below if is_near or is_worth_bytes(below, found) else found


class Aim(NamedTuple):
    """Bytes and cycles that the search expects of the plan for time; the search for less SRAM whose plan goes too,
    where more bytes than `model.BUDGET` make a plan faster."""

    dram_bytes: int
    cycles: float
    below: CutSearch | None = None


def is_worth_bytes(more: Aim | NetworkPlan, fewer: Aim | NetworkPlan) -> bool:
    """Whether bytes rise by a smaller factor than cycles fall."""
    return more.dram_bytes * (more.cycles / fewer.cycles) <= fewer.dram_bytes


def for_time(search: CutSearch, ends: Sequence[tuple[int, int]], fewest: int, rungs: int) -> Aim:
    """Of the ways `ends` that the search has found, by ascending bytes and descending cycles: the fastest that moves
    at most `model.BUDGET` times the fewest bytes, or what the plan for time moves in the next smaller SRAM of a ladder,
    which also goes in this one, up to `model.MOST` times these; more only where it would else be slower than that, and
    bytes rise by a smaller factor than cycles fall."""
    found = last_within(ends, model.BUDGET * fewest)
    if rungs == 0 or not ends or ends[-1][1] >= model.FASTER_BELOW * found.cycles:
        return found
    smaller = replace(search, capacity=rung_below(search.capacity), costs={}, banned={})
    fewer = smaller.ends()
    if not fewer:  # no way for less SRAM, or all move more than anybody would for time
        return last_within(ends, model.MOST * fewest)
    counts = len(search.order.nodes) > model.SMALL or fewer[0][0] > ends[0][0]  # of a small one: where bytes rise
    below = for_time(smaller, fewer, fewer[0][0], rungs - counts)
    within = last_within(ends, min(below.dram_bytes, model.MOST * fewest))
    found = min(found, within, key=lambda aim: aim.cycles)
    if below.cycles < found.cycles:
        rival = next((Aim(*end) for end in ends if end[1] <= below.cycles), Aim(*ends[-1]))
        found = rival if is_worth_bytes(rival, found) else found
    return found._replace(below=replace(smaller, bound=below.dram_bytes))


def last_within(ends: Sequence[tuple[int, int]], most: float) -> Aim:
    """The last, and fastest, that moves no more bytes."""
    return Aim(*max((end for end in ends if end[0] <= most), default=(0, math.inf)))


def rung_below(size: int) -> int:
    """The next smaller of all powers of two and one and a half times these."""
    power = 1 << (size - 1).bit_length() - 1
    return power + power // 2 if power + power // 2 < size else power


def best_of(searches: Sequence[CutSearch]) -> NetworkPlan | None:
    """The best plan over several orders of the layers."""
    setting, layers = searches[0].setting, len(searches[0].order.nodes)
    if layers <= model.SMALL:
        plans = [plan for search in searches if (plan := plan_order(search)) is not None]
        if setting.byte_pj is not None:
            return min(plans, key=lambda p: (p.energy_pj, p.cycles), default=None)
        return min(plans, key=lambda p: setting.cost(p.dram_bytes, p.cycles), default=None)
    few = searches if layers <= model.MANY else searches[:1]
    bytes_first = not setting.fastest and setting.byte_pj is None
    if bytes_first and (plan := near(few)) is not None:
        return plan
    search, solution = quick(few)
    if bytes_first:
        bound = int(model.NEARLY * search.order.compulsory_bytes)
        plan = in_full(replace(search, bound=bound), relax=False)
        if plan is not None:
            return plan
    if solution is not None and (
        setting.fastest or solution.bytes > model.NEAR * solution.order.compulsory_bytes
    ):
        solution = None
    return in_full(search, solution)


def near(searches: Sequence[CutSearch]) -> NetworkPlan | None:
    """A plan that moves next to nothing more than it must, from the search of few ways; None where there is none in
    these orders.  What moves more is left out at once, so that to find none takes little time."""
    best, bound = None, int(model.NEAR * searches[0].order.compulsory_bytes)
    for search in searches:
        few = replace(search, most_states=model.QUICK_STATES, longest=model.LENGTHS[0], bound=bound)
        plan = plan_order(few, relax=False)
        if plan is not None and plan.dram_bytes <= model.NEAR * search.order.compulsory_bytes:
            return plan
        if plan is not None and (best is None or plan.dram_bytes < best.dram_bytes):
            best, bound = plan, plan.dram_bytes - 1
    return best


def in_full(search: CutSearch, solution: Solution | None = None, *, relax: bool = True) -> NetworkPlan | None:
    """`plan_order`, with groups as long as its own plan asks for."""
    plan = plan_order(search, solution, relax=relax)
    while plan is not None and length_for(plan) > search.longest:
        search = replace(search, longest=length_for(plan))
        plan = plan_order(search, relax=relax) or plan
    return plan


def states_of(order: LayerOrder) -> int:
    """States of a cut that the full search looks at."""
    return model.MANY_STATES if len(order.nodes) <= model.LARGE else model.LARGE_STATES


def length_for(plan: NetworkPlan) -> int:
    """Layers of a group that the full search looks at: as many as any two units of this plan that follow each other
    have together, so that it has looked at them as one."""
    sizes = [unit.stop - unit.first for unit in plan.units]
    longest = max((one + other for one, other in itertools.pairwise(sizes)), default=0)
    lengths = model.LENGTHS if len(plan.order.nodes) <= model.LARGE else model.LENGTHS[:-1]
    return next((length for length in lengths if longest <= length), lengths[-1])


def quick(searches: Sequence[CutSearch]) -> tuple[CutSearch, Solution | None]:
    """The order of the layers that is best when few ways are looked at, and what is found, which bounds all others; a
    single order is searched in full at once.  Of large networks the full search looks at fewer states."""
    if len(searches) == 1:
        states = states_of(searches[0].order)
        return replace(searches[0], most_states=states, longest=model.LENGTHS[0]), None
    found = []
    for search in searches:
        solution = replace(search, most_states=model.QUICK_STATES, longest=model.LENGTHS[0]).solve()
        cost = (HUGE, HUGE) if solution is None else search.setting.cost(solution.bytes, solution.cycles)
        found.append((cost, search, solution))
    _, search, solution = min(found, key=lambda f: f[0])
    bound = HUGE if solution is None or search.setting.fastest else solution.bytes
    states = states_of(search.order)
    return replace(search, most_states=states, longest=model.LENGTHS[0], bound=bound), solution


def is_for_time(order: LayerOrder, target: Target) -> bool:
    """Whether cycles come before DRAM bytes: for several images that keep the products busy for longer than the DRAM
    port, even if all is read and written once."""
    layers = [node.layer for node in order.nodes if node.layer is not None]
    if all(layer.out_dims[0] == 1 for layer in layers if layer.is_matrix):  # parts of a normalisation are no images
        return False
    unit, cores = target.core.matrix, target.chip.clusters * target.cluster.cores
    cycles = sum(x.macs * unit.cycles_per_step.of(x.maps[0].element_bytes) for x in layers if x.is_matrix)
    products = unit.lines * unit.channels * cores
    return cycles * target.chip.dram.port_bytes_per_cycle > order.compulsory_bytes * products


def plan_order(
    search: CutSearch, solution: Solution | None = None, *, relax: bool = True, corrections: int = model.CORRECTIONS
) -> NetworkPlan | None:
    """The best solution of which every group fits with exact numbers (of those for time that were looked at the fastest
    by exact cycles); `solution` is the first to try.

    Where a group does not fit, the search goes on from its first one without it, and where nothing is left within its
    bound, without that (`relax`); `corrections`: of bytes (`with_exact_bytes`).
    """
    after, best, is_for_cycles = 0, None, search.setting.fastest or search.within_bound
    for attempt in range(model.TRIES):
        solution = solution or search.solve(after)
        if solution is None and best is None and relax and search.bound < HUGE:  # what it is the bound of does not fit
            search, after = replace(search, bound=HUGE), 0
            continue
        if solution is None:
            return best
        exact = [known_plan(choice, search) for choice in solution.choices]
        units = [unit for unit in exact if unit is not None]
        failed = [x for x, unit in zip(solution.choices, exact, strict=True) if unit is None]
        if not failed:
            plan = NetworkPlan(solution.order, tuple(units), search.setting.target)
            best = plan if best is None or plan.cycles < best.cycles else best
        slower = corrects(search.setting, units) if is_for_cycles and attempt < model.CORRECTIONS else []
        if best is not None and not failed and not slower:
            return best if is_for_cycles else with_exact_bytes(search, best, corrections)
        for x in failed if not slower else ():
            search.banned.setdefault((x.first, x.stop), set()).add((x.resident, x.kept))
        solution, after = None, min(len(search.cuts) - 1, min(slower) - 1 if slower else failed[0].stop - 1)
    return best


def with_exact_bytes(search: CutSearch, plan: NetworkPlan, corrections: int) -> NetworkPlan:
    """The plan, or one that moves fewer bytes without its units that move more than the search thinks: inputs of which
    a tile needs some rows here and all there.  So often at most are others looked for."""
    wrong = [unit for unit in plan.units if unit.exact_bytes > unit.bytes]
    if not wrong or not corrections:
        return plan
    banned = {key: set(refused) for key, refused in search.banned.items()}
    for x in wrong:
        banned.setdefault((x.first, x.stop), set()).add((x.resident, x.kept))
    others = replace(search, banned=banned, costs={}, bound=plan.dram_bytes)
    return min(plan, plan_order(others, relax=False, corrections=corrections - 1) or plan, key=lambda p: p.dram_bytes)


def corrects(setting: Setting, units: Sequence[UnitChoice]) -> list[int]:
    """Tell the search about units that are much slower by exact numbers; the cuts behind them."""
    found = []
    for x in units:
        if x.plan is not None and x.cycles and x.plan.cycles > model.MUCH_SLOWER * x.cycles:
            key = (x.first, x.stop, x.by_channels, x.plan.partition.tile[0] > 1)
            setting.slower[key] = setting.slower.get(key, 1.0) * x.plan.cycles / x.cycles
            found.append(x.stop)
    return found


def known_plan(choice: UnitChoice, search: CutSearch) -> UnitChoice | None:
    """`with_plan`, once of all choices that are equal but for where they stand."""
    if choice.shape is None:
        return choice
    known, first = search.known, choice.first
    number = known.keys_of(search.setting).number(first, choice.stop)
    key = number, choice.moved(-first), search.within_bound, search.capacity, search.setting.slower_of(choice)
    if key not in known.planned.exact:
        found = with_plan(choice, search)
        known.planned.exact[key] = None if found is None else found.moved(-first)
    plan = known.planned.exact[key]
    return None if plan is None else plan.moved(first)


def with_plan(choice: UnitChoice, search: CutSearch) -> UnitChoice | None:
    """A group with the fastest of its cheapest shapes that fit exactly."""
    prices = prices_of(choice, search)
    if prices is None:
        return None
    setting, group = search.setting, prices.group
    order, free_bytes = setting.order, choice.free_bytes
    ops = [node.op for node in order.nodes[choice.first : choice.stop]]
    unit = layers_of(ops, choice.leaving(order), values_of(choice.resident, order))
    kept = {m.map - choice.first for m in choice.kept}
    stays = [order.maps[m.map] for m in choice.kept]
    also = sum(m.bytes for m in stays if m.needs_dram)  # stays, and is stored
    sends = sum(setting.send_cycles(m) for m in choice.kept)
    found: list[UnitChoice] = []
    is_for_cycles = setting.fastest or search.within_bound
    most = choice.bytes if search.within_bound else None
    for other in prices.ranked(choice.resident, choice.kept, free_bytes, model.ALTERNATIVES, most):
        if found and (len(found) == model.ALIKE if is_for_cycles else other.bytes > most_of(found)):
            break
        partition = partition_of(other, group)
        largest = other.streamed if setting.once and other.passes > 1 else len(group.weights)
        for streamed in counts_near(other.streamed, largest, fewer=model.FEWER if other.passes > 1 else 0):
            made = evaluate(
                unit, partition, streamed, kept, setting.target, free_bytes, setting.chunk_bytes,
                in_cores=setting.in_cores,
            )  # fmt: skip
            if made is not None:
                cost = made.cost.with_maps(also, sends, search.capacity - free_bytes)
                found.append(replace(other, plan=replace(made, cost=cost)))
                break
    if search.within_bound:
        within = [x for x in found if x.exact_bytes <= choice.bytes + also]
        best = min(within or found, key=lambda x: (x.exact_cycles, x.exact_bytes), default=None)
    else:
        best = min(
            found, key=lambda x: setting.cost(x.exact_bytes, x.plan.cycles if x.plan else 0), default=None
        )
    if best is None or best.plan is None:
        return best
    owned = with_owners(unit, best.plan, kept, setting.target, free_bytes, setting.chunk_bytes)
    moved = replace(owned.cost, dram_bytes=best.plan.dram_bytes)
    return best if owned is best.plan else replace(best, plan=replace(owned, cost=moved))


def prices_of(choice: UnitChoice, search: CutSearch) -> Prices | None:
    """Of the group of a unit."""
    if choice.by_channels:
        return search.known.of_channels(search.setting, choice.stop)
    return next(search.known.before(search.setting, choice.stop, [choice.first]), None)


def partition_of(choice: UnitChoice, group: Group) -> Partition:
    """How a choice cuts its group into tiles."""
    assert choice.shape is not None
    return group.shapes.partition(choice.shape, group.channels, choice.passes)


def most_of(found: Sequence[UnitChoice]) -> int:
    """Bytes beyond which no shape is looked at: what the search expects of the cheapest, or the least that was found
    where that does not fit as the search thinks."""
    return max(found[0].bytes, min(unit.exact_bytes for unit in found))


def counts_near(streamed: int, most: int, fewer: int) -> range:
    """About so many streamed weights: fewer, for their chunks may be smaller than the search thinks, or two more."""
    return range(max(0, streamed - fewer), min(most, streamed + 2) + 1)
