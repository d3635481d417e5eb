"""Networks of axes on values, layer by layer; layers of a loop over time step by step."""

import itertools

import numpy as np

from frustum.dialects.axes.tensor import Kind
from frustum.runtime.reference.axes import view_array
from frustum.runtime.reference.plan_layers import Points, channels_of, finished, kind_of


def times_of(layer):
    """The axes of the loops that the layer is in, the outer first."""
    return [axis for axis in layer.result.axes if ".time" in axis.name]


def computed(network, given):
    """The elements of every tensor, by channel; `given`: those of inputs and weights by name."""
    values = {t: given[t.name].reshape(1, -1) for t in network.tensors if t.kind in (Kind.INPUT, Kind.WEIGHT)}
    for layer in network.layers:
        elements = layer.result.size_bytes * 8 // layer.result.element_bits
        values[layer.result] = np.full((channels_of(layer), elements), np.nan)
    _compute(network.layers, {}, values)
    return values


def _compute(layers, ranges, values):
    """The layers in order, those of one loop step by step; `ranges`: the steps of the loops around them."""

    def next_time(layer):
        return next((axis for axis in times_of(layer) if axis not in ranges), None)

    for time, group in itertools.groupby(layers, next_time):
        group = list(group)
        for step in range(time.extent if time else 0):
            _compute(group, {**ranges, time: (step, step + 1)}, values)
        for layer in group if time is None else ():
            points = Points(layer, ranges, lambda channel: lambda tensor, flat: values[tensor][channel][flat])
            made = finished(points, kind_of(layer).part(points))
            whole = values[layer.result].reshape(len(made), *(axis.extent for axis in layer.result.axes))
            whole[(slice(None), *(slice(*points.range_of(axis)) for axis in layer.result.axes))] = made


def outputs_of(found, network, views, given):
    """Those of a network of the graph level, with the axes that are read of it and the views of its values."""
    values = computed(found, given)
    arrays = {t: array[0].reshape([axis.extent for own in t.dims for axis in own]) for t, array in values.items()}
    return [
        view_array(views[value], arrays).reshape(value.type.get_shape()) for value in network.terminator.values
    ]
