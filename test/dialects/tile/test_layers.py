"""Kinds of layers: their numbers as attributes and back, and that every level knows every kind."""

from __future__ import annotations

import pytest

from frustum.dialects import tile
from frustum.dialects.functions import Arithmetic, Function, Interpolation, Pooling, Reduction, Rounding
from frustum.dialects.isa.program import Act, Scale
from frustum.dialects.tile.layers import KINDS, from_attributes, to_attributes
from frustum.passes.analysis.layer.nest import FORMS
from frustum.passes.lower.unit.layer import instruction
from frustum.runtime.reference import moving  # noqa: F401  (its layers)
from frustum.runtime.reference.layers import OPERATIONS, made

SCALES = (Scale(0.5, 3), Scale(0.25))
LAYERS = (
    tile.ConvLayer((3, 1), (1, 2), (1, 1), 2, 4, (12, 3, 1, 1), 0, Act("clip", -1.0, 6.0), SCALES, 1, -2, "bias"),
    tile.ConvLayer((1, 1), (1, 1), (1, 1), 1, 8, (8, 1, 0, 0), 64),
    tile.PoolLayer(Pooling.AVG, (2, 2), (2, 2), (1, 1), True, (0, 1), (1, 0), Act("relu"), SCALES),
    tile.PoolLayer(Pooling.MAX, (3, 1), (2, 1), (1, 1), False, (1, 0), (1, 0), slices=True),
    tile.LrnLayer(5, 1e-4, 0.75, 1.0),
    tile.ResizeLayer(Interpolation.LINEAR, Rounding.FLOOR, (0.5, 0.5), (0.0, -0.25), SCALES),
    tile.UnaryLayer(Function.LEAKY_RELU, 0.1),
    tile.BinaryLayer(Arithmetic.ADD, Act("relu"), (*SCALES, Scale())),
    tile.SoftmaxLayer(2),
    tile.NormaliseLayer((2, 3), 1e-5, 4),
    tile.NormaliseLayer((1,), 1e-6, rms=True),
    tile.ReduceLayer(Reduction.MEAN, (2, 3), 0.0625, SCALES),
    tile.AttentionLayer(128, 2, 64, 32, 0.125, 30.0, 5),
    tile.AttentionLayer(128, 1, 64, 64, 0.125),
    tile.ShuffleLayer(4),
    tile.StackLayer(3, 2, 1, 1),
    tile.PickLayer((1, 1, 2, 2)),
    tile.BorderLayer(True, (1, 0), (2, 3)),
    tile.WrapLayer((1, 0), (2, 3)),
    tile.DepthToSpaceLayer((2, 3), 1),
    tile.SpaceToDepthLayer((2, 2), 8),
    tile.ConcatLayer(),
)  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: str(layer))
def test_numbers_of_a_layer_round_trip(layer):
    assert from_attributes(str(layer), to_attributes(layer)) == layer


def test_every_kind_is_known_at_every_level():
    assert {type(layer) for layer in LAYERS} == set(KINDS.values())
    computed = [kind for name, kind in KINDS.items() if name != "concat"]
    assert all(made.dispatch(kind) is not made.dispatch(object) for kind in computed)
    of_several = (
        tile.ShuffleLayer, tile.StackLayer, tile.AttentionLayer, tile.PhasesLayer, tile.BorderLayer, tile.WrapLayer,
    )
    lowered = [kind for kind in computed if not issubclass(kind, (*of_several, tile.VectorLayer))]
    assert all(instruction.dispatch(kind) is not instruction.dispatch(object) for kind in lowered)
    assert set(FORMS) <= set(OPERATIONS)
