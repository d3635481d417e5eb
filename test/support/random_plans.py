"""Random plans for hypothesis: legal ones of random small networks, and trees of any shape; and those of the page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import random_network
from hypothesis import assume
from hypothesis import strategies as st

from frustum.dialects.axes.classes import classes_of, links_of, why_not
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.graph import networks_of
from frustum.dialects.graph.axes import read_with_views
from frustum.dialects.plan.check import ELEMENTS, ENGINES, MEMORIES, PlanError, check_plan, operands_of
from frustum.dialects.plan.renaming import renamed
from frustum.dialects.plan.text import plan_text
from frustum.dialects.plan.tree import (
    Compute,
    Copy,
    Halo,
    Loop,
    Over,
    Part,
    Resident,
    Sequence,
    Sum,
    copies_in,
    layers_in,
    nodes_in,
    steps,
)  # fmt: skip

MOST_LAYERS = 6
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ir-plan.md"
PAGE_PLANS = re.findall(r"^```\n(plan @.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
"""The plans of the page, as text."""


class Planned:
    """A module with its inputs, its network as axes, and a plan of that; shown as text."""

    def __init__(self, drawn, plan=None):
        self.module, self.inputs = drawn.module, drawn.inputs
        (self.network,) = networks_of(drawn.module)
        self.axes, self.views = read_with_views(self.network)
        self.plan = plan

    def __repr__(self):
        return f"\n{self.module}\n{plan_text('net', 'edge', self.plan) if self.plan else ''}"


@st.composite
def networks(draw, most=MOST_LAYERS, kinds=None):
    """A network of 1 to `most` layers of axes, without a plan."""
    drawn = Planned(draw(random_network.networks(layers=most, kinds=kinds)))
    assume(1 <= len(drawn.axes.layers) <= most)
    return drawn


@st.composite
def planned(draw, most=MOST_LAYERS, kinds=None, depth=3):
    """A network with a legal plan of passes in time: loops (uneven ranges, halos that roll or are recomputed) around
    each other, no two over one class, and residents (parts, in the storage of others)."""
    drawn = draw(networks(most, kinds))
    drawn.plan = draw(plans(drawn.axes, depth))
    return drawn


@st.composite
def plans(draw, axes: AxisNetwork, depth=3):
    """A legal plan of a network."""
    return _apart(axes, _Planner(draw, axes).node(list(axes.layers), depth, frozenset(), ()))


@st.composite
def distributed(draw, most=MOST_LAYERS, kinds=None, depth=3):
    """A network with a legal plan for several clusters: of a plan in time some loops, one beside the other, are over
    clusters, with halos that are recomputed or exchanged, and perhaps passes inside over the same class."""
    drawn = draw(planned(most, kinds, depth))
    drawn.plan = _Distributor(draw, drawn.axes).node(drawn.plan)
    assume(any(isinstance(node, Loop) and node.over for node in nodes_in(drawn.plan)))
    return drawn


class _Distributor:
    def __init__(self, draw, network):
        self.draw, self.tensors = draw, {tensor.name: tensor for tensor in network.tensors}

    def node(self, node):
        match node:
            case Loop():
                is_outer = self.draw(st.integers(0, 2)) == 0
                return replace(node, body=self.node(node.body)) if is_outer else self.distributed(node)
            case Sequence():
                children = tuple(self.node(child) for child in node.children)
                return replace(node, children=children, residents=tuple(self.residents(node, children)))
        return node

    def distributed(self, node):
        body, halo = node.body, node.halo
        if self.draw(st.integers(0, 3)) == 0:
            body = Sequence((replace(node, edges=self.draw(edges(node.edges[-1]))),))
        elif halo:
            halo = self.draw(st.sampled_from([Halo.RECOMPUTED, Halo.EXCHANGED]))
        halo = Halo.RECOMPUTED if halo is Halo.ROLLING else halo
        return replace(node, body=body, halo=halo, over=Over.CLUSTERS)

    def residents(self, node, children):
        """Some in shares where a loop over clusters is inside; none that others' storage ties to another."""
        tied = {r.tensor for r in node.residents if r.storage_of} | {r.storage_of for r in node.residents}
        for each in node.residents:
            inside = [other for child in children[each.first : each.last + 1] for other in nodes_in(child)]
            axes = [axis.name for axis in self.tensors[each.tensor].axes if axis.extent > 1]
            is_free = axes and each.part is None and each.tensor not in tied
            is_inside = any(isinstance(other, Loop) and other.over for other in inside)
            is_named = not any(isinstance(other, Sequence) and each.tensor in _storage(other) for other in inside)
            is_sharded = is_free and is_inside and is_named and self.draw(st.booleans())
            yield replace(each, sharded=self.draw(st.sampled_from(axes))) if is_sharded else each


def _storage(node):
    return {r.storage_of for r in node.residents}


def _apart(axes, plan):
    """The plan without the shares of storage that a loop around them forbids."""
    while True:
        try:
            check_plan(axes, plan)
            return plan
        except PlanError as problem:
            if "a later pass over" not in str(problem):
                raise
            plan = _replaced(plan, problem.node)


def _replaced(node, resident):
    match node:
        case Loop():
            return replace(node, body=_replaced(node.body, resident))
        case Sequence():
            residents = tuple(replace(r, storage_of="") if r is resident else r for r in node.residents)
            children = tuple(_replaced(child, resident) for child in node.children)
            return replace(node, children=children, residents=residents)
    return node


class _Planner:
    def __init__(self, draw, network):
        self.draw, self.network = draw, network
        self.place = {layer: k for k, layer in enumerate(network.layers)}
        axes = {axis for tensor in network.tensors for axis in tensor.axes}
        axes |= {axis for layer in network.layers for axis in layer.axes}
        self.names = Counter(axis.name for axis in axes)

    def node(self, layers, depth, looped, held):
        """`looped`: axes of loops around; `held`: tensors that lie in SRAM."""
        kind = self.draw(st.sampled_from(["compute", "sequence", "loop", "loop"])) if depth else "compute"
        if kind == "loop":
            free = [group for group in classes_of(layers) if not group & looped and not why_not(group, layers)]
            classes = {tuple(axes): group for group in free if (axes := self.loopable(group, layers))}
            if classes:
                order = {axis: k for k, axis in enumerate(axis for layer in layers for axis in layer.axes)}
                axes = self.draw(st.sampled_from(sorted(classes, key=lambda axes: order[axes[0]])))
                return self.loop(layers, depth, looped, held, axes, classes[axes])
        if kind == "sequence":
            return self.sequence(layers, depth - 1, looped, held)
        return Compute(tuple(layer.name for layer in layers))

    def loop(self, layers, depth, looped, held, axes, group):
        axis = self.draw(st.sampled_from(axes))
        halos = [Halo.NONE]
        if any(link.axis in group and not link.is_plain for layer in layers for _, _, link in links_of(layer)):
            halos = [Halo.ROLLING, Halo.RECOMPUTED]
        body = self.sequence(layers, depth - 1, looped | group, held)
        return Loop(axis.name, self.draw(edges(axis.extent)), body, self.draw(st.sampled_from(halos)))

    def loopable(self, group, layers):
        """The axes of a class that layers have, that can be cut, and that a name tells, in their order."""
        own = dict.fromkeys(axis for layer in layers for axis in layer.axes if axis in group)
        return [axis for axis in own if axis.extent > 1 and not axis.is_tap and self.names[axis.name] == 1]

    def sequence(self, layers, depth, looped, held):
        cuts = sorted(self.draw(st.sets(st.integers(1, len(layers) - 1)))) if len(layers) > 1 else []
        parts = [layers[a:b] for a, b in zip([0, *cuts], [*cuts, len(layers)], strict=True)]
        residents = self.residents(parts, held)
        tensors = (*held, *(self.named(each.tensor) for each in residents))
        children = tuple(self.node(part, depth, looped, tensors) for part in parts)
        return Sequence(children, tuple(residents))

    def named(self, name):
        return next(tensor for tensor in self.network.tensors if tensor.name == name)

    def residents(self, parts, held):
        """Of some tensors that layers here use and that do not lie in SRAM yet; in order of their first children."""
        found = []
        touched = {t: None for part in parts for layer in part for t in (*operands_of(layer), layer.result)}
        for tensor in touched:
            if tensor in held or self.draw(st.booleans()):
                continue
            maker = self.network.maker.get(tensor)
            users = [layer for layer in (maker, *self.network.readers.get(tensor, [])) if layer]
            at = sorted({k for k, part in enumerate(parts) if any(layer in part for layer in users)})
            first = at[0] if maker and any(maker in part for part in parts) else self.draw(st.sampled_from(at))
            last = self.draw(st.sampled_from([k for k in at if k >= first]))
            found.append(Resident(tensor.name, first, last, self.part(tensor)))
        found.sort(key=lambda each: each.first)
        return [replace(each, storage_of=self.storage(each, found)) for each in found]

    def part(self, tensor):
        axes = [axis for axis in tensor.axes if axis.extent > 1 and self.names[axis.name] == 1]
        if not axes or self.draw(st.integers(0, 3)):
            return None
        axis = self.draw(st.sampled_from(axes))
        start = self.draw(st.integers(0, axis.extent - 1))
        return Part(axis.name, start, self.draw(st.integers(start + 1, axis.extent)))

    def storage(self, resident, beside):
        """A resident whose last reader makes the tensor, whole as it is, or nothing."""
        tensor = self.named(resident.tensor)
        maker = self.network.maker.get(tensor)
        fitting = []
        for other in beside if maker and resident.part is None else []:
            old = self.named(other.tensor)
            readers = self.network.readers.get(old, [])
            is_last = maker in readers and max(readers, key=self.place.get) is maker and not old.is_output
            is_there = other.first <= resident.first <= other.last and other.part is None
            is_alike = old.axes == tensor.axes and old.element_bits == tensor.element_bits
            if is_last and is_there and is_alike and old is not tensor:
                fitting.append(other.tensor)
        return self.draw(st.sampled_from(["", *fitting]))


@st.composite
def edges(draw, extent):
    """Ranges of one length, or of any."""
    if draw(st.booleans()):
        return steps(extent, draw(st.integers(1, extent)))
    inner = draw(st.sets(st.integers(1, extent - 1), max_size=4)) if extent > 1 else ()
    return (0, *sorted(inner), extent)


# ------------------------------------------------------------ for the text alone

NAMES = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["conv", "up.", "l0.q", "for"]), st.integers(0, 12)),
    st.text(min_size=1, max_size=5),
    st.sampled_from(["step", "x y", 'a"b', "conv#2", "/l/MatMul", "ü\n\\", "2x"]),
)
ORDER = st.sampled_from(["", "", "backward", "zorder 2x2", "interleaved 4"])


@st.composite
def trees(draw, depth=3):
    """Any tree with a structure: names mean nothing, and parts of it come again under other names."""
    names = draw(st.lists(NAMES, min_size=1, max_size=40, unique=True))
    return _Shaped(draw, names).node(depth)


class _Shaped:
    def __init__(self, draw, layers):
        self.draw, self.layers, self.count = draw, list(layers), 1_000_000
        self.copied = set()

    def number(self):
        """One that no name has yet."""
        self.count += self.draw(st.integers(1, 9))
        return self.count

    def layer(self):
        return self.layers.pop() if self.layers else f"n{self.number()}"

    def node(self, depth):
        kind = self.draw(st.sampled_from(["compute", "loop", "sequence"])) if depth else "compute"
        if kind == "compute":
            return self.compute()
        return self.loop(depth) if kind == "loop" else self.sequence(depth - 1)

    def compute(self):
        layers = tuple(dict.fromkeys(self.layer() for _ in range(self.draw(st.integers(1, 3)))))
        sums = self.draw(st.lists(st.builds(Sum, NAMES, st.sampled_from(list(ELEMENTS))), max_size=1))
        return Compute(layers, self.draw(st.sampled_from(["", "", *ENGINES])), tuple(sums))

    def loop(self, depth):
        draw = self.draw
        return Loop(
            draw(NAMES), draw(edges(draw(st.integers(1, 30)))), self.sequence(depth - 1),
            draw(st.sampled_from(Halo)), draw(st.sampled_from(Over)), draw(ORDER), draw(st.booleans()),
        )  # fmt: skip

    def sequence(self, depth):
        draw, children = self.draw, []
        for _ in range(draw(st.integers(1, 3))):
            children.append(self.node(depth))
            children += self.again(children[-1]) if draw(st.integers(0, 2)) == 0 else []
        over = draw(st.sampled_from([Over.TIME, Over.TIME, Over.CLUSTERS]))
        subsets = tuple(draw(st.integers(1, 4)) for _ in children) if over else ()
        inside = [layer for child in children for layer in layers_in(child) if layer not in self.copied]
        copied = draw(st.lists(st.sampled_from(inside), max_size=1)) if inside else []
        self.copied.update(copied)
        copies = tuple(Copy(draw(NAMES), name) for name in copied)
        return Sequence(tuple(children), self.residents(len(children)), subsets, over, copies)

    def again(self, child):
        """Equal parts: layers with a number before or behind their names, other names perhaps too."""
        found, before = [], self.draw(st.booleans())
        layers = set(layers_in(child))
        for _ in range(self.draw(st.integers(1, 3))):
            names, number = {}, self.number()

            def name(old, names=names, number=number):
                if old not in names:
                    new = f"c{number}.{old}" if before else f"{old}#{number}"
                    names[old] = new if old in layers or self.draw(st.booleans()) else old
                return names[old]

            self.copied.update(map(name, (copy.name for copy in copies_in(child))))
            found.append(renamed(child, name))
        return found

    def residents(self, count):
        draw, found = self.draw, []
        for _ in range(draw(st.integers(0, 2))):
            first = draw(st.integers(0, count - 1))
            part = draw(st.none() | st.builds(Part, NAMES, st.integers(0, 4), st.integers(5, 9)))
            found.append(
                Resident(
                    draw(NAMES), first, draw(st.integers(first, count - 1)), part, draw(st.just("") | NAMES),
                    draw(st.sampled_from(MEMORIES)), draw(st.just("") | NAMES),
                )
            )  # fmt: skip
        return tuple(sorted(found, key=lambda each: each.first))
