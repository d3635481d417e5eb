"""What a search over plans found before: plans and curves in the cache (`runtime/model/cache.py`), under the checksum
of the network's structure, the machine, what was asked, and the code of the search.  Of the machine a curve of bytes
depends on the SRAM and the number of linked clusters alone.

No name is in the key. Plans are kept with numbered names, so that they are found again for an equal network of other
names. What is read is sealed, parsed, and checked against the network; what it moves and holds is not counted again,
which takes longer than finding it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.structure import Structure, structure_of
from frustum.dialects.plan.check import PlanError, check_plan
from frustum.dialects.plan.clusters import check_clusters, linked_clusters
from frustum.dialects.plan.occupancy import Counted
from frustum.dialects.plan.parse import read_plan
from frustum.dialects.plan.renaming import Names, renamed
from frustum.dialects.plan.text import plan_text
from frustum.dialects.plan.tree import AGAIN, Copy, Node, Resident, Sequence, copies_in, nodes_in
from frustum.dialects.target import Target, digest
from frustum.dialects.target.fit import DoesNotFit
from frustum.runtime.failures import UsageError
from frustum.runtime.model.cache import Entry, cache_folder, states_of, versions_of
from frustum.runtime.model.compiled_folder import FAILURES, MANIFEST, Json, read_sealed, sealed
from frustum.runtime.model.identity import checksum

if TYPE_CHECKING:
    from frustum.passes.plan.tree.wishes import Wishes

SCHEMA = 1
PACKAGES = ("frustum", "numpy")
ROOMS = ("dialects", "passes/plan/tree")
"""Of our own files, those that decide what is found."""
PLAN, CURVE = "plan", "curve"
NAME = "kept"
"""Of the network and the machine in the text of a plan that is kept."""
T = TypeVar("T")
TOTALS = ("read_bytes", "write_bytes", "link_bytes", "sram_bytes", "cycles", "energy_pj")


@dataclass(frozen=True)
class KeptSearch:
    """A place in the cache for what is found for a network on a machine."""

    network: AxisNetwork
    target: Target
    structure: Structure
    entry: Entry

    @staticmethod
    def of(network: AxisNetwork, target: Target, what: str, wishes: Wishes | None = None) -> KeptSearch | None:
        """`what`: PLAN or CURVE. None where the cache is off, or names do not tell the network's parts apart."""
        folder = cache_folder()
        structure = None if folder is None else structure_of(network)
        if folder is None or structure is None:
            return None
        asked = _asked(structure, wishes)
        machine: object = digest(replace(target, name=""))
        if what == CURVE and "optimise" not in asked:
            machine = target.cluster.sram.capacity_bytes, linked_clusters(target)
        parts = what, SCHEMA, machine, asked, sys.version, *versions_of(PACKAGES), *states_of(ROOMS), structure.text
        key = checksum([f"{each}\n".encode() for each in parts])
        return KeptSearch(network, target, structure, Entry(folder / key))

    def plan(self) -> tuple[Node, Counted] | None:
        """The plan that was kept, and what it was counted to move and hold; None where there is none, or it is
        damaged or no plan of the network: then it is removed."""
        return self._read(lambda data: _plan(data, self.network, self.target, self.structure))

    def keep_plan(self, tree: Node, counted: Counted) -> None:
        names = _numbered(self.structure, tree)
        self._write({
            "plan": plan_text(NAME, NAME, renamed(tree, names)).splitlines(),
            "totals": [getattr(counted, each) for each in TOTALS],
            "points": {names.layer(name): count for name, count in counted.points.items()},
            "nodes": [[each.get(id(part)) for each in _by_part(counted)] for part in _parts(tree)],
        })  # fmt: skip

    def curve(self) -> tuple[list[int], list[int]] | None:
        """Capacities and the bytes for each, likewise."""
        return self._read(_curve)

    def keep_curve(self, capacities: list[int], moved: list[int]) -> None:
        self._write({"capacities": capacities, "moved": moved})

    def _read(self, read: Callable[[Json], T]) -> T | None:
        def checked(folder: Path) -> T:
            path = folder / MANIFEST
            try:
                data = read_sealed(path)
                if data["key"] != folder.name:
                    raise UsageError(f"{path}: error: it was kept for something else")
                return read(data)
            except (PlanError, DoesNotFit, *FAILURES) as error:
                raise UsageError(f"{path}: error: damaged: {type(error).__name__} {error}") from error

        return self.entry.read(checked)

    def _write(self, found: Mapping[str, Any]) -> None:
        text = sealed({"key": self.entry.path.name, **found})
        self.entry.write(lambda folder: _write_manifest(folder, text))


def _asked(structure: Structure, wishes: Wishes | None) -> dict[str, object]:
    """What is not as where nothing is asked; of layers their numbers."""
    found = dict[str, object]()
    if wishes is not None and wishes.optimise != "bytes":
        found["optimise"] = wishes.optimise
    if wishes is not None and wishes.carry != "auto":
        found["carry"] = wishes.carry
    if wishes is not None and wishes.cuts is not None:
        found["cuts"] = sorted(structure.layers[name] for name in wishes.cuts.after), wishes.cuts.is_crossed
    return found


def _write_manifest(folder: Path, text: bytes) -> None:
    (folder / MANIFEST).write_bytes(text)


def _curve(data: Json) -> tuple[list[int], list[int]]:
    capacities, moved = ([int(each) for each in data[name]] for name in ("capacities", "moved"))
    if not capacities or len(capacities) != len(moved):
        raise ValueError("a curve has bytes for each capacity")
    return capacities, moved


def _plan(data: Json, network: AxisNetwork, target: Target, structure: Structure) -> tuple[Node, Counted]:
    numbered = read_plan("\n".join(data["plan"])).node
    names = _own(structure, numbered)
    tree = renamed(numbered, names)
    check_plan(network, tree)
    check_clusters(tree, target)
    *sizes, energy = data["totals"]
    read, written, received, held, cycles = map(int, sizes)
    counted = Counted(read, written, received, held, cycles=cycles, energy_pj=float(energy))
    counted.check_fit(f"plan @{network.name}", target.cluster.sram.capacity_bytes)
    counted.points.update((names.layer(number), int(count)) for number, count in data["points"].items())
    for part, sizes in zip(_parts(tree), data["nodes"], strict=True):
        for each, number, size in zip(_by_part(counted), (int, int, int, float), sizes, strict=True):
            if size is not None:
                each[id(part)] = number(size)
    return tree, counted


def _by_part(counted: Counted) -> tuple[dict[int, Any], ...]:
    """Whole numbers, and cycles."""
    return counted.moved, counted.received, counted.held, counted.taken


def _parts(tree: Node) -> Iterator[Node | Resident]:
    """Nodes and residents, in an order that the text keeps."""
    for node in nodes_in(tree):
        yield node
        if isinstance(node, Sequence):
            yield from sorted(node.residents, key=lambda resident: resident.first)


def _numbered(structure: Structure, tree: Node) -> Names:
    """From a network's own names to numbered ones."""
    return _names(structure.layers, structure.tensors, structure.axes, copies_in(tree))


def _own(structure: Structure, tree: Node) -> Names:
    """From numbered names to a network's own."""
    kinds = structure.layers, structure.tensors, structure.axes
    layers, tensors, axes = ({number: name for name, number in kind.items()} for kind in kinds)
    return _names(layers, tensors, axes, copies_in(tree))


def _names(
    layers: dict[str, str], tensors: dict[str, str], axes: dict[str, str], copies: Iterator[Copy]
) -> Names:  # fmt: skip
    """Copies are called as the layers that they make again."""
    again = {copy.name: f"{layers[copy.layer]}{AGAIN}" for copy in copies}
    return Names((layers | again).__getitem__, (tensors | again).__getitem__, axes.__getitem__)
