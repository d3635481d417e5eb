# Tests: test/dialects/tile/test_layers.py
"""What layers that only move elements make of a tile."""

from __future__ import annotations

from frustum.dialects import tile as t
from frustum.runtime import kernels
from frustum.runtime.kernels import Array
from frustum.runtime.reference.layers import TileWork, made


@made.register(t.ShuffleLayer)
def _shuffle(p: t.ShuffleLayer, work: TileWork) -> Array:
    start, stop = work.ranges[1]
    return kernels.shuffle(work.tiles[0].read(work.needed()), p.groups)[:, start:stop]


@made.register(t.StackLayer)
def _stack(p: t.StackLayer, work: TileWork) -> Array:
    return kernels.stack(work.tiles[0].window(work.needed()), p.kernel, p.stride, (0, 0), p.dilation)


@made.register(t.DepthToSpaceLayer)
def _depth_to_space(p: t.DepthToSpaceLayer, work: TileWork) -> Array:
    channels, *plane = work.ranges[1:]
    whole = kernels.depth_to_space(work.tiles[0].read(work.needed()), p.factor, near=p.apart == 1)
    rows, columns = (slice(at % by, at % by + end - at) for (at, end), by in zip(plane, p.factor, strict=True))
    return whole[:, slice(None) if p.apart == 1 else slice(*channels), rows, columns]


@made.register(t.BorderLayer)
@made.register(t.WrapLayer)
def _border(p: t.BorderLayer | t.WrapLayer, work: TileWork) -> Array:
    tile, read, plane = work.tiles[0], list(work.needed()), []
    for d, ends in enumerate(zip(p.low, p.high, strict=True), start=2):
        shown = kernels.border_places(tile.bound[d], ends, p.mode)[slice(*work.ranges[d])]
        (first, end), (low, high) = read[d], (int(shown.min()), int(shown.max()) + 1)
        assert first <= low and high <= end, f"{(low, high)} is read, the access says {read[d]}"
        read[d] = low, high
        plane.append(shown - low)
    rows, columns = plane
    return tile.read(tuple(read))[:, :, rows][..., columns]


@made.register(t.SpaceToDepthLayer)
def _space_to_depth(p: t.SpaceToDepthLayer, work: TileWork) -> Array:
    whole = kernels.space_to_depth(work.tiles[0].read(work.needed()), p.factor, near=p.apart == 1)
    return whole[:, slice(*work.ranges[1])]


@made.register(t.PickLayer)
def _pick(p: t.PickLayer, work: TileWork) -> Array:
    steps = tuple(slice(None, None, step) for step in p.steps)
    return work.tiles[0].read(work.needed())[steps]
