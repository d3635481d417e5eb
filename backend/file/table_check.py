"""The address tables of an executable, looked at before anything runs: each is one, and its instructions can use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.isa.program import Conv, Node, Program, Repeat, TableLoad
from frustum.dialects.isa.tables.stored_table import StoredTable, TableError, check_use, find_table

Bytes = NDArray[np.uint8]


def check_tables(program: Program, weights: Sequence[tuple[int, Bytes]]) -> None:
    """TableError, naming the table or the layer, for a table that is none or is not that of an instruction which the
    text of the program says finds it in its entry."""
    held: dict[int, StoredTable] = {}
    known: dict[tuple[int, int], StoredTable] = {}
    checked: set[tuple[int, int]] = set()
    for node in _in_order(program.body):
        if isinstance(node, TableLoad):
            place = node.src_view.offset.base, node.bytes
            if place not in known:
                known[place] = find_table(weights, *place)
            held[node.entry] = known[place]
        elif isinstance(node, Conv) and node.table in held and (id(node), id(held[node.table])) not in checked:
            checked.add((id(node), id(held[node.table])))
            try:
                check_use(held[node.table], node)
            except TableError as error:
                layers = program.layers
                layer = f" of layer '{layers[node.layer]}'" if node.layer < len(layers) else ""
                raise TableError(f"address table in entry {node.table}{layer}: {error}") from error


def _in_order(body: Sequence[Node]) -> Iterator[Node]:
    """As the program has them; bodies of loops with tables twice, as their last tables are there for their first
    instructions."""
    for node in body:
        if isinstance(node, Repeat):
            inside = list(_in_order(node.body))
            yield from inside
            if any(isinstance(each, TableLoad) for each in inside):
                yield from inside
        else:
            yield node
