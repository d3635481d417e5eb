"""Device nodes between nodes of the host, and which of these islands are worth moving their data for.

The host's two figures stand for one core of a processor that fits beside an accelerator: 8 lanes of f32 at 1.25 GHz,
and memory of 8 GB/s.  (onnxruntime on one thread of the server in benchmarks/README.md does 40 to 100 GMAC/s: such a
host would take everything from the small targets.)  The device's figures come from the target, and its time is a
roofline: doubts are decided for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from frustum.dialects.target import Target
from frustum.passes.onnx.dry_run import DryRun, ImportStep
from frustum.passes.onnx.opset import Unified
from frustum.passes.onnx.walk import free_names

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


def settled(run: DryRun, unified: Unified, target: Target) -> list[ImportStep]:
    """The steps, with islands that are not worth their moves on the host."""
    if not any(step.kind == "host" for step in run.steps):
        return run.steps
    steps = list(run.steps)
    for island in _islands(run, {output.name for output in unified.graph.output}):
        why = host_is_cheaper(island, target)
        for index in island.members if why else ():
            steps[index] = replace(steps[index], kind="host", reason=why)
    return steps


def _islands(run: DryRun, outputs: set[str]) -> list[Island]:
    """Device nodes joined by values between them, with the bytes that cross their shores."""
    maker = {name: index for index, step in enumerate(run.steps) for name in step.node.output if name}
    root = list(range(len(run.steps)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    kinds = [step.kind for step in run.steps]
    readers: dict[str, list[int]] = {}
    for index, step in enumerate(run.steps):
        for name in free_names(step.node):
            readers.setdefault(name, []).append(index)
            before = maker.get(name)
            if before is not None and kinds[index] == kinds[before] == "device":
                root[find(index)] = find(before)
    members: dict[int, list[int]] = {}
    for index, kind in enumerate(kinds):
        if kind == "device":
            members.setdefault(find(index), []).append(index)
    return [_island(run, found, readers, outputs) for found in members.values()]


def _island(run: DryRun, members: list[int], readers: Mapping[str, Sequence[int]], outputs: set[str]) -> Island:
    inside, made = set(members), {name for i in members for name in run.steps[i].node.output if name}
    read = dict.fromkeys(name for index in members for name in free_names(run.steps[index].node))
    crossing = [name for name in read if name not in made and name not in run.fixed]
    crossing += [n for n in made if n in outputs or not inside.issuperset(readers.get(n, ()))]
    return Island(
        tuple(members),
        sum(run.size_bytes(name) for name in crossing),
        sum(run.size_bytes(name) for name in made),
        sum(run.size_bytes(name) for name in read if name in run.fixed),
        sum(run.steps[index].macs for index in members),
    )
