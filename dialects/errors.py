"""`frustum.Error`, the base of all errors that speak to the user, and what each tells.

Imports nothing but the standard library: every floor has errors of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

WORD = "error: "
NODE = re.compile(r" node '(?P<node>.*)' \((?P<operator>[^()]*)\)$")
LINE = re.compile(r":(?P<line>\d+)(:(?P<column>\d+))?$")
"""What stands at the end of a place, before the colon: a node of a model; a line, perhaps with a column."""
MEND = re.compile(r"; (did you mean [^?]*\?)|\(([^()]*)\)$")
"""Where in a reason it is said what would mend it."""


@dataclass(frozen=True)
class Diagnostic:
    """One problem: where it is, and why it is one."""

    reason: str
    file: str | None = None
    line: int | None = None
    """From 1."""
    column: int | None = None
    """From 1."""
    node: str | None = None
    """Of a model."""
    operator: str | None = None
    """The node's."""
    mend: str | None = None
    """What would mend it, as far as the message says so."""
    source: str = ""
    """The line of the file with a caret under the place, where there is one."""


class Error(Exception):
    """What was asked for cannot be done; the text holds every problem found, ready to print."""

    exit_code: ClassVar[int] = 2
    """Of a command that ends with it."""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The problems one by one."""
        return diagnostics_of(str(self))

    def reword(self, word: Callable[[str], str]) -> None:
        """Say all texts in other words, such as keywords in place of flags."""
        BaseException.__init__(self, *(word(each) if isinstance(each, str) else each for each in self.args))


def diagnostics_of(text: str) -> tuple[Diagnostic, ...]:
    """The problems of a message; a text without the word `error:` is the reason of one."""
    found: list[Diagnostic] = []
    for line in text.splitlines():
        place, word, reason = line.partition(WORD)
        if word and (not place or place.endswith(": ")):
            found.append(_diagnostic(place.removesuffix(": "), reason))
        elif found:
            found[-1] = replace(found[-1], source=f"{found[-1].source}{line}\n")
    return tuple(found) or (Diagnostic(text, mend=_mend(text)),)


def _diagnostic(place: str, reason: str) -> Diagnostic:
    """`place` is FILE, FILE:LINE:COL, or FILE: node 'NAME' (OPERATOR)."""
    node, line = NODE.search(place), LINE.search(place)
    if node is not None:
        file = place[: node.start()].removesuffix(":")
        return Diagnostic(reason, file, node=node["node"], operator=node["operator"], mend=_mend(reason))
    if line is not None:
        column = None if line["column"] is None else int(line["column"])
        return Diagnostic(reason, place[: line.start()], int(line["line"]), column, mend=_mend(reason))
    return Diagnostic(reason, place or None, mend=_mend(reason))


def _mend(reason: str) -> str | None:
    match = MEND.search(reason)
    return None if match is None else match[1] or match[2]
