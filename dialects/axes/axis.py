"""Axes: named ranges that tensors and layers share by identity.

A reshape may split an axis into an outer and an inner part (768 channels become 12 heads of 64). Everything that named
the whole then names both parts, so an axis knows its parts and nothing else knows who uses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Dim = tuple["Axis", ...]
"""One dimension of a tensor: the axes that make it up, outermost first. A dimension of extent 1 has none."""


@dataclass(eq=False)
class Axis:
    """A range [0, extent). `is_bound`: the extent is the largest that a length known at run time may have. `is_tap`:
    taps of a window, which no plan loops over."""

    name: str
    extent: int
    is_bound: bool = False
    is_tap: bool = False
    parts: tuple[Axis, Axis] | None = None
    is_named: bool = False
    """Whether the name is the only one of its network."""

    def __repr__(self) -> str:
        return f"{self.name}:{self.extent}"

    @property
    def leaves(self) -> Dim:
        """The parts that are not split, outermost first."""
        return (self,) if self.parts is None else tuple(leaf for part in self.parts for leaf in part.leaves)

    def split(self, outer: int) -> tuple[Axis, Axis]:
        """Splits the axis into `outer` ranges of equal length; the extent is a multiple of `outer`."""
        assert (
            self.parts is None and 1 < outer < self.extent and self.extent % outer == 0 and not self.is_bound
        )
        self.parts = Axis(f"{self.name}.o", outer), Axis(f"{self.name}.i", self.extent // outer)
        return self.parts


def dim(name: str, extent: int, *, is_bound: bool = False) -> Dim:
    """A dimension that is one new axis."""
    return (Axis(name, extent, is_bound),) if extent > 1 or is_bound else ()


def leaves(axes: Iterable[Axis]) -> Dim:
    return tuple(leaf for axis in axes for leaf in axis.leaves)


def extent_of(axes: Iterable[Axis]) -> int:
    return math.prod(axis.extent for axis in axes)


def weights(axes: Iterable[Axis]) -> dict[Axis, int]:
    """How far one step along each leaf goes in the dimension that the axes make up."""
    found, weight = {}, 1
    for leaf in reversed(leaves(axes)):
        found[leaf] = weight
        weight *= leaf.extent
    return found


def align(a: Iterable[Axis], b: Iterable[Axis]) -> list[tuple[Axis, Axis]] | None:
    """Pairs of leaves of equal extent whose products run alike, splitting axes where needed. None, with nothing split,
    where the two factorisations have no common refinement."""
    a, b = leaves(a), leaves(b)
    steps = _common_steps((x.extent for x in a), (x.extent for x in b))
    return None if steps is None else list(zip(_cut(a, steps), _cut(b, steps), strict=True))


def regroup(axes: Iterable[Axis], shape: Sequence[int]) -> tuple[Dim, ...] | None:
    """The axes as dimensions of these extents, splitting where needed: a reshape. None, with nothing split, where no
    axis may be cut so."""
    axes = tuple(axes)
    steps = _common_steps((x.extent for x in leaves(axes)), (extent for extent in shape if extent > 1))
    if steps is None:
        return None
    rest, dims = list(_cut(axes, steps)), []
    for extent in shape:
        taken: list[Axis] = []
        while extent_of(taken) < extent:
            taken.append(rest.pop(0))
        dims.append(tuple(taken))
    return tuple(dims)


def _common_steps(a: Iterable[int], b: Iterable[int]) -> list[int] | None:
    """The coarsest factorisation that refines both, outermost first."""
    a, b, steps = list(a), list(b), []
    while a and b:
        small, large = sorted((a[0], b[0]))
        if large % small:
            return None
        steps.append(small)
        for factors in (a, b):
            factors[0] //= small
            if factors[0] == 1:
                del factors[0]
    return None if a or b else steps


def _cut(axes: Iterable[Axis], steps: Iterable[int]) -> Dim:
    """Leaves of just these extents."""
    rest, found = list(leaves(axes)), []
    for step in steps:
        axis = rest.pop(0)
        if axis.extent != step:
            rest.insert(0, axis.split(step)[1])
            assert axis.parts is not None
            axis = axis.parts[0]
        found.append(axis)
    return tuple(found)
