"""`frustum.compile` and `frustum.run`.

exe = frustum.compile("model.onnx", target="default")
result = frustum.run(exe, {"data": array})
result.outputs["prob"], result.report["cycles"]["total"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args

from frustum.backend.file.executable import Executable
from frustum.dialects.choices import Mode
from frustum.runtime.model.cache import built
from frustum.runtime.model.chain import Chain, chain_of
from frustum.runtime.model.compiled_folder import open_compiled
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.options import Keywords, Request, check_choice, check_choices, options_of

if TYPE_CHECKING:
    from frustum.runtime.host.inputs import HostArray

__all__ = ["Result", "compile", "run"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Result:
    """Outputs by name (none in mode timing), and the report of schema 1 as `--report` writes it."""

    outputs: dict[str, HostArray]
    report: dict[str, Any]


def takes(kind: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Let a function of options of this kind be called as the kind is: its parameters are declared once, in
    runtime/model/options.py."""

    def taking(function: Callable[[T], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*words: P.args, **named: P.kwargs) -> R:
            return function(kind(*words, **named))

        said = (f"    {each.name}: {option.help}.\n" for each, option in options_of(kind))
        call.__doc__ = f"{function.__doc__}\n{''.join(said)}"
        vars(call)["__signature__"] = signature(kind).replace(return_annotation=signature(function).return_annotation)
        return call

    return taking


@takes(Keywords)
def compile(asked: Keywords) -> Executable | Chain:
    """The executable of a model; a chain of executables and host pieces where it does not run as one.

    `model` may also be an `onnx.ModelProto`, or an xDSL module, which is left as it is; `target` a `Target`.  What the
    others say is told in docs/commands.md; None is what the model or the target's options say, or else the default.
    """
    check_choices(asked)
    chain = built(Request(**vars(asked))).chain
    return chain.single or chain


def run(
    executable: Executable | Chain | str | Path,
    inputs: Mapping[str, HostArray],
    *,
    mode: Mode = "full",
    checked: bool = False,
    on_output: Callable[[str, HostArray], None] = lambda name, array: None,
) -> Result:
    """One run on the emulated machine; `executable` may be a file, or a folder that `frustum compile` wrote.

    `on_output` gets each output as soon as the piece that makes it has run.
    """
    check_choice("mode", mode, get_args(Mode))
    if isinstance(executable, str | Path):
        executable, _ = open_compiled(Path(executable))
    chain = chain_of(executable) if isinstance(executable, Executable) else executable
    ran = execute_chain(chain, inputs, mode, checked, hand=on_output)
    return Result(ran.outputs, report_of_chain(chain, ran).data)
