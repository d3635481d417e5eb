"""The most bytes of SRAM that a plan takes at a time, of buffers that a walk over its passes has measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.carried import hands_on_statistics, running_axes, running_bytes
from frustum.dialects.plan.check import operands_of, sum_bits_of
from frustum.dialects.plan.ranges import Ranged
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Resident, Sequence
from frustum.dialects.target.fit import DoesNotFit

SLICE = 16
"""Positions of an axis in a slice of what is streamed: lines, or channels, of a matrix unit. 2026-11-28."""
SLICE_COPIES = 2
"""One slice is used while the next one comes. 2026-11-28."""


@dataclass
class Counted:
    """Bytes over the DRAM port, bytes that clusters receive over links, the most bytes of a cluster's SRAM at a time,
    and points that layers compute in all clusters.

    `moved`, `received` and `held` say the first three of nodes, and of residents too, by `id`.
    `cycles` and `energy_pj` are of the machine that `cycles.timed` was given; `taken`: cycles of nodes, by `id`.
    """

    read_bytes: int = 0
    write_bytes: int = 0
    link_bytes: int = 0
    sram_bytes: int = 0
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    moved: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    held: dict[int, int] = field(default_factory=dict)
    cycles: int = 0
    energy_pj: float = 0.0
    taken: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    rolled: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Of rolling loops, by `id`, the bytes that stay from pass to pass in each cluster."""
    needed: dict[tuple[int, str], int] = field(default_factory=dict)
    """Of layers of computes, the latter by `id`, what is there while they run."""
    at_ease: Counted | None = None
    """`held` and `needed` where runs of slices are no shorter than the least at the DRAM port; None: of no machine."""
    waits_in_dram: bool = False
    """Whether sums go to DRAM and come back."""

    @property
    def dram_bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    def check_fit(self, where: str, capacity: int) -> None:
        """DoesNotFit where it takes more SRAM than there is."""
        if self.sram_bytes > capacity:
            what, needed = "what is resident and streamed at a time", f"{self.sram_bytes} B"
            raise DoesNotFit(what, where, needed, f"{capacity} B of SRAM", "sram")


Place: TypeAlias = int | tuple[int, str]
"""A node or resident by its `id`, or a layer of a compute."""


class Measured(Ranged):
    """A plan with the sizes of its buffers."""

    counted: Counted
    sum_bits: dict[str, int]

    def __init__(self, network: AxisNetwork, plan: Node) -> None:
        super().__init__(network, plan)
        self.counted = Counted()
        self.sum_bits = sum_bits_of(plan)
        self.extents: dict[tuple[Place, Tensor], dict[Axis, int]] = {}
        """Of each node or residency, and tensor there, the most that is new in a pass along each axis."""
        self.stays: dict[tuple[int, int, Tensor], tuple[Axis, int]] = {}
        """Of each rolling loop the most positions that stay from pass to pass."""
        self.wholes: dict[tuple[int, int, Tensor], dict[Axis, int]] = defaultdict(dict)
        """Of each loop the positions that all passes of it touch."""
        self.beside: dict[tuple[int, str], int] = {}
        """Of each layer of a compute the bytes of SRAM that lie there beside what it streams; of a sequence, with no
        layer, the most that lie there."""

    def bits(self, tensor: Tensor) -> int:
        """Of an element in a buffer: where sums wait, the wider type of theirs."""
        return max(self.sum_bits.get(tensor.name, 0), tensor.element_bits)

    def note(self, place: Place, tensor: Tensor, box: Box) -> None:
        """A buffer has to take this box."""
        most = self.extents.setdefault((place, tensor), {})
        for axis, (low, high) in box.items():
            most[axis] = max(most.get(axis, 0), high - low)


class Occupancy:
    """The most bytes of SRAM at a time, of buffers that a walk has measured.  `least_run`: slices are as wide as these
    bytes in DRAM want them, and `counted` is told."""

    def __init__(self, walk: Measured, least_run: int = 0, counted: Counted | None = None) -> None:
        self.walk: Measured = walk
        self.least_run: int = least_run
        self.counted: Counted = counted or walk.counted
        self.held: list[Tensor] = []
        self.around: int = 0
        """Bytes of what is resident around a node, and stays there from pass to pass."""
        self.storage: dict[str, tuple[int, int]] = {}
        """Of resident tensors the storage, known by the resident that it was made for, and its bytes."""

    def peak(self, node: Node, loops: tuple[Loop, ...]) -> int:
        match node:
            case Compute():
                found = self.compute(node)
            case Loop():
                staying = self.staying(node, (*loops, node), node.body, ())
                self.counted.rolled[id(node)] = staying
                self.around += staying
                found = self.peak(node.body, (*loops, node)) + staying
                self.around -= staying
            case Sequence():
                found = max((self.child(node, k, loops) for k in range(len(node.children))), default=0)
                self.walk.beside[id(node), ""] = self.around + found
        self.counted.held[id(node)] = found
        return found

    def child(self, node: Sequence, k: int, loops: tuple[Loop, ...]) -> int:
        here = [r for r in node.residents if r.first <= k <= r.last]
        before, size = self.storage, 0
        waiting = list(here)
        while waiting:  # those of storage that others have come after these
            later = {r.tensor for r in waiting}
            own = [r for r in waiting if r.storage_of not in later] or waiting
            size += sum(self.stored(node, r) for r in own)
            waiting = [r for r in waiting if r not in own]
        names = [self.walk.tensors[r.tensor] for r in here if r.part is None]
        self.held += names
        self.around += size
        found = size + self.peak(node.children[k], loops)
        self.around -= size
        del self.held[len(self.held) - len(names) :]
        self.storage = before
        return found

    def stored(self, node: Sequence, resident: Resident) -> int:
        """Bytes of a resident beside those of the tensor whose storage it takes, if that lies there too."""
        size = self.tile(id(resident), self.walk.tensors[resident.tensor]) + self.running(node, resident)
        root, known = self.storage.get(resident.storage_of, (id(resident), 0))
        largest = max(size, known)
        shared = {name: (own, largest) for name, (own, _) in self.storage.items() if own == root}
        self.storage = {**self.storage, **shared, resident.tensor: (root, largest)}
        held = self.counted.held
        held[id(resident)] = max(held.get(id(resident), 0), largest - known)
        return largest - known

    def running(self, node: Sequence, resident: Resident) -> int:
        """Bytes of the numbers that an online reduction hands on with sums that are resident."""
        walk, tensor = self.walk, self.walk.tensors[resident.tensor]
        maker, extents = walk.network.maker.get(tensor), walk.extents.get((id(resident), tensor))
        if maker is None or extents is None:
            return 0
        children = node.children[resident.first : resident.last + 1]
        axes = running_axes(maker, walk.network.maker, children, walk.class_of)
        return running_bytes(math.prod(extents.get(axis, 1) for axis in axes)) if axes else 0

    def tile(self, place: Place, tensor: Tensor) -> int:
        extents = self.walk.extents.get((place, tensor))
        walk, maker = self.walk, self.walk.network.maker.get(tensor)
        bits = walk.bits(tensor)
        if maker is not None and hands_on_statistics(maker, walk.loops_around[maker.name], walk.known_class):
            bits += 8 * running_bytes(1)
        return 0 if extents is None else extent_bytes(bits, extents.values())

    def staying(self, loop: Loop, loops: tuple[Loop, ...], node: Node, held: tuple[Tensor, ...]) -> int:
        """Bytes that stay from pass to pass of a rolling loop, of all that lies in SRAM below it."""
        if loop.halo is not Halo.ROLLING:
            return 0
        match node:
            case Compute():
                places = [(id(node), tensor) for tensor in self.walk.own(node, {*self.held, *held})]
                return sum(self.beside(loop, loops, place, tensor) for place, tensor in places)
            case Loop():
                return self.staying(loop, (*loops, node), node.body, held)
            case Sequence():
                total = 0
                for r in node.residents:
                    total += self.beside(loop, loops, id(r), self.walk.tensors[r.tensor])
                for k, child in enumerate(node.children):
                    here = tuple(self.walk.tensors[r.tensor] for r in node.residents if r.first <= k <= r.last)
                    total += self.staying(loop, loops, child, (*held, *here))
                return total

    def beside(self, loop: Loop, loops: tuple[Loop, ...], place: int, tensor: Tensor) -> int:
        """Bytes of what stays of one tensor: loops inside this one leave the whole width of it."""
        axis, stays = self.walk.stays.get((id(loop), place, tensor), (None, 0))
        extents = dict(self.walk.extents.get((place, tensor), {}))
        if axis is None or not extents:
            return 0
        for inner in loops[loops.index(loop) + 1 :]:
            extents |= self.walk.wholes.get((id(inner), place, tensor), {})
        extents[axis] = stays
        return extent_bytes(self.walk.bits(tensor), extents.values())

    def compute(self, node: Compute) -> int:
        walk, most = self.walk, 0
        group = [walk.layers[name] for name in node.layers]
        own = walk.own(node, self.held)
        sizes = {t: self.tile(id(node), t) for t in own}
        place = {layer.name: k for k, layer in enumerate(group)}
        first = {t: place[walk.network.maker[t].name] for t in own}
        readers = walk.network.readers
        last = {t: max((first[t], *(place[reader.name] for reader in readers.get(t, [])))) for t in own}
        for k, layer in enumerate(group):
            alive = sum(size for t, size in sizes.items() if first[t] <= k <= last[t])
            if layer.storage_of is not None and layer.result in sizes:
                (old, *others) = [piece.tensor for piece in layer.operands[layer.storage_of].pieces]
                if not others and old in sizes and last[old] == k and old not in walk.carried:
                    alive -= min(sizes[old], sizes[layer.result])
            walk.beside[id(node), layer.name] = self.around + alive
            needed = self.counted.needed[id(node), layer.name] = alive + self.streamed(node, layer)
            most = max(most, needed)
        return most

    def streamed(self, node: Compute, layer: Layer) -> int:
        """Bytes of slices along the one axis that takes the fewest; what has not the axis lies there whole."""
        moved = {
            tensor: extents for tensor in dict.fromkeys((*operands_of(layer), layer.result))
            if (extents := self.walk.extents.get(((id(node), layer.name), tensor)))
        }  # fmt: skip
        links = {tensor: plain_links(layer, tensor) for tensor in moved}
        ways = []
        for axis in (*layer.axes, None):
            total = 0
            for tensor, extents in moved.items():
                size, own = extent_bytes(self.walk.bits(tensor), extents.values()), links[tensor].get(axis)
                extent = 0 if own is None else extents[own]
                step = SLICE if own is None else max(SLICE, self.positions(tensor, extents, own))
                total += size if not extent else -(-size * min(extent, SLICE_COPIES * step) // extent)
            ways.append(total)
        return min(ways)


    def positions(self, tensor: Tensor, extents: Mapping[Axis, int], own: Axis) -> int:
        """Of an axis, for runs in DRAM that are no shorter than the least; one where others make them as short."""
        inner = tensor.axes[tensor.axes.index(own) + 1 :]
        if any(extents[axis] < axis.extent for axis in inner):
            return 1
        return -(-8 * self.least_run // (math.prod(axis.extent for axis in inner) * tensor.element_bits))


def plain_links(layer: Layer, tensor: Tensor) -> dict[Axis | None, Axis]:
    """Axes of a layer that run through a tensor step by step, each with the tensor's axis."""
    if tensor is layer.result:
        return {axis: axis for axis in tensor.axes}
    links = (found for operand in layer.operands for other, found in operand.links() if other is tensor)
    return {link.axis: own for found in links for own, link in found.items() if link and link.is_plain}


def extent_bytes(element_bits: int, extents: Iterable[int]) -> int:
    return -(-math.prod(extents) * element_bits // 8)
