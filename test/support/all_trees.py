"""The plan with the fewest DRAM bytes of all trees of a small network: no search, no prices but those of `count`.

All trees: every cut of the layer order, loops within each other over every class that may be looped over, with every
step of every axis of it, halos that roll or not, and in every sequence every set of tensors resident over every run of
its children.  Residents are whole, in storage of their own, and no layer is computed twice.

A node costs the same wherever it stands under the same loops, with the same tensors in SRAM: `count` says it of one
plan, and sums and maxima are formed of all.  A tree that is already above what is looked for is not continued.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property

from frustum.dialects.axes.classes import classes_of, links_of, why_not
from frustum.dialects.axes.network import Combine, Layer, Operand
from frustum.dialects.axes.tensor import Kind
from frustum.dialects.plan.check import operands_of
from frustum.dialects.plan.count import count
from frustum.dialects.plan.tree import Compute, Halo, Loop, Resident, Sequence, steps

EVERYTHING = 1 << 40


@dataclass(frozen=True)
class Around:
    """A loop around layers [first, stop)."""

    axis: str
    edges: tuple
    halo: Halo
    first: int
    stop: int

    def of(self, body):
        return Loop(self.axis, self.edges, body, self.halo)


@dataclass(frozen=True)
class Label:
    """Part of a plan: DRAM bytes, most bytes of SRAM, and bytes that stay from pass to pass of each rolling loop around
    it, outermost first; how it came about."""

    cost: tuple
    before: object = None
    child: object = None
    new: tuple = ()


class Known(Layer):
    """A layer whose network is settled: what it says of itself is found once."""

    axes = cached_property(Layer.axes.fget)
    combine = cached_property(Layer.combine.fget)

    def part(self, ranges):
        key = tuple(ranges.items())
        known = self.__dict__.setdefault("parts", {})
        if key not in known:
            known[key] = super().part(ranges)
        return known[key]


class KnownOperand(Operand):
    """An operand of such a layer."""

    @cached_property
    def found(self):
        return list(Operand.links(self))

    def links(self):
        return iter(self.found)


class AllTrees:
    """`depth`: loops within each other; `longest`: layers of a loop's body that is more than one compute."""

    def __init__(self, network, depth=2):
        self.network, self.depth = network, depth
        self.layers = network.layers
        for layer in self.layers:
            layer.__class__ = Known
            for operand in layer.operands:
                object.__setattr__(operand, "__class__", KnownOperand)
        self.names = [layer.name for layer in self.layers]
        self.users = {
            t: [k for k, layer in enumerate(self.layers) if t is layer.result or t in operands_of(layer)]
            for t in network.tensors
        }
        self.touched = cache(self._touched)
        self.loops, self.leaf, self.resident = cache(self._loops), cache(self._leaf), cache(self._resident)
        self.least_of, self.streamed, self.once = cache(self._least_of), cache(self._streamed), cache(self._once)
        self.loads, self.counts = cache(self._loads), 0

    def least(self, capacity, below):
        """Plan and bytes of the best tree that moves fewer than `below` bytes; None: there is none."""
        self.capacity, self.below = capacity, below
        self.fronts = {}
        found = min(self.front((), 0, len(self.layers), frozenset()), key=lambda label: label.cost[0], default=None)
        if found is None:
            return None
        plan = self.sequence(found)
        counted = count(self.network, plan)
        assert counted.dram_bytes == found.cost[0], "the parts of a plan are not its whole"
        is_online = any(Combine.ONLINE in layer.combine.values() for layer in self.network.layers)
        assert counted.sram_bytes == found.cost[1] or is_online, "the parts of a plan are not its whole"
        # running numbers are those of all parts together: with them it may be too much
        return (plan, counted) if counted.sram_bytes <= capacity else None

    def best(self):
        """DRAM bytes and SRAM of all trees that no other beats in both, the fewest DRAM bytes first."""
        self.capacity = self.below = EVERYTHING
        self.fronts = {}
        return sorted(label.cost for label in self.front((), 0, len(self.layers), frozenset()))

    # ------------------------------------------------------------ facts of the network

    def _touched(self, first, stop):
        """Tensors that layers [first, stop) use, each with its first and last user there."""
        found = {}
        for tensor, users in self.users.items():
            here = [k for k in users if first <= k < stop]
            if here:
                found[tensor] = here[0], here[-1]
        return found

    def is_inside(self, tensor, first, stop):
        """Whether the layers make the tensor, and nobody else wants it."""
        users = self.users[tensor]
        is_made = tensor in self.network.maker and not tensor.is_output
        return is_made and first <= users[0] and users[-1] < stop

    def _least_of(self, around, first, stop, held, after):
        """Bytes that any nodes of layers [first, stop) move of tensors that no layer before `after` uses."""
        return sum(
            self.once(around, tensor, first, stop) for tensor, (start, _) in self.touched(first, stop).items()
            if tensor not in held and start >= after and not self.is_inside(tensor, first, stop)
        )  # fmt: skip

    def _once(self, around, tensor, first, stop):
        """Bytes of a tensor that all passes together move for the layer that moves the most."""
        users = [k for k in self.users[tensor] if first <= k < stop]
        if around and all(self.is_dense(k, tensor) for k in users):
            return max(self.loads(around)[k, tensor] for k in users)
        return max(self.needed[k, tensor] for k in users)

    def is_dense(self, k, tensor):
        """Whether a layer that is cut sees no less of the tensor: a box around what it needs holds nothing else."""
        pieces = [p for operand in self.layers[k].operands for p in operand.pieces if p.tensor is tensor]
        is_linear = all(at is None or at.is_linear for piece in pieces for _, at in piece.by_leaf)
        return len(pieces) <= 1 and is_linear and self.needed[k, tensor] == tensor.size_bytes

    @cached_property
    def needed(self):
        """Bytes of a tensor that a layer makes, or needs of it by what of each axis it sees."""
        found = defaultdict(int)
        for k, layer in enumerate(self.layers):
            found[k, layer.result] = layer.result.size_bytes
            for piece, is_all in ((piece, each.is_all) for each in layer.operands for piece in each.pieces):
                seen = 1
                for axis, at in piece.by_leaf:
                    seen *= axis.extent if is_all or at is None else int(at.seen(axis.extent, {}).sum())
                key = k, piece.tensor
                found[key] = max(found[key], seen * piece.tensor.element_bits // 8)
        return found

    def _loops(self, first, stop, around):
        """All loops around layers [first, stop), inside of others."""
        layers, found = self.layers[first:stop], []
        looped = {each.axis for each in around}
        for group in classes_of(layers):
            if why_not(group, layers) or looped & {axis.name for axis in group}:
                continue
            own = [axis for layer in reversed(layers) for axis in layer.axes if axis in group]
            named = {axis.extent: axis for axis in reversed(own) if axis.extent > 1 and not axis.is_tap}
            is_windowed = any(
                link.axis in group and not link.is_plain for layer in layers for _, _, link in links_of(layer)
            )
            for axis in named.values():
                for step in range(1, axis.extent):
                    for halo in (Halo.RECOMPUTED, Halo.ROLLING) if is_windowed else (Halo.NONE,):
                        found.append(Around(axis.name, steps(axis.extent, step), halo, first, stop))
        return found

    # ------------------------------------------------------------ prices

    def counted(self, around, first, stop, middle, residents=(), held=()):
        """The count of a plan with `middle` for layers [first, stop) in the innermost loop, and of the loops there."""
        shift, loops = first - (around[-1].first if around else 0), []
        own = tuple(Resident(r.tensor, r.first + shift, r.last + shift) for r in residents)
        nodes, here = middle, own
        for each in reversed(around):
            loops.append(each.of(self.filled(nodes, first, stop, each.first, each.stop, here)))
            nodes, first, stop, here = [loops[-1]], each.first, each.stop, ()
        whole = self.filled(nodes, first, stop, 0, len(self.layers), here)
        plan = Sequence((whole,), tuple(Resident(t.name, 0, 0) for t in held))
        self.counts += 1
        found = count(self.network, plan)
        stays = tuple(
            found.held[id(loop)] - found.held[id(loop.body)] for loop in reversed(loops) if loop.halo is Halo.ROLLING
        )
        return found, stays, own

    def filled(self, nodes, first, stop, start, end, residents):
        """A sequence of layers [start, end): nodes for [first, stop), the others one by one."""
        before, after = ([Compute((name,)) for name in self.names[a:b]] for a, b in ((start, first), (stop, end)))
        return Sequence((*before, *nodes, *after), residents)

    def _leaf(self, around, first, stop, held):
        """Cost of one compute; `held`: of the tensors that it uses, those in SRAM."""
        node = Compute(tuple(self.names[first:stop]))
        found, stays, _ = self.counted(around, first, stop, [node], held=sorted(held, key=lambda t: t.name))
        return found.moved[id(node)], found.held[id(node)], *stays

    def _loads(self, around):
        """DRAM bytes of a tensor that lies in SRAM for one layer, by the layer and the tensor."""
        nodes, residents = [], {}
        first, stop = around[-1].first, around[-1].stop
        for k in range(first, stop):
            nodes.append(Compute((self.names[k],)))
            residents |= {(k, t): Resident(t.name, k - first, k - first) for t in self.touched(k, k + 1)}
        found, _, own = self.counted(around, first, stop, nodes, residents.values())
        return {key: found.moved[id(r)] for key, r in zip(residents, own, strict=True)}

    def _streamed(self, around, first, stop, tensor):
        """DRAM bytes of one tensor that a compute streams."""
        return self.leaf(around, first, stop, frozenset(self.touched(first, stop)) - {tensor})[0]

    def _resident(self, around, tensor, first, last):
        """Cost of a tensor in SRAM from layer `first` to layer `last`."""
        nodes = [Compute((name,)) for name in self.names[first : last + 1]]
        resident = [Resident(tensor.name, 0, last - first)]
        found, stays, (own,) = self.counted(around, first, last + 1, nodes, resident)
        return found.moved[id(own)], found.held[id(own)], *stays

    # ------------------------------------------------------------ trees

    def budget(self, first, stop, held):
        """What layers [first, stop) may move: the others move something too."""
        here, rest = self.touched(first, stop), 0
        for tensor in self.network.tensors:
            is_needed = tensor.is_output or (tensor.kind in (Kind.INPUT, Kind.WEIGHT) and self.users[tensor])
            if is_needed and (tensor not in here or tensor in held):
                rest += self.once((), tensor, 0, len(self.layers))
        return self.below - rest

    def front(self, around, first, stop, held):
        """The best sequences of layers [first, stop) in loops, where these tensors lie in SRAM."""
        key = around, first, stop, held
        if key not in self.fronts:
            self.fronts[key] = self._front(around, first, stop, held)
        return self.fronts[key]

    def _front(self, around, first, stop, held):
        budget = self.budget(first, stop, held)
        rolling = sum(each.halo is Halo.ROLLING for each in around)
        cuts = [defaultdict(list) for _ in range(stop - first + 1)]
        cuts[0][()] = [Label((0, 0) + (0,) * rolling)]
        for here in range(first, stop):
            for pending, labels in cuts[here - first].items():
                for end in range(here + 1, stop + 1):
                    touched = self.touched(here, end)
                    if any(here <= last < end and touched[t][1] != last for t, last, _ in pending):
                        continue
                    if any(t in touched and touched[t][1] > last for t, last, _ in pending):
                        continue
                    for new in self.news(here, end, stop, held, pending):
                        least = self.least_of(around, first, stop, held, end)
                        self.extend(around, here, end, held, pending, labels, new, budget - least, cuts[end - first])
        return cuts[-1][()]

    def news(self, here, end, stop, held, pending):
        """Tensors that begin to lie in SRAM at a child, each with its last user."""
        known = {tensor for tensor, _, _ in pending}
        ways = []
        for tensor, (_, last) in self.touched(here, end).items():
            if tensor not in held and tensor not in known:
                ways.append([None, *((tensor, k) for k in self.users[tensor] if last <= k < stop)])
        for chosen in itertools.product(*ways):
            yield tuple(each for each in chosen if each is not None)

    def extend(self, around, here, end, held, pending, labels, new, budget, target):
        priced, touched = [], self.touched(here, end)
        for tensor, last in new:
            price = self.resident(around, tensor, touched[tensor][0], last)
            priced.append((tensor, last, price))
        start = tuple(sum(each) for each in zip(*(price for *_, price in priced), strict=True)) or None
        loaded = start[0] if start else 0
        stays = start[2:] if start else (0,) * (len(labels[0].cost) - 2)
        size = (start[1] if start else 0) + sum(size for *_, size in pending)
        during = held | {t for t, *_ in pending} | {t for t, *_ in priced}
        least = loaded + self.least_of(around, here, end, during, here)
        labels = [label for label in labels if label.cost[0] + least < budget]
        if not labels or size > self.capacity:
            return
        after = tuple(
            sorted(
                [each for each in pending if each[1] >= end] + [(t, k, p[1]) for t, k, p in priced if k >= end],
                key=lambda each: each[0].name,
            )
        )
        inside = frozenset(t for t in during if t in touched)
        room = budget - min(label.cost[0] for label in labels) - loaded
        for child, cost in self.children(around, here, end, inside, room):
            for label in labels:
                dram, peak, *rest = label.cost
                found = (
                    dram + loaded + cost[0],
                    max(peak, size + cost[1]),
                    *(a + b + c for a, b, c in zip(rest, stays, cost[2:], strict=True)),
                )
                if found[0] < budget and found[1] + sum(found[2:]) <= self.capacity:
                    _add(target[after], Label(found, label, child, tuple((t, k) for t, k, _ in priced)))

    def children(self, around, first, stop, held, room):
        """All nodes of layers [first, stop) that move fewer bytes than that, each with its cost."""
        if self.least_of(around, first, stop, held, first) >= room:
            return
        dram = sum(self.streamed(around, first, stop, t) for t in self.touched(first, stop) if t not in held)
        if dram < room:
            cost = self.leaf(around, first, stop, held)
            assert cost[0] == dram, "what streams of one tensor depends on others"
            yield (first, stop), cost
        for loop in self.loops(first, stop, around) if len(around) < self.depth else ():
            if self.least_of((*around, loop), first, stop, held, first) >= room:
                continue
            for label in self.front((*around, loop), first, stop, held):
                dram, peak, *stays = label.cost
                if loop.halo is Halo.ROLLING:
                    peak += stays.pop()
                yield (loop, label), (dram, peak, *stays)

    # ------------------------------------------------------------ the plan

    def sequence(self, label):
        chain = []
        while label.before is not None:
            chain.append(label)
            label = label.before
        chain.reverse()
        nodes, stops, residents, at = [], [], [], 0
        for label in chain:
            node, at = self.node(label.child)
            nodes.append(node)
            stops.append(at)
        for k, label in enumerate(chain):
            for tensor, last in label.new:
                residents.append(Resident(tensor.name, k, next(n for n, stop in enumerate(stops) if stop > last)))
        return Sequence(tuple(nodes), tuple(residents))

    def node(self, child):
        """A node, and where its layers end."""
        one, other = child
        if isinstance(one, Around):
            return one.of(self.sequence(other)), one.stop
        return Compute(tuple(self.names[one:other])), other


def _add(front, label):
    """Among those that no other beats in everything."""
    if not any(all(a <= b for a, b in zip(other.cost, label.cost, strict=True)) for other in front):
        front[:] = [
            other for other in front if not all(a <= b for a, b in zip(label.cost, other.cost, strict=True))
        ]
        front.append(label)
