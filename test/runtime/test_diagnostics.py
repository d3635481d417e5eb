"""Locations that the parser stamps, and errors that find their way back to the text."""

import pytest
from dominance import check_dominance
from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, test
from xdsl.dialects.builtin import FileLineColLoc, NameLoc
from xdsl.utils.exceptions import VerifyException

from frustum.runtime.diagnostics import Reported, SourceText, located_errors, node_name


class OurError(Exception):
    """Stands for an error class of ours: what counts is the package it is from."""

    __module__ = "frustum.passes.errors"


def _context() -> Context:
    context = Context()
    for dialect in (builtin.Builtin, func.Func, arith.Arith, test.Test):
        context.load_dialect(dialect)
    return context


def _parse(text: str) -> tuple[builtin.ModuleOp, SourceText]:
    source = SourceText("a.mlir", text)
    return source.parse(_context()), source


def test_an_operation_stands_where_its_name_does() -> None:
    module, _ = _parse('%a, %b = "test.op"() : () -> (i32, i32)\n  "test.op"() : () -> ()')
    places = [(op.location.line.data, op.location.column.data) for op in module.body.block.ops]
    assert places == [(1, 10), (2, 3)]
    assert all(isinstance(op.location, FileLineColLoc) for op in module.body.block.ops)


def test_a_location_in_the_text_stays() -> None:
    module, _ = _parse('"test.op"() : () -> () loc("Conv_12")')
    (op,) = module.body.block.ops
    assert isinstance(op.location, NameLoc)
    assert node_name(op.location) == "Conv_12"


def test_the_name_in_a_fused_location() -> None:
    module, _ = _parse('"test.op"() : () -> () loc(fused["a.mlir":1:2, "Conv_12"])')
    (op,) = module.body.block.ops
    assert node_name(op.location) == "Conv_12"


def test_an_operation_made_by_a_pass_is_found_by_its_location() -> None:
    module, source = _parse('\n  "test.op"() : () -> ()')
    (op,) = module.body.block.ops
    made = test.TestPureOp()
    made.location = op.location
    assert source.error_in(made, "wrong").startswith("a.mlir:2:3: error: wrong")


def test_an_operation_without_place_is_found_by_what_holds_it() -> None:
    module, source = _parse('\n "test.op"() ({\n  "test.op"() : () -> ()\n }) : () -> ()')
    (outer,) = module.body.block.ops
    made = test.TestPureOp()
    outer.regions[0].block.add_op(made)
    assert source.error_in(made, "wrong").startswith("a.mlir:2:2: error: wrong")


def test_our_errors_are_reported_at_the_operation_in_hand() -> None:
    module, source = _parse('"test.op"() : () -> ()\n"test.op"() : () -> () loc("Pool_3")')

    def refuse() -> None:
        for op in module.body.block.ops:
            if isinstance(op.location, NameLoc):
                raise OurError("no such pool\nanother line")

    with pytest.raises(Reported) as error, located_errors(source, lambda: "pass 'p'"):
        refuse()
    assert str(error.value) == (
        "a.mlir:2:1: error: pass 'p': 'test.op' op (\"Pool_3\"): no such pool\n"
        '"test.op"() : () -> () loc("Pool_3")\n^~~~~~~~~\nanother line'
    )


def test_bugs_pass() -> None:
    with pytest.raises(AssertionError), located_errors(SourceText("a.mlir", "")):
        raise AssertionError


def test_dominance_holds_in_order() -> None:
    module, _ = _parse('%a = "test.op"() : () -> i32\n"test.op"(%a) ({\n"test.op"(%a) : (i32) -> ()\n}) : (i32) -> ()')
    check_dominance(module)


@pytest.mark.parametrize(
    "text",
    [
        '"test.op"(%a) : (i32) -> ()\n%a = "test.op"() : () -> i32',
        '"test.op"() ({\n%a = "test.op"() : () -> i32\n}) : () -> ()\n"test.op"() : () -> ()',
    ],
)
def test_dominance_finds_a_use_before_its_definition(text: str) -> None:
    module, _ = _parse(text)
    ops = list(module.walk())
    if not any(op.operands for op in ops):  # xDSL's parser refuses the second case as text
        inner, last = ops[2], ops[3]
        last.operands = [inner.results[0]]
    with pytest.raises(VerifyException, match="operand 0 is used before it is defined"):
        check_dominance(module)
