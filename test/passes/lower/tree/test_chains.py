"""Layers that follow each other in the cores: what is read there is right, and takes fewer cycles than over SRAM."""

import itertools
import math
from dataclasses import replace

import lowered_plans
import plan_nets
import pytest
from lowered_plans import case

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.isa.program import Affine, Span
from frustum.passes.lower.tree.cores import chains
from frustum.passes.lower.tree.cores.chain_choice import CoreChain
from frustum.passes.lower.tree.cores.chain_writer import ChainWriter
from frustum.passes.lower.tree.cores.links import as_operand, matched
from frustum.passes.lower.tree.fetch import FetchDim, Fetched
from frustum.passes.lower.tree.kernels.kernel import Want
from frustum.runtime.machine import Machine


def windows(net):
    """Windows of what a layer before has made: beyond its ends is padding, and pieces overlap."""
    x = net.input(1, 6, 20, 17)
    return net.conv(net.conv(x, 10, 1, act="relu"), 10, (5, 3), groups=10, pads=(2, 1, 2, 1))


def read_elsewhere(net):
    """What leaves the core and is read there too."""
    y = net.conv(net.input(1, 6, 13, 11), 8, 1)
    return net.conv(net.unary("tanh", y), 5), net.unary("exp", y)


def softmaxes(net):
    x = net.input(40, 24)
    return plan_nets.product(net, net.layer(g.SoftmaxOp(plan_nets.product(net, x, 32), 1)), 16)


def gated(net):
    """Functions of what a product makes."""
    y = net.conv(net.input(1, 24, 40, 40), 24, 1)
    return net.binary("mul", net.unary("tanh", y), net.unary("sigmoid", y))


def many_keys(net, rows=128, keys=512, heads=1, mask=None, **numbers):
    """More keys than the weights of a core hold."""
    q, k, v = (net.input(1, count, heads * 32) for count in (rows, keys, keys))
    sizes = {"heads": (heads, heads), "sizes": (32, 32), "scale": 0.2, "is_merged": True}
    return net.layer(g.AttentionOp(q, k, v, mask, **sizes, **numbers))


def causal_keys(net):
    """The first rows of queries see few of them."""
    return many_keys(net, 70, 300, 2, causal_from=230)


def masked_keys(net):
    return many_keys(net, 64, 250, mask=net.input(1, 1, 64, 250))


def few_keys(net, keys=24, **numbers):
    return many_keys(net, 200, keys, 2, **numbers)


def hidden_rows(net):
    """The first rows of queries see no key."""
    return few_keys(net, causal_from=-9)


def hidden_rows_of_many_keys(net):
    return many_keys(net, causal_from=-100)


def hidden_channels(net):
    """Sums of the second product over channels that the first one makes."""
    return plan_nets.product(net, net.unary("tanh", plan_nets.product(net, net.input(60, 24), 700)), 20)


NETS = (
    windows, many_keys, causal_keys, masked_keys, hidden_rows_of_many_keys, hidden_channels, gated, read_elsewhere,
    softmaxes,
    plan_nets.attention, plan_nets.residual, plan_nets.conv_stack, plan_nets.pools, plan_nets.unet,
)  # fmt: skip


def in_one_compute(build):
    found = case(build)
    names = ", ".join(f'"{layer.name}"' for layer in found.axes.layers)
    return case(build, f"compute {names}")


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("build", NETS, ids=lambda build: build.__name__)
def test_values_and_bytes(build, cores):
    """What several layers of a chain read from DRAM comes once, where the plan counts it for each."""
    moved, claimed = lowered_plans.check_lowered(in_one_compute(build), lowered_plans.machine(cores=cores))
    assert moved <= claimed


def test_chains_take_fewer_cycles(monkeypatch):
    """Of attention whose keys come in pieces: products and powers are made at the same time.  By themselves layers keep
    keys and values in the cores, too."""
    found, cycles = in_one_compute(many_keys), list[int]()
    for longest in (1, chains.LONGEST):
        monkeypatch.setattr(chains, "LONGEST", longest)
        executable = lowered_plans.executable_of(found.module, found.plan, lowered_plans.machine())
        cycles.append(Machine(executable).run(found.inputs, "timing").timeline.total_cycles)
    assert cycles[1] < 0.95 * cycles[0]


@pytest.mark.parametrize("build", [few_keys, hidden_rows], ids=lambda build: build.__name__)
def test_sums_of_weights_that_are_made_at_once_are_divided_once(build, monkeypatch):
    """The reader divides; pieces follow each other."""
    monkeypatch.setattr(chains, "PAYS", math.inf)
    weighed, ask = list[bool](), ChainWriter.is_weighed

    def noted(self, number):
        weighed.append(ask(self, number))
        return weighed[-1]

    monkeypatch.setattr(ChainWriter, "is_weighed", noted)
    moved, claimed = lowered_plans.check_lowered(in_one_compute(build), lowered_plans.machine())
    assert moved <= claimed and any(weighed)


# ------------------------------------------------------------ reductions at the end


@pytest.fixture
def written(monkeypatch):
    """What writes chains, of those that are in the program."""
    found, write = list[ChainWriter](), ChainWriter.write

    def noted(self):
        write(self)
        found.append(self)

    monkeypatch.setattr(ChainWriter, "write", noted)
    return found


def layers_of(writer):
    return [kernel.layer.name for kernel in writer.chain.kernels]


def reduced(kind):
    """A reduction of what windows of each channel make: a core has some rows of them at a time."""

    def build(net):
        x = net.conv(net.input(1, 8, 28, 28), 96, 1, act="relu")
        return net.layer(g.ReduceOp(kind, net.conv(x, 96, groups=96), (2, 3)))

    return build


REDUCED = ["conv_1", "conv_2", "reduce_3"]


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_a_reduction_ends_a_chain(kind, written, monkeypatch):
    """Its sums, or maxima, go on from piece to piece."""
    found, target, cycles = in_one_compute(reduced(kind)), lowered_plans.machine("default"), list[int]()
    moved, claimed = lowered_plans.check_lowered(found, target)
    (writer,) = written
    assert moved == claimed and layers_of(writer) == REDUCED and writer.chain.summed is not None
    for longest in (1, chains.LONGEST):
        monkeypatch.setattr(chains, "LONGEST", longest)
        executable = lowered_plans.executable_of(found.module, found.plan, target)
        cycles.append(Machine(executable).run(found.inputs, "timing").timeline.total_cycles)
    assert cycles[1] < 0.9 * cycles[0]


@pytest.mark.parametrize("kind", ["mean", "sum", "max", "min"])
@pytest.mark.parametrize("loop", ["conv_2.y step 12", "conv_2.y step 12 rolling"])
def test_loops_outside_go_on_with_what_a_chain_reduces(kind, loop, written, monkeypatch):
    """The last pass has fewer rows."""
    monkeypatch.setattr(chains, "PAYS", math.inf)
    choices = chains.Chains.choices
    monkeypatch.setattr(chains.Chains, "choices", lambda *of: [chain for chain in choices(*of) if chain.summed])
    text = f"resident w, w.1, w.2, w.3, reduce_3 for {loop} {{ compute {', '.join(REDUCED)} }}"
    found = case(reduced(kind), text)
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine("default"))
    (writer,) = written
    assert moved <= claimed and layers_of(writer)[-2:] == REDUCED[-2:]
    assert writer.chain.summed is not None and writer.writers[-1].part.sums.levels


@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_chain_ends_where_clusters_are_sent_its_result(above, written, monkeypatch):
    """What windows of others read above or below their own rows."""
    monkeypatch.setattr(chains, "PAYS", math.inf)

    def build(net):
        y = net.unary("tanh", net.conv(net.input(1, 4, 16, 12), 8, 1))
        return net.conv(y, 8, groups=8, pads=(above, 1, 2 - above, 1))

    text = "for conv_3.y step 4 of 16 over clusters exchanged { compute conv_1, unary_2, conv_3 }"
    moved, claimed = lowered_plans.check_lowered(case(build, text), lowered_plans.machine("default", clusters=4))
    assert moved <= claimed and [*map(layers_of, written)] == [["conv_1", "unary_2"]]


# ------------------------------------------------------------ by hand

ROW, TAP, CHANNEL = Axis("row", 8), Axis("tap", 3, is_tap=True), Axis("channel", 4)
MAP = Tensor("map", ((Axis("y", 8),), (Axis("c", 4),)), 16, Kind.INTERMEDIATE)
WINDOW = Position(((ROW, 1), (TAP, 1)))


def test_a_window_of_a_piece_begins_before_it():
    (y, c), buffer = MAP.axes, object()
    piece = Piece(MAP, ((y, Position(((ROW, 1), (TAP, 1)), -1)), (c, Position.of(CHANNEL))))
    want = Want(0, "nram", (Position.of(CHANNEL), WINDOW))
    assert matched(want, piece) == [c, y]
    dims = FetchDim(Position.of(y), Span(Affine(0), 5, 8), 8), FetchDim(Position.of(c), Span(Affine(0), 4, 4), 2)
    found = as_operand(want, piece, Fetched(buffer, "f16", dims), {ROW: Span(Affine(0), 4, 8)})
    assert found.offset == -8 and [dim.stride for dim in found.dims] == [2, 8]
    later = {ROW: Span(Affine(2), 2, 8)}
    assert as_operand(want, piece, Fetched(buffer, "f16", dims), later).offset == 8


def test_what_is_not_read_position_for_position_does_not_match():
    y, c = MAP.axes
    halves = Piece(MAP, ((y, Position(((ROW, 2),))), (c, Position.of(CHANNEL))))
    assert matched(Want(0, "nram", (Position.of(ROW), Position.of(CHANNEL))), halves) is None


def test_without_loops_one_buffer_is_enough():
    assert CoreChain((), {}, None, (), (), 0.0).copies(0, leaves=True) == 1


# ------------------------------------------------------------ any layers of which the last one needs all others


@pytest.mark.parametrize("target", ["edge", "default"])
def test_layers_that_read_the_same_are_one_chain(target, written, monkeypatch):
    """Two functions of one product, and what joins them."""
    monkeypatch.setattr(chains, "PAYS", math.inf)
    moved, claimed = lowered_plans.check_lowered(in_one_compute(gated), lowered_plans.machine(target))
    assert moved <= claimed and [len(layers_of(writer)) for writer in written] == [4]
    assert written[0].chain.stages == [0, 1, 1, 1]


def test_layers_of_which_one_is_read_elsewhere_only_are_no_chain(written, monkeypatch):
    monkeypatch.setattr(chains, "PAYS", math.inf)

    def build(net):
        y = net.conv(net.input(1, 6, 13, 11), 8, 1)
        return net.unary("tanh", y), net.unary("exp", y)

    lowered_plans.check_lowered(in_one_compute(build), lowered_plans.machine())
    assert [layers_of(writer) for writer in written] == [["conv_1", "unary_2"]]


# ------------------------------------------------------------ powers by a product


def only_repeated(monkeypatch):
    choices = chains.Chains.choices

    def chosen(*words):
        return [chain for chain in choices(*words) if any(kernel.repeats for kernel in chain.kernels)]

    monkeypatch.setattr(chains, "PAYS", math.inf)
    monkeypatch.setattr(chains.Chains, "choices", chosen)


@pytest.mark.parametrize(
    ("target", "build"),
    [*itertools.product(["edge", "default"], [many_keys, masked_keys]), ("default", few_keys)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_product_is_made_again_for_its_powers(target, build, written, monkeypatch):
    """With a scale, with a mask, of all keys at a time and of some after others."""
    only_repeated(monkeypatch)
    moved, claimed = lowered_plans.check_lowered(in_one_compute(build), lowered_plans.machine(target))
    assert moved <= claimed and len(written) == 1


@pytest.mark.parametrize("build", [causal_keys, hidden_rows], ids=lambda build: build.__name__)
def test_powers_of_keys_that_are_hidden_are_not_made_by_a_product(build, written, monkeypatch):
    only_repeated(monkeypatch)
    lowered_plans.check_lowered(in_one_compute(build), lowered_plans.machine())
    assert not written


def test_powers_by_a_product_take_fewer_cycles(monkeypatch):
    """A way out takes nothing for them, where products are as fast as those of short types."""
    found, target, cycles = in_one_compute(many_keys), lowered_plans.machine("default"), list[int]()
    core = target.core
    matrix = replace(core.matrix, cycles_per_step=replace(core.matrix.cycles_per_step, f32=2))
    cluster = replace(target.cluster, core=replace(core, matrix=matrix))
    target = replace(target, chip=replace(target.chip, clusters=1, cluster=cluster))
    for own in (lambda *_: iter(()), chains.of_products):
        monkeypatch.setattr(chains, "of_products", own)
        executable = lowered_plans.executable_of(found.module, found.plan, target)
        cycles.append(Machine(executable).run(found.inputs, "timing").timeline.total_cycles)
    assert cycles[1] < 0.9 * cycles[0]
