# Tests: test/passes/lower/tree/test_chains.py
"""Chains: layers of a compute that follow each other in the cores, piece by piece.

What one of them makes, and the next ones alone read, never leaves the core.  Over pieces the engines work at the same
time: a layer on another engine than the one before is a pass behind it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from xdsl.ir import Block

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Combine, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import Affine, Span
from frustum.dialects.plan.core_chains import LONGEST
from frustum.passes.lower.tree.cores.chain_choice import (
    ChainChoice,
    ChainPiece,
    CoreChain,
    chain_of,
    numbered,
)
from frustum.passes.lower.tree.cores.chain_writer import ChainWriter
from frustum.passes.lower.tree.cores.links import reads_in_core
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.kernels.kernel_table import kernels_of
from frustum.passes.lower.tree.kernels.norms import WeightsKernel
from frustum.passes.lower.tree.kernels.products import ProductKernel
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.nest import PartWriter, Pieces
from frustum.passes.lower.tree.over_clusters import own_share
from frustum.passes.lower.tree.signatures import Signature, keep, known_choices
from frustum.passes.lower.tree.spans import NotLowered, Spans, end, sharers, span_of, step_at
from frustum.passes.lower.tree.streams.streaming import Streaming

PAYS = 1.1
"""A chain is made where it takes at most so many times what its layers take one by one: estimates are no better.  With
1.0 `conv1d_rank3` takes 1.05 times the cycles on `edge`. 2026-12-01."""
TRIED = 3
"""Ways of a chain that are tried, where instructions cannot say the best ones. 2026-11-29."""


class Chains(Streaming):
    """Finds chains and writes them; `handing`: what the compute that is written hands on."""

    handing: frozenset[Tensor]
    later: int
    most: int
    used: int

    def chains_of(self, names: Sequence[str], own: Sequence[Tensor], made: Made) -> Iterator[CoreChain]:
        """Chains that begin with the first of these layers and pay: first what saves the most."""
        linked, found = self.linked(names, own, made), list[tuple[float, CoreChain]]()
        for layers in (linked[:count] for count in range(len(linked), 1, -1)):
            if self.is_joined(layers):
                most = PAYS * sum(self.alone(layer, made) for layer in layers) - self.port_cycles(layers, made)
                ways = ((most - chain.cycles, chain) for chain in self.choices(layers, made))
                found += (way for way in ways if way[0] > 0)
        yield from (chain for _, chain in sorted(found, key=lambda way: -way[0]))

    def port_cycles(self, layers: Sequence[Layer], made: Made) -> float:
        """Cycles of the DRAM port for what crosses a chain."""
        crossing, clusters = self.crossing(layers, made), self.code.clusters
        moved = sum(self.size_of(t, box) * sharers(box.values(), clusters) for t, box in crossing.items())
        return moved / self.code.target.chip.dram.port_bytes_per_cycle

    def is_joined(self, layers: Sequence[Layer]) -> bool:
        """Whether layers of a chain read all results but the last one's: what they read of these says which piece each
        makes."""
        return all(any(layer.result in self.read_by(each.name) for each in layers) for layer in layers[:-1])

    def alone(self, layer: Layer, made: Made) -> float:
        """Cycles of a layer by itself."""
        tensors, spans = self.crossing([layer], made), made[layer.name]
        if tensors:
            streams = tuple(tensor for tensor in tensors if tensor is not layer.result)
            own = replace(
                self.member(layer, spans), streams=streams, is_stored=layer.result in tensors, frame=None
            )  # fmt: skip
            return self.slices([own], self.capacity - self.used).cycles
        found = self.best_of(layer, self.kernels(layer), spans)
        waits = 2 * self.code.target.cluster.sram.latency_cycles  # for its first piece, and its readers for its last
        return math.inf if found is None else found.cycles + waits

    def crossing(self, layers: Sequence[Layer], made: Made) -> dict[Tensor, dict[Axis, Span]]:
        """What of tensors comes from DRAM for these layers, and what of the last result goes there."""
        inside = {layer.result for layer in layers}
        found = dict[Tensor, dict[Axis, Span]]()
        for layer in layers:
            for tensor in self.read_by_in_order(layer):
                is_near = tensor in inside or tensor in self.handing or self.is_here(tensor)
                if not is_near and not self.is_made_anew(tensor):
                    users = [each.name for each in layers if tensor in self.read_by(each.name)]
                    found[tensor] = self.box_of(tensor, users, made)
        last = layers[-1]
        if not self.is_here(last.result) and last.result not in self.handing:
            found[last.result] = {axis: span_of(made[last.name], axis) for axis in last.result.axes}
        return found

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
                is_near &= self.may_stay(found[-1], names, own, made)
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
        return is_near and is_whole and not self.is_sent(layer, made)

    def is_sent(self, layer: Layer, made: Made) -> bool:
        """Whether clusters want what lies beyond their own shares of a result."""
        if self.dealt is None or not self.dealt.is_exchanged:
            return False
        users = [name for name in self.dealt.layers if layer.result in self.read_by(name)]
        wanted = self.box_of(layer.result, users, made) if users else {}
        for axis, span in wanted.items():
            own = own_share(span_of(made[layer.name], axis))
            if not own.start.cluster and not span.start.cluster:
                continue
            beside = span.start - own.start, end(own) - end(span)
            if any(self.code.extremes(each)[0] < 0 for each in beside):
                return True
        return False

    def choices(self, layers: Sequence[Layer], made: Made) -> list[CoreChain]:
        """Ways to make these layers as a chain, sums of the last one at once or in pieces along an axis; the best
        first."""
        found = (self.choices_along(layers, made, axis) for axis in (None, *self.summed(layers[-1], made)))
        return sorted(itertools.chain(*found), key=lambda chain: chain.cycles)

    def summed(self, last: Layer, made: Made) -> list[Axis]:
        """Axes along which sums of a layer may go on in the cores."""
        has_numbers = self.running(last) is not None
        may_go_on = (has_numbers or not self.sum_levels(last, made)) if last.macs else not has_numbers
        if not may_go_on or not any(kernel.adds for kernel in self.kernels(last)):
            return []
        own = (axis for axis in last.combine if axis not in last.result.axes and not axis.is_tap)
        return [axis for axis in own if span_of(made[last.name], axis).extent > 1]

    def ways(self, layers: Sequence[Layer], axis: Axis | None) -> list[list[Kernel]]:
        """Of each layer the kernels that take what the layers before have made as it lies in the core.  An online
        reduction leaves the division by its sum to its reader; one that goes on along an axis has running numbers, with
        which its reader's sums are weighed."""
        online = next((each for each in layers if self.is_weighed(each, layers, axis)), None)
        running = () if online is None else tuple(a for a in online.result.axes if a not in online.combine)
        found, before = list[list[Kernel]](), dict[Tensor, Sequence[Kernel]]()
        for layer in layers:
            is_weighed = online is not None and (layer is online or online.result in self.read_by(layer.name))
            is_own = is_weighed and self.running(layer) is None  # no loop of the plan cuts it
            kernels = self.kernels(layer)
            if is_own:
                kernels = kernels_of(layer, running=running, is_divided=False, in_passes=axis is not None)
            kernels = [*kernels, *of_products(kernels, before)]
            if axis is not None and layer is layers[-1]:
                kernels = [kernel for kernel in kernels if kernel.adds]
            found.append([k for k in kernels if all(reads_in_core(k, tensor) for tensor in before)])
            before[layer.result] = self.kernels(layer)
        return found

    def is_weighed(self, layer: Layer, layers: Sequence[Layer], axis: Axis | None) -> bool:
        """Whether a layer of a chain is an online reduction, all at once or along this axis, of which sums in the chain
        alone are."""
        rules = layer.combine.values() if axis is None else (layer.combine.get(axis),)
        if Combine.ONLINE not in rules or self.leaves_core(layer, layers):
            return False
        return all(reader.macs for reader in self.network.readers.get(layer.result, []))

    def choices_along(self, layers: Sequence[Layer], made: Made, axis: Axis | None) -> list[CoreChain]:
        """Good ways with sums in pieces along this axis, the best first; alike layers have the same."""
        ways, sign = self.ways(layers, axis), Signature()
        leaving = frozenset(layer.result for layer in layers if self.leaves_core(layer, layers))
        key = sign.key((tuple(layers), ways, [made[layer.name] for layer in layers], axis, leaving, self.code.counts))
        key = key, tuple(self.elements.get(each) for each in sign.tensors)
        known = known_choices(self.code.target, "chains")
        if key not in known:
            part = partial(self.piece_of, layers, made, leaving, axis)
            choice = ChainChoice(self.code, ways, part, made, self.elements, leaving, bool(self.code.depth), axis)
            keep(known, key, [numbered(chain, ways, sign) for chain in choice.best()[:TRIED]])
        return [chain_of(each, ways, sign) for each in known[key]]

    def piece_of(
        self, layers: Sequence[Layer], made: Made, leaving: frozenset[Tensor], axis: Axis | None,
        extents: Mapping[Axis, int], dealt: Axis | None, counts: Mapping[Axis, int],
    ) -> ChainPiece | None:  # fmt: skip
        """A piece of a chain, as `ChainChoice.part` says, with sums in pieces along an axis."""
        order = tuple(counts)
        chain = CoreChain((), extents, dealt, order, tuple(counts.values()), 0.0)
        try:
            with self.code.supposed(chain.counts) as indices:
                found = self.parts_of(layers, self.cut_of(layers[-1], chain, made, indices), made)
                clipped = {name: self.clipped(spans) for name, spans in found.items()}
        except NotLowered:
            return None
        level = self.code.depth + len(order) - 1
        makes_anew = any(not moving_axes(layer, found, level) for layer in layers[:-1]) if axis else False
        own = (layer for layer in layers[:-1] if layer.result in leaving)
        is_whole = all(self.is_covered(layer, found, made, chain) for layer in own)
        return ChainPiece(found, clipped) if is_whole and not makes_anew else None

    def clipped(self, spans: Spans) -> frozenset[Axis]:
        """Axes that some pass of the loops that are open, or some core, clips."""
        return frozenset(axis for axis, span in spans.items() if not self.code.is_inside(self.code.plain(span)))

    def is_covered(self, layer: Layer, parts: Made, made: Made, chain: CoreChain) -> bool:
        """Whether the pieces of a layer in a chain are all of its result, and no two cores make the same of it."""
        for axis in layer.result.axes:
            piece, whole = span_of(parts[layer.name], axis), span_of(made[layer.name], axis)
            if 0 < piece.start.core < piece.extent:
                return False
            levels = enumerate(chain.counts, self.code.depth)
            moves = [(step_at(piece, level), count) for level, count in levels] + [(piece.start.core, self.code.cores)]
            reach = piece.extent
            for step, count in sorted(moves):
                if step > reach:
                    return False
                reach += step * (count - 1)
            before = whole.start - piece.start
            if before.base < 0 or reach - before.base < whole.extent:
                return False
        return True

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
        if span.start.is_constant and outer.start.is_constant and span.limit is None and outer.limit is None:
            first, last = max(span.start.base, outer.start.base), min(end(span).base, end(outer).base)
            return Span(Affine(first), last - first, outer.bound)
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
        code, taken = self.code, (self.used, self.most, self.later)
        block, stage, depth = code.block, code.stage, code.depth
        code.block = Block()
        layers = [kernel.layer for kernel in chain.kernels]
        crossing, last, kept = self.crossing(layers, made), layers[-1], 0
        before = {tensor: len(self.here[tensor]) for tensor in crossing}
        try:
            for tensor, box in crossing.items():
                (user, *_) = [each for each in layers if each.result is tensor or tensor in self.read_by(each.name)]
                kept += self.stream_once([user.name], tensor, made, box)
            self.write_links(chain, made)
            if last.result in crossing:
                self.store(last, crossing[last.result])
            is_written = True
        except NotLowered:
            is_written = False
            del code.counts[depth:], code.around[depth:]
        for tensor in [t for t in crossing if len(self.here[t]) > before[t]]:
            self.here[tensor].pop()
        if is_written:
            self.used = taken[0] + kept
        else:
            self.used, self.most, self.later = taken
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
            own = [self.layer_part(kernel, parts[kernel.layer.name], Pieces({}, None, ())) for kernel in chain.kernels]
        writers = [PartWriter(code, replace(part, sums=part.sums.outside(code.depth))) for part in own]
        leaving = [number for number, layer in enumerate(layers) if self.leaves_core(layer, layers)]
        ChainWriter(code, chain, writers, [self.numbers[layer.name] for layer in layers], leaving).write()

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
            if self.code.is_passed(outer, count * step):
                if limit is not None:
                    raise NotLowered("a piece of a chain with two ends")
                limit = end(outer)
            found[axis] = Span(start, extent, outer.bound, limit)
        return found


def moving_axes(layer: Layer, parts: Made, level: int) -> list[Axis]:
    """Axes of a layer's result that a loop moves."""
    return [axis for axis in layer.result.axes if step_at(span_of(parts[layer.name], axis), level)]


def of_products(kernels: Sequence[Kernel], before: Mapping[Tensor, Sequence[Kernel]]) -> Iterator[Kernel]:
    """Those that let a product before them make powers on its way out; `before`: of results in the core the kernels."""
    for kernel in kernels:
        if isinstance(kernel, WeightsKernel) and kernel.may_repeat:
            makers = before.get(kernel.layer.operands[0].pieces[0].tensor, ())
            products = (each for each in makers if isinstance(each, ProductKernel) and each.may_repeat)
            operands = (each.layer.operands[each.factors.lines] for each in products)
            if any(before.keys().isdisjoint(piece.tensor for piece in each.pieces) for each in operands):
                yield replace(kernel, by_product=True)
