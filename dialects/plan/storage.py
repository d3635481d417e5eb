"""Whether a tensor that takes the storage of another one overwrites what is still read (`resident T at U`)."""

from __future__ import annotations

from frustum.dialects.axes.network import Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.boxes import add, do_meet, subtract
from frustum.dialects.plan.check import Named, PlanError, title
from frustum.dialects.plan.tree import Compute, Sequence, nodes_in


class Overwritten:
    """The boxes of tensors that are gone, pass by pass."""

    taken: dict[Tensor, Tensor]

    def __init__(self, plan: Named) -> None:
        residents = [r for node in nodes_in(plan.plan) if isinstance(node, Sequence) for r in node.residents]
        self.taken = {plan.tensors[r.tensor]: plan.tensors[r.storage_of] for r in residents if r.storage_of}
        """Tensors, each with the one whose storage it takes."""
        self.gone: dict[Tensor, list[Box]] = {old: [] for old in self.taken.values()}
        self.made: dict[Tensor, list[Box]] = {new: [] for new in self.taken}
        """Of the takers the parts of the layer's axes: a sum that goes on reads no operand's position again."""

    def begin(self, tensor: Tensor, box: Box | None = None) -> None:
        """It is loaded or made anew; of one whose rows roll this box, and what stays of it stays overwritten."""
        if tensor not in self.gone:
            return
        self.gone[tensor] = [] if box is None else [
            piece for each in self.gone[tensor] for piece in subtract(each, [box])
        ]  # fmt: skip
        if box is None:
            self.made |= {new: [] for new, old in self.taken.items() if old is tensor}

    def computes(self, layer: Layer, span: Box, reads: list[tuple[Tensor, Box]], node: Compute) -> None:
        """PlanError where the layer reads what is gone; what its result overwrites goes."""
        old = self.taken.get(layer.result)
        for tensor, box in reads if self.gone else ():
            before = self.made[layer.result] if tensor is old else self.gone.get(tensor, [])
            if any(do_meet(span if tensor is old else box, other) for other in before):
                taker = next(new for new, own in self.taken.items() if own is tensor)
                raise PlanError(
                    f"{title(node)}: {layer.name} reads {tensor.name} where an earlier pass has put {taker.name}: "
                    "leave out 'at', or state both inside the loop",
                    node,
                )
        for tensor, box in reads if old is not None else ():
            if tensor is old:
                add(self.gone[old], box)
        if old is not None:
            add(self.made[layer.result], span)
