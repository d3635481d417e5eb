"""The units of policy `optimal` in the IR: a network's, or the runs of one unit that rules made.

Source: docs/techniques/tfu.md, "Policy optimal" and "Running a unit".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, Operation

from frustum.dialects import graph as g
from frustum.dialects.choices import Optimise
from frustum.dialects.module import RESERVED
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.analysis.foreign import gather
from frustum.passes.analysis.module import kind_name, node_name
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice, values_of
from frustum.passes.plan.network.head_chunks import heads_in_chunks
from frustum.passes.plan.network.hidden_chunks import in_chunks
from frustum.passes.plan.network.layer_order import (
    LayerOrder,
    ops_of_section,
    order_of,
    orders,
    outputs_of_section,
)
from frustum.passes.plan.network.made_again import hold_far_inputs, hold_inputs, make_again
from frustum.passes.plan.network.optimal import (
    DEFAULTS,
    NetworkPlan,
    OptimalOptions,
    is_for_time,
    plan_network,
)
from frustum.passes.plan.network.trials.finer_windows import finer_windows
from frustum.passes.plan.network.trials.hidden_held import hold_hidden
from frustum.passes.plan.network.trials.images_apart import images_apart
from frustum.passes.plan.network.trials.input_chunks import inputs_in_chunks
from frustum.passes.plan.network.trials.joint_maps import joint_maps
from frustum.passes.plan.network.trials.norms_apart import norms_apart
from frustum.passes.plan.network.trials.norms_in_place import norms_in_place
from frustum.passes.plan.network.trials.parts_beside import is_dearer, moved_bytes, with_room
from frustum.passes.plan.network.trials.planes_by_rows import planes_by_rows
from frustum.passes.plan.network.trials.row_bands import in_bands
from frustum.passes.plan.network.trials.stored_parts import Again, name_parts
from frustum.passes.plan.unit_ops import annotate, in_order, readers_between, wrap


def fuse_optimal(
    network: g.NetworkOp, target: Target, options: OptimalOptions = DEFAULTS
) -> dict[str, dict[str, int]]:
    """Put all layers of a network into the units of `plan_network`; what is expected of it, and would be of others.

    Raises `DoesNotFit` where no plan has the cuts that `options` gives; later, in `frustum-tile-partition`, for a layer
    that fits in no way.
    """
    number = 0
    plans = []
    for section in gather(network.body.block):
        if not ops_of_section(network, section):
            continue
        count, plan = fuse_section(network, target, options, section, number)
        plans.append(plan)
        number += count
    figures = [plan.alternatives for plan in plans if plan is not None and plan.alternatives]
    if not figures or len(figures) < len(plans):
        return {}
    first = figures[0]
    return {name: {x: sum(each[name][x] for each in figures) for x in first[name]} for name in first}


def fuse_section(
    network: g.NetworkOp, target: Target, options: OptimalOptions, section: Operation | None, number: int
) -> tuple[int, NetworkPlan | None]:
    """Put the layers of one section into units, from this number on; how many units they are, and their plan."""
    options = replace(options, borders=borders_of(network, target, options, section))
    planner = Planner(network, target, options, section)
    plan = with_inputs_held(planner) or planner.plan()
    if plan is not None:
        for improved in TRIALS:
            plan = improved(planner, plan)
        write(network, plan, section, number)
        return len(plan.units), plan
    if options.ends is not None:
        raise DoesNotFit("a plan with these cuts", "cuts", "units that end elsewhere too", "only those of the cuts")
    layers = orders(network, section)[0]
    for k, op in enumerate(layers):
        wrap([op], f"u{number + k}", "does not fit SRAM beside another layer")
    return len(layers), None


def borders_of(
    network: g.NetworkOp, target: Target, options: OptimalOptions, section: Operation | None
) -> str:
    """`exchange` instead of `sent` where units without borders of their own leave more maps in DRAM: its units are run
    layer by layer afterwards, or refused (`frustum-tile-split-breadth-first`)."""
    if options.borders != "sent":
        return options.borders
    sent, exchange = (
        plan_network(network, target, replace(options, borders=each), section)
        for each in ("sent", "exchange")
    )
    if sent is None or exchange is None:
        return "sent" if exchange is None else "exchange"
    return "sent" if sent.between_bytes <= exchange.between_bytes else "exchange"


class Undoable(Protocol):
    """Of a network, on trial."""

    def undo(self) -> None: ...


def undo(changes: Sequence[Undoable]) -> None:
    """The network as it was before these."""
    for change in reversed(changes):
        change.undo()


@dataclass(frozen=True)
class Planner:
    """Plans of a section of a network as it is at the time."""

    network: g.NetworkOp
    target: Target
    options: OptimalOptions
    section: Operation | None

    @property
    def module(self) -> ModuleOp:
        module = self.network.get_toplevel_object()
        assert isinstance(module, ModuleOp)
        return module

    def plan(self) -> NetworkPlan | None:
        return plan_network(self.network, self.target, self.options, self.section)

    def kept_if(self, changes: Sequence[Undoable], is_wanted: Callable[[NetworkPlan], bool]) -> NetworkPlan | None:
        """The plan of the changed network if it is wanted; else None, and the network is as it was before."""
        plan = self.plan() if changes else None
        if plan is not None and is_wanted(plan):
            return plan
        undo(changes)
        return None

    def is_better(self, plan: NetworkPlan) -> Callable[[NetworkPlan], bool]:
        """Whether another plan is better than this one."""
        return lambda other: is_better(other, plan, self.options.optimise)


def is_near(plan: NetworkPlan) -> bool:
    """Whether a plan moves next to nothing more than it must."""
    return plan.dram_bytes <= model.NEAR * plan.order.compulsory_bytes


def with_places(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or a better one with units that store only the parts of concatenations that they make."""
    if is_near(plan) or is_for_time(plan.order, planner.target):
        return plan
    again: list[Again] = []
    for unit in plan.units:
        in_sram = {m.map for m in unit.kept | unit.resident}
        again += name_parts(plan.order, unit.first, unit.stop, in_sram)
    return planner.kept_if(again, planner.is_better(plan)) or plan


def with_maps_again(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or a better one in which maps that go through DRAM are made again where they are needed again."""
    if is_near(plan):
        return plan

    def is_wanted(other: NetworkPlan) -> bool:
        optimise = planner.options.optimise
        return is_better(other, plan, optimise) or is_worth_time(other, plan, optimise)

    return planner.kept_if(make_again(plan.order, plan.units), is_wanted) or plan


def with_copied_inputs(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or a better one in which inputs of the network that several units load stay in SRAM from the first."""
    return planner.kept_if(copied_inputs(planner, plan), planner.is_better(plan)) or plan


def copied_inputs(planner: Planner, plan: NetworkPlan) -> Sequence[Undoable]:
    """Copies of inputs of the network that several units of a plan load, where it moves more than it must."""
    if is_near(plan):
        return []
    sram_bytes = planner.target.chip.clusters * planner.target.cluster.sram.capacity_bytes
    return hold_inputs(plan.order, plan.units, sram_bytes, model.HELD_AT_LEAST * plan.dram_bytes)


def with_heads_in_chunks(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on one cluster a better one in which attention is made some heads at a time where its result, or its
    queries, keys and values, go through DRAM."""
    plan = with_chunks(planner, plan, partial(heads_in_chunks, is_summed=True))
    apart, normed = partial(heads_in_chunks, is_apart=True), partial(heads_in_chunks, is_normed=True)
    return with_best_chunks(planner, plan, [heads_in_chunks, apart, normed])


def with_hidden_in_chunks(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or a better one in which hidden maps of products that go through DRAM are made and read in chunks;
    perhaps with what all chunks read in SRAM, if that is an input of the network."""
    return with_held(planner, plan, put_for(planner, plan, in_chunks, is_spread=True))


def with_rows_in_bands(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or a better one in which hidden maps that go through DRAM are made in chunks for some rows after the
    others; where time is to be least, none of which cycles rise by a larger factor than bytes fall."""
    shares = (model.HIDDEN_SHARE,) if planner.options.optimise == "bytes" else (model.BAND_SHARE, model.HIDDEN_SHARE)
    for share in shares:
        dearest = lambda other: plan.dram_bytes / other.dram_bytes  # noqa: E731
        better = with_chunks(planner, plan, partial(in_bands, share=share), dearest)
        if better is not plan:
            return better
    return plan


def with_large_in_chunks(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The same of hidden maps that stay, where others perhaps go through DRAM for them, or weights move again."""
    return with_chunks(planner, plan, partial(in_chunks, or_large=True), is_spread=True)


def with_norms_apart(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or a better one in which norms of planes that go through DRAM are made where they are read; where rows
    are dealt to clusters, what is known of channels is found row by row."""
    put = partial(norms_apart, is_by_rows=planner.target.chip.clusters > 1)
    return with_held(planner, plan, put_for(planner, plan, put, is_spread=True))


def with_joint_maps(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on one cluster a better one in which attention reads several parts of maps in SRAM."""
    return with_chunks(planner, plan, joint_maps)


def with_norms_in_place(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on one cluster a better one in which normalisations take the place of what they read, which is made
    of them again where others read it; where time is to be least, none of which cycles rise by a larger factor than
    bytes fall."""
    return with_chunks(planner, plan, norms_in_place, dearest=lambda other: plan.dram_bytes / other.dram_bytes)


def with_hidden_held(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on one cluster a better one in which some channels of hidden maps that go through DRAM do not; where
    time is to be least, none that takes longer."""
    return with_chunks(planner, plan, hold_hidden, dearest=lambda other: 1.0)


def with_inputs_in_chunks(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on one cluster a better one in which convolutions behind norms go by chunks of input channels: of
    those that may each is tried, the first ones first, beside those that were better so."""
    number = 0
    for _ in range(model.MOST_IN_CHUNKS):
        better = with_chunks(planner, plan, partial(inputs_in_chunks, number=number))
        number, plan = number + (better is plan), better
    return plan


def with_planes_by_rows(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on several clusters a better one in which planes are reduced where their rows are; perhaps with
    inputs of the network that several units load then."""
    if planner.target.chip.clusters == 1 or planner.options.ends is not None:
        return plan
    changes = planes_by_rows(plan.order, planner.module, planner.target, plan.cycles)
    return with_held(planner, plan, changes)


def with_held(planner: Planner, plan: NetworkPlan, changed: Sequence[Undoable]) -> NetworkPlan:
    """The plan, or a better one of the network as it was changed; perhaps with inputs of the network that several units
    load then."""
    changes = [*changed]
    other = planner.plan() if changes else None
    if other is not None:
        held = copied_inputs(planner, other)
        with_held = planner.kept_if(held, planner.is_better(other))
        changes += held if with_held is not None else []
        if planner.is_better(plan)(other := with_held or other):
            return other
    undo(changes)
    return plan


def with_finer_windows(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on several clusters a better one in which planes that are pooled in two steps are so by smaller
    windows; on one, what parts of tensors save in SRAM that units leave (`with_room_for_parts`) decides more."""
    if planner.target.chip.clusters == 1 or planner.options.ends is not None:
        return plan
    changes = finer_windows(plan.order, planner.module, planner.target)
    return planner.kept_if(changes, planner.is_better(plan)) or plan


Put: TypeAlias = Callable[[LayerOrder, Sequence[UnitChoice], ModuleOp, int], Sequence[Undoable]]
"""Changes a network where its units leave room for that in so many bytes of SRAM; what was done."""


def with_best_chunks(planner: Planner, plan: NetworkPlan, ways: Sequence[Put]) -> NetworkPlan:
    """The plan, or the best of those of the network as one of several ways changes it, of which each is looked at."""
    changed = []
    for put in ways:
        changes = put_for(planner, plan, put)
        undo(changes)
        changed += [put] * bool(changes)
    best, chosen = plan, None
    for put in changed:
        changes = put_for(planner, plan, put)
        other = planner.plan()
        if other is not None and planner.is_better(best)(other):
            best, chosen = other, put
        if chosen is changed[-1]:
            return best
        undo(changes)
    return plan if chosen is None else with_chunks(planner, plan, chosen)


def with_chunks(
    planner: Planner,
    plan: NetworkPlan,
    put: Put,
    dearest: Callable[[NetworkPlan], float] = lambda other: math.inf,
    *,
    is_spread: bool = False,
) -> NetworkPlan:
    """The plan, or a better one of the network as `put` changes it, on one cluster, or where it `is_spread` on several;
    `dearest`: times the cycles that it may take where time is to be least."""

    def is_wanted(other: NetworkPlan) -> bool:
        is_fast = planner.options.optimise == "time"
        is_dear = is_fast and other.alone_cycles > dearest(other) * plan.alone_cycles
        return not is_dear and planner.is_better(plan)(other)

    return planner.kept_if(put_for(planner, plan, put, is_spread=is_spread), is_wanted) or plan


def put_for(planner: Planner, plan: NetworkPlan, put: Put, *, is_spread: bool = False) -> Sequence[Undoable]:
    """What `put` changes of a network that moves more than it must, on one cluster, or where it `is_spread` on several
    with the SRAM of all."""
    target, options = planner.target, planner.options
    clusters = target.chip.clusters
    is_open = options.ends is None and (is_spread or clusters == 1)
    if not is_open or is_near(plan) or is_for_time(plan.order, target):
        return []
    sram_bytes = clusters * target.cluster.sram.capacity_bytes
    return put(plan.order, plan.units, planner.module, int(sram_bytes * options.sram))


def with_inputs_held(planner: Planner) -> NetworkPlan | None:
    """The plan with small inputs of the network in SRAM from the first layer that reads them to the last, where more
    weights are between than SRAM holds; None where there are none, or more moves than must."""
    network, section = planner.network, planner.section
    order = order_of(ops_of_section(network, section), outputs_of_section(network, section))
    capacity = planner.target.cluster.sram.capacity_bytes
    return planner.kept_if(hold_far_inputs(order, model.HELD_SHARE * capacity, capacity), is_near)


def with_room_for_parts(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on one cluster one whose units leave SRAM for parts of tensors that move several times."""
    target, options = planner.target, planner.options
    is_open = options.keep and options.ends is None and len(plan.order.nodes) <= model.MOST_BESIDE
    if not is_open or target.chip.clusters > 1 or is_near(plan):
        return plan
    sram_bytes = int(target.cluster.sram.capacity_bytes * options.sram)

    def planned(share: float) -> NetworkPlan | None:
        return replace(planner, options=replace(options, sram=share * options.sram)).plan()

    return with_room(plan, planned, sram_bytes, is_for_bytes=options.optimise == "bytes")


def with_images_apart(planner: Planner, plan: NetworkPlan) -> NetworkPlan:
    """The plan, or on one cluster one with which fewer bytes move of one image after the other, and cycles rise by no
    larger factor."""
    if not plan.reserved or planner.section is not None:
        return plan
    changes = images_apart(plan.order, planner.network)
    other = planner.plan() if changes else None
    if other is not None:
        other = with_room_for_parts(planner, other)
        is_dear = planner.options.optimise != "bytes" and is_dearer(other, plan)
        if moved_bytes(other) < moved_bytes(plan) and not is_dear:
            return other
    undo(changes)
    return plan


TRIALS = (
    with_places, with_maps_again, with_copied_inputs, with_inputs_in_chunks, with_norms_apart, with_heads_in_chunks,
    with_joint_maps, with_hidden_in_chunks, with_norms_in_place, with_rows_in_bands, with_large_in_chunks,
    with_hidden_held, with_planes_by_rows, with_finer_windows, with_room_for_parts, with_images_apart,
)  # fmt: skip
"""Changes of the network that are planned in turn, each of what the ones before have left."""


def is_worth_time(better: NetworkPlan, plan: NetworkPlan, optimise: Optimise) -> bool:
    """Whether a plan for time moves so many bytes fewer than another that the modelled cycles do not decide."""
    few = better.dram_bytes <= model.FAR_FEWER * plan.dram_bytes
    return few and optimise == "time" and better.cycles <= model.AGAIN_SLOWER * plan.cycles


def is_better(better: NetworkPlan, plan: NetworkPlan, optimise: Optimise) -> bool:
    """Whether a plan has less of what is asked for than another."""
    if optimise == "energy":
        return better.energy_pj < plan.energy_pj
    if optimise == "time" and not all("bytes" in each.alternatives for each in (better, plan)):
        return (better.cycles, better.dram_bytes) < (plan.cycles, plan.dram_bytes)
    if optimise == "time":
        budget = model.BUDGET * min(each.alternatives["bytes"]["dram_bytes"] for each in (better, plan))
        over, under = (max(each.dram_bytes - budget, 0) for each in (plan, better))
        return (under, better.cycles, better.dram_bytes) < (over, plan.cycles, plan.dram_bytes)
    return (better.dram_bytes, better.cycles) < (plan.dram_bytes, plan.cycles)


# ---------------------------------------------------------------- writing


def write(network: g.NetworkOp, plan: NetworkPlan, section: Operation | None = None, first: int = 0) -> None:
    """Units of a section in the order of the plan, each behind what it reads, numbered from `first`."""
    in_order(network.body.block, [node.op for node in plan.order.nodes], section)
    write_units(plan, first, [stopped_by(plan, number) for number in range(len(plan.units))])


def write_runs(plan: NetworkPlan, first: int, stopped_by: str) -> None:
    """The runs as units behind each other, in the place of the last layer, called `u<first>` and so on."""
    move_together([node.op for node in plan.order.nodes], f"u{first}")
    count = len(plan.units)
    runs = [f"run {number + 1} of {count}: " if count > 1 else "" for number in range(count)]
    write_units(plan, first, [run + stopped_by for run in runs])


def write_units(plan: NetworkPlan, first: int, reasons: Sequence[str]) -> None:
    """The units of a plan, with why each ends."""
    for number, (unit, reason) in enumerate(zip(plan.units, reasons, strict=True), first):
        layers = [node.op for node in plan.order.nodes[unit.first : unit.stop]]
        written = wrap(layers, f"u{number}", reason, values_of(unit.kept, plan.order))
        if unit.plan is not None:
            annotate(written, layers, unit.plan, is_small=unit.plan.partition.depth == 1)
        if plan.reserved and plan.reserved[number - first]:
            written.attributes[RESERVED] = IntegerAttr(plan.reserved[number - first], i64)


def stopped_by(plan: NetworkPlan, number: int) -> str:
    """Why a unit ends: what it costs, and what comes next."""
    unit = plan.units[number]
    if number + 1 == len(plan.units):
        return f"end of the network: {unit.exact_bytes} DRAM bytes here"
    following = plan.order.nodes[unit.stop].op
    name = f"'{name}'" if (name := node_name(following)) else kind_name(following)
    return f"cut before {name}: {unit.exact_bytes} DRAM bytes here, {plan.dram_bytes} in all"


def move_together(ops: Sequence[Operation], unit_name: str) -> None:
    """Put layers in front of the last of them, so that nothing else runs between two runs, and what stood between them
    and reads one of them behind it."""
    last = ops[-1]
    block = last.parent
    assert isinstance(block, Block)
    later = readers_between(ops, set(ops), unit_name)
    for op in ops[:-1]:
        op.detach()
        block.insert_op_before(op, last)
    for reader in reversed(later):
        reader.detach()
        block.insert_op_after(reader, last)
