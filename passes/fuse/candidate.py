"""The numbers of a set of layers that may become a unit: what the rules compare.

Symbols of tfu.md: n `cores`, S `sram_bytes`, W `wram_bytes`, NR `nram_bytes`, IN1 `in_bytes`, IN2 `buffer_bytes`,
W_j `weight_bytes`, W_i `sub_weight_bytes`, SubIN_i `sub_in_bytes`, SubOUT_i `sub_out_bytes`,
size_TFU `loaded_bytes`, size_ori `once_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from xdsl.ir import SSAValue

from frustum.dialects import graph as g
from frustum.dialects.target import Target
from frustum.dialects.tile import SubMap
from frustum.passes.analysis.layer import CONCAT, Layer
from frustum.passes.analysis.project import Projection, UnitLayers, project, tile_counts
from frustum.passes.fuse.operators import Operator, operators_of
from frustum.passes.tile.plan_unit import (
    Budget,
    UnitPlan,
    bias_bytes,
    map_bytes,
    plan_unit,
    tile_bytes,
    weight_bytes,
)

__all__ = ["Candidate", "Limits", "Operator"]


@dataclass(frozen=True)
class Limits:
    """What remedies have made smaller: images in a unit map, its bytes of SRAM; over how many cores Cout is split."""

    maps: int
    sram_bytes: int
    cout_parts: int = 1


@dataclass(frozen=True)
class Candidate:
    """Layers that may become a unit, on a target, within limits."""

    layers: UnitLayers
    target: Target
    limits: Limits
    outputs: int = 1
    """Results that are read outside."""
    blocks: frozenset[int] = frozenset()
    """Layers that came in as part of a whole block."""
    weight_users: Mapping[str, int] = field(default_factory=dict)
    """How many layers of the network use each weight."""

    @cached_property
    def plan(self) -> UnitPlan | None:
        """The unit map and the sub-maps; None where none fits."""
        return plan_unit(self.layers, self.target, Budget(self.limits.sram_bytes, maps=self.limits.maps))

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
        return is_small(self.layers, self.planned, self.target)

    @cached_property
    def maps(self) -> int:
        """Images of the batch in a unit map."""
        return self.planned.partition.tile[0]

    @cached_property
    def in_bytes(self) -> int:
        """The unit map of every input, one copy."""
        return sum(
            tile_bytes(self.projection.operands[j][k], layer.maps[k].element_bytes)
            for j, layer in enumerate(self.layers.layers)
            for k, source in enumerate(self.layers.sources[j])
            if source.layer is None
        )

    @cached_property
    def out_bytes(self) -> int:
        """The unit map of the output, one copy."""
        return tile_bytes(self.projection.outputs[-1], self.layers.out.out_bytes)

    @cached_property
    def buffer_bytes(self) -> int:
        """All else that maps take of SRAM: second copies, and the maps between the layers."""
        maps = map_bytes(self.layers, self.planned.partition, self.projection)
        return maps - self.in_bytes - self.out_bytes

    @cached_property
    def weight_bytes(self) -> int:
        """Weights and biases that a cluster needs for its unit map."""
        return sum(
            weight_bytes(layer, region.extent[1]) + bias_bytes(layer, region.extent[1])
            for layer, region in zip(self.layers.layers, self.projection.outputs, strict=True)
        )

    @property
    def sub_weight_bytes(self) -> int:
        """Weights that a core needs for its sub-maps: all, or its share where Cout is split over the cores."""
        return -(-self.weight_bytes // self.limits.cout_parts)

    # --- the sub-maps --------------------------------------------------------------------------------------

    @cached_property
    def sub_in_bytes(self) -> int:
        """The largest input of a sub-map."""
        return max((read for read, _ in self._pieces()), default=0)

    @cached_property
    def sub_out_bytes(self) -> int:
        """The largest output of a sub-map."""
        return max((written for _, written in self._pieces()), default=0)

    @cached_property
    def sub_map_bytes(self) -> int:
        """The largest sub-map, input and output."""
        return max((read + written for read, written in self._pieces()), default=0)

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Bytes of input and output of each layer's sub-map."""
        for layer, submap in zip(self.layers.layers, self.planned.maps, strict=True):
            if layer.kind != CONCAT:
                yield piece_input_bytes(layer, submap), piece_output_bytes(layer, submap)

    # --- DRAM ----------------------------------------------------------------------------------------------

    @cached_property
    def loaded_bytes(self) -> int:
        """From DRAM to SRAM, as often as it is loaded."""
        out = self.layers.out
        return self.planned.dram_bytes - math.prod(out.out_dims) * out.out_bytes

    @cached_property
    def once_bytes(self) -> int:
        """From DRAM to SRAM if every input and every weight were loaded once."""
        inputs: dict[SSAValue, int] = {}  # two layers may see a different part of the same map
        for layer, sources in zip(self.layers.layers, self.layers.sources, strict=True):
            for operand, source in zip(layer.maps, sources, strict=True):
                if source.layer is None:
                    size = math.prod(operand.dims) * operand.element_bytes
                    inputs[source.value] = max(size, inputs.get(source.value, 0))
        weights = sum(
            weight_bytes(layer, layer.out_dims[1]) + bias_bytes(layer, layer.out_dims[1])
            for layer in self.layers.layers
        )
        return sum(inputs.values()) + weights

    # --- the layers ----------------------------------------------------------------------------------------

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        return operators_of(self.layers)

    @cached_property
    def computed_weights(self) -> int:
        """Convolutions whose weights are no constant of the network."""
        return sum(
            isinstance(op, g.ConvOp) and not isinstance(op.w.owner, g.WeightOp) for op in self.layers.ops
        )

    @cached_property
    def shared_weights(self) -> int:
        """Convolutions whose weights are used by another layer of the network too."""
        return sum(
            isinstance(op, g.ConvOp)
            and isinstance(op.w.owner, g.WeightOp)
            and self.weight_users.get(op.w.owner.key.data, 1) > 1
            for op in self.layers.ops
        )

    @cached_property
    def borders(self) -> tuple[int, int]:
        """How far kernels reach beyond their strides, summed: rows, columns.  Layers of whole blocks do not count."""
        rows = columns = 0
        for j, (op, layer) in enumerate(zip(self.layers.ops, self.layers.layers, strict=True)):
            if isinstance(op, g.ConvOp | g.PoolOp) and j not in self.blocks:
                kernel, strides, dilations = (layer.params[key] for key in ("kernel", "strides", "dilations"))
                assert (
                    isinstance(kernel, tuple) and isinstance(strides, tuple) and isinstance(dilations, tuple)
                )
                reach = [(k - 1) * d + 1 - s for k, d, s in zip(kernel, dilations, strides, strict=True)]
                rows, columns = rows + int(reach[0]), columns + int(reach[1])
        return rows, columns

    # --- smaller -------------------------------------------------------------------------------------------

    def split_by_cout(self) -> Candidate | None:
        """With Cout split over the cores; None where it is, or where there is one core."""
        if self.limits.cout_parts >= self.cores:
            return None
        return replace(self, limits=replace(self.limits, cout_parts=self.cores))

    def with_fewer_maps(self) -> Candidate | None:
        """With half the images in a unit map; None where there is only one."""
        if self.maps < 2:
            return None
        return replace(self, limits=replace(self.limits, maps=self.maps // 2))

    def split_finer(self) -> Candidate | None:
        """With a smaller unit map; None where no smaller one fits."""
        smaller = replace(self, limits=replace(self.limits, sram_bytes=self.in_bytes + self.out_bytes - 1))
        return smaller if smaller.plan is not None else None


def is_small(layers: UnitLayers, plan: UnitPlan, target: Target) -> bool:
    """A cluster takes its part of an image in one pass."""
    return math.prod(tile_counts(layers.out.out_dims, plan.partition, target.chip.clusters)[1:]) == 1


def piece_output_bytes(layer: Layer, submap: SubMap) -> int:
    """NRAM bytes of a sub-map's output."""
    axes = layer.params.get("axes", ()) if layer.kind == "reduce" else ()
    assert isinstance(axes, tuple)
    return math.prod(1 if d in axes else e for d, e in enumerate(submap.extent)) * layer.out_bytes


def piece_input_bytes(layer: Layer, submap: SubMap) -> int:
    """NRAM bytes of all that a sub-map reads but weights."""
    total = 0
    for operand in layer.maps:
        if layer.kind == "reduce":
            extents = list(submap.extent)
        else:
            extents = [axis.extent(e) for axis, e in zip(operand.access, submap.extent, strict=True)]
        if layer.is_matrix and operand.index == 0 and submap.channels and layer.params["groups"] == 1:
            extents[1] = submap.channels
        total += math.prod(extents) * operand.element_bytes
    return total
