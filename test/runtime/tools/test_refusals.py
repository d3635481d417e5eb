"""Every error class, every exit code and every refused combination of options, as the code has them, has a case here.

What there is is read from the source: a new class, code, condition or late option without a case fails.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_models
import plan_nets
import pytest
from axis_networks import network, windows
from mixed_models import model as network_of
from mixed_models import node
from plan_values import run_of
from window_chains import machine
from xdsl.dialects.builtin import f32
from xdsl.ir import Block

import frustum
from frustum.backend import targets
from frustum.backend.file.container import ExecutableError
from frustum.backend.file.executable import open_executable
from frustum.backend.pipeline import STOPS
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Kind
from frustum.dialects.errors import Error
from frustum.dialects.graph import RearrangeOp, tensor_type
from frustum.dialects.graph.axes.reader import NoAxes, Reader
from frustum.dialects.isa.tables.stored_table import TableError, read_table
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.clusters import NotExchanged
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import parse_plan, read_plan
from frustum.dialects.plan.tree import Compute
from frustum.dialects.target import Target, TargetError
from frustum.dialects.target.fit import DoesNotFit, OrderDoesNotFit
from frustum.passes.errors import ModelError, Unsupported
from frustum.passes.fuse.policy import CUSTOM, PolicyError, parse_policy
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.tree.costs import NestCosts
from frustum.passes.plan.tree.wishes import WishError, Wishes
from frustum.passes.weights import NoSuchWeight, WeightStore
from frustum.runtime import failures
from frustum.runtime.diagnostics import Reported
from frustum.runtime.host.host_model import HostError
from frustum.runtime.host.oracle import OracleError
from frustum.runtime.machine import InputError
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.compiled import Compiled
from frustum.runtime.model.execution import execute_chain
from frustum.runtime.model.options import IMPORTED, Request, RunOptions, flag_of, options_of, refuse_late
from frustum.runtime.model.stream import times_of
from frustum.runtime.pipeline_text import PipelineError
from frustum.runtime.reference.plan import AbsentElement
from frustum.runtime.study.workers import workers
from frustum.runtime.tools import cli, inspect

ROOT = Path(__file__).parents[3]
ROOMS = ("dialects", "passes", "backend", "runtime")
OF_OPTIONS = {
    *(f"runtime/model/{name}.py" for name in ("options", "request", "pipeline_edits")), "runtime/show/drawing.py",
    *(f"runtime/tools/{name}.py" for name in ("run", "compile", "explain", "explore", "diff", "api")),
}  # fmt: skip
"""Files that hold options against each other: all that they refuse counts, of others what names an option."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model, its stages and compiled folder, and other things that commands may be given."""
    folder = tmp_path_factory.mktemp("refusals")
    model = onnx_models.save(folder)
    ir, made = folder / "ir", folder / "made"
    assert cli.main(["compile", model, "-o", str(made), "--target", "edge", "--dump-ir", str(ir)]) == 0
    names = {"typed": ir / "01-typed.mlir", "fused": ir / "02-fused.mlir", "made": made}
    assert cli.main(["compile", str(names["fused"]), "-o", str(folder / "orphan")]) == 0
    open_model = onnx_models.network(("n", onnx_models.CHANNELS, 8, 8))
    host = onnx_models.one_node("NonZero", (1, 4))
    scale, zero = np.float32(0.1), np.int8(0)
    quantised = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "z"], ["v"]), node("MatMul", ["d", "v"], ["m"]),
        node("QuantizeLinear", ["m", "s", "z"], ["n"]), node("DequantizeLinear", ["n", "s", "z"], ["y"]),
    ]  # fmt: skip
    weights = {"s": scale, "z": zero, "w": np.ones((4, 4), np.int8)}
    integers = network_of(quantised, {"x": (2, 4)}, ["y"], weights)
    gather = network_of([node("Gather", ["x", "i"], ["y"])], {"x": (2, 3)}, ["y"])
    gather.graph.input.append(onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [1]))
    other = onnx_models.network()
    next(t for t in other.graph.initializer if t.name == "b").raw_data = np.full(onnx_models.FILTERS, 9, "f4").tobytes()
    convs = [node("Conv", [a, w], [b], pads=[1] * 4) for a, w, b in (("x", "v", "a"), ("a", "w", "b"), ("c", "u", "y"))]
    convs.insert(2, node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]))
    kernels = {name: np.ones((8, of, 3, 3), np.float32) for name, of in (("v", 3), ("w", 8), ("u", 8))}
    chain = network_of(convs, {"x": (1, 3, 32, 32)}, ["y"], kernels)
    protos = {"open": open_model, "host": host, "int8": integers, "gather": gather, "other": other, "chain": chain}
    edge = Path(targets.path("edge")).read_text().replace("capacity_bytes: 1 GiB", "capacity_bytes: 1024")
    (folder / "small.yaml").write_text(edge)
    names["uneven"] = folder / "uneven.plan"
    names["uneven"].write_text(
        'plan @small for "edge" { for conv.y.o ranges [0, 1, 4] rolling { resident x compute conv }'
        " compute pool, mean, dense }"
    )
    names["small"] = folder / "small.yaml"
    for name, proto in protos.items():
        onnx.save(proto, folder / f"{name}.onnx")
        names[name] = folder / f"{name}.onnx"
    np.savez(folder / "x.npz", x=onnx_models.image())
    (ir / "empty.mlir").write_text("builtin.module {\n}\n")
    space = "extends: edge\ntarget:\n  chip.cluster.cores: [2, 4]\nobjectives: [cycles.total]\n"
    (folder / "space.yaml").write_text(space)
    (folder / "report.json").write_text("{}")
    (folder / "text.json").write_text("no")
    cut = names["fused"].read_text().replace(
        "attributes {", 'attributes {frustum.chain_inputs = ["x"], frustum.chain_outputs = ["y"], ', 1
    )
    (ir / "cut.mlir").write_text(cut)
    names["cut"] = ir / "cut.mlir"
    names |= {name: folder / f"{name}.{kind}" for name, kind in (("x", "npz"), ("space", "yaml"), ("report", "json"))}
    names |= {"text": folder / "text.json", "empty": ir / "empty.mlir", "orphan": folder / "orphan", "tmp": folder}
    return SimpleNamespace(model=model, **{name: str(path) for name, path in names.items()})


# --- what is refused ---------------------------------------------------------------------------------------

REFUSED: dict[str, str] = {
    "error: {} has no effect on a plan that is given (--plan)": "plan {model} --plan {tmp}/a.plan --cuts a",
    "error: --dtype int8: plan calibrates nothing; give it a model of integers":
        "plan {model} --dtype int8",
    "{}: error: is compiled already": "compile {made} -o {tmp}/out",
    "{}: error: --target is for models that are not compiled yet": "inspect {made} --target edge",
    "{}: error: --bind needs --target: it says what that runs of the model": "inspect {model} --bind x=1",
    "{}: error: is compiled already: {} has no effect on it": "run {made} --policy none",
    "{}: error: is compiled already: explain takes the model itself": "explain {made}",
    "{}: error: is compiled already: what is explored is compiled for every point": "explore {made} --space {space}",
    "{}: error: {} has no effect on what is imported already": "run {typed} --batch 2",
    "{}: error: {} {} has no effect at stop '{}'": "run {fused} --policy none",
    "{}: error: at stop '{}' it is made for {}: --target {} comes too late": "run {fused} --target default",
    "{}: error: there is not exactly one network in it{}": "run {empty}",
    "{}: error: --dtype {}: it is a model of integers, which have their types": "run {int8} --dtype f16",
    "{}: error: --calibrate needs --dtype int8 and a floating-point model": "run {model} --calibrate minmax",
    "{}: error: a stage has no model to check against: --check=FILE.onnx says which it is": "run {typed} --check",
    "{}: error: there is no model to check against: --check needs the .onnx file or zoo:NAME": "run {orphan} --check",
    "{}: error: there is no model to annotate: --annotate needs the .onnx file or zoo:NAME":
        "run {orphan} --annotate {orphan}.onnx",
    "{}: error: input '{}': found {}, expected a leading axis of {}, one entry for each input of --stream":
        "run {model} --stream 2 --input {x}",
    "{}: error: not a report of schema {}, nor a compiled folder": "diff {report} {report}",
    "{}: error: not a report: {}": "diff {text} {text}",
    "{}: {}": "run {model} --rules 1,1",
    "{}: error: {}": "run {made} --input {x} --stream 1",
    "{}: error: several networks are continued as they were cut, not at stop '{}'": "run {cut}",
    "error: {} {}": "run {model} --refuse triples",
    "error: {} is of the default pipeline: {}": "run {model} --pipeline frustum-allocate --split auto",
    "error: {}: explain compiles the model in other ways, with the default pipeline":
        "explain {model} --dump-ir {tmp}/x",
    "error: --check={} and --check-against {}: one of them names the model":
        "run {model} --check={model} --check-against {model}",
    "error: --cuts and --{}: one of them says where units end": "run {model} --cuts conv --policy none",
    "error: --plan and --{}: a plan that is given is as it is": "run {model} --plan {tmp}/a.plan --policy greedy",
    "error: --{} {}: {}": "run {model} --policy tree --order z-order",
    "error: --fail-on: {}": "diff {report} {report} --fail-on much",
    "error: --html {}: the page is written to a file, not to stdout": "run {model} --html -",
    "error: --input and --input-seed: one of them gives the inputs": "run {model} --input {x} --input-seed 1",
    "error: --json and -v: the JSON has all figures": "run {model} --json -v",
    "error: --output {}: arrays are written to a file, not to stdout": "run {model} --output -",
    "error: --pipeline ends at stop '{}': an executable needs all passes to '{}'":
        "run {model} --pipeline frustum-graph-canonicalize",
    "error: --pipeline is a list of passes or edits of the default one, not both: '{}' beside '{}'":
        "run {model} --pipeline frustum-allocate,-frustum-allocate",
    "error: --pipeline: '{}' does not run behind stop '{}' with these options{}":
        "run {fused} --pipeline -frustum-fuse-layers",
    "error: --placement {} is of {} pieces, and there are {}": "run {made} --placement 0,0",
    "error: --placement {}: it is {}": "run {made} --placement here",
    "error: --placement {}: {} has chips 0 to {}": "run {made} --placement 7",
    "error: --quiet and {}: one of them": "run {model} --quiet --json",
    "error: {} gives '{}' twice": "run {model} --shape x=1x3x8x8 --shape x=2x3x8x8",
    "error: --stream: layer '{}' ({}) runs on the host": "run {host} --stream 2",
    "error: --weights-seed is for zoo: models": "run {model} --weights-seed 1",
    "error: --{} needs --mode full or functional: mode timing computes no numbers": "run {model} --mode timing --check",
    "error: input '{}' cannot be made up, {}: give it with --input{}": "run {open} --host only",
    "error: {}{} and {}stream: a {} is of one input": "run {model} --trace t --stream 2",
    "error: {}{} needs {}mode full or timing: mode functional counts no time": "run {model} --html h --mode functional",
}  # fmt: skip
"""By what is said, with {} for what is not always the same: a command that it is said to."""
CALLED: dict[str, Callable[[SimpleNamespace], object]] = {
    "error: {} {} is none of {}": lambda files: frustum.compile(files.model, dtype="f8"),
    "error: check needs mode full or functional: mode timing computes no numbers":
        lambda files: frustum.run(files.made, mode="timing", check=True),
    "error: target is for models: this is compiled already":
        lambda files: frustum.inspect(Compiled.of(files.made), target="edge"),
    "error: inputs are a mapping by name, such as {'x': array}":
        lambda files: frustum.run(files.made, onnx_models.image()),
    "error: --stream {}: the results of so many inputs, {} B, are more than the DRAM of chip {} holds":
        lambda files: _streamed(Compiled.of(files.made).chain, 1 << 40),
    "error: stream is {}: at least one input goes through the chips": lambda files: frustum.run(files.made, stream=0),
}  # fmt: skip
"""The same for what only Python can say."""
ELSEWHERE = {
    "{}: error: --certificate wants all plans: {}":
        ("--certificate wants all plans: ",
         "runtime/tools/test_plan.py::test_parts_of_a_model_are_plans_of_one_file"),
    "{}: error: it is planned for {}: say --target {}, or plan again":
        (": error: it is planned for ", "runtime/tools/test_plan.py::test_a_plan_for_another_machine_is_refused"),
    "error: --cuts: layer '{}' ({}) runs on the host: {}":
        ("runs on the host: ", "runtime/show/test_page_host.py::test_cuts_of_host_layers_are_refused"),
    "error: --cuts: no layer is called '{}': all of the model runs on the host":
        ("all of the model runs on the host", "runtime/show/test_page_host.py::test_cuts_of_host_layers_are_refused"),
    "{}: error: the module has no {}, and its tensors, of {}, do not tell it: allowed are {}":
        ("do not tell it", "runtime/tools/test_api.py::test_an_element_type_that_tensors_do_not_tell"),
    "error: --pipeline makes one executable, and after it the module has {} networks":
        ("makes one executable, and after", "runtime/model/test_chain_split.py::test_a_pipeline_that_cuts_is_refused"),
    "error: --scheduler needs the package distributed: pip install 'frustum[explore]'":
        ("needs the package distr", "runtime/study/test_explore.py::test_a_scheduler_that_is_not_installed_is_named"),
    "error: --scheduler {}: it has no workers":
        ("it has no workers", "runtime/tools/test_refusals.py::test_a_scheduler_of_no_use"),
    "error: --scheduler {}: cannot be reached: {}":
        ("cannot be reached: ", "runtime/tools/test_refusals.py::test_a_scheduler_of_no_use"),
    "error: --print-completion needs the package shtab: pip install 'frustum[completion]'":
        ("pip install 'frustum[completion]'",
         "runtime/test_completion.py::test_a_wrong_shell_and_a_missing_package_are_one_line"),
    "error: a process that counted was ended from outside (no memory?)":
        ("was ended from outside", "runtime/study/test_explain.py::test_a_process_that_is_ended_is_named"),
    "{}: error: the model is not there any more, so there is nothing to check against: --check-against names it":
        ("the model is not there any more", "runtime/tools/test_cli_errors.py::test_nothing_to_check_against"),
    "{}: error: is not the model that {} was compiled from; --check-against says where that is":
        ("was compiled from", "runtime/model/test_sources.py::test_another_model_of_that_name_is_not_taken"),
    "error: {}trace needs the package perfetto: pip install 'frustum[trace]'":
        ("pip install 'frustum[trace]'", "runtime/show/test_trace.py::test_without_the_package_it_is_named"),
}  # fmt: skip
"""What other tests see to: words of it that they have, FILE::TEST."""


def template(found: ast.expr) -> str:
    """The text of a message, with {} for what is put in."""
    match found:
        case ast.Constant():
            return str(found.value)
        case ast.JoinedStr():
            return "".join(each.value if isinstance(each, ast.Constant) else "{}" for each in found.values)
        case ast.BinOp():
            return template(found.left) + template(found.right)
    return "{}"


def refusals() -> set[str]:
    """The messages of all refusals of options in the source."""
    found = set()
    for path in (ROOT / "runtime").rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call):
                text = template(each.exc.args[0]) if each.exc.args else ""
                is_ours = str(path.relative_to(ROOT)) in OF_OPTIONS or "--" in text
                if is_ours and getattr(each.exc.func, "id", "") == "UsageError":
                    found.add(text)
    return found


def matches(message: str, said: str) -> bool:
    pattern = "".join(".*" if part == "{}" else re.escape(part) for part in re.split(r"(\{\})", said))
    return re.search(pattern, message, re.DOTALL) is not None


def test_every_refusal_in_the_source_has_a_case() -> None:
    assert refusals() == {*REFUSED, *CALLED, *ELSEWHERE}


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("said", REFUSED)
def test_refused(said: str, files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(REFUSED[said].format(**vars(files)).split()) == failures.BAD_INPUT
    assert matches(capsys.readouterr().err, said)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("said", CALLED)
def test_refused_in_python(said: str, files: SimpleNamespace) -> None:
    with pytest.raises(failures.UsageError) as caught:
        CALLED[said](files)
    assert matches(str(caught.value), said)


@pytest.mark.parametrize("said", ELSEWHERE)
def test_the_case_elsewhere_is_there(said: str) -> None:
    words, place = ELSEWHERE[said]
    file, _, name = place.partition("::")
    text = (ROOT / "test" / file).read_text()
    start = text.index(f"def {name}(")
    assert words in said and words in text[start : text.find("\ndef ", start + 1)]


def _streamed(chain: Chain, inputs: int) -> object:
    return times_of(chain, execute_chain(chain, {}, "timing"), inputs)


def test_a_scheduler_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client(nullcontext[None]):
        nthreads = staticmethod(dict[str, int])

    def absent(*_: object, **__: object) -> None:
        raise OSError("nobody answers")

    cases = ((lambda *_, **__: Client(), "it has no workers"), (absent, "cannot be reached: nobody answers"))
    for kind, said in cases:
        monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=kind))
        with pytest.raises(failures.UsageError, match=f"--scheduler here: {said}"), workers("here"):
            pass


# --- options that come too late ----------------------------------------------------------------------------

SAMPLES = {
    "target": "edge", "shapes": "x=1x3x8x8", "dims": "n=2", "bind": "x=1", "batch": "2", "rules": "S1,1",
    "thresholds": "11=75", "cuts": "conv", "plan": "{tmp}/a.plan", "order": "row-major",
    "refuse": "pairs", "pipeline": "frustum-allocate", "dump_ir": "{tmp}/late",
    "weights_seed": "1",
}  # fmt: skip
"""What options without a list of choices may say."""
LATE = {each.name: said for each, said in options_of(RunOptions) if said.until is not None and said.is_typed}
BESIDE = [name for name, said in LATE.items() if said.beside_pipeline is not None]
FLAGS = {each.name: flag_of(each) for each, _ in options_of(RunOptions)}


def sample(name: str, files: SimpleNamespace) -> str:
    choices = LATE[name].choices
    return choices[0] if choices else SAMPLES[name].format(**vars(files))


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("name", LATE)
def test_an_option_is_refused_where_it_has_no_effect(
    name: str, files: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [(files.made, f"is compiled already: {FLAGS[name]} has no effect on it")]
    if LATE[name].until == IMPORTED:
        places.append((files.typed, f"{FLAGS[name]} has no effect on what is imported already"))
    for model, said in places:
        value = "only" if name == "host" else sample(name, files)
        assert cli.main(["run", model, FLAGS[name], value]) == failures.BAD_INPUT
        assert said in capsys.readouterr().err


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", [name for name, said in LATE.items() if said.until in STOPS])
def test_an_option_is_refused_from_its_stop_on(name: str, files: SimpleNamespace) -> None:
    first, value = STOPS.index(LATE[name].until), sample(name, files)
    for stop in range(len(STOPS)):
        asked = Request("m", **{name: value})
        if stop < first:
            refuse_late(asked, "m", STOPS[: stop + 1], {})
            continue
        with pytest.raises(failures.UsageError, match=f"has no effect at stop '{STOPS[stop]}'"):
            refuse_late(asked, "m", STOPS[: stop + 1], {})


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", BESIDE)
def test_an_option_is_refused_beside_a_pipeline(
    name: str, files: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", files.model, "--pipeline", "frustum-allocate", FLAGS[name], sample(name, files)]
    assert cli.main(words) == failures.BAD_INPUT
    assert f"error: {FLAGS[name]} is of the default pipeline: {LATE[name].beside_pipeline}" in capsys.readouterr().err


# --- classes of errors -------------------------------------------------------------------------------------


def _differs(files: SimpleNamespace) -> None:
    frustum.run(files.made, check_against=files.other)


def _worse(files: SimpleNamespace) -> None:
    report = frustum.run(files.made, mode="timing").report
    frustum.diff(report, report, fail_on=["cycles>0"])


def _damaged_stage(files: SimpleNamespace) -> None:
    (Path(files.tmp) / "broken.mlir").write_text("builtin.module {\n  fgraph.nothing\n")
    frustum.compile(Path(files.tmp) / "broken.mlir")


def _crossed(files: SimpleNamespace) -> object:
    x = Block(arg_types=[tensor_type(f32, (2, 3))]).args[0]
    reader = Reader()
    reader.views[x] = reader.root("x", x, Kind.INPUT)
    with reader.inside(Axis("time", 2)):
        box = 0, 0, 6, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0
        return reader.read(RearrangeOp(x, box, (3, 2)))


def _absent(files: SimpleNamespace) -> None:
    """A plan whose second layer comes first, which nobody has checked."""
    case = plan_nets.case(plan_nets.mlp)
    case.plan = Compute(("matmul_3", "matmul_2", "matmul_1"))
    run_of(case, is_checked=False)


def _late(files: SimpleNamespace) -> None:
    """A plan in which a neighbour has a row later than it is asked for."""
    inner = 'for "conv#2.y" step 2 of 12 { compute conv, "conv#2" }'
    loop = f'{{ for "conv#2.y" step 4 of 12 over clusters exchanged {{ {inner} }} }}'
    net = network(windows, (1, 2, 12, 10), (4, 2, 3, 3), (2, 4, 3, 3))
    count(net, read_plan(f'plan @net for "edge" {loop}').node)


def _small(files: SimpleNamespace) -> Target:
    edge = targets.load("edge")
    return replace(edge, chip=replace(edge.chip, dram=replace(edge.chip.dram, capacity_bytes=1024)))


def _no_energy(files: SimpleNamespace) -> None:
    """The least energy of a machine whose bytes take none."""
    edge = _small(files)
    sram = replace(edge.cluster.sram, energy_pj_per_byte=0.0)
    dram = replace(edge.chip.dram, energy_pj_per_byte=0.0)
    NestCosts.of(Wishes("energy", replace(edge, chip=replace(
        edge.chip, dram=dram, cluster=replace(edge.cluster, sram=sram)))), {})  # fmt: skip


ERRORS: dict[type[Error], tuple[int, Callable[[SimpleNamespace], object]]] = {
    failures.UsageError: (2, lambda files: frustum.compile(files.model, dtype="f8")),
    failures.Differs: (3, _differs),
    failures.WorseThanAllowed: (5, _worse),
    PlanError: (2, lambda files: parse_plan("plan @net for {")),
    NotExchanged: (2, _late),
    AbsentElement: (2, _absent),
    NoAxes: (2, _crossed),
    NotLowered: (2, lambda files: frustum.compile(files.model, target="edge", policy="tree", plan=files.uneven)),
    DoesNotFit: (4, lambda files: frustum.compile(files.model, _small(files))),
    OrderDoesNotFit: (4, lambda files: frustum.compile(
        files.chain, machine(1, 4, sram=16 << 10), policy="optimal", order="checkerboard", borders="exchange")),
    TargetError: (2, lambda files: frustum.targets("egde")),
    TableError: (2, lambda files: read_table(np.zeros(3, np.uint8))),
    ModelError: (2, lambda files: frustum.compile(files.x)),
    Unsupported: (2, lambda files: frustum.compile(files.host, host="never")),
    PolicyError: (2, lambda files: parse_policy(CUSTOM)),
    WishError: (2, _no_energy),
    NoSuchWeight: (2, lambda files: WeightStore()["w"]),
    ExecutableError: (2, lambda files: open_executable(Path(files.x))),
    PipelineError: (2, lambda files: frustum.compile(files.model, pipeline="frustum-alocate")),
    Reported: (2, _damaged_stage),
    InputError: (2, lambda files: frustum.run(files.made, {})),
    OracleError: (2, lambda files: frustum.run(files.made, check_against=files.host)),
    HostError: (2, lambda files: frustum.run(
        frustum.compile(files.gather, host="only"), {"x": np.zeros((2, 3), np.float32), "i": np.array([9])})),
}  # fmt: skip
"""By class: the exit code of a command that ends with it, and what raises it."""


def error_classes() -> set[type[Error]]:
    """All subclasses of the base, after every module was imported."""
    for room in ROOMS:
        package = importlib.import_module(f"frustum.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"frustum.{room}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)

    def below(kind: type[Error]) -> set[type[Error]]:
        return {each for direct in kind.__subclasses__() for each in {direct, *below(direct)}}

    ours = (each for each in below(Error) if each.__module__.startswith("frustum."))
    return {each for each in ours if not each.__name__.startswith("_")}


def test_every_class_of_errors_has_a_case() -> None:
    assert error_classes() == set(ERRORS)


@pytest.mark.slow(but=5)
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_class_of_errors(kind: type[Error], files: SimpleNamespace) -> None:
    code, cause = ERRORS[kind]
    with pytest.raises(kind) as caught:
        cause(files)
    assert caught.type is kind and failures.exit_code_of(caught.value) == code
    assert str(caught.value).strip() and "Traceback" not in str(caught.value)


# --- exit codes --------------------------------------------------------------------------------------------

CODES: dict[str, str] = {
    "GOOD": "inspect {made}", "BAD_INPUT": "run {tmp}/nothing.onnx", "NUMBERS_DIFFER": "run {made} --check={other}",
    "DOES_NOT_FIT": "run {model} --target {small}", "WORSE": "diff {made} {made} --fail-on cycles>0",
}  # fmt: skip
BROKEN = {"INTERNAL_ERROR": RuntimeError("planted"), "INTERRUPTED": KeyboardInterrupt()}
"""Of what stands in the place of a command's work."""


def exit_codes() -> dict[str, int]:
    return {name: code for name, code in vars(failures).items() if name.isupper() and isinstance(code, int)}


def test_every_exit_code_has_a_case_and_is_documented() -> None:
    codes = {name: code for name, code in exit_codes().items() if name != "TYPE_CHECKING"}
    assert set(codes) == {*CODES, *BROKEN}
    page = (ROOT / "docs" / "commands.md").read_text()
    for code in codes.values():
        assert re.search(rf"\b{code}\b", cli.__doc__ or "") and re.search(rf"\b{code}\b", page)
    assert {code for code, _ in ERRORS.values()} <= set(codes.values())


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", CODES)
def test_an_exit_code(name: str, files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(CODES[name].format(**vars(files)).split()) == exit_codes()[name]
    assert ("error: " in capsys.readouterr().err) == (name != "GOOD")


@pytest.mark.parametrize("name", BROKEN)
def test_an_exit_code_of_what_breaks(
    name: str, files: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(options: object) -> int:
        raise BROKEN[name]

    monkeypatch.setattr(inspect, "main", main)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.main(["inspect", files.made]) == exit_codes()[name]
