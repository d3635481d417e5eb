"""What the verifiers and parsers of `funit` and `ftile` refuse, and with which words."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects import test
from xdsl.dialects.builtin import (
    Builtin,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f16,
    f32,
    f64,
    i64,
)
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.test_value import create_ssa_value

from frustum.dialects import tile, unit
from frustum.dialects.isa.program import Affine, Box
from frustum.dialects.tile import SAME, SubMap, Tile

MAP = TensorType(f32, (1, 4, 8, 8))
FIXED = Box((Affine(),) * 4, (1, 4, 8, 8), (1, 4, 8, 8))
TILE = Tile("f32", (1, 4, 8, 8), (0, 1, 2, 3))


def value(type=MAP):
    return create_ssa_value(type)


def fused(results=(MAP,), yielded=(MAP,)):
    """A unit whose body gives values of these types."""
    op = unit.UnitOp("u", [value()], results)
    op.body.block.add_op(unit.YieldOp([value(type) for type in yielded]))
    return op


def rebound(op):
    """The unit, its block argument of another type than its operand."""
    op.body.block.erase_arg(op.body.block.args[0])
    op.body.block.insert_arg(TensorType(f16, (1, 4, 8, 8)), 0)
    return op


def tiled(counts=(1, 1, 1, 1), ends=True):
    op = tile.UnitOp("u", [value()], [MAP], counts=counts, clusters=2, depth=1)
    op.body.block.add_op(tile.YieldOp() if ends else test.TestTermOp())
    return op


def endless():
    op = unit.UnitOp("u", [value()], [MAP])
    op.body.block.add_op(test.TestTermOp())
    return op


def compute(accesses):
    return tile.ComputeOp(tile.UnaryLayer("relu"), [value(tile.TileType(TILE))], FIXED, [(SAME,) * 4] * accesses,
                          SubMap((1, 1, 1, 1), 1), TILE)  # fmt: skip


def i64_of(number):
    return IntegerAttr(number, i64)


def with_params(layer="unary", **params):
    """A computation whose numbers are these, or else those of a `relu`."""
    op = compute(1)
    own = {"kind": StringAttr("relu"), "alpha": FloatAttr(0.0, f64), "beta": FloatAttr(0.0, f64), **params}
    op.properties["kind"] = StringAttr(layer)
    op.properties["params"] = DictionaryAttr({key: value for key, value in own.items() if value is not None})
    return op


def loaded_as(**changed):
    op = tile.LoadOp(value(), tile.TensorView(0, (256, 64, 8, 1)), FIXED, TILE)
    op.properties.update(changed)
    return op


REFUSED = {
    "ends with yield": (endless, "funit.unit: the body must end with funit.yield"),
    "yields its types": (lambda: fused(yielded=()), "funit.yield must have the types of the results"),
    "binds its operands": (lambda: rebound(fused()), "funit.unit: block arguments must have the types"),
    "tile unit binds": (lambda: rebound(tiled()), "ftile.unit: block arguments must have the types"),
    "tile unit ends": (lambda: tiled(ends=False), "ftile.unit: the body must end with ftile.yield"),
    "has a tile": (lambda: tiled(counts=(1, 0, 1, 1)), r"at least one tile, found \[1, 0, 1, 1\]"),
    "access per tile": (lambda: compute(2), "1 tiles but 2 accesses"),
    "a kind": (lambda: with_params("unari"), "no kind of layer is called 'unari'; did you mean 'unary'"),
    "all its numbers": (lambda: with_params(kind=None), "a layer 'unary' lacks 'kind'"),
    "no other numbers": (lambda: with_params(alfa=i64_of(1)), "has no 'alfa'; did you mean 'alpha'"),
    "numbers of their types": (lambda: with_params(alpha=i64_of(1)), "'alpha' of a layer 'unary' cannot be 1"),
    "words it knows": (lambda: with_params(kind=StringAttr("x")), "'kind' of a layer 'unary' cannot be 'x'"),
    "scales in pairs": (
        lambda: with_params(scales=DenseArrayBase.from_list(f64, [1.0])),
        r"'scales' of a layer 'unary' cannot be \(1.0,\)",
    ),
    "view attribute": (lambda: loaded_as(view=StringAttr("v")), "ftile.view"),
    "region attribute": (lambda: loaded_as(region=IntegerAttr(1, i64)), "fisa.box"),
    "yield inside": (lambda: ModuleOp([tile.YieldOp()]), "expects parent op 'ftile.unit'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_verifier_refuses(name):
    build, message = REFUSED[name]
    op = build()
    with pytest.raises(VerifyException, match=message):
        op.verify()


@pytest.mark.parametrize("build", [fused, tiled, lambda: compute(1), loaded_as])
def test_verifier_accepts(build):
    build().verify()


ATTRIBUTES = {
    "#funit.partition<tile [1, 0, 1, 1], clusters 2, depth 1>": "at least one element per dimension",
    "#funit.partition<tile [1, 1, 1, 1], clusters 4, depth 1>": "clusters names a dimension 0..3, found 4",
    "#funit.partition<tile [1, 1, 1, 1], clusters 2, depth 3>": "depth is 1 or 2, found 3",
    "#funit.partition<tile [1, 1, 1], clusters 2, depth 1>": "expected 4 integers, found 3",
    "#ftile.map<extent [0, 1, 1, 1], cores 1, channels 1, outer space, weights unit>": "a piece has at least one",
    "#ftile.map<extent [1, 1, 1, 1], cores 5, channels 1, outer space, weights unit>": "cores names a dimension",
    "#ftile.map<extent [1, 8, 1, 1], cores 1, channels 1, outer space, weights unit, on_vector, beside 8>":
        "beside the vector unit some channels are made of 8, found 8",
    "#ftile.map<extent [1, 8, 1, 1], cores 1, channels 1, outer space, weights unit, beside 3>":
        "beside the vector unit some channels are made of 8, found 3",
    "#ftile.map<extent [1, 1, 1, 1], cores 1, channels 1, outer rows, weights unit>":
        "expected one of space, channels, found rows",
    "#ftile.map<extent [1, 1, 1, 1], cores 1, channels 1, outer space, weights gone>":
        "expected one of unit, stream, core, found gone",
    "#ftile.access<same, same>": "expected 4 axes, found 2",
    "!ftile.tile<f32, [1, 1, 1, 1], [0, 1, 1, 3]>": r"each dimension once, found \[0, 1, 1, 3\]",
}  # fmt: skip


@pytest.mark.parametrize("text", ATTRIBUTES)
def test_attribute_is_refused(text):
    with pytest.raises((ParseError, VerifyException), match=ATTRIBUTES[text]):
        Parser(context(), text).parse_attribute()


@pytest.mark.parametrize(
    "text",
    [
        "#funit.partition<tile [1, 2, 3, 4], clusters 3, depth 2>",
        "#ftile.map<extent [1, 2, 3, 4], cores 0, channels 7, outer channels, weights stream>",
        "#ftile.map<extent [1, 2, 3, 4], cores 0, channels 7, outer channels, weights stream, twice>",
        "#ftile.access<same, all 64, [2, 1, -3, 6], [1, 2, 0, 0]>",
        "#ftile.view<-12, [1, 0, -8, 4]>",
        "!ftile.tile<bf16, [1, 3, 61, 224], [3, 0, 2, 1]>",
    ],
)
def test_attribute_round_trips(text):
    assert str(Parser(context(), text).parse_attribute()) == text


def context():
    found = Context()
    for dialect in (Builtin, unit.FUnit, tile.FTile):
        found.load_dialect(dialect)
    return found
