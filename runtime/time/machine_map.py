# Tests: test/runtime/time/test_timing_model.py
"""The engines, ports and memories of a machine, numbered.

Engines are numbered cluster by cluster: `gdma cdma bus fetch`, then for each core `iodma mvdma matrix vector`; of
two requests for a port in the same cycle the lower number is served first.

Ports: one of each chip's DRAM, for both directions; of every SRAM, NRAM and WRAM one to read and one to write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Engine as EngineKind
from frustum.dialects.target import Engine, Memory, Target
from frustum.runtime.device.expand import DRAM, SRAM, WRAM
from frustum.runtime.device.form import Ints

CLUSTER_KINDS: tuple[EngineKind, ...] = ("gdma", "cdma", "bus", "fetch")
CORE_KINDS: tuple[EngineKind, ...] = ("iodma", "mvdma", "matrix", "vector")


class EngineName(NamedTuple):
    """Which engine; `core` counts inside the cluster and is absent for the engines of a cluster."""

    kind: EngineKind
    cluster: int
    core: int | None = None

    def __str__(self) -> str:
        core = "" if self.core is None else f".core{self.core}"
        return f"cluster{self.cluster}{core}.{self.kind}"

    @property
    def is_dma(self) -> bool:
        return self.kind not in ("matrix", "vector")


@dataclass(frozen=True)
class MachineMap:
    """Numbers of engines and ports for `clusters` x `cores` cores of the target."""

    target: Target
    clusters: int
    cores: int

    @property
    def engines(self) -> tuple[EngineName, ...]:
        found: list[EngineName] = []
        for cluster in range(self.clusters):
            found += [EngineName(kind, cluster) for kind in CLUSTER_KINDS]
            found += [EngineName(kind, cluster, core) for core in range(self.cores) for kind in CORE_KINDS]
        return tuple(found)

    @property
    def chips(self) -> int:
        return ceil_div(self.clusters, self.target.chip.clusters)

    def chip_of(self, cluster: Ints) -> Ints:
        return cluster // self.target.chip.clusters

    def port(self, kind: int, place: Ints, cluster: Ints, *, write: bool) -> Ints:
        """The port of memory number `place` of a kind; which DRAM it is says the cluster that asks."""
        if kind == DRAM:
            return self.chip_of(np.asarray(cluster))
        place = np.asarray(place)
        if kind == SRAM:
            return self.chips + 2 * place + write
        return self.chips + 2 * self.clusters + 4 * place + 2 * (kind == WRAM) + write

    @property
    def ports(self) -> int:
        return self.chips + 2 * self.clusters + 4 * self.clusters * self.cores

    def memory(self, kind: int) -> Memory:
        chip = self.target.chip
        return (chip.dram, chip.cluster.sram, chip.cluster.core.nram, chip.cluster.core.wram)[kind]

    def mover(self, kind: EngineKind) -> Engine:
        """What the DMA engines and the bus can move by themselves."""
        cluster = self.target.cluster
        movers = {
            "gdma": cluster.gdma, "fetch": cluster.gdma, "cdma": cluster.cdma, "bus": cluster.bus,
            "iodma": cluster.core.iodma, "mvdma": cluster.core.mvdma,
        }  # fmt: skip
        found = movers[kind]
        assert found is not None, f"{self.target.name} has no {kind.upper()}"
        return found
