"""Units written down by hand: which layers, how they are cut, what stays in SRAM."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stops import aimed
from xdsl.context import Context

from frustum.dialects import graph
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.tile import MapAttr
from frustum.dialects.unit import Partition, PartitionAttr
from frustum.passes.analysis.layer import is_move, is_work
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.project import unit_layers
from frustum.passes.analysis.roll import bands_of
from frustum.passes.plan.cost import CutUnit
from frustum.passes.plan.layer_work import work_of
from frustum.passes.plan.pieces import plan_layer
from frustum.passes.plan.unit_ops import wrap
from frustum.passes.tile.lower_units import LowerUnits
from frustum.runtime.reference.graph import network_of


@dataclass(frozen=True)
class Group:
    """Layers of one unit by their numbers in the network, its partition, and the layers whose maps stay in SRAM."""

    layers: tuple[int, ...]
    partition: Partition
    keeps: tuple[int, ...] = field(default=())


def layers_in(module):
    """The layers of a network in order, weights and reshapes left out."""
    return [op for op in network_of(module).body.block.ops if is_work(op)]


def exchanged(unit_out, rows, columns=None, clusters=0, depth=2):
    """A partition that rolls `rows` rows of an output at a time."""
    _, c, _, w = unit_out
    return Partition((1, c, rows, columns or w), clusters, depth, "exchange")


def as_units(module, target_name, groups):
    """A copy of the module at stop `tiled`: every group a unit with maps on its layers."""
    module = aimed(module, target_name)
    layers = layers_in(module)
    for number, group in enumerate(groups):
        keeps = [layers[i].results[0] for i in group.keeps]
        own = {layers[i] for i in group.layers}
        if is_move(own) and not all(type(op) is graph.ConcatOp for op in own):
            keeps = []
        keeps = [v for v in keeps if any(use.operation not in own for use in v.uses)]
        unit = wrap([layers[i] for i in group.layers], f"u{number}", "by hand", keeps)
        if not is_move(unit.body.block.ops):
            unit.properties["partition"] = PartitionAttr(group.partition)
    for op in list(module.walk()):
        if op.name == "funit.unit" and op.partition is not None:
            map_layers(op, target_of(module))
    for weight in [op for op in network_of(module).body.block.ops if isinstance(op, graph.WeightOp)]:
        if not weight.result.uses:
            weight.detach()
            weight.erase()
    module.verify()
    return module


def map_layers(unit, target):
    """Give every layer of a unit the piece that the search finds for a step."""
    layers, partition = unit_layers(unit), unit.partition.data
    if partition.bands:
        first = bands_of(layers, partition)[0]
        layers, partition = first.layers, first.partition
    cut = CutUnit.of(layers, partition, target)
    free = MAX_LOOPS - sum(count > 1 for count in cut.projection.counts)
    for j, (op, layer) in enumerate(zip(layers.ops, layers.layers, strict=True)):
        if layer.kind.is_place:
            continue
        work = work_of(layer, cut.worked_region(j).extent)
        if partition.borders == "raster":
            work = replace(work, whole=(*work.whole, 2))
        plan = plan_layer(work, target, "stream" if layer.kind.is_batched else "unit", free)
        assert plan is not None, f"no piece of {op.name} fits"
        op.attributes["frustum.map"] = MapAttr(plan.map)


def placed(module):
    """The module with its units as loops over tiles."""
    LowerUnits().apply(Context(), module)
    module.verify()
    return module


__all__ = ["Group", "as_units", "exchanged", "layers_in", "map_layers", "placed"]
