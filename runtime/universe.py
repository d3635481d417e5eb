"""What plain `xdsl-opt` sees once Frustum is installed: names of dialects and passes, loaded on first use.

Every start of every xDSL tool in the environment imports this module, so it imports nothing of ours.
To add a dialect or a pass, add its line.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from xdsl.universe import Universe

DIALECTS = (
    ("fgraph", "frustum.dialects.graph:FGraph"),
    ("fplan", "frustum.dialects.plan.dialect:FPlan"),
    ("funit", "frustum.dialects.unit:FUnit"),
    ("ftile", "frustum.dialects.tile:FTile"),
    ("fisa", "frustum.dialects.isa:FIsa"),
)

# name of the pass, "module:Class"; in the order of the pipeline.
PASSES: tuple[tuple[str, str], ...] = (
    ("frustum-set-target", "frustum.backend.set_target:SetTarget"),
    ("frustum-graph-outline", "frustum.passes.graph.outline:OutlineNetworks"),
    ("frustum-graph-unroll-recurrences", "frustum.passes.graph.composites.unroll_recurrences:UnrollRecurrences"),
    ("frustum-graph-find-attention", "frustum.passes.graph.composites.find_attention:FindAttention"),
    ("frustum-graph-expand-attention", "frustum.passes.graph.composites.expand_attention:ExpandAttention"),
    ("frustum-graph-find-normalise", "frustum.passes.graph.composites.find_normalise:FindNormalise"),
    ("frustum-graph-expand-normalise", "frustum.passes.graph.composites.expand_normalise:ExpandNormalise"),
    ("frustum-graph-expand-softmax", "frustum.passes.graph.composites.expand_softmax:ExpandSoftmax"),
    ("frustum-graph-quantise", "frustum.passes.graph.quantise:QuantiseNetwork"),
    ("frustum-graph-fold-quantisation", "frustum.passes.graph.fold_quantisation:FoldQuantisation"),
    ("frustum-graph-canonicalize", "frustum.passes.graph.canonicalize:Canonicalize"),
    ("frustum-graph-convert-type", "frustum.passes.graph.convert_type:ConvertType"),
    ("frustum-graph-remove-roundings", "frustum.passes.graph.composites.remove_roundings:RemoveRoundings"),
    ("frustum-graph-split-reductions", "frustum.passes.graph.split_reductions:SplitReductions"),
    ("frustum-graph-attention-on-planes", "frustum.passes.graph.composites.attention_on_planes:AttentionOnPlanes"),
    ("frustum-graph-part-products", "frustum.passes.graph.composites.part_products:PartProducts"),
    ("frustum-graph-pool-parts", "frustum.passes.graph.pool_parts:PoolParts"),
    ("frustum-graph-pool-in-steps", "frustum.passes.graph.pool_in_steps:PoolInSteps"),
    ("frustum-graph-join-products", "frustum.passes.graph.composites.join_products:JoinProducts"),
    ("frustum-graph-split-sums", "frustum.passes.graph.composites.split_sums:SplitSums"),
    ("frustum-graph-order-rows", "frustum.passes.graph.composites.order_rows:OrderRows"),
    ("frustum-graph-fuse-residual", "frustum.passes.graph.fuse_residual:FuseResidual"),
    ("frustum-graph-convert-at-host", "frustum.passes.graph.convert_at_host:ConvertAtHost"),
    ("frustum-graph-find-phases", "frustum.passes.graph.find_phases:FindPhases"),
    ("frustum-graph-find-shuffles", "frustum.passes.graph.find_shuffles:FindShuffles"),
    ("frustum-graph-layer-moves", "frustum.passes.graph.layer_moves:LayerMoves"),
    ("frustum-graph-turn-weights", "frustum.passes.graph.turn_weights:TurnWeights"),
    ("frustum-graph-choose-forms", "frustum.passes.graph.choose_forms:ChooseForms"),
    ("frustum-graph-note-carry", "frustum.passes.graph.note_carry:NoteCarry"),
    ("frustum-graph-own-outputs", "frustum.passes.graph.own_outputs:OwnOutputs"),
    ("frustum-graph-split-outputs", "frustum.passes.graph.split_outputs:SplitOutputs"),
    ("frustum-graph-measure-weights", "frustum.passes.graph.measure_weights:MeasureWeights"),
    ("frustum-plan-search", "frustum.passes.plan.text.search:SearchPlan"),
    ("frustum-plan-apply", "frustum.passes.plan.text.apply:ApplyPlan"),
    ("frustum-plan-check", "frustum.passes.plan.text.check:CheckPlan"),
    ("frustum-fuse-layers", "frustum.passes.fuse.fuse_layers:FuseLayers"),
    ("frustum-tile-force-partition", "frustum.passes.tile.force_partition:ForcePartition"),
    ("frustum-tile-partition", "frustum.passes.tile.partition:PartitionUnits"),
    ("frustum-tile-leave-room", "frustum.passes.tile.leave_room:LeaveRoom"),
    ("frustum-tile-split-breadth-first", "frustum.passes.tile.split_breadth_first:SplitBreadthFirst"),
    ("frustum-tile-assign-owners", "frustum.passes.tile.assign_owners:AssignOwners"),
    ("frustum-tile-choose-runs", "frustum.passes.tile.choose_runs:ChooseRuns"),
    ("frustum-tile-hand-inputs", "frustum.passes.tile.hand_inputs:HandInputs"),
    ("frustum-graph-choose-layout", "frustum.passes.graph.choose_layout:ChooseLayout"),
    ("frustum-tile-lower-units", "frustum.passes.tile.lower_units:LowerUnits"),
    ("frustum-tile-assign-order", "frustum.passes.tile.assign_order:AssignOrder"),
    ("frustum-lower-plan", "frustum.passes.lower.tree.lower_plan:LowerPlan"),
    ("frustum-lower-tiles", "frustum.passes.lower.lower_tiles:LowerTiles"),
    ("frustum-lower-load-parts", "frustum.passes.lower.load_parts:LoadParts"),
    ("frustum-lower-store-parts", "frustum.passes.lower.store_parts:StoreParts"),
    ("frustum-lower-keep-tensors", "frustum.passes.lower.keep_tensors:KeepTensors"),
    ("frustum-lower-hold-parts", "frustum.passes.lower.hold_parts:HoldParts"),
    ("frustum-lower-share-loads", "frustum.passes.lower.share_loads:ShareLoads"),
    ("frustum-lower-choose-line-buffer", "frustum.passes.lower.choose_line_buffer:ChooseLineBuffer"),
    ("frustum-join-sections", "frustum.backend.join_sections:JoinSections"),
    ("frustum-lower-make-address-tables", "frustum.passes.lower.make_address_tables:MakeAddressTables"),
    ("frustum-lower-compress-weights", "frustum.passes.lower.compress_weights:CompressWeights"),
    ("frustum-lower-share-weights", "frustum.passes.lower.share_weights:ShareWeights"),
    ("frustum-weights-ahead", "frustum.backend.weights_ahead:WeightsAhead"),
    ("frustum-fills-ahead", "frustum.backend.fills_ahead:FillsAhead"),
    ("frustum-hold-stationary", "frustum.backend.stationary:HoldStationary"),
    ("frustum-allocate", "frustum.backend.memory.allocation:Allocate"),
    ("frustum-hoist-loads", "frustum.backend.hoist_loads:HoistLoads"),
    ("frustum-schedule", "frustum.backend.waits.schedule:Schedule"),
)


def load(place: str) -> Any:
    """The object at "module:name"."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


def _loader(place: str) -> Callable[[], Any]:
    return lambda: load(place)


FRUSTUM = Universe(
    all_dialects={name: _loader(place) for name, place in DIALECTS},
    all_passes={name: _loader(place) for name, place in PASSES},
)
