# Tests: test/backend/test_split_compile.py
"""The whole compiler on one page: passes in order, with named stops.

| stop | what the module is | passes before it |
|---|---|---|
| `imported` | the network as in the file | (import) |
| `typed` | simplified; the device's types everywhere | graph/*: see `passes_to` |
| `fused` | layers in units | fuse-layers |
| `tiled` | units with partitions, layers with maps | partition, (split-breadth-first,) choose-layout |
| `placed` | loops over tiles, dealt to clusters and cores | lower-units, (assign-order) |
| `lowered` | instructions with symbolic buffers | lower-tiles, keep-tensors, ..., join-sections, ...: see `passes_to` |
| `fixed` | addresses, events | weights-ahead, fills-ahead, allocate, hoist-loads, schedule |

A module of any stop can be printed, read again and continued: `stop_of` recognises it by what is in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.backend.fills_ahead import FillsAhead
from frustum.backend.graph_passes import FLOATS, passes_of_trees
from frustum.backend.hoist_loads import HoistLoads
from frustum.backend.join_sections import JoinSections
from frustum.backend.memory.allocation import Allocate
from frustum.backend.stationary import HoldStationary
from frustum.backend.waits.schedule import Schedule
from frustum.backend.weights_ahead import WeightsAhead
from frustum.dialects import tile, unit
from frustum.dialects.choices import TREE, AskedBorders, Carry, Optimise
from frustum.dialects.isa.instruction import Instruction
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import AllocOp, BarrierOp, FetchOp, ProgramOp
from frustum.dialects.module import TILED
from frustum.dialects.plan.dialect import PlanOp
from frustum.dialects.share_done import reach
from frustum.dialects.weights.codec import CODECS
from frustum.passes.errors import ModelError
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.choose_forms import ChooseForms
from frustum.passes.graph.choose_layout import ChooseLayout
from frustum.passes.graph.composites.attention_on_planes import AttentionOnPlanes
from frustum.passes.graph.composites.expand_attention import ExpandAttention
from frustum.passes.graph.composites.expand_normalise import ExpandNormalise
from frustum.passes.graph.composites.expand_softmax import ExpandSoftmax
from frustum.passes.graph.composites.find_attention import FindAttention
from frustum.passes.graph.composites.find_normalise import FindNormalise
from frustum.passes.graph.composites.order_rows import OrderRows
from frustum.passes.graph.composites.part_products import PartProducts
from frustum.passes.graph.composites.remove_roundings import RemoveRoundings
from frustum.passes.graph.composites.unroll_recurrences import UnrollRecurrences
from frustum.passes.graph.convert_at_host import ConvertAtHost
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.find_phases import FindPhases
from frustum.passes.graph.find_shuffles import FindShuffles
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.fuse_residual import FuseResidual
from frustum.passes.graph.layer_moves import LayerMoves
from frustum.passes.graph.measure_weights import MeasureWeights
from frustum.passes.graph.note_carry import NoteCarry
from frustum.passes.graph.own_outputs import OwnOutputs
from frustum.passes.graph.pool_in_steps import PoolInSteps
from frustum.passes.graph.pool_parts import PoolParts
from frustum.passes.graph.quantise import QuantiseNetwork
from frustum.passes.graph.split_reductions import SplitReductions
from frustum.passes.graph.turn_weights import TurnWeights
from frustum.passes.lower.choose_line_buffer import ChooseLineBuffer
from frustum.passes.lower.compress_weights import CompressWeights
from frustum.passes.lower.hold_parts import HoldParts
from frustum.passes.lower.keep_tensors import KeepTensors
from frustum.passes.lower.load_parts import LoadParts
from frustum.passes.lower.lower_tiles import LowerTiles
from frustum.passes.lower.make_address_tables import MakeAddressTables
from frustum.passes.lower.share_loads import ShareLoads
from frustum.passes.lower.share_weights import ShareWeights
from frustum.passes.lower.store_parts import StoreParts
from frustum.passes.lower.tree.lower_plan import LowerPlan
from frustum.passes.plan.text.apply import ApplyPlan
from frustum.passes.plan.text.search import SearchPlan
from frustum.passes.plan.unit_runs import Runs
from frustum.passes.tile.assign_order import AssignOrder
from frustum.passes.tile.assign_owners import AssignOwners
from frustum.passes.tile.choose_runs import ChooseRuns
from frustum.passes.tile.hand_inputs import HandInputs
from frustum.passes.tile.leave_room import LeaveRoom
from frustum.passes.tile.lower_units import LowerUnits
from frustum.passes.tile.orders import parse_order
from frustum.passes.tile.partition import PartitionUnits
from frustum.passes.tile.split_breadth_first import ROLLING, SplitBreadthFirst

TYPED = "typed"
LOWERED = "lowered"
UNSEEN = {"typed": "imported"}
"""Stops that a module does not tell from the one before."""
PLACED = "placed"
STOPS = ("imported", "typed", "fused", "tiled", PLACED, LOWERED, "fixed")
PLANNED = ("fused", "tiled")
"""Stops that a module with a plan as a tree does not tell from `placed`."""


@dataclass(frozen=True)
class Edit:
    """A change of the default pipeline, wherever the pass called `anchor` stands in it: a `new` one `before` or `after`
    it, its own with other `options` (`changed`), or none (`without`)."""

    kind: Literal["before", "after", "changed", "without"]
    anchor: str
    new: ModulePass | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def applied(self, step: ModulePass) -> tuple[ModulePass, ...]:
        """What stands where the anchor did."""
        if self.kind == "changed":
            given = dict(self.options)
            return (step.changed(given) if isinstance(step, FuseLayers) else replace(cast(Any, step), **given),)
        added = () if self.new is None else (self.new,)
        return {"before": (*added, step), "after": (step, *added), "without": ()}[self.kind]


@dataclass(frozen=True)
class Choices:
    """What the user chooses: element type on the device (None: the model's), fusion, share of SRAM for a unit.

    The fusion policy is a name, or rules with thresholds; where none is given, what the target's options say.
    `compression` of weights is `none` or a codec; `weights` are `replicated` in all clusters, or `shared`.
    With `if_better` they are compressed only where fewer bytes of DRAM move in no more cycles, as the emulator counts;
    see `built`.
    """

    dtype: str | None = None
    policy: str | None = None
    is_free: bool = False
    """Whether nobody has asked for this policy."""
    rules: str | None = None
    thresholds: str | None = None
    cuts: str | None = None
    """The layers behind which units end, of policy `cuts`."""
    sram: float = 1.0
    joined: float = 1.0
    """Share of code and events for joined sections."""
    compression: str = "none"
    if_better: bool = False
    may_compress: bool = False
    """Whether nobody has asked for weights as they are: bounds then count each in the smallest form there is."""
    raw_layers: tuple[str, ...] = ()
    """Layers whose weights are not compressed."""
    apart_layers: tuple[str, ...] = ()
    """Layers whose weights come into the cores in pieces as small as they are planned."""
    weights: str = "replicated"
    raw_sizes: bool = False
    """Partitions are sized with weights as they are, though they are to be compressed."""
    plan: Path | None = None
    """A file with the plan as a tree."""
    plans: int = 1
    """Of each network at most so many plans are found, from which one is taken."""
    most: tuple[int, int] = (0, 0)
    """DRAM bytes and cycles that a plan may take; 0: as it comes."""
    work: int = 0
    """The effort of a search for plans, as `frustum-plan-search` counts it; 0: no limit."""
    optimise: Optimise = "time"
    carry: Carry = "auto"
    order: str | None = None
    """Order of traversal, as `parse_order` reads it; None: as the planner left it."""
    borders: AskedBorders | None = None
    """What happens at borders of tiles; None: `auto` for policy optimal, `overlap` for others."""
    runs: Runs = "auto"
    """Which layers follow each other in the cores."""
    ahead: bool = True
    """Whether weights may wait in WRAM for their layer."""
    keep: bool = True
    """Whether tensors between units may stay in SRAM as they lie in DRAM."""
    closely: bool = True
    """Whether these count on buffers of a unit sharing their bytes."""
    edits: tuple[Edit, ...] = ()
    """Of the default pipeline, one after the other."""

    def edited(self, passes: Sequence[ModulePass]) -> Sequence[ModulePass]:
        """A part of the default pipeline with the edits."""
        for edit in self.edits:
            passes = [each for step in passes for each in (edit.applied(step) if step.name == edit.anchor else (step,))]
        return passes

    @property
    def is_open(self) -> bool:
        """Whether nothing is asked for that says how layers are planned: plans as trees may be taken too."""
        said = ("dtype", "policy", "carry", "compression", "if_better", "may_compress")
        return self.is_free and self == Choices(is_free=True, **{name: getattr(self, name) for name in said})

    @property
    def is_tree(self) -> bool:
        """Whether plans are trees."""
        return self.policy == TREE

    @property
    def asked_compression(self) -> str:
        """What was asked of weights, whatever became of it."""
        return "auto" if self.if_better else self.compression

    @property
    def keeps_tensors(self) -> bool:
        """Whether tensors between units may stay in SRAM: with an order of tiles they move as it says."""
        return self.keep and self.order is None

    @property
    def kind_of_borders(self) -> AskedBorders | None:
        """With an order borders overlap if nothing else is said: rolling rows have an order of their own."""
        return "overlap" if self.order is not None and self.borders != "exchange" else self.borders


def passes_to(stop: str, choices: Choices) -> Sequence[ModulePass]:
    """The passes between the stop before and this one."""
    if stop == LOWERED:
        return (*raw_passes(choices), *weight_passes(choices), *section_passes(choices))
    return choices.edited(default_passes(stop, choices))


def default_passes(stop: str, choices: Choices) -> Sequence[ModulePass]:
    """The same without the user's edits, but for stop `lowered`."""
    if choices.is_tree:
        return tree_passes(stop, choices)
    element = FLOATS.get(choices.dtype or "")
    types: list[ModulePass] = [] if element is None else [ConvertType(to=element)]
    free: list[ModulePass] = [RemoveRoundings(to=element)] if element in ("f16", "bf16") else []
    attention = FindAttention(), ExpandAttention(element, choices.carry)
    simpler = (
        UnrollRecurrences(), *free, *attention, FindNormalise(), QuantiseNetwork(), SplitReductions(), Canonicalize(),
        FoldQuantisation(),
    )  # fmt: skip
    return {
        "imported": (),
        "typed": (
            *simpler, *types, ExpandNormalise(), ExpandSoftmax(), SplitReductions(), PoolParts(), PoolInSteps(),
            OrderRows(), AttentionOnPlanes(), FuseResidual(), PartProducts(), ConvertAtHost(), FindShuffles(),
            FindPhases(), LayerMoves(), TurnWeights(), ChooseForms(), OwnOutputs(), NoteCarry(choices.carry),
        ),
        "fused": (
            *measuring_passes(choices),
            FuseLayers(
                choices.policy, choices.rules, choices.thresholds, choices.cuts, borders=borders_to_fuse(choices),
                sram=choices.sram, optimise=choices.optimise,
            ),
        ),
        "tiled": (
            *((MeasureWeights(codec="none"),) if choices.raw_sizes else ()),
            *((LeaveRoom(choices.kind_of_borders or "auto", choices.sram),) if choices.keeps_tensors else ()),
            *partition_passes(choices),
            ChooseRuns(choices.runs, overlap=choices.borders != "exchange", sram=choices.sram),
            HandInputs(choices.optimise), ChooseLayout(),
        ),
        "placed": (LowerUnits(), *order_passes(choices)),
        "fixed": (*((WeightsAhead(), FillsAhead()) if choices.ahead else ()), Allocate(), HoistLoads(), Schedule()),
    }[stop]


def tree_passes(stop: str, choices: Choices) -> Sequence[ModulePass]:
    """The same of policy `tree`: from `fused` on the module has plans, and `placed` and `tiled` add nothing."""
    return {
        "typed": passes_of_trees(choices.dtype, choices.carry),
        "fused": (
            SearchPlan(
                choices.optimise, choices.carry, choices.cuts, choices.sram, choices.plans, choices.work, *choices.most,
            )
            if choices.plan is None else ApplyPlan(str(choices.plan)),
        ),
        "fixed": (HoldStationary(), Allocate(), HoistLoads(), Schedule()),
    }.get(stop, ())  # fmt: skip


def borders_to_fuse(choices: Choices) -> Literal["overlap", "exchange", "sent", "auto"]:
    """Of the units of policy optimal: where an order lets no rows roll, units that need no borders of each other's
    tiles, so that none has to be split afterwards."""
    borders = choices.kind_of_borders or "auto"
    if borders == "exchange" and choices.order is not None and parse_order(choices.order).order not in ROLLING:
        return "sent"
    return borders


def partition_passes(choices: Choices) -> Sequence[ModulePass]:
    """Partitions of units; what cannot exchange borders tile by tile is split into layers, which are cut then."""
    borders = choices.kind_of_borders
    cut: list[ModulePass] = [PartitionUnits(sram=choices.sram, borders=borders or "overlap")]
    words = None if choices.order is None else parse_order(choices.order)
    if words is None and borders != "exchange":
        return cut
    split = SplitBreadthFirst(borders="auto" if choices.borders == "auto" else borders or "overlap")
    owners = AssignOwners(sram=choices.sram)
    if words is not None:
        split = replace(split, order=words.order, depth=words.depth)  # type: ignore[arg-type]  # checked words
        split = replace(split, bands=words.bands, direction=words.direction)
        owners = replace(
            owners, order=words.order, bands=words.bands, direction=words.direction, owners=words.owners
        )
    if borders == "exchange" and not (words is not None and words.depth == "breadth-first"):
        cut.append(owners)
    return [*cut, split, PartitionUnits(sram=choices.sram)]


def order_passes(choices: Choices) -> Sequence[ModulePass]:
    if choices.order is None:
        return ()
    words = parse_order(choices.order)
    return (AssignOrder(order=words.order, bands=words.bands, direction=words.direction),)


def is_measured(choices: Choices) -> bool:
    """Whether partitions are sized with compressed weights: each cluster holds its own."""
    is_sure = choices.compression != "none" and not choices.if_better
    return is_sure and choices.weights == "replicated" and not choices.raw_sizes


def measuring_passes(choices: Choices) -> Sequence[ModulePass]:
    if not is_measured(choices):
        return (MeasureWeights(codec="none" if choices.raw_sizes else "stored"),)
    assert choices.compression in CODECS, f"no codec is called {choices.compression}"
    return (MeasureWeights(codec=choices.compression),)


def raw_passes(choices: Choices) -> Sequence[ModulePass]:
    """To instructions whose weights lie in DRAM as they are."""
    if choices.is_tree:
        return choices.edited((LowerPlan(choices.sram), ChooseLineBuffer()))
    keep: tuple[ModulePass, ...] = ()
    if choices.keeps_tensors:
        closely = choices.closely
        keep = LoadParts(choices.optimise), StoreParts(), KeepTensors(closely), HoldParts(closely), ShareLoads()
    return choices.edited((LowerTiles(hold=choices.weights == "shared"), *keep, ChooseLineBuffer()))


def section_passes(choices: Choices) -> Sequence[ModulePass]:
    return choices.edited((JoinSections(share=choices.joined), MakeAddressTables()))


def weight_passes(choices: Choices) -> Sequence[ModulePass]:
    """What is done with weights beyond holding them as they are."""
    assert choices.compression in ("none", *CODECS), f"no codec is called {choices.compression}"
    even = choices.weights == "shared"
    is_at_once = choices.is_tree and choices.if_better  # it is counted what that costs
    codec, apart = cast(Any, choices.compression), choices.apart_layers
    found: list[ModulePass] = [CompressWeights(codec, even, choices.raw_layers, is_at_once, apart)]
    if choices.weights == "shared":
        found.append(ShareWeights())
    return choices.edited(found)


def stop_of(module: ModuleOp) -> str:
    """The last stop that the module has passed; a network of graph operations counts as imported."""
    found = "imported"
    for op in module.walk():
        if isinstance(op, ProgramOp):
            return "fixed" if is_fixed(op) else "lowered"
        if isinstance(op, tile.UnitOp | PlanOp):
            return "placed"
        if isinstance(op, unit.UnitOp):
            found = "tiled" if TILED in module.attributes else "fused"
    return found


def is_fixed(program: ProgramOp) -> bool:
    """Every buffer has an address and events are set; where one engine does all, there are none to set."""
    ops = list(program.walk())
    if any(isinstance(op, Instruction) and op.signal is not None for op in ops):
        return True
    homes = [op.address for op in ops if isinstance(op, AllocOp)]
    work = [op for op in ops if isinstance(op, Instruction) and not isinstance(op, FetchOp | BarrierOp)]
    engines = {op.engine.data for op in work if isinstance(op, CopyOp)}
    is_of_one = len(engines) == 1 and all(isinstance(op, CopyOp) for op in work)
    return is_of_one and bool(homes) and None not in homes


@dataclass
class Run:
    """One way through the pipeline: who is told of each stop, and the seconds of each pass."""

    at_stop: Callable[[str, ModuleOp], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def advance(self, module: ModuleOp, stops: Sequence[str], choices: Choices) -> None:
        """Run the passes up to each of the stops in turn; the module is verified at each."""
        for stop in stops:
            self.apply_all(module, passes_to(stop, choices))
            self.arrived(stop, module, choices)

    def arrived(self, stop: str, module: ModuleOp, choices: Choices) -> None:
        """The passes up to a stop are done; ModelError where the user's edits have led somewhere else."""
        known = PLACED if choices.is_tree and stop in PLANNED else stop
        if choices.edits and (found := stop_of(module)) not in (known, UNSEEN.get(stop)):
            raise ModelError(f"--pipeline: with these edits the module is at stop '{found}', not '{stop}'")
        self.reached(stop, module)

    def apply(self, step: ModulePass, context: Context, module: ModuleOp) -> None:
        """Run one pass."""
        step.apply(context, module)

    def apply_all(self, module: ModuleOp, passes: Sequence[ModulePass]) -> None:
        context = Context()
        for step in passes:
            with self.timed(step.name):
                self.apply(step, context, module)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """What is done inside is counted under this name."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def reached(self, stop: str, module: ModuleOp) -> None:
        """The module is at a stop: it is verified, and shown."""
        module.verify()
        reach(stop)
        if self.at_stop is not None:
            self.at_stop(stop, module)


def stops_after(stop: str) -> Sequence[str]:
    return STOPS[STOPS.index(stop) + 1 :]
