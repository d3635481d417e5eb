"""Whose counters a dependence needs: the units of a producer that touch the same bytes as one unit of the consumer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from frustum.backend.waits.loop_tree import Instruction
from frustum.dialects.isa.program import Memory, Scope


class Reach(IntEnum):
    """Where the bytes lie that one unit touches."""

    CORE = 0
    CLUSTER = 1
    CHIP = 2


@dataclass(frozen=True, slots=True)
class Units:
    """How many clusters a chip has, and cores a cluster."""

    clusters: int
    cores: int


def reach(memory: Memory, everywhere: bool) -> Reach:
    """What an access touches; `everywhere` as in `Access`."""
    if memory == "dram":
        return Reach.CHIP
    if memory == "sram":
        return Reach.CHIP if everywhere else Reach.CLUSTER
    return Reach.CLUSTER if everywhere else Reach.CORE


def scope_of(producer: Instruction, consumer: Instruction, shared: Reach, units: Units) -> Scope | None:
    """The scope of the consumer's wait; None where the order of one engine is enough.

    `shared` is the wider reach of the two accesses.  The signals of a multicast arrive at every cluster.
    """
    if producer.queue == consumer.queue and _one_unit(producer, shared, units):
        return None
    if producer.on_core:
        return _scope_of_cores(consumer, shared, units)
    if shared is Reach.CHIP and units.clusters > 1 and not producer.multicast:
        return "all_clusters"
    return "cluster" if consumer.on_core else "own"


def covers(wide: Scope, narrow: Scope) -> bool:
    """Whether waiting with scope `wide` includes waiting with scope `narrow`, on the same counter."""
    return wide == narrow or wide in ("all_cores", "all_clusters") or (wide, narrow) == ("cores", "own")


def _one_unit(instruction: Instruction, shared: Reach, units: Units) -> bool:
    if instruction.multicast:
        return True
    one_cluster = shared < Reach.CHIP or units.clusters == 1
    one_core = not instruction.on_core or shared is Reach.CORE or units.cores == 1
    return one_cluster and one_core


def _scope_of_cores(consumer: Instruction, shared: Reach, units: Units) -> Scope:
    if shared is Reach.CHIP and units.clusters > 1:
        return "all_cores"
    if not consumer.on_core:
        return "cores"
    if shared is Reach.CORE or units.cores == 1:
        return "own"
    return "cores"
