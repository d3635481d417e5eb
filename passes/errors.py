"""What is wrong with a model: errors of the user's input, printed as they are (exit code 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["ModelError", "Problem", "Unsupported"]


class ModelError(Exception):
    """The model, or what was asked of it, cannot be used; the message is one line per problem."""


@dataclass(frozen=True)
class Problem:
    """One thing that stands in the way, and where it is."""

    file: str
    message: str
    node: str = ""
    operator: str = ""

    def __str__(self) -> str:
        place = f" node '{self.node}' ({self.operator}):" if self.operator else ""
        return f"{self.file}:{place} error: {self.message}"


class Unsupported(ModelError):
    """The model asks for what Frustum cannot do: all of it at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
