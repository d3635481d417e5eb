"""The network with fewer, larger operations that compute the same."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import GreedyRewritePatternApplier, PatternRewriterListener, PatternRewriteWalker
from xdsl.rewriter import Rewriter
from xdsl.traits import IsTerminator, Pure

from frustum.dialects.graph import RecurrenceOp
from frustum.passes.analysis.module import absorb
from frustum.passes.dequantised import fold_view
from frustum.passes.graph.composites.unroll_recurrences import unroll
from frustum.passes.graph.patterns.gelu import FindGelu
from frustum.passes.graph.patterns.layers import FindSilu, FuseActivation, FusePad, PoolBeforeConv
from frustum.passes.graph.patterns.moves import MergeMoves, RemoveIdentity
from frustum.passes.graph.patterns.reshapes import SinkReshape, share_reshapes
from frustum.passes.graph.patterns.roundings import remove_roundings
from frustum.passes.graph.patterns.scales import (
    Constants,
    DivideByPowers,
    FoldScaleAfter,
    FoldScaleBefore,
    MergeScales,
)
from frustum.passes.graph.patterns.volumes import LayersOnSlices, PadBehindStack
from frustum.passes.weights import store_of

ABSORBING = PatternRewriterListener(operation_replacement_handler=[absorb])


@dataclass(frozen=True)
class Canonicalize(ModulePass):
    """Fold, fuse, remove.

    1. identities, moves of moves (`moves`) and of dequantised constants (`dequantised`), roundings of whole numbers
       (`roundings`)
    2. constant scales and shifts into the convolution or matrix product beside them: batch
       normalisation, biases; into one another where there is none (`scales`); the new weights get new keys
    3. means over windows before pointwise convolutions, poolings before concatenations (`layers`)
    4. a GELU that is written out (`gelu`), and a value times its sigmoid, as one function; borders of zeros and
       activations into the layer beside them (`layers`)
    5. reshapes behind layers that do not care (`reshapes`)
    6. layers of volumes to the slices that these are made of (`volumes`)
    7. a recurrence of one step into its body; other recurrences stay, and their bodies are simplified as well
    8. operations whose results nobody uses

    Before: operators as the file has them.  After: none of the above is left to do.
    """

    name = "frustum-graph-canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not any(_is_ours(inner) for inner in op.walk()):
            return
        constants = Constants(store_of(op))
        for recurrence in [inner for inner in op.walk() if isinstance(inner, RecurrenceOp) and inner.steps == 1]:
            unroll(recurrence, constants.store)
        for inner in list(op.walk()):
            fold_view(inner, constants.store)
        remove_roundings(op, constants)
        # before anything goes into the layers that it consists of
        PatternRewriteWalker(FindGelu(constants.store), listener=ABSORBING).rewrite_module(op)
        patterns = GreedyRewritePatternApplier(
            [
                RemoveIdentity(),
                MergeMoves(),
                FoldScaleAfter(constants),
                FoldScaleBefore(constants),
                MergeScales(constants),
                LayersOnSlices(constants),
                PadBehindStack(),
                SinkReshape(),
                PoolBeforeConv(constants),
                FusePad(),
                FindSilu(),
                FuseActivation(),
            ],
            dce_enabled=False,  # it would remove other dialects' operations too
        )
        PatternRewriteWalker(patterns, listener=ABSORBING).rewrite_module(op)
        # what is left of scales, which a layer before takes as an activation
        rest = GreedyRewritePatternApplier([DivideByPowers(constants), FuseActivation()], dce_enabled=False)
        PatternRewriteWalker(rest, listener=ABSORBING).rewrite_module(op)
        share_reshapes(op)
        remove_unused(op)


def remove_unused(module: ModuleOp) -> None:
    """Erases operations of the graph level whose results nobody uses."""
    for op in [op for op in module.walk(reverse=True) if _is_ours(op)]:
        if op.has_trait(Pure) and not op.has_trait(IsTerminator) and not any(r.uses for r in op.results):
            Rewriter.erase_op(op)


def _is_ours(op: Operation) -> bool:
    return op.name.startswith("fgraph.")
