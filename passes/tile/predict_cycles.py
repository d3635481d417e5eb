"""What each unit takes by itself and adds to the run, as the planner's model has it, noted on the lowered units.

What clusters send each other is known exactly once units are lowered; all else is what their planners have noted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, i64

from frustum.dialects import tile as t
from frustum.dialects.extents import ceil_div
from frustum.dialects.graph import NetworkOp, WeightOp
from frustum.dialects.isa.program import ELEMENT_BYTES
from frustum.dialects.module import COST_PARTS, OWN_CYCLES, PREDICTED_CYCLES, numbers_of
from frustum.dialects.target import Target
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.module import value_bytes
from frustum.passes.plan.cost import CostParts
from frustum.passes.plan.makespan import UnitWork, added_cycles, own_cycles, port_cycles, work_of_parts
from frustum.passes.plan.model import LAST_SENDS


def predict(network: NetworkOp, target: Target) -> dict[str, UnitWork]:
    """Note by how many cycles each unit makes the run longer, as the model has it; nowhere, if some unit has been cut
    by hand.  Gives what is known of units, by name."""
    units = [op for op in network.body.block.ops if isinstance(op, UnitOp)]
    works = {unit.unit_name.data: work for unit in units if (work := work_in(unit, target)) is not None}
    if len(works) == len(units):
        for unit, cycles in zip(units, added_cycles(list(works.values()), target), strict=True):
            unit.attributes[PREDICTED_CYCLES] = IntegerAttr(cycles, i64)
    return works


def work_in(unit: UnitOp, target: Target) -> UnitWork | None:
    """What a unit takes by itself: as its planner has noted it, of a move what it reads and writes."""
    if noted := numbers_of(unit, COST_PARTS):
        return work_of_parts(CostParts(*noted), target)
    ops = [op for op in unit.body.block.ops if not isinstance(op, WeightOp)][:-1]
    if not is_move(ops):
        return None
    read, made = (sum(map(value_bytes, values)) for values in (unit.operands, unit.results))
    return UnitWork(0, 0, 0, port_cycles(read, target), port_cycles(made, target))


def predict_alone(network: NetworkOp, works: Mapping[str, UnitWork], target: Target) -> None:
    """Note on the lowered units what each takes by itself; bands of columns share what is known of their unit."""
    units = [op for op in network.body.block.ops if isinstance(op, t.UnitOp)]
    names = [unit.unit_name.data for unit in units]
    stems = [name if name in works else name.rpartition(".")[0] for name in names]
    for unit, stem in zip(units, stems, strict=True):
        if stem in works:
            own = own_cycles(works[stem].with_sends(sent_cycles(unit, target)), target)
            unit.attributes[OWN_CYCLES] = IntegerAttr(ceil_div(own, stems.count(stem)), i64)


def sent_cycles(unit: t.UnitOp, target: Target) -> int:
    """Cycles in which clusters send each other what they have made, in all passes: of whoever has most to do."""
    sends = [op for op in unit.body.block.ops if isinstance(op, t.SendOp)]
    if not sends or target.cluster.cdma is None:
        return 0
    return sum(cycles_of_pass(sends, indices, target) for indices in itertools.product(*map(range, unit.tile_counts)))


def cycles_of_pass(sends: Sequence[t.SendOp], indices: Sequence[int], target: Target) -> int:
    """Of one pass, from the last result in SRAM to the last one in the other cluster's."""
    clusters, sram, cdma = target.chip.clusters, target.cluster.sram, target.cluster.cdma
    assert cdma is not None
    sent, arrived = [0.0] * clusters, [0.0] * clusters
    for op in sends:
        shown = min(1.0, LAST_SENDS / pieces_of(op, target.cluster.cores))
        for cluster in range(clusters):
            spans = (span.clip(indices, cluster) for span in op.region.data.spans)
            extent = [max(0, stop - start) for start, stop in spans]
            tile = t.tile_of(op.tile)
            size = math.prod(extent) * ELEMENT_BYTES[tile.element]
            if size:
                run = run_elements(extent, tile) * ELEMENT_BYTES[tile.element]
                port = ceil_div(size * max(run, sram.minimum_run_bytes), run * sram.port_bytes_per_cycle)
                sent[cluster] += shown * max(port, ceil_div(size, cdma.bytes_per_cycle))
                arrived[cluster + op.by.value.data] += shown * port
    busiest = math.ceil(max(*sent, *arrived))
    return busiest + 2 * sram.latency_cycles * (busiest > 0)


def pieces_of(op: t.SendOp, cores: int) -> int:
    """In how many pieces, of the core with the most, what is sent is made: each is sent as it is there."""
    maker = op.tile.owner
    if not isinstance(maker, t.ComputeOp):
        return 1
    submap, pieces = maker.map.data, 1
    for d, (size, piece) in enumerate(zip(op.region.data.extent, submap.extent, strict=True)):
        count = ceil_div(size, piece)
        pieces *= ceil_div(count, cores) if d == submap.cores else count
    return pieces


def run_elements(extent: Sequence[int], tile: t.Tile) -> int:
    """Elements of a box that lie one behind the other in a tile."""
    run = 1
    for d in reversed(tile.order):
        run *= extent[d]
        if extent[d] < tile.extents[d]:
            break
    return run
