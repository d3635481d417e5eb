# Tests: test/passes/tile/test_lower_units.py
"""Maps that stay in SRAM between units: which box of them each cluster holds, and what clusters send each other.

Source: docs/techniques/frustum.md, "Borders".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from xdsl.ir import OpResult, SSAValue

from frustum.dialects.extents import Extents, replaced
from frustum.dialects.isa.program import Affine, Box
from frustum.dialects.tile import TensorView
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_move, layer_of
from frustum.passes.analysis.project import Projection, Region, UnitLayers, Unprojectable
from frustum.passes.analysis.unit_layers import same_form


@dataclass(frozen=True)
class Interval:
    """Positions `[start, start + extent)` of one dimension; start affine in the cluster."""

    start: Affine
    extent: int

    @property
    def end(self) -> Affine:
        return self.start + self.extent


Intervals = tuple[Interval, ...]
"""A box of a map, by dimension."""


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
        own = None
        if use.operation is not reader.body.block.last_op:
            own = next((m for m in layer_of(use.operation).maps if m.index == use.index), None)
        if own is None or not same_form(own.dims, own.view, dims, view):
            return False
    return True


def over_all_passes(region: Region, counts: Extents) -> Intervals:
    """What all passes of a cluster need or make, by dimension, inside the map or not."""
    spans = []
    for start, extent in region.parts:
        moves = [step * (counts[d] - 1) for d, step in enumerate(start.loops)]
        low, high = sum(min(0, m) for m in moves), sum(max(0, m) for m in moves)
        spans.append(Interval(Affine(start.base + low, cluster=start.cluster), extent + high - low))
    return tuple(spans)


def in_map(spans: Intervals, dims: Extents) -> Intervals:
    return tuple(map(trimmed, spans, dims))


def together(boxes: Iterable[Intervals], dims: Extents, clusters: int) -> Intervals:
    """All of some boxes of a map."""
    pairs = zip(zip(*boxes, strict=True), dims, strict=True)
    return tuple(reduce(partial(joined, size=size, clusters=clusters), spans) for spans, size in pairs)


def trimmed(span: Interval, size: int) -> Interval:
    """Inside the map where all clusters are alike."""
    if span.start.cluster:
        return Interval(Affine(), size) if span.extent >= size else span
    low, high = max(0, span.start.base), min(size, span.end.base)
    return Interval(Affine(low), max(1, high - low))


def joined(a: Interval, b: Interval, size: int, clusters: int) -> Interval:
    """Both, in the steps of the first from cluster to cluster; the whole dimension where that is no less."""
    step = a.start.cluster
    if step == b.start.cluster:
        low, high = min(a.start.base, b.start.base), max(a.end.base, b.end.base)
    elif not step:
        return Interval(Affine(), size)
    else:  # of what moves otherwise only what is inside the map
        ends = [(max(0, first), min(size, first + b.extent)) for first in at_clusters(b, clusters)]
        inside = [(k, low, high) for k, (low, high) in enumerate(ends) if low < high]
        low = min([a.start.base, *(first - step * k for k, first, _ in inside)])
        high = max([a.end.base, *(end - step * k for k, _, end in inside)])
    return trimmed(Interval(Affine(low, cluster=step), high - low), size)


def at_clusters(span: Interval, clusters: int) -> list[int]:
    """Where it starts on each cluster."""
    return [span.start.base + k * span.start.cluster for k in range(clusters)]


@dataclass(frozen=True)
class Resident:
    """A map that stays: its size, the box of it that each cluster holds, what a cluster computes of it in all passes,
    what of that no other one is to compute, in each pass, and what a cluster is to have in its box."""

    dims: Extents
    box: Intervals
    made: Intervals
    part: Region
    counts: Extents
    clusters: int
    asked: Intervals

    @property
    def region(self) -> Region:
        return Region.of((interval.start, interval.extent) for interval in self.box)

    def wider(self, d: int) -> Resident:
        """With a whole dimension on every cluster."""
        whole = Interval(Affine(), self.dims[d])
        return replace(self, box=replaced(self.box, d, whole), asked=replaced(self.asked, d, whole))

    # ------------------------------------------------------------ what is sent

    def sends(self) -> list[tuple[int, Box]]:
        """(D, region): in each pass cluster k sends it to cluster k + D; empty where there is no such cluster.

        In turn to the next cluster, the next but one, around the last: each receives from one at a time.
        """
        orders = [d for n in range(1, self.clusters) for d in (n, n - self.clusters)]
        return [(by, region) for by in orders if (region := self.sent(by)) is not None]

    def sent(self, by: int) -> Box | None:
        """What the cluster `by` further on is to have and does not compute, of this one's part of a pass."""
        meetings: list[tuple[Affine, int, Affine | None]] = []
        for d in range(len(self.dims)):
            if (meeting := self.meet(d, by)) is None:
                return None
            meetings.append(meeting)
        starts, extents, limits = zip(*meetings, strict=True)
        if None not in limits:
            raise Unprojectable("what clusters send each other is limited in all dimensions")
        free = limits.index(None)
        size = self.dims[free]  # the last that have a neighbour there: a limit of 0 and less for those after them
        far = Affine(size * (self.clusters - by), cluster=-size)
        own = far if by > 0 else Affine(size * (by + 1), cluster=size)
        return Box(starts, extents, self.dims, replaced(limits, free, own))

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
        box, made = (Interval(s.start + s.start.cluster * by, s.extent) for s in (self.asked[d], self.made[d]))
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
    unit: UnitLayers, projection: Projection, layer: int, needs: Sequence[Intervals], clusters: int
) -> Resident:
    """The box of a kept map on each cluster: what is made of it there and what all readers need there (`needs`)."""
    made = made_of(unit, projection, layer, clusters)
    box = together([made, *needs], unit.layers[layer].out_dims, clusters)
    kept = resident_in(unit, projection, layer, box, clusters)
    return settled([replace(kept, asked=asked_of(kept, needs))])[0]


def asked_of(kept: Resident, needs: Sequence[Intervals]) -> Intervals:
    """What readers need on each cluster, along the dimensions in which all clusters make the whole map; else the box:
    of a map whose channels are shared out, clusters that read rows are sent these rows.  Readers that need what their
    cluster has made itself ask for nothing."""
    needs = [own for own in needs if not is_made_there(kept, own)] or needs
    if not needs:
        return kept.box
    asked = kept.box
    for d, wanted in enumerate(together(needs, kept.dims, kept.clusters)):
        if kept.part.start[d] == Affine() and kept.part.extent[d] >= kept.dims[d]:
            asked = replaced(asked, d, wanted)
    return asked


def is_made_there(kept: Resident, needed: Intervals) -> bool:
    """Whether each cluster makes, of one part without gaps, all that it needs."""
    if any(start.cluster and kept.counts[d] > 1 for d, start in enumerate(kept.part.start)):
        return False
    for made, own, size in zip(kept.made, needed, kept.dims, strict=True):
        firsts = zip(at_clusters(made, kept.clusters), at_clusters(own, kept.clusters), strict=True)
        if any(max(0, b) < a or min(size, b + own.extent) > a + made.extent for a, b in firsts if b < size):
            return False
    return True


def made_of(unit: UnitLayers, projection: Projection, layer: int, clusters: int) -> Intervals:
    """What is made or loaded in a map's buffer on each cluster: the map, and the parts of it if it is a
    concatenation."""
    members = (layer, *(m for m in unit.groups.get(layer, ()) if m != layer))
    made = [in_map(over_all_passes(projection.region_of(m), projection.counts), unit.dims_of(m)) for m in members]
    return replaced(together(made, unit.layers[layer].out_dims, clusters), 1, made[0][1])


def resident_in(
    unit: UnitLayers, projection: Projection, layer: int, box: Intervals, clusters: int
) -> Resident:
    """A kept map in a box."""
    made = over_all_passes(projection.outputs[layer], projection.counts)
    part = projection.stores[unit.stored.index(layer)]
    return Resident(unit.layers[layer].out_dims, box, made, part, projection.counts, clusters, box)


def settled(residents: Sequence[Resident]) -> list[Resident]:
    """Maps in one box, wider where what clusters send each other could not be said otherwise."""
    while True:
        try:
            for each in residents:
                each.sends()
        except NoOrder as none:
            d = none.dimension
            if all(each.box[d] == Interval(Affine(), each.dims[d]) for each in residents):
                raise Unprojectable(f"what clusters send each other along d{d} has no one order") from none
            residents = [each.wider(d) for each in residents]
        else:
            return list(residents)
