# Tests: test/runtime/tools/test_cli_errors.py
"""What MODEL may be, told apart by its name and its first bytes.

| MODEL | kind |
|---|---|
| `zoo:NAME` | `zoo`: a classic network with random weights |
| a folder | `folder`: written by `frustum compile` |
| a file that begins as our executables do | `executable` |
| `*.mlir` | `stage`: written by `--dump-ir`, or by hand |
| any other file | `onnx` |
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from frustum.dialects.diagnostic import did_you_mean
from frustum.runtime.failures import UsageError
from frustum.runtime.files import recover
from frustum.runtime.model.identity import ZOO_PREFIX, model_digest

if TYPE_CHECKING:
    from onnx import ModelProto
    from xdsl.dialects.builtin import ModuleOp

    from frustum.backend.pipeline import Choices
    from frustum.runtime.diagnostics import SourceText
    from frustum.runtime.model.chain import Chain
    from frustum.runtime.report.report import Seconds

Kind: TypeAlias = Literal["zoo", "folder", "executable", "stage", "onnx"]

MANIFEST = "manifest.json"
"""What is in a compiled folder."""
WHAT_IS_A_MODEL = "MODEL is a path to .onnx, zoo:NAME, a compiled folder, or a dumped stage NN-stop.mlir"


@dataclass(frozen=True)
class Origin:
    """A network of the zoo, or an ONNX file."""

    model: str
    """`zoo:NAME`, or the path of an ONNX file: absolute, or relative to `folder`."""
    weights_seed: int = 0
    folder: Path | None = None
    """The compiled folder that names the model."""
    sha256: str = ""
    """The checksum of the model that was compiled; empty where any file of this path is meant."""

    @classmethod
    def of(cls, text: str, weights_seed: int) -> Origin:
        """Of what a user calls `zoo:NAME` or a path."""
        return cls(text, weights_seed) if kind_of_name(text) == "zoo" else cls(str(Path(text).resolve()))

    @classmethod
    def read(cls, data: Mapping[str, Any], folder: Path, sha256: str) -> Origin:
        """As `stored` wrote it."""
        return cls(str(data["model"]), int(data["weights_seed"]), folder, sha256)

    def stored(self, folder: Path) -> dict[str, Any]:
        """For the manifest of a compiled folder, which others may be given: never an absolute path.

        A path relative to the folder where one project holds both (the folder that the compiled one is in, or the
        working folder); elsewhere the name of the file alone.
        """
        return {"model": self._told(folder.resolve()), "weights_seed": self.weights_seed}

    def load(self) -> ModelProto | Path:
        """The model, or its path; UsageError where it is not there any more, or is another one."""
        if kind_of_name(self.model) == "zoo":
            return read_zoo(self.model, self.weights_seed)
        found = [path for path in self._places() if path.is_file()]
        if not found:
            raise UsageError(
                f"{next(self._places())}: error: the model is not there any more, so there is nothing to check"
                " against: --check-against names it"
            )
        same = next((path for path in found if self.sha256 in ("", model_digest(path))), None)
        if same is None:
            raise UsageError(
                f"{found[0]}: error: is not the model that {self.folder} was compiled from; --check-against says "
                "where that is"
            )
        return same

    def _places(self) -> Iterator[Path]:
        """Where the file may be: where the folder says, beside the folder, in the working folder."""
        if self.folder is None:
            yield Path(self.model)
            return
        folder = self.folder.resolve()
        yield (folder / self.model).resolve()
        yield folder.parent / Path(self.model).name
        yield Path(self.model).absolute()

    def _told(self, folder: Path) -> str:
        if kind_of_name(self.model) == "zoo":
            return self.model
        path = next((each for each in self._places() if each.is_file()), Path(self.model))
        for base in (folder.parent, Path.cwd()):
            is_narrow = base != base.parent  # a path from the root is as telling as an absolute one
            if is_narrow and path.is_relative_to(base) and folder.is_relative_to(base):
                return Path(os.path.relpath(path, folder)).as_posix()
        return path.name


@dataclass(frozen=True)
class Uncompiled:
    """A module as it was before it was compiled with these choices, and the names of the pieces that came of it."""

    module: ModuleOp
    choices: Choices
    pieces: tuple[str, ...]
    is_edited: bool
    """Whether --pipeline says the passes."""


@dataclass(frozen=True)
class Job:
    """MODEL as a chain of executables and host pieces, made now or before; where it is from, and how long it took."""

    chain: Chain
    origin: Origin | None
    original: ModelProto | Path | None
    """The model for the oracle, where it is at hand."""
    seconds: Seconds
    log: Sequence[str] = ()
    """What was assumed of the model, and said about cutting and fusing networks again."""
    sources: Sequence[Uncompiled] = ()
    """Where the request asks for them."""

    def model_at_hand(self) -> ModelProto | Path | None:
        """What MODEL was made from; None where nobody knows."""
        return self.origin.load() if self.original is None and self.origin is not None else self.original

    def model_for_check(self, name: str) -> ModelProto | Path:
        """What the oracle runs; UsageError where nobody knows."""
        found = self.model_at_hand()
        if found is None:
            raise UsageError(
                f"{name}: error: there is no model to check against: --check needs the .onnx file or zoo:NAME"
            )
        return found


def kind_of(text: str) -> Kind:
    """What this MODEL is; UsageError if there is no such thing."""
    kind = kind_of_name(text)
    if kind in ("zoo", "folder"):
        return kind
    path = Path(text)
    if not path.exists():
        with suppress(OSError):
            recover(path)
        if path.is_dir():
            return "folder"
    if path.exists() and not path.is_file():  # a pipe would be waited for, and is read twice
        raise UsageError(f"{text}: error: cannot be read: it is neither a file nor a folder")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise UsageError(f"{text}: error: cannot be read: {error.strerror}{_meant(text)}") from error
    from frustum.backend.file.container import MAGIC

    return "executable" if start == MAGIC else kind


def kind_of_name(text: str) -> Kind:
    """What it is by its name alone."""
    if text.startswith(ZOO_PREFIX):
        return "zoo"
    if Path(text).is_dir():
        return "folder"
    return "stage" if Path(text).suffix == ".mlir" else "onnx"


def read_zoo(text: str, weights_seed: int) -> ModelProto:
    from frustum.passes.zoo import zoo_model

    return zoo_model(text.removeprefix(ZOO_PREFIX), weights_seed)


def read_stage(path: str) -> tuple[ModuleOp, SourceText]:
    """A module from MLIR text, and the text for messages; `Reported` where it is wrong."""
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.universe import Universe

    from frustum.runtime.diagnostics import SourceText, located_errors

    context = Context()
    context.load_dialect(Builtin)
    for name, dialect in Universe.get_multiverse().all_dialects.items():
        if name != Builtin.name:
            context.register_dialect(name, dialect)
    text = SourceText.read(path, Path(path).read_bytes())
    with located_errors(text):
        module = text.parse(context)
        module.verify()
        _check_order(module)
    return module, text


def _check_order(module: ModuleOp) -> None:
    """VerifyException where an operation of ours uses what only a later one makes: they run one after the other."""
    from xdsl.ir import Operation
    from xdsl.utils.exceptions import VerifyException

    from frustum.runtime.universe import DIALECTS

    ours = {name for name, _ in DIALECTS}
    seen: set[Operation] = set()
    for op in module.walk():
        if op.dialect_name() in ours:
            for number, operand in enumerate(op.operands):
                if isinstance(operand.owner, Operation) and operand.owner not in seen:
                    raise VerifyException(f"'{op.name}': operand {number} is made behind it, by '{operand.owner.name}'")
        seen.add(op)


def _meant(text: str) -> str:
    from frustum.passes.zoo import ZOO

    known = [f"{ZOO_PREFIX}{name}" for name in ZOO]
    is_bare_name = Path(text).name == text and not Path(text).suffix
    near = did_you_mean(f"{ZOO_PREFIX}{text}", known) if is_bare_name else ""
    return near or f" ({WHAT_IS_A_MODEL})"
