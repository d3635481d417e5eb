"""A weight that several layers use is loaded once, and everybody computes what they did."""

import pytest
from agreement import check_agreement
from networks import Net
from searches import with_sram
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import ExternalOp


def same_weight(rows, channels, layers=3):
    """Products one after the other with one weight, a softmax between them so that they are units of their own."""
    net = Net()
    x, weight = net.input(1, rows, channels), net.weight(channels, channels)
    for _ in range(layers):
        x = net.layer(graph.SoftmaxOp(net.layer(graph.MatmulOp(x, weight)), 1))
    return net.module(x)


def loads_of_weights(module):
    weights = [op for op in module.walk() if isinstance(op, ExternalOp) and op.class_.data == "weight"]
    return [use.operation for op in weights for use in op.buffer.uses if isinstance(use.operation, CopyOp)]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["default", "edge"])
@pytest.mark.parametrize(("rows", "channels"), [(1, 64), (1, 128), (16, 32)])
def test_it_is_loaded_once(target, rows, channels):
    module, inputs = same_weight(rows, channels)
    modules = modules_at_stops(module, target, Choices(dtype="f32", policy="optimal"))
    assert len(loads_of_weights(modules["fixed"])) == 1
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")


@pytest.mark.parametrize("choices", [Choices(policy="none"), Choices(policy="optimal", keep=False)])
def test_other_policies_load_it_for_every_layer(choices):
    module, _ = same_weight(1, 64)
    assert len(loads_of_weights(modules_at_stops(module, "edge", choices)["fixed"])) == 3


def test_it_takes_the_place_of_what_each_layer_had():
    module, inputs = same_weight(1, 256)  # 128 KiB of weights: twice these are more than there is
    modules = modules_at_stops(module, with_sram("edge", 192), Choices(dtype="f16", policy="optimal"))
    assert len(loads_of_weights(modules["fixed"])) == 1
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f16")


def test_without_room_it_is_loaded_again():
    module, inputs = same_weight(1, 512)  # 1 MiB of weights; edge has half of that
    modules = modules_at_stops(module, "edge", Choices(dtype="f32", policy="optimal"))
    assert len(loads_of_weights(modules["fixed"])) >= 3
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")


@pytest.mark.parametrize("codec", ["zero", "huffman"])
def test_compressed_ones_agree(codec):
    module, inputs = same_weight(1, 64)
    modules = modules_at_stops(module, "edge", Choices(dtype="f32", policy="optimal", compression=codec))
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")


def turned_pairs():
    """Both halves of the columns turned by tables of sines and cosines (rotary embedding): units of several layers and
    of one read a table in tiles of their own."""
    net = Net()
    x = net.input(1, 4, 64, 32)
    first, second = (net.layer(graph.SliceOp(x, (0, 0, 0, start), (1, 4, 64, 16))) for start in (0, 16))
    tables = [net.weight(1, 1, 64, 16) for _ in range(2)]
    products = [[net.binary("mul", table, half) for half in (first, second)] for table in tables]
    (cos_first, cos_second), (sin_first, sin_second) = products
    parts = [net.binary("sub", cos_first, sin_second), net.binary("add", sin_first, cos_second)]
    return net.module(net.layer(graph.ConcatOp(parts, 3)))


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize(("target", "dtype"), [("edge", "f16"), ("edge", "f32"), ("default", "f16")])
def test_windows_of_a_table_are_of_one_buffer(target, dtype):
    module, inputs = turned_pairs()
    modules = modules_at_stops(module, target, Choices(dtype=dtype, policy="optimal"))
    assert len(loads_of_weights(modules["fixed"])) == 2
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, dtype)
