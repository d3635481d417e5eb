# Tests: test/runtime/tools/test_plan.py
"""`frustum curve`: DRAM bytes against SRAM capacity."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from frustum.dialects.errors import Error
from frustum.runtime.failures import GOOD
from frustum.runtime.files import check_writable_file, write_file
from frustum.runtime.model.cache import cache_folder
from frustum.runtime.model.options import Request
from frustum.runtime.report.terminal import show
from frustum.runtime.study.options import CurveOptions
from frustum.runtime.study.planned import Curve, curve_of, kept_curve
from frustum.runtime.tools.plan import networks_of_request, networks_with, wished


def main(options: CurveOptions) -> int:
    if options.svg is not None:
        check_writable_file(Path(options.svg))
    networks, target, request = networks_of_request(options)
    curves = [
        curve_of(network, target, wishes=wishes, cache=not options.no_cache)
        for network, wishes in wished(networks, target, request)
    ]
    if options.svg is not None:
        for number, each in enumerate(curves):
            file = Path(options.svg)
            file = file if len(curves) == 1 else file.with_stem(f"{file.stem}_{number}")
            write_file(file, partial(_write, each.svg()))
    if options.svg is None or options.csv:
        show("\n".join(each.csv() if options.csv else each.text() for each in curves))
    return GOOD


def kept_curves(request: Request) -> list[Curve]:
    """Curves of bytes of a model that were found before, for who shows them beside something else: nothing is searched,
    and there is none where the cache is off, or MODEL is no model any more."""
    if request.no_cache or cache_folder() is None:
        return []
    try:
        networks, target, _ = networks_with(request)
    except Error:
        return []
    return [each for network in networks if (each := kept_curve(network, target)) is not None]


def _write(text: str, place: Path) -> None:
    place.write_text(text, "utf-8")
