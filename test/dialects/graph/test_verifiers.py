"""Each verifier refuses what its operation does not mean."""

import pytest
from xdsl.dialects.builtin import TensorType, f16, f32, i8
from xdsl.ir import Block
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from frustum.dialects.graph import (
    ActAttr,
    BinaryOp,
    ConcatOp,
    ConvOp,
    InterleaveOp,
    LrnOp,
    MatmulOp,
    NetworkOp,
    OutputOp,
    PadOp,
    PartOp,
    PoolOp,
    RecurrenceOp,
    ReduceOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    SoftmaxOp,
    StepYieldOp,
    TransposeOp,
    shape_of,
)
from frustum.dialects.graph.attributes import int_array


def value(*shape, element=f32):
    return create_ssa_value(TensorType(element, shape))


X = (1, 4, 8, 8)
REFUSED = [
    (lambda: PartOp(value(*X), 1, 1), "fgraph.part: start 1, count 1; allowed: positions of 1"),
    (lambda: PartOp(value(*X), 0, 0), "fgraph.part: start 0, count 0; allowed: positions of 1"),
    (lambda: ConvOp(value(*X), value(8, 3, 3, 3)), "4 channels, but 1 groups of 3"),
    (lambda: ConvOp(value(*X), value(7, 2, 3, 3), groups=2), "7 output channels do not divide into 2 groups"),
    (lambda: ConvOp(value(4, 8, 8), value(8, 4, 3, 3)), "expected 4-D operands"),
    (lambda: ConvOp(value(*X), value(8, 4, 9, 3)), "does not fit into"),
    (lambda: ConvOp(value(*X), value(8, 4, 3, 3), strides=(0, 1)), "must be positive"),
    (lambda: ConvOp(value(*X), value(8, 4, 3, 3), pads=(1, 1)), "expected 4 pads, found 2"),
    (lambda: ConvOp(value(*X), value(8, 4, 1, 1), value(4)), r"the bias has shape \(4,\), expected \(8,\)"),
    (lambda: ConvOp(value(*X), value(8, 4, 1, 1), value(8, element=f16)), "expected f32"),
    (lambda: ConvOp(value(*X), value(8, 4, 1, 1, element=f16)), "element types f32 and f16 differ"),
    (lambda: ConvOp(value(-1, 4, 8, 8), value(8, 4, 1, 1)), "expected a static shape"),
    (lambda: MatmulOp(value(2, 3), value(4, 5)), "inner extents 3 and 4 differ"),
    (lambda: MatmulOp(value(3), value(3, 5)), "expected operands of two or more dimensions"),
    (lambda: MatmulOp(value(2, 4, 3), value(5, 3, 4)), "do not broadcast"),
    (lambda: PoolOp("max", value(*X), kernel=(9, 1)), "does not fit into"),
    (lambda: PoolOp("max", value(*X), kernel=(2, 2), count_include_pad=True), "belongs to avg"),
    (lambda: ReduceOp("sum", value(*X), (2, 2)), "repeat"),
    (lambda: ReduceOp("sum", value(*X), (4,)), r"axis 4 is not inside \[0, 4\)"),
    (lambda: SoftmaxOp(value(*X), -1), "axis -1 is not inside"),
    (lambda: LrnOp(value(*X), 0, 1e-4, 0.75, 1), "size must be positive"),
    (lambda: ResizeOp("linear", value(4, 8), (2, 2), scale=(1, 1), offset=(0, 0)), "expected 4-D shapes"),
    (lambda: BinaryOp("add", value(3), value(4)), "do not broadcast"),
    (lambda: BinaryOp("add", value(1, 1, 1, 1, 1, 1, 2), value(2)), "at most 6 dimensions"),
    (lambda: BinaryOp("add", value(3), value(3, element=i8)), "element types f32 and i8 differ"),
    (lambda: ConcatOp([value(2, 3), value(2, 4)], 0), "differ outside axis 0"),
    (lambda: SliceOp(value(4), (1,), (4,)), r"elements 1 to 4 are not inside \[0, 4\)"),
    (lambda: SliceOp(value(4), (1,), (1,), (0,)), "a step must not be 0"),
    (lambda: PadOp(value(4), (-3,), (-2,)), "leave nothing"),
    (lambda: ReshapeOp(value(4), (5,)), "has 4 elements"),
    (lambda: TransposeOp(value(2, 3), (0, 0)), "is not a permutation of 2 axes"),
    (lambda: InterleaveOp([value(1, 2, 3, 3)] * 3, (2, 2)), "expected 4 parts, found 3"),
    (lambda: InterleaveOp([value(1, 2, 3, 3), value(1, 2, 5, 3)], (2, 1)), "part 0 is"),
    (lambda: ActAttr.of("relu", 1.0), "relu takes 0 parameters"),
    (lambda: NetworkOp("n", [("x", f32)], []), "inputs must be tensors"),
    (lambda: NetworkOp("n", [], [], Block([])), "a network ends with fgraph.output"),
    (lambda: NetworkOp("n", [], ["y"], Block([OutputOp([])])), "1 output names for 0 outputs"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(build, message):
    with pytest.raises(VerifyException, match=message):
        build().verify_()


def test_a_wrong_result_type_is_refused():
    op = ConvOp(value(*X), value(8, 4, 3, 3))
    op.result._type = TensorType(f32, X)
    with pytest.raises(
        VerifyException, match=r"the result's shape is \(1, 4, 8, 8\), expected \(1, 8, 6, 6\)"
    ):
        op.verify_()


def test_results_have_the_shape_they_should():
    conv = ConvOp(
        value(*X), value(8, 2, 3, 3), strides=(2, 1), pads=(0, -1, 1, 2), dilations=(1, 2), groups=2
    )
    assert shape_of(conv.result) == (1, 8, 4, 5)
    assert shape_of(MatmulOp(value(3, 2), value(4, 5, 3), trans_a=True, trans_b=True).result) == (4, 2, 5)
    pool = PoolOp("max", value(*X), kernel=(3, 3), strides=(2, 2), ceil_pads=(1, 1))
    assert shape_of(pool.result) == (1, 4, 4, 4)
    uneven = InterleaveOp(
        [value(1, 2, 3, 2), value(1, 2, 3, 1), value(1, 2, 2, 2), value(1, 2, 2, 1)], (2, 2)
    )
    assert shape_of(uneven.result) == (1, 2, 5, 3)
    assert shape_of(ReduceOp("mean", value(*X), (2, 3), keepdims=False).result) == (1, 4)


def loop(sequence=(6, 4), own=(2, 4), state=(2, 4), new=None, output=(2, 4), start=(2, 4), dim=0, steps=3):
    """A recurrence with one of each, whose body computes nothing."""
    block = Block(arg_types=[value(*own).type, value(*state).type])
    states = [value(*(new or state))]
    block.add_op(StepYieldOp(states, [value(*output)]))
    starts = [value(*start)] if start else [None]
    return RecurrenceOp([value(*sequence)], starts, block, steps=steps, dim=dim)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": (7, 4)}, "sequence 0: 3 steps do not divide 7"),
        ({"own": (1, 4)}, "a slice of sequence 0 is tensor<2x4xf32>, its argument tensor<1x4xf32>"),
        ({"dim": 2}, "sequence 0 of 2 dimensions has no dimension 2"),
        ({"start": (4,)}, "state 0 is tensor<2x4xf32>, and starts as tensor<4xf32>"),
        ({"new": (4, 2)}, "state 0 is tensor<2x4xf32>, fgraph.yield hands on tensor<4x2xf32>"),
        ({"output": (), "dim": 0}, "output 0 of 0 dimensions has no dimension 0"),
        ({"steps": 0, "own": (2, 4)}, "a recurrence has at least one step, found 0"),
    ],
)
def test_recurrences_that_are_none(options, message):
    with pytest.raises(VerifyException, match=message):
        loop(**options).verify_()


def test_what_a_recurrence_gives_fits_its_body():
    found = loop(start=None)
    found.verify_()
    assert [str(type_) for type_ in found.result_types] == ["tensor<6x4xf32>", "tensor<2x4xf32>"]
    found.properties["zeros"] = int_array((0, 1))
    with pytest.raises(VerifyException, match="1 states, of which 0 are given at the start and 2 are 0"):
        found.verify_()
    found.properties["zeros"] = int_array((0,))
    Rewriter.replace_value_with_new_type(found.results[0], value(2, 4).type)
    with pytest.raises(VerifyException, match=r"results of types \(tensor<2x4xf32>, .*\), expected \(tensor<6x4xf32>"):
        found.verify_()
