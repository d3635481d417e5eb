"""Networks of the graph level, written down in a few lines, with random weights and inputs."""

from __future__ import annotations

import numpy as np
from xdsl.builder import Builder, InsertPoint
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, NameLoc, StringAttr, UnknownLoc, f32
from xdsl.ir import Block

from frustum.dialects import graph
from frustum.dialects.graph import ActAttr, tensor_type
from frustum.dialects.module import DTYPE, MODEL_DTYPES
from frustum.passes.weights import WeightStore, attach


class Net:
    """A network in the making: `input` and `weight` give values, each further method a layer's result."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.block, self.store, self.inputs = Block(), WeightStore(), {}
        self.builder = Builder(InsertPoint.at_end(self.block))
        self.count = 0

    def input(self, *shape):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.rng.standard_normal(shape, np.float32)
        return self.block.insert_arg(tensor_type(f32, shape), len(self.block.args))

    def weight(self, *shape, scale=None):
        """Random, small enough that sums over them keep the size of their terms."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        array = self.rng.standard_normal(shape, np.float32) * (scale or 1 / np.sqrt(fan_in))
        key = self.store.add("w", array.astype(np.float32))
        return self.builder.insert(graph.WeightOp(key, tensor_type(f32, shape))).result

    def constant(self, number):
        """A scalar."""
        key = self.store.add("c", np.asarray(number, np.float32))
        return self.builder.insert(graph.WeightOp(key, tensor_type(f32, ()))).result

    def layer(self, op):
        self.count += 1
        op.location = NameLoc(StringAttr(f"{op.name.removeprefix('fgraph.')}_{self.count}"), UnknownLoc())
        return self.builder.insert(op).results[0]

    def conv(self, x, outputs, kernel=3, *, pads=None, groups=1, bias=True, act=None, **rest):
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = pads or ((kh - 1) // 2, (kw - 1) // 2, kh // 2, kw // 2)
        w = self.weight(outputs, graph.shape_of(x)[1] // groups, kh, kw)
        b = self.weight(outputs) if bias else None
        return self.layer(
            graph.ConvOp(x, w, b, pads=pads, groups=groups, act=act and ActAttr.of(act), **rest)
        )

    def pool(self, kind, x, kernel=2, stride=2, **rest):
        return self.layer(graph.PoolOp(kind, x, kernel=(kernel,) * 2, strides=(stride,) * 2, **rest))

    def unary(self, kind, x, *numbers):
        return self.layer(graph.UnaryOp(ActAttr.of(kind, *numbers), x))

    def binary(self, kind, a, b, act=None):
        return self.layer(graph.BinaryOp(kind, a, b, act and ActAttr.of(act)))

    def dense(self, x, outputs, act=None):
        """A fully connected layer on the flattened map."""
        batch, *rest = graph.shape_of(x)
        flat = self.layer(graph.ReshapeOp(x, (batch, int(np.prod(rest)))))
        w, b = self.weight(outputs, int(np.prod(rest))), self.weight(outputs)
        return self.layer(graph.MatmulOp(flat, w, b, trans_b=True, act=act and ActAttr.of(act)))

    def recurrence(self, sequences, starts, body, *, steps, dim=0, reverse=False):
        """The operation; `body` makes the states and the outputs of a step of its slices and states."""
        shapes = [graph.slice_shape(graph.shape_of(x), dim, steps) for x in sequences]
        shapes += [shapes[0] if start is None else graph.shape_of(start) for start in starts]
        block = Block(arg_types=[tensor_type(f32, shape) for shape in shapes])
        around, self.builder = self.builder, Builder(InsertPoint.at_end(block))
        self.builder.insert(graph.StepYieldOp(*body(*block.args)))
        self.builder = around
        return self.builder.insert(graph.RecurrenceOp(sequences, starts, block, steps=steps, dim=dim, reverse=reverse))

    def module(self, *outputs):
        """The verified module with its weights, and the inputs by name."""
        names = [f"y{i}" for i in range(len(outputs))]
        self.builder.insert(graph.OutputOp(list(outputs)))
        types = [(name, arg.type) for name, arg in zip(self.inputs, self.block.args, strict=True)]
        network = graph.NetworkOp("net", types, names, self.block)
        network.attributes[MODEL_DTYPES] = ArrayAttr([StringAttr("float32")] * (len(types) + len(names)))
        module = ModuleOp([network], {DTYPE: StringAttr("f32")})
        attach(module, self.store)
        module.verify()
        return module, self.inputs
