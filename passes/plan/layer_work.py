# Tests: test/passes/plan/test_piece_cycles.py
"""What the search for pieces must know of a layer, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frustum.dialects.extents import Extents
from frustum.dialects.graph import Function
from frustum.dialects.isa.program import Scale
from frustum.dialects.target import VectorUnit
from frustum.dialects.target.durations import Steps, vector_passes
from frustum.dialects.tile import (
    Access,
    AttentionLayer,
    ConvLayer,
    NormaliseLayer,
    PhasesLayer,
    ShuffleLayer,
    StackLayer,
    SubMap,
    UnaryLayer,
    Whole,
    WrapLayer,
)
from frustum.passes.analysis.layer import SAME4, Layer, MapOperand

SUM_BYTES = 4
"""Of the sums of floats."""


@dataclass(frozen=True)
class LayerWork:
    """A layer on a region (hashable, so that equal layers are planned once)."""

    is_matrix: bool
    extent: Extents
    accesses: tuple[Access, ...]
    map_bytes: tuple[int, ...]  # of an element of each map
    out_bytes: int
    whole: tuple[int, ...] = ()
    align: Extents = (1, 1, 1, 1)
    kernel: Extents = (1, 1)
    strides: Extents = (1, 1)
    channels: int = 0
    one_image: bool = False
    """Every image has its own weights."""
    groups: int = 1
    group_outputs: int = 1
    weight_bytes: int = 4
    channel_bytes: tuple[int, ...] = ()
    multiplies_nothing: bool = True
    """On the way out, where numbers are no integers that a multiplier must fit."""
    accumulator_bytes: int = 4
    steps: Steps = ()
    """Of the vector unit; a product that has some can be computed there."""
    reduced: tuple[int, ...] = ()
    may_compact: bool = False
    """The copy into a core may leave out what the strides leave out."""
    may_add_sums: bool = False
    """Input channels may be dealt to the cores, which then add their sums: of floats, of a map of one image."""
    owned: int | None = None
    """The dimension along which each core has one part, the same in all layers of a unit."""
    are_outputs_apart: bool = True  # the weights of an output channel follow each other in DRAM
    has_images: bool = False
    """The map has several images."""
    run: tuple[int, int] = (1, 1)
    """Input channels of a piece are a multiple of the first and no fewer than the second, or all."""
    attention: AttentionLayer | None = None
    """Its numbers, where it is attention."""


@dataclass(frozen=True)
class LayerPlan:
    """A layer's sub-map and its modelled cycles for one region."""

    map: SubMap
    cycles: float
    stream_bytes: int = 0
    """SRAM bytes for streamed weights (both copies); 0 where they stay."""
    core_bytes: int = 0
    """WRAM bytes of a core for weights that stay there."""
    core_cycles: float | None = None
    """The cycles without what is waited for weights from DRAM; None: they are the same."""

    @property
    def own_cycles(self) -> float:
        """Cycles of the cores, as if all weights were in SRAM."""
        return self.cycles if self.core_cycles is None else self.core_cycles


def work_of(layer: Layer, extent: Extents, *, in_ring: bool = True, whole: tuple[int, ...] = ()) -> LayerWork:
    """The search's view of a layer whose region has these extents (of the input for reductions); `in_ring`: whether
    its operand may lie in a ring; `whole`: more dimensions that are not cut."""
    p = layer.kind
    accesses = (SAME4,) if isinstance(p, WrapLayer) else tuple(m.access for m in layer.maps)
    sizes = tuple(m.element_bytes for m in layer.maps)
    uncut = (*layer.axes_all, *whole)
    common = (isinstance(p, ConvLayer), extent, accesses, sizes, layer.out_bytes, uncut, layer.align)
    if isinstance(p, AttentionLayer):
        return LayerWork(*common, attention=p)
    if not isinstance(p, ConvLayer):
        return LayerWork(*common, steps=layer.steps, reduced=p.reduced)
    return LayerWork(
        *common,
        p.kernel,
        p.strides,
        p.channels,
        p.is_batched,
        p.groups,
        layer.out_dims[1] // p.groups,
        layer.weight_bytes,
        layer.channel_bytes,
        layer.multiplier is None and layer.weight_zero is None,
        layer.accumulator_bytes,
        steps=layer.depthwise_steps,
        may_add_sums=may_add_sums(layer, p),
        may_compact=not in_ring and leaves_out(layer, p),
        are_outputs_apart=p.weight_strides[1] <= p.weight_strides[0],
        has_images=layer.out_dims[0] > 1,
        run=layer.held_run,
    )


def may_add_sums(layer: Layer, conv: ConvLayer) -> bool:
    """Whether its sums are f32, which the vector unit adds, and are of one image and one group."""
    of_floats = layer.weight_bytes > 1 and layer.accumulator_bytes == SUM_BYTES and layer.multiplier is None
    return of_floats and conv.groups == 1 and not conv.is_batched and layer.out_dims[0] == 1


def leaves_out(layer: Layer, conv: ConvLayer) -> bool:
    """Whether a convolution has a kernel of one tap that does not read every position, and no padding."""
    operand = layer.maps[0]
    axes = [axis for axis in operand.access[2:] if not isinstance(axis, Whole)]
    ends = zip(axes, layer.out_dims[2:], operand.dims[2:], strict=False)
    is_plain = len(axes) == 2 and all(
        a.low == 0 and a.den == 1 and (out - 1) * a.num < size for a, out, size in ends
    )
    return conv.kernel == (1, 1) and conv.strides != (1, 1) and is_plain


def copy_of(operand: MapOperand, *, is_integral: bool = False) -> Layer:
    """A layer that only copies an operand; integers stand for themselves."""
    kind = UnaryLayer(Function.IDENTITY, scales=(Scale(), Scale()) if is_integral else None)
    own = replace(operand, index=0, access=SAME4)
    return Layer(kind, operand.dims, operand.view, (own,), out_bytes=operand.element_bytes)


def passes_of(steps: Steps, unit: VectorUnit) -> int:
    """Passes over the elements for all of these steps."""
    return sum(vector_passes(unit, kind, window) for kind, window in steps)


def channels_beside(layer: Layer) -> int:
    """Channels of a copied layer's result that come from as many places: its pieces have multiples of them.  1 where
    each comes from its own (borders)."""
    if isinstance(layer.kind, ShuffleLayer):
        return layer.kind.groups
    return layer.kind.kernel if isinstance(layer.kind, StackLayer) else 1


def can_run(layer: Layer) -> bool:
    """Whether a layer may be in a run: its pieces are of the result, and made of whole groups of channels.  One that
    only moves elements may be the first, and is then no step of its own: its reader's piece is loaded so.  One that
    needs a dimension whole (a softmax) is by itself: pieces of a run may be cut along any."""
    kind = layer.kind
    is_of_others = kind.is_batched or kind.is_place or kind.cuts_operand or kind.reduced
    is_grouped = isinstance(kind, ShuffleLayer | StackLayer | AttentionLayer | NormaliseLayer | PhasesLayer)
    return not (is_of_others or layer.axes_all or is_grouped)


def group_outputs(layer: Layer) -> int:
    """Output channels of each group of a grouped product; 1 of any other layer."""
    kind = layer.kind
    is_grouped = isinstance(kind, ConvLayer) and kind.groups > 1
    return layer.out_dims[1] // kind.groups if isinstance(kind, ConvLayer) and is_grouped else 1
