"""A plan as a tree of four nodes: plain data. Which loads, stores, sends and partial sums follow is derived.

Layers, tensors and axes are named as in the network of axes that the plan is for (docs/ir-plan.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Halo(StrEnum):
    """What happens to the rows that neighbouring passes over a windowed class both read."""

    NONE = ""
    ROLLING = "rolling"
    RECOMPUTED = "recomputed"
    EXCHANGED = "exchanged"


class Over(StrEnum):
    """Who makes the passes: one after the other in one place, or instances of a level of the machine."""

    TIME = ""
    CORES = "cores"
    CLUSTERS = "clusters"
    CHIPS = "chips"


@dataclass(frozen=True)
class Part:
    """Positions [start, stop) of one axis of a tensor."""

    axis: str
    start: int
    stop: int


@dataclass(frozen=True)
class Resident:
    """A tensor, or a part of it, lies in a memory from child `first` to child `last` of a sequence.

    `storage_of`: it takes the bytes of this tensor, whose last reader makes it. `sharded`: each instance of the
    distributed loop outside has its range of this axis; empty: each has a copy.
    """

    tensor: str
    first: int
    last: int
    part: Part | None = None
    storage_of: str = ""
    memory: str = "sram"
    sharded: str = ""


@dataclass(frozen=True)
class Sum:
    """Partial sums of a tensor wait between passes as elements of this type."""

    tensor: str
    element: str


AGAIN = ".again"
"""How the names of copies end that a search makes."""


@dataclass(frozen=True)
class Copy:
    """Layer `layer` is computed once more, as a layer and a tensor called `name`."""

    layer: str
    name: str


@dataclass(frozen=True)
class Compute:
    """Layers in order. What one makes and others of them alone read lies on chip from maker to last reader."""

    layers: tuple[str, ...]
    engine: str = ""
    sums: tuple[Sum, ...] = ()


@dataclass(frozen=True)
class Sequence:
    """Children in order; or, with `subsets`, at the same time on so many instances of a level each.

    `copies`: layers that computes inside name. Readers in a compute after a copy read the copy.
    """

    children: tuple[Node, ...]
    residents: tuple[Resident, ...] = ()
    subsets: tuple[int, ...] = ()
    over: Over = Over.TIME
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True)
class Loop:
    """Passes over the class of an axis. `edges`: where its ranges begin and end, from 0 to the axis's extent."""

    axis: str
    edges: tuple[int, ...]
    body: Sequence
    halo: Halo = Halo.NONE
    over: Over = Over.TIME
    order: str = ""
    is_pipelined: bool = False

    @property
    def passes(self) -> int:
        return len(self.edges) - 1


Node: TypeAlias = Sequence | Loop | Compute


def steps(extent: int, step: int) -> tuple[int, ...]:
    """Edges of ranges of one length, the last clipped."""
    return (*range(0, extent, step), extent)


def nodes_in(node: Node) -> Iterator[Node]:
    """The node and all nodes inside, in order."""
    yield node
    match node:
        case Loop():
            yield from nodes_in(node.body)
        case Sequence():
            for child in node.children:
                yield from nodes_in(child)


def copies_in(node: Node) -> Iterator[Copy]:
    """The copies of layers that sequences inside declare."""
    for each in nodes_in(node):
        if isinstance(each, Sequence):
            yield from each.copies


def layers_in(node: Node) -> Iterator[str]:
    """The layers of a node, in its order."""
    match node:
        case Compute():
            yield from node.layers
        case Loop():
            yield from layers_in(node.body)
        case Sequence():
            for child in node.children:
                yield from layers_in(child)
