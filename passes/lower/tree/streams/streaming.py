# Tests: test/passes/lower/tree/test_frames.py
"""Layers in loops over slices of what they stream: loads, the parts that cores make, stores."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import Span
from frustum.passes.lower.tree.cores.parts import CoreParts
from frustum.passes.lower.tree.kernels.kernel import Kernel
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.places import Place, packed, transfer
from frustum.passes.lower.tree.signatures import Signature, keep, known_choices
from frustum.passes.lower.tree.spans import NotLowered, Spans, sharers, span_of
from frustum.passes.lower.tree.streams.frames import Frame, Parts
from frustum.passes.lower.tree.streams.slices import SliceChoice, SlicedLayer, Slices, chosen_of


class Streaming(CoreParts):
    """Writes layers whose operands come from DRAM, or whose results go there, in slices."""

    used: int

    def streamed(self, members: Sequence[SlicedLayer]) -> None:
        """Slices along one axis of all that comes from DRAM or goes there; what does not have the axis, whole."""
        chosen = self.slices(members, self.capacity - self.used)
        used, stage = self.used, self.code.stage
        whole = {member.layer.name: dict(member.spans) for member in members}
        boxes = {tensor: self.box_of(tensor, list(whole), whole) for member in members for tensor in member.tensors}
        kept = self.open(members, chosen, whole, boxes, is_moving=False)
        with self.code.repeat(chosen.count) as index:
            inner = {
                m.layer.name: m.sliced(self.code, chosen.cut, chosen.step, index, chosen.count) for m in members
            }  # fmt: skip
            self.open(members, chosen, inner, boxes, is_moving=True)
            is_loading = any(tensor in chosen.moving for member in members for tensor in member.streams)
            with self.code.at_stage(self.code.stage + (1 if chosen.count > 1 and is_loading else 0)):
                is_alone = chosen.count > 1 and len(members) == 1
                cut = chosen.cut if is_alone else {}
                writers = [
                    self.part(m.layer, inner[m.layer.name], cut.get(m.layer), chosen.turn) for m in members
                ]
                # the next slice comes first: cores wait for it, and nobody for this one's result
                is_behind = chosen.count > 1 and is_loading
                with self.code.at_stage(self.code.stage + max(writer.lateness for writer in writers) + is_behind):
                    self.close(members, chosen, inner, is_moving=True)
        self.code.stage = stage
        for writer in (writer for writer in writers if writer.stays):
            writer.leave()
        self.close(members, chosen, whole, is_moving=False)
        for tensor in {*boxes} | self.framed(members, chosen):
            self.here[tensor].pop()
        self.used = used + kept

    def open(
        self, members: Sequence[SlicedLayer], chosen: Slices, made: Made,
        boxes: Mapping[Tensor, Mapping[Axis, Span]], *, is_moving: bool,
    ) -> int:  # fmt: skip
        """Buffers of what comes in slices, or of what does not, and what is loaded into them.  Of the latter the bytes
        of those that have two copies."""
        framed, kept = self.framed(members, chosen), 0
        slices = sum(size for tensor, size in chosen.sizes.items() if tensor in chosen.moving)
        for tensor, box in boxes.items():
            names = [member.layer.name for member in members if tensor in member.tensors]
            is_result = tensor is self.layers[names[0]].result
            if (tensor in chosen.moving) is not is_moving or (is_result and tensor in framed):
                continue
            if is_moving:
                self.stream(names, tensor, made, 2 if chosen.count > 1 else 1, box)
            else:
                kept += self.stream_once(names, tensor, made, box, slices)
        for frame in chosen.frames:
            if (frame.tensor in chosen.moving) == is_moving:
                self.open_frame(frame, framed_parts(frame, members, made), 2 if is_moving and chosen.count > 1 else 1)
        return kept

    def stream_once(
        self, names: Sequence[str], tensor: Tensor, made: Made, box: Mapping[Axis, Span], beside: int = 0
    ) -> int:  # fmt: skip
        """A buffer for all that layers touch of a tensor.  It has two copies where passes of the loop around can
        overlap so, and there is room for it and so much beside it: what is loaded comes a pass ahead, and what is made
        goes a pass behind.  The bytes of both, or 0."""
        size, most = aligned(self.size_of(tensor, box)), self.most
        is_result = tensor is self.layers[names[0]].result
        overlaps = self.leaves_behind(tensor) if is_result else self.comes_ahead(tensor)
        if not (overlaps and self.has_second(size, beside)):
            self.stream(names, tensor, made, 1, box)
            return 0
        with self.code.at_stage(self.code.stage - (not is_result)):
            self.stream(names, tensor, made, 2, box)
        self.here[tensor][-1] = replace(self.here[tensor][-1], is_behind=is_result)
        self.keep_second(2 * size, most)
        return 2 * size

    def close(self, members: Sequence[SlicedLayer], chosen: Slices, made: Made, *, is_moving: bool) -> None:
        """Results that come in slices, or those that do not, go to DRAM."""
        framed = self.framed(members, chosen)
        for layer in (member.layer for member in members if member.is_stored and member.layer.result not in framed):
            if (layer.result in chosen.moving) == is_moving:
                self.store(layer, self.box_of(layer.result, [layer.name], made))
        for frame in chosen.frames:
            if (frame.tensor in chosen.moving) == is_moving:
                self.store_frame(frame, framed_parts(frame, members, made))

    def open_frame(self, frame: Frame, parts: Parts, copies: int) -> None:
        """A buffer for what layers make of an output, as it lies there, with a place in it for each result."""
        box = frame.box(parts)
        strides, size = packed(frame.tensor.axes, box, frame.home.element)
        size = aligned(size)
        if self.code.depth and self.used + 2 * size <= self.capacity:
            copies = 2  # one leaves while the next is made
        buffer = self.code.allocate("sram", size, copies)
        self.take(size * copies)
        place = Place(buffer, "sram", frame.home.element, strides, {axis: span.start for axis, span in box.items()})
        self.here[frame.tensor].append(place)
        for tensor, spans in parts.items():
            self.here[tensor].append(frame.place(place, box, tensor, spans))

    def store_frame(self, frame: Frame, parts: Parts) -> None:
        """What layers have made of an output leaves together; from there their results go elsewhere, too."""
        box, place = frame.box(parts), self.here[frame.tensor].pop()
        transfer(self.code, "gdma", box, place, frame.home, self.once(frame.tensor, box))
        for tensor, spans in parts.items():
            own = {axis: span_of(spans, axis) for axis in tensor.axes}
            self.leave_shares(tensor, own, self.here[tensor][-1], [], frame.home)

    def slices(self, members: Sequence[SlicedLayer], room: int) -> Slices:
        """Those that take the fewest cycles: of alike layers, where they are known.  DoesNotFit where none fits."""
        frames = [member.frame for member in members if member.frame is not None]
        shared = tuple(frame for frame in self.dram.frames if frames.count(frame) > 1)
        choice = partial(self.slice_choice, members, shared, room)
        if shared:  # outputs are like no others
            return chosen_of(choice().best(), members, room)
        sign = Signature()
        own = sign.key([replace(member, frame=None) for member in members])
        key = own, room, tuple(self.code.counts), *(self.around(member.layer, sign) for member in members)
        known = known_choices(self.code.target, "slices")
        if key not in known:
            found = choice().best()
            keep(known, key, None if found is None else found.numbered(sign))
        found = None if known[key] is None else Slices.of(known[key], sign)
        return chosen_of(found, members, room)

    def turn_of(self, members: Sequence[SlicedLayer]) -> float:
        """Cycles for which a copy to or from the cores waits, on average, while slices cross SRAM's port: a chunk keeps
        its place in that port's line until the DRAM port has served those of other clusters, for one of two ways."""
        spans = (span for member in members for span in member.spans.values())
        others, target = sharers(spans, self.code.clusters) - 1, self.code.target
        return others * target.transfers.chunk_bytes / target.chip.dram.port_bytes_per_cycle / 2

    def around(self, layer: Layer, sign: Signature) -> Hashable:
        """What slices of a layer depend on beside the layer."""
        tensors = (layer.result, *self.read_by_in_order(layer))
        lies = tuple((self.elements.get(each), sign.key(self.steps_in(each))) for each in tensors)
        near = tuple(each in self.made_here for each in tensors)
        return lies, near, sign.key(self.steps(layer)), self.running(layer) is None, self.begins_there(layer)

    def steps_in(self, tensor: Tensor) -> tuple[int, Mapping[Axis, int]]:
        """How a tensor lies in DRAM: numbers of an element, bytes from position to position."""
        place = self.dram.form(tensor)
        return place.planes, place.strides

    def slice_choice(self, members: Sequence[SlicedLayer], frames: tuple[Frame, ...], room: int) -> SliceChoice:
        """All slices of these layers, in so many bytes of SRAM."""
        kernels = {member.layer: member.kernels for member in members}

        def boxes(tensor: Tensor, made: Made) -> Mapping[Axis, Span]:
            return self.box_of(tensor, list(made), made)

        def computing(layer: Layer, part: Spans, axis: Axis | None, turn: float) -> float:
            found = self.best_of(layer, kernels[layer], part, axis, turn)
            return math.inf if found is None else found.cycles

        turn = self.turn_of(members)
        return SliceChoice(self.code, members, frames, self.dram.form, boxes, room, computing, turn)

    def framed(self, members: Sequence[SlicedLayer], chosen: Slices) -> set[Tensor]:
        """Results that leave as parts of an output."""
        return {tensor for frame in chosen.frames for tensor in framed_parts(frame, members)}

    def member(self, layer: Layer, spans: Spans, kernels: Sequence[Kernel] | None = None) -> SlicedLayer:
        """A layer with what it streams here."""
        read = dict.fromkeys(self.read_by_in_order(layer))
        streams = tuple(tensor for tensor in read if not self.is_here(tensor) and not self.is_made_anew(tensor))
        found = SlicedLayer(
            layer, kernels or self.kernels(layer), spans, streams, not self.is_here(layer.result), self.steps(layer),
            self.may_wait(layer),
        )  # fmt: skip
        may_share = found.is_stored and not self.here[layer.result] and self.planes(layer.result) == 1
        frame = self.dram.frame_of(layer.result) if may_share else None
        is_alike = frame is not None and self.slot_of(layer.result) == frame.home.element
        return replace(found, frame=frame) if is_alike else found

    def may_wait(self, layer: Layer) -> bool:
        """Whether sums may go on from slice to slice: where these need a wider type, the result has room for it."""
        return not layer.result.sums or any(place.sums for place in self.here[layer.result])

    def stream(
        self, names: Sequence[str], tensor: Tensor, made: Made, copies: int, whole: Mapping[Axis, Span]
    ) -> None:  # fmt: skip
        """A buffer for a slice of a tensor, and what is loaded into it; `whole`: what all slices have."""
        box = self.box_of(tensor, names, made)
        place = self.buffer(tensor, names, made, copies=copies, rolls=False)
        gone = self.missing(tensor, whole)
        place = replace(place, has=gone, completes=True)
        maker = self.network.maker.get(tensor)
        if maker is None or maker.name not in names:
            self.move("load", tensor, box, place, names, self.conditions_of(tensor, names, made))
        elif self.sum_levels(maker, made):
            raise NotLowered(f"{tensor.name}: sums that wait in DRAM, where each element is written once")
        self.here[tensor].append(place)



def framed_parts(frame: Frame, members: Sequence[SlicedLayer], made: Made | None = None) -> Parts:
    """What layers make of the tensors in a frame; all of them if nothing else is said."""
    own = [member for member in members if member.frame is frame]
    return {member.layer.result: member.spans if made is None else made[member.layer.name] for member in own}
