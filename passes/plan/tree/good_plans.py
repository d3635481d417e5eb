# Tests: test/passes/plan/tree/test_search.py
"""Plans of which one may be the best: searches for what is wished, judged by their count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.plan.clusters import NotExchanged
from frustum.dialects.plan.count import Counted, count
from frustum.dialects.plan.cycles import KnownLayers, timed
from frustum.dialects.plan.tree import Halo, Loop, Node, Sequence
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree.known import KnownParts
from frustum.passes.plan.tree.search import PlanSearch, searched
from frustum.passes.plan.tree.spans import Dealt
from frustum.passes.plan.tree.trace import no_plan, plan_of, traced
from frustum.passes.plan.tree.units import LEVELS
from frustum.passes.plan.tree.wishes import IDLE, NO_WISHES, Wishes

TRIES = 8
"""Smaller sizes of SRAM for which a plan is searched where one takes more than its prices say. 2026-11-28."""


def fitting_plan(
    network: AxisNetwork, capacity: int, clusters: int = 1, wishes: Wishes = NO_WISHES
) -> tuple[Sequence, Counted]:  # fmt: skip
    """The plan with the least of what is wished, DRAM bytes if nothing is said, and its count, with cycles where the
    wishes have a target; DoesNotFit where none fits.  `capacity`: of each cluster.

    Of time and energy prices are rougher than `cycles.timed`, which judges between the plans that were found; one whose
    sums do not wait in DRAM comes before one whose do.
    """
    return good_plans(network, capacity, clusters, wishes)[0]


def good_plans(
    network: AxisNetwork, capacity: int, clusters: int = 1, wishes: Wishes = NO_WISHES
) -> list[tuple[Sequence, Counted]]:  # fmt: skip
    """Plans of which one may be the best, in the order in which they are judged so: of bytes one; of time and energy
    that of the search, those that leave memory for second copies and wider slices, and one for which bytes come first.
    """
    if not network.layers:  # its outputs are views of inputs
        return [(Sequence(()), count(network, Sequence(())))]
    if wishes.optimise == "bytes":
        return [_fitting_plan(network, capacity, clusters, wishes)]
    assert wishes.target is not None, "time and energy are those of a target"
    judged, refused, known = list[tuple[Sequence, Counted]](), list[DoesNotFit](), KnownParts()
    if wishes.optimise == "time":
        ahead, first_bytes = replace(wishes, ahead=True), replace(wishes, idle=IDLE[1])
        less = LEVELS * 7 // 8, LEVELS * 3 // 4
        others = [(first_bytes, less)] if wishes.is_quick else [(wishes, ()), (first_bytes, ())]
        asked = [(ahead, less), *others]
        if clusters != Dealt().clusters:
            asked.append((replace(ahead, next_dealing=True), ()))
        if wishes.is_quick:
            asked += [(replace(own, patient=True), less) for own in (first_bytes, ahead)]
    else:
        asked = [(wishes, (LEVELS * 3 // 4,)), (replace(wishes, optimise="bytes"), ())]
    for own, less in asked:
        if judged and own.patient:
            break
        try:
            found = _fitting_plans(network, capacity, clusters, own, less, known)
        except DoesNotFit as error:  # without second copies there may be one
            refused.append(error)
            continue
        found = [each for each in found if wishes.most is None or wishes.most.allows(each[1])]
        judged += (each for each in found if all(each[0] != plan for plan, _ in judged))
    if not judged:
        raise refused[-1] if refused else no_plan(network, capacity, wishes)
    what = "cycles" if wishes.optimise == "time" else "energy_pj"
    return sorted(judged, key=lambda found: (found[1].waits_in_dram, getattr(found[1], what), found[1].dram_bytes))


def _fitting_plan(network: AxisNetwork, capacity: int, clusters: int, wishes: Wishes) -> tuple[Sequence, Counted]:
    """The best plan that fits."""
    return _fitting_plans(network, capacity, clusters, wishes)[0]


def _fitting_plans(
    network: AxisNetwork, capacity: int, clusters: int, wishes: Wishes, less: tuple[int, ...] = (),
    known: KnownParts | None = None,
) -> list[tuple[Sequence, Counted]]:  # fmt: skip
    """The best plan that fits, and those for so many 64ths of the memory, where there are any.

    Prices leave out what no candidate says alone, such as rows that roll in two axes.  Where the count finds more SRAM
    than there is, the plan for so much less is taken; where none of all clusters fits, one for a single cluster; not so
    where a quick search is enough.
    """
    known = known or KnownParts()
    for many in [clusters] if wishes.is_quick else dict.fromkeys((clusters, Dealt().clusters)):
        room = capacity
        for _ in range(TRIES):
            search = searched(network, room, many, wishes, (*less, LEVELS), known, _judged)
            if not np.isfinite(search.curve[LEVELS]):
                break
            levels = [LEVELS, *(level for level in less if np.isfinite(search.curve[level]))]
            plans = dict.fromkeys(plan_of(search, level) for level in levels)
            found = [_counted(network, plan, wishes.target, known.layers) for plan in plans]
            fitting = [(plan, counted) for plan, counted in found if counted.sram_bytes <= capacity]
            if fitting:
                return fitting
            room = min(room - 1, room * capacity // found[0][1].sram_bytes)
    raise no_plan(network, capacity, wishes)


def _judged(search: PlanSearch) -> float:
    """The price of what a narrow search finds: of time that of its count, since prices know little of links."""
    price = search.narrowly()
    if search.costs is None or search.costs.is_energy or not np.isfinite(price):
        return price
    _, counted = _counted(search.network, traced(search, LEVELS), search.wishes.target, search.known.layers)
    return search.costs.together(counted.dram_bytes, counted.cycles)


def _counted(
    network: AxisNetwork, plan: Sequence, target: Target | None, known: KnownLayers | None = None
) -> tuple[Sequence, Counted]:  # fmt: skip
    """The plan and its count; where a neighbour has not the rows that a cluster asks for, both make them."""

    def counted(plan: Sequence) -> Counted:
        return count(network, plan) if target is None else timed(network, plan, target, known)

    try:
        return plan, counted(plan)
    except NotExchanged:
        found = _recomputed(plan)
        assert isinstance(found, Sequence)
        return found, counted(found)


def _recomputed(node: Node) -> Node:
    """Without exchange between clusters."""
    match node:
        case Sequence():
            return replace(node, children=tuple(map(_recomputed, node.children)))
        case Loop():
            body = _recomputed(node.body)
            assert isinstance(body, Sequence)
            return replace(node, body=body, halo=Halo.RECOMPUTED if node.halo is Halo.EXCHANGED else node.halo)
    return node
