"""The search for pieces and tiles: what it chooses fits, and is the cheapest of its candidates."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from every_operation import NETWORKS, network
from stops import modules_at_stops, target

from frustum.backend.pipeline import Choices
from frustum.backend.targets import load
from frustum.dialects.isa.program import MAX_LOOPS, Act, Scale
from frustum.dialects.tile import BinaryLayer, PoolLayer, ResizeLayer, TensorView, UnaryLayer, Whole
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import SAME4, Layer, MapOperand
from frustum.passes.analysis.layer.nest import SAME
from frustum.passes.analysis.project import project, tile_counts, unit_layers
from frustum.passes.plan import pieces as plan
from frustum.passes.plan import product_pieces, vector_pieces
from frustum.passes.plan import unit as plan_unit
from frustum.passes.plan.cost import CutUnit
from frustum.passes.plan.layer_work import LayerWork, passes_of, work_of


def units(name, target_name="tiny"):
    """The units of a network that compute, with partition and maps."""
    module = modules_at_stops(network(name)[0], target_name, Choices())["tiled"]
    return [op for op in module.walk() if isinstance(op, UnitOp) and op.partition is not None]


def works(name):
    """What was planned for each layer: (work, residency, loops left)."""
    clusters = target("tiny").chip.clusters
    for unit in units(name):
        layers, partition = unit_layers(unit), unit.partition.data
        cut = CutUnit.of(layers, partition, target("tiny"))
        for j, (op, layer) in enumerate(zip(layers.ops, layers.layers, strict=True)):
            if layer.kind.is_place:  # no work
                continue
            region = cut.worked_region(j)
            submap = op.attributes["frustum.map"].data
            loops = MAX_LOOPS - sum(n > 1 for n in tile_counts(layers.out.out_dims, partition, clusters))
            yield work_of(layer, region.extent), submap, loops


def each_candidate(monkeypatch, call):
    """The plans of all candidates of a call of the search, one at a time."""
    of_products, of_others, looked_at = product_pieces.product_choices, vector_pieces.vector_extents, []

    def replaced(by):
        monkeypatch.setattr(product_pieces, "product_choices", by(of_products))
        monkeypatch.setattr(vector_pieces, "vector_extents", by(of_others))

    def noted(choices_of):
        def choices(*of):
            found = choices_of(*of)
            looked_at.append(list(itertools.product(*found)))
            return found

        return choices

    replaced(noted)
    call()
    for candidate in itertools.chain(*looked_at):
        replaced(lambda choices_of, one=candidate: lambda *of: tuple((size,) for size in one))
        if (found := call()) is not None:
            yield found
    replaced(lambda choices_of: choices_of)


def calls(work, machine, residency, loops):
    """The searches of which `plan_layer` takes the best."""
    if work.is_matrix:
        for cores_dim in (0, 1, 2, 3):
            for compact in {False, work.may_compact}:
                yield lambda c=cores_dim, x=compact: plan.best_piece(
                    work, machine, residency, loops, c, is_compact=x
                )
        return
    for cores_dim in (1, 2, 3, 0):
        yield lambda c=cores_dim: vector_pieces.plan_vector_with(work, machine, loops, c, False)


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("name", ["convolutions", "grouped", "products", "across_channels", "max_pools"])
def test_the_cheapest_piece_of_all_candidates_is_chosen(name, monkeypatch):
    machine = target("tiny")
    for work, submap, loops in works(name):
        chosen = plan.plan_layer(work, machine, submap.weights, loops)
        costs = [
            found.cycles
            for call in calls(work, machine, submap.weights, loops)
            for found in each_candidate(monkeypatch, call)
        ]
        assert len(costs) > 1 and chosen.cycles == min(costs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutions", "grouped", "products", "max_pools"])
def test_answers_that_machines_share_are_those_of_each_whole_machine(name):
    """DRAM and the size of SRAM are no part of a question only where they do not matter; what an answer looks up
    nobody has given, which would be an error."""
    machines = [with_dram(target("tiny"), *each) for each in ((2, 1 << 13), (512, 1 << 20))]
    for work, _, loops in works(name):
        ways = ("unit", "stream", "core") if work.is_matrix else ("unit",)
        for machine, residency, free in itertools.product(machines, ways, {loops, MAX_LOOPS}):
            found = plan.plan_layer(work, machine, residency, free)
            if not work.is_matrix:
                assert found == vector_pieces.plan_others.__wrapped__(work, machine, free)
                continue
            assert found == plan.without_sums.__wrapped__(work, machine, residency, free)[0]
            seen = plan.seen_by_pieces(machine, residency, free)
            asked, question = plan.with_sums.__wrapped__, (residency, free, 1 << 16, math.inf)
            assert asked(work, seen, *question) == asked(work, machine, *question)


def with_dram(machine, rate, sram_bytes):
    chip, cluster = machine.chip, machine.cluster
    sram = replace(cluster.sram, capacity_bytes=sram_bytes)
    cluster = replace(cluster, sram=sram, gdma=replace(cluster.gdma, bytes_per_cycle=rate))
    return replace(
        machine, chip=replace(chip, cluster=cluster, dram=replace(chip.dram, port_bytes_per_cycle=rate))
    )


def piece_bytes(work, submap):
    """NRAM bytes of one piece's operands and result, and WRAM bytes of its weights, by the layer's numbers."""
    c = submap.extent[1]
    inputs = 0
    for number, (access, size) in enumerate(zip(work.accesses, work.map_bytes, strict=True)):
        extents = [axis.size if isinstance(axis, Whole) else (e - 1) * axis.num // axis.den + 1 + axis.reach
                   for axis, e in zip(access, submap.extent, strict=True)]  # fmt: skip
        if work.is_matrix and number == 0:
            groups = 1 if work.groups == 1 else max(1, c // work.group_outputs)
            extents[1] = submap.channels * groups
        inputs += math.prod(extents) * size
    made = math.prod(1 if d in work.reduced else extent for d, extent in enumerate(submap.extent))
    result = made * work.out_bytes
    weights = c * submap.channels * math.prod(work.kernel) * work.weight_bytes if work.is_matrix else 0
    return inputs + result, weights + c * sum(work.channel_bytes)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "reductions"])
def test_pieces_fit_nram_and_wram(name):
    core = target("tiny").core
    for work, submap, _ in works(name):
        nram, wram = piece_bytes(work, submap)
        pieces = math.prod(-(-e // p) for e, p in zip(work.extent, submap.extent, strict=True))
        copies = 2 if pieces > target("tiny").cluster.cores else 1
        assert copies * nram <= core.nram.capacity_bytes
        assert wram <= core.wram.capacity_bytes


@pytest.mark.slow
@pytest.mark.soak(but=3)
@pytest.mark.parametrize("name", ["deep_and_wide", "convolutions", "broadcasts", "softmaxes", "linear"])
def test_tiles_fit_sram_and_cover_the_output(name):
    machine = target("tiny")
    for unit in units(name):
        layers, partition = unit_layers(unit), unit.partition.data
        projection = project(layers, partition, machine.chip.clusters)
        maps = [
            region
            for regions, sources in zip(projection.operands, layers.sources, strict=True)
            for region, source in zip(regions, sources, strict=True)
            if source.layer is None
        ]
        used = sum(4 * math.prod(region.extent) for region in [projection.outputs[-1], *maps])
        assert used <= machine.cluster.sram.capacity_bytes
        counts = tile_counts(layers.out.out_dims, partition, machine.chip.clusters)
        for d, (count, tile, size) in enumerate(
            zip(counts, partition.tile, layers.out.out_dims, strict=True)
        ):
            dealt = machine.chip.clusters if d == partition.clusters else 1
            assert count * tile * dealt >= size


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ["long_kernel", "grouped", "max_pools", "linear"])
def test_looking_at_all_partitions_finds_none_that_is_much_better(name, monkeypatch):
    """The search stops early by bounds on widths, heights and candidates; here it looks at everything."""
    machine = target("tiny")
    budget = plan_unit.Budget(machine.cluster.sram.capacity_bytes)
    layers = [unit_layers(unit) for unit in units(name)]
    quick = [plan_unit.cheapest(each, machine, budget) for each in layers]
    for bound in ("WIDEST", "LARGEST_HEIGHTS", "LOOKED_AT"):
        monkeypatch.setattr(plan_unit, bound, 10**9)
    for each, found in zip(layers, quick, strict=True):
        best = plan_unit.cheapest(each, machine, budget)
        assert found is not None and best is not None
        assert score(found, machine) <= 1.25 * score(best, machine)


def score(found, machine):
    return found.cycles + 0.2 * found.dram_bytes / machine.chip.dram.port_bytes_per_cycle


def test_passes_of_the_vector_unit_are_those_of_its_table():
    """A pool with an activation, a residual of integers, a conversion alone: what `durations` counts for each part."""
    unit = target("default").core.vector
    pooled = vector_layer(PoolLayer("max", (3, 3), (1, 1), (1, 1), False, (0, 0), (0, 0), Act("relu")), 2)
    added = vector_layer(BinaryLayer("add", scales=(Scale(0.5),) * 3), 1, maps=2)
    converted = vector_layer(UnaryLayer("identity", scales=(Scale(0.5), Scale(0.25))), 1)
    passes = [passes_of(each.steps, unit) for each in (pooled, added, converted)]
    assert passes == [10, 4, 2]
    resized = vector_layer(ResizeLayer("linear", "floor", (1.0, 1.0), (0.0, 0.0)), 2)
    assert resized.steps == (("resize_linear", 1),)


def vector_layer(kind, element_bytes, maps=1):
    dims, view = (1, 8, 8, 8), TensorView(0, (512, 64, 8, 1))
    operands = tuple(MapOperand(k, dims, view, SAME4, element_bytes=element_bytes) for k in range(maps))
    return Layer(kind, dims, view, operands, out_bytes=element_bytes)


@pytest.mark.parametrize("are_outputs_apart", [True, False])
def test_streamed_weights_come_in_runs_that_dram_takes_at_full_rate(are_outputs_apart):
    """A fully connected layer whose weights are far larger than WRAM: no run is shorter than DRAM's least one."""
    machine, size, outputs, inputs = load("edge"), 2, 4096, 9216
    accesses = ((SAME, Whole(inputs), SAME, SAME),)
    work = LayerWork(
        True, (1, outputs, 1, 1), accesses, (size,), size, channels=inputs, group_outputs=outputs, weight_bytes=size,
        are_outputs_apart=are_outputs_apart,
    )  # fmt: skip
    found = plan.plan_layer(work, machine, "stream", MAX_LOOPS)
    assert found is not None
    _, co, _, _ = found.map.extent
    dealt = machine.cluster.cores if found.map.cores == 1 else 1
    run = found.map.channels if are_outputs_apart else co * dealt
    assert run * size >= machine.memory("dram").minimum_run_bytes


def test_small_chunks_of_streamed_weights_wait_for_dram_in_units_of_several_passes():
    """Two copies: each is free again when it was asked for, has come, and has gone on to the cores."""
    machine, size, outputs, inputs, latency = load("default"), 2, 256, 2304, 2000
    machine = replace(
        machine, chip=replace(machine.chip, dram=replace(machine.memory("dram"), latency_cycles=latency))
    )
    accesses = ((SAME, Whole(inputs), SAME, SAME),)
    work = LayerWork(
        True, (1, outputs, 7, 14), accesses, (size,), size, channels=inputs, group_outputs=outputs, weight_bytes=size,
        has_images=True,
    )  # fmt: skip
    one, several = (
        plan.plan_layer(work, plan_unit.with_chunks(machine, 1 << 14), "stream", loops)
        for loops in (MAX_LOOPS, MAX_LOOPS - 1)
    )
    assert one is not None and several is not None
    chunk = several.stream_bytes // 2
    times, load_cycles = outputs * inputs * size / chunk, chunk / machine.memory("dram").port_bytes_per_cycle
    assert several.cycles >= times * (load_cycles + latency) / 2
    # In one pass chunks have more copies, and the latency is behind them.
    assert one.cycles < times * (load_cycles + latency) / 2


def weights_of_tokens(outputs, inputs, dram_latency):
    """The plan of a product of 128 tokens whose weights are streamed, on `default` with this latency of DRAM."""
    machine, size = load("default"), 2
    dram = replace(machine.memory("dram"), latency_cycles=dram_latency)
    machine = replace(machine, chip=replace(machine.chip, dram=dram))
    accesses = ((SAME, Whole(inputs), SAME, SAME),)
    work = LayerWork(
        True, (1, outputs, 1, 128), accesses, (size,), size, channels=inputs, group_outputs=outputs, weight_bytes=size
    )  # fmt: skip
    found = plan.plan_layer(work, machine, "stream", MAX_LOOPS)
    assert found is not None
    chunk = found.stream_bytes // 2
    return found, chunk / machine.memory("dram").port_bytes_per_cycle


def test_chunks_of_streamed_weights_are_small_where_the_cores_are_busy_and_as_long_as_dram_takes():
    """The result has two pieces in each core; what is done with the last chunk shows, and so does that DRAM has only so
    many transfers in flight."""
    found, cycles = weights_of_tokens(3072, 768, 200)
    assert found.map.extent[1] < 3072 // 4
    in_flight = load("default").transfers.in_flight
    assert 200 / (in_flight - 1) <= cycles < 1000
    _, longer = weights_of_tokens(3072, 768, 4000)
    assert longer >= 4000 / (in_flight - 1)
