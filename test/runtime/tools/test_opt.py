"""frustum-opt: what goes wrong, how it is told, with which exit code; and that it starts fast."""

import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from frustum.runtime.tools import opt

GOOD = "func.func @f(%x : i32) -> i32 {\n  func.return %x : i32\n}\n"


@pytest.fixture
def good(tmp_path: Path) -> str:
    return _file(tmp_path, GOOD)


def _file(folder: Path, text: str) -> str:
    (folder / "a.mlir").write_text(text)
    return str(folder / "a.mlir")


def test_good_input_is_0(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([good]) == 0
    assert "func.return %x : i32" in capsys.readouterr().out


def test_wrong_ir_is_2_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, GOOD.replace("-> i32", "-> i64"))
    assert opt.main([path]) == 2
    error = capsys.readouterr().err  # xDSL 0.74 says more behind "types"
    start = "'func.return' op: Expected arguments to have the same types as the function output types"
    assert error.startswith(f"{path}:2:3: error: {start}")
    assert error.endswith("\n  func.return %x : i32\n  ^~~~~~~~~~~\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("func.func @f( {\n}", "a.mlir:1:15: error: "),
        ('"test.op"() : () ->', "a.mlir:1:20: error: "),
        ('"test.op"(%x) : (i32) -> ()', "a.mlir:1:11: error: value %x is not defined"),
        ('"test.op"() ({\n"test.op"(%x) : (i32) -> ()', "a.mlir:2:28: error: "),
        ("bultin.module {}", "a.mlir:1:1: error: Operation bultin.module is not registered; did you mean 'builtin."),
        ('"test.op"() {a = vector<-1xi8>} : () -> ()', "a.mlir:1:25: error: "),
        ('"test.op"() {a = "' + "an open string " * 20, "a.mlir:1:18: error: End of file reached before closing"),
        ("%x = fgraph.transpose %y perm [99999999999999999999] : (tensor<1xf32>)", "a.mlir:1:54: error: "),
        ("}", "a.mlir:1:1: error: Could not parse entire input!"),
    ],
)
def test_text_that_does_not_parse(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opt.main([_file(tmp_path, text)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "Traceback" not in error


def test_deep_nesting_is_an_error_not_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    depth = 1000
    assert opt.main([_file(tmp_path, "builtin.module {\n" * depth + "}\n" * depth)]) == 2
    assert "error: regions are nested too deeply" in capsys.readouterr().err


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.mlir").write_bytes(b"// \xc3\xa9\n  \xff\xfe\x00")
    assert opt.main([str(tmp_path / "a.mlir")]) == 2
    assert "a.mlir:2:3: error: this is not UTF-8 text" in capsys.readouterr().err


def test_missing_file_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["nowhere.mlir"]) == 2
    assert capsys.readouterr().err == (
        "frustum-opt: error: cannot open 'nowhere.mlir': No such file or directory\n"
    )


def test_unwritable_output_is_2(good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([good, "-o", str(tmp_path / "no" / "b.mlir")]) == 2
    assert "error: cannot open" in capsys.readouterr().err


def test_a_failed_run_leaves_the_output_file_alone(tmp_path: Path) -> None:
    output = tmp_path / "b.mlir"
    output.write_text("before")
    assert opt.main([_file(tmp_path, "}"), "-o", str(output)]) == 2
    assert output.read_text() == "before"


def test_a_good_run_writes_the_output_file(good: str, tmp_path: Path) -> None:
    assert opt.main([good, "-o", str(tmp_path / "b.mlir")]) == 0
    assert "func.func @f" in (tmp_path / "b.mlir").read_text()


@pytest.mark.parametrize("arguments", [["--no-such-flag"], ["-t", "nothing"]])
def test_wrong_flags_are_2(arguments: list[str], good: str) -> None:
    with pytest.raises(SystemExit) as end:
        opt.main([good, *arguments])
    assert end.value.code == 2


def test_any_file_name_is_mlir(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    assert opt.main([str(tmp_path / "a.txt")]) == 0


def test_dash_is_standard_input() -> None:
    done = _run(["-"], GOOD)
    assert done.returncode == 0
    assert "func.return" in done.stdout


def test_every_chunk_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, "}\n// -----\n" + GOOD + "// -----\n\n}")
    assert opt.main([path, "--split-input-file"]) == 2
    written = capsys.readouterr()
    assert "a.mlir:1:1: error" in written.err
    assert "a.mlir:8:1: error" in written.err
    assert "func.return" in written.out


def test_a_bug_is_one_line_and_a_traceback_on_demand(
    good: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.canonicalize import CanonicalizePass

    def bug(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(CanonicalizePass, "apply", bug)
    assert opt.main([good, "-p", "canonicalize"]) == 1
    assert capsys.readouterr().err == (
        "frustum-opt: internal error in pass 'canonicalize': KeyError: 'lost'\nFRUSTUM_DEBUG=1 shows where\n"
    )
    monkeypatch.setenv("FRUSTUM_DEBUG", "1")
    with pytest.raises(KeyError):
        opt.main([good, "-p", "canonicalize"])


def test_an_error_of_a_pass_names_pass_and_place(
    good: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.canonicalize import CanonicalizePass
    from xdsl.utils.exceptions import PassFailedException

    def refuse(_self: object, _ctx: object, module: object) -> None:
        for op in module.walk():
            if op.name == "func.return":
                raise PassFailedException("no returns here")

    monkeypatch.setattr(CanonicalizePass, "apply", refuse)
    assert opt.main([good, "-p", "canonicalize"]) == 2
    assert "a.mlir:2:3: error: pass 'canonicalize': 'func.return' op: no returns here\n" in capsys.readouterr().err


def test_a_pass_that_breaks_the_ir_is_named(
    good: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.canonicalize import CanonicalizePass

    def drop_return(_self: object, _ctx: object, module: object) -> None:
        function = module.body.block.first_op
        function.body.block.erase_op(function.body.block.last_op)

    monkeypatch.setattr(CanonicalizePass, "apply", drop_return)
    assert opt.main([good, "-p", "canonicalize"]) == 1
    assert "a.mlir:1:1: error: after pass 'canonicalize': Operation func.func contains" in capsys.readouterr().err


def test_what_does_not_fit_is_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """fgraph.network @n (%x : tensor<1x1x1x100000000xf32>) inputs ["x"] outputs ["y"] {
      %y = fgraph.softmax %x axis 3 : tensor<1x1x1x100000000xf32>
      fgraph.output %y : tensor<1x1x1x100000000xf32>
    }
    """
    passes = "frustum-set-target{target=edge},frustum-fuse-layers{policy=none},frustum-tile-partition"
    assert opt.main([_file(tmp_path, text), "-p", passes]) == 4
    assert "does not fit" in capsys.readouterr().err


# --- locations ---------------------------------------------------------------------------------------------

UPSTREAM = """#loc1 = loc("first")
#loc2 = loc("a.py":7:8)
"builtin.module"() ({
  "test.op"() : () -> () loc(#loc1)
  "test.op"() : () -> () loc(#loc4)
  "test.op"() : () -> () loc(#loc5)
}) : () -> () loc(#loc)
#loc = loc(unknown)
#loc3 = loc("b.py":1:2)
#loc4 = loc("second"(#loc3))
#loc5 = loc(fused[#loc2, #loc4])
"""


def test_aliases_are_read_before_and_behind_their_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([_file(tmp_path, UPSTREAM), "--print-debuginfo"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        '"test.op"() : () -> () loc("first")',
        '"test.op"() : () -> () loc("second"("b.py":1:2))',
        '"test.op"() : () -> () loc(fused["a.py":7:8, "second"("b.py":1:2)])',
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#loc4 = loc(#loc4)", "undefined symbol alias '#loc4'"),
        ("#loc4 = loc(#nowhere)", "undefined symbol alias '#nowhere'"),
        ("#loc4 = 7 : i32", "Expected location alias"),
        ('#loc4 = loc("x")\n#loc4 = loc("y")', "re-declaration of alias '#loc4'"),
    ],
)
def test_aliases_that_are_wrong(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opt.main([_file(tmp_path, f'"test.op"() : () -> () loc(#loc4)\n{line}\n')]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_written_keeps_the_locations_that_the_input_has(good: str, tmp_path: Path) -> None:
    out = tmp_path / "out.mlir"
    assert opt.main([good, "-o", str(out)]) == 0
    assert "loc(" not in out.read_text()
    text = 'func.func @f(%x : i32) -> i32 {\n  %y = arith.addi %x, %x : i32 loc("sum")\n  func.return %y : i32\n}\n'
    assert opt.main([_file(tmp_path, text), "-p", "canonicalize", "-o", str(out)]) == 0
    assert 'arith.addi %x, %x : i32 loc("sum")' in out.read_text()


@pytest.mark.slow
def test_help_takes_less_than_a_second_of_a_processor() -> None:
    def seconds() -> float:
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "--print-ir-after-all" in _run(["--help"]).stdout
        stop = resource.getrusage(resource.RUSAGE_CHILDREN)
        return stop.ru_utime + stop.ru_stime - start.ru_utime - start.ru_stime

    assert min(seconds() for _ in range(3)) < 1.0


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("module", ["frustum", "frustum.runtime.universe", "frustum.runtime.tools.opt"])
def test_starting_imports_nothing_heavy(module: str) -> None:
    heavy = "{'numpy', 'onnx', 'onnxruntime', 'numba', 'ruamel', 'ruamel.yaml', 'llvmlite', 'scipy'}"
    ours = "[name for name in sys.modules if name.startswith(('frustum.passes', 'frustum.backend'))]"
    code = f"import sys, {module}; print({heavy} & set(sys.modules), {ours})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set() []"


def test_the_command_says_what_it_stands_on() -> None:
    assert _run(["--version"]).stdout == f"frustum-opt on xDSL {version('xdsl')}\n"


def _run(arguments: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "frustum.runtime.tools.opt", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


# --- as mlir-opt spells it ---------------------------------------------------------------------------------


def test_mlir_spelling_does_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = GOOD.replace("  func", "  %a = arith.addi %x, %x : i32\n  %b = arith.addi %x, %x : i32\n  func")
    path = _file(tmp_path, twice)
    texts = []
    spelt = ["--pass-pipeline=builtin.module(dce)", "--mlir-print-op-generic"]
    for words in (["-p", "dce", "--print-op-generic"], spelt):
        assert opt.main([path, *words]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert '"func.func"' in texts[0] and "addi" not in texts[0]


@pytest.mark.parametrize("flag", ["--mlir-timing", "--time-passes"])
def test_timing_is_not_in_what_another_tool_reads(
    flag: str, good: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opt.main([good, "-p", "dce", flag]) == 0
    written = capsys.readouterr()
    assert "Pass dce took" in written.err
    assert "took" not in written.out


@pytest.mark.parametrize("text", ["", "\n", "// a comment\n  // another\n"])
def test_nothing_is_an_empty_module(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([_file(tmp_path, text)]) == 0
    assert capsys.readouterr().out.split() == ["builtin.module", "{", "}"]
    assert opt.main([_file(tmp_path, text), "--no-implicit-module"]) == 2


def test_all_dialects_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        opt.main(["--show-dialects"])
    assert not end.value.code
    assert {"builtin", "fgraph", "funit", "ftile", "fisa"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--no-such-flag"], "frustum-opt: error: unrecognized arguments: --no-such-flag (frustum-opt --help shows"),
        (["--pass-pipeline", "func.func(cse)"], "found 'func.func(cse)', allowed builtin.module(PASSES)"),
        (["--verify-each=maybe"], "found 'maybe', allowed 0, 1, true, false"),
    ],
)
def test_wrong_words_are_said_in_one_line(
    words: list[str], expected: str, good: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        opt.main([good, *words])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert expected in error and error.count("\n") == 1


def test_verification_between_passes_can_be_left_out(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--verify-each", "--verify-each=1"):
        assert opt.main([good, "-p", "dce", word]) == 0
    done = _run(["-p", "dce", "--verify-each=0"], GOOD.replace("-> i32", "-> i64"))  # it stays so in a process
    assert (done.returncode, "i64" in done.stdout) == (0, True)
    assert capsys.readouterr().err == ""
