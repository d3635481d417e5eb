"""Maps that stay in SRAM, gone through pass by pass: each cluster has what its readers need, sent once by its maker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.dialects.extents import ceil_div, replaced
from frustum.dialects.isa.program import Affine
from frustum.passes.analysis.regions import Region
from frustum.passes.analysis.unit_layers import Unprojectable
from frustum.passes.tile.resident import (
    Interval,
    Resident,
    asked_of,
    at_clusters,
    in_map,
    over_all_passes,
    settled,
    together,
)


@dataclass(frozen=True)
class Stay:
    """A map of `dims` that clusters make in passes, and what readers need of it on each cluster."""

    dims: tuple[int, ...]
    clusters: int
    counts: tuple[int, ...]
    made: Region
    part: Region
    needs: tuple[tuple[Interval, ...], ...]

    @property
    def resident(self):
        spans = over_all_passes(self.made, self.counts)
        box = together([in_map(spans, self.dims), *self.needs], self.dims, self.clusters)
        kept = Resident(self.dims, box, spans, self.part, self.counts, self.clusters, box)
        return settled([replace(kept, asked=asked_of(kept, self.needs))])[0]


def test_what_moves_from_cluster_to_cluster_begins_further_on():
    assert at_clusters(Interval(Affine(2, cluster=3), 4), 3) == [2, 5, 8]


@pytest.mark.parametrize(
    ("rows", "by", "meeting"),
    [
        (4, 1, (Affine(3, cluster=4), 1, None)),  # the last row of a strip
        (4, -1, (Affine(cluster=4), 4, Affine(1, cluster=4))),  # the first of four: they are limited to it
        (1, -1, (Affine(cluster=1), 1, None)),  # all of a strip, which needs no limit
    ],
)
def test_of_a_strip_its_neighbour_gets_the_border(rows, by, meeting):
    """Three clusters with strips of rows, of which each needs a row of the one before and of the one behind."""
    whole, own = Interval(Affine(), 1), Interval(Affine(cluster=rows), rows)
    asked = (whole, whole, Interval(Affine(-1, cluster=rows), rows + 2), whole)
    part = Region.of((span.start, span.extent) for span in (whole, whole, own, whole))
    kept = Resident((1, 1, 3 * rows, 1), asked, (whole, whole, own, whole), part, (1, 1, 1, 1), 3, asked)
    assert kept.meet(2, by) == meeting


@st.composite
def stays(draw):
    """Dealt along channels, rows or columns, in one or two tiles each, perhaps with borders that are made again; read
    in strips along any dimension with borders, or whole."""
    clusters = draw(st.integers(2, 4))
    dims = (1, draw(st.integers(1, 4)), draw(st.integers(2, 11)), draw(st.integers(2, 9)))
    dealt = draw(st.integers(1, 3))
    counts = tuple(draw(st.integers(1, 2)) if d > 1 else 1 for d in range(4))
    starts, extents = [], []
    for d, (size, count) in enumerate(zip(dims, counts, strict=True)):
        owners = clusters if d == dealt else 1
        extent = ceil_div(size, owners * count)
        step = extent * owners if count > 1 else 0
        starts.append(Affine.index(d, step) + Affine(cluster=extent if d == dealt else 0))
        extents.append(extent)
    part = Region(tuple(starts), tuple(extents))
    low, high = (draw(st.integers(0, 2)) if counts[dealt] == 1 and dealt > 1 else 0 for _ in range(2))
    made = part.at(dealt, part.start[dealt] + -low, part.extent[dealt] + low + high)
    needs = tuple(in_map(draw(strips(dims, clusters, dealt)), dims) for _ in range(draw(st.integers(1, 2))))
    return Stay(dims, clusters, counts, made, part, needs)


@st.composite
def strips(draw, dims, clusters, dealt):
    """What a reader needs on each cluster: mostly along the dimension in which the map is dealt, perhaps of a map that
    is padded."""
    whole = tuple(Interval(Affine(), size) for size in dims)
    along = draw(st.sampled_from([dealt, dealt, dealt, 0, 1, 2, 3]))
    if along == 0:
        return whole
    low, high = (draw(st.integers(0, 3)) if along > 1 else 0 for _ in range(2))
    width = ceil_div(dims[along] + draw(st.sampled_from([0, 0, 1, 3])), clusters)
    return replaced(whole, along, Interval(Affine(-low, cluster=width), low + width + high))


def clipped(parts, dims, indices, cluster):
    """The positions of a box of the map in a pass of a cluster."""
    found = []
    for (start, extent), size in zip(parts, dims, strict=True):
        first = start.at(indices, cluster)
        found.append(slice(max(0, first), max(0, min(first + extent, size))))
    return tuple(found)


def follow(stay, kept):
    """By cluster, what it has made and what it was sent, with every send judged on the way."""
    made = np.zeros((stay.clusters, *stay.dims), bool)
    sent = np.zeros((stay.clusters, *stay.dims), int)
    box = [(each.start, each.extent) for each in kept.box]
    for indices in product(*map(range, stay.counts)):
        for cluster in range(stay.clusters):
            made[(cluster, *clipped(stay.made.parts, stay.dims, indices, cluster))] = True
            own = np.zeros(stay.dims, bool)
            own[clipped(stay.part.parts, stay.dims, indices, cluster)] = True
            for by, region in kept.sends():
                what = np.zeros(stay.dims, bool)
                spans = [span.clip(indices, cluster) for span in region.spans]
                what[tuple(slice(low, max(low, high)) for low, high in spans)] = True
                if not what.any():
                    continue
                there = np.zeros(stay.dims, bool)
                assert 0 <= cluster + by < stay.clusters, "sent to nobody"
                there[clipped(box, stay.dims, (), cluster + by)] = True
                assert not (what & ~own).any(), "sent by who did not make it in this pass"
                assert not (what & ~there).any(), "sent beyond what the other has of the map"
                sent[cluster + by] += what
    return made, sent


@pytest.mark.slow
def test_each_cluster_has_what_its_readers_need_and_gets_it_once():
    found = []

    @settings(max_examples=100)
    @given(stays())
    def check(stay):
        try:
            kept = stay.resident
        except Unprojectable:
            return
        made, sent = follow(stay, kept)
        for needs, cluster in product(stay.needs, range(stay.clusters)):
            wanted = clipped([(each.start, each.extent) for each in needs], stay.dims, (), cluster)
            assert (made[cluster][wanted] | (sent[cluster][wanted] > 0)).all()
        assert sent.max() <= 1 and not (made & (sent > 0)).any(), "nobody is sent what it makes itself, or twice"
        found.append(sent.any())

    check()
    assert sum(found) > 25, "maps that nobody sends say nothing"
