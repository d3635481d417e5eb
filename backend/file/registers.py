"""Which value stands in which register of the register file, while a program is written.

Equal values share a register.  A full file gives up its least recently used entry, with two exceptions that loops
ask for, because set-up instructions inside a loop run again in every pass:

* A value defined outside a loop and used inside it keeps its register until the loop ends.
* What a loop defined is forgotten where it ends: a pass in which the loop was not run would not have defined it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from frustum.dialects.isa.fields import REGISTERS

MOST_KEPT = REGISTERS * 3 // 4
"""Registers that loops may keep; the rest always suffices for one instruction."""

Entry: TypeAlias = tuple[int, int]
"""(number of the value, loop depth of its definition)."""


@dataclass
class _Scope:
    """One open loop body, or the page around all loops."""

    defined: list[Entry] = field(default_factory=list)
    kept: list[Entry] = field(default_factory=list)


class RegisterFile:
    """The writer's picture of one register file."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A page begins: nothing is defined."""
        self._values: dict[Any, int] = {}
        self._register: OrderedDict[Entry, int] = OrderedDict()  # least recently used first
        self._free = list(reversed(range(REGISTERS)))
        self._kept: set[Entry] = set()
        self._scopes = [_Scope()]

    def open_loop(self) -> None:
        self._scopes.append(_Scope())

    def close_loop(self) -> None:
        scope = self._scopes.pop()
        self._kept.difference_update(scope.kept)
        for entry in scope.defined:
            register = self._register.pop(entry, None)
            if register is not None:
                self._free.append(register)

    def find(self, value: Any) -> tuple[int, bool]:
        """The register for `value`, and whether it is new, so that a set-up instruction must define it."""
        number = self._values.setdefault(value, len(self._values))
        depth = len(self._scopes) - 1
        for outer in range(depth, -1, -1):
            entry = number, outer
            if entry in self._register and self._keep(entry, outer, depth):
                self._register.move_to_end(entry)
                return self._register[entry], False
        register = self._free.pop() if self._free else self._evict()
        self._register[number, depth] = register
        self._scopes[depth].defined.append((number, depth))
        return register, True

    def _keep(self, entry: Entry, outer: int, depth: int) -> bool:
        """Keep what is used from outside a loop; False when too much is kept already."""
        if outer == depth or entry in self._kept:
            return True
        if len(self._kept) >= MOST_KEPT:
            return False
        self._kept.add(entry)
        self._scopes[outer + 1].kept.append(entry)
        return True

    def _evict(self) -> int:
        victim = next(entry for entry in self._register if entry not in self._kept)
        return self._register.pop(victim)
