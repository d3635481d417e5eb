"""Every option of the command line and of `frustum.compile`, declared once: how it is typed, what it means, what it is
one of, and where it has no effect.

The parser with its help, the keywords of the API, what is refused, and the tables of docs/commands.md
(`runtime/option_table.py`) come from the fields below.
Imports nothing but the standard library, for a fast `--help`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, cast, get_args

from frustum.dialects.choices import (
    POLICIES,
    AskedBorders,
    Carry,
    Compression,
    Dtype,
    HostMode,
    Method,
    Mode,
    Optimise,
    WeightCopies,
    When,
)
from frustum.runtime.failures import UsageError
from frustum.runtime.model.option_texts import at_least, bound_value, dim, shape, what_to_check

if TYPE_CHECKING:
    from onnx import ModelProto
    from xdsl.dialects.builtin import ModuleOp

    from frustum.dialects.target import Target
    from frustum.runtime.kernels import Array

T = TypeVar("T")
Model: TypeAlias = Union[str, Path, "ModelProto", "ModuleOp"]

IMPORTED, COMPILED = "import", "compiled"
"""What the first stop and all stops are behind."""
IN_PASS = "write it as an option of a pass in --pipeline"
ONE_EXECUTABLE = "--pipeline makes one executable"
"""What to know instead of an option that has no effect beside `--pipeline`."""


@dataclass(frozen=True)
class CommandOption:
    """How a field of options is typed, and where saying it is an error."""

    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    read: Callable[[str], object] | None = None
    """From its text; ArgumentTypeError where that is wrong."""
    flag: str | None = None
    """None: `--` and the name of the field.  The empty one is of words without a flag."""
    action: str | None = None
    bare: str | None = None
    """What the flag alone says; with one, a value follows `=`."""
    until: str | None = None
    """The first stop at which it has no effect any more, or `IMPORTED` or `COMPILED`; None: it always has one."""
    beside_pipeline: str | None = None
    """Why it has no effect beside `--pipeline`."""
    is_typed: bool = True
    """Whether it is of the command line, and not of the API alone."""
    unsaid: str = ""
    """What holds where nobody says it; "" of a flag, and of what must be said."""


def said(help: str, metavar: str | None = None, **facts: Any) -> dict[str, CommandOption]:
    """A field's metadata: the `CommandOption` that it is."""
    return {"option": CommandOption(help, metavar, **facts)}


def option(help: str, metavar: str | None = None, *, default: Any = None, **facts: Any) -> Any:
    """A field that is an option, said by name."""
    return field(default=default, metadata=said(help, metavar, **facts))


BOUND: dict[str, Any] = {"read": bound_value, "action": "append", "unsaid": "none"}


class FileInputs(Sequence["Mapping[str, Array]"]):
    """Inputs from a file that is read when the first is asked for; known by the file's bytes."""

    def __init__(self, path: Path, length: int, read: Callable[[], Sequence[Mapping[str, Array]]]) -> None:
        self.path = path
        self.length = length
        self.read: Callable[[], Sequence[Mapping[str, Array]]] = cache(read)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.read()[index]


# --- options -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Keywords:
    """What `frustum.compile` is asked: a model and how it is compiled; None is what the model says, or the default."""

    model: Model = field(
        kw_only=False,
        metadata=said("a path to .onnx, zoo:NAME, a compiled folder, or a dumped stage NN-stop.mlir", "MODEL", flag=""),
    )
    target: str | Path | Target | None = field(
        default=None, kw_only=False,
        metadata=said(
            "the machine (default `default`)", "NAME|FILE.yaml", until=COMPILED,
            unsaid="`default`",
        ),
    )
    dtype: Dtype | None = field(
        default=None,
        kw_only=False,
        metadata=said(
            "element type on the device (default `model`: the file's)",
            choices=get_args(Dtype), until="fused", beside_pipeline=IN_PASS,
            unsaid="`model`, or what the target's options say",
        ),
    )  # fmt: skip
    calibrate: Method | None = option(
        "how --dtype int8 finds ranges, from --input or random inputs", choices=get_args(Method), until=COMPILED,
        unsaid="`minmax`",
    )
    calibration: Sequence[Mapping[str, Array]] = field(
        default=(),
        metadata=said(
            "the inputs that `calibrate` looks at; random ones if none are given", is_typed=False,
            unsaid="8 random inputs",
        ),
    )
    shapes: Mapping[str, Sequence[int]] = field(
        default_factory=dict,
        metadata=said(
            "bind an input's shape (repeatable)", "INPUT=1x3x160x224",
            read=shape, flag="--shape", action="append", until=IMPORTED, unsaid="those of the file",
        ),
    )  # fmt: skip
    dims: Mapping[str, int] = field(
        default_factory=dict,
        metadata=said(
            "bind a symbol of the model's shapes, wherever it stands (repeatable)", "NAME=VALUE",
            read=dim, flag="--dim", action="append", until=IMPORTED, unsaid="the symbols are open",
        ),
    )  # fmt: skip
    batch: int | None = option(
        "bind a dynamic batch, or change a batch of 1", "N", read=at_least(1), until=IMPORTED,
        unsaid="the file's; 1 where it is open",
    )
    bind: Mapping[str, bool | int | float] = field(default_factory=dict, metadata=said(
        "a scalar input becomes a constant (repeatable)", "INPUT=VALUE", until=IMPORTED, **BOUND
    ))  # fmt: skip
    policy: str | None = field(
        default=None,
        kw_only=False,
        metadata=said(
            "how layers are fused (docs/fusion.md, docs/ir-plan.md); `none`: not",
            choices=POLICIES, until="fused", beside_pipeline=IN_PASS,
            unsaid="`optimal` or `tree`, as the emulator counts, or what the target's options say",
        ),
    )  # fmt: skip
    rules: str | None = option(
        "a start rule and the rules by which units grow, numbers or names (docs/fusion.md)",
        "S1,1,4,8-12", until="fused", beside_pipeline=IN_PASS, unsaid="those of the policy",
    )  # fmt: skip
    thresholds: str | None = option(
        "other thresholds of rules than the usual ones", "11=75,19=6", until="fused", beside_pipeline=IN_PASS,
        unsaid="those of docs/fusion.md",
    )
    cuts: str | None = option(
        "units end behind these layers and nowhere else; each planned alone, or, with policies optimal and tree, all"
        " together",
        "LAYER,LAYER", until="fused", beside_pipeline=IN_PASS,
        unsaid="as the policy finds",
    )
    plan: Path | None = option(
        "follow this plan, as `frustum plan` writes it or changed, instead of one that a policy finds (policy tree)",
        "FILE", read=Path, until="fused", beside_pipeline=IN_PASS, unsaid="as the policy finds",
    )
    optimise: Optimise | None = option(
        "what plans of policy optimal have least of: cycles, with hardly more bytes than the fewest (`time`, the"
        " default), DRAM bytes, or energy (docs/optimal.md)",
        choices=get_args(Optimise), until="fused", beside_pipeline=IN_PASS, unsaid="`time`",
    )  # fmt: skip
    carry: Carry | None = option(
        "type of sums that wait in SRAM between parts of a reduction: f32, the element type, or f32 unless the element"
        " type moves fewer bytes or takes fewer cycles (`auto`, the default)",
        choices=get_args(Carry), until="typed", beside_pipeline=IN_PASS, unsaid="`auto`",
    )  # fmt: skip
    order: str | None = option(
        "of tiles: row-major, column-major, bands{bands=2,direction=top-down}, serpentine, z-order, quadrants,"
        " checkerboard, mirrored; any with {depth=breadth-first,owners=cores} (docs/traversal.md)",
        "ORDER", until="tiled", beside_pipeline=IN_PASS, unsaid="as planned",
    )  # fmt: skip
    borders: AskedBorders | None = option(
        "of tiles: computed again, kept or sent, or what is cheaper",
        choices=get_args(AskedBorders), until="tiled", beside_pipeline=IN_PASS,
        unsaid="`auto` with policy optimal, `overlap` with others and with an order",
    )  # fmt: skip
    host: HostMode | None = option(
        "layers on the host: none, what the device lacks (`auto`, the default), all",
        choices=get_args(HostMode), until=IMPORTED, unsaid="`auto`",
    )  # fmt: skip
    constants: Mapping[str, Array] = field(
        default_factory=dict,
        metadata=said(
            "values of inputs that are really constants", flag="constants", until=IMPORTED, is_typed=False,
            unsaid="none",
        ),
    )
    split: When | None = option(
        "networks cut where they do not fit or it is better (`auto`, the default), at output branches, or not",
        choices=get_args(When), until=COMPILED, beside_pipeline=ONE_EXECUTABLE, unsaid="`auto`",
    )  # fmt: skip
    refuse: str | None = option(
        "fuse pieces again: conditions{nodes=2..9,weight_bytes=..N,compute=..N}, pairs, forward, bidirectional",
        "STRATEGY", until=COMPILED, beside_pipeline=ONE_EXECUTABLE, unsaid="nothing is fused again",
    )  # fmt: skip
    placement: str | None = option(
        "the chip of each executable (default `one`: chip 0)", "one|each|0,0,1", unsaid="`one`"
    )
    compress_weights: Compression | None = option(
        "weights stay compressed up to WRAM: where it is better (`auto`, the default), never (`none`), always,"
        " by `zero` runs or `huffman` codes",
        "MODE", choices=get_args(Compression), until="lowered", beside_pipeline=IN_PASS, unsaid="`auto`",
    )  # fmt: skip
    cache: bool = field(
        default=False,
        metadata=said("take what was compiled before, and keep what is compiled now", is_typed=False),
    )
    weights: WeightCopies | None = option(
        "what all clusters need lies in each (`replicated`), or once on the chip",
        choices=get_args(WeightCopies), until="lowered", beside_pipeline=IN_PASS, unsaid="`replicated`",
    )  # fmt: skip
    pipeline: str | None = option(
        "these passes instead of the default pipeline, or edits of it: +before:PASS:NEW{...}, +after:PASS:NEW{...},"
        " -PASS, =PASS{option=...}",
        '"pass{option=...},..."', until=COMPILED, unsaid="the default pipeline",
    )
    dump_ir: Path | None = option(
        "write the module at every stop, numbered, with its weights", "DIR",
        read=lambda text: Path(text) if text else None, until=COMPILED, unsaid="nothing is written",
    )  # fmt: skip
    weights_seed: int | None = option(
        "of a zoo: network's weights (default 0)", "N", read=at_least(0), until=COMPILED, unsaid="`0`",
    )


@dataclass(frozen=True, kw_only=True)
class Request(Keywords):
    """The same with what the command line alone can ask."""

    no_cache: bool = option("compile anew, and keep nothing for the next time", default=False)
    calibration_seed: int | None = None
    """Of the first random input for the calibration, if the run has that; None: nobody knows what a run has."""
    dtype_is_stored: bool = False
    """Whether `dtype` is what the target's options say: it gives way where a model has its types already."""
    keeps_modules: bool = False
    """Whether the job has the modules as they were before they were compiled."""
    streams: bool = False
    """Whether a stream of inputs goes through the pieces: one on each chip (`placement`) is to take about as long as
    the others."""


def with_stored_dtype(request: Request, target: Target) -> Request:
    """The request with the element type of the target's options, where nobody says another one."""
    stored = target.options.dtype
    if request.dtype is not None or request.pipeline is not None or stored is None:
        return request
    return replace(request, dtype=cast("Dtype", stored), dtype_is_stored=True)


@dataclass(frozen=True, kw_only=True)
class Told(Request):
    """The same with what is printed of it."""

    quiet: bool = option("print nothing but errors", default=False)
    json: bool = option("print the report (`compile`: the manifest) as JSON, in place of the text", default=False)
    verbose: bool = option(
        "print all figures behind the screen (`compile`: what `inspect` says of the folder)", default=False, flag="-v"
    )


def refuse_two_forms(options: Told) -> None:
    """UsageError where what is printed is asked for in two forms."""
    if options.quiet and (options.json or options.verbose):
        raise UsageError(f"error: --quiet and {'--json' if options.json else '-v'}: one of them")
    if options.json and options.verbose:
        raise UsageError("error: --json and -v: the JSON has all figures")


@dataclass(frozen=True, kw_only=True)
class CompileOptions(Told):
    """Compile a model into a folder that `frustum run` takes."""

    folder: str = field(metadata=said("the folder to write", "DIR", flag="-o"))


@dataclass(frozen=True, kw_only=True)
class RunOptions(Told):
    """Compile (or load) a model, run it on the emulated machine, print the report."""

    input: str | None = option("inputs: arrays by input name", "FILE.npz", unsaid="random inputs")
    input_seed: int | None = option("random inputs from this seed (default 0)", "N", read=at_least(0), unsaid="`0`")
    output: str | None = option("write the outputs, arrays by output name", "FILE.npz", unsaid="nothing is written")
    report: str | None = option(
        "write the report; `-`: to stdout, in place of the text", "FILE.json", unsaid="nothing is written"
    )
    html: str | None = option(
        "write one self-contained page that shows the run, for a browser", "FILE.html", unsaid="nothing is written"
    )
    annotate: str | None = option(
        "write a copy of the model with unit, DRAM bytes and cycles in each node, for Netron (.onnx), or its graph for"
        " Model Explorer (.json)",
        "FILE.onnx|FILE.json", unsaid="nothing is written",
    )  # fmt: skip
    trace: str | None = option(
        "write a trace for Perfetto: engines, memories, arrows between them", "FILE.pftrace",
        unsaid="nothing is written"
    )
    stream: int | None = option(
        "so many inputs one after the other through the chips: throughput and latency; files of inputs and outputs have"
        " a leading axis for them", "N", read=at_least(1), unsaid="one input",
    )  # fmt: skip
    check: str | None = option(
        "compare with onnxruntime, exit code 3 if it differs: the outputs, or every `layers`, and name who was wrong"
        " (docs/check-layers.md); a file instead is as --check-against",
        "outputs|layers|FILE.onnx", read=what_to_check, bare="outputs", unsaid="no comparison",
    )  # fmt: skip
    check_against: str | None = option(
        "the model to compare with, where MODEL does not know it: a stage, a moved compiled folder",
        "FILE.onnx|zoo:NAME", unsaid="MODEL itself",
    )
    mode: Mode = option(
        "numbers and time, or one of them (default full)", choices=get_args(Mode), default="full"
    )
    checked: bool = option("stop on uninitialised reads, out-of-range accesses and races", default=False)


@dataclass(frozen=True)
class InspectOptions:
    """Show what is in an executable, a compiled folder, a model or a dumped stage."""

    path: str = field(metadata=said("an executable, or what `run` takes for MODEL", "PATH", flag=""))
    target: str | None = option(
        "say what this machine runs of a model, layer by layer, and what goes to the host and why",
        "NAME|FILE.yaml", unsaid="the file is told of alone",
    )  # fmt: skip
    bind: Mapping[str, bool | int | float] = field(
        default_factory=dict, metadata=said("with --target: as for `run`", "INPUT=VALUE", **BOUND)
    )
    disassemble: bool = option("print the instructions", default=False)


@dataclass(frozen=True)
class TargetsOptions:
    """List the shipped targets, print one as YAML with its comments, or check a target file."""

    name: str | None = option(
        "the target to print, the file to check", "NAME|FILE.yaml", flag="", unsaid="all are listed"
    )
    schema: bool = option("print the JSON Schema of target files, for editors", default=False)


@dataclass(frozen=True)
class WarmUpOptions:
    """Compile the emulator's loops and keep them, so that no run has to."""


# --- what comes from them ----------------------------------------------------------------------------------


def options_of(kind: Any) -> Iterator[tuple[Field[Any], CommandOption]]:
    """The fields of a class that are options, in the order in which they are declared."""
    return ((each, each.metadata["option"]) for each in fields(kind) if "option" in each.metadata)


def flag_of(found: Field[Any]) -> str:
    """What is typed before the value."""
    flag: str | None = found.metadata["option"].flag
    return f"--{found.name.replace('_', '-')}" if flag is None else flag


def add_options(parser: ArgumentParser, kind: type[Any]) -> None:
    """Arguments for all that is typed."""
    for each, said in options_of(kind):
        facts: dict[str, Any] = {"help": said.help, "metavar": said.metavar, "action": said.action}
        facts |= {"choices": said.choices, "type": said.read}
        is_needed = each.default is MISSING and each.default_factory is MISSING
        if said.bare is not None:
            facts |= {"nargs": "?", "const": said.bare}
        if each.default is False:
            facts = {"help": said.help, "action": "store_true"}
        if said.is_typed and flag_of(each):
            parser.add_argument(flag_of(each), dest=each.name, required=is_needed, **_present(facts))
        elif said.is_typed:
            several = said.action == "extend"
            count = ("+" if is_needed else "*") if several else (None if is_needed else "?")
            parser.add_argument(each.name, nargs=count, **_present(facts))


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def options_from(kind: Callable[..., T], found: Mapping[str, Any]) -> T:
    """The options that a parser has found; UsageError where a shape, a dimension or a value is given twice."""
    together: dict[str, object] = {}
    for field_, flag in (("shapes", "--shape"), ("dims", "--dim"), ("bind", "--bind")):
        known: dict[str, object] = {}
        for name, said in found.get(field_, ()):
            if known.setdefault(name, said) != said:
                raise UsageError(f"error: {flag} gives '{name}' twice")
        together |= {field_: known} if known else {}
    return kind(**{**found, **together})


def given(options: Keywords) -> Iterator[tuple[Field[Any], CommandOption, Any]]:
    """The options that say something, with their values."""
    for each, said in options_of(type(options)):
        value = getattr(options, each.name)
        if value not in (None, (), {}):
            yield each, said, value


def check_choice(name: str, value: str | None, allowed: Sequence[str]) -> None:
    """UsageError unless the value is absent or allowed: what the parser of the command line sees to there."""
    if value is not None and value not in allowed:
        raise UsageError(f"error: {name} {value!r} is none of {', '.join(allowed)}")


def check_choices(options: Keywords) -> None:
    """`check_choice` for all."""
    for each, said in options_of(type(options)):
        if said.choices:
            check_choice(each.name, getattr(options, each.name), said.choices)


def refuse_beside_pipeline(request: Request) -> None:
    """UsageError for what has no effect beside `--pipeline`; type int8 has one, before the passes."""
    if request.pipeline is None:
        return
    for each, said, value in given(request):
        if said.beside_pipeline is not None and (each.name, value) != ("dtype", "int8"):
            raise UsageError(f"error: {flag_of(each)} is of the default pipeline: {said.beside_pipeline}")


def refuse_imported(request: Request, what: str) -> None:
    """UsageError for what has no effect on what is imported already."""
    for each, said, value in given(request):
        if said.until == IMPORTED and (each.name, value) != ("host", "never"):
            raise UsageError(f"{what}: error: {flag_of(each)} has no effect on what is imported already")


def refuse_late(request: Request, what: str, stops: Sequence[str], own: Mapping[str, str | None]) -> None:
    """UsageError for what has no effect at the last of these stops, unless it says what the module's `own` is."""
    for each, said, value in given(request):
        if said.until in stops and value not in ("model", own.get(each.name)):
            raise UsageError(f"{what}: error: {flag_of(each)} {value} has no effect at stop '{stops[-1]}'")


def refuse_compiled(request: Request) -> None:
    """UsageError for what has no effect on what is compiled already."""
    for each, said, _ in given(request):
        if said.until is not None:
            raise UsageError(
                f"{request.model}: error: is compiled already: {flag_of(each)} has no effect on it"
            )
