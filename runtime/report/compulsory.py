# Tests: test/pipeline/test_true_figures.py
"""What a network has to move and to multiply at least: one count, of the network before it was planned.

Everything that the report calls compulsory, a roofline or a bound starts here, from the facts of
`passes/analysis/least_work.py`.  Nothing here looks at what a program holds or does, but for programs that come without
these facts: of those the inputs, weights and outputs are all that is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

from frustum.dialects.isa.program import ELEMENT_BYTES, External
from frustum.runtime.report.units import SubgraphRun

Facts: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class NetworkFacts:
    """The facts of the networks that ran, and which inputs and outputs of theirs are not the model's but come from
    other pieces or the host, or go there; `networks` is None where a program does not know its network."""

    networks: Sequence[Facts] | None
    given: frozenset[str]
    handed: frozenset[str]
    externals: Sequence[External]
    is_compressed: bool
    """Whether weights may be stored compressed."""

    @cached_property
    def _weights(self) -> dict[tuple[str, int], int]:
        """Of each weight, by name and bytes, the fewest in which it can be stored; pieces may share some."""
        found: dict[tuple[str, int], int] = {}
        for network in self.networks or ():
            for name, (raw, own, least) in network["weights"].items():
                found[name, raw] = max(found.get((name, raw), 0), least if self.is_compressed else own)
        return found

    @cached_property
    def _maps(self) -> int:
        """Bytes of the model's inputs, as far as results need them, and outputs."""
        read, made = Counter[str](), Counter[str]()
        for network in self.networks or ():
            for name, size in zip(network["inputs"], network["input_needed_bytes"], strict=True):
                read[name] = max(read[name], size if name not in self.given else 0)
            for name, size in network["output_bytes"].items():
                made[name] = max(made[name], size if name not in self.handed else 0)
        return read.total() + made.total()

    @property
    def compulsory_bytes(self) -> int:
        """With weights as tensors."""
        if self.networks is None:
            return sum(prod(each.shape) * ELEMENT_BYTES[each.element] for each in self.externals)
        return self._maps + sum(raw for _, raw in self._weights)

    @property
    def stored_bytes(self) -> int:
        """With weights in the smallest form that the compiler may choose."""
        if self.networks is None:
            return sum(each.bytes for each in self.externals)
        return self._maps + sum(self._weights.values())

    @property
    def weight_bytes(self) -> dict[str, int]:
        """Of each weight the fewest bytes that cross the port."""
        return {name: least for (name, _), least in self._weights.items()}

    def useful_macs(self, programs: int) -> dict[int, int]:
        """Products that the results need, by the bytes of their elements; `programs`: what programs without facts
        say."""
        if self.networks is None:
            return {0: programs}
        found, seen = Counter[int](), set[tuple[str, int]]()
        for network in self.networks:
            own = [(each["name"], each["macs"], each["element"]) for each in network["layers"] if each.get("macs")]
            for name, macs, element in own:
                found[element] += macs if (name, macs) not in seen else 0
            seen |= {(name, macs) for name, macs, _ in own}
        return dict(found)


def network_facts(runs: Sequence[SubgraphRun]) -> NetworkFacts:
    """Of all pieces that ran; pieces of one network, if all of them are there, count as the network."""
    kept = {
        (each.class_, each.name): each
        for run in runs
        for each in run.program.externals
        if each.class_ == "weight" or (each.class_ in ("input", "output") and each.name not in run.passed)
    }
    networks = list(_networks(runs))
    return NetworkFacts(
        None if not runs or None in networks else [each for each in networks if each is not None],
        _passed(runs, "input"), _passed(runs, "output"), list(kept.values()), any(run.is_compressed for run in runs),
    )  # fmt: skip


def _networks(runs: Sequence[SubgraphRun]) -> Iterable[Facts | None]:
    wholes: list[Mapping[str, Any]] = []
    for run in runs:
        whole = run.whole_network
        if whole is None or sum(each.whole_network == whole for each in runs) != whole["pieces"]:
            yield run.least_work
        elif whole not in wholes:
            wholes.append(whole)
            yield whole["least_work"]


def _passed(runs: Sequence[SubgraphRun], class_: str) -> frozenset[str]:
    """Inputs, or outputs, of programs that are not the model's."""
    return frozenset(
        each.name for run in runs for each in run.program.externals if each.class_ == class_ and each.name in run.passed
    )
