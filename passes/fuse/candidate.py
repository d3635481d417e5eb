# Tests: test/passes/fuse/test_rules.py
"""The numbers of a set of layers that may become a unit: what the rules compare.

Symbols of the rules: n `cores`, S `sram_bytes`, W `wram_bytes`, NR `nram_bytes`, IN1 `in_bytes`, IN2 `buffer_bytes`,
W_i `weights[i].sub_map`, size_TFU `loaded_bytes`, size_ori `once_bytes`; the most of SubIN_i + W_i over all layers
`load_bytes`, of SubOUT_i + W_i+1 `store_bytes`, of W_i + W_i+1 `adjacent_weight_bytes`.

Source: docs/techniques/tfu.md, "Symbols".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from xdsl.ir import Block, Operation, OpResult, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, ceil_div, replaced
from frustum.dialects.target import Target
from frustum.dialects.tile import ConvLayer, PoolLayer, SubMap
from frustum.passes.analysis.layer import SAME4, Layer
from frustum.passes.analysis.project import Projection, UnitLayers, Unprojectable, project, tile_counts
from frustum.passes.fuse.operators import Operator, operators_of
from frustum.passes.plan.cost import CutUnit, stored_bytes, tile_bytes, vector_bytes, weight_bytes
from frustum.passes.plan.network.given_units import plan_runs
from frustum.passes.plan.network.optimal import NetworkPlan, OptimalOptions
from frustum.passes.plan.partitions import alignment, candidates
from frustum.passes.plan.tile_search import ORDER, exhaust
from frustum.passes.plan.unit import Budget, UnitPlan, plan_unit

__all__ = ["Candidate", "GrowthLimits", "Operator"]


Cut = Literal["whole", "cores", "time"]
"""How Cout is cut: not at all, over the cores of a cluster, or over the cores and then into pieces over time."""


@dataclass(frozen=True)
class GrowthLimits:
    """What remedies have made smaller: images in a unit map, and how often the unit map that growth wants is halved;
    how often each layer's sub-map is; how Cout is cut."""

    maps: int
    map_halvings: int = 0
    sub_halvings: int = 0
    cout: Cut = "whole"


@dataclass(frozen=True)
class Weights:
    """Bytes of a layer's weights and of all else that has one number per output channel, as one core needs them."""

    sub_map: int
    """What a sub-map needs, with Cout cut so."""
    group: int
    """The least that Cout can be cut into: one output channel."""


@dataclass(frozen=True)
class Candidate:
    """Layers that may become a unit, on a target, within limits."""

    layers: UnitLayers
    target: Target
    limits: GrowthLimits
    outputs: int = 1
    """Results that are read outside."""
    blocks: frozenset[int] = frozenset()
    """Layers that came in as part of a whole block."""
    weight_users: Mapping[str, int] = field(default_factory=dict)
    """How many layers of the network use each weight."""
    options: OptimalOptions = field(default_factory=OptimalOptions)
    """How the runs of the unit may be cut."""

    @cached_property
    def plan(self) -> UnitPlan | None:
        """The unit map and the sub-maps; None where none fits."""
        return plan_unit(self.layers, self.target, Budget(self.sram_bytes, self.limits.maps, "halvings"))

    # --- the machine ---------------------------------------------------------------------------------------

    @property
    def cores(self) -> int:
        return self.target.cluster.cores

    @property
    def sram_bytes(self) -> int:
        return self.target.cluster.sram.capacity_bytes

    @property
    def wram_bytes(self) -> int:
        return self.target.core.wram.capacity_bytes

    @property
    def nram_bytes(self) -> int:
        return self.target.core.nram.capacity_bytes

    # --- what growth wants, before anything is planned ---------------------------------------------------------

    @cached_property
    def _halvings(self) -> list[Projection]:
        """Unit maps that growth may want, from the largest on."""
        return unit_maps(self.layers, self.limits.maps, self.target)

    @cached_property
    def wanted(self) -> Projection | None:
        """The unit map that growth wants; None where the layers can be cut in no such way, which the planner judges."""
        return self._halvings[self.limits.map_halvings] if self._halvings else None

    @cached_property
    def wanted_in_bytes(self) -> int:
        return 0 if self.wanted is None else self._in_bytes(self.wanted)

    @cached_property
    def wanted_out_bytes(self) -> int:
        return 0 if self.wanted is None else tile_bytes(self.wanted.outputs[-1], self.layers.out.out_bytes)

    @cached_property
    def may_overwrite(self) -> bool:
        """Every output position needs the same position of one input alone, and takes no more bytes: the output may
        lie where the input was."""
        inputs = {source.value for sources in self.layers.sources for source in sources if source.layer is None}
        return len(inputs) == 1 and all(m.access == SAME4 for layer in self.layers.layers for m in layer.maps)

    @cached_property
    def wanted_sub_map_bytes(self) -> int:
        """The largest sub-map that growth wants, input and output with all their channels: a core's share of the unit
        map, halved along N, H and W."""
        return max(map(sum, self._sub_maps(self.limits.sub_halvings)), default=0)

    def _sub_maps(self, halvings: int) -> list[tuple[int, int]]:
        """Bytes of input and output of each layer's sub-map."""
        regions = self.wanted.outputs if self.wanted else ()
        shares = zip(self.layers.layers, regions, strict=self.wanted is not None)
        parts = [(x, core_share(region.extent, x, self.cores)) for x, region in shares if not x.kind.is_place]
        return [piece_bytes(x, SubMap(halved(part, x, halvings), 1)) for x, part in parts]

    @cached_property
    def weights(self) -> tuple[Weights, ...]:
        """Of every layer that has a sub-map, in order."""
        return tuple(self._weights_of(layer) for layer in self.layers.layers if not layer.kind.is_place)

    def _weights_of(self, layer: Layer) -> Weights:
        channels, group = layer.out_dims[1], channel_bytes(layer, 1)
        if self.limits.cout != "whole":
            channels = ceil_div(channels, self.cores)
        if self.limits.cout == "time" and group <= self.wram_bytes // 2 < channel_bytes(layer, channels):
            channels = self.wram_bytes // 2 // group
        return Weights(channel_bytes(layer, channels), group)

    @property
    def sub_weight_bytes(self) -> int:
        """The most that a sub-map needs of the weights of the layer that it runs."""
        return max((w.sub_map for w in self.weights), default=0)

    @property
    def adjacent_weight_bytes(self) -> int:
        """The most that two sub-maps need that follow each other, of layers behind each other."""
        return max((w.sub_map + after for w, after in self._weights_and_next), default=0)

    @property
    def _weights_and_next(self) -> Iterator[tuple[Weights, int]]:
        """Each layer's weights, and what the next layer's sub-map needs; behind the last one: nothing.  A concatenation
        alone has no sub-map."""
        following = [*(w.sub_map for w in self.weights[1:]), *(0 for _ in self.weights[-1:])]
        return zip(self.weights, following, strict=True)

    # --- the unit map --------------------------------------------------------------------------------------

    @cached_property
    def planned(self) -> UnitPlan:
        assert self.plan is not None, "rules that need a plan are tested only where there is one"
        return self.plan

    @cached_property
    def projection(self) -> Projection:
        return project(self.layers, self.planned.partition, self.target.chip.clusters)

    @cached_property
    def is_small(self) -> bool:
        """Small-map mode: each cluster's part of a whole map is in SRAM at once."""
        counts = tile_counts(self.layers.out.out_dims, self.planned.partition, self.target.chip.clusters)
        return math.prod(counts[1:]) == 1

    @cached_property
    def maps(self) -> int:
        """Images of the batch in a unit map."""
        return self.planned.partition.tile[0]

    @cached_property
    def in_bytes(self) -> int:
        """The unit map of every input, one copy, however many layers read it."""
        return self._in_bytes(self.projection)

    def _in_bytes(self, projection: Projection) -> int:
        inputs = zip(projection.inputs, self.layers.inputs, strict=True)
        return sum(tile_bytes(region, own.element_bytes) for region, own in inputs)

    @cached_property
    def out_bytes(self) -> int:
        """The unit map of the output, one copy."""
        return tile_bytes(self.projection.outputs[-1], self.layers.out.out_bytes)

    @cached_property
    def buffer_bytes(self) -> int:
        """All else that maps take of SRAM: second copies, and the maps between the layers."""
        cut = CutUnit(self.layers, self.planned.partition, self.projection, self.target)
        return cut.footprint().map_bytes - self.in_bytes - self.out_bytes

    # --- the sub-maps --------------------------------------------------------------------------------------

    @cached_property
    def load_bytes(self) -> int:
        """The most that a sub-map's input and the weights of its layer take together."""
        return max((read + w.sub_map for (read, _), w in zip(self._pieces, self.weights, strict=True)), default=0)

    @cached_property
    def store_bytes(self) -> int:
        """The most that a sub-map's output and the weights of the next layer take together."""
        pairs = zip(self._pieces, self._weights_and_next, strict=True)
        return max((written + after for (_, written), (_, after) in pairs), default=0)

    @cached_property
    def _pieces(self) -> tuple[tuple[int, int], ...]:
        """Bytes of input and output of each layer's sub-map."""
        pairs = zip(self.layers.layers, self.planned.maps, strict=True)
        return tuple(piece_bytes(layer, submap) for layer, submap in pairs if submap is not None)

    # --- DRAM ----------------------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> NetworkPlan | None:
        """The runs of the unit, where these move fewer bytes than one unit map after the other through all layers."""
        return cheaper_runs(self)

    @property
    def stored_bytes(self) -> int:
        """From SRAM to DRAM: the output."""
        return stored_bytes(self.layers.out)

    @cached_property
    def loaded_bytes(self) -> int:
        """From DRAM to SRAM, as often as it is loaded, with maps that no run can leave in SRAM for the next."""
        moved = self.planned.dram_bytes if self.runs is None else self.runs.dram_bytes
        return moved - self.stored_bytes

    @cached_property
    def once_bytes(self) -> int:
        """From DRAM to SRAM if every input and every weight were loaded once."""
        return once_bytes(self.layers)

    # --- the layers ----------------------------------------------------------------------------------------

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        return operators_of(self.layers)

    @property
    def _kernels(self) -> Iterator[Operation | Block]:
        """What makes the weights of each convolution."""
        return (op.w.owner for op in self.layers.ops if isinstance(op, g.ConvOp))

    @cached_property
    def computed_weights(self) -> int:
        """Convolutions whose weights are no constant of the network."""
        return sum(not isinstance(made, g.WeightOp) for made in self._kernels)

    @cached_property
    def shared_weights(self) -> int:
        """Convolutions whose weights are used by another layer of the network too."""
        keys = [made.key.data for made in self._kernels if isinstance(made, g.WeightOp)]
        return sum(self.weight_users.get(key, 1) > 1 for key in keys)

    @cached_property
    def borders(self) -> tuple[int, int]:
        """How far kernels reach beyond their strides, summed: rows, columns.  Layers of whole blocks do not count."""
        return borders_of(self.layers, self.blocks)

    # --- smaller -------------------------------------------------------------------------------------------

    def split_by_cout(self) -> Candidate | None:
        """With Cout split over the cores; None where it is, or where there is one core."""
        return self._with(cout="cores") if self.limits.cout == "whole" and self.cores > 1 else None

    def with_cout_pieces(self) -> Candidate | None:
        """With each core's part of Cout in pieces over time, of which two are in WRAM; None where it is."""
        return self._with(cout="time") if self.limits.cout != "time" else None

    def with_fewer_maps(self) -> Candidate | None:
        """With half the images in a unit map; None where there is only one."""
        maps = self.maps if "plan" in vars(self) else self.limits.maps
        return self._with(maps=maps // 2) if maps > 1 else None

    def split_finer(self) -> Candidate | None:
        """With half of the unit map that is wanted; None where that is the least."""
        halvings = self.limits.map_halvings + 1
        return self._with(map_halvings=halvings) if halvings < len(self._halvings) else None

    def split_sub_maps(self) -> Candidate | None:
        """With half of every sub-map that is wanted; None where these have one position."""
        halvings = self.limits.sub_halvings + 1
        is_less = self._sub_maps(halvings) != self._sub_maps(halvings - 1)
        return self._with(sub_halvings=halvings) if is_less else None

    def _with(self, **limits: Any) -> Candidate:
        return replace(self, limits=replace(self.limits, **limits))


def unit_maps(unit: UnitLayers, maps: int, target: Target) -> list[Projection]:
    """Each cluster's share of so many images, then halves of it along N, H and W as long as every core still has an
    output position."""
    clusters, cores = target.chip.clusters, target.cluster.cores
    whole = candidates(unit, clusters, maps)[0]
    n, _, h, w = alignment(unit)
    found: list[Projection] = []
    for tile in exhaust(whole.tile, (min(n, whole.tile[0]), whole.tile[1], h, w)):
        if found and tile[0] * tile[2] * tile[3] < cores:
            break
        try:
            found.append(project(unit, replace(whole, tile=tile, depth=1), clusters))
        except Unprojectable:
            continue
    return found


def cheaper_runs(unit: Candidate) -> NetworkPlan | None:
    """The unit in runs that move fewer DRAM bytes than its plan; None where there are none."""
    if unit.plan is not None and unit.plan.dram_bytes - unit.stored_bytes <= unit.once_bytes:
        return None  # nothing is loaded twice
    ops, sram_bytes = unit.layers.ops, int(unit.sram_bytes * unit.options.sram)
    found = plan_runs(ops, outputs_of(ops), unit.target, sram_bytes, unit.options.borders)
    if found is None or unit.plan is None or found.dram_bytes >= unit.plan.dram_bytes:
        return found if unit.plan is None else None
    other = plan_unit(unit.layers, unit.target, Budget(unit.sram_bytes, unit.maps))
    return found if other is None or found.dram_bytes < other.dram_bytes else None


def borders_of(unit: UnitLayers, blocks: Collection[int]) -> tuple[int, int]:
    """How far kernels reach beyond their strides, summed over rows, columns; without the layers `blocks`."""
    rows = columns = 0
    for j, (op, layer) in enumerate(zip(unit.ops, unit.layers, strict=True)):
        p = layer.kind
        if isinstance(op, g.ConvOp | g.PoolOp) and isinstance(p, ConvLayer | PoolLayer) and j not in blocks:
            reach = [(k - 1) * d + 1 - s for k, d, s in zip(p.kernel, p.dilations, p.strides, strict=True)]
            rows, columns = rows + reach[0], columns + reach[1]
    return rows, columns


def outputs_of(ops: Sequence[Operation]) -> list[OpResult]:
    """Results that are read outside (or by nobody)."""
    inside = set(ops)
    results = (op.results[0] for op in ops)
    return [r for r in results if not r.uses or any(use.operation not in inside for use in r.uses)]


def once_bytes(unit: UnitLayers) -> int:
    """Bytes of every input of a unit and of every weight, each once."""
    inputs: dict[SSAValue, int] = {}  # two layers may see a different part of the same map
    for layer, sources in zip(unit.layers, unit.sources, strict=True):
        for operand, source in zip(layer.maps, sources, strict=True):
            if source.layer is None:
                size = math.prod(operand.dims) * operand.element_bytes
                inputs[source.value] = max(size, inputs.get(source.value, 0))
    return sum(inputs.values()) + sum(channel_bytes(layer, layer.out_dims[1]) for layer in unit.layers)


def channel_bytes(layer: Layer, channels: int) -> int:
    """Bytes of weights, and of all else that has one number per output channel, of so many."""
    return weight_bytes(layer, channels) + vector_bytes(layer, channels)


def core_share(extent: Extents, layer: Layer, cores: int) -> Extents:
    """What a core has of a region that is dealt by images, else by rows, else by columns."""
    for d in ORDER[:3]:
        if d not in layer.axes_all and extent[d] > 1:
            return replaced(extent, d, ceil_div(extent[d], cores))
    return extent


def halved(extent: Extents, layer: Layer, times: int) -> Extents:
    """A sub-map halved so often, along N to one image, then along H, then along W."""
    least = [extent[d] if d == 1 or d in layer.axes_all else min(extent[d], layer.align[d]) for d in range(4)]
    return list(itertools.islice(exhaust(extent, tuple(least)), times + 1))[-1]


def piece_bytes(layer: Layer, submap: SubMap) -> tuple[int, int]:
    """NRAM bytes of a sub-map's input and output."""
    made = (1 if d in layer.kind.reduced else e for d, e in enumerate(submap.extent))
    return piece_input_bytes(layer, submap), math.prod(made) * layer.out_bytes


def piece_input_bytes(layer: Layer, submap: SubMap) -> int:
    """NRAM bytes of all that a sub-map reads but weights."""
    total = 0
    for operand in layer.maps:
        if layer.kind.cuts_operand:
            extents = list(submap.extent)
        else:
            extents = [axis.extent(e) for axis, e in zip(operand.access, submap.extent, strict=True)]
        is_product = isinstance(layer.kind, ConvLayer) and layer.kind.groups == 1
        if is_product and operand.index == 0 and submap.channels:
            extents[1] = submap.channels
        total += math.prod(extents) * operand.element_bytes
    return total
