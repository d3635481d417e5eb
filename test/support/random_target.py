"""Random machines: a shipped target with other numbers of everything, each from a plausible range."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from frustum.backend.targets import load
from frustum.dialects.target import CyclesByWidth, EnergyByWidth, Target

KIB = 1024
SHIPPED = ("default", "edge", "units4", "line64", "manycore", "df")


def random_target(random: Random) -> Target:
    """Up to 5 clusters of up to 3 cores; odd rates, latencies, chunks and prices; memories that small networks fit."""
    target = load(random.choice(SHIPPED))

    def memory(one, capacity, most_run=64):
        return replace(
            one, capacity_bytes=capacity, port_bytes_per_cycle=random.randint(3, 200),
            latency_cycles=random.choice((0, 1, random.randint(2, 200))), energy_pj_per_byte=random.randint(0, 900) / 8,
            minimum_run_bytes=random.randint(1, most_run),
        )  # fmt: skip

    def engine(one):
        return replace(one, bytes_per_cycle=random.randint(2, 130))

    def widths(kind, values):
        return kind(*sorted(values))

    core = target.core
    matrix = replace(
        core.matrix, channels=random.randint(1, 40),
        line_buffer=replace(core.matrix.line_buffer, lines=random.randint(1, 70), block_bytes=random.randint(8, 80)),
        cycles_per_step=widths(CyclesByWidth, (random.randint(1, 9) for _ in range(3))),
        energy_pj_per_mac=widths(EnergyByWidth, (random.randint(0, 40) / 8 for _ in range(3))),
    )  # fmt: skip
    passes = {name: random.randint(1, 6) for name in vars(core.vector.passes)}
    vector = replace(
        core.vector, lanes=random.randint(1, 70), passes=replace(core.vector.passes, **passes),
        cycles_per_element=widths(CyclesByWidth, (random.randint(1, 4) for _ in range(3))),
    )  # fmt: skip
    core = replace(
        core, matrix=matrix, vector=vector, iodma=engine(core.iodma), mvdma=engine(core.mvdma),
        nram=memory(core.nram, 64 * KIB), wram=memory(core.wram, 64 * KIB),
    )  # fmt: skip
    clusters = random.choice((1, 1, 2, 3, 5))
    cluster = replace(
        target.cluster, cores=random.randint(1, 3), core=core, sram=memory(target.cluster.sram, 256 * KIB),
        gdma=engine(target.cluster.gdma), bus=engine(target.cluster.bus), event_slots=256,
        cdma=engine(target.cluster.gdma) if clusters > 1 else None, instruction_memory_bytes=64 * KIB,
    )  # fmt: skip
    chip = replace(target.chip, clusters=clusters, cluster=cluster, dram=memory(target.chip.dram, 1 << 30, 200))
    transfers = replace(target.transfers, chunk_bytes=random.choice((100, 256, 4096)), in_flight=random.randint(1, 6))
    return replace(target, name="random", chips=1, chip_link_bytes_per_cycle=None, chip=chip, transfers=transfers)
