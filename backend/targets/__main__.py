"""Writes the tables of docs/targets.md anew: `python -m frustum.backend.targets docs/targets.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

from frustum.backend.targets import load, names
from frustum.dialects.target import Target
from frustum.dialects.target.declared import walk


def with_tables(text: str) -> str:
    """The text with what stands between `<!-- NAME -->` and `<!-- end of NAME -->` made anew."""
    for name, rows in (("keys", _keys()), ("shipped", _shipped())):
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert begin and end, f"both marks of {name}"
        text = "".join((before, begin, *(f"| {' | '.join(row)} |\n" for row in rows), end, after))
    return text


def _keys() -> Iterable[tuple[str, ...]]:
    yield "key", "allowed", "meaning"
    yield "---", "---", "---"
    for path, field in walk(Target):
        name = f"{'&emsp;' * (len(path) - 1)}`{field.name}`"
        yield name, f"{field.allowed}{'' if field.required else '; may be left out'}", field.doc


def _shipped() -> Iterable[tuple[str, ...]]:
    targets = [load(name) for name in names()]
    yield "", *(f"`{target.name}`" for target in targets)
    yield "---", *("---" for _ in targets)
    for path, field in walk(Target):
        if not field.is_section and path[0] not in ("name", "modelled_on", "options"):
            yield f"`{'.'.join(path)}`", *(_shown(reduce(_key, path, target)) for target in targets)


def _key(section: Any, key: str) -> Any:
    return None if section is None else getattr(section, key)


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    file: Path = Path(sys.argv[1])
    file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
