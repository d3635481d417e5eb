# Tests: test/passes/plan/tree/test_search.py
"""The best plan of a search as a tree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.plan.check import Named
from frustum.dialects.plan.tree import (
    Compute,
    Halo,
    Loop,
    Node,
    Over,
    Part,
    Resident,
    Sequence,
    Sum,
    nodes_in,
)
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree.best import bare_ways, nest_ways
from frustum.passes.plan.tree.forest import ForestRecord, Kept, UnitStep, part_axis
from frustum.passes.plan.tree.intervals import ClassCut, LayerInterval
from frustum.passes.plan.tree.nest import NO_BYTES, LoopNest
from frustum.passes.plan.tree.search import LoopWay, PlanSearch
from frustum.passes.plan.tree.spans import Extents
from frustum.passes.plan.tree.units import LEVELS, NEARLY, PlacedInterval
from frustum.passes.plan.tree.wishes import NO_WISHES, Stretches, Wishes


@dataclass(frozen=True)
class TreePlace:
    """Where in the tree a part of the plan is: extents of axes there, tiles that loops around it make of them, and what
    lies in SRAM."""

    extents: Extents
    tiles: Mapping[Axis, tuple[int, ...]]
    resident: dict[Tensor, float]
    depth: int
    is_dealt: bool = True
    """Whether a loop over clusters is around it."""


def plan_of(search: PlanSearch, level: int = LEVELS) -> Sequence:
    """The plan with the fewest DRAM bytes in all of the memory, or in so many shares of it that were wanted; DoesNotFit
    where there is none."""
    if not np.isfinite(search.curve[level]):
        raise no_plan(search.network, search.capacity, search.wishes)
    return traced(search, level)


def traced(search: PlanSearch, level: int) -> Sequence:
    """The plan that a search found last."""
    search.is_done = True
    found = _once(_Trace(search).whole(level), frozenset())
    search.is_done = False
    whole = found if isinstance(found, Sequence) else Sequence((found,))
    if search.wishes.sum_bits or any(tensor.sums for tensor in search.network.tensors):
        whole = _in_sequence(whole, Named(search.network, whole), search, frozenset())
    return replace(whole, copies=search.copies)


def _with_sums(node: Node, named: Named, search: PlanSearch, around: frozenset[Axis]) -> Node:
    """The tree with the type of sums that wait, where it is not that of elements.  `around`: what loops cut."""
    match node:
        case Compute():
            made = (named.layers[name] for name in node.layers)
            sums = tuple(
                Sum(each.result.name, each.result.sums or search.wishes.carry) for each in made
                if search.reads.widening(each.result) > 1.0 and around & each.combine.keys() - {*each.result.axes}
            )  # fmt: skip
            return replace(node, sums=sums)
        case Loop():
            _, group, _ = named.class_of(node)
            return replace(node, body=_in_sequence(node.body, named, search, around | group))
        case Sequence():
            return _in_sequence(node, named, search, around)


def _in_sequence(node: Sequence, named: Named, search: PlanSearch, around: frozenset[Axis]) -> Sequence:
    return replace(node, children=tuple(_with_sums(child, named, search, around) for child in node.children))


def no_plan(network: AxisNetwork, capacity: int, wishes: Wishes = NO_WISHES) -> DoesNotFit:
    """What is said where no plan fits: of which of the units that are given, if it is one of them."""
    where, available = f"network @{network.name}", f"{capacity} B of SRAM"
    stretches = Stretches.of(network.layers, wishes.cuts)
    search = PlanSearch(network, capacity, wishes=wishes)
    for first, stop in stretches.ends.items() if stretches else ():
        unit = search.unit(first, stop, search.extents, {}, search.limits.depth)
        if not np.isfinite(unit[LEVELS]):
            names = list(dict.fromkeys((network.layers[first].name, network.layers[stop - 1].name)))
            where = f"{where}: {' to '.join(names)} as one unit"
            available += "; cut it into shorter ones" if len(names) > 1 else "; leave out a cut beside it"
            break
    return DoesNotFit("its smallest tiles", where, "more", available, "sram")


class _Trace:
    def __init__(self, search: PlanSearch) -> None:
        self.search = search

    def whole(self, level: int) -> Sequence:
        search = self.search
        place = TreePlace(search.extents, {}, {}, search.limits.depth, is_dealt=False)
        return self.sequence(search.record, 0, len(search.layers), place, level)

    def over_clusters(self, node: Node, own: LayerInterval, resident: Mapping[Tensor, float]) -> Node:
        """A unit of which every cluster makes its share; what they sum together lies in SRAM around it.  Rows beyond it
        come from the neighbour where all have their shares at the same time."""
        dealt = own.reads.dealt
        axis, halo = own.reference(dealt.axes), Halo.NONE
        if own.is_windowed(dealt.axes):
            cut = {axis.name for axis in dealt.axes}
            is_cut = any(isinstance(each, Loop) and each.axis in cut for each in nodes_in(node))
            has_all = len(dealt.edges(axis)) > dealt.clusters
            halo = Halo.EXCHANGED if has_all and not is_cut else Halo.RECOMPUTED
        body = node if isinstance(node, Sequence) else Sequence((node,))
        loop = Loop(axis.name, dealt.edges(axis), body, halo, Over.CLUSTERS)
        joined = [
            layer.result for layer in own.layers
            if dealt.axes & (set(layer.axes) - {*layer.result.axes}) and resident.get(layer.result, 0.0) < 1
        ]  # fmt: skip
        return Sequence((loop,), tuple(Resident(t.name, 0, 0) for t in joined)) if joined else loop

    def forest(self, first: int, stop: int, place: TreePlace, level: int, wanted: float) -> Sequence:
        """The units of a forest that moves so many bytes, found below these bytes."""
        record = ForestRecord()
        self.search.forest(first, stop, place.extents, place.resident, place.depth, _only(level, wanted), record)
        return self.sequence(record, first, stop, place, level)

    def sequence(self, record: ForestRecord, first: int, stop: int, place: TreePlace, level: int) -> Sequence:
        search, taken = self.search, list[tuple[int, UnitStep]]()
        at, state = stop, Kept()
        while at > first:
            wanted = record.cuts[at - first][state][level]
            step = min(
                (s for s in record.steps[at, state] if np.isfinite(s.curve[level])),
                key=lambda s: (abs(s.curve[level] - wanted), len(s.new)),
            )
            taken.append((at, step))
            at, state = step.first, step.kept
        taken.reverse()
        children, residents = list[Node](), dict[Tensor, Resident]()
        for k, (end, step) in enumerate(taken):
            for tensor, share in step.new:
                old = step.storage.get(tensor)
                residents[tensor] = Resident(
                    tensor.name, k, k, self.part(tensor, share, place.extents), old.name if old else "",
                    sharded=self.sharded(tensor, place),
                )
            for tensor, _ in (*step.kept, *step.new):
                residents[tensor] = replace(residents[tensor], last=k)
            inside = replace(place, resident=step.resident)
            left = level - search.levels(step.size)
            children.append(self.unit(step.first, end, inside, left, float(step.cost[left])))
        return Sequence(tuple(children), tuple(r for r in residents.values() if r.part is None or r.part.stop > 0))

    def sharded(self, tensor: Tensor, place: TreePlace) -> str:
        """The axis along which each cluster holds its share of what lies around its loop; none where it holds all."""
        if place.is_dealt:
            return ""
        axis = self.search.zones.shared.get(tensor)
        return "" if axis is None else axis.name

    def part(self, tensor: Tensor, share: float, extents: Extents, *busy: ClassCut) -> Part | None:
        """So much of a tensor along its longest axis that no loop cuts; None: all of it."""
        if share * NEARLY >= 1:
            return None
        axis = part_axis(tensor, extents, {a for cut in busy for a in cut.group})
        if axis is None:
            return Part(tensor.axes[0].name, 0, 0)
        return Part(axis.name, 0, int(share * axis.extent + 1e-6))

    def unit(self, first: int, stop: int, place: TreePlace, level: int, moved: float) -> Node:
        """The unit that moves so many bytes.

        Loops are looked for below these bytes, as the search found them: below nothing a forest has more states than
        it follows, and may lose the one that leads there.
        """
        search = self.search
        own = search.interval(first, stop)
        if place.extents is search.extents:
            dealt = own.reads.dealt
            tiles = {axis: dealt.edges(axis)[:-1] for axis in dealt.axes}
            place = replace(place, extents=search.extents_of(first, stop, place.extents), tiles=tiles)
        if not place.is_dealt and own.may_be_dealt:
            node = self.unit(first, stop, replace(place, is_dealt=True), level, moved)
            has_shares = any(own.reads.dealt.axes & own.reads.axes[layer] for layer in own.layers)
            return self.over_clusters(node, own, place.resident) if has_shares else node
        wanted = moved * NEARLY
        if search.nest(search.placed(first, stop, place.extents), place.resident)[level] <= wanted:
            return self.nest(first, stop, place, level)
        none, only = [np.full(LEVELS + 1, np.inf)], _only(level, wanted * NEARLY)
        for curve, way in search.loops(first, stop, place.extents, place.resident, place.depth, none, only):
            if curve[level] <= wanted:
                return self.loop(first, stop, place, level, way, only)
        raise AssertionError(f"no unit of {own.layers[0].name} has the bytes that were found")

    def loop(
        self, first: int, stop: int, place: TreePlace, level: int, way: LoopWay, most: np.ndarray
    ) -> Node:  # fmt: skip
        search = self.search
        own = search.interval(first, stop)
        above = dict.fromkeys(way.above, 1.0)
        inside = TreePlace(
            way.extents, self.tiles(place, way), place.resident | above, place.depth - 1, place.is_dealt
        )
        left, share = level - way.levels, search.capacity / LEVELS
        body = search.forest(first, stop, way.extents, inside.resident, inside.depth, way.most(most, search.capacity))
        ways = [
            (way.count * body[left - k] - (way.count - 1) * min(k * share, way.weights), k)
            for k in range(min(left, search.levels(way.weights)) + 1)
        ]
        _, k = min(ways)
        axis = own.reference(way.group)
        units = self.forest(first, stop, inside, left - k, float(body[left - k]))
        loop = Loop(axis.name, self.edges(place, axis, way.step), units)
        residents = [Resident(t.name, 0, 0, sharded=self.sharded(t, place)) for t in way.above]
        room = min(k * share, way.weights)
        for tensor in own.outside:
            is_free = tensor not in place.resident and not any(a in way.group for a in tensor.axes)
            if tensor.kind is Kind.WEIGHT and is_free and room > 0:
                size = own.reads.size(tensor, place.extents)
                part = self.part(tensor, min(1.0, room / size), place.extents)
                if part is None or part.stop > 0:
                    residents.append(Resident(tensor.name, 0, 0, part))
                room -= size
        return Sequence((loop,), tuple(residents))

    def tiles(self, place: TreePlace, way: LoopWay) -> dict[Axis, tuple[int, ...]]:
        """Where the tiles of the axes of a loop begin."""
        found = dict(place.tiles)
        for axis in way.group:
            step = way.extents[axis]
            found[axis] = tuple(
                start + k for start in place.tiles.get(axis, (0,)) for k in range(0, place.extents[axis], step)
                if start + k < axis.extent
            )  # fmt: skip
        return found

    def edges(self, place: TreePlace, axis: Axis, step: int) -> tuple[int, ...]:
        """Ranges of one step in every tile that loops outside make."""
        extent = place.extents[axis]
        starts = (start + k for start in place.tiles.get(axis, (0,)) for k in range(0, extent, step))
        return (*sorted({start for start in starts if start < axis.extent}), axis.extent)

    # ------------------------------------------------------------ nests

    def nest(self, first: int, stop: int, place: TreePlace, level: int) -> Node:
        search = self.search
        placed = search.placed(first, stop, place.extents)
        shares = np.array([place.resident.get(t, 0.0) for t in placed.own.touched])
        room, least = search.room[level : level + 1], search.nest(placed, place.resident)[level] * NEARLY
        best: tuple[float, LoopNest, int] | None = None
        for nest in self.nests(placed):
            priced = nest.prices.priced(shares, room)[0]
            k = int(priced.argmin())
            if best is None or priced[k] < best[0] / NEARLY:
                best = priced[k], nest, k
            if best[0] <= least:
                break
        assert best is not None
        _, nest, k = best
        return self.built(nest, k, shares, float(room[0]), place)

    def nests(self, placed: PlacedInterval) -> Iterator[LoopNest]:
        """All nests of an interval: without loops first."""
        search = self.search
        bare = bare_ways(placed, search.costs)
        for ways in itertools.chain(bare, nest_ways(placed, search.limits, {}, search.costs)):
            yield from LoopNest.all_of(ways.interior, ways.loops, ways.singles)
            if ways.pairs:
                yield from LoopNest.all_of(ways.interior, ways.loops, ways.of_two(stride=1))

    def built(self, nest: LoopNest, k: int, shares: np.ndarray, room: float, place: TreePlace) -> Node:
        interior = nest.interior
        inside = np.cumsum([0, *(nest.nests[:, k] > 0)]).tolist()
        loops = [loop for number in nest.nests[:, k].tolist() if (loop := nest.loops.loop(number)) is not None]
        cuts, steps = [cut for cut, _ in loops], [step for _, step in loops]
        residents: list[list[Resident]] = [[] for _ in range(len(cuts) + 1)]
        for number, (depth, share, upper) in self.filled(nest, k, shares, room).items():
            tensor = interior.tensors[number]
            if depth >= 0:
                residents[inside[depth]].append(Resident(tensor.name, 0, 0))
            if share > 0:
                part = self.part(tensor, share, place.extents, *cuts)
                if part is None or part.stop > 0:
                    residents[inside[upper]].append(Resident(tensor.name, 0, 0, part))
        node: Node = Compute(tuple(layer.name for layer in interior.layers))
        for depth in range(len(cuts) - 1, -1, -1):
            cut = cuts[depth]
            body = Sequence((node,), tuple(residents[depth + 1]))
            halo = Halo.ROLLING if cut.is_rolling else Halo.NONE
            if halo is Halo.NONE and interior.own.is_windowed(cut.group):
                halo = Halo.RECOMPUTED
            node = Loop(cut.reference.name, self.edges(place, cut.reference, steps[depth]), body, halo)
        return Sequence((node,), tuple(residents[0])) if residents[0] or not cuts else node

    def filled(self, nest: LoopNest, k: int, shares: np.ndarray, room: float) -> dict[int, tuple[int, float, int]]:
        """Of each tensor that moves its depth (-1: streamed), and the share of it that lies at another one."""
        prices, (sizes, moved) = nest.prices.only(np.array([k])), nest.bytes
        depths = [-1, *range(len(nest.along), -1, -1)]
        left = room - float(prices.own(shares == 1.0)[0])
        found, steps = dict[int, tuple[int, float, int]](), []
        for number in np.flatnonzero(prices.outside & (shares < 1.0)).tolist():
            start = 0 if nest.is_streamed[number, k] else 1
            same = [sizes[way, number, k] == sizes[start, number, k] for way in range(len(depths))]
            start = max(way for way in range(len(depths)) if way == start or (start and same[way]))
            found[number] = depths[start], 0.0, 0
            left -= float(prices.size[number, 0])
            for way, taken, saved in _hull(sizes[start:, number, k], moved[start:, number, k]):
                steps.append(((1 - shares[number]) * saved / taken, taken, number, depths[start + way]))
        for density, taken, number, depth in sorted(steps, key=lambda step: -step[0]):
            if density > 0 and left > 0:
                share = min(1.0, left / taken)
                left -= share * taken
                found[number] = (depth, 0.0, 0) if share * NEARLY >= 1 else (found[number][0], share, depth)
        return found


def _once(node: Node, held: frozenset[str]) -> Node:
    """Without residents of what lies in SRAM whole already."""
    if isinstance(node, Compute):
        return node
    if isinstance(node, Loop):
        body = _once(node.body, held)
        return replace(node, body=body if isinstance(body, Sequence) else Sequence((body,)))
    residents = tuple(each for each in node.residents if each.tensor not in held)
    children = []
    for k, child in enumerate(node.children):
        here = (each.tensor for each in residents if each.part is None and each.first <= k <= each.last)
        children.append(_once(child, held | frozenset(here)))
    if not residents and len(children) == 1 and not isinstance(children[0], Compute):
        return children[0]
    return replace(node, children=tuple(children), residents=residents)


def _only(level: int, most: float) -> np.ndarray:
    """Bounds that want a plan of at most so many bytes for one size of SRAM."""
    return np.where(np.arange(LEVELS + 1) == level, most, -np.inf)


def _hull(sizes: np.ndarray, moved: np.ndarray) -> list[tuple[int, float, float]]:
    """The convex steps up from the first way: to which way, bytes of SRAM taken, DRAM bytes saved."""
    found: list[tuple[int, float, float]] = []
    at = 0
    while at < len(sizes) - 1:
        best, way = 0.0, -1
        for k in range(at + 1, len(sizes)):
            taken, saved = max(sizes[k] - sizes[at], NO_BYTES), moved[at] - moved[k]
            if saved > 0 and saved / taken >= best:
                best, way = saved / taken, k
        if way < 0:
            break
        found.append((way, max(sizes[way] - sizes[at], NO_BYTES), moved[at] - moved[way]))
        at = way
    return found
