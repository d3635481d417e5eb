"""Blocks of a dataflow graph: one entry, one exit, several branches between them, found by dominance.

Source: Johnson, Pearson, Pingali, "The Program Structure Tree" (PLDI 1994), for a graph without cycles: a fork and
the join that it immediately dominates, and that immediately post-dominates it, enclose a region.
Dominators of such a graph are lowest common ancestors, taken in topological order (Lengauer and Tarjan's tree, built
as in Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm"); ancestors are found by skipping (Myers, "An
Applicative Random-Access Stack", 1983), so all blocks of n nodes take n log n steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

Edges = Sequence[Sequence[int]]
"""For each node the nodes at the other ends of its edges."""


@dataclass(frozen=True)
class Block:
    """Branches from `entry`, which stands before the block, to `exit`, its last node."""

    entry: int
    exit: int
    nodes: tuple[int, ...]
    """All nodes after the entry to the exit, in topological order."""


@dataclass
class DataFlow:
    """A dataflow graph whose nodes are numbered in topological order, by the nodes that each one reads."""

    reads: Edges

    @cached_property
    def reads_of(self) -> list[list[int]]:
        """The nodes that each node reads, each once."""
        return [sorted(set(nodes)) for nodes in self.reads]

    @cached_property
    def users_of(self) -> list[list[int]]:
        """The nodes that read each node, each once, in topological order."""
        users: list[list[int]] = [[] for _ in self.reads_of]
        for node, nodes in enumerate(self.reads_of):
            for read in nodes:
                users[read].append(node)
        return users

    @cached_property
    def forks(self) -> dict[int, int]:
        """{fork: join} of every block."""
        above = Tree(self.reads_of).parents
        found = {}
        for fork, users in enumerate(self.users_of):
            join = self.post_dominator(fork)
            if len(users) > 1 and join is not None and above[join] == fork:
                found[fork] = join
        return found

    @cached_property
    def joins(self) -> dict[int, int]:
        """{join: fork} of every block."""
        return {join: fork for fork, join in self.forks.items()}

    def post_dominator(self, node: int) -> int | None:
        """The first node through which everything that comes of this one goes; None: it ends in several places."""
        last = len(self.reads_of) - 1
        below = self._below[last - node]
        return last - below if below >= 0 else None

    @cached_property
    def _below(self) -> list[int]:
        """The dominator tree of the graph turned round; node i is the one before the last, i steps back."""
        last = len(self.reads_of) - 1
        return Tree([[last - user for user in self.users_of[last - i]] for i in range(last + 1)]).parents

    def between(self, first: int, last: int) -> tuple[int, ...]:
        """The nodes on ways from `first` (not itself) to `last`, in topological order."""
        found, reached = set(), [last]
        while reached:
            node = reached.pop()
            if node > first and node not in found:
                found.add(node)
                reached += self.reads_of[node]
        after = {first}
        for node in sorted(found):
            if any(read in after for read in self.reads_of[node]):
                after.add(node)
        return tuple(sorted(after - {first}))

    def block_from(self, entry: int) -> Block | None:
        """The block whose branches start at a node."""
        join = self.forks.get(entry)
        return None if join is None else Block(entry, join, self.between(entry, join))

    def blocks(self) -> list[Block]:
        """All blocks, by entry: one that holds others comes before them."""
        return [block for entry in sorted(self.forks) if (block := self.block_from(entry)) is not None]


@dataclass
class Tree:
    """The dominator tree: `parents[i]` is the nearest node on all ways to node i; -1 where there is none."""

    reads: Edges
    parents: list[int] = field(init=False, default_factory=list)
    _depths: list[int] = field(init=False, default_factory=list)
    _skips: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        for nodes in self.reads:
            self._add(self._common(nodes))

    def _add(self, parent: int) -> None:
        """A node below `parent`, with a skip over as many ancestors as the parent's two skips together."""
        self.parents.append(parent)
        self._depths.append(self._depth(parent) + 1)
        skip = self._skip(parent)
        same = self._depth(parent) - self._depth(skip) == self._depth(skip) - self._depth(self._skip(skip))
        self._skips.append(self._skip(skip) if same else parent)

    def _common(self, nodes: Iterable[int]) -> int:
        common: int | None = None
        for node in nodes:
            common = node if common is None else self._ancestor_of_both(common, node)
        return -1 if common is None else common

    def _ancestor_of_both(self, a: int, b: int) -> int:
        if self._depth(a) < self._depth(b):
            a, b = b, a
        while self._depth(a) > self._depth(b):
            a = self._skip(a) if self._depth(self._skip(a)) >= self._depth(b) else self.parents[a]
        while a != b:
            a, b = (
                (self._skip(a), self._skip(b))
                if self._skip(a) != self._skip(b)
                else (self.parents[a], self.parents[b])
            )
        return a

    def _depth(self, node: int) -> int:
        return -1 if node < 0 else self._depths[node]

    def _skip(self, node: int) -> int:
        return -1 if node < 0 else self._skips[node]
