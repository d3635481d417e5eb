"""Messages taken apart into problems."""

import pytest

from frustum.dialects.errors import Diagnostic, Error, diagnostics_of


@pytest.mark.parametrize(("text", "found"), [
    ("a.yaml:3:5: error: bad; did you mean 'x'? (known: y)\n  line\n  ^",
     Diagnostic("bad; did you mean 'x'? (known: y)", "a.yaml", 3, 5, mend="did you mean 'x'?", source="  line\n  ^\n")),
    ("a b.onnx: node 'Conv (1)' (Conv): error: no", Diagnostic("no", "a b.onnx", node="Conv (1)", operator="Conv")),
    ("error: mode 'fast' is none of full", Diagnostic("mode 'fast' is none of full")),
    ("C:/x.onnx: error: cannot be read (MODEL is a path)",
     Diagnostic("cannot be read (MODEL is a path)", "C:/x.onnx", mend="MODEL is a path")),
    ("input 'x': missing", Diagnostic("input 'x': missing")),
])  # fmt: skip
def test_a_problem(text: str, found: Diagnostic) -> None:
    assert diagnostics_of(text) == (found,) == Error(text).diagnostics


def test_several_problems() -> None:
    assert [each.line for each in diagnostics_of("a.yaml:1:1: error: x\n  a\n  ^\na.yaml:2:1: error: y")] == [1, 2]


def test_other_words() -> None:
    error = Error("error: --batch")
    error.reword(lambda text: text.replace("--batch", "batch"))
    assert str(error) == "error: batch"
