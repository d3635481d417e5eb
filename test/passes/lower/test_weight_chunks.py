"""Weights of plans as trees in chunks: the same bits for fewer bytes, tensor by tensor; by hand and of random plans."""

import lowered_plans
import numpy as np
import plan_nets
import pytest
import random_plans
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from xdsl.ir import Block, Region

from frustum.backend.pipeline import Edit
from frustum.dialects import isa
from frustum.dialects.isa import program as p
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp, RepeatOp
from frustum.dialects.plan.check import PlanError
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.compress_weights import compress
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.lower.weight_chunks import Chunks
from frustum.passes.lower.weight_runs import Blocks
from frustum.passes.lower.weight_slots import Flow, StaysRaw
from frustum.passes.weights import WeightStore, store_of, used_keys
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count as counted_of_run

SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def prune(case, share=0.95, but=()):
    """Set this share of the weights to 0, but for tensors with these numbers."""
    store, rng = store_of(case.module), np.random.default_rng(7)
    for number, key in enumerate(used_keys(case.module)):
        array = np.asarray(store[key])
        if array.size > 1 and number not in but:
            store[key] = np.where(rng.random(array.shape) < share, np.zeros_like(array), array)


def agree(case, target, codec="zero", edits=()):
    """Compressed and not, in checked mode; gives bytes of weights before and after, and what the pass says."""
    found = []
    for compression in ("none", codec):
        choices = {"compression": compression, "edits": edits}
        executable = lowered_plans.executable_of(case.module, case.plan, target, **choices)
        machine = Machine(executable)
        outputs = machine.run(case.inputs, "functional", checked=compression != "none").outputs
        bits = {name: np.asarray(array).tobytes() for name, array in outputs.items()}
        counted = counted_of_run(machine.expanded, target, executable.code.page_bytes)
        found.append((bits, counted, executable))
    (raw, before, _), (compact, after, executable) = found
    assert compact == raw, "other bits"
    for name, size in before.dram_bytes_by_class.items():
        assert name in ("weight", "other") or after.dram_bytes_by_class[name] == size
    said = executable.manifest["options"]["weights"]
    return before.dram_bytes_by_class["weight"], after.dram_bytes_by_class["weight"], said


def perceptron(net):
    return plan_nets.product(net, plan_nets.product(net, net.input(12, 64), 160, "relu"), 64)


def convs(net):
    return net.conv(net.conv(net.input(1, 16, 12, 10), 40), 48, pads=(1, 1, 1, 1))


PLANS = {
    "weights stay": (convs, "resident w, w.2 for conv_2.y step 3 rolling { resident x0 compute conv_1, conv_2 }"),
    "weights are streamed": (convs, "for conv_2.y step 4 recomputed { compute conv_1, conv_2 }"),
    "a part stays": (perceptron, "resident w.2 [w.2.0 0:40] for x0.0 step 5 { compute matmul_1, matmul_2 }"),
    "slices of what is summed": (
        perceptron, "resident matmul_2 for matmul_1.c step 48 { compute matmul_1, matmul_2 }",
    ),
    "ranges of several lengths": (
        convs,
        "for conv_2.y ranges [0, 1, 5, 9, 12] recomputed { resident x0, conv_1 { compute conv_1 } compute conv_2 }",
    ),
}  # fmt: skip


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", PLANS)
def test_weights_of_a_plan_are_the_same_bits_in_fewer_bytes(name):
    build, text = PLANS[name]
    case = lowered_plans.case(build, text)
    prune(case)
    before, after, said = agree(case, lowered_plans.machine(sram_bytes=128 * 1024))
    assert said["compressed_tensors"] >= 2 and after < 0.7 * before


def test_each_tensor_by_itself():
    """The weights of one product have no zeros: they stay as they are, and those of the other one get smaller."""
    case = lowered_plans.case(perceptron, "compute matmul_1 compute matmul_2")
    prune(case, but=(0, 1))
    before, after, said = agree(case, lowered_plans.machine())
    assert said["compressed_tensors"] in (1, 2)  # its bias, perhaps
    assert said["raw_loads"].keys() == {"is not smaller"}
    dense = 64 * 160 * 4
    assert dense < after < before


def test_weights_without_zeros_are_left_as_they_are():
    case = lowered_plans.case(perceptron, "compute matmul_1 compute matmul_2")
    before, after, said = agree(case, lowered_plans.machine())
    assert after == before and said["compressed_tensors"] == 0
    assert set(said["raw_loads"]) == {"is not smaller"} and sum(said["raw_loads"].values()) == 4


AT_ONCE = (Edit("changed", "frustum-lower-compress-weights", options=(("at_once", True),)),)


def wide(net):
    return plan_nets.product(net, net.input(40, 256), 128)


def test_small_pieces_come_at_once_where_that_makes_smaller_blocks():
    """Of slots as large as the largest block of a few elements needs much is free."""
    case = lowered_plans.case(wide, "compute matmul_1")
    prune(case, 0.8)
    target = lowered_plans.machine(sram_bytes=32 * 1024)
    before, apart, _ = agree(case, target)
    same, at_once, said = agree(case, target, edits=AT_ONCE)
    assert same == before and at_once < 0.6 * apart and said["compressed_tensors"] >= 1


def check(case, kib, cores, clusters=1, edits=()):
    """Of a random plan; nothing where it is no plan, or is not lowered."""
    prune(case)
    target = lowered_plans.machine("edge" if clusters == 1 else "default", kib * 1024, cores, clusters)
    try:
        before, after, _ = agree(case, target, edits=edits)
    except PlanError:
        assume(False)
    except (NotLowered, DoesNotFit):
        return
    else:
        assert after <= before


@given(random_plans.planned(), st.sampled_from([(), AT_ONCE]))
@settings(max_examples=4, **SLOW)
def test_random_plans(case, edits):
    check(case, 512, None, edits=edits)


@pytest.mark.slow
@given(random_plans.planned(), st.sampled_from((16, 64, 512)), st.sampled_from([None, 1, 2]))
@settings(max_examples=30, **SLOW)
def test_many_random_plans(case, kib, cores):
    check(case, kib, cores, edits=AT_ONCE)


@pytest.mark.slow
@given(random_plans.distributed())
@settings(max_examples=15, **SLOW)
def test_random_plans_of_clusters(case):
    check(case, 512, None, clusters=4)


# --- by hand -----------------------------------------------------------------------------------------------

ELEMENTS = 96
ONE = p.Span(p.ZERO, 1, 1)


def span(base, step, extent, bound, limit=None, level=0):
    return p.Span(p.Affine(base) + p.Affine.index(level, step), extent, bound, limit)


def row(offset, stride=1):
    return p.View("i8", offset, (0, 0, 0, stride))


class Built:
    """A program of a tensor of 96 bytes, a loop of passes with a load into 48 bytes of SRAM, and copies of that."""

    def __init__(self, passes, load, *fills):
        self.external = ExternalOp("w", "weight", ELEMENTS, (ELEMENTS,), "i8")
        body, self.held = Block(), AllocOp("sram", 48, 1)
        body.add_op(self.held)
        self.load = isa.emit(load, self.external.buffer, self.held.buffer, layer=0, unit=0, stage=0)
        body.add_op(self.load)
        self.fills = []
        for fill in fills:
            core = AllocOp("wram", 48, 1)
            self.fills.append(isa.emit(fill, self.held.buffer, core.buffer, layer=0, unit=0, stage=0))
            body.add_ops([core, self.fills[-1]])
        self.program = ProgramOp("main", Region(Block([self.external, RepeatOp(passes, Region(body), stage=0)])))

    def chunks(self, number=0):
        return Chunks(Flow(self.external, self.load, self.held, self.fills[number]), 1, 4)

    def compressed(self, values):
        target = lowered_plans.machine()
        return compress(self.program, Blocks(WeightStore({"w": values}), target, "zero"))


def load(span, offset=None):
    box = p.Box.of(ONE, ONE, ONE, span)
    return isa.Copy(engine="gdma", src_view=row(offset or span.start), dst_view=row(p.ZERO), box=box)


def fill(span, offset=p.ZERO, stride=1):
    box = p.Box.of(ONE, ONE, ONE, span)
    return isa.Copy(engine="bus", src_view=row(offset, stride), dst_view=row(p.ZERO), box=box)


VALUES = np.arange(ELEMENTS, dtype=np.int8)


def test_a_load_and_its_copies_may_say_their_boxes_in_other_terms():
    """The load brings 32 bytes a pass, the copy takes 16 of each in turn from their end; the last pass is of none."""
    found = Built(4, load(span(0, 32, 32, ELEMENTS)), fill(span(0, 16, 16, 48), p.Affine(31), -1)).chunks()
    assert (found.runs, found.run_chunks, found.slow, found.fast) == (3, 1, [0], [])
    assert [each.ravel().tolist() for each in found.pieces(VALUES)] == [
        list(range(first + 31, first + 15, -1)) for first in (0, 32, 64)
    ]


def test_passes_that_bring_the_same_again_or_nothing_are_one_run():
    """The first pass does nothing (a limit), the others the same: one run, loaded as often as before."""
    late = p.Affine.index(0, 48)
    built = Built(5, load(p.Span(p.ZERO, 48, 48, late)), fill(p.Span(p.ZERO, 48, 48, late)))
    found = built.chunks()
    assert (found.runs, found.slow, found.fast) == (1, [], [])
    (gate,) = found.gates()
    assert [gate.start.at([k], 0) >= 0 for k in range(5)] == [False, True, True, True, True]
    assert built.compressed(np.zeros(ELEMENTS, np.int8))["compressed_tensors"] == 1
    sizes = [min(each.bound, each.start.at([0], 0) + each.extent) for each in built.load.box.data.spans]
    assert min(sizes) <= 0 < built.load.box.data.extent[3] < 48


def test_a_copy_of_what_no_load_of_its_pass_has_brought_stays():
    built = Built(2, load(span(0, 32, 32, ELEMENTS)), fill(p.Span(p.ZERO, 48, 48)))
    with pytest.raises(StaysRaw, match="something else than what is loaded"):
        built.chunks()
    said = built.compressed(np.zeros(ELEMENTS, np.int8))
    assert said["raw_loads"] == {"pieces of something else than what is loaded": 1}
    assert built.fills[0].expand is None and built.held.bytes.value.data == 48


def test_copies_that_take_other_pieces_have_blocks_of_their_own_where_that_is_smaller():
    halves = [p.Span(p.Affine(24 * k), 24, 48) for k in range(2)]
    whole, both = p.Span(p.ZERO, 48, 48), [fill(half, half.start) for half in halves]
    made = Built(2, load(span(0, 48, 48, ELEMENTS)), fill(whole), *both, fill(whole))
    said = made.compressed(np.zeros(ELEMENTS, np.int8))
    assert said["compressed_tensors"] == 0 and said["raw_loads"] == {"is not smaller": 1}  # three slots of 16 bytes
    two = Built(2, load(span(0, 48, 48, ELEMENTS)), *both)
    assert two.compressed(np.zeros(ELEMENTS, np.int8))["compressed_tensors"] == 1
    assert sorted(each.src_view.data.offset.base for each in two.fills) == [0, 16]
    assert two.held.bytes.value.data == 32


def test_weights_of_some_layers_stay():
    made = Built(2, load(span(0, 48, 48, ELEMENTS)), fill(p.Span(p.ZERO, 48, 48)))
    blocks = Blocks(WeightStore({"w": np.zeros(ELEMENTS, np.int8)}), lowered_plans.machine(), "zero")
    assert compress(made.program, blocks, frozenset({0}))["raw_loads"] == {"takes more cycles": 1}
    assert compress(made.program, blocks, frozenset({1}))["raw_loads"] == {}
