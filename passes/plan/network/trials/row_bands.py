# Tests: test/passes/plan/network/trials/test_row_bands.py
"""Hidden maps in chunks for some rows after the others, where SRAM holds what comes in and goes out for a part of them.

Chunks of a hidden map (`hidden_chunks.py`) want what its products read and their sums in SRAM for all rows.  Where
there is no room for that, a band of rows goes through all chunks before the next one: its rows are read once, its sums
stay until they are whole, and the hidden map is never in DRAM.  Weights are streamed once for each band.  With the
products go the layers before and behind that work row by row and that nobody else reads, as a norm and the product
before it, so that nothing between them is in DRAM either.

Source: tiling of fused products with the rows as the outer loop and the shared rank inside (Orojenesis, ISCA 2024).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, aligned, ceil_div
from frustum.passes.analysis.module import named_part, node_name, readers_in_network, value_bytes
from frustum.passes.plan import model
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import (
    Hidden,
    HiddenChunks,
    InChunks,
    PartWriter,
    has_weights,
    hidden_of,
    limits_of_chunks,
)
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.made_again import HeldInput, form_of, held
from frustum.passes.weights import store_of


@dataclass(frozen=True)
class RowLayers:
    """The layers that go band by band, in order, among them those of a hidden map; what others make and they read."""

    hidden: Hidden
    ops: tuple[Operation, ...]
    read: tuple[SSAValue, ...]

    @property
    def result(self) -> SSAValue:
        return self.ops[-1].results[0]

    def moved_bytes(self, bands: int) -> int:
        """Of DRAM with so many bands."""
        return sum(map(value_bytes, (*self.read, self.result))) + bands * sum(map(weight_bytes, self.ops))


def in_bands(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int, *, share: float
) -> list[InChunks | HeldInput]:
    """Make every hidden map, and what is around it, in the fewest bands of rows beside one of which a chunk finds room
    in a share of the rest of so many bytes of SRAM, where that moves fewer bytes than these units; what was done."""
    found: list[InChunks | HeldInput] = []
    hidden_maps = [each for node in order.nodes if (each := hidden_of(order, node.op)) is not None]
    others = {op for each in hidden_maps for op in (*each.makers, each.sums)}
    for hidden in hidden_maps:
        bands = fewest_bands(hidden, sram_bytes, share)
        if bands is None:
            continue
        count, channels = bands
        layers = row_layers(order, hidden, count, others)
        if layers is not None and layers.moved_bytes(count) < bytes_now(order, units, layers):
            found += RowBands(layers, count, channels, module).put()
    return found


def bytes_now(order: LayerOrder, units: Sequence[UnitChoice], layers: RowLayers) -> int:
    """What the units of these layers move."""
    own = set(layers.ops)
    return sum(x.exact_bytes for x in units if any(order.nodes[k].op in own for k in range(x.first, x.stop)))


def fewest_bands(hidden: Hidden, sram_bytes: int, share: float) -> tuple[int, int] | None:
    """The fewest bands, but one, beside which a chunk finds room in a share of the rest of SRAM, and its channels; None
    where there would have to be very many."""
    rows, step = math.prod(rows_of(hidden.sums.result)), model.BAND_STEP
    for count in range(2, model.MOST_BANDS + 1):
        most, least = limits_of_chunks(hidden, sram_bytes, share, band_of(rows, count) / rows)
        channels = min(most, hidden.channels // 2) // step * step
        if channels >= max(least, 1):
            return count, channels
    return None


def band_of(rows: int, bands: int) -> int:
    """Rows of each band but the last."""
    return min(aligned(ceil_div(rows, bands), model.BAND_STEP), rows)


def rows_of(value: SSAValue) -> Extents:
    """All dimensions but the last."""
    return g.shape_of(value)[:-1]


def weight_bytes(op: Operation) -> int:
    return sum(value_bytes(value) for value in op.operands if isinstance(value.owner, g.WeightOp))


def row_layers(
    order: LayerOrder, hidden: Hidden, bands: int, others: Collection[Operation]
) -> RowLayers | None:
    """The layers of a hidden map and those around it that work by rows, as far as nobody else reads what they make,
    and their weights, which are read once for each of so many bands, take less than what they make; none of `others`,
    which belong to hidden maps.  None where something is read in other rows."""
    rows = rows_of(hidden.sums.result)
    own: dict[Operation, None] = dict.fromkeys((*hidden.makers, hidden.sums))
    free = {node.op: None for node in order.nodes if node.op.parent is not None and node.op not in others}
    last: Operation = hidden.sums
    while (behind := only_reader(last)) in free and behind is not None and goes_along(behind, rows, bands):
        own[last := behind] = None
    for op in reversed(free):
        if op not in own and is_read_by(own, op) and goes_along(op, rows, bands):
            own[op] = None
    ops = tuple(node.op for node in order.nodes if node.op in own)
    made = {op.results[0] for op in ops}
    read = dict.fromkeys(x for op in ops for x in op.operands if not isinstance(x.owner, g.WeightOp) and x not in made)
    by_rows = tuple(value for value in read if math.prod(rows_of(value)) > 1)
    is_alike = all(rows_of(value) == rows for value in by_rows)
    return RowLayers(hidden, ops, by_rows) if is_alike and ops[-1] is last else None


def only_reader(op: Operation) -> Operation | None:
    """What alone reads a result."""
    readers = set(readers_in_network(op.results[0]))
    return readers.pop() if len(readers) == 1 else None


def is_read_by(own: Collection[Operation], op: Operation) -> bool:
    """Whether these layers, and no others, read what a layer makes."""
    readers = set(readers_in_network(op.results[0]))
    return bool(readers) and all(reader in own for reader in readers)


def goes_along(op: Operation, rows: Extents, bands: int) -> bool:
    """Whether a layer works by rows, and its weights take less with so many bands than it costs to write and read what
    it makes."""
    return is_by_row(op, rows) and (bands - 1) * weight_bytes(op) < 2 * value_bytes(op.results[0])


def is_by_row(op: Operation, rows: Extents) -> bool:
    """Whether a layer makes each of these rows of the same one of what it reads, and of what is the same for all."""
    if len(op.results) != 1 or rows_of(op.results[0]) != rows or g.is_integer(op.results[0]):
        return False
    if isinstance(op, g.MatmulOp):
        return has_weights(op) and not op.trans_a and rows_of(op.a) == rows
    if isinstance(op, g.NormaliseOp):
        return op.axes == (len(rows),) and op.groups == 1
    return isinstance(op, g.UnaryOp | g.BinaryOp) and all(
        rows_of(value) == rows or math.prod(rows_of(value)) == 1 for value in op.operands
    )


@dataclass
class RowBands:
    """So many bands of some layers, with chunks of so many channels, as they are made; `added`: what is put into the
    network, in order."""

    layers: RowLayers
    count: int
    channels: int
    module: ModuleOp
    added: list[Operation] = field(default_factory=list)

    def put(self) -> list[InChunks | HeldInput]:
        """All bands in the place of the whole, each with its hidden map in chunks."""
        rows = math.prod(rows_of(self.layers.result))
        ends = [*range(0, rows, band_of(rows, self.count)), rows]
        bands = [self.band(first, stop) for first, stop in itertools.pairwise(ends)]
        result = self.joined([layers.result for layers in bands])
        self.layers.result.replace_all_uses_with(result)
        old = []
        for op in reversed(self.layers.ops):
            behind = op.next_op
            assert behind is not None  # a network ends with its outputs
            op.detach()
            old.append((op, behind))
        changes: list[InChunks | HeldInput] = [InChunks(tuple(self.added), tuple(old))]
        constants: dict[tuple[object, ...], SSAValue] = {}  # each band reads the same
        for layers in bands:
            writer = PartWriter(layers.hidden.sums, store_of(self.module), constants=constants)
            changes.append(HiddenChunks(layers.hidden, self.channels, writer).put())
            changes += held_rows(layers.read)
        return changes

    def band(self, first: int, stop: int) -> RowLayers:
        """Copies of the layers for rows [first, stop)."""
        values = {value: self.part(value, first, stop) for value in self.layers.read}
        read, copies = tuple(values.values()), dict[Operation, Operation]()
        for op in self.layers.ops:
            copy = copies[op] = op.clone(values)
            kind = g.tensor_of(copy.results[0])
            shape = band_shape(kind.get_shape(), stop - first)
            Rewriter.replace_value_with_new_type(copy.results[0], TensorType(kind.element_type, shape, kind.encoding))
            values[op.results[0]] = self.insert(copy, op, f"/{first}")
        hidden = self.layers.hidden
        makers, sums = tuple(copies[op] for op in hidden.makers), copies[hidden.sums]
        assert isinstance(sums, g.MatmulOp)
        return RowLayers(Hidden(makers, sums), tuple(copies.values()), read)

    def part(self, value: SSAValue, first: int, stop: int) -> SSAValue:
        """Rows [first, stop) of a map in DRAM."""
        rows, like = (math.prod(rows_of(value)), g.shape_of(value)[-1]), self.layers.ops[0]
        flat = value if len(rows_of(value)) == 1 else self.insert(g.ReshapeOp(value, rows), like)
        part = self.insert(g.PartOp(flat, first, stop - first), like)
        shape = band_shape(g.shape_of(value), stop - first)
        return part if g.shape_of(part) == shape else self.insert(g.ReshapeOp(part, shape), like)

    def joined(self, parts: Sequence[SSAValue]) -> SSAValue:
        """The rows of all bands behind each other."""
        last, whole = self.layers.ops[-1], g.shape_of(self.layers.result)
        result = self.insert(g.ConcatOp(parts, len(whole) - 2), last)
        return result if g.shape_of(result) == whole else self.insert(g.ReshapeOp(result, whole), last)

    def insert(self, op: Operation, like: Operation, band: str = "") -> SSAValue:
        """Put an operation before the last layer; `band` is added to the name that it has like another one."""
        name, last = node_name(like), self.layers.ops[-1]
        op.location = named_part(like, name + band) if name and band else like.location
        block = last.parent
        assert isinstance(block, Block)
        block.insert_op_before(op, last)
        self.added.append(op)
        return op.results[0]


def band_shape(shape: Iterable[int], rows: int) -> Extents:
    """The shape of so many rows of a tensor."""
    *outer, _, channels = shape
    return *(1 for _ in outer), rows, channels


def held_rows(parts: Sequence[SSAValue]) -> list[HeldInput]:
    """Copies, which may stay in SRAM, of those rows that several layers read."""
    found = []
    for value in parts:
        readers = dict.fromkeys(readers_in_network(value))
        form = form_of(value, readers) if len(readers) > 1 else None
        found += [] if form is None else [held(value, form)]
    return found
