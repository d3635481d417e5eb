"""Checked mode: what it stops, what it says, and what it lets pass."""

from dataclasses import replace

import numpy as np
import pytest
from small_network import WEIGHT, expected, inputs, network

from frustum.backend.file.executable import build_executable
from frustum.dialects.isa import program as p
from frustum.runtime.check.check import RaceError, check
from frustum.runtime.device.expand import expand
from frustum.runtime.device.memory import AccessError
from frustum.runtime.machine import Machine

A = p.Affine
CAPACITIES = (4096, 1024, 1024, 1024)
KNOWN = (p.External("x", "input", 0, 2048, (512,), "f32"),)


def view(memory, offset=0, element="f32", **affine):
    size = p.ELEMENT_BYTES[element]
    return p.View(element, A(offset, **affine), (0, 0, 0, size), memory)


def line(count, start=0):
    one = p.Span(A(), 1, 1)
    return p.Box.of(one, one, one, p.Span(A(start), count, 1 << 20))


def copy(engine, src, dst, count=16, **other):
    return p.Copy(engine=engine, src_view=src, dst_view=dst, box=line(count), **other)


def relu(src, dst, count=16, **other):
    return p.Unary(kind="relu", in_view=src, out_view=dst, box=line(count), **other)


def run_check(*body, clusters=1, cores=1, externals=KNOWN):
    check(expand(p.Program(body, externals, layers=("first", "second")), clusters, cores), CAPACITIES)


def wait(slot, value=1, scope="own"):
    return (p.Wait(slot, scope, A.of(value)),)


LOAD = copy("iodma", view("dram"), view("nram"), signal=0)


# ------------------------------------------------------------------------------------------ whole programs


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_a_program_with_all_its_waits_is_clean(skewed, element):
    arrays = inputs()
    result = Machine(network(skewed, element)).run(arrays, "functional", checked=True)
    np.testing.assert_allclose(result.outputs["y"], expected(arrays), atol=2e-2)


@pytest.mark.parametrize("name", ["load", "loaded", "gone", "added", "home"])
def test_every_wait_of_the_pipelined_loop_is_missed(name):
    with pytest.raises(RaceError, match=r"nothing orders the two"):
        Machine(network(without=name)).run(inputs(), "functional", checked=True)


def test_without_double_buffers_the_same_waits_race():
    with pytest.raises(RaceError, match=r"binary 2 .* address 0 of nram .* copy 1 .* nothing orders"):
        Machine(network(ring=False)).run(inputs(), "functional", checked=True)


# ------------------------------------------------------------------------------------------ addresses


def test_an_access_beyond_its_memory_is_named():
    with pytest.raises(AccessError) as error:
        run_check(copy("iodma", view("dram"), view("nram", 992, core=16), layer=1), cores=2)
    assert str(error.value) == (
        "copy 0 (layer 'second') by iodma at loops [] on cluster 0, core 0:"
        " writes bytes [992, 1056) of nram of cluster 0, core 0, which has 1024"
    )


def test_an_access_below_its_memory_is_named():
    with pytest.raises(AccessError, match=r"reads bytes \[-4, 60\) of dram, which has 4096"):
        run_check(copy("iodma", view("dram", -4), view("nram")))


def test_clipped_positions_are_not_accessed():
    """Nominally the box begins 4 bytes below the memory and ends beyond it."""
    one = p.Span(A(), 1, 1)
    box = p.Box.of(one, one, one, p.Span(A(-1), 300, 256))
    run_check(p.Copy(engine="iodma", src_view=view("dram", -4), dst_view=view("nram", -4), box=box))


# ------------------------------------------------------------------------------------------ unwritten bytes


def test_a_read_of_what_no_instruction_wrote_is_named():
    with pytest.raises(AccessError) as error:
        run_check(LOAD, p.Repeat(2, (relu(view("nram", 32), view("nram", 256), waits=wait(0)),)))
    assert str(error.value) == (
        "unary 1 (layer 'first') at loops [0] on cluster 0, core 0:"
        " reads address 64 of nram of cluster 0, core 0, which no instruction wrote"
    )


def test_what_the_host_wrote_may_be_read_and_nothing_else_of_the_dram():
    run_check(copy("iodma", view("dram", 2048 - 64), view("nram")))
    with pytest.raises(AccessError, match=r"reads address 2048 of dram, which no instruction wrote"):
        run_check(copy("iodma", view("dram", 2048 - 60), view("nram")))


def test_a_fill_counts_as_written_and_reads_nothing():
    """Positions [-4, 12) of a map of 8, the last bytes that the host wrote."""
    one = p.Span(A(), 1, 1)
    box = p.Box.of(one, one, one, p.Span(A(-4), 16, 8))
    load = p.Copy(engine="iodma", src_view=view("dram", 2048 - 48), dst_view=view("nram"), box=box, fill=0.0,
                  signal=0)  # fmt: skip
    run_check(load, relu(view("nram"), view("nram", 256), waits=wait(0)))
    with pytest.raises(AccessError, match=r"reads address 0 of nram"):
        run_check(replace(load, fill=None), relu(view("nram"), view("nram", 256), waits=wait(0)))


def accumulation(count):
    """Two passes over a channel each, then the use of `count` results."""
    conv = p.Conv(
        in_view=view("nram"), weight_view=p.View("f32", A(), (0, 0, 0, 4), "wram"), acc_view=view("nram", 128),
        out_view=view("nram", 256), box=line(1), channels=p.Span(A(), 1, 1), rows=p.Span(A(), 1, 1),
        cols=p.Span(A(), 1, 1), kernel=(1, 1), strides=(1, 1), dilations=(1, 1), accumulate=0, waits=wait(0, 2),
    )  # fmt: skip
    weights = copy("iodma", view("dram"), view("wram"), signal=0)
    return LOAD, weights, p.Repeat(2, (conv,)), relu(view("nram", 256), view("nram", 512), count)


def test_accumulators_are_not_read_in_the_first_pass():
    with pytest.raises(RaceError, match=r"unary 3 .* conv 2 .* at loops .1."):
        run_check(*accumulation(1))


def test_the_result_is_written_in_the_last_pass_and_no_further_than_it_reaches():
    load, weights, loop, use = accumulation(2)
    done = replace(loop, body=(replace(loop.body[0], signal=1),))
    run_check(load, weights, done, replace(use, box=line(1), waits=wait(1, 2)))
    with pytest.raises(RaceError, match=r"conv 2 .* at loops .1."):
        run_check(load, weights, done, replace(use, box=line(1), waits=wait(1, 1)))
    with pytest.raises(AccessError, match=r"reads address 260 .* no instruction wrote"):
        run_check(load, weights, done, replace(use, waits=wait(1, 2)))


# ------------------------------------------------------------------------------------------ what the host knows

OUT = p.External("y", "output", 2048, 128, (2, 16), "f32")
STORED = "copy 1 (layer 'first') by iodma at loops [] on cluster 0, core 0"


def stores(*parts, externals=(*KNOWN, OUT), clusters=1):
    """Load a line, then store (address, elements) in turn."""
    body = [copy("iodma", view("nram"), view("dram", address), count) for address, count in parts]
    run_check(LOAD, *body, externals=externals, clusters=clusters)


def test_an_output_that_is_written_as_a_whole_may_be_read():
    stores((2048, 16), (2048 + 64, 16))


def test_the_host_reads_no_output_that_nothing_wrote():
    with pytest.raises(AccessError) as error:
        stores()
    assert str(error.value) == (
        "the host reads element (0, 0) of output 'y' at address 2048 of dram, which no instruction wrote"
        " (128 of 128 bytes); none writes any of it"
    )


@pytest.mark.parametrize(
    ("parts", "element", "address", "missing"),
    [
        (((2048, 16), (2112, 15)), "(1, 15)", 2172, 4),  # the last element of a partial tile
        (((2052, 15), (2112, 16)), "(0, 0)", 2048, 4),
        (((2048, 8), (2112, 16)), "(0, 8)", 2080, 32),
    ],
)
def test_the_element_that_is_missing_is_named_with_whoever_wrote_beside_it(parts, element, address, missing):
    with pytest.raises(AccessError) as error:
        stores(*parts)
    assert f"element {element} of output 'y' at address {address} of dram" in str(error.value)
    assert f"({missing} of 128 bytes); the nearest element was written by copy" in str(error.value)


def test_every_output_is_read():
    second = p.External("z", "output", 2304, 64, (16,), "f32")
    with pytest.raises(AccessError, match=r"element \(0\) of output 'z' at address 2304 of dram"):
        stores((2048, 16), (2112, 16), externals=(*KNOWN, OUT, second))


def test_no_byte_of_an_output_is_written_twice():
    with pytest.raises(AccessError) as error:
        stores((2048, 16), (2108, 16))
    assert str(error.value) == (
        "copy 2 (layer 'first') by iodma at loops [] on cluster 0, core 0: writes address 2108 of dram,"
        f" element (0, 15) of output 'y', which {STORED} wrote already"
    )


def test_nor_of_an_intermediate_map_which_need_not_be_whole():
    middle = replace(OUT, class_="intermediate")
    stores((2048, 16), externals=(*KNOWN, middle))
    with pytest.raises(AccessError, match=r"writes address 2048 of dram, element \(0, 0\) of intermediate 'y'"):
        stores((2048, 16), (2048, 1), externals=(*KNOWN, middle))


@pytest.mark.parametrize("class_", ["input", "weight", "program"])
def test_nothing_that_the_host_wrote_is_written(class_):
    kept = replace(OUT, class_=class_, name="w")
    with pytest.raises(AccessError, match=rf"element \(1, 4\) of {class_} 'w', which the host wrote already"):
        stores((2048 + 80, 1), externals=(*KNOWN, kept))


def test_memory_that_the_host_does_not_know_may_be_written_again():
    stores((2048 + 128, 16), (2048 + 128, 16), externals=KNOWN)


def test_two_clusters_that_write_the_same_output_race_or_write_twice():
    with pytest.raises(RaceError, match=r"cluster 1, core 0: writes address 2048 of dram"):
        stores((2048, 16), (2112, 16), clusters=2)


@pytest.mark.parametrize("mode", ["full", "functional", "timing"])
def test_an_executable_that_makes_a_tile_less_is_stopped_in_every_mode(mode):
    whole = network()
    first, loop = whole.program.body
    less = replace(whole.program, body=(first, replace(loop, count=loop.count - 1)))
    made = build_executable(less, [(16384, WEIGHT)])
    Machine(made).run(inputs(), mode)
    with pytest.raises(AccessError, match=r"the host reads element \(24, 0\) of output 'y' .* copy 5 .* loops .2. on"):
        Machine(made).run(inputs(), mode, checked=True)


# ------------------------------------------------------------------------------------------ multiple buffers


def passes(ring, read):
    """Four passes load 16, 16, 16 and 8 numbers into a double buffer, and use `read` of each."""
    one = p.Span(A(), 1, 1)
    box = p.Box.of(one, one, one, p.Span(A(0, (16,)), 16, 56))
    tile = replace(view("nram"), ring=ring)
    load = p.Copy(engine="iodma", src_view=view("dram", loops=(64,)), dst_view=tile, box=box, signal=0,
                  waits=(p.Wait(1, "own", A(-1, (1,))),))  # fmt: skip
    use = relu(tile, view("nram", 512), read, waits=(p.Wait(0, "own", A(1, (1,))),), signal=1)
    return p.Repeat(4, (load, use))


def test_what_a_partial_tile_leaves_of_the_tile_before_is_stale():
    run_check(passes(p.Ring(2, 64, 1), read=8))
    with pytest.raises(AccessError) as error:
        run_check(passes(p.Ring(2, 64, 1), read=16))
    assert str(error.value) == (
        "unary 1 (layer 'first') at loops [3] on cluster 0, core 0: reads address 96 of nram of cluster 0, core 0,"
        " which copy 0 (layer 'first') by iodma at loops [1] on cluster 0, core 0 wrote, in another pass of the loop in"
        " which the buffer is new"
    )


def test_a_buffer_outside_of_the_loop_keeps_what_earlier_passes_wrote():
    with pytest.raises(RaceError):  # one copy: the load of a pass is not held until the use of the one before
        run_check(passes(None, read=16))
    load, use = passes(None, read=16).body
    run_check(p.Repeat(4, (replace(load, waits=(p.Wait(1, "own", A(0, (1,))),)), use)))


# ------------------------------------------------------------------------------------------ order


def test_a_read_before_its_write_is_a_race():
    with pytest.raises(RaceError) as error:
        run_check(LOAD, relu(view("nram"), view("nram", 256)))
    assert str(error.value) == (
        "unary 1 (layer 'first') at loops [] on cluster 0, core 0: reads address 0 of nram of cluster 0, core 0,"
        " which copy 0 (layer 'first') by iodma at loops [] on cluster 0, core 0 writes; nothing orders the two"
    )


def test_a_wait_orders_and_so_does_a_chain_of_waits_over_engines():
    run_check(LOAD, relu(view("nram"), view("nram", 256), waits=wait(0), signal=1),
              copy("mvdma", view("nram"), view("sram"), waits=wait(1)))  # fmt: skip


def test_a_write_over_what_another_engine_reads_is_a_race():
    body = LOAD, relu(view("nram"), view("nram", 256), waits=wait(0), signal=1)
    with pytest.raises(RaceError, match=r"writes address 0 .* which unary 1 .* reads; nothing orders"):
        run_check(*body, LOAD)
    run_check(*body, p.Hold(engine="iodma", waits=wait(1)), LOAD)


def test_two_writes_are_a_race():
    with pytest.raises(RaceError, match=r"writes address 0 .* which copy 0 .* writes"):
        run_check(LOAD, copy("mvdma", view("dram"), view("nram")))


def test_cores_that_write_the_same_bytes_race_with_each_other():
    with pytest.raises(RaceError, match=r"core 1: writes address 0 of sram of cluster 0, .* core 0 writes"):
        run_check(copy("mvdma", view("dram"), view("sram")), cores=2)
    run_check(copy("mvdma", view("dram"), view("sram", core=64)), cores=2)


def test_a_barrier_orders_everything_and_resets_counters():
    use = relu(view("nram"), view("nram", 256))
    run_check(LOAD, p.Barrier(), use)
    with pytest.raises(RaceError, match=r"waits for 1 signals, of which 0 come before it in program order"):
        run_check(LOAD, p.Barrier(), relu(view("nram"), view("nram", 256), waits=wait(0)))


UP = (
    copy("iodma", view("dram"), view("nram"), signal=0),
    copy("mvdma", view("nram"), view("sram", core=64), waits=wait(0), signal=1),
)
"""Two cores fill the SRAM of their cluster."""


def test_a_cluster_waits_for_all_its_cores():
    out = copy("gdma", view("sram"), view("dram", 2048, cluster=128), 32)
    run_check(*UP, replace(out, waits=wait(1, scope="cores")), clusters=2, cores=2)
    with pytest.raises(RaceError, match=r"by gdma .* reads address 0 of sram of cluster 0, .* core 0 writes"):
        run_check(*UP, out, clusters=2, cores=2)


def test_cores_wait_for_their_cluster_which_says_nothing_of_other_clusters():
    out = copy("gdma", view("sram"), view("dram", 2048, cluster=128), 32, waits=wait(1, scope="cores"), signal=0)
    own = copy("iodma", view("dram", 2048, cluster=128), view("nram", 512), 32, waits=wait(0, scope="cluster"))
    run_check(*UP, out, own, clusters=2, cores=2)
    all_of_it = copy("iodma", view("dram", 2048), view("nram", 512), 64)
    with pytest.raises(RaceError, match=r"reads address 2176 of dram, .* on cluster 1 writes"):
        run_check(*UP, out, replace(all_of_it, waits=wait(0, scope="cluster")), clusters=2, cores=2)
    run_check(*UP, out, replace(all_of_it, waits=wait(0, scope="all_clusters")), clusters=2, cores=2)


def test_a_cluster_waits_for_the_cores_of_all_clusters():
    push = copy("mvdma", view("nram"), view("dram", 2048, cluster=128, core=64), waits=wait(0), signal=1)
    take = copy("gdma", view("dram", 2048), view("sram", 512), 64, waits=wait(1, scope="all_cores"))
    run_check(UP[0], push, take, clusters=2, cores=2)
    with pytest.raises(RaceError, match=r"reads address 2176 of dram"):
        run_check(UP[0], push, replace(take, waits=wait(1, scope="cores")), clusters=2, cores=2)


def test_a_multicast_signals_every_cluster():
    load = copy("gdma", view("dram"), view("sram"), multicast=True, signal=0)
    use = copy("bus", view("sram"), view("nram"), waits=wait(0), signal=1)
    last = relu(view("nram"), view("nram", 256), waits=wait(1, scope="cluster"))
    run_check(load, use, last, clusters=2, cores=2)
    with pytest.raises(RaceError, match=r"bus .* on cluster 0: reads address 0 of sram of cluster 0"):
        run_check(load, copy("bus", view("sram"), view("nram")), clusters=2, cores=2)


# ------------------------------------------------------------------------------------------ several signallers


def both(value, **other):
    """Two engines load one half each and signal the same counter; the vector unit waits for `value`."""
    first = copy("iodma", view("dram"), view("nram"), signal=0)
    second = copy("mvdma", view("dram"), view("nram", 64), signal=0)
    return first, second, relu(view("nram"), view("nram", 256), 32, waits=wait(0, value), **other)


def test_a_counter_of_two_engines_orders_all_when_all_are_counted():
    run_check(*both(2))


def test_one_signal_of_two_engines_may_be_either():
    with pytest.raises(RaceError, match=r"unary 2"):
        run_check(*both(1))


def test_a_later_signal_that_may_come_early_spoils_the_count():
    """The wait for 2 may be let go by the third signal instead of one of the first two."""
    third = copy("mvdma", view("dram"), view("nram", 128), signal=0)
    with pytest.raises(RaceError, match=r"unary 2"):
        run_check(*both(2), third)


def test_a_later_signal_that_waits_for_the_reader_does_not():
    third = copy("mvdma", view("dram"), view("nram", 128), signal=0, waits=wait(1))
    run_check(*both(2, signal=1), third)
