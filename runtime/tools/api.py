"""What `import frustum` gives: compile, run, look.

compiled = frustum.compile("model.onnx", target="default")
result = frustum.run(compiled, {"data": array})
result.outputs["prob"], result.report["cycles"]["total"]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args, overload

from frustum.backend import targets as shipped
from frustum.backend.file.executable import Executable
from frustum.dialects.choices import Mode
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.errors import Diagnostic, Error
from frustum.dialects.target import Target, json_schema
from frustum.runtime.failures import Differs, UsageError
from frustum.runtime.model.cache import built
from frustum.runtime.model.chain import Chain, checked_values, placed, random_values, without_bound
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
from frustum.runtime.model.sources import Job, Origin
from frustum.runtime.model.stream import check_streams, execute_stream, split_inputs, times_of
from frustum.runtime.report.figures import Report
from frustum.runtime.show.drawing import RunDrawing
from frustum.runtime.study.difference import Difference
from frustum.runtime.study.explain_text import Explanation
from frustum.runtime.study.exploration import Exploration
from frustum.runtime.study.options import ExplainKeywords, TreeKeywords
from frustum.runtime.study.planned import CountedPlan, Curve, curve_of, planned
from frustum.runtime.study.published.cases import ComparedFigure

if TYPE_CHECKING:
    from onnx import ModelProto

    from frustum.runtime.host.inputs import HostArray
    from frustum.runtime.report.report import Check

__all__ = [
    "ComparedFigure", "Compiled", "CountedPlan", "Curve", "Diagnostic", "Difference", "Error", "Explanation",
    "Exploration", "Report", "Result", "Target", "compare", "compile", "curve", "diff", "explain", "explore", "inspect",
    "plan", "run", "target_schema", "targets", "warm_up",
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
            _check_words(function.__name__, kind, words, named)
            with said_by_keywords():
                return function(kind(*words, **named))

        said = (f"    {each.name}: {option.help}.\n" for each, option in options_of(kind))
        call.__doc__ = f"{function.__doc__}\n{''.join(said)}"
        vars(call)["__signature__"] = signature(kind).replace(return_annotation=signature(function).return_annotation)
        return call

    return taking


def _check_words(name: str, kind: Callable[..., object], words: Sequence[object], named: Mapping[str, object]) -> None:
    """TypeError, as Python has it, that names the function which was called."""
    declared = signature(kind)
    try:
        declared.bind(*words, **named)
    except TypeError as error:
        unknown = next((word for word in named if word not in declared.parameters), "")
        meant = did_you_mean(unknown, list(declared.parameters))
        raise TypeError(f"{name}() {error}{meant}") from None


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
    request = Request(**vars(asked))
    return Compiled(built(request), request)


def run(
    compiled: Compiled | Executable | Chain | str | Path,
    inputs: Mapping[str, HostArray] | None = None,
    *,
    mode: Mode = "full",
    checked: bool = False,
    check: bool | Literal["outputs", "layers"] = False,
    check_against: str | Path | None = None,
    stream: int | None = None,
    input_seed: int = 0,
    placement: str | None = None,
    on_output: Callable[[str, HostArray], None] = lambda name, array: None,
) -> Result:
    """One run on the emulated machine, of what was compiled: also of a file, or of a folder that was saved.

    inputs: arrays by name; without them random ones from `input_seed`.
    mode: numbers and time, or one of them.
    checked: stop on uninitialised reads, out-of-range accesses and races.
    check: compare with onnxruntime, the outputs, or every layer ("layers": docs/check-layers.md); a frustum.Error with
    exit code 3 where it differs, which names who was wrong.
    check_against: the model to compare with (FILE.onnx, zoo:NAME), where what was compiled does not know it.
    stream: so many inputs one after the other through the chips; arrays have a leading axis for them.
    placement: the chip of each executable: one, each, or 0,0,1.
    on_output: gets each output of a single input as soon as the piece that makes it has run.
    """
    with said_by_keywords():
        check_choice("mode", mode, get_args(Mode))
        what = ("outputs" if check or check_against is not None else None) if isinstance(check, bool) else check
        check_choice("check", what, ("outputs", "layers"))
        if inputs is not None and not isinstance(inputs, Mapping):
            raise UsageError("error: inputs are a mapping by name, such as {'x': array}")
        if what and mode == "timing":
            raise UsageError("error: check needs mode full or functional: mode timing computes no numbers")
        if stream is not None and stream < 1:
            raise UsageError(f"error: stream is {stream}: at least one input goes through the chips")
        made = Compiled.of(compiled)
        if placement is not None:
            made = replace(made, job=replace(made.job, chain=placed(made.chain, placement)))
        each = _inputs(made.chain, inputs, mode, stream, input_seed)
        model = None
        if what:
            model = made.job.model_for_check(made.model) if check_against is None else Origin(str(check_against)).load()
        job = made.with_modules() if what == "layers" else made.job
        return _run(job, each, mode, checked, model, what == "layers", stream, on_output)


def _inputs(
    chain: Chain, given: Mapping[str, HostArray] | None, mode: Mode, stream: int | None, seed: int
) -> list[dict[str, HostArray]]:
    """Those of each input of a stream, or of the only one."""
    if mode == "timing":
        return [{}] * (stream or 1)
    if given is None:
        return [random_values(chain.inputs, seed + number) for number in range(stream or 1)]
    each = [dict(given)] if stream is None else split_inputs(given, stream, "inputs")
    return [checked_values(chain.inputs, without_bound(one, chain.bound)) for one in each]


def _run(
    job: Job, inputs: list[dict[str, HostArray]], mode: Mode, checked: bool, model: ModelProto | Path | None,
    is_by_layers: bool, stream: int | None, on_output: Callable[[str, HostArray], None],
) -> Result:  # fmt: skip
    chain, figures = job.chain, None
    if stream is None:
        ran = execute_chain(chain, inputs[0], mode, checked, hand=on_output)
        outputs, each = ran.outputs, [ran.outputs]
    else:
        check_streams(chain)
        ran, outputs, each = execute_stream(chain, inputs, mode, checked)
        figures = None if mode == "functional" else times_of(chain, ran, stream).figures
    check, layers = _compared(job, inputs, each, model, is_by_layers) if model is not None else (None, {})
    report = report_of_chain(chain, ran, check, job.seconds, figures)
    if layers:
        report["check"] |= layers
    report.drawing = RunDrawing(chain, ran, mode, stream is not None, job.model_at_hand)
    return Result(outputs, report)


def _compared(
    job: Job, inputs: list[dict[str, HostArray]], outputs: list[dict[str, HostArray]], model: ModelProto | Path,
    is_by_layers: bool,
) -> tuple[Check, dict[str, Any]]:  # fmt: skip
    """How the outputs compare, and the layers if that is asked for; Differs where anything is wrong."""
    from frustum.runtime.host.agreement import agreement, together

    name, dtype = job.chain.model, job.chain.dtype
    layers: dict[str, Any] = {}
    pairs = [({**job.chain.bound, **each}, made) for each, made in zip(inputs, outputs, strict=True)]
    found, worst = together([agreement(model, *pair, dtype, job.chain.of_device) for pair in pairs])
    if is_by_layers:
        from frustum.runtime.tools.check_layers import check_layers

        checked = check_layers(job, model, inputs[0], ["run", name, "--check=layers"])
        checked.raise_faults(name)
        layers = checked.data()
    if not worst.good:
        raise Differs(
            f"{name}: error: output '{worst.worst}' differs from {found.reference}: relative error"
            f" {worst.max_rel_error:.3g}, at most {worst.tolerance:g} is allowed in {dtype}; {worst.difference}"
        )
    return found, layers


def inspect(
    what: Compiled | str | Path, *, target: str | Path | Target | None = None, disassemble: bool = False,
    bind: Mapping[str, bool | int | float] | None = None,
) -> str:  # fmt: skip
    """What `frustum inspect` prints of an executable, a compiled folder, a model, a stage; or their instructions.

    target: of a model also what this machine runs of it, and what goes to the host and why; `bind`: as for `compile`.
    """
    from frustum.runtime.tools.inspect import about_chain, lines_of, listing

    with said_by_keywords():
        if isinstance(what, Compiled):
            if target is not None:
                raise UsageError("error: target is for models: this is compiled already")
            return "\n".join(listing(what.chain) if disassemble else about_chain(what.chain))
        return "\n".join(lines_of(str(what), disassemble, target, bind))


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


def target_schema() -> dict[str, Any]:
    """The JSON Schema of target files."""
    return json_schema()


def diff(before: Report | str | Path, after: Report | str | Path, *, fail_on: Sequence[str] = ()) -> Difference:
    """What changed between two reports, or files of them, or compiled folders: which units, and why.

    fail_on: conditions such as `cycles>+2%`; a frustum.Error with exit code 5 where one is met.
    """
    from frustum.runtime.study.difference import difference
    from frustum.runtime.tools.diff import conditions_of, refuse_worse, report_at

    with said_by_keywords():
        conditions = conditions_of(fail_on)
        one, other = (each if isinstance(each, Report) else report_at(Path(each)) for each in (before, after))
        names = [side if isinstance(each, Report) else str(each) for side, each in
                 (("before", before), ("after", after))]  # fmt: skip
        refuse_worse(conditions, one, other, names[1])
        return difference(one, other, (names[0], names[1]))


@takes(ExplainKeywords)
def explain(asked: ExplainKeywords) -> Explanation:
    """Why the plan of a model, a layer or a unit is as it is, with other ways counted beside it (mode timing).

    `model` and the options as for `frustum.compile`.
    """
    from frustum.runtime.tools.explain import explanation

    check_choices(asked)
    return explanation(asked)[0]


@takes(TreeKeywords)
def plan(asked: TreeKeywords) -> tuple[CountedPlan, ...]:
    """The plan with the fewest DRAM bytes on all clusters, of every network of a model, as a tree (docs/ir-plan.md).

    `model` and those options of `frustum.compile` that say something of the network or the machine, or ask something of
    the plan; with `cache` a plan that was found before is taken (`cached`), also for a network of other names.
    """
    from frustum.runtime.tools.plan import networks_of_request, wished

    check_choices(asked)
    networks, target, request = networks_of_request(asked)
    return tuple(
        planned(network, target, wishes=wishes, cache=asked.cache)
        for network, wishes in wished(networks, target, request)
    )


@takes(TreeKeywords)
def curve(asked: TreeKeywords) -> tuple[Curve, ...]:
    """DRAM bytes against SRAM capacity of every network of a model, for 64 shares of a cluster's SRAM.

    `model` and options as for `frustum.plan`.
    """
    from frustum.runtime.tools.plan import networks_of_request, wished

    check_choices(asked)
    networks, target, request = networks_of_request(asked)
    return tuple(
        curve_of(network, target, wishes=wishes, cache=asked.cache)
        for network, wishes in wished(networks, target, request)
    )


def explore(
    models: str | Path | Sequence[str | Path],
    space: str | Path,
    *,
    database: str | Path | None = None,
    scheduler: str | None = None,
    tell: Callable[[float], None] = lambda share: None,
) -> Exploration:
    """Compile models for many machines and in many ways, run them in mode timing: docs/explore.md.

    models: paths to .onnx, zoo:NAME, or dumped stages.
    space: the file of the axes.
    database: where points are kept, and found again (default: the space's name with .sqlite, here).
    scheduler: address of a Dask scheduler whose workers run the points; without one, processes of this computer do:
    they import the main module, which therefore must not explore when it is imported.
    tell: called with the share that is done, in [0, 1].
    """
    from frustum.runtime.tools.explore import explored

    each = [models] if isinstance(models, str | Path) else models
    with said_by_keywords():
        return explored([str(model) for model in each], space, Path(database) if database else None, scheduler, tell)


def warm_up() -> None:
    """Compile the emulator's loops now, so that no run has to."""
    from frustum.runtime.tools.warm_up import warm_up as compile_loops

    compile_loops()


def compare(*names: str, all: bool = False) -> list[ComparedFigure]:
    """Figures that others publish, with ours beside those of the named cases, or of all: what `frustum compare` prints.

    Without names nothing runs, and ours are None.  frustum.Error names a case that is not there.
    """
    from frustum.runtime.study.published.cases import cases, named
    from frustum.runtime.tools.compare import compared

    if not names and not all:
        return [each for case in cases().values() for each in case.figures()]
    return compared(cases().values() if all else named(names))
