"""`frustum warm-up`: compile the emulator's loops now, so that no run has to."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from frustum.dialects.loops import TIMES, cache_folders, compile_entries
from frustum.runtime.failures import GOOD
from frustum.runtime.model.options import WarmUpOptions
from frustum.runtime.progress import TerminalProgress
from frustum.runtime.report.terminal import show

LOOPS = (
    "frustum.dialects.weights.codec_loops",
    "frustum.runtime.time.event_loop",
    "frustum.runtime.kernels.copy_loop",
    "frustum.runtime.kernels.owner_loop",
    "frustum.runtime.kernels.product_loop",
)
"""Modules with compiled loops."""


def main(options: WarmUpOptions) -> int:
    with TerminalProgress() as progress:
        TIMES.announce = None  # it is what was asked for
        warm_up(lambda share: progress("loops", share))
    kept = ", ".join(cache_folders()) or "nowhere, for no folder can be written: each run compiles them anew"
    show(
        f"loops: {len(TIMES.compiled)} functions compiled, {len(TIMES.loaded)} found compiled,"
        f" {TIMES.seconds:.2f} s; kept in {kept}\n"
    )
    return GOOD


def warm_up(tell: Callable[[float], None] = lambda share: None) -> None:
    """Compile all loops and keep them; `tell` gets the share that is done."""
    for module in LOOPS:
        import_module(module)
    compile_entries(tell)
