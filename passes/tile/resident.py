"""Maps that stay in SRAM between units: which box of them each cluster holds, and what clusters send each other.

Source: docs/techniques/frustum.md, "Borders".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from xdsl.ir import OpResult, SSAValue

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import Affine, Box
from frustum.dialects.tile import TensorView
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_move, layer_of
from frustum.passes.analysis.project import Projection, Region, UnitLayers, Unprojectable
from frustum.passes.analysis.unit_layers import same_form


@dataclass(frozen=True)
class Span:
    """Positions `[start, start + extent)` of one dimension; start affine in the cluster."""

    start: Affine
    extent: int

    @property
    def end(self) -> Affine:
        return self.start + self.extent


def readers_of(result: OpResult, dims: Extents, view: TensorView) -> list[UnitOp]:
    """The units that read a kept map in SRAM: as the four dimensions in which it is made, and never as weights."""
    found: dict[UnitOp, bool] = {}
    for use in result.uses:
        reader = use.operation
        if not isinstance(reader, UnitOp) or is_move(reader.body.block.ops):
            continue
        inside = reader.body.block.args[use.index]
        found[reader] = found.get(reader, True) and reads_plainly(reader, inside, dims, view)
    return [reader for reader, plain in found.items() if plain]


def reads_plainly(reader: UnitOp, inside: SSAValue, dims: Extents, view: TensorView) -> bool:
    """Whether all layers of a unit read a map in these dimensions."""
    for use in inside.uses:
        if use.operation is reader.body.block.last_op:
            return False
        maps = {m.index: m for m in layer_of(use.operation).maps}
        if use.index not in maps:
            return False
        own = maps[use.index]
        if not same_form(own.dims, own.view, dims, view):
            return False
    return True


def over_all_passes(region: Region, counts: Extents) -> list[Span]:
    """What all passes of a cluster need or make, by dimension, inside the map or not."""
    spans = []
    for start, extent in zip(region.start, region.extent, strict=True):
        moves = [step * (counts[d] - 1) for d, step in enumerate(start.loops)]
        low, high = sum(min(0, m) for m in moves), sum(max(0, m) for m in moves)
        spans.append(Span(Affine(start.base + low, cluster=start.cluster), extent + high - low))
    return spans


def in_map(spans: Sequence[Span], dims: Extents) -> list[Span]:
    return [trimmed(span, size) for span, size in zip(spans, dims, strict=True)]


def trimmed(span: Span, size: int) -> Span:
    """Inside the map where all clusters are alike."""
    if span.start.cluster:
        return Span(Affine(), size) if span.extent >= size else span
    low, high = max(0, span.start.base), min(size, span.end.base)
    return Span(Affine(low), max(1, high - low))


def joined(a: Span, b: Span, size: int) -> Span:
    """Both; the whole dimension where they do not lie alike on all clusters."""
    if a.start.cluster != b.start.cluster:
        return Span(Affine(), size)
    low = min(a.start.base, b.start.base)
    high = max(a.end.base, b.end.base)
    return trimmed(Span(Affine(low, cluster=a.start.cluster), high - low), size)


@dataclass(frozen=True)
class Resident:
    """A map that stays: its size, the box of it that each cluster holds, what a cluster computes of it in all passes,
    what of that no other one is to compute, in each pass, and what a cluster is to have in its box."""

    dims: Extents
    box: tuple[Span, ...]
    made: tuple[Span, ...]
    part: Region
    counts: Extents
    clusters: int
    asked: tuple[Span, ...]

    @property
    def region(self) -> Region:
        n, c, h, w = self.box
        return Region((n.start, c.start, h.start, w.start), (n.extent, c.extent, h.extent, w.extent))

    def wider(self, d: int) -> Resident:
        """With a whole dimension on every cluster."""
        box, asked = list(self.box), list(self.asked)
        box[d] = asked[d] = Span(Affine(), self.dims[d])
        return replace(self, box=tuple(box), asked=tuple(asked))

    # ------------------------------------------------------------ what is sent

    def sends(self) -> list[tuple[int, Box]]:
        """(D, region): in each pass cluster k sends it to cluster k + D; empty where there is no such cluster.

        In turn to the next cluster, the next but one, around the last: each receives from one at a time.
        """
        found = []
        for by in [d for n in range(1, self.clusters) for d in (n, n - self.clusters)]:
            region = self.sent(by)
            if region is not None:
                found.append((by, region))
        return found

    def sent(self, by: int) -> Box | None:
        """What the cluster `by` further on is to have and does not compute, of this one's part of a pass."""
        starts, extents, limits = [], [], list[Affine | None]()
        for d in range(len(self.dims)):
            meeting = self.meet(d, by)
            if meeting is None:
                return None
            start, extent, limit = meeting
            starts.append(start)
            extents.append(extent)
            limits.append(limit)
        free = next((d for d in range(len(limits)) if limits[d] is None), None)
        if free is None:
            raise Unprojectable("what clusters send each other is limited in all dimensions")
        size = self.dims[free]  # the last that have a neighbour there: a limit of 0 and less for those after them
        far = Affine(size * (self.clusters - by), cluster=-size)
        limits[free] = far if by > 0 else Affine(size * (by + 1), cluster=size)
        return Box(_starts(starts), _extents(extents), self.dims, _limits(limits))

    def meet(self, d: int, by: int) -> tuple[Affine, int, Affine | None] | None:
        """Start, extent and limit of the part's meeting with what the other is to have along a dimension; None if they
        never do.

        Raises `NoOrder` where it cannot be said for all passes and clusters alike which of them begins first.
        """
        start, extent, size = self.part.start[d], self.part.extent[d], self.dims[d]
        wanted = self.wanted(d, by)
        if wanted is None:
            return None
        first, end = wanted
        if self.range_of(start - end, by)[0] >= 0 or self.range_of(start + extent - first, by)[1] <= 0:
            return None
        if start == Affine() and extent >= size and (end - first).is_constant:
            return first, (end - first).base, None
        least, most = self.range_of(start - first, by)
        ends_inside = self.range_of(start + extent - end, by)[1] <= 0
        if least >= 0 or (first.is_constant and first.base <= 0):
            return start, extent, None if ends_inside or (end.is_constant and end.base >= size) else end
        if most <= 0 and (end - first).is_constant:
            is_last = self.range_of(end - start - extent, by)[1] <= 0
            return first, (end - first).base, None if is_last else start + extent
        if most <= 0 and (ends_inside or (end.is_constant and end.base >= size)):
            return first, extent, start + extent
        raise NoOrder(d)

    def wanted(self, d: int, by: int) -> tuple[Affine, Affine] | None:
        """Start and end of what the cluster `by` further on is to have along a dimension and does not compute."""
        box, made = (Span(s.start + s.start.cluster * by, s.extent) for s in (self.asked[d], self.made[d]))
        part, extent = self.part.start[d], self.part.extent[d]
        if not part.cluster:
            return box.start, box.end
        if self.counts[d] > 1:
            if made.extent > part.loops[d] * (self.counts[d] - 1) + extent:
                raise Unprojectable(f"tiles of a map that stays in SRAM overlap in turns along d{d}")
            return box.start, box.end
        if not made.start.cluster:
            return None  # it computes all
        start, end = (box.start, made.start) if by > 0 else (made.end, box.end)
        return None if (end - start).is_constant and (end - start).base <= 0 else (start, end)

    def range_of(self, difference: Affine, by: int) -> tuple[int, int]:
        """Least and most of an affine number over all passes, and over the clusters that have one `by` further on."""
        ends = [difference.cluster * k for k in (max(0, -by), self.clusters - 1 - max(0, by))]
        moves = [step * (self.counts[d] - 1) for d, step in enumerate(difference.loops)]
        base = difference.base
        return base + min(ends) + sum(min(0, m) for m in moves), base + max(ends) + sum(max(0, m) for m in moves)


class NoOrder(Exception):
    """Along a dimension, what clusters send each other begins now here, now there."""

    def __init__(self, dimension: int):
        super().__init__(dimension)
        self.dimension = dimension


def resident_of(
    unit: UnitLayers, projection: Projection, layer: int, needs: Sequence[Sequence[Span]], clusters: int
) -> Resident:
    """The box of a kept map on each cluster: what is made of it there and what all readers need there (`needs`)."""
    dims = unit.layers[layer].out_dims
    box = made_of(unit, projection, layer)
    for need in needs:
        box = [joined(a, b, size) for a, b, size in zip(box, need, dims, strict=True)]
    kept = resident_in(unit, projection, layer, box, clusters)
    return settled([replace(kept, asked=asked_of(kept, needs))])[0]


def asked_of(kept: Resident, needs: Sequence[Sequence[Span]]) -> tuple[Span, ...]:
    """What readers need on each cluster, along the dimensions in which all clusters make the whole map; else the box:
    of a map whose channels are shared out, clusters that read rows are sent these rows."""
    asked = list(kept.box)
    for d, size in enumerate(kept.dims):
        if needs and kept.part.start[d] == Affine() and kept.part.extent[d] >= size:
            spans = [need[d] for need in needs]
            asked[d] = reduce(partial(joined, size=size), spans, trimmed(spans[0], size))
    return tuple(asked)


def made_of(unit: UnitLayers, projection: Projection, layer: int) -> list[Span]:
    """What is made or loaded in a map's buffer on each cluster: the map, and the parts of it if it is a
    concatenation."""
    dims, counts = unit.layers[layer].out_dims, projection.counts
    box = in_map(over_all_passes(projection.outputs[layer], counts), dims)
    for member in unit.groups.get(layer, ()):
        own = in_map(over_all_passes(projection.region_of(member), counts), unit.dims_of(member))
        box = [box[1] if d == 1 else joined(a, b, dims[d]) for d, (a, b) in enumerate(zip(box, own, strict=True))]
    return box


def resident_in(
    unit: UnitLayers, projection: Projection, layer: int, box: Sequence[Span], clusters: int
) -> Resident:
    """A kept map in a box."""
    made = tuple(over_all_passes(projection.outputs[layer], projection.counts))
    part = projection.stores[unit.stored.index(layer)]
    return Resident(unit.layers[layer].out_dims, tuple(box), made, part, projection.counts, clusters, tuple(box))


def settled(residents: Sequence[Resident]) -> list[Resident]:
    """Maps in one box, wider where what clusters send each other could not be said otherwise."""
    while True:
        try:
            for each in residents:
                each.sends()
        except NoOrder as none:
            d = none.dimension
            if all(each.box[d] == Span(Affine(), each.dims[d]) for each in residents):
                raise Unprojectable(f"what clusters send each other along d{d} has no one order") from none
            residents = [each.wider(d) for each in residents]
        else:
            return list(residents)


def _starts(values: Sequence[Affine]) -> tuple[Affine, Affine, Affine, Affine]:
    a, b, c, d = values
    return a, b, c, d


def _limits(values: Sequence[Affine | None]) -> tuple[Affine | None, Affine | None, Affine | None, Affine | None]:
    a, b, c, d = values
    return a, b, c, d


def _extents(values: Sequence[int]) -> Extents:
    a, b, c, d = values
    return a, b, c, d
