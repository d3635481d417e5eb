# Tests: test/runtime/study/test_explore.py
"""What `frustum explore` and `frustum.explore` give: all points, and those that no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from frustum.runtime.study.front import Explored, front, front_text, summary, values_of
from frustum.runtime.study.front_page import page


@dataclass(frozen=True, repr=False)
class Exploration:
    """The points of a space, in the order in which they were asked for."""

    points: tuple[Explored, ...]
    """Each with what came of it."""
    objectives: Sequence[str]
    """Figures, or numbers of the target, of which small is good."""
    title: str
    ran: int
    """Points that ran now, and were not kept from before."""

    @property
    def front(self) -> list[Explored]:
        """The points that no other point of the same model beats."""
        return front(self.points, self.objectives)

    def text(self) -> str:
        """What the command prints: the front as a table."""
        return front_text(self.points, self.objectives)

    def html(self) -> str:
        """The points as a self-contained page."""
        return page(self.points, self.objectives, self.title)

    def data(self) -> list[dict[str, Any]]:
        """Every point with what came of it, as `frustum explore --json` has it."""
        best = {id(each) for each in self.front}
        return [
            {
                "model": each[0].model, "point": dict(each[0].words), "status": each[1].status,
                "figures": dict(each[1].figures), "message": each[1].message, "needed": each[1].needed,
                "available": each[1].available, "on_front": id(each) in best,
                "objectives": values_of(each, self.objectives),
            }
            for each in self.points
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"<frustum.Exploration: {summary(self.points, self.front)}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"
