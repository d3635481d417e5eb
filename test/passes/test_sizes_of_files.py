"""A file cannot ask for memory by naming a size: tensors that no machine holds are refused before they are made."""

import tracemalloc

import numpy as np
import pytest
from mixed_models import model, node

import frustum
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx

LARGE = 100_000
MOST_BYTES = 256 << 20


def i64(*values):
    return np.asarray(values, np.int64)


X = {"x": (1, 3, 9, 9)}
FILES = {
    "a slice of a map": model(
        [node("Pad", ["x", "p"], ["a"]), node("Slice", ["a", "s", "e", "n"], ["y"])],
        X,
        ["y"],
        {"p": i64(0, 0, 0, 0, 0, 0, LARGE, LARGE), "s": i64(1), "e": i64(7), "n": i64(2)},
    ),
    "behind a reshape": model(
        [
            node("Pad", ["x", "p"], ["a"]),
            node("Reshape", ["a", "r"], ["b"]),
            node("Slice", ["b", "s", "e", "n"], ["y"]),
        ],
        {"x": (1, 4, 8, 8)},
        ["y"],
        {
            "p": i64(0, 0, 0, 0, 0, 0, LARGE, LARGE),
            "r": i64(1, 2, 2, -1, LARGE + 8),
            "s": i64(1),
            "e": i64(2),
            "n": i64(2),
        },
    ),
    "tile": model([node("Tile", ["x", "n"], ["y"])], X, ["y"], {"n": i64(200, 200, 200, 200)}),
    "expand": model(
        [node("Expand", ["x", "n"], ["y"])], {"x": (1, 3, 1, 1)}, ["y"], {"n": i64(1, 3, LARGE, LARGE)}
    ),
    "a constant": model(
        [node("ConstantOfShape", ["n"], ["c"]), node("Add", ["x", "c"], ["y"])],
        {"x": (1, 3, 1, 1)},
        ["y"],
        {"n": i64(1, 3, LARGE, LARGE)},
    ),
    "resize": model([node("Resize", ["x", "", "", "n"], ["y"])], X, ["y"], {"n": i64(1, 3, LARGE, LARGE)}),
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("case", FILES)
def test_a_tensor_that_no_machine_holds_is_refused_before_it_is_made(case):
    tracemalloc.start()
    try:
        with pytest.raises(DoesNotFit, match="does not fit: needed"):
            frustum.compile(FILES[case], "edge")
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("count", [2000, 2**40])
def test_a_border_of_the_tensors_own_elements_in_too_many_pieces_is_refused(mode, count):
    proto = model(
        [node("Pad", ["x", "p"], ["y"], mode=mode)],
        {"x": (1, 3, 4, 4)},
        ["y"],
        {"p": i64(0, 0, 0, 0, 0, 0, 0, count)},
        19,
    )
    with pytest.raises(Unsupported, match=f"mode '{mode}' (makes|would make)"):
        import_onnx(proto)


def test_a_range_that_is_too_long_is_not_computed():
    nodes = [
        node("Range", ["z", "n", "o"], ["r"]),
        node("Cast", ["r"], ["f"], to=1),
        node("Add", ["x", "f"], ["y"]),
    ]
    constants = {"z": np.int64(0), "n": np.int64(2**40), "o": np.int64(1)}
    with pytest.raises(Unsupported, match="a range from 0 to 1099511627776 by 1 is too long"):
        import_onnx(model(nodes, {"x": (1,)}, ["y"], constants))
