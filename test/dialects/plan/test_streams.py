"""Slices of what a layer streams, by hand on `edge`: 8 B a cycle of DRAM, runs of 64 B, four cores of 16 B a cycle."""

import numpy as np
import pytest
from axis_networks import mlp, network

from frustum.backend import targets
from frustum.dialects.plan.layer_cycles import products_of
from frustum.dialects.plan.streams import Stream, StreamedLayer

EDGE = targets.load("edge")
BOX = 2 * 512 * 512


@pytest.fixture(scope="module")
def product():
    """512 rows, 512 channels in and out: either operand, and the result, take 512 KiB."""
    return network(mlp, (512, 512), (512, 512), (512, 512)).layers[0]


def streamed(layer, tensors, room, *, goes_on=False):
    streams = [Stream(tensor, {}, BOX) for tensor in tensors]
    stored = {0: float(BOX), 1: float(BOX), -1: float(BOX)}
    return StreamedLayer(EDGE, layer, tuple(products_of(layer)), {}, stored, streams, room, goes_on)


def operands(layer):
    return [operand.pieces[0].tensor for operand in layer.operands]


def test_nothing_streamed_is_what_the_cores_take(product):
    found = streamed(product, [], 1 << 20).best()
    macs = 512 * 512 * 512 // (4 * 16 * 16) * 2
    assert (found.steady, found.first, found.port) == (macs + 12, 0, 0)


def test_the_first_slice_is_waited_for(product):
    """The rows, where there is room for all twice: each way moves them once, and the first slice is a part of them."""
    found = streamed(product, operands(product)[:1], 2 * BOX).best()
    assert found.port == BOX / 8 and 0 < found.first < BOX / 8


def test_less_room_takes_no_fewer_cycles(product):
    took = [streamed(product, operands(product)[1:], room).best() for room in (2 * BOX, BOX // 2, BOX // 8, BOX // 16)]
    total = [each.steady + each.first for each in took]
    assert total == sorted(total) and total[-1] > total[0]


def test_short_runs_take_as_long_as_the_least(product):
    """A slice of 16 of 512 channels of the weights has runs of 32 B."""
    layer, (_, weights) = streamed(product, operands(product)[1:], 1), operands(product)
    stream, (sums, channels) = layer.streams[0], weights.axes
    assert stream.run(channels, 16) == 32 and stream.run(sums, 16) == 2 * 16 * 512
    assert layer.of(product.result.axes[1], _array(16), [channels]).port == 2 * BOX / 8


def test_sums_go_back_and_forth_where_cores_cannot_keep_them(product):
    """512 KiB of sums are too many for cores of 64 KiB; a sixteenth of them is not."""
    sums = next(axis for axis in product.combine)
    many = streamed(product, operands(product), 1 << 20)
    few = StreamedLayer(
        EDGE, product, many.products, {product.result.axes[0]: 32}, {**many.stored, -1: BOX / 16}, many.streams,
        1 << 20, goes_on=False,
    )  # fmt: skip
    assert not many.stays(sums, 512) and few.stays(sums, 512)
    at_once = 2 * BOX / 4 * (1 / 16 + 3 / 64)
    work = 512 * 512 * 16 / 512  # nothing hides what goes back and forth
    assert many.cores(sums, _array(16))[0] == pytest.approx(32 * (work + at_once + 12))


def _array(number):
    return np.array([number])
