"""Frustum: a neural network compiler for accelerators with small on-chip memories.

What the package offers is loaded on first use; importing it costs nothing.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frustum.runtime.tools.api import (
        ComparedFigure,
        Compiled,
        CountedPlan,
        Curve,
        Diagnostic,
        Difference,
        Error,
        Explanation,
        Exploration,
        Report,
        Result,
        Target,
        compare,
        compile,
        curve,
        diff,
        explain,
        explore,
        inspect,
        plan,
        run,
        target_schema,
        targets,
        warm_up,
    )

    __version__: str

__all__ = [
    "ComparedFigure",
    "Compiled",
    "CountedPlan",
    "Curve",
    "Diagnostic",
    "Difference",
    "Error",
    "Explanation",
    "Exploration",
    "Report",
    "Result",
    "Target",
    "__version__",
    "compare",
    "compile",
    "curve",
    "diff",
    "explain",
    "explore",
    "inspect",
    "plan",
    "run",
    "target_schema",
    "targets",
    "warm_up",
]

_HERE = Path(__file__).resolve().parent
if _HERE.parent.name == ".dev":
    # In a checkout the sub-packages are the folders at the root of the repository; modules are beside this file.
    # (The links beside it are for type checkers only, which read folders and do not run this line.)
    __path__ = [str(_HERE.parents[1]), str(_HERE)]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'frustum' has no attribute {name!r}")
    if name == "__version__":
        return import_module("importlib.metadata").version("frustum")
    # By name, not by statement: else everything that imports the package would seem to import its commands.
    return getattr(import_module("frustum.runtime.tools.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
