# Tests: test/passes/lower/tree/test_lower_plan.py
"""Computes of a plan: their layers in order, with slices of what is streamed, as parts that the cores make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.count import Counted
from frustum.dialects.plan.ranges import Held
from frustum.dialects.plan.tree import Compute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.cores.chains import Chains
from frustum.passes.lower.tree.kernels.kernel_table import kernels_of
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.spans import span_of
from frustum.passes.lower.tree.streams.slices import SlicedLayer


class Computes(Chains):
    """Writes the layers of computes; `counted`: what these take of SRAM."""

    counted: Counted
    handing: frozenset[Tensor]
    used: int
    later: int

    def compute(self, node: Compute, made: Made, held: Held) -> None:
        own = self.own(node, held)
        for name in node.layers:
            known = self.statistics_of(self.layers[name])
            if self.layers[name].result is not known and known in own and self.fits_at_once(name, own, made):
                self.at_once.add(known)
        last = {tensor: name for name in node.layers for tensor in (self.layers[name].result, *self.read_by(name))}
        done, self.handing, states, earlier = 0, frozenset(own), list[Tensor](), set[Tensor]()
        used, later = self.used, self.later

        def before(rest: Sequence[str]) -> AbstractContextManager[None]:
            left = self.left_beside(used, partial(_needed, node, rest))
            return self.leaving(left - (later - self.later))

        for name in node.layers:
            states += (self.read_by(name) & self.carried.keys()) - earlier
            earlier.add(self.layers[name].result)
        self.hand_on(node, states, own, made, last)
        for number, name in enumerate(node.layers):
            layer = self.layers[name]
            if number >= done:
                done = number + self.write_several(node, node.layers[number:], own, made, last, before)
            if number >= done:
                self.hand_on(node, [layer.result], own, made, last)
                with before(node.layers[number + 1 :]):
                    self.write([name], made)
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
        """Each cluster receives from its neighbours what those of these layers that read a result where it lies read
        beyond its own part of it."""
        box = {axis: span_of(made[layer.name], axis) for axis in layer.result.axes}
        for place in self.here[layer.result]:
            users = [name for name in names if name in place.users and layer.result in self.read_by(name)]
            if users:
                self.exchange(layer.result, place, box, self.box_of(layer.result, [layer.name, *users], made))

    @contextmanager
    def leaving(self, room: int) -> Iterator[None]:
        """Meanwhile second copies leave at least so much room for what follows in the compute."""
        less = max(0, self.later - room)
        self.later -= less
        yield
        self.later += less

    def write_several(
        self, node: Compute, names: Sequence[str], own: Sequence[Tensor], made: Made, last: Mapping[Tensor, str],
        before: Callable[[Sequence[str]], AbstractContextManager[None]],
    ) -> int:  # fmt: skip
        """Writes the first of these layers with others: in one loop over slices, or as a chain.  How many; none where
        it is by itself.  `before`: while these layers are still to come."""
        together = self.together(names, own, made)
        if len(together) > 1:
            self.hand_on(node, [self.layers[name].result for name in together], own, made, last)
            with before(names[len(together) :]):
                self.write(together, made)
            return len(together)
        for chain in self.chains_of(names, own, made):
            layers = [kernel.layer for kernel in chain.kernels]
            leaving = [layer.result for layer in layers if self.leaves_core(layer, layers)]
            self.hand_on(node, leaving, own, made, last)
            count = names.index(layers[-1].name) + 1
            with before(names[count:]):
                is_written = self.write_chain(chain, made)
            if is_written:
                return count
        return 0

    def together(self, names: Sequence[str], own: Sequence[Tensor], made: Made) -> Sequence[str]:
        """The first of these layers; with those behind it that have one loop over slices in fewer cycles: that stream
        the same, or make parts of one output, and need nothing of each other."""
        found = list[SlicedLayer]()
        for name in names if self.dealt is None or not self.dealt.is_exchanged else ():
            layer = self.layers[name]
            does_carry = layer in self.in_step or layer.role in ("sums", "squares")
            does_read = any(member.layer.result in self.read_by(name) for member in found)
            if does_carry or does_read or any(not span.extent for span in made[name].values()):
                break
            if any(kernel.is_nothing for kernel in self.kernels(layer)) or self.running(layer) is not None:
                break
            member = self.member(layer, made[name])
            member = replace(member, is_stored=False, frame=None) if layer.result in own else member
            if not member.tensors or (layer.storage_of is not None and layer.result in own):
                break
            if found and not self.goes_with(member, found):
                break
            found.append(member)
        for count in range(len(found), 1, -1):
            if self.are_faster(found[:count], own, made):
                return names[:count]
        return names[:1]

    def goes_with(self, member: SlicedLayer, others: Sequence[SlicedLayer]) -> bool:
        """Whether a layer streams what others do, or makes parts of an output with them."""
        is_framed = member.frame is not None and any(member.frame is other.frame for other in others)
        return is_framed or any({*member.streams} & {*other.streams} for other in others)

    def are_faster(self, members: Sequence[SlicedLayer], own: Sequence[Tensor], made: Made) -> bool:
        """Whether layers take no more cycles in one loop over slices than in several."""
        handed = [member.layer for member in members if member.layer.result in own]
        room = self.capacity - self.used - self.bytes_handed(handed, made)
        try:
            together = self.slices(members, room).cycles
        except DoesNotFit:
            return False
        try:
            return together <= sum(self.slices([member], room).cycles for member in members)
        except DoesNotFit:
            return True

    def bytes_handed(self, layers: Sequence[Layer], made: Made) -> int:
        """Bytes of SRAM for results of layers that others of the compute read."""
        boxes = ((layer.result, self.box_of(layer.result, [layer.name], made)) for layer in layers)
        return sum(self.size_of(tensor, box) for tensor, box in boxes)

    def write(self, names: Sequence[str], made: Made) -> None:
        """Layers: with slices of what is streamed, where something is."""
        layers = [self.layers[name] for name in names]
        self.code.layer = self.numbers[names[0]]
        if len(layers) == 1:
            (layer,), spans = layers, made[names[0]]
            if all(kernel.is_nothing for kernel in self.kernels(layer)) or any(not s.extent for s in spans.values()):
                return
            if not self.member(layer, spans).tensors:
                self.part(layer, spans)
                return
        self.streamed([self.member(layer, made[layer.name]) for layer in layers])

    def fits_at_once(self, name: str, own: Sequence[Tensor], made: Made) -> bool:
        """Whether a norm or a softmax may be one instruction, with all that its statistics are of in a core."""
        layer, spans = self.layers[name], made[name]
        kernels = kernels_of(layer)
        if any(span_of(spans, axis).extent < axis.extent for kernel in kernels for axis in kernel.whole):
            return False
        there = {*own, *(tensor for tensor in self.elements if self.is_here(tensor))}
        known = self.statistics_of(layer)
        streams = [t for t in dict.fromkeys(self.read_by_in_order(layer)) if t not in there and t is not known]
        if not streams and layer.result in there:
            return self.best_of(layer, kernels, spans) is not None
        handed = [self.network.maker[tensor] for tensor in own if not self.here[tensor]]
        member = replace(
            self.member(layer, spans, kernels), streams=tuple(streams), is_stored=layer.result not in there, frame=None
        )  # fmt: skip
        room = self.capacity - self.used - self.bytes_handed(handed, made)
        try:
            return self.slices([member], room).cycles < math.inf
        except DoesNotFit:
            return False


def _needed(node: Compute, names: Sequence[str], counted: Counted) -> int:
    """Bytes of SRAM that one of these layers of a compute takes at most."""
    return max((counted.needed.get((id(node), name), 0) for name in names), default=0)
