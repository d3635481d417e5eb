"""Residents in the storage of others: what they take, and where they would overwrite what is read again."""

import pytest
from axis_networks import network

from frustum.dialects import graph as g
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import read_plan


def counted(net, text):
    return count(net, read_plan(f'plan @net for "edge" {text}').node)


def chain(x, w):
    """Layers `unary`, `unary#2` and `matmul`."""
    first = g.UnaryOp("relu", x)
    second = g.UnaryOp("exp", first.result)
    return first, second, g.MatmulOp(second.result, w)


CHAIN = (16, 16), (16, 64)
MAP = 2 * 16 * 16


def test_storage_counts_on_when_its_first_tensor_is_gone():
    net = network(chain, *CHAIN)
    children = 'compute unary resident "unary#2" {at} compute "unary#2" compute matmul'
    own, taken, both = (
        counted(net, f"{{ resident x1, {first} {children.format(at=at)} }}")
        for first, at in (
            ('unary until "unary#2"', ""), ('unary until "unary#2"', "at unary"), ("unary", "at unary")
        )
    )  # fmt: skip
    weights, results = net.tensors[1].size_bytes, 2 * 16 * 2 * 16
    assert own.sram_bytes == taken.sram_bytes == both.sram_bytes == weights + MAP + results  # in the last child


def test_a_tensor_in_storage_inside_a_loop_takes_nothing_beside_the_whole():
    net = network(chain, *CHAIN)
    rows = net.layers[0].result.axes[0].name
    children = f'compute unary for {rows} step 4 of 16 {{ resident "unary#2" at unary compute "unary#2", matmul }}'
    found = []
    for way in (children, children.replace("at unary", "")):
        plan = read_plan(f'plan @net for "edge" {{ resident x1, unary {way} }}').node
        found.append(count(net, plan).held[id(plan.children[1])])
    assert found[1] - found[0] == MAP // 4


def products(x, w, v):
    """A map that a loop over the hidden channels reads in each pass, beside its activation."""
    first = g.UnaryOp("relu", x)
    second = g.UnaryOp("exp", first.result)
    return first, second, g.MatmulOp(second.result, w), g.MatmulOp(second.result, v)


def test_a_layer_that_each_pass_repeats_does_not_overwrite_its_operand():
    net = network(products, (16, 16), (16, 64), (16, 64))
    first, *others = (f'"{layer.name}"' for layer in net.layers)
    hidden = net.layers[2].result.axes[1].name
    loop = f'for {hidden} step 16 of 64 {{ resident "unary#2" at unary compute {", ".join(others[:2])} }}'
    text = f"{{ resident unary compute {first} {loop} compute {others[2]} }}"
    with pytest.raises(PlanError, match="unary#2 reads unary where an earlier pass has put unary#2: leave out 'at'"):
        counted(net, text)
    counted(net, text.replace("at unary", ""))


def windowed(x, w, v):
    """A convolution reads rows of a map that the last layer overwrites."""
    first = g.UnaryOp("relu", x)
    second = g.ConvOp(first.result, w, None, (1, 1), (1, 1, 1, 1))
    return first, second, g.BinaryOp("add", first.result, second.result)


@pytest.mark.parametrize("halo", ["", "rolling"])
def test_rows_that_a_window_of_the_next_pass_reads_are_not_overwritten(halo):
    net = network(windowed, (1, 2, 12, 10), (2, 2, 3, 3), (2, 2, 3, 3))
    first, second, last = (layer.name for layer in net.layers)
    rows = net.layers[2].result.axes[1].name
    body = f'{{ resident {last} at {first} compute {second}, {last} }}'
    text = f"{{ resident x1, {first} compute {first} for {rows} step 4 of 12 {halo} {body} }}"
    with pytest.raises(PlanError, match=f"{second} reads {first} where an earlier pass has put {last}"):
        counted(net, text)
    whole = f"{{ resident x1, {first} compute {first} {body} }}"
    assert counted(net, whole).dram_bytes == net.compulsory_bytes


def test_rows_that_roll_stay_overwritten():
    """The residents are stated in the loop, but the next pass reads rows of a map that this one has overwritten."""
    net = network(windowed, (1, 2, 12, 10), (2, 2, 3, 3), (2, 2, 3, 3))
    first, second, last = (layer.name for layer in net.layers)
    rows = net.layers[2].result.axes[1].name
    held = f"resident {first}, {last} at {first}"
    text = f"{{ resident x1 for {rows} step 4 of 12 HALO {{ {held} compute {first}, {second}, {last} }} }}"
    with pytest.raises(PlanError, match=f"{second} reads {first} where an earlier pass has put {last}"):
        counted(net, text.replace("HALO", "rolling"))
    counted(net, text.replace("HALO", "recomputed"))
    counted(net, text.replace("HALO", "rolling").replace(f" at {first}", ""))


WRONG = {
    "a product needs a row for each position": lambda x: (
        (a := g.UnaryOp("relu", x)), g.MatmulOp(a.result, x)
    ),
    "a residual is a factor too": lambda x, w: (
        (a := g.UnaryOp("relu", x)), g.MatmulOp(a.result, w, residual=a.result)
    ),
    "a map is added to itself turned": lambda x: (
        (a := g.UnaryOp("relu", x)), (t := g.TransposeOp(a.result, (1, 0))), g.BinaryOp("add", a.result, t.result)
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", WRONG)
def test_a_result_does_not_overwrite_what_other_positions_need(why):
    build = WRONG[why]
    net = network(build, *[(16, 16)] * build.__code__.co_argcount)
    first, last = net.layers
    assert last.storage_of is None
    text = f"{{ resident {first.name}, {last.name} at {first.name} compute {first.name}, {last.name} }}"
    with pytest.raises(PlanError, match="leave out 'at'"):
        counted(net, text)


def test_a_residual_is_overwritten():
    def build(x, w):
        first = g.UnaryOp("relu", x)
        return first, g.MatmulOp(x, w, residual=first.result)

    net = network(build, (16, 16), (16, 16))
    assert net.layers[1].storage_of is not None
    counted(net, "{ resident unary, matmul at unary compute unary, matmul }")


def test_a_sum_goes_on_in_the_storage_of_its_first_value():
    def build(x, w):
        first = g.UnaryOp("relu", x)
        return first, g.MatmulOp(x, w, residual=first.result)

    net = network(build, (16, 16), (16, 16))
    summed = next(iter(net.layers[1].combine)).name
    loop = f"for {summed} step 4 of 16 {{ compute matmul }}"
    text = f"{{ resident unary compute unary resident matmul at unary {loop} }}"
    assert counted(net, text).write_bytes == MAP
