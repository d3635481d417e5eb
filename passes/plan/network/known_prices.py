# Tests: test/passes/plan/network/test_known_prices.py
"""Prices of groups that were looked at; of groups that are equal those of the first one.

Equal are groups of equal layers which read from the same distance, leave the same maps to readers of the same kind, and
hold the same shares of them: in networks that repeat a block most groups are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from frustum.passes.analysis.unit_layers import UnitLayers, layers_of
from frustum.passes.plan.model import APART_IN_PLACE
from frustum.passes.plan.network.candidates import Candidates, Setting, UnitChoice
from frustum.passes.plan.network.groups import Group
from frustum.passes.plan.network.kept import Resident, is_read_whole, moved, read_forms
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.prices import Answers, Priced, Prices, Question, Rows, Slower
from frustum.passes.plan.network.tile_shapes import BY_COLUMNS, BY_ROWS, Ints
from frustum.passes.plan.tile_search import Search
from frustum.passes.plan.unit import plan_beside, plan_kept


@dataclass
class Planned:
    """What is known of groups in any order of a network's layers, by their numbers, and all that they have said."""

    prices: dict[Hashable, Prices | None] = field(default_factory=dict)
    """None where layers are no group, nor any more of them."""
    numbers: dict[Hashable, int] = field(default_factory=dict)
    """Of layers, of maps, of groups: equal ones have the same."""
    answers: Answers = field(default_factory=Answers)
    exact: dict[Hashable, UnitChoice | None] = field(default_factory=dict)
    """Choices with exact numbers, by all that these depend on, as if they began with the first layer."""

    def number(self, of: Hashable) -> int:
        return self.numbers.setdefault(of, len(self.numbers))


_SHARED: ContextVar[dict[Hashable, Planned] | None] = ContextVar("shared", default=None)


@contextmanager
def planned_once() -> Iterator[None]:
    """Networks planned inside take from each other what is known of equal groups, for one setting and machine: all that
    prices depend on is in the keys of groups, so plans are the same, found sooner."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def planned_for(setting: Setting) -> Planned:
    """What is known of groups before a search begins: nothing, unless other networks were planned before."""
    shared = _SHARED.get()
    if shared is None:
        return Planned()
    of = replace(setting, order=None, slower={})  # type: ignore[arg-type]
    key = tuple(repr(getattr(of, each.name)) for each in fields(of))
    return shared.setdefault(key, Planned())


class KnownPrices:
    """Of the groups of one order that were looked at: every search over the order takes them from here."""

    def __init__(self, planned: Planned | None = None) -> None:
        self.planned: Planned = planned or Planned()
        self.answers: Answers = self.planned.answers
        self.keys: GroupKeys | None = None
        self.found: dict[tuple[int, int], Prices] = {}
        self.by_channels: dict[int, Prices | None] = {}
        self.first: dict[int, int] = {}
        """By the cut behind: no group begins before this layer."""
        self.alone: dict[int, UnitLayers] = {}
        """By the cut behind: layers that are units, which know the tiles into which they were cut before."""
        self.products: dict[Hashable, UnitChoice | None] = {}
        """Products alone, and attention with those that it reads, by what they find in SRAM and leave there, and the
        room beside it."""

    def before(self, setting: Setting, stop: int, wanted: Sequence[int]) -> Iterator[Prices]:
        """Of the groups that end before layer `stop`, those that begin at `wanted` layers, from the last one on."""
        firsts = [first for first in wanted if first >= self.first.get(stop, 0)]
        missing = {first for first in firsts if (first, stop) not in self.found}
        missing -= {first for first in sorted(missing, reverse=True) if self.take_equal(setting, first, stop)}
        missing = {first for first in missing if first >= self.first.get(stop, 0)}
        if missing:
            keys, last = self.keys_of(setting), min(missing)
            for group in setting.groups_before(stop).within(setting.capacity, missing, last):
                prices = self.found[group.first, stop] = Prices(Candidates(group, setting))
                self.planned.prices[keys.number(group.first, stop)] = prices
                missing.discard(group.first)
            if missing:
                self.first[stop] = max(missing) + 1
                self.planned.prices[keys.number(max(missing), stop)] = None
        return (self.found[first, stop] for first in firsts if (first, stop) in self.found)

    def take_equal(self, setting: Setting, first: int, stop: int) -> bool:
        """Take the prices of an equal group; False where none is known."""
        number = self.keys_of(setting).number(first, stop)
        if number not in self.planned.prices:
            return False
        prices = self.planned.prices[number]
        if prices is not None:
            self.found[first, stop] = EqualPrices(prices, setting, first, stop)
        else:
            self.first[stop] = max(self.first.get(stop, 0), first + 1)
        return True

    def of_channels(self, setting: Setting, stop: int) -> Prices | None:
        """Of the layer before `stop` with its channels dealt to the clusters."""
        if stop not in self.by_channels:
            key = "channels", self.keys_of(setting).number(stop - 1, stop)
            if key not in self.planned.prices:
                group = setting.by_channels(stop)
                self.planned.prices[key] = None if group is None else Prices(Candidates(group, setting))
            prices = self.planned.prices[key]
            self.by_channels[stop] = prices and EqualPrices(prices, setting, stop - 1, stop)
        return self.by_channels[stop]

    def layer_alone(self, setting: Setting, stop: int) -> UnitLayers:
        """The layer before `stop` as a unit."""
        if stop not in self.alone:
            self.alone[stop] = layers_of([setting.order.nodes[stop - 1].op])
        return self.alone[stop]

    def beside(
        self, setting: Setting, layers: tuple[int, int], found: Resident, kept: Resident, room: tuple[int, int],
        *, in_place: bool = False,
    ) -> UnitChoice | None:  # fmt: skip
        """The `layers` [first, stop), a layer alone or attention with what makes its heads, which find these maps in
        SRAM, and perhaps leave their result there (`kept`), or `in_place` of one of these; `room`: bytes of SRAM beside
        all maps, and in all."""
        key = layers, found, kept, room, in_place
        if key not in self.products:
            self.products[key] = choice_beside(setting, layers, found, kept, room, in_place=in_place)
        return self.products[key]

    def keys_of(self, setting: Setting) -> GroupKeys:
        if self.keys is None:
            self.keys = GroupKeys(setting, self.planned)
        return self.keys


class EqualPrices(Prices):
    """Of a group that is equal to another one, whose prices these are, with its own maps."""

    def __init__(self, base: Prices, setting: Setting, first: int, stop: int):
        self.base = base
        self.setting = setting
        self.by: int = stop - base.group.stop
        self.group: Group = replace(base.group, first=first, stop=stop)
        self.candidates: Candidates = copy(base.candidates)
        self.numbers: dict[Resident, int] = {}
        vars(self.candidates)["stays"] = [moved(stay, self.by) for stay in base.candidates.stays]

    def number_of(self, maps: Resident) -> int:
        if maps not in self.numbers:
            self.numbers[maps] = self.base.number_of(moved(maps, -self.by))
        return self.numbers[maps]

    def set_of(self, number: int) -> Resident:
        return moved(self.base.set_of(number), self.by)

    def least_before(self) -> Ints:
        return self.base.least_before()

    @cached_property
    def of_stays(self) -> tuple[Ints, Ints]:
        return self.base.of_stays

    def ask(
        self, questions: Sequence[Question], answers: Answers, slower: Slower, *, for_time: bool
    ) -> list[tuple[int, int]]:
        return self.base.ask(questions, answers, slower, for_time=for_time)

    def priced(self, rows: Rows, slower: Slower = (1.0, 1.0), *, for_time: bool = False) -> Priced:
        return self.base.priced(rows, slower, for_time=for_time)

    def score(self, found: Priced) -> Ints:
        return self.base.score(found)


class GroupKeys:
    """Numbers of the groups of an order: the same where all is equal that growing and pricing a group look at."""

    def __init__(self, setting: Setting, planned: Planned):
        self.order: LayerOrder = setting.order
        self.planned = planned
        shares: dict[int, list[Hashable]] = {}
        for kept, held in setting.shares.items():
            shares.setdefault(kept.map, []).append((kept.dealt, held))
        self.of_map: list[int] = [
            planned.number(self.map(k, tuple(shares.get(k, ())))) for k in range(len(self.order.maps))
        ]
        self.of_layer: list[int] = [planned.number(self.layer(k)) for k in range(len(self.order.nodes))]
        self.apart: list[int] = [
            min((k for k in map_.users for r in self.order.nodes[k].reads if r.map == map_.number and not r.joins),
                default=len(self.order.nodes))
            for map_ in self.order.maps
        ]  # fmt: skip
        """The first layer that reads each map in another form than it was made."""
        self.chains: dict[int, list[int]] = {}
        """Of each cut the numbers of the groups before it, from the shortest on."""

    def number(self, first: int, stop: int) -> int:
        """Of the group of layers [first, stop)."""
        chain = self.chains.setdefault(stop, [])
        while stop - len(chain) > first:
            k = stop - len(chain) - 1
            chain.append(
                self.planned.number((chain[-1] if chain else -1, self.of_layer[k], self.behind(k, stop)))
            )
        return chain[stop - first - 1]

    def map(self, k: int, shares: Hashable) -> Hashable:
        """What groups ask of a map, wherever it is."""
        map_, count = self.order.maps[k], len(self.order.nodes)
        layer = self.order.nodes[k].layer if k < count else None
        kind = map_.is_constant, map_.is_output, map_.needs_dram, not map_.users
        return map_.bytes, kind, None if layer is None else layer.out_dims, shares

    def layer(self, k: int) -> Hashable:
        """What groups ask of a layer: itself, what it reads and from how far before."""
        node, count = self.order.nodes[k], len(self.order.nodes)
        reads = tuple(
            (
                replace(read, map=k - read.map if read.map < count else -1 - read.map), self.of_map[read.map],
                (k, read.map) in self.order.uneven,
            )
            for read in node.reads
        )  # fmt: skip
        own = node.weight_bytes, node.vector_bytes, node.batched_weights, self.of_map[k]
        return "layer", node.layer, reads, own

    def behind(self, k: int, stop: int) -> Hashable:
        """What depends on where the group ends: who reads the layer's map behind it, and the rows and columns of its
        maps for one of the last."""
        order, last = self.order, stop - 1
        readers = list(order.reads_of(k, stop, len(order.nodes))) if order.maps[k].last_use >= stop else []
        left = bool(readers), any(r.joins for r in readers), any(r.by_channel for r in readers)
        whole = [is_read_whole(order, k, d, stop) for d in (BY_ROWS, BY_COLUMNS) if readers]
        forms = read_forms(order, k, stop) if readers else ()
        reads = [read.map for read in order.nodes[k].reads]
        rates = tuple((self.rate(m, last, 2), self.apart[m] < stop) for m in reads)
        return left, *whole, forms, rates, self.rate(k, last, 2), self.rate(k, last, 3)

    def rate(self, number: int, last: int, dimension: int) -> Hashable:
        """As two numbers, which are compared faster than a fraction is made."""
        one, other = (self.order.rates[dimension - 2][m] for m in (number, last))
        return 1 if one == other else one / other


def choice_beside(
    setting: Setting, layers: tuple[int, int], found: Resident, kept: Resident, room: tuple[int, int], *, in_place: bool
) -> UnitChoice | None:
    """`KnownPrices.beside`, looked for."""
    (first, stop), (free, capacity), nodes = layers, room, setting.order.nodes
    resident = {nodes[m.map].op.results[0] for m in found}
    unit = layers_of([node.op for node in nodes[first:stop]], resident=resident)
    stays = {stop - 1 - first} if kept else set[int]()
    if kept and nodes[first].weight_bytes and stop - first == 1 and not unit.inputs[0].resident:
        plan = plan_kept(unit, setting.target, free, in_place=in_place)
    else:
        search: Search = "all" if nodes[first].weight_bytes else "halvings"  # all it moves is in SRAM
        plan = plan_beside(unit, setting.target, free, setting.chunk_bytes, stays, search)
    if plan is None or plan.cost.parts is None:
        return None
    made = setting.order.maps[stop - 1]
    stored = made.bytes if kept and made.needs_dram else 0
    cost = plan.cost.with_maps(stored, beside_bytes=capacity - free)
    cost = replace(cost, cycles=cost.cycles + stored // setting.port_rate)
    maps = tuple(each and replace(each, in_place=True) for each in plan.maps) if in_place else plan.maps
    plan = replace(plan, cost=cost, maps=maps)
    is_apart = in_place and not nodes[first].weight_bytes
    moved, cycles = plan.dram_bytes, int(plan.cycles * (APART_IN_PLACE if is_apart else 1))
    return UnitChoice(first, stop, moved, cycles, free, resident=found, kept=kept, plan=plan)
