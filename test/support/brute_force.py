"""The least DRAM bytes that a network can be planned with, by trying everything: a witness for policy `optimal`.

All cuts of a list of layers, all sets of maps that stay in SRAM between units, all tile shapes, borders and numbers of
streamed weights of every unit, each costed by itself with `project`, `footprint` and `traffic` (`evaluate`).  Nothing
of the search is used: no walk over groups, no states, no bounds; only what the options are (`shapes_of`, `shares_of`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

from frustum.dialects import graph as g
from frustum.dialects.tile import Axis
from frustum.dialects.unit import Partition
from frustum.passes.analysis.project import Unprojectable, project
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.cost import CutUnit, chunk_bytes
from frustum.passes.plan.model import MOST_RECOMPUTED
from frustum.passes.plan.network.kept import WHOLE, KeptMap, in_place, shares_of
from frustum.passes.plan.network.layer_order import order_of, orders
from frustum.passes.plan.network.needs import fewest_columns, raster_from
from frustum.passes.plan.network.tile_shapes import (
    BY_CHANNELS,
    BY_COLUMNS,
    BY_IMAGES,
    BY_ROWS,
    Mode,
    shapes_of,
)
from frustum.passes.plan.unit import Budget, evaluate, plan_beside, plan_kept, plan_unit, residencies
from frustum.runtime.reference.graph import network_of

NEVER = 1 << 60


def least_bytes(module, target, borders="auto", keep=True):
    """Over all orders of the layers; `NEVER` where some layer fits in no way."""
    return min(brute.least() for brute in brutes(module, target, borders, keep))


def brutes(module, target, borders="auto", keep=True):
    network = network_of(module)
    return [
        Brute(order_of(ops, network.terminator.values), target, borders, keep) for ops in orders(network)
    ]


@dataclass(frozen=True)
class Cut:
    """One way to cut a unit into tiles: SRAM bytes with all weights streamed in no bytes at all, and DRAM bytes with
    none streamed; passes over the tiles."""

    partition: Partition
    sram_bytes: int
    dram_bytes: int
    passes: int


class Interval:
    """Layers [first, stop) as a unit, with some maps in SRAM before."""

    def __init__(self, brute, first, stop, resident):
        self.brute, self.first, self.stop, self.resident = brute, first, stop, resident
        order = brute.order
        self.nodes = order.nodes[first:stop]
        self.layers = [n.layer for n in self.nodes]
        self.outputs = [k for k in range(first, stop) if brute.leaves(k, stop)]
        values = [order.nodes[k].op.results[0] for k in self.outputs]
        self.unit = layers_of(
            [n.op for n in self.nodes], values, {order.nodes[m].op.results[0] for m in resident}
        )
        self.weights = sorted((n.weight_bytes for n in self.nodes if n.weight_bytes), reverse=True)

    @cached_property
    def partitions(self):
        """All that the options allow, that project and that compute little again, with their projections."""
        found = {}
        for partition, is_whole in self.options():
            projection = self.projected(partition)
            if projection is None:
                continue
            if math.prod(projection.counts) == 1:
                partition = replace(partition, depth=1)
            if not self.is_connected and not is_whole:
                continue
            if self.is_little_again(projection):
                found[partition] = projection
        return found

    def options(self):
        layer, clusters = self.layers[-1], self.brute.target.chip.clusters
        whole = tuple(d for d in layer.axes_all if d != 1)
        dims, borders = layer.out_dims, self.brute.borders
        grains = self.brute.order.grains
        raster = raster_from(self.brute.order, self.stop, self.brute.target)
        fewest = fewest_columns(layer)
        shapes = shapes_of(
            dims, whole, borders, clusters, grains, raster=raster, fewest=fewest,
            in_slices=self.brute.order.has_slices,
        )  # fmt: skip
        for k in range(len(shapes.mode)):
            if shapes.dealt[k] == BY_IMAGES and not self.is_by_image:
                continue
            tile = tuple(int(x) for x in (shapes.images[k], dims[1], shapes.rows[k], shapes.columns[k]))
            kind = {Mode.ROLL: "exchange", Mode.RASTER: "raster"}.get(int(shapes.mode[k]), "overlap")
            is_whole = tile[2:] == dims[2:]
            shared = bool(shapes.shared[k])
            yield Partition(tile, int(shapes.dealt[k]), int(shapes.depth[k]), kind, shared=shared), is_whole
        if len(self.layers) == 1 and clusters > 1 and self.may_share_channels(layer, clusters):
            shapes = shapes_of(dims, whole, borders, 1, grains, fewest=fewest)
            for k in range(len(shapes.mode)):
                tile = (shapes.images[k], -(-dims[1] // clusters), shapes.rows[k], shapes.columns[k])
                kind = "exchange" if shapes.mode[k] == Mode.ROLL else "overlap"
                yield Partition(tuple(int(x) for x in tile), 1, int(shapes.depth[k]), kind), True

    def may_share_channels(self, layer, clusters):
        reads, maps = self.nodes[0].reads, self.brute.order.maps
        numbers = [r.map for r in reads]
        if len(set(numbers)) < len(numbers) or layer.out_dims[1] < clusters or 1 in layer.axes_all:
            return False
        if layer.kind.is_place or any(maps[m].is_constant for m in numbers):
            return False
        if layer.is_matrix:
            return layer.kind.groups == 1
        return all(m.access[1] == Axis() and m.dims[1] == layer.out_dims[1] for m in layer.maps)

    @cached_property
    def is_by_image(self):
        images = self.layers[-1].out_dims[0]
        return all(
            0 not in n.layer.axes_all and n.layer.out_dims[0] == images and all(r.by_image for r in n.reads)
            for n in self.nodes
        )

    @cached_property
    def is_connected(self):
        """All layers are parts of one graph whose edges are the maps that they read and make."""
        parts = []
        for k, node in enumerate(self.nodes, self.first):
            touched = {k, *(r.map for r in node.reads if not self.brute.order.maps[r.map].is_constant)}
            for part in [p for p in parts if p & touched]:
                parts.remove(part)
                touched |= part
            parts.append(touched)
        return len(parts) == 1

    def projected(self, partition):
        try:
            return project(self.unit, partition, self.brute.target.chip.clusters)
        except Unprojectable:
            return None

    def is_little_again(self, projection):
        """At most `MOST_RECOMPUTED` times the multiply-accumulates; counted tile by tile."""
        made = useful = 0
        for layer, region in zip(self.layers, projection.outputs, strict=True):
            if not layer.is_matrix:
                continue
            useful += layer.macs
            made += layer.macs * self.brute.elements(region, projection.counts, layer.out_dims)
        return made <= MOST_RECOMPUTED * useful

    def cuts(self, kept):
        """Partitions with what they cost while maps of the layers `kept` stay in SRAM, the cheapest first."""
        found = []
        inside = {k - self.first for k in kept}
        for partition, projection in self.partitions.items():
            none, held = residencies(self.unit, NEVER), residencies(self.unit)
            cut = CutUnit(self.unit, partition, projection, self.brute.target, inside)
            sram, moved = cut.footprint(none).total_bytes, cut.traffic(held)
            passes = projection.counts[0] * projection.counts[2] * projection.counts[3]
            found.append(Cut(partition, sram, moved, passes))
        return sorted(found, key=lambda cut: cut.dram_bytes)




class Brute:
    """All ways through one list of layers.  A map that stays is (number, form)."""

    def __init__(self, order, target, borders="auto", keep=True):
        self.order, self.target, self.borders = order, target, borders
        self.capacity = target.cluster.sram.capacity_bytes
        self.clusters = target.chip.clusters
        self.keep = keep and (self.clusters == 1 or target.cluster.cdma is not None)
        self.held = shares_of(order, self.clusters)
        self.intervals, self.by_kept, self.costs, self.rest = {}, {}, {}, {}

    def least(self, first=0, kept=frozenset()):
        """DRAM bytes of layers from `first` on, with maps `kept` in SRAM."""
        if first == len(self.order.nodes):
            return 0
        if (first, kept) not in self.rest:
            found = NEVER
            for stop, cost, stay in self.ways(first, kept):
                left = frozenset(m for m in kept | stay if self.order.maps[m[0]].last_use >= stop)
                found = min(found, cost + self.least(stop, left))
            self.rest[first, kept] = found
        return self.rest[first, kept]

    def best(self, first=0, kept=frozenset()):
        """One of the cheapest ways: (first, stop, bytes, maps that stay) of each unit."""
        if first == len(self.order.nodes):
            return []
        for stop, cost, stay in self.ways(first, kept):
            left = frozenset(m for m in kept | stay if self.order.maps[m[0]].last_use >= stop)
            if cost + self.least(stop, left) == self.least(first, kept):
                return [(first, stop, cost, sorted(stay)), *self.best(stop, left)]
        raise AssertionError("no way")

    # ------------------------------------------------------------ units

    def ways(self, first, kept):
        """(stop, DRAM bytes, maps that stay) of every unit that may come next."""
        yield from self.alone(first, kept)
        for stop in range(first + 1, len(self.order.nodes) + 1):
            if not self.is_unit(first, stop):
                continue
            read = {r.map for n in self.order.nodes[first:stop] for r in n.reads}
            resident = frozenset(m for m in kept if m[0] in read and self.joins(m[0], first, stop))
            if any(
                m[0] in read and m not in resident and not self.order.maps[m[0]].needs_dram for m in kept
            ):
                continue
            for stay in self.stays(first, stop):
                free = self.capacity - sum(self.held[m].bytes for m in kept | stay)
                cost = self.cost(first, stop, resident, stay, free)
                if cost < NEVER:
                    yield stop, cost, stay

    def alone(self, first, kept):
        """A move; a concatenation that is only a name; a layer as `plan_unit` cuts it when SRAM is empty."""
        node, maps = self.order.nodes[first], self.order.maps
        if node.layer is None:
            moved = 0 if self.is_row(first) else sum(r.bytes for r in node.reads) + maps[first].bytes
            yield first + 1, moved, frozenset()
        elif node.is_concat:
            here = {r.map for r in node.reads} & {m for m, _ in kept}
            if all(maps[m].needs_dram for m in here):
                yield first + 1, 0 if self.is_place(first) else 2 * maps[first].bytes, frozenset()
        else:
            yield from self.planned(first, kept)

    def planned(self, first, kept):
        """A layer as `plan_unit` cuts it, channels too, outermost and innermost; on one cluster also beside maps in
        SRAM that it reads or not, a product of which the result stays, and what takes the place of what it reads."""
        op, map_ = self.order.nodes[first].op, self.order.maps[first]
        read = {r.map for r in self.order.nodes[first].reads}
        found = {m for m, _ in kept} & read
        if not kept:
            unit = layers_of([op], [op.results[0]], ())
            for inside in (False, True):
                plan = plan_unit(unit, self.target, Budget(self.capacity, inside=inside))
                if plan is not None:
                    yield first + 1, plan.dram_bytes, frozenset()
        if self.clusters > 1 or not self.keep or not all(self.joins(m, first, first + 1) for m in found):
            return
        unit = layers_of([op], [op.results[0]], {self.order.nodes[m].op.results[0] for m in found})
        free = self.capacity - sum(self.held[m].bytes for m in kept)
        if kept and free > 0:
            plan = plan_beside(unit, self.target, free, chunk_bytes(self.capacity))
            if plan is not None:
                yield first + 1, plan.dram_bytes, frozenset()
        over, is_product = self.written_over(first, found), bool(self.order.nodes[first].weight_bytes)
        may_stay = self.is_read_behind(first, first + 1) and not map_.needs_dram
        if over or (may_stay and (is_product or self.works_in_place(first))):
            free += over - self.held[first, WHOLE].bytes
            may_be_there = isinstance(op, g.MatmulOp) or not is_product or not unit.inputs[0].resident
            plan = self.plan_that_stays(unit, free, is_product, bool(over)) if may_be_there and free > 0 else None
            if plan is not None:
                yield first + 1, plan.dram_bytes + map_.bytes * map_.needs_dram, frozenset({(first, WHOLE)})

    def plan_that_stays(self, unit, free, is_product, is_over):
        """Of a product: in rounds, or by channels where its operand is in SRAM, perhaps over what it adds; of another
        layer by channels, perhaps over what it works on."""
        if is_product and not unit.inputs[0].resident:
            return plan_kept(unit, self.target, free, in_place=is_over)
        return plan_beside(unit, self.target, free, chunk_bytes(self.capacity), {0})

    def written_over(self, first, found):
        """Bytes of the map in SRAM that a layer is the last to read, and element by element, or row by row: the result
        lies there."""
        op, maps = self.order.nodes[first].op, self.order.maps
        place = self.worked_on(op)
        for m in found:
            made = self.order.nodes[m].op.results[0]
            users = {use.operation for use in made.uses}
            reads = [x for x in op.operands if x is made]
            if made is place and len(reads) == 1 and made.type == op.results[0].type:
                is_last = maps[m].users[-1] == first and not any(isinstance(user, g.ConcatOp) for user in users)
                return self.held[m, WHOLE].bytes if is_last and not maps[m].is_output else 0
        return 0

    def worked_on(self, op):
        """The operand whose place a result may take: what a product adds, elements or rows."""
        match op:
            case g.MatmulOp() | g.ConvOp():
                return op.residual
            case g.UnaryOp() | g.SoftmaxOp() | g.NormaliseOp():
                return op.x
            case g.BinaryOp():
                alike = [x for x in (op.a, op.b) if x.type == op.result.type]
                return alike[-1] if alike else None
            case _:
                return None

    def works_in_place(self, first):
        """A norm or softmax, or a function of each element before a layer that needs all rows or columns."""
        op = self.order.nodes[first].op
        if isinstance(op, g.NormaliseOp | g.SoftmaxOp):
            return True
        readers = (r for k in self.order.maps[first].users for r in self.order.nodes[k].reads if r.map == first)
        axes = [(axis, size) for r in readers for axis, size in zip((r.rows, r.columns), r.dims[2:], strict=True)]
        is_whole = any(not isinstance(axis, Axis) and size > 1 for axis, size in axes)
        return isinstance(op, g.UnaryOp | g.BinaryOp) and is_whole and self.worked_on(op) is not None

    def is_row(self, number):
        """Layers make parts that lie one behind the other in memory."""
        op = self.order.nodes[number].op
        if not isinstance(op, g.ConcatOp) or math.prod(g.shape_of(op.result)[: op.axis]) > 1:
            return False
        makers = [self.order.maps[r.map].producer for r in self.order.nodes[number].reads]
        is_made = all(maker is not None and self.order.nodes[maker].layer is not None for maker in makers)
        others = [k for r in self.order.nodes[number].reads for k in self.order.maps[r.map].users if k != number]
        is_alone = not any(isinstance(self.order.nodes[k].op, g.ConcatOp) for k in others)
        return is_made and is_alone and self.is_place(number)

    def is_place(self, concat):
        """Layers make its parts for it alone."""
        parts = [r.map for r in self.order.nodes[concat].reads]
        maps = self.order.maps
        others = {k for m in parts for k in maps[m].users if k != concat and self.order.nodes[k].is_concat}
        is_made = all(maps[m].producer is not None and not maps[m].is_output for m in parts)
        return is_made and not others and len(set(parts)) == len(parts)

    def is_unit(self, first, stop):
        """Layers that can be together, in the forms in which they make and read maps."""
        nodes = self.order.nodes[first:stop]
        if any(n.layer is None or n.batched_weights for n in nodes) or (
            len(nodes) == 1 and nodes[0].is_concat
        ):
            return False
        if any(not r.joins and first <= r.map < stop for n in nodes for r in n.reads):
            return False
        concats = [n for n in nodes if n.is_concat]
        parts = [r.map for n in concats for r in n.reads]
        return len(parts) == len(set(parts))

    def leaves(self, k, stop):
        map_ = self.order.maps[k]
        return map_.is_output or map_.last_use >= stop or not map_.users or k == stop - 1

    def joins(self, number, first, stop):
        reads = [r for n in self.order.nodes[first:stop] for r in n.reads]
        return all(r.joins for r in reads if r.map == number)

    def stays(self, first, stop):
        """Sets of maps that may stay in SRAM behind a unit."""
        yield frozenset()
        if not self.keep:
            return
        nodes = self.order.nodes
        parts = {r.map for n in nodes[first:stop] if n.is_concat for r in n.reads}
        may = [k for k in range(first, stop) if self.leaves(k, stop) and k not in parts]
        may = [k for k in may if self.is_read_behind(k, stop)]
        dealt = (BY_IMAGES, BY_CHANNELS, BY_ROWS, BY_COLUMNS)
        forms = (WHOLE,) if self.clusters == 1 else (WHOLE, *dealt, *map(in_place, dealt))
        for size in range(1, len(may) + 1):
            for chosen in itertools.combinations(may, size):
                ways = (itertools.product({WHOLE, form}, repeat=size) for form in forms)
                for stay in {frozenset(zip(chosen, some, strict=True)) for each in ways for some in each}:
                    if stay <= self.held.keys():
                        yield stay

    def is_read_behind(self, number, stop):
        readers = [self.order.nodes[k] for k in self.order.maps[number].users if k >= stop]
        return any(r.joins for node in readers for r in node.reads if r.map == number)

    def interval(self, first, stop, resident):
        key = (first, stop, resident)
        if key not in self.intervals:
            self.intervals[key] = Interval(self, first, stop, resident)
        return self.intervals[key]

    def cuts(self, interval, kept):
        key = (interval.first, interval.stop, interval.resident, kept)
        if key not in self.by_kept:
            self.by_kept[key] = interval.cuts(kept)
        return self.by_kept[key]

    # ------------------------------------------------------------ what a unit costs

    def cost(self, first, stop, resident, stay, free):
        """The least bytes of all partitions and numbers of streamed weights that fit `free` bytes."""
        key = (first, stop, resident, stay, free)
        if key not in self.costs:
            self.costs[key] = self.found(first, stop, resident, stay, free)
        return self.costs[key]

    def found(self, first, stop, resident, stay, free):
        interval = self.interval(first, stop, frozenset(m for m, _ in resident))
        kept = frozenset(m for m, _ in stay)
        stored = sum(self.order.maps[m].bytes for m in kept if self.order.maps[m].needs_dram)
        local, best = {m - first for m in kept}, NEVER
        for cut in self.cuts(interval, kept):
            if cut.dram_bytes >= best or cut.sram_bytes > free:
                continue
            if not self.are_held(interval, cut.partition, resident, stay):
                continue
            for streamed in range(len(interval.weights) + 1):
                if cut.dram_bytes + (cut.passes - 1) * sum(interval.weights[:streamed]) >= best:
                    break
                made = evaluate(
                    interval.unit,
                    cut.partition,
                    streamed,
                    local,
                    self.target,
                    free,
                    chunk_bytes(self.capacity),
                )
                if made is not None:
                    best = min(best, made.dram_bytes)
                    break
        return best if best == NEVER else best + stored

    def are_held(self, interval, partition, resident, stay):
        """Every cluster makes, and needs, no more of a map than it holds of it."""
        if self.clusters == 1:
            return True
        projection = interval.partitions[partition]
        count = len(interval.unit.layers)
        for number, form in resident:
            value = self.order.nodes[number].op.results[0]
            for k, own in enumerate(interval.unit.inputs):
                if own.value == value and not self.is_within(
                    projection, projection.region_of(count + k), number, form
                ):
                    return False
        for number, form in stay:
            dealt = projection.counts[partition.clusters] if partition.clusters in (2, 3) else 1
            if form < 0 and (dealt > 1 or KeptMap(number, form).dimension == partition.clusters):
                return False
            if form < 0:
                continue  # it has room for all
            layer = number - interval.first
            for member in interval.unit.groups.get(layer, (layer,)):
                if not self.is_within(projection, projection.region_of(member), number, form):
                    return False
        return True

    def is_within(self, projection, region, number, form):
        """All boxes of a map on each cluster lie in its share, with the borders it holds."""
        d, box = KeptMap(number, form).dimension, self.held[number, form]
        if d is None:
            return True
        size = self.order.nodes[number].layer.out_dims[d]
        for cluster in range(self.clusters):
            low, high = cluster * box.share - box.before, (cluster + 1) * box.share + box.behind
            for start, stop in self.intervals_of(region, d, projection.counts, size, cluster):
                if start < stop and (start < max(low, 0) or stop > min(high, size)):
                    return False
        return True

    def intervals_of(self, region, d, counts, size, cluster):
        """[start, stop) of a region along one dimension, clipped to the map, for all tiles of a cluster."""
        start = region.start[d]
        loops = [start.loops[i] if i < len(start.loops) else 0 for i in range(4)]
        for index in itertools.product(
            *(range(c if loop else 1) for c, loop in zip(counts, loops, strict=True))
        ):
            at = start.base + cluster * start.cluster + sum(i * x for i, x in zip(index, loops, strict=True))
            yield max(at, 0), min(at + region.extent[d], size)

    def elements(self, region, counts, dims):
        """How often each element of a map is made, on average."""
        total = 0
        for cluster in range(self.clusters if any(s.cluster for s in region.start) else 1):
            share = 1.0
            for d in range(4):
                pieces = self.intervals_of(region, d, counts, dims[d], cluster)
                share *= sum(max(0, stop - start) for start, stop in pieces) / dims[d]
            total += share
        return total
