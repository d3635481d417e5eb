# Tests: test/backend/test_split_compile.py
"""Pieces of a network compiled on trial: each once, with what it costs and whether it fits.

Source: docs/techniques/output-split.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp

from frustum.backend.compile import built
from frustum.backend.cost import Cost, Count, CountRun
from frustum.backend.file.executable import Executable
from frustum.backend.pipeline import TYPED, Choices, Run
from frustum.dialects import graph as g
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import Memory as MemoryName
from frustum.dialects.module import TARGET
from frustum.dialects.target import Memory, Target, to_attribute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.analysis.module import check_dram, node_name, target_of
from frustum.passes.analysis.series import Cuts, Range
from frustum.passes.graph.split_outputs import Layers
from frustum.passes.weights import attach, store_of

Peaks: TypeAlias = dict[MemoryName, int]
ON_CHIP: tuple[MemoryName, ...] = ("sram", "nram", "wram")
SMALLEST_BYTES = 256
"""The least that a target may have of a memory."""
AtStop = Callable[[str, ModuleOp], None]


@dataclass
class Trials:
    """Pieces of one network, each compiled when somebody asks: what was tried, what it costs, what was said.

    `layers` is set by who cuts the network; all pieces are ranges of its layers.
    """

    module: ModuleOp
    choices: Choices
    names: frozenset[str]
    at_stop: Callable[[str], AtStop | None]
    tell: Callable[[str], None]
    measured: Callable[[Executable], Peaks]
    count_run: CountRun | None
    log: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    tried: dict[Range, Executable | DoesNotFit] = field(default_factory=dict)
    counts: dict[Executable, Count] = field(default_factory=dict)
    stop: str = TYPED
    """Where the network is that is cut."""
    tree: ModuleOp | None = None
    """The same at stop `typed` for plans as trees, where these may be taken of it too."""
    layers: Layers = field(init=False)

    def say(self, line: str) -> None:
        self.log.append(line)
        self.tell(line)

    def error(self, piece: Range) -> DoesNotFit | None:
        """Compile a piece, once; what did not fit."""
        if piece not in self.tried:
            try:
                self.tried[piece] = self._compiled(piece)
            except DoesNotFit as error:
                self.tried[piece] = error
        found = self.tried[piece]
        return found if isinstance(found, DoesNotFit) else None

    def known(self, piece: Range) -> Executable:
        found = self.tried[piece]
        assert isinstance(found, Executable)
        return found

    def _compiled(self, piece: Range, cap: Target | None = None) -> Executable:
        if piece == self.layers.whole:
            check_dram(self.layers.network, target_of(self.module))
            tree = self.tree if cap is None else None
            return self.fixed(self.module.clone(), self.stop, self.at_stop(""), cap, tree=tree)
        name = self._trial(piece)
        network = self.layers.extract(piece, name)
        check_dram(network, target_of(self.module))
        own = module_of(network, self.module)
        return self.fixed(own, self.stop, self.at_stop(name), cap, self._choices_of(network))

    def _choices_of(self, piece: g.NetworkOp) -> Choices:
        """The choices, of whose cuts by name a piece has those behind its own layers; and names that nobody has."""
        if self.choices.cuts is None:
            return self.choices
        own, all_names = ({*map(node_name, each.body.block.ops)} for each in (piece, self.layers.network))
        words = [word.strip() for word in self.choices.cuts.split(",")]
        return replace(self.choices, cuts=",".join(x for x in words if x in own or x not in all_names))

    def _trial(self, piece: Range) -> str:
        return f"{self.layers.network.sym_name.data}_{piece[0]}-{piece[1]}"

    def capped(self, piece: Range, most: Peaks) -> Executable | None:
        """A piece compiled as for a machine with so many bytes on chip; None where it does not fit or needs more."""
        try:
            found = self._compiled(piece, _shrunk(target_of(self.module), most))
        except DoesNotFit:
            return None
        return found if self.is_within(found, most) else None

    def is_within(self, executable: Executable, most: Peaks) -> bool:
        peaks = self.measured(executable)
        return all(peaks.get(memory, 0) <= most.get(memory, 0) for memory in ON_CHIP)

    def fixed(
        self, module: ModuleOp, stop: str, at_stop: AtStop | None, cap: Target | None = None,
        choices: Choices | None = None, tree: ModuleOp | None = None,
    ) -> Executable:  # fmt: skip
        own = module.attributes[TARGET]
        if cap is not None:
            module.attributes[TARGET] = to_attribute(cap)
        done = built(module, choices or self.choices, Run(at_stop, self.seconds), stop, self.count_run, own, tree)
        if done.count is not None:
            self.counts[done.executable] = done.count
        return done.executable

    def cost(self, piece: Range) -> Cost:
        return self.count(piece).cost

    def count(self, piece: Range) -> Count:
        executable = self.known(piece)
        if executable not in self.counts:
            assert self.count_run is not None
            self.counts[executable] = self.count_run(
                executable.program, executable.code.page_bytes, executable.weights
            )
        return self.counts[executable]

    def say_cut(
        self, piece: Range, cuts: Cuts, error: DoesNotFit | None = None, verdict: str = "cut"
    ) -> None:
        names = self.layers.series.names
        after = ", ".join(f"'{names[position - 1]}'" for position in cuts.positions)
        why = f" does not fit ({error});" if error else ""
        self.say(f"split: {self.describe(piece)}{why} {verdict} {cuts.reason}, after {after}")

    def describe(self, piece: Range) -> str:
        names, (start, stop) = self.layers.series.names, piece
        if stop - start == 1:
            return f"layer '{names[start]}'"
        return f"'{names[start]}' to '{names[stop - 1]}' ({stop - start} layers)"


def module_of(network: object, like: ModuleOp) -> ModuleOp:
    """A module with one network and all else from another: target, types, weights."""
    module = ModuleOp([network], dict(like.attributes))  # type: ignore[list-item]
    module.location = like.location
    attach(module, store_of(like))
    return module


def allocated_bytes(executable: Executable) -> Peaks:
    """Of each memory on chip where its last buffer ends."""
    return {memory: executable.program.peak_bytes.get(memory, 0) for memory in ON_CHIP}


def _shrunk(target: Target, most: Peaks) -> Target:
    """The target with no more than so many bytes of each memory on chip."""

    def smaller(memory: Memory, name: MemoryName) -> Memory:
        room = aligned(most.get(name, 0))
        return replace(memory, capacity_bytes=min(memory.capacity_bytes, max(room, SMALLEST_BYTES)))

    core = target.core
    core = replace(core, nram=smaller(core.nram, "nram"), wram=smaller(core.wram, "wram"))
    cluster = replace(target.cluster, core=core, sram=smaller(target.cluster.sram, "sram"))
    return replace(target, chip=replace(target.chip, cluster=cluster))
