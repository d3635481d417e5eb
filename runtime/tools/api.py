"""What `import frustum` gives: compile, run, look.

compiled = frustum.compile("model.onnx", target="default")
result = frustum.run(compiled, {"data": array})
result.outputs["prob"], result.report["cycles"]["total"]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, get_args, overload

from frustum.backend import targets as shipped
from frustum.backend.file.executable import Executable
from frustum.dialects.choices import Mode
from frustum.dialects.errors import Diagnostic, Error
from frustum.dialects.target import Target
from frustum.runtime.failures import Differs, UsageError
from frustum.runtime.model.cache import built
from frustum.runtime.model.chain import Chain, checked_values, random_values
from frustum.runtime.model.compiled import Compiled
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.options import (
    Keywords,
    Request,
    RunOptions,
    check_choice,
    check_choices,
    flag_of,
    options_of,
)
from frustum.runtime.model.stream import check_streams, execute_stream, split_inputs, times_of
from frustum.runtime.report.report import Report
from frustum.runtime.study.difference import Difference

if TYPE_CHECKING:
    from frustum.runtime.host.inputs import HostArray

__all__ = [
    "Compiled", "Diagnostic", "Error", "Report", "Result", "Target", "compile", "diff", "inspect", "run", "targets"
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
FLAG = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*")


@dataclass(frozen=True)
class Result:
    """Outputs by name (none in mode timing; of a stream with a leading axis), and the report of schema 1."""

    outputs: dict[str, HostArray]
    report: Report


# --- options and messages ----------------------------------------------------------------------------------


def takes(kind: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Let a function of options of this kind be called as the kind is: its parameters are declared once, in
    runtime/model/options.py."""

    def taking(function: Callable[[T], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*words: P.args, **named: P.kwargs) -> R:
            with said_by_keywords():
                return function(kind(*words, **named))

        said = (f"    {each.name}: {option.help}.\n" for each, option in options_of(kind))
        call.__doc__ = f"{function.__doc__}\n{''.join(said)}"
        vars(call)["__signature__"] = signature(kind).replace(return_annotation=signature(function).return_annotation)
        return call

    return taking


@contextmanager
def said_by_keywords() -> Iterator[None]:
    """Errors name keywords where those of the command line name flags."""
    try:
        yield
    except Error as error:
        error.reword(in_keywords)
        raise


def in_keywords(text: str) -> str:
    """`--batch` of a message is `batch`."""
    names = {flag_of(each): each.name for each in fields(RunOptions) if "option" in each.metadata and flag_of(each)}
    return FLAG.sub(lambda found: names.get(found[0], found[0]), text)


# --- what there is to call ---------------------------------------------------------------------------------


@takes(Keywords)
def compile(asked: Keywords) -> Compiled:
    """A model compiled for a target.

    `model` may also be an `onnx.ModelProto`, or an xDSL module, which is left as it is; `target` a `Target`.  What the
    others say is told in docs/commands.md; None is what the model or the target's options say, or else the default.
    frustum.Error says what cannot be done.
    """
    check_choices(asked)
    if isinstance(asked.dump_ir, str):
        asked = replace(asked, dump_ir=Path(asked.dump_ir))
    return Compiled(built(Request(**vars(asked))))


def run(
    compiled: Compiled | Executable | Chain | str | Path,
    inputs: Mapping[str, HostArray] | None = None,
    *,
    mode: Mode = "full",
    checked: bool = False,
    check: bool = False,
    stream: int | None = None,
    input_seed: int = 0,
    on_output: Callable[[str, HostArray], None] = lambda name, array: None,
) -> Result:
    """One run on the emulated machine, of what was compiled: also of a file, or of a folder that was saved.

    inputs: arrays by name; without them random ones from `input_seed`.
    mode: numbers and time, or one of them.
    checked: stop on uninitialised reads, out-of-range accesses and races.
    check: compare with onnxruntime; a frustum.Error with exit code 3 where it differs.
    stream: so many inputs one after the other through the chips; arrays have a leading axis for them.
    on_output: gets each output of a single input as soon as the piece that makes it has run.
    """
    with said_by_keywords():
        check_choice("mode", mode, get_args(Mode))
        if inputs is not None and not isinstance(inputs, Mapping):
            raise UsageError("error: inputs are a mapping by name, such as {'x': array}")
        if check and mode == "timing":
            raise UsageError("error: check needs mode full or functional: mode timing computes no numbers")
        if stream is not None and stream < 1:
            raise UsageError(f"error: stream is {stream}: at least one input goes through the chips")
        made = Compiled.of(compiled)
        each = _inputs(made.chain, inputs, mode, stream, input_seed)
        return _run(made, each, mode, checked, check, stream, on_output)


def _inputs(
    chain: Chain, given: Mapping[str, HostArray] | None, mode: Mode, stream: int | None, seed: int
) -> list[dict[str, HostArray]]:
    """Those of each input of a stream, or of the only one."""
    if mode == "timing":
        return [{}] * (stream or 1)
    if given is None:
        return [random_values(chain.inputs, seed + number) for number in range(stream or 1)]
    each = [dict(given)] if stream is None else split_inputs(given, stream, "inputs")
    return [checked_values(chain.inputs, one) for one in each]


def _run(
    made: Compiled, inputs: list[dict[str, HostArray]], mode: Mode, checked: bool, check: bool, stream: int | None,
    on_output: Callable[[str, HostArray], None],
) -> Result:  # fmt: skip
    chain, figures = made.chain, None
    model = made.job.model_for_check(made.model) if check else None
    if stream is None:
        ran = execute_chain(chain, inputs[0], mode, checked, hand=on_output)
        outputs, each = ran.outputs, [ran.outputs]
    else:
        check_streams(chain)
        ran, outputs, each = execute_stream(chain, inputs, mode, checked)
        figures = None if mode == "functional" else times_of(chain, ran, stream).figures
    if model is None:
        return Result(outputs, report_of_chain(chain, ran, None, made.job.seconds, figures))
    from frustum.runtime.host.agreement import agreement, together

    found, worst = together([agreement(model, *pair, chain.dtype) for pair in zip(inputs, each, strict=True)])
    if not worst.good:
        raise Differs(
            f"{made.model}: error: output '{worst.worst}' differs from {found.reference}: relative error"
            f" {worst.max_rel_error:.3g}, at most {worst.tolerance:g} is allowed in {chain.dtype}"
        )
    return Result(outputs, report_of_chain(chain, ran, found, made.job.seconds, figures))


def inspect(what: Compiled | str | Path, *, disassemble: bool = False) -> str:
    """What `frustum inspect` prints of an executable, a compiled folder, a model, a stage; or their instructions."""
    from frustum.runtime.tools.inspect import about_chain, lines_of, listing

    with said_by_keywords():
        if isinstance(what, Compiled):
            return "\n".join(listing(what.chain) if disassemble else about_chain(what.chain))
        return "\n".join(lines_of(str(what), disassemble))


@overload
def targets() -> dict[str, Target]: ...
@overload
def targets(name: str | Path) -> Target: ...
def targets(name: str | Path | None = None) -> dict[str, Target] | Target:
    """All machines that have a name, the default one first; or one of them, or that of a YAML file, checked."""
    if name is None:
        return {each: shipped.load(each) for each in shipped.names()} | shipped.plugged()
    from frustum.passes.fuse.policy import problems_of

    return shipped.load(name, problems_of)


def diff(before: Report | str | Path, after: Report | str | Path) -> Difference:
    """What changed between two reports, or files of them, or compiled folders: which units, and why."""
    from frustum.runtime.study.difference import difference
    from frustum.runtime.tools.diff import report_at

    with said_by_keywords():
        return difference(*(each if isinstance(each, Report) else report_at(Path(each)) for each in (before, after)))
