"""Device nodes between nodes of the host, and which of these islands are worth their moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from frustum.dialects.target import Target
from frustum.passes.onnx.dry_run import DryRun, Step
from frustum.passes.onnx.host_cost import Island, host_is_cheaper
from frustum.passes.onnx.opset import Unified
from frustum.passes.onnx.walk import free_names

__all__ = ["settled"]


def settled(run: DryRun, unified: Unified, target: Target) -> list[Step]:
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
