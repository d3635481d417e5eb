"""Norms of planes that do not fit SRAM are made where they are read; the numbers are right."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from searches import with_sram
from stops import modules_at_stops, run_module
from xdsl.dialects.builtin import DenseArrayBase, i64

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.module import FORM
from frustum.dialects.unit import UnitOp
from frustum.passes.plan.network.hidden_chunks import PartWriter
from frustum.passes.plan.network.optimal import plan_network
from frustum.passes.plan.network.trials.norms_apart import norms_apart, put
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import network_of

pytestmark = pytest.mark.slow

CHANNELS, SIZE = 32, 48
TOLERANCE = {"f32": 2e-5, "f16": 6e-3, "bf16": 6e-2}


def block(axes=(1, 2, 3), groups=8, *, numbers=False):
    """A norm of planes with a function, a convolution of that, and the sum with what was normalised."""
    net = Net()
    x = net.input(1, CHANNELS, SIZE, SIZE)
    scale = net.input(CHANNELS, 1, 1) if numbers else net.weight(CHANNELS, 1, 1)
    norm = g.NormaliseOp(x, scale, net.weight(CHANNELS, 1, 1), axes=axes, epsilon=1e-5, groups=groups)
    weights = net.weight(CHANNELS, CHANNELS, 3, 3, scale=(9 * CHANNELS) ** -0.5)
    made = net.layer(g.ConvOp(net.unary("silu", net.layer(norm)), weights, None, (1, 1), (1,) * 4, (1, 1), residual=x))
    return net.module(made)


WHERE = [("edge", 64, "f32"), ("default", 48, "f16"), ("default", 48, "bf16")]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "kib", "dtype"), WHERE)
@pytest.mark.parametrize("norm", [{}, {"axes": (2, 3), "groups": 1}])
def test_what_does_not_fit_is_normalised_where_it_is_read(norm, name, kib, dtype):
    module, given = block(**norm)
    found = modules_at_stops(module, with_sram(name, kib), Choices(dtype=dtype))
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    assert not any(isinstance(op, g.NormaliseOp) for op in found["fused"].walk())
    last = [type(op) for op in units[-1].body.block.ops]
    assert g.ConvOp in last and g.BinaryOp in last
    (wanted,) = run_module(module, given).values()
    for stop in ("fused", "placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.soak
@pytest.mark.parametrize(("dtype", "kib"), [("f16", 40), ("f32", 72)])
def test_shares_of_an_input_that_is_normalised_stay_in_the_clusters(dtype, kib):
    """SRAM has room for a quarter of the input, and not for as much of what is made of it, too."""
    net, shape = Net(), (1, 16, 32, 64)
    norm = g.NormaliseOp(
        net.input(*shape), net.weight(16, 1, 1), net.weight(16, 1, 1), axes=(1, 2, 3), epsilon=1e-5, groups=4
    )  # fmt: skip
    made = net.conv(net.unary("silu", net.layer(norm)), 16, pads=(1, 1, 1, 1))
    module, given = net.module(made)
    found = modules_at_stops(module, with_sram("default", kib), Choices(dtype=dtype))
    units = [op for op in found["tiled"].walk() if isinstance(op, UnitOp)]
    first, last = units[0], units[-1]
    assert first.keeps is not None and first.results[0] in last.operands
    assert {g.BinaryOp, g.ConvOp} < {type(op) for op in last.body.block.ops}
    (wanted,) = run_module(module, given).values()
    (got,) = run_module(found["fixed"], given, checked=True).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


def test_what_fits_stays_one_layer():
    found = modules_at_stops(block()[0], with_sram("edge", 2048), Choices(dtype="f16"))
    assert any(isinstance(op, g.NormaliseOp) for op in found["fused"].walk())


@pytest.mark.parametrize("is_by_rows", [False, True])
@pytest.mark.parametrize(("numbers", "count"), [(False, 1), (True, 0)])
def test_norms_that_leave_their_unit_are_taken_apart_and_that_is_undone(numbers, count, is_by_rows):
    """Not where numbers of the network scale them."""
    machine = with_sram("edge", 160)
    module = modules_at_stops(block(numbers=numbers)[0], machine, Choices(dtype="f16"))["typed"]
    network = network_of(module)
    plan = plan_network(network, machine)
    before = str(network)
    made = norms_apart(plan.order, plan.units, module, 160 << 10, is_by_rows=is_by_rows)
    assert (len(made), str(network) != before) == (count, bool(count))
    for each in made:
        each.undo()
    assert str(network) == before


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_form_of_a_norm_of_other_axes_is_not_that_of_its_planes(rank):
    """A line of tokens is one row of a plane, which has an axis more."""
    net = Net()
    x = net.conv(net.input(1, 1, 1, 8), 2, kernel=(1, 3), pads=(0, 1, 0, 1))
    line = net.layer(g.ReshapeOp(x, (1, 2, *(1,) * (rank - 3), 8)))
    norm = net.layer(g.NormaliseOp(line, axes=tuple(range(1, rank)), epsilon=1e-5))
    norm.owner.attributes[FORM] = DenseArrayBase.from_list(i64, (0, 3, *(3,) * (rank - 3), 1)[:rank])
    module = net.module(norm)[0]
    made = [op for op in network_of(module).body.block.ops if isinstance(op, g.NormaliseOp)]
    put(made[0], PartWriter(made[0], store_of(module)), is_by_rows=False)
    layers = [op for op in network_of(module).body.block.ops if not isinstance(op, g.WeightOp | g.OutputOp)]
    assert any(isinstance(op, g.ReduceOp) for op in layers)
    for op in layers:
        form = op.attributes.get(FORM)
        assert form is None or len(form) == max(len(g.shape_of(x)) for x in (*op.operands, *op.results))
