"""Group layers into units by a fusion policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.passes import ModulePass

from frustum.dialects import graph as g
from frustum.dialects.choices import Optimise
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.module import ALTERNATIVES, MAPS, POLICY
from frustum.dialects.share_done import know
from frustum.dialects.target import Options
from frustum.passes.analysis.foreign import gather
from frustum.passes.analysis.layer import can_join
from frustum.passes.analysis.least_work import Facts, note_least_work
from frustum.passes.analysis.module import kind_name, node_name, target_of, value_bytes
from frustum.passes.fuse.grow import Grown, LayerGraph, grow_units
from frustum.passes.fuse.policy import CUTS, OPTIMAL, PolicyError, chosen, parse_policy
from frustum.passes.plan.network.optimal import OptimalOptions
from frustum.passes.plan.network.units import fuse_optimal, write_runs
from frustum.passes.plan.unit_ops import wrap


@dataclass(frozen=True)
class FuseLayers(ModulePass):
    """Put every layer into a unit.

    Before: a network of graph operations.  After: `funit.unit` operations, reshapes, and nothing else of ours;
    operations of others stay, and units stand behind those that they depend on (`analysis/foreign.py`).  Each unit
    says why it ends, and `frustum.maps` where its unit map has several images.  With `optimal` the units of several
    layers have their partition and maps already; of units that rules made those for which a cheaper way is known than
    `frustum-tile-partition` finds, which may be several units (runs) with maps between them in SRAM.
    The module says by which policy in `frustum.policy`, and what the network asks at least in `frustum.least_work`.

    `policy` is `optimal`, a preset or `none`; or `rules` list a start rule and rules (`"S1,1,4,8-12"`); `thresholds`
    are other than the defaults (`"11=75,19=6"`); or `cuts` names the layers behind which units end, in the order of
    the network (`"Conv_3,MaxPool_5"`), and each is planned alone, or with `optimal` all together.
    Where nothing is given, the target's options say it.
    `borders` and `sram` (the share of SRAM that may be used) are for `optimal` and runs: with `exchange` nothing is
    computed twice, with `sent` no rows roll either, so that borders go from cluster to cluster between units alone.
    Source: docs/techniques/tfu.md, "Rules", "Growth" and "Policy optimal".
    """

    name = "frustum-fuse-layers"
    policy: str | None = None
    rules: str | None = None
    thresholds: str | None = None
    cuts: str | None = None
    borders: Literal["overlap", "exchange", "sent", "auto"] = "auto"
    sram: float = 1.0
    optimise: Optimise = "time"

    def __post_init__(self) -> None:
        if self.policy is not None or self.rules is not None or self.cuts is not None:
            self.words(Options())  # refuses a wrong policy before anything is done

    def changed(self, given: Mapping[str, Any]) -> FuseLayers:
        """The same pass with these options; rules and cuts that are given take the place of a policy that is not."""
        if given.keys() & {"rules", "cuts", "policy"}:
            given = {"policy": None, "rules": None, "cuts": None, "thresholds": None, **given}
        return replace(self, **given)

    def words(self, stored: Options) -> tuple[str, str | None, str | None]:
        """Policy, rules and thresholds for a target with these options.  Raises `PolicyError`."""
        if self.policy == CUTS and self.cuts is None:
            raise PolicyError(f"policy '{CUTS}' needs option 'cuts'")
        if self.cuts is not None and self.policy not in (None, CUTS, OPTIMAL):
            raise PolicyError(f"option 'cuts' is for policies '{CUTS}' and '{OPTIMAL}', found policy '{self.policy}'")
        if self.cuts is not None and (self.rules is not None or self.thresholds is not None):
            raise PolicyError("cuts are not found by rules: give cuts or rules, not both")
        policy = CUTS if self.cuts is not None and self.policy is None else self.policy
        words = chosen(policy, self.rules, self.thresholds, stored)
        parse_policy(*words)
        return words

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        words = self.words(target.options)
        networks = g.networks_of(op)
        if networks:
            op.attributes[POLICY] = StringAttr(words[0])
        know(**sizes_of(networks, note_least_work(op)))
        for network in networks:
            if words[0] == OPTIMAL:
                found = fuse_optimal(network, target, self.options_for(network))
                if found and len(networks) == 1:
                    op.attributes[ALTERNATIVES] = StringAttr(json.dumps(found, separators=(",", ":")))
            else:
                gather(network.body.block)
                if self.cuts is not None:
                    units = cut_units(network, self.cuts)
                else:
                    units = grow_units(network, target, parse_policy(*words), self.options)
                number = 0
                for grown in units:
                    number += wrap_grown(grown, number)
        erase_unread_weights(op)

    @property
    def options(self) -> OptimalOptions:
        return OptimalOptions(borders=self.borders, sram=self.sram, optimise=self.optimise)

    def options_for(self, network: g.NetworkOp) -> OptimalOptions:
        """With the cuts, if they are given: raises `PolicyError` for names that no layer has."""
        if self.cuts is None:
            return self.options
        graph = LayerGraph(network)
        layers = named_layers(graph, self.cuts)
        return replace(self.options, ends=tuple(str(node_name(graph.op(i))) for i in layers))


def erase_unread_weights(module: ModuleOp) -> None:
    """Erase the constants that no operation of the module reads.  Operations that a plan has taken out still name the
    whole constants of which it reads parts."""
    read = {operand for op in module.walk() for operand in op.operands}
    for weight in [op for op in module.walk() if isinstance(op, g.WeightOp)]:
        if weight.result not in read:
            weight.detach()
            weight.erase(safe_erase=False)


def sizes_of(networks: Sequence[g.NetworkOp], least: Sequence[Facts]) -> dict[str, float]:
    """How much there is to compile and to run: layers, MB of weights, 10^9 multiply-adds."""
    weights = [op for network in networks for op in network.body.block.ops if isinstance(op, g.WeightOp)]
    layers = [layer for each in least for layer in each["layers"]]
    return {
        "layers": len(layers),
        "megabytes": sum(value_bytes(op.result) for op in weights) / 10**6,
        "gigamacs": sum(layer.get("macs", 0) for layer in layers) / 10**9,
    }


def wrap_grown(grown: Grown, number: int) -> int:
    """Wrap a unit, or each of its runs, with names from this number on; how many there are."""
    if grown.runs is not None:
        write_runs(grown.runs, number, grown.stopped_by)
        return len(grown.runs.units)
    unit = wrap(grown.ops, f"u{number}", grown.stopped_by)
    if grown.maps > 1:
        unit.attributes[MAPS] = IntegerAttr(grown.maps, i64)
    return 1


# ---------------------------------------------------------------- units given by hand


def named_layers(graph: LayerGraph, cuts: str) -> list[int]:
    """The layers that cuts name.  Raises `PolicyError` for names that no layer has."""
    named = [word.strip() for word in cuts.split(",") if word.strip()]
    names = {name: i for i in graph.layers if (name := node_name(graph.op(i)))}
    unknown = [name for name in named if name not in names]
    if unknown:
        raise PolicyError(
            f"cuts: no layer is called '{unknown[0]}'{did_you_mean(unknown[0], list(names))} "
            f"(there are {len(names)} layers with names)"
        )
    return [names[name] for name in named]


def cut_units(network: g.NetworkOp, cuts: str) -> list[Grown]:
    """The layers up to each named one, from the one before it on, as a unit.

    A layer that shares units with no other is one of its own, and a unit also ends before a layer that reads it
    through a reshape.  Raises `PolicyError` for names that no layer has.
    """
    graph = LayerGraph(network)
    last = set(named_layers(graph, cuts))
    found: list[Grown] = []
    unit: list[int] = []

    def close(reason: str) -> None:
        if unit:
            found.append(Grown(tuple(graph.ops(unit)), reason))
            unit.clear()

    for i in graph.layers:
        op = graph.op(i)
        if not can_join(op):
            close(f"{kind_name(op)} follows")
            found.append(Grown((op,), "joins no other layer"))
            continue
        if unit and graph.section_of[graph.op(unit[-1])] != graph.section_of[op]:
            close("operations of other dialects follow")
        if reads_behind(graph, unit, i):
            close("the next layer reads it in another form")
        unit.append(i)
        if i in last:
            close(f"cut behind '{node_name(op)}'")
    close("end of the network")
    return found


def reads_behind(graph: LayerGraph, unit: Sequence[int], layer: int) -> bool:
    """The layer reads something that is no layer of the unit, but depends on it."""
    inside = set(unit)
    behind: set[int] = set()
    for i in range(unit[0] if unit else layer, layer):
        if i not in inside and any(read in inside or read in behind for read in graph.flow.reads_of[i]):
            behind.add(i)
    return any(read in behind for read in graph.flow.reads_of[layer])
