# Tests: test/passes/onnx/test_images.py
"""Which nodes on the host keep the images of a changed batch apart: those of `RULES`, along other axes.

What runs there computes all images in one run of an evaluator; `images.py` says what is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx

from frustum.passes.errors import MixesImages
from frustum.passes.onnx.images import TARGETS, Images, joined_axis
from frustum.passes.onnx.loading import DEFAULT_DOMAINS

Ints: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class HostOperand:
    """An operand: its shape and its images' axis, where they are known, and its value if it is constant."""

    shape: Ints | None
    axis: int | None
    value: np.ndarray | None = None


@dataclass(frozen=True)
class _Node:
    """A node of which the first operand has images, or any."""

    images: Images
    proto: onnx.NodeProto
    operands: Sequence[HostOperand]
    unknown: MixesImages
    """The error of a node that no rule shows to be right."""

    def get(self, name: str, default: Any) -> Any:
        found = (a for a in self.proto.attribute if a.name == name)
        return next((onnx.helper.get_attribute_value(a) for a in found), default)

    @property
    def shapes(self) -> list[Ints]:
        return [each.shape or () for each in self.operands]

    @property
    def own(self) -> int:
        """The axis of the first operand's images, where the others are the same for each of them."""
        first, *others = self.operands
        if first.axis is None or any(o.axis is not None or self.images.depends(o.value) for o in others):
            raise self.unknown
        return first.axis

    @property
    def common(self) -> int:
        """The axis of all operands' images."""
        axis, *others = dict.fromkeys(each.axis for each in self.operands)
        if others or axis is None:
            shapes = " and ".join(map(str, self.shapes))
            raise self.images.refuse(f"brings together operands of {shapes}, whose images lie along other axes")
        return axis

    def beside(self, own: int, axes: Iterable[int]) -> set[int]:
        """Axes along which the node works, from the front; `MixesImages` where the images lie along one of them."""
        rank = max(len(self.shapes[0]), 1)
        found = {int(axis) % rank for axis in axes}
        if own in found:
            raise self.images.along(own, self.shapes[0])
        return found

    def numbers(self, index: int) -> list[int] | None:
        """A constant operand; None where it is left out."""
        if index >= len(self.operands):
            return None
        value = self.operands[index].value
        if value is None:
            raise self.unknown
        return [int(each) for each in value.reshape(-1)]


def axis_on_host(images: Images, proto: onnx.NodeProto, operands: Sequence[HostOperand], why: str) -> int | None:
    """The images' axis in the results of a node that runs on the host because `why`; None where they have none."""
    if all(each.axis is None for each in operands):
        if any(images.depends(each.value) for each in operands):
            raise images.refuse("one of its constants is computed from the size of the batch")
        return None
    unknown = images.refuse(f"is not known to keep {images.count} images apart on the host, where it is because {why}")
    rule = RULES.get(proto.op_type) if proto.domain in DEFAULT_DOMAINS else None
    if rule is None or any(each.shape is None for each in operands):
        raise unknown
    return rule(_Node(images, proto, operands, unknown))


def _elementwise(node: _Node) -> int:
    return joined_axis(node.images, node.shapes, [each.axis for each in node.operands])


def _to_target(node: _Node) -> int:
    """The target is the one for all images by now, if it is constant."""
    target = node.numbers(1)
    if target is None:
        raise node.unknown
    own = node.own
    if node.proto.op_type == "Expand":
        return own + max(len(target) - len(node.shapes[0]), 0)
    return node.images.split_of(node.shapes[0], own, tuple(target))


def _transpose(node: _Node) -> int:
    return list(node.get("perm", reversed(range(len(node.shapes[0]))))).index(node.own)


def _along(default: int) -> Callable[[_Node], int]:
    """Along the attribute `axis`, which stays."""

    def rule(node: _Node) -> int:
        own = node.own
        node.beside(own, [node.get("axis", default)])
        return own

    return rule


def _all_along(node: _Node) -> int:
    """Of operands that all have images, along the attribute `axis`."""
    own = node.common
    node.beside(own, [node.get("axis", 0)])
    return own


def _gather(node: _Node) -> int:
    own = node.own
    (axis,) = node.beside(own, [node.get("axis", 0)])
    return own if own < axis else own + len(node.shapes[1]) - 1


def _arg(node: _Node) -> int:
    own = node.own
    (axis,) = node.beside(own, [node.get("axis", 0)])
    return own - 1 if axis < own and not node.get("keepdims", 1) else own


def _reduced(node: _Node) -> int:
    own = node.own
    given = node.get("axes", None) or node.numbers(1) or []
    if not given and node.get("noop_with_empty_axes", 0):
        return own
    axes = node.beside(own, given or range(len(node.shapes[0])))
    return own if node.get("keepdims", 1) else own - sum(axis < own for axis in axes)


def _cumulated(node: _Node) -> int:
    own = node.own
    node.beside(own, node.numbers(1) or [])
    return own


def _of_planes(node: _Node) -> int:
    """Images along axis 0 stay there."""
    own = node.common if node.proto.op_type == "GridSample" else node.own
    has_indices = node.proto.op_type == "MaxPool" and len(node.proto.output) > 1  # they count on from the first image
    if own or has_indices:
        raise node.images.along(own, node.shapes[0])
    return own


def _scaled(node: _Node) -> int:
    """QuantizeLinear, DequantizeLinear: with one scale, or several along another axis."""
    own = node.own
    if node.get("block_size", 0):
        raise node.unknown
    if node.operands[1].shape != () and int(np.prod(node.shapes[1])) > 1:
        node.beside(own, [node.get("axis", 1)])
    return own


ELEMENTWISE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu"
    " Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN"
    " LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink"
    " Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)
"""Each element of a result is one of each operand's, broadcast."""
REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
OF_PLANES = (
    "AveragePool Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample"
    " InstanceNormalization LRN LpPool MaxPool SpaceToDepth"
)

RULES: dict[str, Callable[[_Node], int]] = {
    **dict.fromkeys(ELEMENTWISE.split(" "), _elementwise),
    **dict.fromkeys((f"Reduce{kind}" for kind in REDUCTIONS.split(" ")), _reduced),
    **dict.fromkeys(OF_PLANES.split(" "), _of_planes),
    **dict.fromkeys((*TARGETS, "Expand"), _to_target),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "LpNormalization", "Softmax", "TopK"), _along(-1)),
    **dict.fromkeys(("Concat", "GatherElements", "ScatterElements"), _all_along),
    "ArgMax": _arg, "ArgMin": _arg, "CumSum": _cumulated, "DequantizeLinear": _scaled, "Gather": _gather,
    "QuantizeLinear": _scaled, "Split": _along(0), "Transpose": _transpose,
}  # fmt: skip
