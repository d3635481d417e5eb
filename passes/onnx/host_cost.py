"""Whether an island of device nodes is worth moving its data for.

The host's two figures stand for one core of a processor that fits beside an accelerator: 8 lanes of f32 at 1.25 GHz,
and memory of 8 GB/s.  (onnxruntime on one thread of the server in benchmarks/README.md does 40 to 100 GMAC/s: such a
host would take everything from the small targets.)  The device's figures come from the target, and its time is a
roofline: doubts are decided for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from frustum.dialects.target import Target

__all__ = ["Island", "host_is_cheaper"]

HOST_MACS_PER_SECOND = 10e9
HOST_BYTES_PER_SECOND = 8e9
F32_BYTES = 4
START_LATENCIES = 3
"""What a program takes before and after its work, in latencies of the DRAM: its code, its first load, its last store.
(Measured: programs of one layer on 8 elements take 3.3 to 4 latencies on all shipped targets.)"""


@dataclass(frozen=True)
class Island:
    """Device nodes between host nodes: `members` are their places in the model's order."""

    members: tuple[int, ...]
    crossing_bytes: int
    """Of values that come from the host or go there, the model's inputs and outputs included."""
    made_bytes: int
    """Of all its nodes' results."""
    weight_bytes: int
    macs: int


def host_is_cheaper(island: Island, target: Target) -> str:
    """Why the island should run on the host; nothing where it should not."""
    device = device_seconds(island, target)
    host = host_seconds(island)
    if host >= device:
        return ""
    return (
        f"on the device it would move {island.crossing_bytes:,} bytes and take {device * 1e6:.3g} us,"
        f" on the host {host * 1e6:.3g} us"
    )


def device_seconds(island: Island, target: Target) -> float:
    """Over the host link and through the DRAM, both ways; the start; the slower of arithmetic and weights."""
    chip = target.chip
    cores = chip.clusters * chip.cluster.cores
    port = chip.dram.port_bytes_per_cycle
    moves = island.crossing_bytes * (1 / target.host_link_bytes_per_cycle + 1 / port)
    arithmetic = island.macs / (cores * chip.cluster.core.matrix.macs_per_cycle(F32_BYTES))
    start = START_LATENCIES * chip.dram.latency_cycles
    return (start + moves + max(arithmetic, island.weight_bytes / port)) / target.clock_hz


def host_seconds(island: Island) -> float:
    """Each result is written and read once."""
    return island.macs / HOST_MACS_PER_SECOND + 2 * island.made_bytes / HOST_BYTES_PER_SECOND
