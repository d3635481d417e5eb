"""The DRAM buffers of a program: inputs, weights in use, results of units, outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType
from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import ELEMENT_BYTES, ExternalClass
from frustum.passes.analysis.module import element_of

MODEL_DTYPES = "frustum.model_dtypes"
"""Attribute of the network: numpy names of the types that the host passes and expects, inputs then outputs."""


class Declarations:
    """The externals of a network, added to `body`; `buffers` of its values, `weights` by key."""

    def __init__(self, network: g.NetworkOp, body: Block):
        self.network, self.body = network, body
        self.buffers: dict[SSAValue, SSAValue] = {}
        self.weights: dict[str, SSAValue] = {}

    def declare(self) -> None:
        """Externals: inputs, weights in use, results of units; a reshape shares its operand's buffer."""
        block = self.network.body.block
        roots = self.output_roots()
        dtypes = self.model_dtypes()
        for i, (name, argument) in enumerate(zip(self.network.inputs, block.args, strict=True)):
            self.buffers[argument] = self.external(name, "input", argument, dtypes[i])
        for op in block.ops:
            if isinstance(op, g.ReshapeOp):
                self.buffers[op.result] = self.buffers[op.x]
            elif isinstance(op, g.WeightOp):
                self.buffers[op.result] = self.weight(op)
            elif isinstance(op, t.UnitOp):
                self.declare_unit(op, roots, dtypes[len(block.args) :])
            elif not isinstance(op, g.OutputOp):
                raise PassFailedException(f"{op.name} is in no unit: run frustum-tile-lower-units first")

    def declare_unit(
        self, unit: t.UnitOp, roots: dict[SSAValue, tuple[int, SSAValue]], output_dtypes: Sequence[str | None]
    ) -> None:
        """A unit's weights, and its results as outputs of the network or as intermediate maps."""
        for inner in unit.body.block.ops:
            if isinstance(inner, g.WeightOp):
                self.weight(inner)
        for k, result in enumerate(unit.results):
            if result in roots:
                position, value = roots[result]
                name = self.network.outputs[position]
                self.buffers[result] = self.external(name, "output", value, output_dtypes[position])
            else:
                self.buffers[result] = self.external(
                    f"{unit.unit_name.data}.{k}", "intermediate", result, None
                )

    def model_dtypes(self) -> list[str | None]:
        attribute = self.network.attributes.get(MODEL_DTYPES)
        count = len(self.network.inputs) + len(self.network.outputs)
        if not isinstance(attribute, ArrayAttr):
            return [None] * count
        return [cast(StringAttr, a).data for a in attribute.data]

    def output_roots(self) -> dict[SSAValue, tuple[int, SSAValue]]:
        """The unit result behind each network output (through reshapes): output number and the output's own value."""
        roots: dict[SSAValue, tuple[int, SSAValue]] = {}
        for position, value in enumerate(self.network.terminator.values):
            root = value
            while isinstance(root.owner, g.ReshapeOp):
                root = root.owner.x
            if not isinstance(root.owner, t.UnitOp) or root in roots:
                raise PassFailedException(
                    f"output '{self.network.outputs[position]}' has no buffer of its own: run frustum-graph-own-outputs"
                )
            roots[root] = (position, value)
        return roots

    def weight(self, op: g.WeightOp) -> SSAValue:
        key = op.key.data
        if key not in self.weights:
            self.weights[key] = self.external(key, "weight", op.result, None)
        return self.weights[key]

    def external(self, name: str, kind: ExternalClass, value: SSAValue, model_dtype: str | None) -> SSAValue:
        assert isinstance(value.type, TensorType)
        shape = tuple(value.type.get_shape())
        element = element_of(value.type.element_type)
        size = max(1, math.prod(shape)) * ELEMENT_BYTES[element]
        op = isa.ExternalOp(name, kind, size, shape, element, model_dtype=model_dtype)
        self.body.add_op(op)
        return op.buffer
