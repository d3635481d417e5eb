"""The red-blue pebble game on elements of small networks, by trying all: the least bytes that any schedule moves.

Independent of the compiler's facts: a network is taken apart into its elements here, sums into their partial sums.
Values have bytes, memory a capacity; they may be made again, and a result may take the place of an operand.
Source: Hong and Kung, I/O complexity: the red-blue pebble game, STOC 1981.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from frustum.dialects import graph as g
from frustum.passes.analysis.module import element_bytes


@dataclass
class Game:
    """Vertices by number: bytes, and what each can be made from (nothing: it lies in DRAM at the start)."""

    size: list[int] = field(default_factory=list)
    recipes: list[list[tuple[int, ...]]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def add(self, size, *recipes):
        self.size.append(size)
        self.recipes.append([tuple(dict.fromkeys(recipe)) for recipe in recipes])
        return len(self.size) - 1

    def needed(self):
        """Vertices that lead to an output."""
        found, waiting = set(), list(self.outputs)
        while waiting:
            v = waiting.pop()
            if v not in found:
                found.add(v)
                waiting += [u for recipe in self.recipes[v] for u in recipe]
        return found

    def compulsory(self):
        sources = sum(self.size[v] for v in self.needed() if not self.recipes[v])
        return sources + sum(self.size[v] for v in set(self.outputs))

    def smallest_memory(self):
        """In which some schedule exists: every vertex beside what it is made from."""
        return max(
            (min(sum(self.size[u] for u in recipe) for recipe in self.recipes[v]) + self.size[v]
             for v in self.needed() if self.recipes[v]), default=0,
        )  # fmt: skip

    def least(self, memory):
        """Bytes that are loaded and stored at least with so many bytes on chip; Dijkstra over what is on chip and what
        was stored."""
        play = sorted(self.needed())
        index = {v: k for k, v in enumerate(play)}
        size = [self.size[v] for v in play]
        made = [[[index[u] for u in recipe] for recipe in self.recipes[v]] for v in play]
        masks = [[sum(1 << u for u in recipe) for recipe in recipes] for recipes in made]
        wanted = sum(1 << index[v] for v in set(self.outputs))
        start = 0, sum(1 << k for k, recipes in enumerate(made) if not recipes)
        readers = [any(m >> k & 1 for each in masks for m in each) for k in range(len(play))]
        largest = max(size)
        best, waiting = {start: 0}, [(0, start)]
        while waiting:
            cost, (red, blue) = heapq.heappop(waiting)
            if cost > best[red, blue]:
                continue
            if blue & wanted == wanted:
                return cost
            used = sum(size[k] for k in range(len(play)) if red >> k & 1)
            for k, recipes in enumerate(zip(made, masks, strict=True)):
                if red >> k & 1:
                    found = leave(1 << k, size[k], red, blue, crowded=used + largest > memory)
                else:
                    is_load = blue >> k & 1 and readers[k] and used + size[k] <= memory
                    found = [(size[k], (red | 1 << k, blue))] if is_load else []
                    found += make(k, recipes, red, blue, size, memory - used)
                for more, state in found:
                    if cost + more < best.get(state, 1 << 60):
                        best[state] = cost + more
                        heapq.heappush(waiting, (cost + more, state))
        return None


def leave(bit, size, red, blue, crowded):
    """Drop a value where room may be short, or store it: what moves, and the state behind."""
    found = [(0, (red & ~bit, blue))] if crowded else []
    return found if blue & bit else [*found, (size, (red, blue | bit))]


def make(k, recipes, red, blue, size, room):
    """Make value k, beside what it is made from or in the place of one of that."""
    for recipe, mask in zip(*recipes, strict=True):
        if red & mask == mask:
            for dropped in (None, *recipe):
                freed, bit = (0, 0) if dropped is None else (size[dropped], 1 << dropped)
                if size[k] - freed <= room:
                    yield 0, ((red | 1 << k) & ~bit, blue)


def game_of(network):
    """The elements of a network, each function of elements a vertex, sums one after the other."""
    game, names = Game(), {}
    block = network.body.block

    def sources(value):
        shape = g.shape_of(value)
        names[value] = np.array([game.add(element_bytes(value)) for _ in range(math.prod(shape))]).reshape(shape)

    for arg in block.args:
        sources(arg)
    for op in block.ops:
        if isinstance(op, g.WeightOp):
            sources(op.results[0])
        elif not isinstance(op, g.OutputOp):
            names[op.results[0]] = elements(game, op, [names[x] for x in op.operands])
    game.outputs = sorted({int(v) for x in network.terminator.values for v in names[x].flat})
    return game


def chain(game, size, terms):
    """A sum of terms, each of which needs these vertices."""
    last = ()
    for term in terms:
        last = (game.add(size, (*last, *(int(v) for v in term))),)
    return last[0]


def elements(game, op, operands):
    """The vertices of the result, by its shape."""
    if isinstance(op, g.ReshapeOp):
        return operands[0].reshape(g.shape_of(op.result))
    if isinstance(op, g.TransposeOp):
        return operands[0].transpose(op.perm)
    made = np.empty(g.shape_of(op.results[0]), int)
    MAKERS[type(op)](game, op, operands, element_bytes(op.results[0]), made)
    return made


def each_alone(game, op, operands, size, made):
    needs = np.stack([x.ravel() for x in np.broadcast_arrays(*operands)], axis=1)
    made.flat = [game.add(size, tuple(map(int, row))) for row in needs]


def along_axes(game, op, operands, size, made):
    """One sum for each place of the other axes; of a softmax each element with its sum."""
    (x,) = operands
    axes = op.axes if isinstance(op, g.ReduceOp) else (op.axis,)
    for at in itertools.product(*([slice(None)] if k in axes else range(n) for k, n in enumerate(x.shape))):
        stat = chain(game, size, [(v,) for v in x[at].flat])
        made[at] = stat if isinstance(op, g.ReduceOp) else [game.add(size, (int(v), stat)) for v in x[at].flat]


def product(game, op, operands, size, made):
    a, b = operands[:2]
    for i, j in np.ndindex(made.shape):
        made[i, j] = chain(game, size, zip(a[i], b[:, j], strict=True))


def windows(game, op, operands, size, made):
    """Of maps of one column."""
    x, w = operands[:2]
    for n, m, h, c in np.ndindex(made.shape):
        rows = [(t, h * op.strides[0] - op.pads[0] + t) for t in range(w.shape[2])]
        inside = [(k, t, at) for k in range(w.shape[1]) for t, at in rows if 0 <= at < x.shape[2]]
        made[n, m, h, c] = chain(game, size, [(x[n, k, at, c], w[m, k, t, 0]) for k, t, at in inside])


def attention(game, op, operands, size, made):
    """Rows of q, k, v as one vertex each, in which that of its first element stands for all; a row of the result by
    the keys that it has seen, in any order.  The elements of a row are one value: they come and go together."""
    rows = []
    for x in operands[:3]:
        row = x.reshape(x.shape[-2], x.shape[-1])
        for line in row:
            game.size[line[0]] *= len(line)
        rows.append(row[:, 0])
    q, k, v = rows
    size *= made.shape[-1]
    for row, i in enumerate(q):
        seen = {}
        for count in range(1, len(k) + 1):
            for keys in itertools.combinations(range(len(k)), count):
                before = [(j, tuple(u for u in keys if u != j)) for j in keys]
                needs = [(int(i), int(k[j]), int(v[j]), *([seen[b]] if b else [])) for j, b in before]
                seen[keys] = game.add(size, *needs)
        made[:, row] = seen[tuple(range(len(k)))]


MAKERS = {
    g.UnaryOp: each_alone, g.BinaryOp: each_alone, g.SoftmaxOp: along_axes, g.ReduceOp: along_axes,
    g.MatmulOp: product, g.ConvOp: windows, g.AttentionOp: attention,
}  # fmt: skip
