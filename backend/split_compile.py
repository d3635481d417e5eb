"""A network to one executable or to several that run one after the other: cut, compiled, cut again, fused again.

With `auto` the whole is compiled first:

1. where it does not fit, it is cut (`passes/analysis/series.py`: at output branches, else at an articulation point,
   else where the fewest bytes cross) and its parts take its place, which may be cut again
2. where it fits and has output branches, it is cut there only if the pieces have neither more cycles nor more bytes of
   DRAM than the whole, and fewer of one; where what must cross the cuts is too much already, nobody compiles them
3. neighbours are fused again (`refuse.py`) as long as neither cycles nor bytes rise, each candidate really compiled

For a stream of inputs over several chips it is cut into as many pieces of about equal cost (`balance.py`).

With `outputs` it is cut at output branches, without conditions, and nowhere else; a piece that uses more of any memory
on chip than the uncut network is compiled once more with so much memory only; where that does not go, the network
stays uncut.

Every cut, fusion and refusal is a line of the log.  Source: docs/techniques/output-split.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from frustum.backend.balance import for_chips, within_the_whole
from frustum.backend.cost import Cost, CountRun, total
from frustum.backend.file.executable import Executable
from frustum.backend.pipeline import STOPS, TYPED, Choices, Run, stop_of
from frustum.backend.plan_choice import is_written_out, typed_for_trees
from frustum.backend.refuse import Load, Refusal, Strategy
from frustum.backend.trials import AtStop, Peaks, Trials, allocated_bytes, module_of
from frustum.dialects.choices import TREE, When
from frustum.dialects.graph import networks_of
from frustum.dialects.module import TARGET, WEIGHTS
from frustum.dialects.target import Target, to_attribute
from frustum.dialects.target.fit import DoesNotFit, OrderDoesNotFit
from frustum.passes.analysis.foreign import others_in
from frustum.passes.analysis.least_work import least_work
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.series import Range, at_outputs, cuts_within, pieces_of
from frustum.passes.errors import Unsupported
from frustum.passes.graph.split_outputs import Layers, joined, split
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.model import LARGE, MANY, SMALL
from frustum.passes.weights import store_of

__all__ = ["Compilation", "Splitting", "compile_pieces", "one_piece"]

SETTLED_BY: tuple[Strategy, ...] = ("forward", "pairs")
"""How `auto` fuses pieces again, in turn."""
QUICK_SHARE = 4
"""A piece of at most one in so many layers is planned quickly."""
SPLIT = f"{STOPS.index(TYPED) + 1:02}-split"
"""How a dump of the cut module is called: it stands beside the stops of an uncut one."""


@dataclass(frozen=True)
class Splitting:
    """Where networks are cut: `auto` where they do not fit, and at output branches where that is better; `outputs` at
    output branches; `never`.  And how pieces are fused again: where that is not said, `auto` does what is better."""

    when: When = "auto"
    refusal: Refusal | None = None
    chips: int = 1
    """With `auto`, of a network that fits: so many pieces of about equal cost, for a stream of inputs."""


@dataclass
class Compilation:
    """Executables that run one after the other; what one hands to another has one name in both."""

    executables: list[Executable]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Of the whole network, in order."""
    seconds: float
    passes: dict[str, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    whole: Executable | None = None
    """The uncut network, where there are several pieces and it fits."""


def compile_pieces(
    module: ModuleOp,
    target: Target | None,
    choices: Choices,
    splitting: Splitting = Splitting(),  # frozen
    names: Iterable[str] = (),
    at_stop: Callable[[str], AtStop | None] = lambda piece: None,
    say: Callable[[str], None] = lambda line: None,
    measured: Callable[[Executable], Peaks] | None = None,
    count_run: CountRun | None = None,
    results: frozenset[str] | None = None,
) -> Compilation:
    """Continue a module from the stop it is at; behind stop `typed` it is one piece.

    `names`: of values that the module's surroundings have, so that no value that crosses a cut is called that.
    `at_stop("")` is told of the stops of the whole, `at_stop(name)` of those of a piece that is tried under this name;
    `say` gets each line of the log at once.  `measured` gives the bytes of each memory on chip that an executable uses;
    by default those that its buffers take, which end at multiples of 16.  `count_run` counts what a run costs; without
    it nothing can be compared, and what fits is neither cut nor fused again by itself.  `results`: the outputs that are
    the whole model's, if not all are: those for the host alone are no reason to cut.

    Raises `DoesNotFit` where a single layer does not fit, or one piece that may not be cut; `Unsupported` for layers
    without an engine.
    """
    started = time.perf_counter()
    if target is not None:
        module.attributes[TARGET] = to_attribute(target)
    measured = measured or allocated_bytes
    splitter = Splitter(
        module, choices, frozenset(names), at_stop, say, measured, count_run, splitting=splitting, results=results
    )
    found = splitter.result(splitter.pieces())
    found.seconds = time.perf_counter() - started
    return found


@dataclass
class Splitter(Trials):
    """One network being cut, compiled and fused again: what to do in which order."""

    splitting: Splitting = Splitting()  # frozen
    results: frozenset[str] | None = None

    # --- in order ------------------------------------------------------------------------------------------

    def pieces(self) -> list[Executable]:
        """The executables, cut, fused again and within the memory of the uncut network."""
        ranges = self._first_pieces()
        if ranges is None:
            return [self.fixed(self.module, stop_of(self.module), self.at_stop(""))]
        if ranges == [self.layers.whole] and self.splitting.when == "auto":
            return self._whole_or_better()
        found = self._compiled_pieces(self._all_fit(ranges))
        if len(found) > 1:
            self._dump(list(found))
        return list(found.values())

    def _first_pieces(self) -> list[Range] | None:
        """Where the network is cut without conditions; None where a module may not be cut any more."""
        several = len(networks_of(self.module)) > 1
        if not several and (stop_of(self.module) != STOPS[0] or self._has_others()):
            return None
        if several:
            whole, pieces = joined(self.module)
            self.module: ModuleOp = module_of(whole, self.module)
            self.layers = Layers(whole, self.names, self.results)
            self.stop = STOPS[0]  # nobody says that each network was simplified
            return pieces
        splitting = self.splitting
        is_whole = splitting.when != "outputs" and splitting.chips == 1 and splitting.refusal is None
        if is_whole and self.choices.is_open:
            self.tree: ModuleOp | None = typed_for_trees(self.module, self.choices, Run(None, self.seconds))
        if not self._becomes_tree_alone():
            self.layers: Layers = Layers(networks_of(self.module)[0], self.names, self.results)
        if self.splitting.when != "outputs":
            return [self.layers.whole]
        cuts = at_outputs(self.layers.series, self.layers.whole)
        if cuts:
            self.say_cut(self.layers.whole, cuts)
        return pieces_of(self.layers.whole, cuts)

    def _compiled_pieces(self, ranges: Sequence[Range]) -> dict[Range, Executable]:
        """Pieces that fit, fused again as asked, within the memory of the whole."""
        if len(ranges) > 1:
            ranges = self._fused_again(ranges)
        found = [self.known(piece) for piece in ranges]
        if len(found) > 1:
            found = self._within(ranges, found)
        return dict(zip(ranges if len(found) > 1 else [self.layers.whole], found, strict=True))

    def _has_others(self) -> bool:
        """Whether operations of other dialects stand in the network: they have a place in one network alone."""
        return any(others_in(network.body.block) for network in networks_of(self.module))

    # --- auto ----------------------------------------------------------------------------------------------

    def _whole_or_better(self) -> list[Executable]:
        """The whole, or pieces: where it does not fit, or where they are better."""
        whole = self.layers.whole
        fits = self.error(whole) is None
        if self.splitting.chips > 1 and self.count_run is not None and self.splitting.refusal is None:
            ranges = for_chips(self, self.splitting.chips)
            if ranges is not None:
                self._dump(ranges)
                return within_the_whole(self, ranges)
        ranges = self._better_pieces() if fits else self._fused_again(self._all_fit([whole]))
        if len(ranges) > 1:
            self._dump(ranges)
        return [self.known(piece) for piece in ranges]

    def _better_pieces(self) -> list[Range]:
        """The whole, which fits, or the pieces between its output branches, fused again, where they cost less."""
        whole = self.layers.whole
        cuts = at_outputs(self.layers.series, whole)
        if cuts is None or self.count_run is None:
            return [whole]
        self.say_cut(whole, cuts, verdict="tried")
        ranges, own = pieces_of(whole, cuts), self.cost(whole)
        least = self._least_bytes(ranges)
        if least >= own.dram_bytes:
            self.say(
                f"split: the {len(ranges)} pieces would move at least {least:,} bytes of DRAM, the whole takes {own}:"
                " it stays whole"
            )
            return [whole]
        by_size = sorted(ranges, key=_layers)
        if not _is_quick(_layers(by_size[0]), _layers(whole)):
            self.say(f"split: to plan {self.describe(by_size[0])} for itself takes too long: it stays whole")
            return [whole]
        if not all(self._is_worth(piece) for piece in by_size):
            return [whole]
        ranges = self._fused_again(ranges)
        if len(ranges) == 1:
            return ranges
        cost = total(map(self.cost, ranges))
        most = self.measured(self.known(whole))
        above = [piece for piece in ranges if not self.is_within(self.known(piece), most)]
        is_better = cost.is_better(own) and not above
        verdict = "it is cut" if is_better else "it stays whole"
        why = f", and {self.describe(above[0])} needs more on chip" if above else ""
        self.say(f"split: the {len(ranges)} pieces take {cost}, the whole {own}{why}: {verdict}")
        return list(ranges) if is_better else [whole]

    def _is_worth(self, piece: Range) -> bool:
        """Whether a piece fits, and alone costs no more than its layers do in the whole: as soon as one does, time is
        better spent than on the others."""
        if (error := self.error(piece)) is not None:
            self.say(f"split: {self.describe(piece)} does not fit ({error}), the whole does: it stays whole")
            return False
        found, names = self.count(piece), self.known(piece).program.layers
        alone, inside = Cost(found.cost.cycles, found.of(names).dram_bytes), self.count(self.layers.whole).of(names)
        if alone.is_within(inside):
            return True
        self.say(f"split: {self.describe(piece)} takes {alone} alone, {inside} in the whole: it stays whole")
        return False

    def _least_bytes(self, ranges: Sequence[Range]) -> int:
        """Of DRAM that pieces move at least: weights as the whole holds them, the outputs, and what pieces read."""
        externals = self.known(self.layers.whole).program.externals
        weights = sum(each.bytes for each in externals if each.class_ == "weight")
        return weights + sum(map(self.layers.least_bytes, ranges))

    def _becomes_tree_alone(self) -> bool:
        """Goes on to stop `typed`.  Whether what is there is planned as a tree and in no other way: where the passes
        before the other planner refuse the network, or write it out, and a tree becomes a program."""
        run, stops, tree = Run(self.at_stop(""), self.seconds), STOPS[1 : STOPS.index(TYPED) + 1], self.tree
        if tree is None:
            run.advance(self.module, stops, self.choices)
            return False
        if is_written_out(self.module, tree) and self._becomes_program(tree):
            return True
        module = self.module.clone()
        try:
            run.advance(module, stops, self.choices)
        except Unsupported:
            if self._becomes_program(tree):
                return True
            raise
        self.module = module
        return False

    def _becomes_program(self, tree: ModuleOp) -> bool:
        """Whether a module at stop `typed` for plans as trees is a program with one; it is then what is compiled."""
        before = self.module, self.choices
        self.module = tree
        self.choices: Choices = replace(self.choices, policy=TREE)
        self.layers = Layers(networks_of(tree)[0], self.names, self.results)
        Run(self.at_stop(""), self.seconds).arrived(TYPED, tree, self.choices)
        with suppress(NotLowered):
            if self.error(self.layers.whole) is None:
                return True
        self.module, self.choices = before
        self.tried.clear()
        return False

    def _all_fit(self, ranges: Sequence[Range]) -> list[Range]:
        """Compile in order; cut again what does not fit."""
        waiting, done = deque(ranges), list[Range]()
        while waiting:
            piece = waiting.popleft()
            error = self.error(piece)
            if error is None:
                done.append(piece)
                continue
            cuts = cuts_within(self.layers.series, piece)
            if self.splitting.when != "auto" or cuts is None or isinstance(error, OrderDoesNotFit):
                raise self._blamed(error, piece)
            self.say_cut(piece, cuts, error)
            waiting.extendleft(reversed(pieces_of(piece, cuts)))
        return done

    def _blamed(self, error: DoesNotFit, piece: Range) -> DoesNotFit:
        """The error of a piece that is not cut; of a single layer it names that."""
        if piece[1] - piece[0] != 1:
            return error
        op = self.layers.ops[piece[0]]
        name = f"node '{self.layers.series.names[piece[0]]}' ({op.name})"
        where = error.where if name in error.where else f"{name}, alone in its network: {error.where}"
        return type(error)(error.what, where, error.needed, error.available, error.resource)

    def _fused_again(self, ranges: Sequence[Range]) -> list[Range]:
        """Neighbours fused by the strategy asked for, where they fit; with `auto`, where none is, by `forward` and then
        `pairs`, where neither cycles nor bytes rise."""
        if self.splitting.refusal is not None:
            return self._grouped(ranges, self.splitting.refusal, self._fits)
        if self.splitting.when == "auto" and self.count_run is not None and self.stop == TYPED:
            for strategy in SETTLED_BY:
                ranges = self._grouped(ranges, Refusal(strategy), self._is_no_worse)
        return list(ranges)

    def _grouped(
        self, ranges: Sequence[Range], refusal: Refusal, fuses: Callable[[str, Sequence[Range]], bool]
    ) -> list[Range]:
        def is_fused(group: Range) -> bool:
            return fuses(refusal.strategy, ranges[group[0] : group[1]])

        return [_union(ranges[start:stop]) for start, stop in refusal.groups([self._load(r) for r in ranges], is_fused)]

    def _fits(self, strategy: str, parts: Sequence[Range]) -> bool:
        error = self.error(_union(parts))
        result = "fits" if error is None else f"does not fit ({error})"
        self.say(f"refuse {strategy}: {self.describe(_union(parts))}: {result}")
        return error is None

    def _is_no_worse(self, strategy: str, parts: Sequence[Range]) -> bool:
        """Whether pieces as one have neither more cycles nor more bytes than apart."""
        fused, apart = _union(parts), total(map(self.cost, parts))
        if (error := self.error(fused)) is not None:
            self.say(f"refuse {strategy}: {self.describe(fused)}: does not fit ({error})")
            return False
        cost = self.cost(fused)
        verdict = "fused" if cost.is_within(apart) else "apart"
        self.say(f"refuse {strategy}: {self.describe(fused)}: {cost}, apart {apart}: {verdict}")
        return cost.is_within(apart)

    def _load(self, piece: Range) -> Load:
        series, (start, stop) = self.layers.series, piece
        return Load(sum(series.cost[start:stop]), sum(series.weight_bytes[start:stop]), stop - start)

    def _within(self, ranges: Sequence[Range], found: Sequence[Executable]) -> list[Executable]:
        """The executables, none with a higher peak of any memory on chip than the uncut network."""
        is_known = self.layers.whole in self.tried
        error = self.error(self.layers.whole)
        if error is not None:
            if not is_known:
                self.say(f"split: the uncut network does not fit ({error})")
            return list(found)
        whole = self.known(self.layers.whole)
        most = self.measured(whole)
        kept = []
        for piece, executable in zip(ranges, found, strict=True):
            if not self.is_within(executable, most):
                again = self.capped(piece, most)
                if again is None:
                    self.say(
                        f"split: {self.describe(piece)} needs more on chip than the uncut network: it stays uncut"
                    )
                    return [whole]
                self.say(f"split: {self.describe(piece)} compiled with the memory that the uncut network uses")
                executable = again
            kept.append(executable)
        return kept

    # --- the end -------------------------------------------------------------------------------------------

    def result(self, found: Sequence[Executable]) -> Compilation:
        if len(found) == 1:
            return replace(one_piece(found[0], 0.0, self.seconds), log=self.log)
        network = self.layers.network
        stem = network.sym_name.data
        target, store = target_of(self.module), store_of(self.module) if WEIGHTS in self.module.attributes else None
        facts = {"pieces": len(found), "least_work": least_work(network, target, store)}
        when = self.splitting.when
        named = [renamed(each, f"{stem}_{number}", when, facts) for number, each in enumerate(found)]
        whole = self.tried.get(self.layers.whole)
        return Compilation(
            named, network.inputs, network.outputs, 0.0, self.seconds, self.log,
            whole if isinstance(whole, Executable) else None,
        )  # fmt: skip

    def _dump(self, ranges: Sequence[Range]) -> None:
        """The network as it was cut in the end."""
        at_stop = self.at_stop("")
        if at_stop is None:
            return
        module = self.module.clone()
        split(module, Layers(networks_of(module)[0], self.names), ranges)
        at_stop(SPLIT, module)

def _layers(piece: Range) -> int:
    return piece[1] - piece[0]


def _is_quick(piece: int, whole: int) -> bool:
    """Whether a piece of so many layers is planned in little of the time of the whole: of fewer layers the planner
    looks at more orders and states (`passes/plan/network/optimal.py`)."""
    if whole <= SMALL or piece <= SMALL // 2:
        return True
    is_wider = any(piece <= most < whole for most in (SMALL, MANY, LARGE))
    return piece * QUICK_SHARE <= whole and not is_wider


def _union(parts: Sequence[Range]) -> Range:
    return parts[0][0], parts[-1][1]


def one_piece(executable: Executable, seconds: float, passes: dict[str, float]) -> Compilation:
    """A network that is one executable."""
    inputs, outputs = (
        tuple(each.name for each in executable.program.externals_of(class_))
        for class_ in ("input", "output")
    )
    return Compilation([executable], inputs, outputs, seconds, passes)


def renamed(executable: Executable, name: str, when: When, whole: Mapping[str, Any]) -> Executable:
    """The same executable under another name, with where the network was cut of which it is a piece, and what that
    asks."""
    program, options = replace(executable.program, name=name), executable.manifest["options"]
    manifest = {**executable.manifest, "name": name, "options": {**options, "split": when, "whole_network": whole}}
    return replace(executable, program=program, manifest=manifest)
