"""Depthwise layers that both units of a core share: which, that both end together, and that readers wait for both."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import check_agreement
from happens_before import check
from networks import Net
from stops import modules_at_stops, run_module
from stops import target as machine

from frustum.backend.pipeline import Choices
from frustum.dialects import tile as t
from frustum.dialects.isa.operations import ConvOp, CopyOp, DepthwiseOp
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.project import unit_layers
from frustum.passes.plan.layer_work import work_of
from frustum.passes.plan.model import SHARED_GAIN
from frustum.passes.plan.piece_cycles import share_of_matrix
from frustum.passes.plan.piece_extents import IN_TURN, dealt_along
from frustum.passes.plan.pieces import best_piece, plan_layer
from frustum.passes.plan.product_pieces import SharedProductPieces, VectorProductPieces


def alone(net, size):
    """7x7 of 32 channels, by itself."""
    return net.conv(net.input(1, 32, size, size), 32, 7, groups=32, pads=(3, 3, 3, 3), act="relu")


def in_a_run(net, size):
    """A pointwise layer reads it, piece by piece."""
    return net.conv(alone(net, size), 16, 1)


def behind_another(net, size):
    """It reads what the matrix unit makes, and the vector unit reads it."""
    x = net.conv(net.input(1, 8, size, size), 32, 1, act="relu")
    return net.unary("sigmoid", net.conv(x, 32, 5, groups=32, pads=(2, 2, 2, 2)))


def clipped(net, size):
    """The last pieces have fewer channels than others, and fewer rows."""
    return net.conv(net.input(1, 37, size - 3, size), 37, 7, groups=37, pads=(3, 3, 3, 3), act="silu")


BUILDS = [alone, in_a_run, behind_another, clipped]
SIZES = {"edge": 16, "default": 32}
"""Of maps of which each core has enough."""


def compiled(build, target: str):
    net = Net(1)
    module, inputs = net.module(build(net, SIZES[target]))
    return modules_at_stops(module, target, Choices(dtype="f16")), inputs


def depthwise_of(module):
    layers = [op for op in module.walk() if isinstance(op, t.ComputeOp)]
    return [op for op in layers if isinstance(op.layer, t.ConvLayer) and op.layer.groups > 1]


def own_slots(op) -> set[int]:
    """The counters of its own core that an instruction looks at."""
    return {wait.slot for wait in op.waits.data if wait.scope == "own"}


def program_of(modules) -> ProgramOp:
    (program,) = (op for op in modules["fixed"].walk() if isinstance(op, ProgramOp))
    return program


@pytest.mark.slow
@pytest.mark.soak(but=3)
@pytest.mark.parametrize("target", ["edge", "default"])
@pytest.mark.parametrize("build", BUILDS)
def test_what_both_units_make_is_right_and_nobody_reads_it_before_both_have(build, target):
    """Numbers at every level, no race in the checked run, and every conflict ordered as the oracle sees it."""
    modules, inputs = compiled(build, target)
    (layer,) = depthwise_of(modules["placed"])
    assert layer.map.data.beside
    stops = "typed", "placed", "fixed"
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in stops}
    check_agreement(outputs, "f16")
    chip = machine(target).chip
    assert check(program_of(modules), chip.clusters, chip.cluster.cores)


def test_units_that_share_a_piece_do_not_wait_for_each_other():
    """Each has a counter of its own, which the other does not look at; the store looks at both."""
    modules, _ = compiled(alone, "edge")
    program = program_of(modules)
    (conv,), (depthwise,) = ([op for op in program.walk() if isinstance(op, kind)] for kind in (ConvOp, DepthwiseOp))
    slots = {conv.signal.value.data, depthwise.signal.value.data}
    assert len(slots) == 2 and conv.out is depthwise.out
    for op in (conv, depthwise):
        assert not slots & own_slots(op)
    (store,) = (use.operation for use in conv.out.owner.buffer.uses if isinstance(use.operation, CopyOp))
    assert slots <= own_slots(store)


@pytest.mark.parametrize("kind", [ConvOp, DepthwiseOp])
def test_the_oracle_sees_a_reader_that_waits_for_one_unit_alone(kind):
    modules, _ = compiled(alone, "edge")
    program, chip = program_of(modules), machine("edge").chip
    (made,) = (op for op in program.walk() if isinstance(op, kind))
    (store,) = (use.operation for use in made.out.owner.buffer.uses if isinstance(use.operation, CopyOp))
    slot = made.signal.value.data
    store.set_waits(tuple(wait for wait in store.waits.data if (wait.scope, wait.slot) != ("own", slot)))
    with pytest.raises(AssertionError, match="race of"):
        check(program, chip.clusters, chip.cluster.cores)


@pytest.mark.parametrize(("vector", "matrix"), [(0, 0), (0, 500), (700, 0)])
def test_no_other_share_ends_more_than_a_channel_earlier(vector, matrix):
    for channels, by_vector, by_matrix in [(12, 1200, 1200), (48, 4000, 9000), (3, 90, 200), (64, 100, 6400)]:
        (found,) = share_of_matrix(*(np.array([n]) for n in (channels, by_vector, by_matrix)), vector, matrix)

        def ends(beside, channels=channels, by_vector=by_vector, by_matrix=by_matrix):
            own = vector + by_vector * (channels - beside) / channels
            return max(own, matrix + by_matrix * beside / channels)

        assert 0 <= found < channels
        assert ends(found) <= min(map(ends, range(channels))) + (by_vector + by_matrix) / channels


def depthwise_work(kernel: int, stride: int, channels: int = 144):
    """Of 7 rows and 28 columns of the result."""
    size, net = 28 * stride, Net(1)
    where = {"strides": (stride, stride), "pads": (kernel // 2,) * 4}
    module, _ = net.module(net.conv(net.input(1, channels, size, size), channels, kernel, groups=channels, **where))
    tiled = modules_at_stops(module, "default", Choices(dtype="f16"))["tiled"]
    (unit,) = (op for op in tiled.walk() if isinstance(op, UnitOp))
    return work_of(unit_layers(unit).layers[0], (1, channels, 7, 28))


def fastest(work, target, kind):
    found = (best_piece(work, target, "unit", MAX_LOOPS, dim, kind=kind) for dim in dealt_along(work, IN_TURN))
    return min((each for each in found if each is not None), key=lambda each: each.cycles)


def test_a_shared_piece_takes_what_the_slower_unit_takes():
    work = depthwise_work(kernel=7, stride=1)
    shared = best_piece(work, machine("default"), "unit", MAX_LOOPS - 1, 3, kind=SharedProductPieces)
    assert shared is not None
    x, k = shared.pieces, shared.k
    rest = x.extents[1] - x.beside
    assert 0 < x.beside[k] < x.extents[1][k]
    assert x.computing()[k] == max(x.by_vector(rest)[k], -(-x.by_matrix[k] * x.beside[k] // x.extents[1][k]))


@pytest.mark.parametrize(("kernel", "stride", "is_shared"), [(7, 1, True), (3, 2, False)])
def test_both_units_share_what_is_clearly_faster_so(kernel, stride, is_shared):
    """A large kernel is; where little is computed for what is copied, round trips of pieces show instead."""
    work, seen = depthwise_work(kernel, stride), machine("default")
    plan = plan_layer(work, seen, "unit", MAX_LOOPS)
    assert plan is not None and bool(plan.map.beside) == is_shared
    kinds = VectorProductPieces, SharedProductPieces
    alone, both = (fastest(work, seen, kind) for kind in kinds)
    assert (both.own_cycles < SHARED_GAIN * alone.own_cycles) == is_shared
