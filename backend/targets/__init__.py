"""The shipped machines: one YAML file each, every number with its source."""

from __future__ import annotations

from pathlib import Path

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.target import Target, TargetError, read_target

_FOLDER = Path(__file__).resolve().parent
_SUFFIXES = (".yaml", ".yml")


def names() -> list[str]:
    """The shipped targets, the default one first."""
    return sorted((file.stem for file in _FOLDER.glob("*.yaml")), key=lambda name: (name != "default", name))


def path(name: str) -> Path:
    """The file of a shipped target; `TargetError` if there is none of that name."""
    if name not in names():
        shipped = ", ".join(names())
        near = did_you_mean(name, names())
        raise TargetError(
            f"error: no target {name!r}{near} (shipped: {shipped}; or a file that ends in .yaml)"
        )
    return _FOLDER / f"{name}.yaml"


def load(name_or_path: str | Path) -> Target:
    """A shipped target by name, or any by its file; `TargetError` says what is wrong."""
    file = Path(name_or_path)
    if file.suffix not in _SUFFIXES:
        file = path(str(name_or_path))
    return read_target(_text(file), str(file))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TargetError(f"{file}: error: not YAML: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise TargetError(f"{file}: error: cannot be read: {error.strerror}") from error
