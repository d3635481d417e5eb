# Tests: test/backend/test_split_compile.py
"""A module at any stop to an executable, and what executables are compared by: cycles and bytes of DRAM.

These are counted for programs that are really there.  Who counts is passed in: the compiler does not know the machine
that runs its programs.  Source: docs/techniques/output-split.md, "When".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute

from frustum.backend.cost import Cost, Count, CountRun, Image
from frustum.backend.executables import executable_of, tables_of
from frustum.backend.file.encoder import Code, encode
from frustum.backend.file.executable import Executable
from frustum.backend.file.read_program import read_program
from frustum.backend.pipeline import (
    LOWERED,
    PLACED,
    TYPED,
    Choices,
    Run,
    is_measured,
    raw_passes,
    section_passes,
    stop_of,
    stops_after,
    weight_passes,
)
from frustum.backend.plan_choice import (
    PLANNED,
    PLANS,
    ROUGH,
    PlannedModule,
    best_of,
    candidates_beside,
    candidates_of,
    may_choose,
)
from frustum.dialects import module as m
from frustum.dialects.graph import WeightOp
from frustum.dialects.isa.program import Program
from frustum.dialects.target.fit import CODE, DoesNotFit, OrderDoesNotFit
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.module import target_of, value_bytes
from frustum.passes.dequantised import is_packed
from frustum.passes.fuse.policy import chosen
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.tile.orders import parse_order
from frustum.passes.weights import store_of

SRAM_SHARES = (1.0, 0.9, 0.8, 0.65, 0.5, 0.35)
"""Shares of SRAM that units may use, in the order tried: buffers of one unit may leave holes."""
TREE_SHARES = (1.0, 0.85, 0.65)
"""The same of slices and second copies, for a plan as a tree. 2026-11-29."""
MEASURED_SHARES = (1.0, 0.9)
"""The same with weights as small as compression is expected to make them, before those with weights as they are."""
KEEPS = ((True, True), (True, False), (False, True))
"""Whether tensors between units may stay in SRAM, and closely, in the order tried."""
JOINED_SHARES = (1.0, 0.9, 0.5, 0.25, 0.125, 0.0)
"""Shares of code and events that joined sections may take, in the order tried; 0: a section for each unit."""
JOINED_AT_FIRST = (1.3, 1.2)
"""The shares tried in place of 1: the code is smaller than estimated (resnet50 f16 by 28 %), and the encoder says if it
is not (inception_v2 f16 by 8 bytes of 65,536 at the first: 309,819 cycles at 0.9, 296,313 at 1.25)."""
MOST_CYCLES = 1.005
"""A run with some weights compressed may take so many times the cycles, if it moves fewer bytes. 2026-11-28."""


@dataclass(frozen=True)
class Built:
    """An executable, and what a run of it costs if that was counted."""

    executable: Executable
    count: Count | None


def built(
    module: ModuleOp,
    choices: Choices,
    run: Run,
    stop: str | None = None,
    count_run: CountRun | None = None,
    machine: Attribute | None = None,
    tree: ModuleOp | None = None,
) -> Built:
    """The executable of a module.

    With `choices.if_better` that of two with fewer bytes of DRAM in no more cycles: one with weights as they are, and
    one that differs from it in compressed weights alone.  They are one module up to where weights are held.  Where
    compressed ones take more cycles, others are tried: pieces of the layers that do are as small as planned (of plans
    as trees), then their weights stay as they are.  These, and all of plans as trees, are taken if they move fewer
    bytes in at most `MOST_CYCLES`.
    Without `count_run` nobody can compare them, and weights stay as they are.
    `machine`: the target that it is for, where the module is planned for a smaller one.  `tree`: the module at stop
    `typed` for plans as trees, where these may be taken too.
    Source: docs/techniques/output-split.md, "When".
    """
    work, known = _Encoder(run, machine), None
    if count_run is not None:
        trials = _Choosing(work, count_run)
        chosen = trials.best(module, choices, stop, tree)
        if chosen is not None:
            known = trials.known.get(chosen) if run.at_stop is None else None
            module, choices, stop = chosen.module, chosen.choices, chosen.stop
    if choices.if_better and LOWERED in stops_after(stop or stop_of(module)):
        return _smaller(module, choices, work, stop, count_run, known)
    if known is not None and choices.compression == "none":
        return Built(known.encoded.executable(), known.count)
    return Built(work.encoded(fixed(module, choices, run, stop), choices).executable(), None)


_Kept: TypeAlias = tuple[ModuleOp, Choices] | None
"""A module where its weights lie as they are, and the choices that it was made with."""


@dataclass
class _Tried:
    """A module with a plan: what `_plain` makes of it, and what a run of it costs."""

    encoded: _Encoded
    kept: _Kept
    count: Count


@dataclass
class _Choosing:
    """Candidates from which one is chosen, with weights as they are; None: no program is made of one."""

    work: _Encoder
    count_run: CountRun
    known: dict[PlannedModule, _Tried | None] = field(default_factory=dict)

    def best(
        self, module: ModuleOp, choices: Choices, stop: str | None, tree: ModuleOp | None
    ) -> PlannedModule | None:  # fmt: skip
        """The candidate that is taken; who is shown the stops sees its.  None where there is no choice."""
        run = self.work.run
        if may_choose(module, choices, stop):
            found = candidates_of(module, replace(choices, plans=PLANS), run, stop)
        elif tree is not None:
            first = PlannedModule(module, choices, stop or stop_of(module))
            found = [first, *candidates_beside(tree, choices, Run(None, run.seconds), self.cost(first))]
            self.note_network(first, found[1:])
        else:
            return None
        costs = self.costs(found, is_beside=tree is not None) if len(found) > 1 else []
        chosen = found[best_of(costs, is_bound=tree is not None)]
        if chosen.stop == PLANNED:
            if tree is not None:
                run.arrived(TYPED, tree, chosen.choices)
            run.arrived(PLANNED, chosen.module, chosen.choices)
        return chosen

    def costs(self, found: Sequence[PlannedModule], *, is_beside: bool) -> list[Cost | None]:
        """Of the candidates, in the order in which they are judged; beside layers that are planned in another way no
        more of them where one takes so much longer that those behind it hardly take less."""
        costs, first = list[Cost | None](), self.cost(found[0])
        for cost in map(self.cost, found):
            costs.append(cost)
            if is_beside and first is not None and cost is not None and cost.cycles > ROUGH * first.cycles:
                break
        return costs

    def note_network(self, first: PlannedModule, others: Sequence[PlannedModule]) -> None:
        """What a network asks at least is one figure, whoever plans it: others say what the first has found."""
        tried = self.known.get(first)
        least = None if tried is None else m.text_of(tried.encoded.module, m.LEAST_WORK)
        if least is not None:
            for each in others:
                each.module.attributes[m.WHOLE_NETWORK] = StringAttr(f'{{"pieces":1,"least_work":{least}}}')

    def cost(self, candidate: PlannedModule) -> Cost | None:
        """Of a run; None where there is no program."""
        if candidate not in self.known:
            self.known[candidate] = None
            with suppress(DoesNotFit, NotLowered):
                self.known[candidate] = self._of(candidate)
        found = self.known[candidate]
        return None if found is None else found.count.cost

    def _of(self, own: PlannedModule) -> _Tried:
        unseen = replace(self.work, run=Run(None, self.work.run.seconds))
        encoded, kept = _plain(own.module.clone(), own.choices, unseen, own.stop, is_kept=own.choices.if_better)
        return _Tried(encoded, kept, _counted(encoded, self.count_run))


def _plain(
    module: ModuleOp, choices: Choices, work: _Encoder, stop: str | None, *, is_kept: bool
) -> tuple[_Encoded, _Kept]:  # fmt: skip
    """A module with weights as they are; what it was on the way, if that is kept and anything in it holds weights."""
    plain, kept = replace(choices, compression="none"), list[tuple[ModuleOp, Choices]]()

    def keep(choices: Choices, module: ModuleOp) -> None:
        kept[:] = [(module, choices)] if is_kept else []

    encoded = work.encoded(fixed(module, plain, work.run, stop, keep), plain)
    return encoded, next(iter(kept), None)


def _smaller(
    module: ModuleOp, choices: Choices, work: _Encoder, stop: str | None, count_run: CountRun | None,
    known: _Tried | None,
) -> Built:  # fmt: skip
    """Of a module with weights as they are and with compressed ones, as `built` says; `known`: the first."""
    if known is None:
        raw, kept = _plain(module, choices, work, stop, is_kept=count_run is not None)
    else:
        raw, kept = known.encoded, known.kept
    if kept is None:  # nobody counts, or the module has nothing in which weights are held
        return Built(raw.executable(), None)
    assert count_run is not None
    before, own = kept
    asked = replace(own, compression=choices.compression)
    smaller = _compressed(before.clone(), asked, work)
    if smaller is None:
        return Built(raw.executable(), None)
    plain = _counted(raw, count_run) if known is None else known.count
    while smaller is not None:
        less = _counted(smaller, count_run)
        if _is_less(less.cost, plain.cost, MOST_CYCLES if asked.is_tree or asked.raw_layers else 1.0):
            return Built(smaller.executable(), less)
        slower = tuple(name for name, cost in plain.layers.items() if less.of([name]).cycles > cost.cycles)
        if not slower or asked.raw_layers:
            break
        is_next = asked.is_tree and not asked.apart_layers
        asked = replace(asked, apart_layers=slower) if is_next else replace(asked, raw_layers=slower)
        smaller = _compressed(before.clone(), asked, work)
    if work.run.at_stop is not None:  # who is shown the stops has seen those of the executable last
        _hold(before, own, work.run)
    return Built(raw.executable(), plain)


def _counted(encoded: _Encoded, count_run: CountRun) -> Count:
    with encoded.run.timed("count"):
        return count_run(encoded.program, encoded.code.page_bytes, encoded.tables)


def _is_less(cost: Cost, plain: Cost, most: float) -> bool:
    """Whether fewer bytes move, in at most so many times the cycles."""
    return cost.dram_bytes < plain.dram_bytes and cost.cycles <= most * plain.cycles


def _compressed(module: ModuleOp, choices: Choices, work: _Encoder) -> _Encoded | None:
    """A module from where weights lie as they are to code with compressed ones; None where none gets smaller, or what
    comes of it does not fit."""
    try:
        return work.encoded(module, choices) if _hold(module, choices, work.run) else None
    except DoesNotFit:
        return None


def _hold(module: ModuleOp, choices: Choices, run: Run) -> bool:
    """Go on to `fixed`; false, and no further, where weights were to be compressed and none gets smaller."""
    run.apply_all(module, weight_passes(choices))
    noted = m.text_of(module, m.COMPRESSION)
    if choices.compression != "none" and (noted is None or not json.loads(noted)["compressed_tensors"]):
        return False  # none gets smaller, or the user has taken the pass out
    _join(module, choices, run)
    return True


def _join(module: ModuleOp, choices: Choices, run: Run) -> None:
    """From where weights are held to `fixed`."""
    run.apply_all(module, section_passes(choices))
    run.arrived(LOWERED, module, choices)
    run.advance(module, stops_after(LOWERED), choices)


@dataclass(frozen=True)
class _Encoder:
    """Code of fixed modules, for `machine` where that is not the one they were planned for."""

    run: Run
    machine: Attribute | None

    def encoded(self, module: ModuleOp, choices: Choices) -> _Encoded:
        if self.machine is not None:
            module.attributes[m.TARGET] = self.machine
        with self.run.timed("encode"):
            program = read_program(module)
            code = encode(program, _code_memory_bytes(module))
        return _Encoded(module, program, code, choices, self.run)


@dataclass(frozen=True)
class _Encoded:
    """A fixed module with its program and code; its weights are not touched yet."""

    module: ModuleOp
    program: Program
    code: Code
    choices: Choices
    run: Run

    @property
    def tables(self) -> Image:
        return tables_of(self.program, store_of(self.module))

    def executable(self) -> Executable:
        with self.run.timed("encode"):
            return executable_of(self.module, self.choices, self.program, self.code)


def _code_memory_bytes(module: ModuleOp) -> int:
    return target_of(module).cluster.instruction_memory_bytes


def fixed(
    module: ModuleOp,
    choices: Choices,
    run: Run,
    stop: str | None = None,
    keep: Callable[[Choices, ModuleOp], None] = lambda choices, module: None,
) -> ModuleOp:
    """The module at stop `fixed`; partitions are made smaller until the allocator finds room for all buffers, and
    sections shorter until the address tables of each have room; weights wait in WRAM, and tensors between units of
    policy optimal stay in SRAM as they lie in DRAM, only where all fits.  `stop`: where it is, if it does not show.
    `keep` is shown each attempt, with its choices, while its weights lie as they are; the last is the one that
    fits."""
    stop = stop or stop_of(module)
    early = ("typed",) if is_cut_by_fusion(module, choices) else ("typed", "fused")
    before = [s for s in stops_after(stop) if s in early]
    after = [s for s in stops_after(stop) if s not in early]
    run.advance(module, before, choices)
    shares = shares_of(module, choices, after)
    joined = joined_shares(choices) if LOWERED in after else [choices.joined]
    ahead = [True, False] if "fixed" in after and choices.ahead and not choices.is_tree else [choices.ahead]
    keeps = list(KEEPS) if "lowered" in after and choices.keep else [(choices.keep, choices.closely)]
    first: DoesNotFit | None = None
    cut = stops_to(after, "tiled") if "tiled" in after else []
    planned: dict[tuple[float, bool], ModuleOp] = {}  # in tiles, by the share: what follows plans nothing again
    raw = _RawModules(run, [s for s in after if s == PLACED])
    while True:
        attempt = module
        try:
            share, raw_sizes = shares[0]
            own = replace(choices, sram=share, raw_sizes=raw_sizes, joined=joined[0])
            own = replace(own, ahead=ahead[0], keep=keeps[0][0], closely=keeps[0][1])
            is_last = len(shares) == len(joined) == len(ahead) == len(keeps) == 1
            if shares[0] not in planned:
                fresh = module if is_last else module.clone()
                run.advance(fresh, cut, own)
                _check_homes(fresh, list(planned.values()), first if is_bound(choices) else None)
                planned[shares[0]] = fresh
            if LOWERED in after:
                attempt = raw.module((shares[0], keeps[0]), planned[shares[0]], own)
                keep(own, attempt)
                attempt = attempt.clone()
                run.apply_all(attempt, weight_passes(own))
                _join(attempt, own, run)
            else:
                attempt = planned[shares[0]] if is_last else planned[shares[0]].clone()
                run.advance(attempt, after[len(cut) :], own)
            if "fixed" in after:
                encode(read_program(attempt), _code_memory_bytes(attempt))
        except OrderDoesNotFit as error:
            raise error.under(traversal(choices)) from None
        except DoesNotFit as error:
            if is_easier(error, ahead, keeps if has_kept(attempt) else [], joined[0]):
                continue
            first = first or error
            if choices.is_tree and shares[0] not in planned:  # no plan fits, and none would in less
                raise first from None
            tried = shares if error.resource == "sram" else joined if error.resource == CODE else [None]
            if len(tried) < 2:
                raise (first.under(traversal(choices)) if is_bound(choices) else first) from None
            tried.pop(0)
            continue
        return attempt


@dataclass
class _RawModules:
    """Modules in instructions, with weights as they are: who joins sections in another way makes none again."""

    run: Run
    stops: Sequence[str]
    """From where they are planned to where they are lowered."""
    known: dict[object, ModuleOp] = field(default_factory=dict)

    def module(self, key: object, planned: ModuleOp, choices: Choices) -> ModuleOp:
        """Of such choices as the key says."""
        if key not in self.known:
            found = planned.clone()
            self.run.advance(found, self.stops, choices)
            self.run.apply_all(found, raw_passes(choices))
            self.known[key] = found
        return self.known[key]


def shares_of(module: ModuleOp, choices: Choices, after: Sequence[str]) -> list[tuple[float, bool]]:
    """Shares of SRAM in the order tried, and whether weights are sized as they are."""
    is_sized = "tiled" in after
    asked = TREE_SHARES if choices.is_tree else SRAM_SHARES
    shares = [(share, choices.raw_sizes) for share in (asked if is_sized else asked[:1])]
    is_open = is_sized and not choices.is_tree and not choices.raw_sizes
    if is_open and (is_measured(choices) or has_stored(module)):
        return [*((share, False) for share in MEASURED_SHARES), *((share, True) for share in SRAM_SHARES)]
    return shares


def joined_shares(choices: Choices) -> list[float]:
    """Shares of code and events for joined sections, in the order tried."""
    less = [share for share in JOINED_SHARES if share < choices.joined]
    return [*(JOINED_AT_FIRST if choices.joined == 1 else [choices.joined]), *less]


def is_easier(error: DoesNotFit, ahead: list[bool], keeps: list[tuple[bool, bool]], joined: float) -> bool:
    """Whether the next attempt does without something that only spares bytes or time: weights that wait in WRAM, then
    tensors that stay in SRAM, closely first.  Where code does not fit, shorter sections come first."""
    is_late = error.resource != CODE or joined <= 1
    if len(ahead) > 1 and is_late and error.resource in ("wram", "events", CODE):
        ahead.pop(0)
        return True
    if len(keeps) > 1 and is_late:
        keeps.pop(0)
        return True
    return False


def has_stored(module: ModuleOp) -> bool:
    """Whether the model has weights as integers with scales, which may be sized as these."""
    return any(isinstance(op, WeightOp) and is_packed(op) for op in module.walk())


def has_kept(module: ModuleOp) -> bool:
    """Whether tensors between units lie in SRAM as they would in DRAM."""
    return any(m.TENSOR in op.attributes for op in module.walk())


def _check_homes(module: ModuleOp, planned: Sequence[ModuleOp], first: DoesNotFit | None) -> None:
    """Raise `OrderDoesNotFit` where more bytes of maps between units are in DRAM than when all of SRAM may be used,
    which was refused as `first` says; None: they may."""
    if first is not None and planned and between_bytes(module) > between_bytes(planned[0]):
        raise OrderDoesNotFit(first.what, first.where, first.needed, first.available, first.resource)


def stops_to(stops: Sequence[str], last: str) -> Sequence[str]:
    """The stops up to this one; all of them, if it is not among them."""
    return stops[: stops.index(last) + 1] if last in stops else stops


def is_bound(choices: Choices) -> bool:
    """Whether an order was asked for that may run layer by layer: no map may move to DRAM for its sake."""
    if choices.order is None:
        return False
    return choices.borders == "exchange" or parse_order(choices.order).depth == "breadth-first"


def between_bytes(module: ModuleOp) -> int:
    """Of the maps that units leave in DRAM for other units."""
    return sum(
        value_bytes(result)
        for unit in module.walk()
        if isinstance(unit, UnitOp)
        for number, result in enumerate(unit.results)
        if number not in unit.kept and any(isinstance(use.operation, UnitOp) for use in result.uses)
    )


def traversal(choices: Choices) -> str:
    """The order and the borders that were asked for, in the words of the options."""
    order = [] if choices.order is None else [f"order {choices.order}"]
    borders = [] if choices.borders is None else [f"borders {choices.borders}"]
    return " with ".join(order + borders)


def is_cut_by_fusion(module: ModuleOp, choices: Choices) -> bool:
    """Whether the pass that fuses cuts units into tiles too, so that a smaller share of SRAM concerns it."""
    if choices.is_tree:
        return choices.plan is None
    policy = chosen(choices.policy, choices.rules, choices.thresholds, target_of(module).options)[0]
    return policy == "optimal"
