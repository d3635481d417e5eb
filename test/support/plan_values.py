"""Plans run on values, against every operation on whole arrays and against what `count` says."""

import numpy as np

from frustum.dialects import graph as g
from frustum.dialects.axes.tensor import Kind
from frustum.dialects.plan.count import count
from frustum.passes.weights import store_of
from frustum.runtime.reference.axes import view_array
from frustum.runtime.reference.layers import evaluated, numpy_type
from frustum.runtime.reference.plan import run_plan


def check_values(case, *, rtol=2e-4):
    """`case`: module, inputs, network, axes, views, plan. Every operation's result is what it makes of its operands'
    values; bytes and points are those that are counted."""
    run = run_of(case)
    counted = count(case.axes, case.plan)
    moved, claimed = ((each.read_bytes, each.write_bytes, each.link_bytes) for each in (run, counted))
    assert moved == claimed
    assert dict(run.points) == dict(counted.points)
    assert run.sram_bytes <= counted.sram_bytes
    arrays = given(case) | run.values
    known = {tensor: np.ones(array.shape, bool) for tensor, array in given(case).items()} | run.is_made
    for op in case.network.body.block.ops:
        if not isinstance(op, g.WeightOp | g.OutputOp):
            wanted = evaluated(op, [value_of(case, each, arrays) for each in op.operands])
            found = value_of(case, op.results[0], arrays)
            is_made = view_array(case.views[op.results[0]], known).astype(bool)
            found, wanted = found[is_made], wanted[is_made]
            size = np.abs(wanted[np.isfinite(wanted)].astype(float)).max(initial=1.0)
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * size, err_msg=str(op))
    return run


def run_of(case, **settings):
    arrays = {tensor.name: array for tensor, array in given(case).items()}
    return run_plan(case.axes, case.plan, arrays, **settings)


def given(case):
    """Inputs and weights, as tensors have them."""
    store = store_of(case.module)
    return {
        tensor: np.asarray(case.inputs[tensor.name] if tensor.kind is Kind.INPUT else store[tensor.name])
        for tensor in case.axes.tensors if tensor.kind in (Kind.INPUT, Kind.WEIGHT)
    }  # fmt: skip


def value_of(case, value, arrays):
    found = view_array(case.views[value], arrays)
    return found.astype(numpy_type(g.tensor_of(value).element_type))


def check_outputs(case, wanted, *, rtol=1e-3):
    """The network's outputs are those of another witness; bytes those that are counted."""
    run, counted = run_of(case), count(case.axes, case.plan)
    moved, claimed = ((each.read_bytes, each.write_bytes, each.link_bytes) for each in (run, counted))
    assert moved == claimed
    assert run.sram_bytes <= counted.sram_bytes
    arrays = given(case) | run.values
    (output,) = (op for op in case.network.body.block.ops if isinstance(op, g.OutputOp))
    for value, other in zip(output.operands, wanted, strict=True):
        found = value_of(case, value, arrays)
        np.testing.assert_allclose(found, other, rtol=rtol, atol=rtol * np.abs(other).max())
