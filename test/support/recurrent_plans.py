"""Random plans of recurrent networks: one loop over the steps, computes and residents of any kind around it and inside,
loops over the batch. Many break a rule, which the check says."""

from itertools import pairwise

from frustum.dialects.axes.recurrence import recurrences_of
from frustum.dialects.plan.check import operands_of
from frustum.dialects.plan.tree import Compute, Halo, Loop, Over, Part, Resident, Sequence, layers_in, steps

HALOS = Halo.NONE, Halo.RECOMPUTED, Halo.ROLLING


class RecurrentPlans:
    """Of one network, by the numbers of a generator."""

    def __init__(self, rng, network):
        self.rng, self.network = rng, network
        self.layers = {layer.name: layer for layer in network.layers}
        axes = {axis.name: axis for layer in network.layers for axis in layer.axes}
        self.steps, self.batch = axes["x.0"], axes.get("x.1")

    def plan(self):
        """Layers before the first recurrence stand before its loop or inside, one after the last too."""
        rng, names = self.rng, list(self.layers)
        first = names.index(recurrences_of(self.network.layers)[0].layers[0].name)
        before, last = rng.randint(0, first), len(names) - (names[-1] == "y" and rng.randint(0, 1))
        body = self.computes(names[before:last])
        halo = rng.choice([Halo.ROLLING, *HALOS])
        loop = Loop(self.steps.name, steps(self.steps.extent, 1), self.sequence(body, 0.25), halo)
        if self.batch and rng.random() < 0.3:
            loop = self.over_batch(loop, over=rng.choice([Over.TIME, Over.CLUSTERS]))
        children = [*self.computes(names[:before]), loop, *self.computes(names[last:])]
        return self.sequence(children, 0.3)

    def computes(self, names):
        """These layers in up to three computes."""
        rng, count = self.rng, min(len(names), self.rng.randint(1, 3))
        cuts = sorted(rng.sample(range(1, len(names)), count - 1)) if count else []
        groups = [Compute(tuple(names[a:b])) for a, b in pairwise([0, *cuts, len(names)]) if a < b]
        return [self.over_batch(each) if self.batch and rng.random() < 0.3 else each for each in groups]

    def over_batch(self, node, over=Over.TIME):
        step, halo = self.rng.randint(1, self.batch.extent), self.rng.choice(HALOS) if not over else Halo.NONE
        return Loop(self.batch.name, steps(self.batch.extent, step), self.sequence([node], 0.2), halo, over)

    def sequence(self, children, share):
        """With so many of the tensors resident."""
        rng, found = self.rng, []
        for tensor in self.network.tensors:
            first = rng.randrange(len(children))
            last = rng.randrange(first, len(children))
            inside = [self.layers[name] for child in children[first : last + 1] for name in layers_in(child)]
            is_used = any(tensor is layer.result or tensor in operands_of(layer) for layer in inside)
            if is_used and rng.random() < share:
                found.append(Resident(tensor.name, first, last, self.part(tensor)))
        return Sequence(tuple(children), tuple(found))

    def part(self, tensor):
        axis = self.rng.choice(tensor.axes)
        is_part = self.rng.random() < 0.2
        return Part(axis.name, *sorted(self.rng.sample(range(axis.extent + 1), 2))) if is_part else None
