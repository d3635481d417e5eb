"""frustum.compile and frustum.run."""

import pickle
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from images import weights_image
from onnx import TensorProto
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser

import frustum
from frustum.backend import targets
from frustum.backend.file.executable import write_executable
from frustum.dialects.graph import FGraph
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.errors import ModelError, Unsupported
from frustum.passes.fuse.policy import DEFAULT
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.runtime import kernels
from frustum.runtime.device.memory import DTYPES
from frustum.runtime.failures import UsageError
from frustum.runtime.host.oracle import oracle_outputs
from frustum.runtime.machine import InputError
from frustum.runtime.model.compiled import Compiled
from frustum.runtime.model.options import RunOptions, options_of
from frustum.runtime.study.options import DiffOptions, ExplainOptions
from frustum.runtime.tools import cli


def test_importing_the_package_is_free() -> None:
    program = (
        "import sys, frustum; print([n for n in ('numpy', 'onnx', 'xdsl') if n in sys.modules], dir(frustum))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("[] ")
    assert "'compile'" in result.stdout
    assert "'run'" in result.stdout


@pytest.mark.slow
def test_a_path_a_proto_and_a_module_give_the_same(tmp_path: Path) -> None:
    path = onnx_models.save(
        tmp_path, onnx_models.network(), "model.onnx"
    )  # as a proto without a file is called
    module = import_onnx(path)
    before = str(module)
    found = [
        frustum.compile(model, target="edge").executable for model in (path, Path(path), onnx_models.network(), module)
    ]
    assert str(module) == before, "the caller's module is left as it is"
    for exe in found:
        assert exe.code.bytes == found[0].code.bytes
        assert exe.manifest == found[0].manifest
        assert np.array_equal(weights_image(exe), weights_image(found[0]))


def test_outputs_and_report() -> None:
    model, x = onnx_models.network(), onnx_models.image()
    result = frustum.run(frustum.compile(model), {"x": x})
    assert result.outputs.keys() == {"y"}
    np.testing.assert_allclose(result.outputs["y"], oracle_outputs(model, {"x": x})["y"], atol=1e-5)
    assert result.report["schema"] == 1
    assert (result.report["target"], result.report["policy"], result.report["dtype"]) == (
        "default",
        DEFAULT,
        "f32",
    )
    assert result.report["cycles"]["total"] > 0
    assert result.report["check"] is None


def test_every_option() -> None:
    model = onnx_models.network(("n", onnx_models.CHANNELS, "h", 8))
    exe = frustum.compile(model, targets.load("edge"), "f16", "none", shapes={"x": (2, 3, 6, 8)})
    result = frustum.run(exe, {"x": np.zeros((2, 3, 6, 8), np.float32)}, mode="functional", checked=True)
    assert (result.report["target"], result.report["policy"], result.report["dtype"]) == (
        "edge",
        "none",
        "f16",
    )
    assert result.report["cycles"] is None
    batched = frustum.compile(onnx_models.network(), batch=3).executable
    assert batched.manifest["inputs"][0]["shape"] == [3, 3, 8, 8]
    assert frustum.run(batched, {}, mode="timing").outputs == {}


def test_a_written_executable_runs(tmp_path: Path) -> None:
    exe = frustum.compile(onnx_models.network(), target="edge").executable
    write_executable(exe, tmp_path / "a.frustum")
    x = onnx_models.image()
    written = frustum.run(tmp_path / "a.frustum", {"x": x})
    assert np.array_equal(written.outputs["y"], frustum.run(exe, {"x": x}).outputs["y"])


def test_an_executable_runs_again_and_again() -> None:
    exe = frustum.compile(onnx_models.network(), target="edge")
    first, second, again = (
        frustum.run(exe, {"x": onnx_models.image(seed=seed)}).outputs["y"] for seed in (0, 1, 0)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_errors_are_those_of_the_command_line(tmp_path: Path) -> None:
    exe = frustum.compile(onnx_models.network(), target="edge")
    with pytest.raises(InputError, match="input 'x': missing; given: nothing"):
        frustum.run(exe, {})
    with pytest.raises(Unsupported, match=r"model.onnx: node 'layer' \(NonZero\): error: "):
        frustum.compile(onnx_models.one_node("NonZero", (1, 4)), host="never")
    with pytest.raises(ModelError, match="not an ONNX file"):
        (tmp_path / "a.onnx").write_text("hello")
        frustum.compile(tmp_path / "a.onnx")
    with pytest.raises(targets.TargetError, match="no target 'egde'; did you mean 'edge'"):
        frustum.compile(onnx_models.network(), target="egde")
    with pytest.raises(UsageError, match="dtype 'int4' is none of f32, f16, bf16, int8, model"):
        frustum.compile(onnx_models.network(), dtype="int4")
    with pytest.raises(UsageError, match="policy 'best' is none of none, pyramid, template, greedy, optimal"):
        frustum.compile(onnx_models.network(), policy="best")
    with pytest.raises(UsageError, match="mode 'fast' is none of full, functional, timing"):
        frustum.run(exe, {}, mode="fast")
    text = Path(targets.path("edge")).read_text().replace("capacity_bytes: 1 GiB", "capacity_bytes: 1024")
    (tmp_path / "tiny.yaml").write_text(text)
    with pytest.raises(DoesNotFit, match=r"needed .* B, available 1024 B of dram"):
        frustum.compile(onnx_models.network(), target=tmp_path / "tiny.yaml")


def test_one_base_of_all_errors_tells_each_problem_apart(tmp_path: Path) -> None:
    with pytest.raises(frustum.Error) as unknown:
        frustum.compile(onnx_models.network(), target="egde")
    (found,) = unknown.value.diagnostics
    assert unknown.value.exit_code == 2 and found.mend == "did you mean 'edge'?" and found.node is None
    with pytest.raises(frustum.Error) as unsupported:
        frustum.compile(onnx_models.one_node("NonZero", (1, 4)), host="never")
    (found,) = unsupported.value.diagnostics
    assert (found.file, found.node, found.operator) == ("model.onnx", "layer", "NonZero")
    text = Path(targets.path("edge")).read_text().replace("capacity_bytes: 1 GiB", "capacity_bytes: 1024")
    (tmp_path / "tiny.yaml").write_text(text)
    with pytest.raises(frustum.Error) as small:
        frustum.compile(onnx_models.network(), target=tmp_path / "tiny.yaml")
    assert small.value.exit_code == 4 and small.value.diagnostics[0].mend == "a target with more dram"


def test_messages_name_keywords() -> None:
    with pytest.raises(frustum.Error, match="as with dims h=128"):
        frustum.compile(onnx_models.network((1, onnx_models.CHANNELS, "h", 8)), host="never")
    exe = frustum.compile(onnx_models.network(), target="edge")
    with pytest.raises(frustum.Error, match="inputs are a mapping by name"):
        frustum.run(exe, onnx_models.image())  # type: ignore[arg-type]
    with pytest.raises(frustum.Error, match="check needs mode full or functional"):
        frustum.run(exe, check=True, mode="timing")
    with pytest.raises(frustum.Error, match="int is nothing that was compiled"):
        frustum.run(3)  # type: ignore[arg-type]


def test_what_was_compiled_tells_of_itself_and_is_saved(tmp_path: Path) -> None:
    made = frustum.compile(onnx_models.network(), target="edge")
    report = frustum.run(made, mode="timing").report
    assert [each.name for each in made.units] == [each["name"] for each in report["units"]]
    assert [each.name for each in made.layers] == [each["name"] for each in report["layers"]]
    assert made.target == frustum.targets("edge") == frustum.targets()["edge"]
    assert repr(made).startswith("<frustum.Compiled: model.onnx for edge, f32, ") and len(repr(made)) < 200
    again = frustum.run(made.save(tmp_path / "out"), mode="timing").report
    assert again.data["cycles"] == report["cycles"] and again["hashes"] == report["hashes"]
    assert "model for edge" in frustum.inspect(made) and "Units" in frustum.inspect(tmp_path / "out")
    assert frustum.diff(report, tmp_path / "out").same == len(made.units)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("")
    with pytest.raises(frustum.Error, match="it holds other files"):
        made.save(tmp_path / "other")


def test_what_the_command_can(tmp_path: Path) -> None:
    made = frustum.compile(onnx_models.network(), "edge", cuts="conv", dump_ir=tmp_path / "ir")
    assert (tmp_path / "ir" / "00-imported.mlir").is_file()
    checked = frustum.run(made, input_seed=3, check=True).report.data["check"]
    assert checked is not None and checked["max_rel_error"] < 1e-4
    streamed = frustum.run(made, stream=2)
    assert streamed.outputs["y"].shape[0] == 2 and streamed.report["stream"]["inputs"] == 2


@pytest.mark.slow
def test_a_report_shows_its_run(tmp_path: Path) -> None:
    made = frustum.compile(onnx_models.network(), "edge", dump_ir=tmp_path / "ir")
    report = frustum.run(made, mode="timing").report
    page = report.html()
    assert page.startswith("<!doctype html>") and "fgraph.conv" not in page
    assert "fgraph.conv" in report.html(tmp_path / "ir")
    pytest.importorskip("perfetto", reason="traces need the package perfetto")
    assert b"conv" in report.trace()
    again = pickle.loads(pickle.dumps(report))
    assert again == report
    for shown in (again.html, again.trace):
        with pytest.raises(UsageError, match="this report was read or copied, and has figures alone"):
            shown()
    for mode, stream, why in (("functional", None, "needs mode full or timing"), ("full", 2, "and stream: a page is")):
        with pytest.raises(UsageError, match=f"error: html {why}"):
            frustum.run(made, mode=mode, stream=stream).report.html()


@pytest.mark.slow
def test_every_layer_is_checked_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(onnx_models.save(tmp_path))
    made = frustum.compile(path, "edge", policy="optimal")
    check = frustum.run(made, check="layers").report["check"]
    assert check["faults"] == [] and [each["layer"] for each in check["layers"]] == ["conv", "pool", "mean", "dense"]
    assert made.hashes == Compiled.of(made.save(tmp_path / "out")).hashes
    pool = kernels.max_pool
    monkeypatch.setattr(kernels, "max_pool", lambda *words, **named: pool(*words, **named) + 1)
    with pytest.raises(frustum.Error, match=r"small.onnx: error: layer 'pool': .*; by the kernel of 'pool'") as caught:
        frustum.run(made, check="layers")
    assert caught.value.exit_code == 3
    monkeypatch.undo()
    onnx_models.save(tmp_path, onnx_models.network(element=TensorProto.FLOAT16))
    with pytest.raises(UsageError, match="is not the model any more that was compiled: compile it again"):
        frustum.run(made, check="layers")
    with pytest.raises(UsageError, match="there is no model to check against"):
        frustum.run(made.executable, check=True)
    assert frustum.run(frustum.compile(path).executable, check_against=path).report["check"]["max_rel_error"] < 2e-3


@pytest.mark.slow
def test_explain_explore_and_diff_as_the_commands_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_models.save(tmp_path)
    found = frustum.explain(path, "edge", subject="conv", most=1, probes=0)
    assert cli.main(["explain", path, "conv", "--target", "edge", "--most", "1", "--probes", "0"]) == 0
    assert capsys.readouterr().out == found.text()
    with pytest.raises(UsageError, match=r"error: pipeline: explain compiles the model in other ways"):
        frustum.explain(path, pipeline="-frustum-hoist-loads")
    (tmp_path / "s.yaml").write_text(
        "extends: edge\ntarget:\n  chip.dram.port_bytes_per_cycle: [8, 16]\nobjectives: [cycles.total]\n"
    )
    explored = frustum.explore(path, tmp_path / "s.yaml", database=tmp_path / "s.sqlite")
    assert [len(explored.points), len(explored.front), explored.ran] == [2, 1, 2]
    assert cli.main(["explore", path, "--space", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "s.sqlite")]) == 0
    assert capsys.readouterr().out.startswith(explored.text())
    plans = [frustum.compile(path, "edge", policy=policy) for policy in (None, "none")]
    reports = [frustum.run(plan, mode="timing").report for plan in plans]
    assert "-> after" in frustum.diff(*reports, fail_on=["cycles<0"]).text()
    with pytest.raises(frustum.Error, match=r"after: error: bytes>\+1%") as caught:
        frustum.diff(*reports, fail_on=["bytes>+1%"])
    assert caught.value.exit_code == 5
    assert frustum.target_schema()["type"] == "object"


OTHERWISE = {
    "annotate": "Report.annotate",
    "input": "inputs", "output": "Result.outputs", "report": "Report.write", "html": "Report.html",
    "json": "Report.json", "verbose": "Report.text", "quiet": "", "trace": "Report.trace", "no_cache": "cache",
}  # fmt: skip
"""Options of `frustum run` that have no keyword of their name: what does it."""


def test_what_the_commands_can_the_api_can() -> None:
    functions = {name.replace("-", "_") for name in cli.COMMANDS}
    assert functions <= set(frustum.__all__)
    keywords = set(signature(frustum.compile).parameters) | set(signature(frustum.run).parameters)
    options = {each.name for each, _ in options_of(RunOptions)}
    assert options - keywords == set(OTHERWISE)
    for kind, function in ((ExplainOptions, frustum.explain), (DiffOptions, frustum.diff)):
        own = {each.name for each, _ in options_of(kind)} - {"json", "no_cache", "markdown"}
        assert own <= set(signature(function).parameters)


def own_module(element: str, other: str) -> ModuleOp:
    """A module as somebody else's compiler may make it: it says nothing of types."""
    text = """fgraph.network @own (%x : tensor<1x4x8x8xKIND>, %o : tensor<4xOTHER>)
      inputs ["x", "o"] outputs ["y", "z"] {
      %y = fgraph.unary <relu> %x : tensor<1x4x8x8xKIND>
      %z = fgraph.unary <relu> %o : tensor<4xOTHER>
      fgraph.output %y, %z : tensor<1x4x8x8xKIND>, tensor<4xOTHER>
    }"""
    context = Context()
    for dialect in (Builtin, FGraph):
        context.load_dialect(dialect)
    return Parser(context, text.replace("KIND", element).replace("OTHER", other)).parse_module()


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
def test_the_element_type_of_a_module_is_that_of_its_tensors(element: str) -> None:
    executable = frustum.compile(own_module(element, element), "edge").executable
    assert executable.manifest["dtype"] == element
    x = np.random.default_rng(0).standard_normal((1, 4, 8, 8), np.float32)
    feeds = {"x": x.astype(DTYPES[element]), "o": np.zeros(4, DTYPES[element])}
    found = frustum.run(executable, feeds).outputs["y"]
    assert (found == np.maximum(x.astype(DTYPES[element]), 0)).all()


def test_an_element_type_that_tensors_do_not_tell() -> None:
    message = r"module: error: the module has no frustum.dtype, and its tensors, of bf16 and f16, do not tell it"
    with pytest.raises(UsageError, match=message):
        frustum.compile(own_module("f16", "bf16"), "edge")
    with pytest.raises(UsageError, match="error: input 'o' has elements of f64, which no engine of the device"):
        frustum.compile(own_module("f32", "f64"), "edge")


def members(kind: type) -> dict[str, object]:
    """What people may use of a class, of those that are ours."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("frustum.")]
    found = {name: each for base in reversed(ours) for name, each in vars(base).items() if not name.startswith("_")}
    return {
        name: each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        for name, each in found.items()
    }


def untyped(name: str, thing: object) -> list[str]:
    """Parameters and results without a type; of a class all members."""
    if isinstance(thing, type):
        fields = {name for base in thing.__mro__ for name in vars(base).get("__annotations__", {})}
        return [
            word for own, each in members(thing).items() if own not in fields for word in untyped(f"{name}.{own}", each)
        ]
    if not callable(thing):
        return [name]
    own = signature(thing)
    words = [each.name for each in own.parameters.values() if each.annotation is each.empty and each.name not in SELVES]
    return [f"{name}({word})" for word in words] + ([f"{name} ->"] if own.return_annotation is own.empty else [])


SELVES = ("self", "cls")


@pytest.mark.parametrize("name", [name for name in frustum.__all__ if name != "__version__"])
def test_all_that_is_offered_has_types(name: str) -> None:
    assert untyped(name, getattr(frustum, name)) == []
    assert getattr(frustum, name).__doc__


def test_a_missing_type_is_found() -> None:
    def partly(a: int, b) -> None: ...

    assert untyped("partly", partly) == ["partly(b)"]
    assert untyped("kind", type("Kind", (), {"__module__": "frustum.x", "f": lambda self: 0})) == ["kind.f ->"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: frustum.compile("m.onnx", polcy="none"), "compile() got an unexpected keyword argument 'polcy'; did"),
        (lambda: frustum.compile(), "compile() missing a required argument: 'model'"),
        (lambda: frustum.explain("m.onnx", mosst=1), "explain() got an unexpected keyword argument 'mosst'; did"),
    ],
)
def test_wrong_words_name_what_was_called(call, said):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(said)
