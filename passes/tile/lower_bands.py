"""A unit in bands of columns as loops over tiles for each band, one after the other, that write one map."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.graph import ConcatOp, tensor_of
from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.bands import bands_of
from frustum.passes.analysis.layouts import LAYOUT
from frustum.passes.analysis.project import Unprojectable, places_of, project, unit_layers
from frustum.passes.analysis.roll import COLUMNS
from frustum.passes.tile.lower_layers import Cut, Results, lower_cut


def lower_bands(unit: UnitOp, target: Target) -> ConcatOp:
    """The bands before the unit, and their results side by side, which takes its place.

    Raises `PassFailedException` for a partition that does not go with the layers, or a map that does not lie in nchw.
    """
    name = unit.unit_name.data
    if LAYOUT in unit.attributes:
        raise PassFailedException(
            f"unit {name} goes in bands of columns: its map lies in nchw, found {LAYOUT}"
        )
    block, parts = unit.parent, []
    assert block is not None
    for number, cut in enumerate(band_cuts(unit, target)):
        kind = TensorType(tensor_of(unit.results[0]).element_type, cut.layers.out.out_dims)
        results = Results([kind], [len(cut.layers.layers) - 1], {}, {0: 0}, {}, {})
        lowered = lower_cut(unit, cut, results, target)
        lowered.properties["unit_name"] = StringAttr(f"{name}.{number}")
        lowered.location = unit.location
        block.insert_op_before(lowered, unit)
        parts.append(lowered)
    return ConcatOp([part.results[0] for part in parts], COLUMNS)


def band_cuts(unit: UnitOp, target: Target) -> list[Cut]:
    """How each band is cut."""
    assert unit.partition is not None
    found = []
    try:
        for band in bands_of(unit_layers(unit), unit.partition.data):
            projection = project(band.layers, band.partition, target.chip.clusters)
            places = places_of(band.layers, projection, band.partition.depth)
            found.append(Cut(band.layers, band.partition, projection, places, band.own_elements))
    except Unprojectable as reason:
        raise PassFailedException(
            f"unit {unit.unit_name.data} cannot be cut as {unit.partition}: {reason}"
        ) from reason
    return found


__all__ = ["lower_bands"]
