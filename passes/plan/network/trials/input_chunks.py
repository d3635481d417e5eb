"""Convolutions of a map that is made channel by channel of another, some input channels at a time.

A group norm needs whole planes of a group, a convolution behind it all channels: where the norm's map and the
convolution's do not fit SRAM beside each other, one of them goes through DRAM.  But some channels can be normalised,
and what the convolution makes of them added to its sums, before the next ones: then the norm's map is never whole, its
operand is read once, and so are the weights.  The result of each part takes the place of the one before
(`CutSearch.beside`), in its element type.

Source: as `hidden_chunks.py`, with layers that work channel by channel instead of the first product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import aligned, ceil_div, replaced
from frustum.dialects.module import JOINT, PART_OF_SUM
from frustum.passes.analysis.layer import layer_of
from frustum.passes.analysis.module import element_bytes, sole_reader, value_bytes
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import (
    WIDE,
    InChunks,
    PartWriter,
    Range,
    made_in_dram,
    may_go_in_parts,
)
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.trials.plane_norms import is_of_channels
from frustum.passes.weights import store_of

CHANNELS = 1
"""The axis of channels of a map [N, C, H, W]."""


@dataclass(frozen=True)
class InputChain:
    """A convolution, and the layers that make what it reads of one map channel by channel, each read by the next alone;
    in order."""

    source: SSAValue
    makers: tuple[Operation, ...]
    sums: g.ConvOp

    @property
    def channels(self) -> int:
        return g.shape_of(self.sums.x)[CHANNELS]

    @property
    def grain(self) -> int:
        """Channels that go together."""
        groups = [self.channels // op.groups for op in self.makers if isinstance(op, g.NormaliseOp) and op.groups > 1]
        return math.lcm(1, *groups)


def inputs_in_chunks(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int, *, number: int = 0
) -> list[InChunks]:
    """Let the convolution of this number, of those of which in these units the map or what is made before it goes
    through DRAM and whose sums leave room in so many bytes of SRAM, be made in chunks of input channels; what was
    done."""
    through = made_in_dram(order, units)
    for node in order.nodes:
        chain = chain_of(node.op)
        width = None if chain is None or not through & {chain.sums, *chain.makers} else chunk_of(chain, sram_bytes)
        if chain is None or width is None:
            continue
        if number == 0:
            return [InputChunks(chain, width, PartWriter(chain.sums, store_of(module))).put()]
        number -= 1
    return []


def chain_of(op: Operation) -> InputChain | None:
    """A convolution of floats with constant weights, and what makes its map channel by channel, if a normalisation is
    among that: all else goes row by row."""
    if not isinstance(op, g.ConvOp) or not may_go_in_parts(op):
        return None
    if layer_of(op).keeps_sums_wide and element_bytes(op.result) < WIDE:
        return None
    makers: list[Operation] = []
    value = op.x
    while isinstance(value.owner, Operation) and sole_reader(value) in (op, *makers[-1:]):
        source = source_of(value.owner)
        if source is None:
            break
        makers.append(value.owner)
        value = source
    if not any(isinstance(maker, g.NormaliseOp) for maker in makers):
        return None
    return InputChain(value, tuple(reversed(makers)), op)


def source_of(op: Operation) -> SSAValue | None:
    """The map of which a layer makes each channel, or group of them, of these channels alone; None where it does not.
    What else it reads has one number for each channel, or one."""
    match op:
        case g.UnaryOp() if op.scales is None:
            return op.x
        case g.NormaliseOp() if op.axes[0] > CHANNELS or op.groups > 1:
            others = [value for value in (op.scale, op.shift) if value is not None]
            return op.x if all(is_by_channels(value, op) for value in others) else None
        case g.BinaryOp() if op.scales is None:
            maps = [value for value in (op.a, op.b) if g.shape_of(value) == g.shape_of(op.result)]
            others = [value for value in (op.a, op.b) if value not in maps]
            return maps[0] if len(maps) == 1 and all(is_by_channels(value, op) for value in others) else None
    return None


def is_by_channels(value: SSAValue, op: Operation) -> bool:
    """Whether a tensor has one number for each channel of what a layer makes, or one for all: a constant, or a map."""
    made, own = op.results[0], g.shape_of(value)
    rank = len(g.shape_of(made))
    is_alike = is_of_channels(value, made) or (len(own) <= rank and math.prod(own) == 1)
    return rank == g.RANK_OF_PLANES and is_alike and (isinstance(value.owner, g.WeightOp) or len(own) == rank)


def chunk_of(chain: InputChain, sram_bytes: int) -> int | None:
    """Channels of a chunk: the most that divide the map and take at most `model.INPUT_SHARE` of what the sums leave of
    SRAM; None where too few do."""
    left = sram_bytes - aligned(value_bytes(chain.sums.result))
    each = max(value_bytes(x) for x in (chain.source, chain.sums.x)) // chain.channels
    most = min(int(model.INPUT_SHARE * left) // each, chain.channels // 2)
    least = ceil_div(chain.channels, model.MOST_CHUNKS)
    return next((c for c in range(most, least - 1, -1) if chain.channels % c == 0 and c % chain.grain == 0), None)


@dataclass
class InputChunks:
    """The chunks of one convolution, of so many input channels, as they are made."""

    chain: InputChain
    width: int
    writer: PartWriter

    def put(self) -> InChunks:
        """All chunks in the place of the whole."""
        result: SSAValue | None = None
        for first in range(0, self.chain.channels, self.width):
            result = self.share((first, first + self.width), result)
        assert result is not None
        return self.writer.instead_of(result, (self.chain.sums, *reversed(self.chain.makers)))

    def share(self, own: Range, before: SSAValue | None) -> SSAValue:
        """What some input channels add to what those before them have made."""
        sums, is_last = self.chain.sums, own[1] == self.chain.channels
        weights = self.writer.constant([sums.w], CHANNELS, [own])
        made = g.ConvOp(
            self.made(own), weights, sums.bias if before is None else None, sums.strides, sums.pads, sums.dilations,
            residual=sums.residual if before is None else before, act=sums.act if is_last else None,
        )  # fmt: skip
        result = self.writer.insert(made, sums, "" if is_last else f"/{own[0]}")
        made.attributes[JOINT if is_last else PART_OF_SUM] = UnitAttr()
        return result

    def made(self, own: Range) -> SSAValue:
        """These channels of what the convolution reads."""
        value = self.part(self.chain.source, own, self.chain.makers[0])
        source = self.chain.source
        for op in self.chain.makers:
            values = {x: value if x is source else self.part(x, own, op) for x in op.operands}
            new = op.clone(values)
            if isinstance(new, g.NormaliseOp) and new.groups > 1:
                new.groups = new.groups * (own[1] - own[0]) // self.chain.channels
            shape = replaced(g.shape_of(op.results[0]), CHANNELS, own[1] - own[0])
            kind = g.tensor_type(g.tensor_of(op.results[0]).element_type, shape)
            Rewriter.replace_value_with_new_type(new.results[0], kind)
            value, source = self.writer.insert(new, op, f"/{own[0]}"), op.results[0]
        return value

    def part(self, whole: SSAValue, own: Range, reader: Operation) -> SSAValue:
        """These channels of a map, or of numbers for each; what has one number for all as it is."""
        shape = g.shape_of(whole)
        axis = len(shape) - g.RANK_OF_PLANES + CHANNELS
        if axis < 0 or shape[axis] == 1:
            return whole
        if isinstance(whole.owner, g.WeightOp):
            return self.writer.constant([whole], axis, [own])
        starts, sizes = replaced((0,) * len(shape), axis, own[0]), replaced(shape, axis, own[1] - own[0])
        return self.writer.insert(g.PickOp(whole, starts, sizes, (1,) * len(shape)), reader, f"/{own[0]}")
