"""Which tables an address cache holds: entries by number, the least recently used given up first.

The compiler decides with it what to load and to evict; the machine does what the program says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from frustum.dialects.isa.program import TABLE_ENTRIES


@dataclass(frozen=True)
class Load:
    """One table to be brought into an entry, after others were given up."""

    key: str
    entry: int
    evicts: tuple[int, ...]


@dataclass
class AddressCache:
    """The tables in a cache of `capacity_bytes`, the least recently used first: entry and size by key."""

    capacity_bytes: int
    held: dict[str, tuple[int, int]] = field(default_factory=dict)

    def entry_of(self, key: str) -> int:
        return self.held[key][0]

    def use(self, keys: Collection[str]) -> None:
        """These are now the most recently used."""
        for key in keys:
            self.held[key] = self.held.pop(key)

    def bring(self, sizes: Mapping[str, int], kept: Collection[str]) -> list[Load]:
        """Loads that make these tables present while those in `kept` stay; together they must fit."""
        loads = []
        for key, size in sizes.items():
            if key not in self.held:
                evicts = self._make_room(size, {*kept, *sizes})
                entry = next(e for e in range(TABLE_ENTRIES) if e not in {e for e, _ in self.held.values()})
                self.held[key] = entry, size
                loads.append(Load(key, entry, evicts))
        self.use(list(sizes))
        return loads

    def _make_room(self, size: int, kept: Collection[str]) -> tuple[int, ...]:
        evicted = []
        while self._used() + size > self.capacity_bytes or len(self.held) == TABLE_ENTRIES:
            victim = next(key for key in self.held if key not in kept)
            evicted.append(self.held.pop(victim)[0])
        return tuple(sorted(evicted))

    def _used(self) -> int:
        return sum(size for _, size in self.held.values())
