"""Random networks of integers: every way in which products of integers begin and end."""

from __future__ import annotations

import numpy as np
from networks import Net
from xdsl.dialects.builtin import ArrayAttr, StringAttr, f32, i8, i16, i32

from frustum.dialects import graph
from frustum.dialects.graph import ActAttr, ScaleAttr, tensor_type
from frustum.dialects.module import MODEL_DTYPES

ELEMENTS = {np.dtype(np.int8): i8, np.dtype(np.int16): i16, np.dtype(np.int32): i32, np.dtype(np.float32): f32}
NAMES = {element: dtype for dtype, element in ELEMENTS.items()}


class IntegerNet(Net):
    """Layers of integers with random weights, zero points and scales."""

    def __init__(self, seed=0, dtype=np.int8):
        super().__init__(seed)
        self.dtype = np.dtype(dtype)
        self.ends = np.iinfo(self.dtype)

    def module(self, *outputs):
        module, inputs = super().module(*outputs)
        (network,) = module.ops
        values = [*network.body.block.args, *network.terminator.values]
        names = [NAMES[graph.tensor_of(value).element_type].name for value in values]
        network.attributes[MODEL_DTYPES] = ArrayAttr([StringAttr(name) for name in names])
        return module, inputs

    def numbers(self, *shape):
        return self.rng.integers(self.ends.min, self.ends.max + 1, shape).astype(self.dtype)

    def zero(self):
        return int(self.rng.integers(-100, 100))

    def scale(self):
        return ScaleAttr.of(float(np.float32(self.rng.uniform(0.01, 0.1))), self.zero())

    def scales(self, count):
        return [self.scale() for _ in range(count)]

    def integer_input(self, *shape):
        self.inputs[f"x{len(self.inputs)}"] = self.numbers(*shape)
        return self.block.insert_arg(tensor_type(ELEMENTS[self.dtype], shape), len(self.block.args))

    def constant(self, array):
        key = self.store.add("w", array)
        return self.builder.insert(graph.WeightOp(key, tensor_type(ELEMENTS[array.dtype], array.shape))).result

    def extras(self, outputs, terms, *, accumulator=False, bias=True, w_zero=True, clip=False):
        """Operands and zero points of a product whose sums have so many terms."""
        zero = 0 if accumulator else self.zero()
        made = {"zeros": (self.zero(), zero)}
        if bias:
            made["bias"] = self.constant(self.rng.integers(-5000, 5000, outputs).astype(np.int32))
        if w_zero:
            made["w_zero"] = self.constant(self.rng.integers(-20, 20, outputs).astype(self.dtype))
        if accumulator:
            return made
        spread = float(self.ends.max) * np.sqrt(terms)
        multipliers = self.rng.uniform(0.3, 1.5, outputs) / spread
        made["multiplier"] = self.constant(multipliers.astype(np.float32))
        if clip:
            made["act"] = ActAttr.of("clip", float(zero), float(self.ends.max))
        return made

    def product(self, x, outputs, kernel=3, *, pads=None, groups=1, strides=(1, 1), dilations=(1, 1), **extras):
        pads = pads or ((kernel - 1) // 2,) * 2 + (kernel // 2,) * 2
        channels = graph.shape_of(x)[1] // groups
        w = self.constant(self.numbers(outputs, channels, kernel, kernel))
        made = self.extras(outputs, channels * kernel**2, **extras)
        return self.layer(
            graph.ConvOp(x, w, pads=pads, groups=groups, strides=strides, dilations=dilations, **made)
        )

    def matrix(self, x, outputs, *, trans_b=False, **extras):
        terms = graph.shape_of(x)[-1]
        shape = (outputs, terms) if trans_b else (terms, outputs)
        w = self.constant(self.numbers(*shape))
        return self.layer(graph.MatmulOp(x, w, trans_b=trans_b, **self.extras(outputs, terms, **extras)))

    def added(self, kind, a, b, act=None, zero=None):
        """A binary operation; `zero` is the zero point that `a` has."""
        scales = self.scales(3)
        if zero is not None:
            scales[0] = ScaleAttr.of(scales[0].scale, zero)
        return self.layer(graph.BinaryOp(kind, a, b, act and ActAttr.of(act), scales))

    def residual(self, x, outputs, other, act=None, **rest):
        """A convolution to which another map is added."""
        made = self.product(x, outputs, **rest)
        return self.added("add", made, other, act, zero=made.owner.zeros[1])
