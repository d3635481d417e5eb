"""Other names for a part of a plan: what `again` says of the equal parts that it stands for.

A renaming is a list of pairs of names. Each pair holds for its name, and is an example for names that begin as it does:
`l0.q as l1.q` also takes `l0.k` to `l1.k` and `l4.out` to `l5.out`, `up as up#2` also `up.c` to `up#2.c`. Of several
examples the one with the longest common beginning counts; a name that none is for stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from frustum.dialects.plan.tree import Compute, Copy, Loop, Node, Part, Resident, Sequence, Sum

Name = Callable[[str], str]
Pairs = tuple[tuple[str, str], ...]
TOKEN = re.compile(r"[0-9]+|[A-Za-z]+|.", re.DOTALL)


@dataclass(frozen=True)
class Example:
    """What a pair of names says of names that begin with the tokens `start`: the next tokens `old` become `new`, or,
    where both are numbers, the next number grows by as much."""

    start: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]

    @staticmethod
    def of(old: str, new: str) -> Example:
        a, b = tuple(TOKEN.findall(old)), tuple(TOKEN.findall(new))
        head = _common(a, b)
        tail = _common(a[head:][::-1], b[head:][::-1])
        return Example(a[:head], a[head : len(a) - tail], b[head : len(b) - tail])

    @cached_property
    def growth(self) -> int | None:
        """By how much a number grows."""
        if len(self.old) != 1 or len(self.new) != 1:
            return None
        old, new = _number(self.old[0]), _number(self.new[0])
        return None if old is None or new is None else new - old

    def named(self, tokens: tuple[str, ...]) -> str | None:
        """The new name; None where this is no name of the kind."""
        rest = tokens[len(self.start) :]
        if tokens[: len(self.start)] != self.start:
            return None
        if self.growth is not None:
            number = _number(rest[0]) if rest else None
            if number is None or number + self.growth < 0:
                return None
            return "".join((*self.start, str(number + self.growth), *rest[1:]))
        if rest[: len(self.old)] != self.old:
            return None
        return "".join((*self.start, *self.new, *rest[len(self.old) :]))


class Renaming:
    """What the pairs make of any name."""

    pairs: tuple[tuple[str, str], ...]
    known: dict[str, str]
    examples: list[Example]

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = tuple(pairs)
        self.known = dict(self.pairs)
        self.examples = sorted((Example.of(*pair) for pair in self.pairs), key=lambda example: -len(example.start))

    def __call__(self, name: str) -> str:
        if name in self.known:
            return self.known[name]
        tokens = tuple(TOKEN.findall(name))
        found = (each.named(tokens) for each in self.examples)
        return next((new for new in found if new is not None), name)


def pairs_for(names: Mapping[str, str], first: str) -> Pairs:
    """Few pairs that make of each name the other; the first is of the name `first`."""
    pairs = {first: names[first]}
    while (wrong := _wrong(names, pairs)) is not None:
        pairs[wrong] = names[wrong]
    return tuple(pairs.items())


def is_plain(pairs: Pairs) -> bool:
    """Whether there is one pair, and its names differ in a word, a number, or as `conv` and `conv#2` do."""
    example = Example.of(*pairs[0])
    return len(pairs) == 1 and len(example.old) <= 1 and len(example.new) <= 2


def _wrong(names: Mapping[str, str], pairs: Mapping[str, str]) -> str | None:
    """The first name of which the pairs make another."""
    found = Renaming(pairs.items())
    return next((old for old, new in names.items() if found(old) != new), None)


@dataclass(frozen=True)
class Names:
    """Other names for layers, tensors and axes, where each kind has its own."""

    layer: Name
    tensor: Name
    axis: Name


def _by_kind(name: Name | Names) -> Names:
    return name if isinstance(name, Names) else Names(name, name, name)


def renamed(node: Node, name: Name | Names) -> Node:
    """The node with other names of layers, tensors and axes."""
    names = _by_kind(name)
    match node:
        case Compute():
            sums = tuple(Sum(names.tensor(each.tensor), each.element) for each in node.sums)
            return replace(node, layers=tuple(map(names.layer, node.layers)), sums=sums)
        case Loop():
            body = renamed(node.body, names)
            assert isinstance(body, Sequence)
            return replace(node, axis=names.axis(node.axis), body=body)
        case Sequence():
            return replace(
                node,
                children=tuple(renamed(child, names) for child in node.children),
                residents=tuple(renamed_resident(each, names) for each in node.residents),
                copies=tuple(Copy(names.layer(each.layer), names.layer(each.name)) for each in node.copies),
            )


def renamed_resident(resident: Resident, name: Name | Names) -> Resident:
    part, names = resident.part, _by_kind(name)
    return replace(
        resident,
        tensor=names.tensor(resident.tensor),
        part=part and Part(names.axis(part.axis), part.start, part.stop),
        storage_of=resident.storage_of and names.tensor(resident.storage_of),
        sharded=resident.sharded and names.axis(resident.sharded),
    )


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """How many tokens they have in common from the start."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _number(token: str) -> int | None:
    return int(token) if re.fullmatch(r"0|[1-9][0-9]*", token) else None
