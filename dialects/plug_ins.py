"""What installed packages add to Frustum by entry points of the groups `frustum.targets`, `frustum.rules`,
`frustum.policies`, `frustum.operators` and `frustum.passes`; docs/adding.md shows each.

Nothing is loaded before something is asked for that is not ours.  A plug-in that cannot be loaded is a line on stderr,
once, and is as if it were not there.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from frustum.dialects.diagnostic import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind: TypeAlias = Literal["targets", "rules", "policies", "operators", "passes"]


@cache
def points_of(kind: Kind) -> dict[str, EntryPoint]:
    """The plug-ins of a kind that are installed, by name; not loaded."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=f"frustum.{kind}")}


@cache
def plug_in(kind: Kind, name: str) -> Any:
    """What the plug-in of this name gives; None where there is none, or it is broken."""
    point = points_of(kind).get(name)
    if point is None:
        return None
    try:
        return point.load()
    except Exception as error:
        warn(kind, name, f"{type(error).__name__}: {error}")
        return None


def all_of(kind: Kind) -> dict[str, Any]:
    """All plug-ins of a kind that can be loaded."""
    found = {name: plug_in(kind, name) for name in points_of(kind)}
    return {name: each for name, each in found.items() if each is not None}


@cache
def warn(kind: Kind, name: str, problem: str) -> None:
    """Say what is wrong with a plug-in, once."""
    point = points_of(kind)[name]
    whose = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    line = " ".join(problem.split())
    print(f"frustum: warning: plug-in '{name}'{whose} (frustum.{kind}: {point.value}): {line}", file=sys.stderr)


def hint(kind: Kind, name: str, known: list[str]) -> str:
    """Behind a message that nothing of ours has this name: that it is a plug-in's that cannot be used, or what of the
    `known` ones and of the plug-ins is meant."""
    if name in points_of(kind):
        return ": it is that of a plug-in that cannot be used"
    return did_you_mean(name, list(dict.fromkeys([*known, *points_of(kind)])))


def forget() -> None:
    """Look again what is installed."""
    points_of.cache_clear()
    plug_in.cache_clear()
    warn.cache_clear()


class OpenNames(tuple[str, ...]):
    """Names of ours that plug-ins of a kind add to: those of them are found, but not listed."""

    kind: Kind

    @classmethod
    def of(cls, kind: Kind, names: tuple[str, ...]) -> OpenNames:
        found = cls(names)
        found.kind = kind
        return found

    def and_also(self, *names: str) -> OpenNames:
        """These names and others of ours."""
        return OpenNames.of(self.kind, (*self, *names))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name in points_of(self.kind))
