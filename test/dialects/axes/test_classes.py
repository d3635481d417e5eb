"""Classes of axes of small networks, and which loops may enclose layers."""

from xdsl.dialects.builtin import f32
from xdsl.ir import Block

from frustum.dialects import graph as g
from frustum.dialects.axes.classes import classes_apart, classes_of, why_not
from frustum.dialects.axes.tensor import Kind
from frustum.dialects.graph.axes.reader import Reader


def layers_of(shapes, build):
    reader, block = Reader(), Block(arg_types=[g.tensor_type(f32, shape) for shape in shapes])
    for k, own in enumerate(block.args):
        reader.views[own] = reader.root(f"x{k}", own, Kind.INPUT)
    for op in build(*block.args):
        reader.read(op)
    return reader.layers


def by_names(layers):
    found = {}
    for group in classes_of(layers):
        if not why_not(group, layers):
            found[frozenset(axis.name for axis in group)] = group
    return found


def mlp(x, w, v):
    up = g.MatmulOp(x, w)
    act = g.UnaryOp("gelu", up.result)
    return up, act, g.MatmulOp(act.result, v)


def test_a_hidden_dimension_is_one_class_through_both_products():
    layers = layers_of([(6, 8), (8, 20), (20, 4)], mlp)
    hidden = layers[0].result.axes[1]
    (group,) = [each for each in classes_of(layers) if hidden in each]
    assert why_not(group, layers) == ""
    assert group & set(layers[2].combine)


def test_a_sum_that_is_read_inside_forbids_the_loop():
    def with_norm(x, w, v):
        up, act, down = mlp(x, w, v)
        return up, act, down, g.UnaryOp("relu", down.result)

    layers = layers_of([(6, 8), (8, 20), (20, 4)], with_norm)
    hidden = layers[0].result.axes[1]
    (group,) = [each for each in classes_of(layers) if hidden in each]
    assert "whole after the last pass" in why_not(group, layers)


def attention(q, k, v):
    return (g.AttentionOp(q, k, v, heads=(2, 2), sizes=(4, 4), scale=0.5, is_merged=True),)


def test_keys_may_be_looped_over_as_context_sums_over_them():
    layers = layers_of([(1, 6, 8), (1, 10, 8), (1, 10, 8)], attention)
    _, powers, context = layers
    (keys,) = powers.combine
    (group,) = [each for each in classes_of(layers) if keys in each]
    assert why_not(group, layers) == ""
    assert "rescaled" in why_not(group, layers[:2])
    assert context.combine


def test_queries_and_keys_of_one_tensor_stay_apart():
    layers = layers_of([(1, 6, 8)], lambda x: attention(x, x, x))
    rows = layers[0].result.axes
    groups = classes_of(layers)
    (queries,) = [axis for axis in rows if axis.extent == 6 and axis.name != "key"]
    (keys,) = [axis for axis in rows if axis.name == "key"]
    assert not any({queries, keys} <= group for group in groups)


def test_windows_keep_one_class_of_rows():
    def two(x, w, v):
        first = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
        return first, g.PoolOp("max", first.result, (2, 2), (2, 2)), g.ConvOp(first.result, v, None, (2, 2))

    layers = layers_of([(1, 3, 8, 8), (4, 3, 3, 3), (5, 4, 1, 1)], two)
    rows = {layer.result.axes[1] for layer in layers}
    assert any(rows <= group and not why_not(group, layers) for group in classes_of(layers))


def test_parts_of_a_concatenation_stay_apart_where_clusters_deal():
    """Of 20 rows the first 16 are one map's: a range of the rows is none of each map's."""

    def joined(x, y):
        maps = g.UnaryOp("relu", x), g.UnaryOp("tanh", y)
        both = g.ConcatOp([each.result for each in maps], 2)
        return *maps, both, g.UnaryOp("exp", both.result)

    layers = layers_of([(1, 3, 16, 8), (1, 3, 4, 8)], joined)
    first, second, last = (layer.result.axes[1] for layer in layers)
    assert {first, second, last} <= next(group for group in classes_of(layers) if first in group)
    apart = [next(group for group in classes_apart(layers) if rows in group) for rows in (first, second, last)]
    assert len({*apart}) == 3
    columns = [layer.result.axes[2] for layer in layers]
    assert any({*columns} <= group for group in classes_apart(layers))
