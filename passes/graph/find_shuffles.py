"""Name channel shuffles, so that they can be layers of a unit."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects.graph import ReshapeOp, ShuffleOp, TransposeOp, shape_of


@dataclass(frozen=True)
class FindShuffles(ModulePass):
    """Write reshape, transpose, reshape as one shuffle where they deal the channels of groups in turn.

    Before: [N, C, H, W] reshaped to [N, g, C/g, H, W] (or [N, g, C/g, H*W]), transposed in the second and third
    dimension, reshaped back.  After: `fgraph.shuffle` of g groups.
    Source: Zhang et al., ShuffleNet, 2018, section 3.1.
    """

    name = "frustum-graph-find-shuffles"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for last in [o for o in op.walk() if isinstance(o, ReshapeOp)]:
            turned = last.x.owner
            if not isinstance(turned, TransposeOp) or not turned.result.has_one_use():
                continue
            first = turned.x.owner
            if not isinstance(first, ReshapeOp) or not first.result.has_one_use():
                continue
            groups = groups_of(shape_of(first.x), shape_of(first.result), turned.perm, shape_of(last.result))
            if groups is None:
                continue
            shuffle = ShuffleOp(first.x, groups)
            shuffle.location = turned.location
            Rewriter.replace_op(last, shuffle)
            for unused in (turned, first):
                Rewriter.erase_op(unused)


def groups_of(
    shape: tuple[int, ...], split: tuple[int, ...], perm: tuple[int, ...], result: tuple[int, ...]
) -> int | None:
    """How many groups are shuffled by a reshape to `split`, a transposition and a reshape back; None for others."""
    if len(shape) != 4 or result != shape or len(split) not in (4, 5) or perm != (0, 2, 1, 3, 4)[: len(split)]:
        return None
    images, channels, height, width = shape
    plane = (height, width) if len(split) == 5 else (height * width,)
    groups = split[1]
    return groups if split == (images, groups, channels // groups, *plane) else None
