# Tests: test/passes/lower/tree/test_chains.py
"""The loops of a chain in the cores, with all of its layers in them.

Sums of the last layer may go on over passes of the innermost loop: they stay in the cores, and with them the numbers of
an online reduction before them.  What that loop does not move comes, and what it has summed leaves, in the loop around.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import Affine
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.cores.chain_choice import CoreChain
from frustum.passes.lower.tree.cores.links import as_operand, tensors_of, wants_of
from frustum.passes.lower.tree.fetch import Fetched
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want, Work
from frustum.passes.lower.tree.kernels.norms import WeightsKernel
from frustum.passes.lower.tree.kernels.products import ProductKernel
from frustum.passes.lower.tree.nest import NO_NUMBERS, LayerPart, PartWriter, Sums
from frustum.passes.lower.tree.spans import span_of, step_at


@dataclass
class ChainWriter:
    """Writes one chain.

    `writers`: of a piece of each layer, `numbers` theirs in reports; `leaving`: places in the chain of layers whose
    results leave the core.
    """

    code: Code
    chain: CoreChain
    writers: Sequence[PartWriter]
    numbers: Sequence[int]
    leaving: Collection[int]
    outs: dict[Tensor, Fetched] = field(default_factory=dict)
    """What lies in a core of results so far."""
    running: dict[int | None, Fetched] = field(default_factory=dict)
    """Numbers of an online reduction, by their plane."""
    scaled: dict[int, ProductKernel] = field(default_factory=dict)
    """Products that are made twice, whose lines are multiplied with a scale when they come."""

    def write(self) -> None:
        """Adds the loops.  NotLowered where instructions cannot say what is in them."""
        code, counts = self.code, self.chain.counts
        for number, writer in enumerate(self.writers):
            kernel, again = writer.kernel, self.chain.repeated_by(number)
            if again is not None and isinstance(kernel, ProductKernel) and kernel.scale != 1.0:
                self.scaled[number], writer.kernel = kernel, replace(kernel, scale=1.0)
        outer = counts[:-1] if self.chain.summed else counts
        levels = range(code.depth, code.depth + len(counts))
        moving = [self.moved(number, levels) for number in range(len(self.writers))]
        for number, own in enumerate(moving):
            self.arrive(number, [want for want in self.coming(number) if want not in own], 1 if levels else None)
        with ExitStack() as opened:
            for count in outer:
                opened.enter_context(code.repeat(count))
            if self.chain.summed:
                self.sums(moving, bool(outer))
            else:
                self.links(moving, is_in_loop=bool(levels))

    def sums(self, moving: Sequence[Sequence[Want]], is_in_loop: bool) -> None:
        """The loop over sums of the last layer, and what stands around it."""
        code, last = self.code, self.writers[-1]
        level = code.depth
        inner = [self.moved(number, range(level, level + 1)) for number in range(len(self.writers))]
        for number, own in enumerate(moving):
            self.arrive(number, [want for want in own if want not in inner[number]], 1 + is_in_loop)
        begun = Affine.index(level)
        with code.at_stage(code.stage + is_in_loop):
            code.layer = self.numbers[-1]
            last.begin(1 + is_in_loop, 1, is_summed=True)
            parts = [writer.part for writer in self.writers]
            for writer in self.writers:
                writer.begun = begun if writer.part.running is None else writer.part.begun(code) + begun
                self.keep_running(writer)
            self.move_running(parts, "in")
            sums = last.part.sums
            if sums.levels and last.layer.macs:
                both = Sums((*sums.levels, level), (*sums.counts, self.chain.counts[-1]))
                last.part = replace(last.part, sums=both)
            else:
                last.level = level
            with code.repeat(self.chain.counts[-1]):
                self.links(inner, is_in_loop=True)
            for writer, part in zip(self.writers, parts, strict=True):
                writer.part = part
            self.move_running(parts, "out")
            code.layer = self.numbers[-1]
            last.finish()
            with code.at_stage(code.stage + is_in_loop):
                last.leave()

    def keep_running(self, writer: PartWriter) -> None:
        """Numbers of an online reduction stay in the cores."""
        for scratch in writer.kernel.scratch:
            if scratch.is_kept and scratch.plane is not None:
                self.running[scratch.plane] = writer.free(scratch, 1)
        if writer is not self.writers[-1]:
            writer.part = replace(writer.part, running=None, sums=Sums())

    def move_running(self, parts: Sequence[LayerPart], way: str) -> None:
        """The numbers that stay from where they wait for passes of the plan's loops, or back."""
        for number, (writer, part) in enumerate(zip(self.writers, parts, strict=True)):
            self.code.layer, place = self.numbers[number], part.running
            for scratch in writer.kernel.scratch:
                if place is not None and scratch.is_kept and scratch.plane is not None:
                    held, begun = self.running[scratch.plane], [part.begun(self.code)] if way == "in" else []
                    writer.carry(place.plane(scratch.plane), way, held, scratch.axes, begun)

    def links(self, moving: Sequence[Sequence[Want]], *, is_in_loop: bool) -> None:
        """A piece of each layer, in the innermost loop.  The last one stands first: in a pass each makes what the one
        before it has made in earlier ones, and the engines need not wait for each other.  One that makes a product once
        more stands before all: both units work on it, and the others' instructions are behind what they wait for."""
        code, first = self.code, int(any(moving))
        stages = [code.stage + (first + stage if is_in_loop else 0) for stage in self.chain.stages]
        for number, at in enumerate(stages):
            with code.at_stage(at - (1 if is_in_loop and at else 0)):
                self.arrive(number, moving[number], self.chain.copies_in(number))
            self.take_room(number, is_in_loop=is_in_loop)
        order = sorted(range(len(stages)), key=lambda number: -stages[number])
        if self.chain.repeats:
            order = sorted(range(len(stages)), key=lambda number: not self.writers[number].kernel.repeats)
        for number in order:
            with code.at_stage(stages[number]):
                self.link(number, stages[-1])
            if not self.ends_late(number):
                self.end(number, stages[number], is_in_loop=is_in_loop)
        for number in filter(self.ends_late, order):  # behind the next piece's weights: these wait for no sums
            self.end(number, stages[number], is_in_loop=is_in_loop)

    def end(self, number: int, stage: int, *, is_in_loop: bool) -> None:
        """The result of a piece, and where it goes."""
        code = self.code
        if self.is_sum(number):
            return
        code.layer = self.numbers[number]
        with code.at_stage(stage):
            self.writers[number].finish()
        if number in self.leaving:
            with code.at_stage(stage + is_in_loop):
                self.writers[number].leave()

    def is_weighed(self, number: int) -> bool:
        """Whether a layer's sums are of weights that the chain makes at once, and are still to be divided."""
        kernel = self.writers[number].kernel
        return isinstance(kernel, ProductKernel) and kernel.divides and not kernel.in_passes

    def ends_late(self, number: int) -> bool:
        """Whether a layer's sums may be divided last: no layer of the chain reads them."""
        return self.is_weighed(number) and number == len(self.writers) - 1

    def is_sum(self, number: int) -> bool:
        """Whether sums of a layer go on over the innermost loop."""
        return bool(self.chain.summed) and number == len(self.writers) - 1

    def copies(self, number: int) -> int:
        """Of the buffer of a result."""
        return self.chain.copies(number, leaves=number in self.leaving)

    def take_room(self, number: int, *, is_in_loop: bool) -> None:
        """Buffers of a piece, and where it takes what lies in the core."""
        writer = self.writers[number]
        self.code.layer = self.numbers[number]
        shares = isinstance(writer.kernel, WeightsKernel | ProductKernel)
        if not self.is_sum(number):
            writer.take_room(self.copies(number), 1 + is_in_loop, self.running if shares else NO_NUMBERS)
        if shares:
            self.share_running(writer)
        for tensor, buffer in self.outs.items():
            for want in wants_of(writer.kernel, tensor):
                (piece,) = writer.layer.operands[want.operand].pieces
                writer.held[want.operand] = as_operand(want, piece, buffer, writer.now)
        self.outs[writer.layer.result] = writer.out

    def link(self, number: int, last_stage: int) -> None:
        """Adds the instructions of one piece of a layer.  `last_stage`: the last layer's."""
        code, writer = self.code, self.writers[number]
        code.layer = self.numbers[number]
        if not self.is_sum(number):
            writer.go_on_from(self.copies(number), is_summed=self.is_weighed(number))
        if self.is_sum(number) and not self.chain.repeats:
            self.rescale()
        work = writer.work()
        kernel = writer.kernel
        if isinstance(kernel, ProductKernel) and kernel.divides and not writer.part.sums.levels:  # none is whole yet
            assert work.acc is not None
            work = replace(work, out=work.acc, acc=work.acc if kernel.in_passes else None)
        if kernel.repeats:
            work = replace(work, powers=self.powers_of(kernel, last_stage))
        kernel.write(code, work)

    def rescale(self) -> None:
        """Makes sums of passes before those of the new maximum."""
        if self.running:
            self.writers[-1].kernel.rescale(self.code, self.writers[-1].work())

    def powers_of(self, kernel: Kernel, last_stage: int) -> Callable[[Fetched, Fetched], None]:
        """Makes the product that a layer reads once more; meanwhile the vector unit is free for the sums of an earlier
        piece."""
        (read,) = kernel.layer.operands[0].pieces
        maker = next(writer for writer in self.writers if writer.layer.result is read.tensor)
        own, work = maker.kernel, Work(maker.now, maker.held, maker.out)
        assert isinstance(own, ProductKernel), "chains choose products that may be made once more"

        def powers(added: Fetched, out: Fetched) -> None:
            own.write_powers(self.code, work, added, out)
            if self.chain.summed:
                with self.code.at_stage(last_stage):
                    self.rescale()

        return powers

    def share_running(self, writer: PartWriter) -> None:
        """Numbers of an online reduction are in one buffer each: the last layer has the factors, or the sums, that it
        has made."""
        known = zip(writer.kernel.scratch, writer.scratch, strict=True)
        writer.scratch = tuple(
            own if scratch.plane is None else self.running.setdefault(scratch.plane, own) for scratch, own in known
        )

    def arrive(self, number: int, wants: Sequence[Want], copies: int | None) -> None:
        """Operands of a layer come."""
        self.code.layer, writer = self.numbers[number], self.writers[number]
        for want in wants:
            writer.arrive(want, copies)
        kernel = self.scaled.get(number)
        if kernel is not None and any(want.operand == kernel.factors.lines for want in wants):
            kernel.scale_lines(self.code, Work(writer.now, writer.held, writer.held[kernel.factors.lines]))

    def coming(self, number: int) -> list[Want]:
        """The operands of a layer that are no results of the chain."""
        inside = {writer.layer.result for writer in self.writers[:-1]}
        own = self.writers[number]
        return [want for want in own.wants if inside.isdisjoint(tensors_of(own.layer, want))]

    def moved(self, number: int, levels: range) -> list[Want]:
        """Those that one of these loops moves."""
        now = self.writers[number].now
        return [
            want for want in self.coming(number)
            if any(step_at(span_of(now, axis), level) for axis in want.axes for level in levels)
        ]  # fmt: skip
