"""GridSample with a constant grid: numbers are those of onnxruntime and of the reference evaluator of `onnx`."""

import itertools

import numpy as np
import pytest
from judged_models import Judged, node, normal

from frustum.dialects.graph import MatmulOp, WeightOp, shape_of
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.operators import sampling


def sampled(x, grid, judge="onnxruntime", opset=20, **attributes):
    nodes = [node("GridSample", ["x", "g"], ["y"], **attributes)]
    return Judged(nodes, {"x": x}, {"g": grid}, opset=opset, judge=judge)


def random_grid(*shape):
    """A good part of it outside of the map."""
    return np.random.default_rng(shape).uniform(-1.8, 1.8, shape).astype(np.float32)


def straight(rows, columns, size):
    """From one coordinate to another, along each axis."""
    found = np.meshgrid(np.linspace(*columns, size[1]), np.linspace(*rows, size[0]))
    return np.stack(found, -1)[None].astype(np.float32)


WORDS = list(itertools.product(("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1)))


@pytest.mark.parametrize(("mode", "padding", "aligned"), [each for each in WORDS if each[:2] != ("cubic", "border")])
def test_modes(mode, padding, aligned):
    words = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    x, grid = normal(2, 3, 5, 7), random_grid(2, 4, 6, 2)
    for judge in ("onnxruntime", "reference"):
        sampled(x, grid, judge, **words).agrees(rtol=4e-6)


@pytest.mark.parametrize(("mode", "padding", "aligned"), [each for each in WORDS if each[0] != "cubic"])
def test_volumes(mode, padding, aligned):
    words = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    sampled(normal(1, 2, 3, 4, 5), random_grid(1, 2, 3, 4, 3), **words).agrees(rtol=4e-6)


def test_rows():
    sampled(normal(1, 2, 6), random_grid(1, 9, 1), "reference").agrees(rtol=4e-6)


def test_older_words():
    sampled(normal(1, 2, 4, 5), random_grid(1, 3, 4, 2), mode="bicubic", opset=16).agrees(rtol=4e-6)


def test_what_two_evaluators_see_in_two_ways():
    words = {"mode": "cubic", "padding_mode": "border"}
    inside = straight((-0.9, 0.8), (1, -1), (3, 4))
    sampled(normal(1, 2, 5, 7), inside, **words).agrees(rtol=4e-6)
    with pytest.raises(Unsupported, match="'cubic' with padding_mode 'border' outside of the map means one thing to"):
        import_onnx(sampled(normal(1, 2, 5, 7), 2 * inside, **words).proto)


def weights_of(module):
    return sum(np.prod(shape_of(op.result)) for op in module.walk() if isinstance(op, WeightOp))


@pytest.mark.parametrize("is_turned", [False, True])
def test_axes_that_do_not_depend_on_each_other_are_small_products(is_turned):
    grid = straight((-0.9, 0.8), (1, -1), (9, 11))
    grid = np.ascontiguousarray(grid[..., ::-1]) if is_turned else grid
    judged = sampled(normal(1, 3, 16, 20), grid, align_corners=1)
    judged.agrees()
    assert weights_of(import_onnx(judged.proto)) == (16 * 11 + 20 * 9 if is_turned else 16 * 9 + 20 * 11)


def test_a_turn_reads_bands_of_rows():
    sine, cosine = np.sin(0.1), np.cos(0.1)
    grid = straight((-1, 1), (-1, 1), (32, 32)) @ np.float32([[cosine, sine], [-sine, cosine]])
    judged = sampled(normal(1, 2, 32, 32), grid)
    judged.agrees()
    module = import_onnx(judged.proto)
    assert weights_of(module) < 32**4 / 4
    assert len([op for op in module.walk() if isinstance(op, MatmulOp)]) > 1


@pytest.mark.parametrize("target", ["edge", "default"])
def test_on_the_device(target):
    sampled(normal(2, 3, 8, 8), random_grid(2, 5, 4, 2)).runs(target=target)


def test_a_computed_grid():
    nodes = [node("AffineGrid", ["t", "n"], ["g"]), node("GridSample", ["x", "g"], ["y"])]
    constants = {"t": np.float32([[[1, 0.1, 0], [-0.1, 1, 0.2]]]), "n": np.int64([1, 2, 6, 6])}
    Judged(nodes, {"x": normal(1, 2, 6, 6)}, constants, judge="reference").agrees(rtol=4e-6)


def test_what_stays_on_the_host(monkeypatch):
    large = sampled(normal(1, 1, 16, 16), random_grid(1, 16, 16, 2)).proto
    monkeypatch.setattr(sampling, "MOST_WEIGHTS", 1000)
    with pytest.raises(Unsupported, match=r"its grid needs 5\d,\d\d\d weights: at most 1,000 are supported"):
        import_onnx(large)
    with pytest.raises(Unsupported, match="the grid has elements that are infinite or no numbers"):
        import_onnx(sampled(normal(1, 1, 4, 4), np.full((1, 2, 2, 2), np.inf, np.float32)).proto)
