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

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from frustum.dialects.diagnostic import did_you_mean
from frustum.runtime.failures import UsageError
from frustum.runtime.files import recover

if TYPE_CHECKING:
    from onnx import ModelProto
    from xdsl.dialects.builtin import ModuleOp

    from frustum.backend.pipeline import Choices
    from frustum.runtime.diagnostics import SourceText
    from frustum.runtime.model.chain import Chain
    from frustum.runtime.report.report import Seconds

Kind: TypeAlias = Literal["zoo", "folder", "executable", "stage", "onnx"]

ZOO_PREFIX = "zoo:"
MANIFEST = "manifest.json"
"""What is in a compiled folder."""
WHAT_IS_A_MODEL = "MODEL is a path to .onnx, zoo:NAME, a compiled folder, or a dumped stage NN-stop.mlir"


@dataclass(frozen=True)
class Origin:
    """Where a model came from, so that it can be had again: for the oracle."""

    model: str
    """`zoo:NAME`, or the absolute path of an ONNX file."""
    weights_seed: int = 0

    @classmethod
    def of(cls, text: str, weights_seed: int) -> Origin:
        """Of what a user calls `zoo:NAME` or a path."""
        return cls(text, weights_seed) if kind_of_name(text) == "zoo" else cls(str(Path(text).resolve()))

    def load(self) -> ModelProto | Path:
        """The model, or its path; UsageError where it is not there any more."""
        if kind_of_name(self.model) == "zoo":
            return read_zoo(self.model, self.weights_seed)
        path = Path(self.model)
        if not path.is_file():
            raise UsageError(
                f"{path}: error: the model is not there any more, so there is nothing to check against"
            )
        return path


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
