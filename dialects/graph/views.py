"""Operations that move elements without changing them."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure

from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import (
    Ints,
    Number,
    float_attr,
    int_array,
    ints_of,
    shape_of,
    tensor_of,
)
from frustum.dialects.graph.checks import FLOAT, INT, INTS, check_elements, check_result, i64_attr, like
from frustum.dialects.graph.scales import check_integer, is_integer

__all__ = [
    "ConcatOp",
    "InterleaveOp",
    "PadOp",
    "PickOp",
    "ReshapeOp",
    "ShuffleOp",
    "SliceOp",
    "TransposeOp",
    "TurnOp",
]

CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Transpositions of [N, C, H, W] to [N, H, W, C], and back."""


@irdl_op_definition
class ConcatOp(IRDLOperation):
    """Its operands, one after the other along an axis."""

    name = "fgraph.concat"
    xs = var_operand_def(TensorType)
    axis_attr = prop_def(INT, prop_name="axis")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$xs `axis` $axis attr-dict `:` functional-type(operands, results)"

    def __init__(self, xs: Sequence[SSAValue], axis: int) -> None:
        shape = shapes.concat_shape([shape_of(x) for x in xs], axis)
        super().__init__(
            operands=[xs], properties={"axis": i64_attr(axis)}, result_types=[like(xs[0], shape)]
        )

    @property
    def axis(self) -> int:
        return self.axis_attr.value.data

    def verify_(self) -> None:
        check_result(self, shapes.concat_shape([shape_of(x) for x in self.xs], self.axis))
        check_elements(*self.xs, self.result)


@irdl_op_definition
class SliceOp(IRDLOperation):
    """Every steps-th element from starts on, one of each per axis; the result's type gives the sizes."""

    name = "fgraph.slice"
    x = operand_def(TensorType)
    starts_attr = prop_def(INTS, prop_name="starts")
    steps_attr = prop_def(INTS, prop_name="steps")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `starts` $starts `steps` $steps attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, starts: Ints, sizes: Ints, steps: Ints | None = None) -> None:
        steps = steps or (1,) * len(starts)
        shapes.check_slice(shape_of(x), starts, steps, sizes)
        super().__init__(
            operands=[x],
            properties={"starts": int_array(starts), "steps": int_array(steps)},
            result_types=[like(x, sizes)],
        )

    @property
    def starts(self) -> Ints:
        return ints_of(self.starts_attr)

    @property
    def steps(self) -> Ints:
        return ints_of(self.steps_attr)

    def verify_(self) -> None:
        shapes.check_slice(shape_of(self.x), self.starts, self.steps, shape_of(self.result))
        check_elements(self.x, self.result)


@irdl_op_definition
class PadOp(IRDLOperation):
    """A constant border of low elements before and high elements after each axis; negative ones crop."""

    name = "fgraph.pad"
    x = operand_def(TensorType)
    low_attr = prop_def(INTS, prop_name="low")
    high_attr = prop_def(INTS, prop_name="high")
    value_attr = prop_def(FLOAT, prop_name="value")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    custom_directives = (Number,)
    assembly_format = (
        "$x `low` $low `high` $high `value` custom<Number>($value) "
        "attr-dict `:` functional-type(operands, results)"
    )

    def __init__(self, x: SSAValue, low: Ints, high: Ints, value: float = 0.0) -> None:
        shape = shapes.pad_shape(shape_of(x), low, high)
        super().__init__(
            operands=[x],
            properties={"low": int_array(low), "high": int_array(high), "value": float_attr(value)},
            result_types=[like(x, shape)],
        )

    @property
    def low(self) -> Ints:
        return ints_of(self.low_attr)

    @property
    def high(self) -> Ints:
        return ints_of(self.high_attr)

    @property
    def value(self) -> float:
        return self.value_attr.value.data

    def verify_(self) -> None:
        check_result(self, shapes.pad_shape(shape_of(self.x), self.low, self.high))
        check_elements(self.x, self.result)
        if is_integer(self.x):
            check_integer(self.value, tensor_of(self.x).element_type)


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """The same elements in the same order under another shape."""

    name = "fgraph.reshape"
    x = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, shape: Ints) -> None:
        shapes.check_reshape(shape_of(x), shape)
        super().__init__(operands=[x], result_types=[like(x, shape)])

    def verify_(self) -> None:
        shapes.check_reshape(shape_of(self.x), shape_of(self.result))
        check_elements(self.x, self.result)


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """Axes reordered: axis i of the result is axis perm[i] of the operand."""

    name = "fgraph.transpose"
    x = operand_def(TensorType)
    perm_attr = prop_def(INTS, prop_name="perm")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `perm` $perm attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, perm: Ints) -> None:
        shape = shapes.transpose_shape(shape_of(x), perm)
        super().__init__(operands=[x], properties={"perm": int_array(perm)}, result_types=[like(x, shape)])

    @property
    def perm(self) -> Ints:
        return ints_of(self.perm_attr)

    def verify_(self) -> None:
        check_result(self, shapes.transpose_shape(shape_of(self.x), self.perm))
        check_elements(self.x, self.result)


@irdl_op_definition
class ShuffleOp(IRDLOperation):
    """Channels of `groups` dealt in turn: channel `i * groups + j` of the result is channel i of group j."""

    name = "fgraph.shuffle"
    x = operand_def(TensorType)
    groups_attr = prop_def(INT, prop_name="groups")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `groups` $groups attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, groups: int) -> None:
        properties = {"groups": i64_attr(groups)}
        super().__init__(operands=[x], properties=properties, result_types=[like(x, shape_of(x))])

    @property
    def groups(self) -> int:
        return self.groups_attr.value.data

    def verify_(self) -> None:
        shape = shape_of(self.x)
        is_even = len(shape) == 4 and self.groups > 0 and shape[1] % self.groups == 0  # n, c, h, w
        shapes.check(is_even, f"fgraph.shuffle: {self.groups} groups of the channels of {shape}")
        check_result(self, shape)
        check_elements(self.x, self.result)


@irdl_op_definition
class PickOp(IRDLOperation):
    """A slice of a map with steps above 0: a layer among others, which a unit makes tile by tile."""

    name = "fgraph.pick"
    x = operand_def(TensorType)
    starts_attr = prop_def(INTS, prop_name="starts")
    steps_attr = prop_def(INTS, prop_name="steps")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `starts` $starts `steps` $steps attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, starts: Ints, sizes: Ints, steps: Ints) -> None:
        properties = {"starts": int_array(starts), "steps": int_array(steps)}
        super().__init__(operands=[x], properties=properties, result_types=[like(x, sizes)])

    @property
    def starts(self) -> Ints:
        return ints_of(self.starts_attr)

    @property
    def steps(self) -> Ints:
        return ints_of(self.steps_attr)

    def verify_(self) -> None:
        shape = shape_of(self.x)
        is_map = len(shape) == 4 and all(step > 0 for step in self.steps)  # n, c, h, w
        shapes.check(
            is_map, f"fgraph.pick: steps {self.steps} of {shape}; allowed: steps above 0 of four dimensions"
        )
        shapes.check_slice(shape, self.starts, self.steps, shape_of(self.result))
        check_elements(self.x, self.result)


@irdl_op_definition
class TurnOp(IRDLOperation):
    """A map [N, C, H, W] with its channels last, or one of [N, H, W, C] with its channels first: a transposition that
    is a layer among others, since it only says how one of its two tensors lies."""

    name = "fgraph.turn"
    x = operand_def(TensorType)
    perm_attr = prop_def(INTS, prop_name="perm")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$x `perm` $perm attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, perm: Ints) -> None:
        shape = shapes.transpose_shape(shape_of(x), perm)
        super().__init__(operands=[x], properties={"perm": int_array(perm)}, result_types=[like(x, shape)])

    @property
    def perm(self) -> Ints:
        return ints_of(self.perm_attr)

    def verify_(self) -> None:
        is_turn = self.perm in (CHANNELS_LAST, CHANNELS_FIRST)
        shapes.check(is_turn, f"fgraph.turn: perm {self.perm}; allowed: {CHANNELS_LAST}, {CHANNELS_FIRST}")
        check_result(self, shapes.transpose_shape(shape_of(self.x), self.perm))
        check_elements(self.x, self.result)


@irdl_op_definition
class InterleaveOp(IRDLOperation):
    """result[n, c, s_h*i + a, s_w*j + b] = parts[a*s_w + b][n, c, i, j], for factor [s_h, s_w]"""

    name = "fgraph.interleave"
    parts = var_operand_def(TensorType)
    factor_attr = prop_def(INTS, prop_name="factor")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$parts `factor` $factor attr-dict `:` functional-type(operands, results)"

    def __init__(self, parts: Sequence[SSAValue], factor: Ints) -> None:
        shape = shapes.interleave_shape([shape_of(part) for part in parts], factor)
        super().__init__(
            operands=[parts],
            properties={"factor": int_array(factor)},
            result_types=[like(parts[0], shape)],
        )

    @property
    def factor(self) -> Ints:
        return ints_of(self.factor_attr)

    def verify_(self) -> None:
        check_result(self, shapes.interleave_shape([shape_of(part) for part in self.parts], self.factor))
        check_elements(*self.parts, self.result)
