# Tests: test/runtime/study/test_explore.py
"""`frustum explore`: what a model costs on many machines, compiled in many ways; the points that no other beats."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frustum.backend import targets
from frustum.backend.refuse import parse_refusal
from frustum.passes.fuse.policy import CUSTOM, PolicyError, parse_policy
from frustum.passes.tile.orders import parse_order
from frustum.runtime.failures import GOOD, UsageError
from frustum.runtime.files import cannot_read, check_writable_file, write_file
from frustum.runtime.model.cache import versions
from frustum.runtime.model.identity import checksum, model_digest, pipeline_digest
from frustum.runtime.model.options import Request
from frustum.runtime.model.sources import kind_of
from frustum.runtime.progress import TerminalProgress
from frustum.runtime.report.terminal import show
from frustum.runtime.study.exploration import Exploration
from frustum.runtime.study.explore import PointLoop
from frustum.runtime.study.front import Explored
from frustum.runtime.study.options import ExploreOptions
from frustum.runtime.study.point import Point
from frustum.runtime.study.search import Choice, search_of
from frustum.runtime.study.space import Space, changed, read_space
from frustum.runtime.study.store import opened
from frustum.runtime.study.workers import workers


def main(options: ExploreOptions) -> int:
    if options.html:
        check_writable_file(Path(options.html))
    database = _database(options.space, options.database)
    with TerminalProgress() as progress:

        def begin(points: int, at_a_time: int) -> None:
            """Before the first point is finished, which may take a minute."""
            progress.note(f"{options.space}: up to {points} points, {at_a_time} at a time")
            progress("explore", 0.0)

        found = explored(
            options.models, options.space, database, options.scheduler, lambda share: progress("explore", share), begin
        )
    if options.html:
        write_file(Path(options.html), lambda path: path.write_text(found.html(), "utf-8"))
    if options.json:
        show(json.dumps(found.data(), indent=1) + "\n")
    else:
        show(found.text())
        show(f"{database}: {found.ran} points are new, {len(found.points) - found.ran} were there\n")
    return GOOD


def explored(
    models: Sequence[str], space_file: str | Path, database: Path | None = None, scheduler: str | None = None,
    tell: Callable[[float], None] = lambda share: None, begin: Callable[[int, int], None] = lambda points, size: None,
) -> Exploration:
    """All points; everything that can be refused is refused before a worker starts."""
    file = Path(space_file)
    with cannot_read(file):
        text = file.read_text(encoding="utf-8", errors="replace")
    space = read_space(text, str(file), targets.load, _wrong_option)
    for model in models:
        if kind_of(model) not in ("zoo", "onnx", "stage"):
            raise UsageError(
                f"{model}: error: is compiled already: what is explored is compiled for every point"
            )
    searches = [search_of(space) for _ in models]
    found: list[Explored] = []
    count = min(space.size, space.points or space.size) * len(models)
    ran = 0
    with opened(database or _database(file, None)) as store, workers(scheduler) as (executor, size):
        begin(count, size)
        for model, search in zip(models, searches, strict=True):

            def told(done: int, before: int = len(found)) -> None:
                tell(min(1.0, (before + done) / count))

            loop = PointLoop(search, _points(model, space), space.objectives, store, executor, size, told)
            found += loop.run()
            ran += loop.ran
    return Exploration(tuple(found), space.objectives, f"{', '.join(models)} over {file.name}", ran)


def _database(space: str | Path, said: str | Path | None) -> Path:
    """Where points are kept."""
    return Path(said or f"{Path(space).stem}.sqlite")


def _points(model: str, space: Space) -> Callable[[Choice], Point]:
    """From a choice to its point; what does not depend on the choice is worked out once."""
    of_model, compiler = model_digest(model), checksum([f"{each}\n".encode() for each in versions()])

    def point(choice: Choice) -> Point:
        design = space.design(choice)
        machine = changed(space.base, design.target)
        asked: dict[str, Any] = dict(design.options)
        pipeline = pipeline_digest(Request(model, **asked))
        of_target = checksum([json.dumps(machine, sort_keys=True, separators=(",", ":")).encode()])
        return Point(model, machine, design.options, (of_target, of_model, pipeline, compiler), design.words)

    return point


def _wrong_option(name: str, text: str) -> str | None:
    """What is wrong with the text of an option that is no choice of a few words."""
    try:
        match name:
            case "order":
                parse_order(text)
            case "refuse":
                parse_refusal(text)
            case "rules":
                parse_policy(CUSTOM, text)
            case "thresholds":
                parse_policy("greedy", None, text)
    except (ValueError, PolicyError) as error:
        return f"found {text!r}: {error}"
    return None
