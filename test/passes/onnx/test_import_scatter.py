"""Moves by constant indices and cumulative sums: numbers are those of onnxruntime, moved ones to the bit."""

import itertools

import numpy as np
import pytest
from judged_models import Judged, node, normal

import frustum
from frustum.dialects.graph import ConcatOp, InterleaveOp
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.operators.scatter import Picks


def grid(*places):
    """Indices of all pairs of places."""
    return np.stack(np.meshgrid(*places, indexing="ij"), -1).astype(np.int64)


def random_indices(shape, end, seed=0):
    return np.random.default_rng(seed).integers(-end, end, shape)


def put(indices, x, updates, **attributes):
    return Judged([node("ScatterND", ["x", "i", "u"], ["y"], **attributes)], {"x": x, "u": updates}, {"i": indices})


EVERY_SECOND = grid([0], np.arange(8), np.arange(4), np.arange(0, 32, 2))
BLOCK = grid([0], np.arange(1, 7, 2), [1, 2], np.arange(5, 30, 3))
PUTS = {
    "every second column": (EVERY_SECOND, (1, 8, 4, 32)),
    "a block inside": (BLOCK, (1, 8, 4, 32)),
    "all": (grid(np.arange(4), np.arange(3)), (4, 3, 2)),
    "rows from the end": (np.int64([[-1], [2], [0]]), (8, 5)),
    "places that are no pairs": (np.int64([[1, 2], [7, -1], [0, 0], [3, 3]]), (8, 5, 3)),
    "a row several times": (np.int64([[1], [3], [1], [0], [1]]), (8, 5)),
    "one element": (np.int64([2, 1]), (3, 4)),
    "an odd number of columns": (grid(np.arange(3), np.arange(1, 9, 2)), (3, 9)),
    "pairs in another order": (grid([3, 1, 2], [4, 0]), (5, 6, 2)),
}


@pytest.mark.parametrize("name", PUTS)
def test_scatter_of_rows(name):
    indices, shape = PUTS[name]
    updates = normal(*indices.shape[:-1], *shape[indices.shape[-1] :], seed=1)
    put(indices, normal(*shape), updates).agrees(rtol=0)


def test_scatter_of_nothing():
    for op, indices in (("ScatterND", np.zeros((0, 1), np.int64)), ("ScatterElements", np.zeros((0, 4), np.int64))):
        own = node(op, ["x", "i", "u"], ["y"])
        Judged([own], {"x": normal(3, 4)}, {"i": indices, "u": normal(0, 4)}).agrees(rtol=0)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_scatter_that_combines(reduction):
    """Also several updates of one element."""
    put(np.int64([[1], [3], [1], [0], [1]]), normal(8, 5), normal(5, 5), reduction=reduction).agrees()
    put(BLOCK, normal(1, 8, 4, 32), normal(*BLOCK.shape[:-1]), reduction=reduction).agrees()
    indices = np.int64([[1, 3, 1, -1], [0, 0, 2, 4]])
    own = node("ScatterElements", ["x", "i", "u"], ["y"], axis=1, reduction=reduction)
    Judged([own], {"x": normal(3, 5), "u": normal(2, 4)}, {"i": indices}).agrees()


def test_every_second_column_is_interleaved():
    """Two parts, however many columns there are."""
    module = import_onnx(put(EVERY_SECOND, normal(1, 8, 4, 32), normal(1, 8, 4, 16)).proto)
    (woven,) = [op for op in module.walk() if isinstance(op, InterleaveOp)]
    assert len(woven.parts) == 2
    assert not [op for op in module.walk() if isinstance(op, ConcatOp)]


def test_one_pattern_along_an_axis_is_one_run_for_each_of_its_places():
    picks = Picks.of(np.int64([0, 8, 1, 9, 2, 10]))
    assert [picks.every(2, first).runs() for first in (0, 1)] == [[(0, 0, 3, 1)], [(0, 8, 3, 1)]]
    assert Picks(np.int64([0, 0, 1, 1]), np.int64([4, 3, 2, 1])).runs() == [(0, 4, 2, -1), (1, 2, 2, -1)]
    assert Picks.of(np.int64([5, 5, 6])).runs() == [(0, 5, 1, 1), (0, 5, 2, 1)]


ELEMENTS = {
    "of whole rows": ((2, 3, 6, 5), -2, np.broadcast_to(np.int64([4, 0, 2])[:, None], (2, 3, 3, 5)).copy()),
    "of one axis": ((6,), 0, np.int64([5, 0, -3])),
    "fewer along the others": ((4, 5, 3), 1, np.broadcast_to(np.int64([4, 1])[:, None], (2, 2, 2)).copy()),
    "of their own in each row": ((3, 5), 1, np.int64([[1, 3, 0], [-1, 0, 2]])),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name):
    shape, axis, indices = ELEMENTS[name]
    scatter = node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis)
    Judged([scatter], {"x": normal(*shape), "u": normal(*indices.shape)}, {"i": indices}).agrees(rtol=0)
    gather = node("GatherElements", ["x", "i"], ["y"], axis=axis)
    Judged([gather], {"x": normal(*shape)}, {"i": indices}).agrees(rtol=0)


GATHERS = {
    "pairs": ((4, 5, 6), np.int64([[0, 1], [3, -1], [2, 2]]), 0),
    "a block": ((4, 5, 6), grid([0, 2], [1, 3, 4]), 0),
    "one element": ((4, 5, 6), np.int64([1, 2, 3]), 0),
    "of each image": ((3, 5, 6), random_indices((3, 4, 1), 5), 1),
    "of two batches": ((2, 2, 5, 6), random_indices((2, 2, 3, 2), 5), 2),
    "twice the columns": ((1, 1, 4, 64), grid([0], [0], np.arange(4), np.repeat(np.arange(32), 2)), 0),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gather_of_rows(name):
    shape, indices, batch = GATHERS[name]
    own = node("GatherND", ["x", "i"], ["y"], batch_dims=batch)
    Judged([own], {"x": normal(*shape)}, {"i": indices}).agrees(rtol=0)


def test_on_the_device():
    nodes = [
        node("ScatterND", ["x", "i", "u"], ["s"]),
        node("GatherElements", ["s", "e"], ["g"], axis=3),
        node("Trilu", ["g"], ["t"], upper=0),
        node("CumSum", ["t", "a"], ["y"], reverse=1),
    ]
    indices = grid([0], np.arange(2), np.arange(4), np.arange(0, 16, 2))
    elements = np.broadcast_to(np.int64([4, 0, 2, 7]), (1, 2, 4, 4)).copy()
    inputs = {"x": normal(1, 2, 4, 16), "u": normal(1, 2, 4, 8)}
    Judged(nodes, inputs, {"i": indices, "e": elements, "a": np.int64(-2)}).runs()


def test_in_a_branch_that_is_known_and_in_f16():
    from onnx import TensorProto, helper

    outputs = [helper.make_tensor_value_info("b", TensorProto.FLOAT16, None)]
    branches = [
        helper.make_graph([node("Trilu", ["x"], ["b"], upper=upper)], f"g{upper}", [], outputs) for upper in (0, 1)
    ]
    nodes = [node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])]
    Judged(nodes, {"x": normal(4, 6).astype(np.float16)}, {"c": np.asarray(True)}).agrees(rtol=0)


def test_computed_indices():
    """They are constants after all."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["n"]), node("Range", ["zero", "n", "two"], ["r"]),
        node("Unsqueeze", ["r", "last"], ["i"]), node("Transpose", ["x"], ["t"]),
        node("ScatterND", ["t", "i", "u"], ["y"]),
    ]  # fmt: skip
    constants = {"one": np.int64(1), "zero": np.int64(0), "two": np.int64(2), "last": np.int64([1])}
    Judged(nodes, {"x": normal(3, 8), "u": normal(4, 3)}, constants).agrees(rtol=0)


@pytest.mark.parametrize(("upper", "k"), list(itertools.product((0, 1), (None, -2, 1, 9))))
def test_triangles(upper, k):
    """What is cut off does no harm, be it infinite."""
    x = normal(2, 5, 7)
    x[0, 0, 5], x[1, 4, 0] = np.inf, np.nan
    own = node("Trilu", ["x"] if k is None else ["x", "k"], ["y"], upper=upper)
    Judged([own], {"x": x}, {} if k is None else {"k": np.int64(k)}).agrees(rtol=0)


@pytest.mark.parametrize("shape", [(13, 16), (1, 1), (2, 3, 4, 5)])
@pytest.mark.parametrize(("exclusive", "reverse", "axis"), list(itertools.product((0, 1), (0, 1), (0, -1))))
def test_cumulative_sums(shape, exclusive, reverse, axis):
    x = normal(*shape)
    x.flat[-1] = np.inf
    own = node("CumSum", ["x", "a"], ["y"], exclusive=exclusive, reverse=reverse)
    Judged([own], {"x": x}, {"a": np.int64(axis)}).agrees()


@pytest.mark.parametrize("extent", [37, 64, 120, 211, 1000])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_longer_sums(extent, exclusive, reverse):
    """Whole numbers, which are exact however they are added."""
    x = np.random.default_rng(extent).integers(-9, 9, (2, extent, 3)).astype(np.float32)
    own = node("CumSum", ["x", "a"], ["y"], exclusive=exclusive, reverse=reverse)
    Judged([own], {"x": x}, {"a": np.int64(1)}).agrees(rtol=0)


def test_what_stays_on_the_host():
    indices = np.random.default_rng(0).permutation(1000)[:600, None]
    own = put(indices, normal(1000, 3), normal(600, 3)).proto
    with pytest.raises(Unsupported, match="its indices make more than 256 runs: at most so many are supported"):
        frustum.compile(own, host="never")
    own = put(np.zeros((17, 1), np.int64), normal(3, 2), normal(17, 2), reduction="add").proto
    with pytest.raises(Unsupported, match="17 updates of one element are not supported: at most 16 are"):
        frustum.compile(own, host="never")
