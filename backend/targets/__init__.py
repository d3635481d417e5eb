"""The shipped machines: one YAML file each, every number with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from frustum.dialects.plug_ins import hint, plug_in, points_of, warn
from frustum.dialects.target import Target, TargetError, read_target
from frustum.dialects.target.declared import FieldProblem

_FOLDER = Path(__file__).resolve().parent
_SUFFIXES = (".yaml", ".yml")
MOST_BYTES = 1 << 20
"""No description of a target is longer."""


def names() -> list[str]:
    """The shipped targets, the default one first."""
    return sorted((file.stem for file in _FOLDER.glob("*.yaml")), key=lambda name: (name != "default", name))


def path(name: str) -> Path:
    """The file of a shipped target, or of a plug-in's; `TargetError` if there is none of that name."""
    if name in names():
        return _FOLDER / f"{name}.yaml"
    file = plug_in("targets", name)
    if isinstance(file, str | Path):
        return Path(file)
    if file is not None:
        warn("targets", name, f"it is no path of a YAML file, but {type(file).__name__}")
    shipped, near = ", ".join(names()), hint("targets", name, names())
    raise TargetError(f"error: no target {name!r}{near} (shipped: {shipped}; or a file that ends in .yaml)")


def plugged() -> dict[str, Target]:
    """The targets of plug-ins, by name; those that cannot be read are said and left out."""
    found = {}
    for name in points_of("targets"):
        try:
            if plug_in("targets", name) is not None:
                found[name] = load(name)
        except TargetError as error:
            warn("targets", name, str(error))
    return found


def is_file(name: str) -> bool:
    """Whether a target is named by its file."""
    return Path(name).suffix in _SUFFIXES


def load(
    name_or_path: str | Path, check_options: Callable[[Mapping[str, Any]], list[FieldProblem]] = lambda options: []
) -> Target:
    """A shipped target by name, or any by its file; `TargetError` says what is wrong, also to `check_options`."""
    return _load(name_or_path, check_options, ())


def _load(
    name_or_path: str | Path,
    check_options: Callable[[Mapping[str, Any]], list[FieldProblem]],
    around: tuple[Path, ...],
) -> Target:
    """`around`: the files that extend it."""
    file = Path(name_or_path) if is_file(str(name_or_path)) else path(str(name_or_path))
    place = file.resolve()
    if place in around:
        raise TargetError(f"error: {file} extends itself")

    def base(name: str) -> Target:
        """What the file extends; another file is named from the folder of this one."""
        return _load(file.parent / name if is_file(name) else name, check_options, (*around, place))

    try:
        return read_target(_text(file), str(file), check_options, base)
    except TargetError as error:
        if not is_file(str(name_or_path)) and name_or_path not in names():  # else the file is the user's, or ours
            warn("targets", str(name_or_path), str(error).splitlines()[0])
        raise


def _text(file: Path) -> str:
    try:
        if file.is_file() and (size := file.stat().st_size) > MOST_BYTES:
            raise TargetError(f"{file}: error: {size} bytes long, more than any target")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TargetError(f"{file}: error: not YAML: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise TargetError(f"{file}: error: cannot be read: {error.strerror}") from error
