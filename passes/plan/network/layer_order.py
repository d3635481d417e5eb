# Tests: test/passes/plan/network/test_optimal.py
"""A network as a list of layers in an order in which they can run, with the maps that pass between them.

Source: Occam (doi 10.1145/3566052), "topological list"; several orders, because one list is not enough where a network
has branches (Cocco, doi 10.1145/3620665.3640395).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents, ceil_div, replaced
from frustum.dialects.module import JOINT, PART_OF_SUM, PLACE
from frustum.dialects.tile import AnyAxis, Axis, Whole
from frustum.passes.analysis.foreign import is_read_by_others, others_in, sections_of
from frustum.passes.analysis.layer import Layer, MapOperand, is_layer, is_work, layer_of
from frustum.passes.analysis.module import element_bytes, node_name, value_bytes
from frustum.passes.analysis.unit_layers import layers_of, same_form

ROWS, COLUMNS = 2, 3
NEARBY = 2
"""Layers behind one by which nothing needs what it reads any more, if it is not to be cut from them."""
LONGEST_CHAIN = 24
"""Layers that are not cut apart in a large network."""
COARSEST = 8
"""Of the steps in which tiles of resized maps are made: the largest that is looked at."""


@dataclass(frozen=True)
class Read:
    """One map operand of a node: which map, how it is read, and whether it is read as it was made (else only from
    DRAM: through a reshape, as weights, in other dimensions)."""

    map: int
    joins: bool
    dims: Extents
    element_bytes: int
    rows: AnyAxis
    columns: AnyAxis
    channels: tuple[int, int] = (0, 0)
    """[first, stop) of those that are needed to make all of the result; (0, 0): all."""
    by_image: bool = False
    """Image i of the result needs image i of the map, or the map is one for all images."""
    images_mix: bool = False
    """An image of the result needs several of the map, or one of another number: slices of a volume."""
    by_channel: bool = False
    """Channel i of the result needs channel i of the map."""
    in_rows: bool = True
    """Columns follow each other in DRAM: few of them are a short run there."""

    @property
    def bytes(self) -> int:
        return math.prod(self.dims) * self.element_bytes


@dataclass(frozen=True)
class LayerNode:
    """One layer, or one move (`layer` None), of which the output is the map of the same number."""

    op: Operation
    layer: Layer | None
    reads: tuple[Read, ...]
    weight_bytes: int
    vector_bytes: int
    batched_weights: bool = False
    """What is streamed beside its operands is another layer's: it is planned by itself."""

    @property
    def has_factors(self) -> bool:
        """Each image has weights of its own, which are streamed."""
        return self.layer is not None and self.layer.is_matrix and self.layer.kind.is_batched

    @property
    def is_concat(self) -> bool:
        return self.layer is not None and self.layer.kind.is_place


@dataclass
class Map:
    """A tensor between layers, a network's input (`producer` None), or a constant that is read tile by tile."""

    number: int
    bytes: int
    producer: int | None
    is_constant: bool = False
    is_output: bool = False
    users: list[int] = field(default_factory=list)
    """Nodes that read it, in order."""
    needs_dram: bool = False
    """Some user reads it from DRAM in any case."""

    @property
    def last_use(self) -> int:
        return self.users[-1] if self.users else -1


@dataclass
class LayerOrder:
    """Nodes in order; the first maps are their outputs, in the same order."""

    nodes: list[LayerNode]
    maps: list[Map]
    rates: tuple[list[Fraction], list[Fraction]]
    """Rows, and columns, of each map for one of some reference; comparable between maps that windows connect."""
    uneven: set[tuple[int, int]]
    """(node, map) of reads where two ways through the network have different strides along rows or columns."""

    def __post_init__(self) -> None:
        self.compulsory_bytes: int = sum(n.weight_bytes + n.vector_bytes for n in self.nodes)
        self.compulsory_bytes += sum(m.bytes for m in self.maps if m.producer is None and m.users)
        self.compulsory_bytes += sum(m.bytes for m in self.maps if m.is_output)

    @cached_property
    def grains(self) -> tuple[int, ...]:
        """Multiples that tiles may have to have: 1, and where maps are resized the products of its steps."""
        reads = [read for node in self.nodes for read in node.reads if node.layer is not None]
        axes = (axis for read in reads for axis in (read.rows, read.columns))
        steps = sorted({axis.den for axis in axes if isinstance(axis, Axis)} - {1})
        powers = (step**power for step in steps for power in (1, 2))
        return (1, *dict.fromkeys(power for power in powers if power <= COARSEST))

    @cached_property
    def has_slices(self) -> bool:
        """Some layer reads several images for one of its result."""
        return any(read.images_mix for node in self.nodes for read in node.reads)

    @cached_property
    def seams(self) -> frozenset[int]:
        """Where cuts of a large network are looked for: not inside chains of element by element layers and what they
        work on, of which less is left at the end than inside."""
        found, first = {0, len(self.nodes)}, 0
        for k, node in enumerate(self.nodes):
            made = [read for read in node.reads if not self.maps[read.map].is_constant]
            joins = all(
                read.joins and first <= read.map and self.maps[read.map].last_use <= k + NEARBY
                for read in made
            )
            is_elementwise = node.layer is not None and node.layer.kind.is_elementwise
            if not (is_elementwise and made and joins and k - first < LONGEST_CHAIN):
                found.add(k)
                first = k
        return frozenset(found)

    def cuts_behind(self, names: Collection[str]) -> frozenset[int]:
        """The cuts behind the layers of these names, and around what is in no unit: moves and concatenations."""
        last = {name: k for k, node in enumerate(self.nodes) if (name := node_name(node.op)) in names}
        alone = [k for k, node in enumerate(self.nodes) if node.layer is None or node.is_concat]
        return frozenset({0, len(self.nodes), *(k + 1 for k in last.values()), *alone, *(k + 1 for k in alone)})

    def layer(self, number: int) -> Layer:
        """The layer of this number, which is no move."""
        layer = self.nodes[number].layer
        assert layer is not None
        return layer

    def rate(self, number: int, other: int, dimension: int) -> Fraction:
        """Rows or columns of a map for one of another."""
        rates = self.rates[dimension - ROWS]
        return rates[number] / rates[other]

    def reads_of(self, number: int, first: int, stop: int) -> Iterator[Read]:
        """How layers [first, stop) read a map."""
        users = (k for k in self.maps[number].users if first <= k < stop)
        return (read for k in users for read in self.nodes[k].reads if read.map == number)

    def products_of(self, stop: int) -> int | None:
        """The first of the products right before attention that make what it alone reads, as they made it, if the layer
        before `stop` is attention that can go with them head by head."""
        first, reads = stop - 1, {read.map for read in self.nodes[stop - 1].reads if read.joins}
        while first - 1 in reads and self.maps[first - 1].users == [stop - 1] and not self.maps[first - 1].is_output:
            first -= 1
        own = [node.op for node in self.nodes[first:stop]] if first < stop - 1 else []
        return first if own and layers_of(own).is_by_heads else None

    def is_place(self, concat: int) -> bool:
        """A concatenation in DRAM that its operands are written into: layers make them, none is an output of the
        network, none is part of another."""
        operands = [read.map for read in self.nodes[concat].reads]
        return len(set(operands)) == len(operands) and all(self.is_part(m, concat) for m in operands)

    def is_row(self, concat: int) -> bool:
        """A concatenation of any shape that its operands are written into: these lie one behind the other, or the
        layers that make them can leave gaps for each other."""
        op = self.nodes[concat].op
        if not isinstance(op, g.ConcatOp):
            return False
        if math.prod(g.shape_of(op.result)[: op.axis]) > 1 and not all(self.leaves_gaps(x, op) for x in op.xs):
            return False
        operands = [read.map for read in self.nodes[concat].reads]
        readers = (
            [k for k in self.maps[m].users if isinstance(self.nodes[k].op, g.ConcatOp)] for m in operands
        )
        alone = all(each == [concat] for each in readers)
        return alone and len(set(operands)) == len(operands) and all(self.is_free(m) for m in operands)

    def leaves_gaps(self, value: SSAValue, concat: g.ConcatOp) -> bool:
        """Whether a layer makes a part of a concatenation, for it alone, with dimensions outside of the concatenated
        one whose positions can lie farther apart."""
        shape, number = g.shape_of(value), self.number_of(value)
        layer = None if number is None or not value.has_one_use() else self.nodes[number].layer
        if layer is None or len(shape) == len(layer.out_dims):
            return False
        own = math.prod(shape[concat.axis :])
        return layer.out_view.block == 1 and layer.out_view.spread(own, own) is not None

    def is_free(self, map_: int) -> bool:
        """A layer makes it, and it is no output of the network."""
        producer = self.maps[map_].producer
        is_made = producer is not None and (self.nodes[producer].layer is not None or self.is_row(producer))
        return is_made and not self.maps[map_].is_output

    def is_part(self, map_: int, concat: int) -> bool:
        """Other concatenations of it lie inside units, if this one is marked as its place."""
        map_is_made = self.maps[map_].producer is not None and not self.maps[map_].is_output
        users = [k for k in self.maps[map_].users if k != concat and self.nodes[k].is_concat]
        if PLACE in self.nodes[concat].op.attributes:
            users = [k for k in users if PLACE in self.nodes[k].op.attributes]
        return map_is_made and not users

    def number_of(self, value: SSAValue) -> int | None:
        """Of the map that a layer makes, if it is no output of the network and no other dialect reads it."""
        is_output = any(isinstance(use.operation, g.OutputOp) for use in value.uses)
        if is_output or is_read_by_others(value):
            return None
        return next((k for k, n in enumerate(self.nodes) if n.op is value.owner), None)


def ops_of_section(network: g.NetworkOp, section: Operation | None = None) -> list[Operation]:
    """What has to be in units, of one section (`analysis/foreign.py`), in the order of the file."""
    return [op for op, behind in sections_of(network.body.block).items() if behind is section and is_work(op)]


def outputs_of_section(network: g.NetworkOp, section: Operation | None) -> list[SSAValue]:
    """What is read behind a section: outputs of the network, and what other sections and other dialects read."""
    block = network.body.block
    if not others_in(block):
        return list(network.terminator.values)
    section_of = sections_of(block)
    own = {op for op, behind in section_of.items() if behind is section and not isinstance(op, g.WeightOp)}
    made = (result for op in own for result in op.results)
    return [value for value in made if any(use.operation not in own for use in value.uses)]


def order_of(ops: Sequence[Operation], outputs: Iterable[SSAValue]) -> LayerOrder:
    """The operations in this order, which must be one in which they can run."""
    return _Reading(ops, [layer_of(op) if is_layer(op) else None for op in ops]).order(outputs)


class _Reading:
    """An order as it is made: maps by the values that they are."""

    def __init__(self, ops: Sequence[Operation], layers: Sequence[Layer | None]):
        self.ops, self.layers = ops, layers
        self.numbers: dict[SSAValue, int] = {op.results[0]: i for i, op in enumerate(ops)}
        self.maps = [Map(i, value_bytes(op.results[0]), i) for i, op in enumerate(ops)]

    def order(self, outputs: Iterable[SSAValue]) -> LayerOrder:
        nodes = [self.node(i) for i in range(len(self.ops))]
        for value in outputs:
            number = self.map_of(value)
            self.maps[number].is_output = self.maps[number].needs_dram = True
        rows, columns = (rates_of(nodes, len(self.maps), d) for d in (ROWS, COLUMNS))
        return LayerOrder(nodes, self.maps, (rows[0], columns[0]), rows[1] | columns[1])

    def map_of(self, value: SSAValue) -> int:
        root = g.root_of(value)
        while isinstance(root.owner, g.PartOp) and isinstance(whole := g.root_of(root.owner.x).owner, Operation):
            root = whole.results[0]  # rows of what a layer makes
        if root not in self.numbers:
            number = self.numbers[root] = len(self.maps)
            self.maps.append(
                Map(number, value_bytes(root), None, is_constant=isinstance(root.owner, g.WeightOp))
            )
        return self.numbers[root]

    def node(self, i: int) -> LayerNode:
        """A layer with what it reads; its weights, unless another layer makes them."""
        op, layer = self.ops[i], self.layers[i]
        reads = [] if layer is None else [self.read(i, op.operands[m.index], m) for m in layer.maps]
        taken = set() if layer is None else {m.index for m in layer.maps}
        weights = vectors = 0
        for k, value in enumerate(op.operands):
            if k in taken:
                continue
            if layer is None or not isinstance(value.owner, g.WeightOp):
                is_factor = layer is not None and k == layer.weight and layer.kind.is_batched
                dims = dims_of(value, layer.out_dims[0] if is_factor and layer is not None else None)
                whole = (Whole(dims[ROWS]), Whole(dims[COLUMNS]))
                read = Read(self.map_of(value), False, dims, element_bytes(value), *whole, by_image=is_factor)
                reads.append(read)
            elif k == layer.weight:
                held, of_raw = layer.held
                weights += ceil_div(value_bytes(value) * held, of_raw)
            else:
                vectors += value_bytes(value)
        for read in reads:
            users = self.maps[read.map].users
            if not users or users[-1] != i:
                users.append(i)
            self.maps[read.map].needs_dram |= not read.joins
        is_batched = layer is not None and layer.kind.is_batched and not layer.is_matrix
        return LayerNode(op, layer, tuple(reads), weights, vectors, is_batched)

    def read(self, i: int, value: SSAValue, operand: MapOperand) -> Read:
        """How a layer reads a map: as it was made, or in another form."""
        number, dims = self.map_of(value), operand.dims
        maker = self.layers[number] if number < len(self.layers) else None
        joins = (
            maker is not None
            and value == self.ops[number].results[0]
            and same_form(dims, operand.view, maker.out_dims, maker.out_view)
        )
        rows, columns = operand.access[ROWS], operand.access[COLUMNS]
        own = self.layers[i]
        images = operand.access[0]
        if own is not None and not joins and isinstance(images, Axis) and images == Axis(low=images.low):
            dims, images = replaced(dims, 0, min(dims[0], own.out_dims[0])), Axis()  # no more is loaded
        is_same = images == Axis() and (own is None or dims[0] == own.out_dims[0])
        by_image = is_same or dims[0] == 1
        channels = channels_of(operand, own)
        images_mix = not by_image and isinstance(images, Axis) and images.den == 1
        by_channel = own is not None and operand.access[1] == Axis() and dims[1] == own.out_dims[1]
        size, in_rows = operand.element_bytes, operand.view.strides[COLUMNS] == 1
        return Read(number, joins, dims, size, rows, columns, channels, by_image, images_mix, by_channel, in_rows)


def channels_of(operand: MapOperand, layer: Layer | None) -> tuple[int, int]:
    """The channels of an operand that all of a layer's result needs."""
    axis, count = operand.access[1], operand.dims[1]
    if layer is None or isinstance(axis, Whole):
        return 0, count
    first = max(0, axis.low)
    return first, max(first + 1, min(axis.low + axis.extent(layer.out_dims[1]), count))


def dims_of(value: SSAValue, images: int | None = None) -> Extents:
    """Four dimensions of any tensor, for reads of the whole; of one with a part for each of so many images these."""
    shape = g.shape_of(value)
    if images is not None:
        return images, math.prod(shape) // images, 1, 1
    return (*[1] * (4 - len(shape)), *shape) if len(shape) <= 4 else (1, 1, 1, math.prod(shape))


def rates_of(nodes: Sequence[LayerNode], count: int, d: int) -> tuple[list[Fraction], set[tuple[int, int]]]:
    """Positions of every map along a dimension for one of the first map of its part of the network, and the reads
    that disagree."""
    ways: list[list[tuple[int, Fraction, tuple[int, int]]]] = [[] for _ in range(count)]
    for k, node in enumerate(nodes):
        for read in node.reads:
            axis = read.rows if d == ROWS else read.columns
            if isinstance(axis, Whole) or node.layer is None:
                continue
            ratio = Fraction(axis.num, axis.den)
            ways[k].append((read.map, ratio, (k, read.map)))
            ways[read.map].append((k, 1 / ratio, (k, read.map)))
    unknown = Fraction(0)
    rates = [unknown] * count
    uneven = set()
    for root in range(count):
        if rates[root] != unknown:
            continue
        rates[root] = Fraction(1)
        waiting = [root]
        while waiting:
            here = waiting.pop()
            for there, ratio, edge in ways[here]:
                rate = rates[here] * ratio
                if rates[there] == unknown:
                    rates[there] = rate
                    waiting.append(there)
                elif rates[there] != rate:
                    uneven.add(edge)
    return rates, uneven


def orders(network: g.NetworkOp, section: Operation | None = None) -> list[list[Operation]]:
    """The order of the file, and where they differ: branch after branch, and level by level; of one section.  In all
    of them the products that make heads stand right before the attention that reads these.  Where policy `optimal` has
    put chunks of maps instead of whole ones, or one image after the other, the order is that in which it has put
    them."""
    ops = heads_together(ops_of_section(network, section))
    if any({PART_OF_SUM, JOINT} & op.attributes.keys() for op in ops):
        return [ops]
    if any(isinstance(op, g.PartOp) for op in network.body.block.ops):
        return [ops]
    position = {op: i for i, op in enumerate(ops)}
    roots = ([g.root_of(operand).owner for operand in op.operands] for op in ops)
    before = [
        sorted({position[r] for r in each if isinstance(r, Operation) and r in position}) for each in roots
    ]
    sizes = [value_bytes(op.results[0]) for op in ops]
    has_weights = [is_layer(op) and layer_of(op).weight is not None for op in ops]
    found = [list(range(len(ops)))]
    for order in (by_branches(before), by_levels(before, at_once(before, sizes, has_weights))):
        if order not in found:
            found.append(order)
    return [heads_together([ops[i] for i in order]) for order in found]


def heads_together(ops: Sequence[Operation]) -> list[Operation]:
    """The operations in the same order, but for products that make heads: right before the attention that alone reads
    them."""
    makers: dict[Operation, list[Operation]] = {}
    for op in ops:
        if isinstance(op, g.AttentionOp):
            made = dict.fromkeys(x.owner for x in (op.q, op.k, op.v) if isinstance(x.owner, (g.MatmulOp, g.ConvOp)))
            own: list[Operation] = [each for each in made if {use.operation for use in each.result.uses} == {op}]
            if own and layers_of([*own, op]).is_by_heads:
                makers[op] = own
    moved = {product for own in makers.values() for product in own}
    return [each for op in ops if op not in moved for each in (*makers.get(op, ()), op)]


def by_branches(before: Sequence[Sequence[int]]) -> list[int]:
    """Each layer as late as its last user allows: a branch is run to its end before the next one starts."""
    used = {b for reads in before for b in reads}
    return behind_operands(before, (last for last in range(len(before)) if last not in used))


def by_levels(before: Sequence[Sequence[int]], first: Sequence[int]) -> list[int]:
    """By the longest way from the inputs; layers that follow another at once stand behind it (`first`: of each layer
    the one that begins such a row)."""
    level: list[int] = []
    for i, reads in enumerate(before):
        level.append(level[first[i]] if first[i] != i else max((level[b] + 1 for b in reads), default=0))
    return behind_operands(before, sorted(range(len(level)), key=lambda i: (level[i], first[i], i)))


def at_once(
    before: Sequence[Sequence[int]], sizes: Sequence[int], has_weights: Sequence[bool]
) -> list[int]:
    """Of each layer the first of the row of layers that it is in: the only reader of a map follows at once where it
    makes less of it, and either has no weights or the map's own maker has made no less: so of a pooling that keeps its
    size and the convolution behind it only the small map is there when others read what both began with."""
    users = [0] * len(before)
    for each in before:
        for b in each:
            users[b] += 1
    first: list[int] = []
    for i, reads in enumerate(before):
        is_next = False
        if len(reads) == 1 and users[reads[0]] == 1 and sizes[i] <= sizes[reads[0]]:
            (made,) = reads
            read = max((sizes[b] for b in before[made]), default=0)
            is_next = not has_weights[i] or sizes[made] >= read
        first.append(first[reads[0]] if is_next else i)
    return first


def behind_operands(before: Sequence[Sequence[int]], wanted: Iterable[int]) -> list[int]:
    """The layers in a wanted order, those that one of them needs before it."""
    order: list[int] = []
    seen = [False] * len(before)
    for last in wanted:
        stack = [(last, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                order.append(node)
            elif not seen[node]:
                seen[node] = True
                stack.append((node, True))
                stack += [(b, False) for b in reversed(before[node])]
    return order
