"""DRAM bytes of networks whose units are cut by one of the searches for unit maps: modelled, and counted."""

from __future__ import annotations

from dataclasses import replace

from stops import aimed, executable, target
from xdsl.context import Context

from frustum.backend.pipeline import Choices, Edit, Run
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import is_move
from frustum.passes.analysis.unit_layers import unit_layers
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.plan.unit import Budget, plan_unit
from frustum.passes.tile.partition import PartitionUnits
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

NEVER = 1 << 60
"""Bytes of a search with which a unit does not fit."""
AS_SEARCHED = Choices(edits=(Edit("without", "frustum-tile-hand-inputs"),))
"""Clusters load what the search has counted: borders handed on later mend the plans of some searches, not of all."""


def with_sram(name, kib):
    whole = target(name)
    sram = replace(whole.cluster.sram, capacity_bytes=kib * 1024)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram)))


def fused(module, where, policy="none"):
    """A copy of the module for a target, every layer in a unit."""
    module = aimed(module, where)
    Run().advance(module, ["typed"], Choices())
    FuseLayers(policy=policy).apply(Context(), module)
    return module


def modelled(module, where, search):
    """Bytes of every unit by its name."""
    found = {}
    budget = Budget(where.cluster.sram.capacity_bytes, search=search)
    for unit in fused(module, where).walk():
        if isinstance(unit, UnitOp) and not is_move(unit.body.block.ops):
            plan = plan_unit(unit_layers(unit), where, budget)
            found[unit.unit_name.data] = NEVER if plan is None else plan.dram_bytes
    return found


def counted(module, where, search):
    """Bytes that the machine's instructions move, without program and tables."""
    module = fused(module, where)
    try:
        PartitionUnits(search=search).apply(Context(), module)
        Run().advance(module, ["tiled", "placed", "lowered", "fixed"], AS_SEARCHED)
    except DoesNotFit:
        return NEVER
    made = executable(module)
    machine = Machine(made)
    bytes_ = count(machine.expanded, machine.target, made.code.page_bytes)
    return bytes_.dram_read_bytes + bytes_.dram_write_bytes - bytes_.dram_bytes_by_class["other"]
