"""The engines, ports and memories of a machine, numbered.

Engines are numbered cluster by cluster: `gdma cdma bus fetch`, then for each core `iodma mvdma matrix vector`; of
two requests for a port in the same cycle the lower number is served first.

Ports: one of each chip's DRAM, for both directions; of every SRAM, NRAM and WRAM one to read and one to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
        return tuple(self._engines())

    def _engines(self) -> Iterable[EngineName]:
        for cluster in range(self.clusters):
            for kind in CLUSTER_KINDS:
                yield EngineName(kind, cluster)
            for core in range(self.cores):
                for kind in CORE_KINDS:
                    yield EngineName(kind, cluster, core)

    @property
    def chips(self) -> int:
        return -(-self.clusters // self.target.chip.clusters)

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
        match kind:
            case "gdma" | "fetch":
                return cluster.gdma
            case "cdma":
                assert cluster.cdma is not None, f"{self.target.name} has no CDMA"
                return cluster.cdma
            case "bus":
                return cluster.bus
            case "iodma":
                return cluster.core.iodma
            case "mvdma":
                return cluster.core.mvdma
        raise AssertionError(f"{kind} moves nothing")
