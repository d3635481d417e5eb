# Tests: test/passes/lower/tree/test_chains.py
"""Chains: layers of a compute that follow each other in the cores, piece by piece.

What one of them makes, and the next ones alone read, never leaves the core.  Over pieces the engines work at the same
time: a layer on another engine than the one before is a pass behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from xdsl.ir import Block

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import Affine, Span
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.cores.chain_choice import ChainChoice, CoreChain
from frustum.passes.lower.tree.cores.links import as_operand, reads_in_core, wants_of
from frustum.passes.lower.tree.fetch import Fetched
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.nest import PartWriter, Pieces
from frustum.passes.lower.tree.spans import NotLowered, end, span_of, step_at
from frustum.passes.lower.tree.streams.streaming import Streaming

LONGEST = 8
"""Layers of a chain at most. 2026-11-28."""
PAYS = 0.75
"""A chain is made where it takes less than such a part of what its layers take one by one: these overlap more than is
estimated. 2026-11-28."""


class Chains(Streaming):
    """Finds chains and writes them; `handing`: what the compute that is written hands on."""

    handing: frozenset[Tensor]
    later: int

    def chain_of(self, names: Sequence[str], own: Sequence[Tensor], made: Made) -> CoreChain | None:
        """The longest chain that begins with the first of these layers and takes fewer cycles than its layers one by
        one; None where there is none."""
        layers = self.linked(names, own, made)
        while len(layers) > 1:
            chain = self.choice(layers, made)
            if chain is not None:
                crossing = self.crossing(layers, made)
                moved = sum(self.size_of(tensor, box) for tensor, box in crossing.items())
                cycles = chain.cycles + moved / self.code.target.chip.dram.port_bytes_per_cycle
                if cycles < PAYS * sum(self.alone(layer, made) for layer in layers):
                    return chain
            layers = layers[:-1]
        return None

    def alone(self, layer: Layer, made: Made) -> float:
        """Cycles of a layer by itself."""
        tensors, spans = [*self.crossing([layer], made)], made[layer.name]
        if tensors:
            own = replace(self.member(layer, spans), is_stored=layer.result in tensors, frame=None)
            return self.slices([own], self.capacity - self.used).cycles
        found = self.best_of(layer, self.kernels(layer), spans)
        return math.inf if found is None else found.cycles

    def crossing(self, layers: Sequence[Layer], made: Made) -> dict[Tensor, dict[Axis, Span]]:
        """What of tensors comes from DRAM for these layers, and what of the last result goes there."""
        inside = {layer.result for layer in layers}
        found = dict[Tensor, dict[Axis, Span]]()
        for layer in layers:
            for tensor in self.read_by_in_order(layer):
                if tensor not in inside and not self.is_here(tensor) and not self.is_made_anew(tensor):
                    users = [each.name for each in layers if tensor in self.read_by(each.name)]
                    found[tensor] = self.box_of(tensor, users, made)
        last = layers[-1]
        if not self.is_here(last.result) and last.result not in self.handing:
            found[last.result] = {axis: span_of(made[last.name], axis) for axis in last.result.axes}
        return found

    def size_of(self, tensor: Tensor, box: Mapping[Axis, Span]) -> int:
        """Bytes of a box of a tensor."""
        return math.prod(span.extent for span in box.values()) * size_of(self.elements[tensor]) * self.planes(tensor)

    def linked(self, names: Sequence[str], own: Sequence[Tensor], made: Made) -> list[Layer]:
        """So many of the layers as may follow each other in the cores."""
        found = list[Layer]()
        for name in names:
            layer = self.layers[name]
            if all(kernel.is_nothing for kernel in self.kernels(layer)):
                continue
            inside = {each.result for each in found}
            size = sum(self.size_of(tensor, box) for tensor, box in self.crossing([*found, layer], made).items())
            is_near = self.used + size <= self.capacity
            if found:
                last = found[-1].result
                is_near &= last in self.read_by(name) and self.may_stay(found[-1], names, own, made)
                is_near &= any(all(reads_in_core(kernel, t) for t in inside) for kernel in self.kernels(layer))
            if not is_near or any(not span.extent for span in made[name].values()):
                break
            found.append(layer)
            if len(found) == LONGEST:
                break
        return found

    def may_stay(self, layer: Layer, names: Sequence[str], own: Sequence[Tensor], made: Made) -> bool:
        """Whether layers of the chain may read a result in the core: it is whole, and they need nothing of it that
        other passes or clusters make."""
        tensor = layer.result
        users = [name for name in names if name == layer.name or tensor in self.read_by(name)]
        is_near = tensor in own or self.is_here(tensor)
        is_whole = not self.sum_levels(layer, made) and not self.does_stay(tensor, users) and tensor not in self.carried
        return is_near and is_whole and (self.dealt is None or not self.dealt.is_exchanged)

    def choice(self, layers: Sequence[Layer], made: Made) -> CoreChain | None:
        """The best way to make these layers as a chain."""
        inside = [layer.result for layer in layers[:-1]]
        ways = list[list[Kernel]]()
        for number, layer in enumerate(layers):
            earlier = inside[:number]
            ways.append([k for k in self.kernels(layer) if all(reads_in_core(k, tensor) for tensor in earlier)])

        def part(extents: Mapping[Axis, int], dealt: Axis | None, counts: Mapping[Axis, int]) -> Made | None:
            order = tuple(counts)
            chain = CoreChain((), extents, dealt, order, tuple(counts.values()), 0.0)
            try:
                with self.code.supposed(chain.counts) as indices:
                    return self.parts_of(layers, self.cut_of(layers[-1], chain, made, indices), made)
            except NotLowered:
                return None

        leaving = frozenset(layer.result for layer in layers if self.leaves_core(layer, layers))
        return ChainChoice(self.code, ways, part, made, self.elements, leaving, bool(self.code.depth)).best()

    def leaves_core(self, layer: Layer, layers: Sequence[Layer]) -> bool:
        """Whether others than layers of a chain take a result of it."""
        readers = {*self.network.readers.get(layer.result, [])} - {*layers}
        return layer is layers[-1] or bool(readers) or bool(self.dram.parts.get(layer.result))

    def parts_of(
        self, layers: Sequence[Layer], last: Mapping[Axis, Span], made: Made
    ) -> dict[str, dict[Axis, Span]]:  # fmt: skip
        """Spans of the layers of a chain for these of the last one.  NotLowered where they are not inside of what is to
        be made."""
        found = {layers[-1].name: {**made[layers[-1].name], **last}}
        for layer in reversed(layers[:-1]):
            users = [name for name in found if layer.result in self.read_by(name)]
            box, own = self.box_of(layer.result, users, found), dict(made[layer.name])
            for axis in layer.result.axes:
                own[axis] = self.piece_in(box[axis], span_of(made[layer.name], axis))
            found[layer.name] = own
        return found

    def piece_in(self, span: Span, outer: Span) -> Span:
        """What of a span is inside another one."""
        before, beyond = span.start - outer.start, end(outer) - end(span)
        is_first = outer.start.is_constant and outer.start.base == 0
        if self.code.extremes(before)[0] < 0 and not is_first:
            raise NotLowered("a piece of a chain that begins before its part")
        if self.code.extremes(beyond)[0] >= 0 or self.code.extremes(end(outer))[0] >= outer.bound:
            return Span(span.start, span.extent, outer.bound, span.limit)
        if span.limit is not None:
            raise NotLowered("a piece of a chain with two ends")
        return Span(span.start, span.extent, outer.bound, end(outer))

    # ------------------------------------------------------------ writing

    def write_chain(self, chain: CoreChain, made: Made) -> bool:
        """Adds a chain; false, and nothing, where instructions cannot say it."""
        code, used = self.code, self.used
        block, stage, depth = code.block, code.stage, code.depth
        code.block = Block()
        layers = [kernel.layer for kernel in chain.kernels]
        crossing, last = self.crossing(layers, made), layers[-1]
        before = {tensor: len(self.here[tensor]) for tensor in crossing}
        try:
            for tensor, box in crossing.items():
                (user, *_) = [each for each in layers if each.result is tensor or tensor in self.read_by(each.name)]
                size = aligned(self.size_of(tensor, box))
                is_ahead = tensor is not last.result and self.comes_ahead(tensor, size)
                with self.code.at_stage(self.code.stage - is_ahead):
                    self.stream([user.name], tensor, made, 1 + is_ahead, box)
                if is_ahead:
                    self.most, self.later = self.most + 2 * size, self.later - 2 * size
            self.write_links(chain, made)
            if last.result in crossing:
                self.store(last, crossing[last.result])
            is_written = True
        except NotLowered:
            is_written = False
            del code.counts[depth:], code.around[depth:]
        for tensor in [t for t in crossing if len(self.here[t]) > before[t]]:
            self.here[tensor].pop()
        self.used = used
        written, code.block, code.stage = code.block, block, stage
        for op in list(written.ops) if is_written else ():
            op.detach()
            block.add_op(op)
        return is_written

    def write_links(self, chain: CoreChain, made: Made) -> None:
        """The loops, with all layers in them."""
        code, layers = self.code, [kernel.layer for kernel in chain.kernels]
        with code.supposed(chain.counts) as indices:
            parts = self.parts_of(layers, self.cut_of(layers[-1], chain, made, indices), made)
            writers = [
                PartWriter(code, self.layer_part(kernel, parts[kernel.layer.name], Pieces({}, None, ())))
                for kernel in chain.kernels
            ]
        inside = {layer.result for layer in layers[:-1]}
        coming = [[want for want in w.wants if not self.is_inside(w.layer, want, inside)] for w in writers]
        loops = range(code.depth, code.depth + len(chain.counts))
        both = zip(writers, coming, strict=True)
        moving = [[want for want in own if self.is_moved(want, writer, loops)] for writer, own in both]
        for writer, own, moved in zip(writers, coming, moving, strict=True):
            code.layer = self.numbers[writer.layer.name]
            for want in (each for each in own if each not in moved):
                writer.arrive(want, 1 if loops else None)
        outs = dict[Tensor, Fetched]()
        with ExitStack() as opened:
            for count in chain.counts:
                opened.enter_context(code.repeat(count))
            first = int(any(moving))
            for number, writer in enumerate(writers):
                at = code.stage + (first + chain.stages[number] if loops else 0)
                leaves = self.leaves_core(writer.layer, layers)
                self.write_link(writer, moving[number], outs, at, chain.copies(number, leaves=leaves), bool(loops))
                if leaves:
                    with code.at_stage(at + bool(loops)):
                        writer.leave()

    def write_link(
        self, writer: PartWriter, moving: Sequence[Want], outs: dict[Tensor, Fetched], at: int, copies: int,
        is_in_loop: bool,
    ) -> None:  # fmt: skip
        """A piece of a layer at a stage: what it takes comes a stage before, or lies in the core already."""
        code = self.code
        code.layer = self.numbers[writer.layer.name]
        with code.at_stage(at - (1 if is_in_loop and at else 0)):
            for want in moving:
                writer.arrive(want, 2)
        with code.at_stage(at):
            writer.begin(copies, 1 + is_in_loop)
            for tensor, buffer in outs.items():
                for want in wants_of(writer.kernel, tensor):
                    (piece,) = writer.layer.operands[want.operand].pieces
                    writer.held[want.operand] = as_operand(want, piece, buffer, writer.now)
            writer.kernel.write(code, writer.work())
            writer.finish()
        outs[writer.layer.result] = writer.out

    def comes_ahead(self, tensor: Tensor, size: int) -> bool:
        """Whether a box is loaded a pass of the innermost loop ahead: into a second buffer, for which there is room in
        all of the loop's body."""
        room = min(self.later, self.capacity - self.most, self.capacity - self.used)
        return self.code.stage > 0 and tensor not in self.made_here and 2 * size <= room

    def is_inside(self, layer: Layer, want: Want, inside: set[Tensor]) -> bool:
        """Whether an operand is a result of the chain."""
        return any(piece.tensor in inside for piece in layer.operands[want.operand].pieces)

    def is_moved(self, want: Want, writer: PartWriter, loops: range) -> bool:
        """Whether one of these loops moves an operand."""
        return any(step_at(span_of(writer.now, axis), level) for axis in want.axes for level in loops)

    def cut_of(self, layer: Layer, chain: CoreChain, made: Made, indices: Sequence[Affine]) -> dict[Axis, Span]:
        """The piece of the last layer's result in a pass of these loops."""
        found, last = dict[Axis, Span](), made[layer.name]
        for axis, extent in chain.extents.items():
            outer = span_of(last, axis)
            cores = self.code.cores if axis is chain.dealt else 1
            start, step = outer.start, extent * cores
            if axis is chain.dealt:
                start += Affine(core=extent)
            count = 1
            if axis in chain.order:
                k = chain.order.index(axis)
                start, count = start + indices[k] * step, chain.counts[k]
            limit = outer.limit
            if count * step > outer.extent and self.code.extremes(end(outer))[0] < outer.bound:
                if limit is not None:
                    raise NotLowered("a piece of a chain with two ends")
                limit = end(outer)
            found[axis] = Span(start, extent, outer.bound, limit)
        return found
