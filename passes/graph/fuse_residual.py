"""An addition behind a convolution or matrix product becomes part of its way out."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects.graph import BinaryOp, ConvOp, MatmulOp, is_integer, networks_of, shape_of

Product = ConvOp | MatmulOp


@dataclass(frozen=True)
class FuseResidual(ModulePass):
    """Add the other map on the way out of the matrix unit, without another pass over NRAM.

    Before: `binary add` of a product that nobody else uses, and of a map of the same shape.
    After: the product has that map as `residual`, and the addition's activation; the addition is gone.
    Integers are requantised, added as real numbers and quantised again, as they were: the same bits.

    Where both operands are such products, the one that continues a chain is taken, else the later one: the
    other's result is then there when it is needed.  Source: docs/techniques/machine.md, "Matrix unit".
    """

    name = "frustum-graph-fuse-residual"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for network in networks_of(op):
            for addition in [inner for inner in network.body.walk() if isinstance(inner, BinaryOp)]:
                fuse(addition)


def fuse(addition: BinaryOp) -> None:
    """Rewrite one addition, if one of its operands is a product that can take it in."""
    places = [k for k in (0, 1) if takes_residual(addition, k)]
    if not places:
        return
    place = max(places, key=lambda k: _preference(addition.operands[k]))
    product, other = addition.operands[place].owner, addition.operands[1 - place]
    assert isinstance(product, Product)
    take_in(product, addition, place, other)
    addition.results[0].replace_all_uses_with(product.results[0])
    Rewriter.erase_op(addition)


def takes_residual(addition: BinaryOp, place: int) -> bool:
    """Operand `place` is a product of the same block that has nothing between its accumulators and the addition but
    requantising."""
    value = addition.operands[place]
    product = value.owner
    if addition.kind != "add" or not isinstance(product, Product) or not value.has_one_use():
        return False
    if product.act is not None or product.residual is not None or product.parent is not addition.parent:
        return False
    if any(shape_of(operand) != shape_of(addition.result) for operand in addition.operands):
        return False
    if not is_integer(value):
        return True
    if product.multiplier is None or product.zeros is None or addition.scales is None:
        return False
    return product.zeros[1] == addition.scales[place].zero


def take_in(product: Product, addition: BinaryOp, place: int, residual: SSAValue) -> None:
    """Move the product to the addition's place, where both of its operands are, and let it do what that does."""
    block = addition.parent
    assert block is not None
    product.detach()
    block.insert_op_before(product, addition)
    product.operands = [*product.operands, residual]
    sizes = product.properties["operandSegmentSizes"]
    assert isinstance(sizes, DenseArrayBase)
    product.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [*sizes.get_values()[:-1], 1])
    if addition.act is not None:
        product.act = addition.act
    if addition.scales is not None:
        scales = addition.scales
        product.scales = (scales[place], scales[1 - place], scales[2])


def _preference(value: SSAValue) -> tuple[bool, int]:
    """Continues a chain; then how late it stands."""
    product = value.owner
    assert isinstance(product, Operation)
    block = product.parent
    assert isinstance(block, Block)
    return product.operands[0].has_one_use(), block.get_operation_index(product)
