"""The pass that spreads weights over the clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.isa.instruction import attribute_of, emit, integer, value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import ELEMENT_BYTES, MAX_LOOPS, Affine, Box, Copy, Span, View
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp
from frustum.dialects.module import COMPRESSION, text_of
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.analysis.module import target_of
from frustum.passes.lower import weight_runs as wr
from frustum.passes.lower import weight_slots as ws
from frustum.passes.lower.executions import enclosing_counts
from frustum.passes.weights import store_of

ONE = Span(Affine(), 1, 1)


@dataclass(frozen=True)
class ShareWeights(ModulePass):
    """Hold weights that all clusters need once on the chip, and have each cluster serve the others.

    Before: a multicast brings such weights into the SRAM of every cluster, and copies bring pieces from there into
    WRAM.  After: of each piece every cluster holds an equal part of the bytes (1/K in K clusters).  Before a piece is
    copied into WRAM, each cluster sends its part of it to all by CDMA, into a buffer of one piece (two copies in a
    loop); DRAM moves the same bytes.

    1. Pieces are blocks in slots (`weight_runs.py`), compressed or, where they were not, raw ones: so a part of a
       piece is a run of bytes.
    2. Weights stay replicated where they are not held by all clusters alike, where parts would be shorter than DRAM
       reads at once, and where parts and the buffer for the pieces take no less SRAM: with 3 pieces and fewer.
    3. A chip of one cluster has nobody to share with; DoesNotFit on one of several without CDMA.

    Source: docs/techniques/frustum.md, "Weights" (`weights=replicated|shared`).
    """

    name = "frustum-lower-share-weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        programs = [each for each in op.walk() if isinstance(each, ProgramOp)]
        target = target_of(op) if programs else None
        if target is None or target.chip.clusters == 1:
            return
        if target.cluster.cdma is None:
            raise DoesNotFit("clusters that share weights", f"target {target.name}", "CDMA", "none")
        for program in programs:
            blocks = wr.Blocks(store_of(op), target, "raw", even=True)
            before = wr.weights_of(program)
            for flow in list(ws.flows(program)):
                _bring(flow, blocks, target)
            blocks.settle(before)
            spread = 0
            for flow in list(_in_slots(program)):
                if is_even(flow) and _is_worth(flow, flow.fill.expand.value.data, flow.held.bytes.value.data, target):
                    share(flow, target.chip.clusters, target.cluster.cores)
                    spread += 1
            _note(op, wr.weights_of(program), spread)


def _note(module: ModuleOp, weights: list[ExternalOp], spread: int) -> None:
    """For the report: how many tensors are shared, beside what compression has noted."""
    noted = text_of(module, COMPRESSION)
    facts: dict[str, Any] = {"codec": "none", "compressed_tensors": 0, "raw_loads": {}}
    if noted is not None:
        facts = json.loads(noted)
    facts["raw_bytes"] = sum(map(wr.raw_bytes, weights))
    facts["stored_bytes"] = sum(external.bytes.value.data for external in weights)
    facts["shared_tensors"] = facts.get("shared_tensors", 0) + spread
    module.attributes[COMPRESSION] = StringAttr(json.dumps(facts))


def _bring(flow: ws.Flow | None, blocks: wr.Blocks, target: Target) -> None:
    """Raw weights into slots, if they will then be shared."""

    def is_worth(run: wr.WeightRun) -> bool:
        (places,) = run.places
        held_bytes, offset = run.flow.held.bytes.value.data, places.offset(run.chunks)
        return _is_worth(run.flow, places.slot_bytes, places.run_bytes, target, held_bytes, offset)

    if flow is not None and flow.load.multicast is not None:
        try:
            blocks.bring([flow], is_worth)
        except ws.StaysRaw:
            return


def _in_slots(program: ProgramOp) -> Iterator[ws.Flow]:
    """Flows of blocks that a multicast loads."""
    for op in program.walk():
        if isinstance(op, CopyOp) and op.multicast is not None and isinstance(op.src.owner, ExternalOp):
            held = op.dst.owner
            fills = [use.operation for use in op.dst.uses if use.operation is not op]
            if isinstance(held, AllocOp) and len(fills) == 1 and isinstance(fills[0], CopyOp) and fills[0].expand:
                yield ws.Flow(op.src.owner, op, held, fills[0])


def _is_worth(
    flow: ws.Flow, slot_bytes: int, run_bytes: int, target: Target, held_bytes: int | None = None,
    offset: Affine | None = None,
) -> bool:  # fmt: skip
    """Whether parts, and the buffer for what arrives, take less SRAM than what is held now."""
    clusters, part = target.chip.clusters, part_bytes(slot_bytes, target.chip.clusters)
    offset = flow.fill.src_view.data.offset if offset is None else offset
    arriving = slot_bytes * (target.cluster.cores if offset.core else 1) * _depth(flow.fill)
    depth = flow.held.depth.value.data
    now = (run_bytes if held_bytes is None else held_bytes) * depth
    after = run_bytes // slot_bytes * part * depth + arriving
    if offset.core and _highest(offset, flow.fill, target) >= run_bytes:  # some cores' pieces are not there
        return False
    return after < now and part >= target.chip.dram.minimum_run_bytes and (clusters - 1) * part < slot_bytes


def is_even(flow: ws.Flow) -> bool:
    """Whether slots lie in steps of their size."""
    assert flow.fill.expand is not None
    offset, slot = flow.fill.src_view.data.offset, flow.fill.expand.value.data
    return not any(part % slot for part in (offset.base, offset.cluster, offset.core, *offset.loops))


def part_bytes(slot_bytes: int, clusters: int) -> int:
    """What each cluster holds of a slot, the last one perhaps less."""
    return aligned(ceil_div(slot_bytes, clusters))


def _depth(fill: CopyOp) -> int:
    return 2 if enclosing_counts(fill) else 1


def _highest(offset: Affine, fill: CopyOp, target: Target) -> int:
    """The largest value, over loops, clusters and cores; no coefficient is negative."""
    counts = enclosing_counts(fill)
    sizes = [*counts, *(1,) * (MAX_LOOPS - len(counts)), target.chip.clusters, target.cluster.cores]
    steps = [*offset.loops, *(0,) * (MAX_LOOPS - len(offset.loops)), offset.cluster, offset.core]
    assert min(steps) >= 0 and (ws.CLUSTER, ws.CORE) == (MAX_LOOPS, MAX_LOOPS + 1)
    return offset.base + sum(step * (n - 1) for step, n in zip(steps, sizes, strict=True))


def share(flow: ws.Flow, clusters: int, cores: int) -> None:
    """Rewrite a flow of blocks: each cluster loads its parts, and sends them when pieces are needed."""
    load, held, fill = flow.load, flow.held, flow.fill
    assert fill.expand is not None
    element = load.src_view.data.element
    size, slot = ELEMENT_BYTES[element], fill.expand.value.data
    part = part_bytes(slot, clusters)
    slots = held.bytes.value.data // slot
    own = Span(Affine(cluster=part // size), part // size, slot // size)
    _load_parts(load, own, slots, part, slot)
    held.properties["bytes"] = integer(slots * part)
    own_pieces = cores if fill.src_view.data.offset.core else 1
    arriving = AllocOp("sram", own_pieces * slot, _depth(fill))
    block = fill.parent
    assert block is not None
    number = _divided(fill.src_view.data.offset, slot)
    sends = [
        _send(flow, arriving, number, own, distance, (clusters, slots, own_pieces), (part, slot))
        for distance in range(1 - clusters, clusters)
    ]
    block.insert_ops_before([arriving, *sends], fill)
    fill.operands[0] = arriving.buffer
    at = Affine(core=slot) if own_pieces > 1 else Affine()
    fill.properties["src_view"] = attribute_of(View(element, at, (0, 0, 0, 0)))


def _load_parts(load: CopyOp, own: Span, slots: int, part: int, slot: int) -> None:
    """Of a run of slots each cluster brings its part of each."""
    source, run = load.src_view.data, load.box.data.spans[3]
    size = ELEMENT_BYTES[source.element]
    first = _divided(run.start, slot // size)
    offset = source.offset + Affine(cluster=part)
    box = Box.of(ONE, ONE, Span(first, slots, run.bound * size // slot), own)
    fields: dict[str, Any] = {
        "src_view": View(source.element, offset, (0, 0, slot, size)),
        "dst_view": View(source.element, Affine(), (0, 0, part, size)),
        "box": box,
    }
    for name, value in fields.items():
        load.properties[name] = attribute_of(value)
    del load.properties["multicast"]


def _send(
    flow: ws.Flow, arriving: AllocOp, number: Affine, own: Span, distance: int, counts: tuple[int, int, int],
    sizes: tuple[int, int],
) -> Operation:  # fmt: skip
    """What a cluster sends to the one `distance` further on: its part of the piece, or of each core's, that this needs.

    Nobody is there where the first dimension of the box is empty; no piece where the third is.
    """
    (clusters, slots, pieces), (part, slot), fill = counts, sizes, flow.fill
    element = fill.src_view.data.element
    size = ELEMENT_BYTES[element]
    peer = Affine(distance, cluster=1)
    step = number.core
    wanted = Affine(number.base + distance * number.cluster, number.loops, number.cluster)
    box = Box.of(Span(peer, 1, clusters), Span(Affine(), pieces, pieces), Span(wanted, 1, slots), own)
    send = Copy(
        engine="cdma", box=box, peer=peer,
        src_view=View(element, wanted * part, (0, step * part, 0, size)),
        dst_view=View(element, Affine(cluster=part), (0, slot, 0, size)),
    )  # fmt: skip
    common = {name: value_of(fill.properties[name]) for name in ("stage", "layer", "unit")}
    return emit(send, flow.held.buffer, arriving.buffer, **common)


def _divided(function: Affine, by: int) -> Affine:
    """The function in larger steps; they divide it."""
    parts = [function.base, function.cluster, function.core, *function.loops]
    assert all(part % by == 0 for part in parts), "slots begin at multiples of their size"
    base, cluster, core, *loops = (part // by for part in parts)
    return Affine(base, tuple(loops), cluster, core)
