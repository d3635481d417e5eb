"""Policy `optimal`: units, partitions, borders, weights and resident maps of a whole network by dynamic programming.

Source: docs/techniques/tfu.md, "Policy optimal"; notes on the method in `search.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.module import MAP
from frustum.dialects.target import Target
from frustum.dialects.tile import MapAttr
from frustum.dialects.unit import PartitionAttr, UnitOp
from frustum.passes.analysis.foreign import gather, sections_of
from frustum.passes.plan.cost import chunk_bytes
from frustum.passes.plan.model import (
    ALIKE,
    ALTERNATIVES,
    CORRECTIONS,
    FEWER,
    LARGE,
    LARGE_LENGTH,
    LARGE_STATES,
    MANY,
    MANY_LENGTH,
    MANY_STATES,
    MUCH_SLOWER,
    NEAR,
    NEARLY,
    ONCE,
    QUICK_LENGTH,
    QUICK_STATES,
    SMALL,
    TRIES,
)
from frustum.passes.analysis.module import kind_name, node_name
from frustum.passes.plan.network.concatenations import Again, name_parts
from frustum.passes.plan.network.evaluate import Evaluation, evaluate, unit_of
from frustum.passes.plan.network.layer_order import (
    LayerOrder,
    Map,
    ops_of_section,
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
from frustum.passes.plan.network.sweep import Group, Sweep, by_channels
from frustum.passes.plan.wrap import wrap


@dataclass(frozen=True)
class OptimalOptions:
    """`borders`: overlap, exchange, sent or auto; `sram`: share of each cluster's SRAM that may be used; `keep`:
    whether maps between units may stay in SRAM."""

    borders: str = "auto"
    sram: float = 1.0
    keep: bool = True


@dataclass(frozen=True)
class Unit:
    """A unit as it will be written: layers [first, stop) of an order, and how they are cut (None: by
    `frustum-tile-partition`)."""

    step: Step
    evaluation: Evaluation | None


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


def fuse_optimal(network: g.NetworkOp, target: Target, options: OptimalOptions = OptimalOptions()) -> None:
    """Put all layers of a network into the units of `plan_network`.

    Raises `DoesNotFit` later, in `frustum-tile-partition`, for a layer that fits in no way.
    """
    number = 0
    for section in gather(network.body.block):
        number += fuse_section(network, target, options, section, number)
    for weight in [op for op in network.body.block.ops if isinstance(op, g.WeightOp)]:
        if not weight.result.uses:
            weight.detach()
            weight.erase()


def fuse_section(
    network: g.NetworkOp, target: Target, options: OptimalOptions, section: Operation | None, number: int
) -> int:
    """Put the layers of one section into units, from this number on; how many units they are."""
    if not ops_of_section(network, section):
        return 0
    options = replace(options, borders=borders_of(network, target, options, section))
    plan = plan_network(network, target, options, section)
    plan = with_places(network, target, options, plan, section)
    if plan is not None:
        write(network, plan, section, number)
        return len(plan.units)
    layers = orders(network, section)[0]
    for k, op in enumerate(layers):
        wrap([op], f"u{number + k}", "does not fit SRAM beside another layer")
    return len(layers)


def borders_of(
    network: g.NetworkOp, target: Target, options: OptimalOptions, section: Operation | None
) -> str:
    """`exchange` instead of `sent` where units without borders of their own leave more maps in DRAM: its units are run
    layer by layer afterwards, or refused (`frustum-tile-split-breadth-first`)."""
    if options.borders != "sent":
        return options.borders
    sent, exchange = (
        plan_network(network, target, replace(options, borders=each), section) for each in ("sent", "exchange")
    )
    if sent is None or exchange is None:
        return "sent" if exchange is None else "exchange"
    return "sent" if sent.between_bytes <= exchange.between_bytes else "exchange"


def with_places(
    network: g.NetworkOp, target: Target, options: OptimalOptions, plan: Plan | None, section: Operation | None = None
) -> Plan | None:
    """The plan, or a better one with units that store only the parts of concatenations that they make."""
    if (
        plan is None
        or plan.dram_bytes <= NEAR * plan.order.compulsory_bytes
        or is_for_time(plan.order, target)
    ):
        return plan
    again: list[Again] = []
    for unit in plan.units:
        in_sram = {m >> FORM_BITS for m in unit.step.kept | unit.step.resident}
        again += name_parts(plan.order, unit.step.first, unit.step.stop, in_sram)
    better = plan_network(network, target, options, section) if again else None
    if better is not None and (better.dram_bytes, better.cycles) < (plan.dram_bytes, plan.cycles):
        return better
    for changed in reversed(again):
        changed.undo()
    return plan


def plan_network(
    network: g.NetworkOp, target: Target, options: OptimalOptions = OptimalOptions(), section: Operation | None = None
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
    is_small = len(layer_orders[0].nodes) <= SMALL
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
    is_better = once is not None and once.cycles <= ONCE * plan.cycles and once.dram_bytes <= plan.dram_bytes
    return once if is_better else plan


def best_of(searches: Sequence[Search]) -> Plan | None:
    """The best plan over several orders of the layers."""
    fastest = searches[0].fastest
    if len(searches[0].order.nodes) <= SMALL:
        plans = [plan for search in searches if (plan := plan_order(search)) is not None]
        return min(plans, key=lambda p: cost_of(p, fastest=fastest), default=None)
    few = searches if len(searches[0].order.nodes) <= MANY else searches[:1]
    if not fastest and (plan := near(few)) is not None:
        return plan
    search, solution = quick(few)
    is_near = (
        not fastest and solution is not None and solution.bytes <= NEAR * solution.order.compulsory_bytes
    )
    return plan_order(search, solution if is_near else None)


def near(searches: Sequence[Search]) -> Plan | None:
    """A plan that moves next to nothing more than it must, from the search of few ways and then of more; None where
    there is none in these orders.  What moves more is left out at once, so that to find none takes little time."""
    compulsory_bytes = searches[0].order.compulsory_bytes
    few, many = (QUICK_STATES, QUICK_LENGTH, NEAR), (*width_of(searches[0].order), NEARLY)
    for states, length, share in (few, many):
        best, bound = None, int(share * compulsory_bytes)
        for search in searches:
            plan = plan_order(replace(search, most_states=states, longest=length, bound=bound), relax=False)
            if plan is not None and plan.dram_bytes <= NEAR * compulsory_bytes:
                return plan
            if plan is not None and (best is None or plan.dram_bytes < best.dram_bytes):
                best, bound = plan, plan.dram_bytes - 1
        if best is not None:
            return best
    return None


def width_of(order: LayerOrder) -> tuple[int, int]:
    """States of a cut and layers of a group that the full search looks at."""
    return (MANY_STATES, MANY_LENGTH) if len(order.nodes) <= LARGE else (LARGE_STATES, LARGE_LENGTH)


def quick(searches: Sequence[Search]) -> tuple[Search, Solution | None]:
    """The order of the layers that is best when few ways are looked at, and what is found, which bounds all others; a
    single order is searched in full at once.  Of large networks the full search looks at fewer states."""
    if len(searches) == 1:
        states, length = width_of(searches[0].order)
        return replace(searches[0], most_states=states, longest=length), None
    found = []
    for search in searches:
        solution = replace(search, most_states=QUICK_STATES, longest=QUICK_LENGTH).solve()
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


def cost_of(found: Plan | Solution | Evaluation, *, fastest: bool) -> tuple[float, float]:
    """What is to be least: DRAM bytes, then cycles, or the other way round."""
    bytes_ = found.bytes if isinstance(found, Solution) else found.dram_bytes
    return (found.cycles, bytes_) if fastest else (bytes_, found.cycles)


def plan_order(search: Search, solution: Solution | None = None, *, relax: bool = True) -> Plan | None:
    """The best solution of which every group fits with exact numbers; `solution` is the first to try.

    Where a group does not fit, the search goes on from its first one without it, and where nothing is left within its
    bound, without that (`relax`).
    """
    after = 0
    for attempt in range(TRIES):
        solution = solution or search.solve(after)
        if solution is None and relax and search.bound < HUGE:  # what it is the bound of does not fit
            search, after = replace(search, bound=HUGE), 0
            continue
        if solution is None:
            return None
        units = [exact(step, search) for step in solution.steps]
        if search.fastest and attempt < CORRECTIONS and corrects(search, [u for u in units if u is not None]):
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
        if made is None or step.cycles == 0 or made.cycles <= MUCH_SLOWER * step.cycles:
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
    unit = unit_of(ops, outputs, resident)
    kept = {unit.ops.index(search.order.nodes[m >> FORM_BITS].op) for m in step.kept}
    also = sum(m.bytes for m in maps_of(step.kept, search.order) if m.needs_dram)  # stays, and is stored
    found: list[Unit] = []
    for other in Ways(group, search).ranked(step.resident, step.kept, step.free_bytes, ALTERNATIVES):
        assert other.shape is not None
        if found and (len(found) == ALIKE if search.fastest else other.bytes > most_of(found)):
            break
        partition = group.shapes.partition(other.shape, group.channels, other.passes)
        most = other.streamed if search.once and other.passes > 1 else len(group.weights)
        for streamed in counts_near(other.streamed, most, fewer=FEWER if other.passes > 1 else 0):
            made = evaluate(
                unit, partition, streamed, kept, search.target, step.free_bytes, chunk_bytes(search.capacity)
            )
            if made is not None:
                found.append(Unit(other, replace(made, dram_bytes=made.dram_bytes + also)))
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
    sweep = Sweep(search.order, search.target, step.stop, search.borders)
    return next((x for x in sweep.groups(search.capacity) if x.first == step.first), None)


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


# ---------------------------------------------------------------- into the IR


def write(network: g.NetworkOp, plan: Plan, section: Operation | None = None, first: int = 0) -> None:
    """Units of a section in the order of the plan, each behind what it reads, numbered from `first`."""
    ops = [[n.op for n in plan.order.nodes[u.step.first : u.step.stop]] for u in plan.units]
    in_order(network.body.block, [op for unit in ops for op in unit], section)
    keeps = [values_of(u.step.kept, plan.order) for u in plan.units]
    for number, (unit, layers, kept) in enumerate(zip(plan.units, ops, keeps, strict=True)):
        reason = stopped_by(plan, number)
        written = wrap(layers, f"u{first + number}", reason, kept)
        if unit.evaluation is not None:
            annotate(written, layers, unit.evaluation)


def annotate(unit: UnitOp, layers: Sequence[Operation], evaluation: Evaluation) -> None:
    unit.properties["partition"] = PartitionAttr(evaluation.partition)
    unit.properties["mode"] = StringAttr("small" if evaluation.partition.depth == 1 else "large")
    for op, submap in zip(layers, evaluation.maps, strict=True):
        if submap is not None:
            op.attributes[MAP] = MapAttr(submap)


def in_order(block: Block, ops: Sequence[Operation], section: Operation | None = None) -> None:
    """Put the layers of a section in this order, and every reshape of it before its first reader."""
    own = [op for op, behind in sections_of(block).items() if behind is section]
    waiting = {op for op in own if isinstance(op, g.ReshapeOp)}
    end = own[-1].next_op if own else None
    assert end is not None  # a network ends with its outputs

    def place(op: Operation) -> None:
        waiting.discard(op)
        for operand in op.operands:
            if isinstance(operand.owner, Operation) and operand.owner in waiting:
                place(operand.owner)
        op.detach()
        block.insert_op_before(op, end)

    for op in ops:
        place(op)
    for op in own:
        if op in waiting:
            place(op)


def stopped_by(plan: Plan, number: int) -> str:
    """Why a unit ends: what it costs, and what comes next."""
    unit = plan.units[number]
    cost = unit.evaluation.dram_bytes if unit.evaluation else unit.step.bytes
    if number + 1 == len(plan.units):
        return f"end of the network: {cost} DRAM bytes here"
    following = plan.order.nodes[unit.step.stop].op
    name = f"'{node_name(following)}'" if node_name(following) else kind_name(following)
    return f"cut before {name}: {cost} DRAM bytes here, {plan.dram_bytes} in all"
