"""Attention is found behind the moves that exporters put around it, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from after_pass import after_pass
from networks import Net
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.dialects.graph.attributes import float_array
from frustum.dialects.module import RANGE
from frustum.passes.graph.composites.find_attention import FindAttention
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor

B, T, L, H, D = 2, 5, 7, 4, 6


class Layers(Net):
    """Layers that an exporter writes for attention."""

    def reshape(self, x, *shape):
        return self.layer(g.ReshapeOp(x, shape))

    def transpose(self, x, *perm):
        return self.layer(g.TransposeOp(x, perm))

    def matmul(self, a, b, **rest):
        return self.layer(g.MatmulOp(a, b, **rest))

    def softmax(self, x, axis=None):
        return self.layer(g.SoftmaxOp(x, len(g.shape_of(x)) - 1 if axis is None else axis))

    def cut(self, x, axis, start, size):
        shape = g.shape_of(x)
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        return self.layer(g.SliceOp(x, starts, tuple(size if i == axis else n for i, n in enumerate(shape))))

    def constant(self, array):
        array = np.asarray(array, np.float32)
        key = self.store.add("c", array)
        return self.layer(g.WeightOp(key, g.tensor_type(g.tensor_of(self.block.args[0]).element_type, array.shape)))

    def heads(self, x, heads, *perm):
        batch, rows, channels = g.shape_of(x)
        return self.transpose(self.reshape(x, batch, rows, heads, channels // heads), *(perm or (0, 2, 1, 3)))

    def merged(self, x):
        batch, heads, rows, size = g.shape_of(x)
        return self.reshape(self.transpose(x, 0, 2, 1, 3), batch, rows, heads * size)

    def repeated(self, x, share):
        batch, groups, rows, size = g.shape_of(x)
        ones = self.constant(np.ones((1, 1, share, 1, 1)))
        more = self.binary("mul", self.reshape(x, batch, groups, 1, rows, size), ones)
        return self.reshape(more, batch, groups * share, rows, size)


def found(net, *outputs):
    """The attentions that are found; what they compute is what the layers did."""
    changed = after_pass(FindAttention(), net, *outputs, rtol=2e-5, atol=2e-6)
    return [op for op in changed.walk() if isinstance(op, g.AttentionOp)]


def moves(op):
    """Operations of the network that move elements."""
    return [o for o in op.parent.walk() if isinstance(o, g.TransposeOp | g.SliceOp | g.BinaryOp)]


def separate(net):
    return net.input(B, T, H * D), net.input(B, L, H * D), net.input(B, L, H * D)


def test_heads_of_separate_tensors():
    net = Layers()
    q, k, v = separate(net)
    scores = net.matmul(net.heads(q, H), net.heads(k, H, 0, 2, 3, 1))
    weights = net.softmax(net.binary("div", scores, net.constant(4.0)))
    (op,) = found(net, net.merged(net.matmul(weights, net.heads(v, H))))
    assert (op.heads, op.sizes, op.firsts, op.scale, op.is_merged) == ((H, H), (D, D), (0, 0, 0), 0.25, True)
    assert (op.q, op.k, op.v) == tuple(op.parent.args)
    assert not moves(op)


def test_ranges_of_a_calibration_stay():
    """Of the values, not of the scores: a product behind is one of integers."""
    net = Layers()
    q, k, v = separate(net)
    scores = net.matmul(net.heads(q, H), net.heads(k, H, 0, 2, 3, 1))
    values = net.matmul(net.softmax(scores), net.heads(v, H))
    scores.owner.attributes[RANGE], values.owner.attributes[RANGE] = float_array((0, 9)), float_array((-1, 2))
    module, _ = net.module(net.merged(values))
    FindAttention().apply(Context(), module)
    (op,) = (each for each in module.walk() if isinstance(each, g.AttentionOp))
    assert op.attributes[RANGE] == float_array((-1, 2))


def split(net, way):
    """q, k and v [B, H, T, D] out of one product: three slices of channels, or one axis of them."""
    x = net.input(B, T, 3 * H * D)
    if way == "channels":
        return [net.heads(net.cut(x, 2, i * H * D, H * D), H) for i in range(3)]
    whole = net.transpose(net.reshape(x, B, T, 3, H, D), 2, 0, 3, 1, 4)
    return [net.reshape(net.cut(whole, 0, i, 1), B, H, T, D) for i in range(3)]


@pytest.mark.parametrize("way", ["channels", "axis"])
def test_parts_of_a_common_product(way):
    net = Layers()
    q, k, v = split(net, way)
    k = net.transpose(k, 0, 1, 3, 2)
    (op,) = found(net, net.merged(net.matmul(net.softmax(net.matmul(q, k)), v)))
    assert op.firsts == (0, H * D, 2 * H * D)
    assert op.is_merged
    assert not moves(op)


@pytest.mark.parametrize("place", ["q", "k", "scores", "both"])
def test_the_scale_is_anywhere(place):
    net = Layers()
    q, k, v = separate(net)
    scale = net.constant([0.5])
    q = net.binary("mul", q, scale) if place in ("q", "both") else q
    q, k = net.heads(q, H), net.heads(k, H, 0, 2, 3, 1)
    k = net.binary("mul", k, scale) if place in ("k", "both") else k
    scores = net.matmul(q, k)
    scores = net.binary("mul", scale, scores) if place == "scores" else scores
    (op,) = found(net, net.matmul(net.softmax(scores), net.heads(v, H)))
    assert op.scale == (0.25 if place == "both" else 0.5)
    assert not op.is_merged


def test_scores_are_capped():
    net = Layers()
    q, k, v = separate(net)
    scores = net.matmul(net.heads(q, H), net.heads(k, H, 0, 2, 3, 1))
    capped = net.unary("tanh", net.binary("div", scores, net.constant(8.0)))
    (op,) = found(net, net.matmul(net.softmax(net.binary("mul", capped, net.constant(2.0))), net.heads(v, H)))
    assert (op.scale, op.softcap) == (0.25, 2.0)


def test_batches_of_heads_and_masks_with_heads():
    """Products of three axes; the mask is added where the heads have an axis of their own."""
    net = Layers()
    q, k, v = separate(net)
    mask, bias = net.input(B, 1, 1, L), net.input(H, T, L)
    q, v = (net.reshape(net.heads(x, H), B * H, n, D) for x, n in ((q, T), (v, L)))
    k = net.reshape(net.heads(k, H, 0, 2, 3, 1), B * H, D, L)
    scores = net.reshape(net.matmul(q, k), B, H, T, L)
    scores = net.binary("add", bias, net.binary("add", scores, mask))
    weights = net.softmax(net.reshape(scores, B * H, T, L))
    (op,) = found(net, net.merged(net.reshape(net.matmul(weights, v), B, H, T, D)))
    assert op.is_merged
    assert g.shape_of(op.mask) == (B, H, T, L)
    assert len(moves(op)) == 4, "the two masks are added; a difference, turned, makes rows of theirs no numbers"


def hidden(net, way):
    """A mask [B, 1, T, L] whose second row of the first batch hides every key."""
    seen = np.ones((B, 1, T, L), bool)
    seen[0, 0, 1] = False
    seen[1, 0, 2, 3:] = False
    if way == "constant":
        return net.constant(np.where(seen, 0, -np.inf))
    least = -np.inf if way == "infinite" else np.finfo(np.float32).min
    return net.binary("drop", net.constant(np.full((1,), least)), net.constant(seen.astype(np.float32)))


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize(("way", "numbers"), [("constant", False), ("infinite", False), ("least", True)])
def test_a_row_that_sees_no_key_is_no_number(way, numbers, is_merged):
    """As its softmax is; where a finite number hides them it is the mean of the values."""
    net = Layers()
    q, k, v = separate(net)
    scores = net.binary("add", net.matmul(net.heads(q, H), net.heads(k, H, 0, 2, 3, 1)), hidden(net, way))
    made = net.matmul(net.softmax(scores), net.heads(v, H))
    module, given = net.module(net.merged(made) if is_merged else made)
    FindAttention().apply(Context(), module)
    assert any(isinstance(op, g.AttentionOp) for op in module.walk())
    with np.errstate(invalid="ignore"):
        (y,) = ReferenceExecutor(store_of(module)).run_graph(module, given).values()
    rows = y.reshape(B, T, H, D).swapaxes(1, 2) if is_merged else y
    assert np.isnan(rows[0, :, 1]).all() != numbers and not np.isnan(np.delete(rows, 1, axis=2)).any()
    v = given[[*given][2]].reshape(B, L, H, D)
    assert not numbers or np.allclose(rows[0, :, 1], v[0].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("hides", [-np.inf, -1e9])
def test_a_constant_mask_of_later_keys_is_causal(hides):
    net = Layers()
    q, k, v = separate(net)
    scores = net.matmul(net.heads(q, H), net.heads(k, H), trans_b=True)
    mask = np.triu(np.full((T, L), hides), 1 + L - T)
    (op,) = found(net, net.matmul(net.softmax(net.binary("add", scores, net.constant(mask))), net.heads(v, H)))
    assert op.causal_from == L - T
    assert op.mask is None


@pytest.mark.parametrize("is_known", [False, True])
def test_a_choice_of_scores_is_a_mask(is_known):
    """Where(seen, scores, -1e9), with a mask that is known and one that is an input."""
    net = Layers()
    q, k, v = separate(net)
    scores = net.matmul(net.heads(q, H), net.heads(k, H), trans_b=True)
    seen = np.tri(T, L, L - T)
    if is_known:
        taken, other = net.constant(seen), net.constant(np.where(seen, -0.0, -1e9))
    else:
        taken = net.input(B, 1, 1, L)
        net.inputs["x3"][:] = net.inputs["x3"] > -0.5
        other = net.binary("drop", net.constant(-1e9), taken)
    chosen = net.binary("add", net.binary("keep", scores, taken), other)
    (op,) = found(net, net.matmul(net.softmax(chosen), net.heads(v, H)))
    assert op.causal_from == (L - T if is_known else None)
    assert (op.mask is None) == is_known


def test_a_choice_that_hides_nothing_is_left():
    net = Layers()
    q, k, v = separate(net)
    scores = net.matmul(net.heads(q, H), net.heads(k, H), trans_b=True)
    taken = net.input(B, 1, 1, L)
    chosen = net.binary("add", net.binary("keep", scores, taken), net.binary("drop", net.constant(-2.0), taken))
    assert found(net, net.matmul(net.softmax(chosen), net.heads(v, H))) == []


def test_another_constant_mask_stays_one():
    net = Layers()
    q, k, v = separate(net)
    scores = net.matmul(net.heads(q, H), net.heads(k, H), trans_b=True)
    mask = np.where(np.arange(L) % 2, -3.0, 0.0)
    wide = net.constant(np.broadcast_to(mask, (1, H, T, L)))
    (op,) = found(net, net.matmul(net.softmax(net.binary("add", scores, wide)), net.heads(v, H)))
    assert g.shape_of(op.mask) == (1, 1, 1, L)


@pytest.mark.parametrize("groups", [2, 1])
def test_heads_that_queries_share_are_not_repeated(groups):
    net = Layers()
    q, k, v = net.input(B, T, H * D), net.input(B, groups, L, D), net.input(B, L, groups * D)
    k = net.transpose(net.repeated(k, H // groups), 0, 1, 3, 2)
    v = net.repeated(net.heads(v, groups), H // groups)
    (op,) = found(net, net.merged(net.matmul(net.softmax(net.matmul(net.heads(q, H), k)), v)))
    assert op.heads == (H, groups)
    assert not moves(op)


def test_keys_of_one_head_for_all():
    net = Layers()
    q, k, v = net.input(1, H, T, D), net.input(1, 1, D, L), net.input(1, 1, L, D)
    (op,) = found(net, net.matmul(net.softmax(net.matmul(q, k)), v))
    assert op.heads == (H, 1)
    assert len(moves(op)) == 1, "keys are turned to rows"


@pytest.mark.parametrize("axis", [2, 3])
def test_weights_on_the_right(axis):
    """Products of which the second, or both, are the transposed ones of others."""
    net = Layers()
    q, k, v = net.input(B, H, T, D), net.input(B, H, L, D), net.input(B, H, D, L)
    a, b = (q, k) if axis == 3 else (k, q)
    weights = net.softmax(net.matmul(a, net.transpose(b, 0, 1, 3, 2)), axis)
    weights = net.transpose(weights, 0, 1, 3, 2) if axis == 3 else weights
    (op,) = found(net, net.matmul(v, weights))
    assert g.shape_of(op.result) == (B, H, T, D)


@pytest.mark.parametrize("is_left", [False, True])
def test_channels_of_a_convolution(is_left):
    """q, k and v are channels of a map, as networks of images have them."""
    net = Layers()
    x = net.reshape(net.conv(net.input(B, 4, 3, 5), 3 * H * D), B, 3, H, D, 15)
    q, k, v = (net.reshape(net.cut(x, 1, i, 1), B, H, D, 15) for i in range(3))
    weights = net.softmax(net.binary("mul", net.matmul(net.transpose(q, 0, 1, 3, 2), k), net.constant(0.5)))
    if is_left:
        y = net.transpose(net.matmul(weights, net.transpose(v, 0, 1, 3, 2)), 0, 1, 3, 2)
    else:
        y = net.matmul(v, net.transpose(weights, 0, 1, 3, 2))
    (op,) = found(net, net.conv(net.reshape(y, B, H * D, 3, 5), 4))
    assert op.is_channels_first
    assert op.firsts == (0, H * D, 2 * H * D)
    assert not moves(op)


def test_without_heads():
    net = Layers()
    q, k, v = net.input(T, D), net.input(L, D), net.input(L, D)
    (op,) = found(net, net.matmul(net.softmax(net.matmul(q, net.transpose(k, 1, 0))), v))
    assert op.heads == (1, 1)


@pytest.mark.parametrize("constants", ["q", "k", "v", "kv"])
def test_operands_may_be_constants(constants):
    """Learned queries (Perceiver, pooling by attention) and memories are as good as made ones."""
    net = Layers()
    shapes = {"q": (B, H, T, D), "k": (B, H, L, D), "v": (B, H, L, D)}
    q, k, v = (net.weight(*shape) if name in constants else net.input(*shape) for name, shape in shapes.items())
    (op,) = found(net, net.matmul(net.softmax(net.matmul(q, k, trans_b=True)), v))
    assert (op.heads, op.sizes) == ((H, H), (D, D))


@pytest.mark.parametrize("what", ["read", "axis", "bias", "scaled mask", "rows"])
def test_others_are_left(what):
    net = Layers()
    q, k, v = net.input(B, H, L, D), net.input(B, H, L, D), net.input(B, H, L, D)
    scores = net.matmul(q, k, trans_b=True)
    if what == "bias":
        scores = net.matmul(q, k, bias=net.weight(L), trans_b=True)
    if what == "scaled mask":
        scores = net.binary("mul", net.binary("add", scores, net.input(L, L)), net.constant(2.0))
    weights = net.softmax(scores, 1 if what == "axis" else 3)
    turned = net.transpose(weights, 0, 1, 3, 2) if what == "rows" else weights
    outputs = [net.matmul(turned, v), *([weights] if what == "read" else [])]
    assert found(net, *outputs) == []
