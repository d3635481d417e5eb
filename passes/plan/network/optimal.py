"""Policy `optimal`: units, partitions, borders, weights and resident maps of a whole network by dynamic programming.

Source: docs/techniques/tfu.md, "Policy optimal"; notes on the method in `search.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_layer
from frustum.passes.analysis.unit_layers import UnitLayers, layers_of, unit_layers
from frustum.passes.plan import model
from frustum.passes.plan.cost import chunk_bytes
from frustum.passes.plan.network.groups import Group, GroupsBefore, by_channels
from frustum.passes.plan.network.layer_order import (
    LayerOrder,
    Map,
    order_of,
    orders,
    outputs_of_section,
)
from frustum.passes.plan.network.search import (
    FORM_BITS,
    HUGE,
    Kept,
    Search,
    Solution,
    Step,
    Ways,
)
from frustum.passes.plan.unit import Budget, UnitPlan, evaluate, plan_unit


@dataclass(frozen=True)
class OptimalOptions:
    """`borders`: overlap, exchange, sent or auto; `sram`: share of each cluster's SRAM that may be used; `keep`:
    whether maps between units may stay in SRAM."""

    borders: str = "auto"
    sram: float = 1.0
    keep: bool = True


DEFAULTS = OptimalOptions()


@dataclass(frozen=True)
class Unit:
    """A unit as it will be written: layers [first, stop) of an order, and how they are cut (None: by
    `frustum-tile-partition`)."""

    step: Step
    evaluation: UnitPlan | None


@dataclass(frozen=True)
class Plan:
    """A whole network in units, and what the model expects."""

    order: LayerOrder
    units: tuple[Unit, ...]
    dram_bytes: int
    cycles: int

    @property
    def between_bytes(self) -> int:
        """Of the maps that units leave in DRAM for others."""
        left = 0
        for unit in self.units:
            kept = {m >> FORM_BITS for m in unit.step.kept}
            maps = self.order.maps[unit.step.first : unit.step.stop]
            left += sum(
                m.bytes for m in maps if m.last_use >= unit.step.stop and (m.number not in kept or m.needs_dram)
            )
        return left


def plan_network(
    network: g.NetworkOp, target: Target, options: OptimalOptions = DEFAULTS, section: Operation | None = None
) -> Plan | None:
    """The cheapest units over several orders of the layers, in DRAM bytes, then cycles, or where `is_for_time` in
    cycles, then bytes; None where some layer fits in no way.

    A network without operations of others is one section, None.
    """
    capacity = int(target.cluster.sram.capacity_bytes * options.sram)
    keep = options.keep and (target.chip.clusters == 1 or target.cluster.cdma is not None)
    outputs = outputs_of_section(network, section)
    layer_orders = [order_of(ops, outputs) for ops in orders(network, section)]
    fastest = is_for_time(layer_orders[0], target)
    is_small = len(layer_orders[0].nodes) <= model.SMALL
    searches = [
        Search(
            x, target, capacity, options.borders, keep, fastest=fastest, seams=None if is_small else x.seams
        )
        for x in layer_orders
    ]
    plan = best_of(searches)
    if plan is None and not is_small:  # some chain fits in no way as a whole
        plan = best_of([replace(search, seams=None) for search in searches])
    if not fastest or plan is None:
        return plan
    once = best_of([replace(search, once=True, costs={}, banned={}, slower={}) for search in searches])
    is_better = once is not None and once.cycles <= model.ONCE * plan.cycles and once.dram_bytes <= plan.dram_bytes
    return once if is_better else plan


def best_of(searches: Sequence[Search]) -> Plan | None:
    """The best plan over several orders of the layers."""
    fastest = searches[0].fastest
    if len(searches[0].order.nodes) <= model.SMALL:
        plans = [plan for search in searches if (plan := plan_order(search)) is not None]
        return min(plans, key=lambda p: cost_of(p, fastest=fastest), default=None)
    few = searches if len(searches[0].order.nodes) <= model.MANY else searches[:1]
    if not fastest and (plan := near(few)) is not None:
        return plan
    search, solution = quick(few)
    is_near = (
        not fastest and solution is not None and solution.bytes <= model.NEAR * solution.order.compulsory_bytes
    )
    return plan_order(search, solution if is_near else None)


def near(searches: Sequence[Search]) -> Plan | None:
    """A plan that moves next to nothing more than it must, from the search of few ways and then of more; None where
    there is none in these orders.  What moves more is left out at once, so that to find none takes little time."""
    compulsory_bytes = searches[0].order.compulsory_bytes
    few, many = (model.QUICK_STATES, model.QUICK_LENGTH, model.NEAR), (*width_of(searches[0].order), model.NEARLY)
    for states, length, share in (few, many):
        best, bound = None, int(share * compulsory_bytes)
        for search in searches:
            plan = plan_order(replace(search, most_states=states, longest=length, bound=bound), relax=False)
            if plan is not None and plan.dram_bytes <= model.NEAR * compulsory_bytes:
                return plan
            if plan is not None and (best is None or plan.dram_bytes < best.dram_bytes):
                best, bound = plan, plan.dram_bytes - 1
        if best is not None:
            return best
    return None


def width_of(order: LayerOrder) -> tuple[int, int]:
    """States of a cut and layers of a group that the full search looks at."""
    if len(order.nodes) <= model.LARGE:
        return model.MANY_STATES, model.MANY_LENGTH
    return model.LARGE_STATES, model.LARGE_LENGTH


def quick(searches: Sequence[Search]) -> tuple[Search, Solution | None]:
    """The order of the layers that is best when few ways are looked at, and what is found, which bounds all others; a
    single order is searched in full at once.  Of large networks the full search looks at fewer states."""
    if len(searches) == 1:
        states, length = width_of(searches[0].order)
        return replace(searches[0], most_states=states, longest=length), None
    found = []
    for search in searches:
        solution = replace(search, most_states=model.QUICK_STATES, longest=model.QUICK_LENGTH).solve()
        cost = (HUGE, HUGE) if solution is None else cost_of(solution, fastest=search.fastest)
        found.append((cost, search, solution))
    _, search, solution = min(found, key=lambda f: f[0])
    bound = HUGE if solution is None or search.fastest else solution.bytes
    states, length = width_of(search.order)
    return replace(search, most_states=states, longest=length, bound=bound), solution


def is_for_time(order: LayerOrder, target: Target) -> bool:
    """Whether cycles come before DRAM bytes: for several images that keep the products busy for longer than the DRAM
    port, even if all is read and written once."""
    layers = [node.layer for node in order.nodes if node.layer is not None]
    if all(layer.out_dims[0] == 1 for layer in layers):
        return False
    unit, cores = target.core.matrix, target.chip.clusters * target.cluster.cores
    cycles = sum(x.macs * unit.cycles_per_step.of(x.maps[0].element_bytes) for x in layers if x.is_matrix)
    products = unit.lines * unit.channels * cores
    return cycles * target.chip.dram.port_bytes_per_cycle > order.compulsory_bytes * products


def cost_of(found: Plan | Solution | UnitPlan, *, fastest: bool) -> tuple[float, float]:
    """What is to be least: DRAM bytes, then cycles, or the other way round."""
    bytes_ = found.bytes if isinstance(found, Solution) else found.dram_bytes
    return (found.cycles, bytes_) if fastest else (bytes_, found.cycles)


def plan_order(search: Search, solution: Solution | None = None, *, relax: bool = True) -> Plan | None:
    """The best solution of which every group fits with exact numbers; `solution` is the first to try.

    Where a group does not fit, the search goes on from its first one without it, and where nothing is left within its
    bound, without that (`relax`).
    """
    after = 0
    for attempt in range(model.TRIES):
        solution = solution or search.solve(after)
        if solution is None and relax and search.bound < HUGE:  # what it is the bound of does not fit
            search, after = replace(search, bound=HUGE), 0
            continue
        if solution is None:
            return None
        units = [exact(step, search) for step in solution.steps]
        if search.fastest and attempt < model.CORRECTIONS and corrects(search, [u for u in units if u is not None]):
            solution, after = None, 0
            continue
        failed = [s for s, unit in zip(solution.steps, units, strict=True) if unit is None]
        if not failed:
            return plan_of(solution, [u for u in units if u is not None])
        for step in failed:
            search.banned.setdefault((step.first, step.stop), set()).add((step.resident, step.kept))
        after = min(len(search.states) - 1, failed[0].stop - 1)
        solution = None
    return None


def corrects(search: Search, units: Sequence[Unit]) -> bool:
    """Tell the search about units that are much slower by exact numbers; whether there are any."""
    is_new = False
    for step, made in ((u.step, u.evaluation) for u in units):
        if made is None or step.cycles == 0 or made.cycles <= model.MUCH_SLOWER * step.cycles:
            continue
        key = (step.first, step.stop, step.by_channels, made.partition.tile[0] > 1)
        search.slower[key] = search.slower.get(key, 1.0) * made.cycles / step.cycles
        is_new = True
    return is_new


def plan_of(solution: Solution, units: Sequence[Unit]) -> Plan:
    moved = sum(u.evaluation.dram_bytes if u.evaluation else u.step.bytes for u in units)
    cycles = sum(int(u.evaluation.cycles) if u.evaluation else u.step.cycles for u in units)
    return Plan(solution.order, tuple(units), moved, cycles)


def exact(step: Step, search: Search) -> Unit | None:
    """A group with the fastest of its cheapest shapes that fit exactly."""
    if step.shape is None:
        return Unit(step, None)
    group = group_of(step, search)
    if group is None:
        return None
    nodes = search.order.nodes[step.first : step.stop]
    ops = [node.op for node in nodes]
    outputs = leaving(ops, step, search.order)
    resident = values_of(step.resident, search.order)
    unit = layers_of(ops, outputs, resident)
    kept = {unit.ops.index(search.order.nodes[m >> FORM_BITS].op) for m in step.kept}
    also = sum(m.bytes for m in maps_of(step.kept, search.order) if m.needs_dram)  # stays, and is stored
    found: list[Unit] = []
    for other in Ways(group, search).ranked(step.resident, step.kept, step.free_bytes, model.ALTERNATIVES):
        assert other.shape is not None
        if found and (len(found) == model.ALIKE if search.fastest else other.bytes > most_of(found)):
            break
        partition = group.shapes.partition(other.shape, group.channels, other.passes)
        most = other.streamed if search.once and other.passes > 1 else len(group.weights)
        for streamed in counts_near(other.streamed, most, fewer=model.FEWER if other.passes > 1 else 0):
            made = evaluate(
                unit, partition, streamed, kept, search.target, step.free_bytes, chunk_bytes(search.capacity)
            )
            if made is not None:
                moved = replace(made.cost, dram_bytes=made.dram_bytes + also)
                found.append(Unit(other, replace(made, cost=moved)))
                break
    return min(
        found,
        key=lambda u: cost_of(u.evaluation, fastest=search.fastest) if u.evaluation else (0, 0),
        default=None,
    )


def group_of(step: Step, search: Search) -> Group | None:
    """The group of a step again."""
    if step.by_channels:
        return by_channels(search.order, search.target, step.stop, search.borders)
    groups = GroupsBefore(search.order, search.target, step.stop, search.borders).within(search.capacity)
    return next((group for group in groups if group.first == step.first), None)


def most_of(found: Sequence[Unit]) -> int:
    """Bytes beyond which no shape is looked at: what the search expects of the cheapest, or the least that was found
    where that does not fit as the search thinks."""
    least = min(unit.evaluation.dram_bytes for unit in found if unit.evaluation is not None)
    return max(found[0].step.bytes, least)


def counts_near(streamed: int, most: int, fewer: int) -> range:
    """About so many streamed weights: fewer, for their chunks may be smaller than the search thinks, or two more."""
    return range(max(0, streamed - fewer), min(most, streamed + 2) + 1)


def leaving(ops: Sequence[Operation], step: Step, order: LayerOrder) -> list[SSAValue]:
    """Results that are read behind a group."""
    found: list[SSAValue] = [
        ops[k - step.first].results[0]
        for k in range(step.first, step.stop)
        if order.maps[k].last_use >= step.stop or order.maps[k].is_output
    ]
    return found or [ops[-1].results[0]]


def maps_of(maps: Kept, order: LayerOrder) -> list[Map]:
    return [order.maps[m >> FORM_BITS] for m in maps]


def values_of(maps: Kept, order: LayerOrder) -> set[SSAValue]:
    return {order.nodes[m >> FORM_BITS].op.results[0] for m in maps}


# ---------------------------------------------------------------- layers that are a unit already


def plan_runs(
    ops: Sequence[Operation], outputs: Sequence[SSAValue], target: Target, sram_bytes: int, borders: str
) -> Plan | None:
    """The runs of these layers that move the fewest DRAM bytes, with what they read and give in DRAM; None where some
    layer is a move, or fits in no way."""
    if not all(is_layer(op) for op in ops):
        return None
    order = order_of(ops, outputs)
    states, longest = width_of(order)
    keep = target.chip.clusters == 1 or target.cluster.cdma is not None
    seams = None if len(ops) <= model.SMALL else order.seams
    return plan_order(Search(order, target, sram_bytes, borders, keep, longest, states, seams=seams))


def plan_given(unit: UnitOp, target: Target, sram_bytes: int, borders: str = "auto") -> UnitPlan | None:
    """The cheapest shape of a unit with all its maps in DRAM, in bytes, then cycles; None where `plan_unit` knows a
    cheaper one, or none of these goes."""
    layers = unit_layers(unit)
    end = unit.body.block.last_op
    assert end is not None
    found = cheapest(layers, list(end.operands), target, sram_bytes, borders)
    plain = None if borders == "exchange" else plan_unit(layers, target, Budget(sram_bytes))
    if plain is None or found is None:
        return found
    return found if (found.dram_bytes, found.cycles) < (plain.dram_bytes, plain.cycles) else None


def cheapest(
    layers: UnitLayers, outputs: list[SSAValue], target: Target, sram_bytes: int, borders: str
) -> UnitPlan | None:
    """The best shape of the search for which all layers have pieces."""
    if not all(is_layer(op) for op in layers.ops):
        return None
    search = Search(order_of(layers.ops, outputs), target, sram_bytes, borders, keep=False)
    count = len(layers.ops)
    groups = GroupsBefore(search.order, target, count, borders).within(sram_bytes)
    group = next((g for g in groups if g.first == 0), None)
    if group is None:
        return None
    nothing = frozenset[int]()
    for step in Ways(group, search).ranked(nothing, nothing, sram_bytes, model.TRIED):
        assert step.shape is not None
        partition = group.shapes.partition(step.shape, group.channels, step.passes)
        found = evaluate(layers, partition, step.streamed, (), target, sram_bytes, chunk_bytes(sram_bytes))
        if found is not None:
            return found
    return None
