"""Children of a sequence as the text states them, and which of them are equal but for their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from frustum.dialects.plan.renaming import (
    Name,
    Pairs,
    Renaming,
    is_plain,
    pairs_for,
    renamed,
    renamed_resident,
)
from frustum.dialects.plan.tree import Compute, Node, Resident, Sequence, layers_in


@dataclass(frozen=True)
class Stated:
    """A child and the residents that begin with it, each with the layer to whose child it stays; empty: to the end.

    What a resident itself says of its first and last child is nothing here.
    """

    child: Node
    residents: tuple[tuple[Resident, str], ...] = ()

    def named(self, name: Name) -> Stated:
        residents = tuple(
            (renamed_resident(resident, name), until and name(until)) for resident, until in self.residents
        )
        return Stated(renamed(self.child, name), residents)


@dataclass(frozen=True)
class Repeat:
    """The part from the child that begins with layer `first` to the one that begins with `last` comes again, once with
    each renaming; the next child is number `stop`."""

    first: str
    last: str
    copies: tuple[Pairs, ...]
    stop: int = 0

    def expanded(self, part: tuple[Stated, ...]) -> Iterator[Stated]:
        for pairs in self.copies:
            name = Renaming(pairs)
            yield from (each.named(name) for each in part)


def stated(node: Sequence) -> list[Stated]:
    """The children with the residents that begin with each; those that stay to the last child stay to the end."""
    end, found = len(node.children) - 1, []
    for k, child in enumerate(node.children):
        residents = []
        for each in node.residents:
            if each.first == k:
                until = "" if each.last == end else _last_layer(node.children[each.last])
                residents.append((replace(each, first=0, last=0), until))
        found.append(Stated(child, tuple(residents)))
    return found


FEW_LINES = 6
"""A shorter part comes again only where one example gives all names: else its lines say more than their names do."""


def with_repeats(node: Sequence, lines: Callable[[Stated | Repeat], list[str]]) -> list[Stated | Repeat]:
    """The children, equal parts once, wherever that makes the text (`lines` of each) shorter.

    Computes alone are no part: a line of them says as much as the line that would stand for it.
    """
    search = _Repeats(node)
    found: list[Stated | Repeat] = []
    k = 0
    while k < len(search.children):
        start, size = search.longest(k)
        part = [line for each in search.children[start : start + size] for line in lines(each)]
        again = search.again(start, size, k, is_short=len(part) < FEW_LINES) if size else None
        if again is not None:
            replaced = [line for each in search.children[k : again.stop] for line in lines(each)]
            if sum(map(len, lines(again))) < sum(map(len, replaced)):
                found.append(again)
                k = again.stop
                continue
        found.append(search.children[k])
        k += 1
    return found


class _Repeats:
    """Pairs of runs of children that are equal but for their names."""

    CANDIDATES = 4
    """Of the runs that look alike so many of the longest are compared name by name."""

    def __init__(self, node: Sequence) -> None:
        self.children = stated(node)
        self.end = _last_layer(node.children[-1]) if node.children else ""
        names = [name for child in node.children for name in layers_in(child)]
        self.is_clear = len(set(names)) == len(names) and all(any(layers_in(c)) for c in node.children)
        numbers: dict[Stated, int] = {}
        self.kinds = [numbers.setdefault(_skeleton(each), len(numbers)) for each in self.children]
        self.alike = self._alike()
        self.loops: list[int] = [0, *accumulate(not isinstance(each.child, Compute) for each in self.children)]
        """How many of the first children are no computes."""

    def _alike(self) -> list[list[int]]:
        """For each two children how many from there on have the same shape."""
        count = len(self.kinds)
        found = [[0] * (count + 1) for _ in range(count + 1)]
        for a in reversed(range(count)):
            for b in reversed(range(a + 1, count)):
                if self.kinds[a] == self.kinds[b]:
                    found[a][b] = found[a + 1][b + 1] + 1
        return found

    def longest(self, k: int) -> tuple[int, int]:
        """Where the longest part begins that comes again at child k, and its length; the first of equally long ones."""
        if not self.is_clear:
            return 0, 0
        most = {a: min(self.alike[a][k], k - a) for a in range(k) if self.alike[a][k]}
        near = sorted((a for a in most if self.has_loops(a, most[a])), key=lambda a: -most[a])
        sizes = [(self.size_of(a, k, most[a]), -a) for a in near[: self.CANDIDATES]]
        size, start = max(sizes, default=(0, 0))
        return -start, size

    def has_loops(self, start: int, size: int) -> bool:
        return self.loops[start + size] > self.loops[start]

    def size_of(self, a: int, b: int, most: int) -> int:
        """How many children from a on are those from b on under other names; none if all are computes."""
        names: dict[str, str] = {}
        size = 0
        while size < most and self.adds_names(names, self.children[a + size], self.children[b + size]):
            size += 1
        return size if self.has_loops(a, size) else 0

    def adds_names(self, names: dict[str, str], old: Stated, new: Stated) -> bool:
        """Whether some names for those of `old` make it `new`, with those that are known; adds them."""
        ends = [(until, other) for (_, until), (_, other) in zip(old.residents, new.residents, strict=True)]
        if any(other and not until for until, other in ends):
            return False
        pairs = [(until, other or self.end) for until, other in ends if until]
        pairs += zip(_names(old), _names(new), strict=True)
        return all(names.setdefault(a, b) == b for a, b in pairs)

    def again(self, start: int, size: int, k: int, *, is_short: bool) -> Repeat | None:
        """What says that a part comes again from child k on, as often as it does; None where it does not."""
        first, last = (next(layers_in(self.children[at].child)) for at in (start, start + size - 1))
        copies = []
        while k + size <= len(self.children) and self.size_of(start, k, min(self.alike[start][k], size)) == size:
            names: dict[str, str] = {}
            for step in range(size):
                self.adds_names(names, self.children[start + step], self.children[k + step])
            pairs = pairs_for(names, first)
            if is_short and not is_plain(pairs):
                break
            copies.append(pairs)
            k += size
        return Repeat(first, last, tuple(copies), k) if copies else None


def _skeleton(stated: Stated) -> Stated:
    """The same without names, and without where residents end."""
    bare = stated.named(lambda _: "_")
    return Stated(bare.child, tuple((resident, "") for resident, _ in bare.residents))


def _names(stated: Stated) -> list[str]:
    """All names but where residents end, in order."""
    found: list[str] = []

    def note(name: str) -> str:
        found.append(name)
        return name

    Stated(stated.child, tuple((resident, "") for resident, _ in stated.residents)).named(note)
    return found


def _last_layer(node: Node) -> str:
    return next(reversed(list(layers_in(node))), "")
