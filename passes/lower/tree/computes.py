# Tests: test/passes/lower/tree/test_lower_plan.py
"""Computes of a plan: their layers in order, with slices of what is streamed, as parts that the cores make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import Span
from frustum.dialects.plan.ranges import Held
from frustum.dialects.plan.tree import Compute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.cores.chains import Chains
from frustum.passes.lower.tree.kernels.kernel_table import kernels_of
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.spans import end, span_of


class Computes(Chains):
    """Writes the layers of computes."""

    def compute(self, node: Compute, made: Made, held: Held) -> None:
        own = self.own(node, held)
        for name in node.layers:
            known = self.statistics_of(self.layers[name])
            if self.layers[name].result is not known and known in own and self.fits_at_once(name, own, made):
                self.at_once.add(known)
        last = {tensor: name for name in node.layers for tensor in (self.layers[name].result, *self.read_by(name))}
        done, self.handing = 0, frozenset(own)
        for number, name in enumerate(node.layers):
            layer = self.layers[name]
            if number >= done and (chain := self.chain_of(node.layers[number:], own, made)) is not None:
                layers = [kernel.layer for kernel in chain.kernels]
                leaving = [layer.result for layer in layers if self.leaves_core(layer, layers)]
                self.hand_on(node, leaving, own, made, last)
                if self.write_chain(chain, made):
                    done = node.layers.index(layers[-1].name) + 1
            if number >= done:
                early = self.read_by(name) & self.carried.keys()  # states, which layers read before they are made
                self.hand_on(node, [layer.result, *early], own, made, last)
                self.layer(node, layer, made, held)
            if self.dealt is not None and self.dealt.is_exchanged:
                self.exchange_made(layer, self.dealt.layers, made)
            for tensor in (t for t in own if last[t] == name and self.here[t]):
                self.used -= self.here[tensor].pop().taken

    def hand_on(
        self, node: Compute, tensors: Sequence[Tensor], own: Sequence[Tensor], made: Made, last: Mapping[Tensor, str]
    ) -> None:  # fmt: skip
        """Places of those of the tensors that layers of a compute hand each other."""
        for tensor in (t for t in own if t in tensors and not self.here[t]):
            maker = self.network.maker[tensor]
            users = [name for name in node.layers if name == maker.name or tensor in self.read_by(name)]
            self.here[tensor].append(self.handed(maker, users, made, own, last, node.layers))

    def exchange_made(self, layer: Layer, names: Sequence[str], made: Made) -> None:
        """Each cluster gets what its layers of these read beside its own part of a result."""
        users = [name for name in names if name == layer.name or layer.result in self.read_by(name)]
        box = {axis: span_of(made[layer.name], axis) for axis in layer.result.axes}
        for place in self.here[layer.result] if len(users) > 1 else ():
            self.exchange(layer.result, place, box, self.box_of(layer.result, users, made))

    def layer(self, node: Compute, layer: Layer, made: Made, held: Held) -> None:
        """A layer: with slices of what is streamed, where something is."""
        self.code.layer = self.numbers[layer.name]
        spans = made[layer.name]
        if all(kernel.is_nothing for kernel in self.kernels(layer)) or any(not s.extent for s in spans.values()):
            return
        read = dict.fromkeys(self.read_by_in_order(layer))
        streams = [tensor for tensor in read if not self.is_here(tensor) and not self.is_made_anew(tensor)]
        is_stored = not self.is_here(layer.result)
        if streams or is_stored:
            self.streamed(layer, spans, streams, is_stored)
        else:
            self.part(layer, spans)

    def streamed(self, layer: Layer, spans: Mapping[Axis, Span], streams: list[Tensor], is_stored: bool) -> None:
        """Slices along one axis of all that comes from DRAM or goes there; what does not have the axis, whole."""
        tensors = [*streams, *([layer.result] if is_stored else [])]
        chosen = self.slices(layer, self.kernels(layer), spans, tensors, self.capacity - self.used)
        axis, step, moving = chosen.axis, chosen.step, chosen.moving
        count = 1 if axis is None else ceil_div(span_of(spans, axis).extent, step)
        used, names = self.used, [layer.name]
        boxes = {tensor: self.box_of(tensor, names, {layer.name: dict(spans)}) for tensor in tensors}
        for tensor in (t for t in tensors if t not in moving):
            self.stream(layer, tensor, spans, 1, boxes[tensor])
        before = self.code.stage
        with self.code.repeat(count) as index:
            inner = dict(spans)
            if axis is not None:
                own = span_of(spans, axis)
                limit = own.limit
                if count * step > own.extent and self.code.extremes(end(own))[0] < own.bound:
                    limit = end(own)
                inner[axis] = Span(own.start + index * step, step, own.bound, limit)
            for tensor in (t for t in tensors if t in moving):
                self.stream(layer, tensor, inner, 2 if count > 1 else 1, boxes[tensor])
            later = 1 if count > 1 and moving & {*streams} else 0
            with self.code.at_stage(self.code.stage + later):
                writer = self.part(layer, inner, axis if count > 1 else None)
                with self.code.at_stage(self.code.stage + writer.lateness):
                    if layer.result in moving:
                        self.store(layer, self.box_of(layer.result, names, {layer.name: inner}))
        self.code.stage = before
        if writer.stays:
            writer.leave()
        if is_stored and layer.result not in moving:
            self.store(layer, boxes[layer.result])
        for tensor in tensors:
            self.here[tensor].pop()
        self.used = used

    def fits_at_once(self, name: str, own: Sequence[Tensor], made: Made) -> bool:
        """Whether a norm or a softmax may be one instruction, with all that its statistics are of in a core."""
        layer, spans = self.layers[name], made[name]
        kernels = kernels_of(layer)
        if any(span_of(spans, axis).extent < axis.extent for kernel in kernels for axis in kernel.whole):
            return False
        there = {*own, *(tensor for tensor in self.elements if self.is_here(tensor))}
        known = self.statistics_of(layer)
        streams = [t for t in dict.fromkeys(self.read_by_in_order(layer)) if t not in there and t is not known]
        streams += [] if layer.result in there else [layer.result]
        if not streams:
            return self.best_of(layer, kernels, spans) is not None
        handed = sum(
            math.prod(span.extent for span in self.box_of(tensor, [self.network.maker[tensor].name], made).values())
            * size_of(self.elements[tensor]) * self.planes(tensor)
            for tensor in own if not self.here[tensor]
        )  # fmt: skip
        try:
            return self.slices(layer, kernels, spans, streams, self.capacity - self.used - handed).cycles < math.inf
        except DoesNotFit:
            return False

