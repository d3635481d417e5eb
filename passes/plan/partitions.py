# Tests: test/passes/plan/test_tile_search.py
"""Which partitions a unit may have: the halvings of every dimension that may be cut.

Source: docs/techniques/tfu.md, "On-chip unit map".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from frustum.dialects.extents import Extents, ceil_div, replaced
from frustum.dialects.tile import ConvLayer
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import ROWS, UnitLayers, tile_counts
from frustum.passes.plan.piece_extents import halves

MOST_FREEDOMS = 128
"""Of which candidates are kept: of one image they are a few hundred."""


def splits_channels(unit: UnitLayers) -> bool:
    """A unit of one layer may be cut along channels, of a grouped convolution at group borders (`align`), and one of
    attention with the products that it reads, between heads."""
    return (len(unit.layers) == 1 or unit.is_by_heads) and 1 not in unit.out.axes_all


def alignment(unit: UnitLayers) -> Extents:
    """Multiples that tile extents must have, so that every projected start is exact."""
    align = tuple(math.lcm(*(layer.align[d] for layer in unit.layers)) for d in range(4))
    out = unit.out
    if isinstance(out.kind, ConvLayer) and out.kind.groups != 1:
        return replaced(align, 1, out.out_dims[1] // out.kind.groups)
    return align


def columns(unit: UnitLayers, clusters: int, maps: int = 1, *, inside: bool = False) -> Sequence[Sequence[Partition]]:
    """Candidates that differ in height only, the highest first: lower ones never move fewer bytes."""
    return _columns(freedom_of(unit), clusters, maps, inside=inside)


@lru_cache(maxsize=MOST_FREEDOMS)
def _columns(of: Freedom, clusters: int, maps: int, *, inside: bool) -> Sequence[Sequence[Partition]]:
    found: dict[tuple[int, ...], list[Partition]] = {}
    for partition in _candidates(of, clusters, maps, inside=inside):
        n, c, _, w = partition.tile
        found.setdefault((partition.clusters, n, c, w, partition.depth * partition.inside), []).append(partition)
    return [sorted(column, key=lambda p: -p.tile[ROWS]) for column in found.values()]


def candidates(unit: UnitLayers, clusters: int, maps: int = 1, *, inside: bool = False) -> Sequence[Partition]:
    """Every halving of every dimension that may be cut, for every dimension that may be dealt to the clusters; or
    (`inside`) those of channels and something else, the channels as the innermost loop, with two copies and one."""
    return _candidates(freedom_of(unit), clusters, maps, inside=inside)


class Freedom(NamedTuple):
    """What the candidates of a unit depend on: extents of its output, multiples that those of tiles must have, the
    dimensions that are not cut, whether it is attention with the products that make its heads."""

    dims: Extents
    align: Extents
    whole: frozenset[int]
    is_by_heads: bool


def freedom_of(unit: UnitLayers) -> Freedom:
    """How a unit may be cut."""
    dims = unit.out.out_dims
    whole = {d for d in range(4) if dims[d] == 1 or d in unit.out.axes_all}
    return Freedom(
        dims, alignment(unit), frozenset(whole if splits_channels(unit) else {*whole, 1}), unit.is_by_heads
    )


@lru_cache(maxsize=MOST_FREEDOMS)
def _candidates(of: Freedom, clusters: int, maps: int, *, inside: bool) -> Sequence[Partition]:
    dims, align, whole, is_by_heads = of
    across = (
        (3, 1, 2, 0) if dims[3] > dims[2] else (2, 1, 3, 0)
    )  # of equal ones the first: along most positions
    dealt_over = [d for d in across if d not in whole] or [2]
    found: list[Partition] = []
    for cluster_dim in dealt_over if clusters > 1 else dealt_over[:1]:
        choices = []
        for d in range(4):
            share = ceil_div(dims[d], clusters) if d == cluster_dim else dims[d]
            if d in whole:
                choices.append([dims[d]])
            elif d == 0:
                choices.append(halves(min(maps, share)))
            else:
                choices.append(halves(share, min(align[d], dims[d])))
        for tile in itertools.product(*choices):
            if is_by_heads and tile[1] < dims[1] and tile[2:] != dims[2:]:
                continue  # keys of some heads would be made again for other rows
            partition = partition_of(dims, tile, cluster_dim, clusters)
            if not inside:
                found.append(partition)
            elif is_nest_of_channels(dims, partition, clusters):
                found += [replace(partition, inside=True), replace(partition, inside=True, depth=1)]
    return found


def is_nest_of_channels(dims: Extents, partition: Partition, clusters: int) -> bool:
    """Whether there are several tiles both of channels and of what is not."""
    counts = tile_counts(dims, partition, clusters)
    return 1 < counts[1] < math.prod(counts)


def partition_of(dims: Extents, tile: Extents, cluster_dim: int, clusters: int) -> Partition:
    """With two copies of what is loaded and stored, where there are several tiles."""
    one = Partition(tile, cluster_dim, 1)
    is_one = math.prod(tile_counts(dims, one, clusters)) == 1
    return one if is_one else Partition(tile, cluster_dim, 2)
