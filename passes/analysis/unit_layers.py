# Tests: test/passes/graph/test_choose_layout.py
"""The layers of a unit, where their operands come from, which of its maps lie side by side in one buffer, in which
order the elements of maps between units lie in DRAM (noted on the unit that makes the map)."""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias, get_args

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, OpResult, SSAValue

from frustum.dialects.extents import Extents
from frustum.dialects.graph import WeightOp, shape_of
from frustum.dialects.isa.tables import address_table as at
from frustum.dialects.module import LAYOUT
from frustum.dialects.tile import AttentionLayer, ConvLayer, TensorView, TileType
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import Layer, layer_of

MOST_UNITS = 512
"""Of which regions are kept; a network of 500 layers has as many different ones, with some ten kilobytes each."""


class Unprojectable(Exception):
    """A unit that cannot be cut in this way; says why."""


@dataclass(frozen=True)
class Source:
    """Where a map operand of a layer comes from: layer `layer` of the unit, or its input number `input`."""

    layer: int | None
    value: SSAValue
    input: int | None = None


@dataclass(frozen=True)
class Input:
    """A map that a unit reads: a tensor seen as four dimensions; a `resident` one is in SRAM already."""

    value: SSAValue
    dims: Extents
    view: TensorView
    element_bytes: int
    resident: bool = False
    first_column: int = 0
    """Columns of the tensor before the map (a band of it, `roll.py`)."""


@dataclass(frozen=True)
class UnitLayers:
    """The layers of a unit in order, where their map operands come from, and the layers whose maps leave the unit.

    Maps have numbers: layer j's output is number j, input k follows the layers (`number_of`).
    """

    ops: tuple[Operation, ...]
    layers: tuple[Layer, ...]
    sources: tuple[tuple[Source, ...], ...]
    inputs: tuple[Input, ...] = ()
    stored: tuple[int, ...] = ()
    kept: frozenset[int] = frozenset()
    """Layers, among those whose maps leave the unit, whose maps stay in SRAM."""

    @property
    def out(self) -> Layer:
        return self.layers[-1]

    def number_of(self, source: Source) -> int:
        """The number of the map that an operand is."""
        return source.layer if source.layer is not None else len(self.layers) + (source.input or 0)

    def dims_of(self, number: int) -> Extents:
        """Extents of a map by its number."""
        count = len(self.layers)
        return self.layers[number].out_dims if number < count else self.inputs[number - count].dims

    def bytes_of(self, number: int) -> int:
        """Bytes of an element of a map by its number."""
        count = len(self.layers)
        return self.layers[number].out_bytes if number < count else self.inputs[number - count].element_bytes

    @cached_property
    def projected(self) -> dict[Hashable, object]:
        """Regions of its maps for one tile, by how the unit is cut, as `project` has found them before, of this unit or
        of another whose layers are equal and read each other alike, of whatever network."""
        sources = tuple(tuple((s.layer, s.input) for s in own) for own in self.sources)
        inputs = tuple((x.dims, x.view, x.element_bytes, x.resident, x.first_column) for x in self.inputs)
        return projected_before(self.layers, sources, inputs, self.stored, self.kept)

    @cached_property
    def consumers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of each layer: which layers read it, as which map operand."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.layers]
        for j, sources in enumerate(self.sources):
            for k, source in enumerate(sources):
                if source.layer is not None:
                    found[source.layer].append((j, k))
        return tuple(tuple(each) for each in found)

    def last_use(self, layer: int) -> int:
        """The last layer that reads this one's output (its own number where none does)."""
        return max((j for j, _ in self.consumers[layer]), default=layer)

    @cached_property
    def is_by_heads(self) -> bool:
        """Products of single positions, and attention that alone reads them: any heads of it need their channels of
        these, and of what the products read all."""
        *products, out = self.layers
        if not products or not isinstance(out.kind, AttentionLayer) or out.kind.is_batched:
            return False
        if self.stored != (len(products),):
            return False
        return all(makes_heads(x) for x in products) and all(
            readers and all(j == len(products) for j, _ in readers) for readers in self.consumers[:-1]
        )

    @cached_property
    def other_form(self) -> tuple[int, int] | None:
        """A layer, and one whose map it reads in other dimensions than this one makes it."""
        for j, (layer, sources) in enumerate(zip(self.layers, self.sources, strict=True)):
            for operand, source in zip(layer.maps, sources, strict=True):
                if source.layer is not None:
                    made = self.layers[source.layer]
                    if not same_form(operand.dims, operand.view, made.out_dims, made.out_view):
                        return j, source.layer
        return None

    @cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """Of maps that lie in a concatenation's buffer: the concatenating layer and its operand; the first one, if it
        is an operand of several (the others get a copy, as does what has a place of its own after the unit)."""
        found: dict[int, tuple[int, int]] = {}
        for j, (layer, sources) in enumerate(zip(self.layers, self.sources, strict=True)):
            if layer.kind.is_place:
                for k, source in enumerate(sources):
                    has_place = source.layer in self.kept
                    if source.layer is None:
                        has_place = self.inputs[source.input or 0].resident
                    if not has_place:
                        found.setdefault(self.number_of(source), (j, k))
        return found

    def root(self, number: int) -> int:
        """The map in whose buffer a map lies: the outermost concatenation, or itself."""
        while number in self.places:
            number = self.places[number][0]
        return number

    @cached_property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """Maps of several in one buffer, by the outermost concatenation, which is among them."""
        found: dict[int, list[int]] = {}
        for number in self.places:
            root = self.root(number)
            found.setdefault(root, [root]).append(number)
        return {root: tuple(members) for root, members in found.items()}


@lru_cache(maxsize=MOST_UNITS)
def projected_before(*unit: Hashable) -> dict[Hashable, object]:
    """What is known of equal units."""
    return {}


def makes_heads(layer: Layer) -> bool:
    """Whether a layer is a product whose channels are made apart, each with weights of its own."""
    kind = layer.kind
    is_plain = isinstance(kind, ConvLayer) and kind.groups == 1 and kind.kernel == (1, 1) and kind.strides == (1, 1)
    return is_plain and not kind.is_batched and len(layer.maps) == 1


def same_form(dims: Extents, view: TensorView, other_dims: Extents, other: TensorView) -> bool:
    """Whether two ways to see a tensor as four dimensions are one; strides of single positions say nothing."""
    return dims == other_dims and without_single_strides(view, dims) == without_single_strides(other, dims)


def without_single_strides(view: TensorView, dims: Extents) -> TensorView:
    """The view with stride 0 where there is one position, so that views of the same elements are equal."""
    strides = tuple(0 if e == 1 else s for e, s in zip(dims, view.strides, strict=True))
    return TensorView(view.offset, strides, view.block)


def layers_of(
    ops: Sequence[Operation],
    outputs: Sequence[SSAValue] | None = None,
    resident: Container[SSAValue] = (),
    kept: Collection[SSAValue] = (),
) -> UnitLayers:
    """The operations of a unit as layers; weights are not layers.

    `outputs` are the values that leave it (by default the last operation's result), those in `kept` to stay
    in SRAM, `resident` the inputs in SRAM.
    Raises `Unprojectable` for outputs that are no layer's.
    """
    ops = tuple(op for op in ops if not isinstance(op, WeightOp))
    number: dict[SSAValue, int] = {op.results[0]: i for i, op in enumerate(ops)}
    layers = tuple(layer_of(op) for op in ops)
    places: dict[tuple[SSAValue, Extents, TensorView], int] = {}
    inputs: list[Input] = []
    sources = []
    for op, layer in zip(ops, layers, strict=True):
        own = []
        for m in layer.maps:
            value = op.operands[m.index]
            place = None
            if value not in number:
                key = value, m.dims, without_single_strides(m.view, m.dims)
                place = places.setdefault(key, len(inputs))
                if place == len(inputs):
                    inputs.append(Input(value, m.dims, m.view, m.element_bytes, value in resident))
            own.append(Source(number.get(value), value, place))
        sources.append(tuple(own))
    if outputs is not None and any(v not in number for v in outputs):
        raise Unprojectable("it gives a value that none of its layers makes")
    stored = (len(ops) - 1,) if outputs is None else tuple(dict.fromkeys(number[v] for v in outputs))
    return UnitLayers(
        ops,
        layers,
        tuple(sources),
        tuple(inputs),
        stored,
        frozenset(number[v] for v in kept),
    )


def unit_layers(unit: UnitOp) -> UnitLayers:
    end = unit.body.block.last_op
    assert end is not None
    pairs = zip(unit.body.block.args, unit.operands, strict=True)
    resident = {inner for inner, outer in pairs if is_resident(outer)}
    ops = [op for op in unit.body.block.ops if op is not end]
    kept = [end.operands[number] for number in unit.kept]
    return layers_of(ops, list(end.operands), resident, kept)


def is_resident(value: SSAValue) -> bool:
    """Whether a map between units stays in SRAM."""
    if isinstance(value.type, TileType):
        return True
    owner = value.owner
    return isinstance(owner, UnitOp) and isinstance(value, OpResult) and value.index in owner.kept


BLOCK = 16
"""Channels of a block of `nchwc`: with 4 bytes each, the least run of DRAM that costs no more than its bytes."""

LayoutName: TypeAlias = Literal["nchw", "nhwc", "cnhw", "nchwc"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)


def view_in(layout: str, shape: Extents) -> TensorView:
    """How a map of four dimensions lies in memory."""
    n, c, h, w = shape
    made = {
        "nchw": lambda: at.nchw(c, h, w),
        "nhwc": lambda: at.nhwc(c, h, w),
        "cnhw": lambda: at.cnhw(n, h, w),
        "nchwc": lambda: at.nchwc(c, h, w, BLOCK),
    }[layout]()
    return TensorView(0, (made.n, made.c, made.h, made.w), max(1, made.block))


def layout_of(value: SSAValue | None) -> str:
    """The layout of a tensor."""
    owner = value.owner if isinstance(value, OpResult) else None
    noted = owner.attributes.get(LAYOUT) if owner is not None else None
    return noted.data if isinstance(noted, StringAttr) else "nchw"


def view_of(value: SSAValue | None, usual: TensorView) -> TensorView:
    """How a tensor lies in memory: as its layout says, `usual` where that is nchw."""
    layout = layout_of(value)
    if layout == "nchw":
        return usual
    assert value is not None
    return view_in(layout, shape_of(value))
