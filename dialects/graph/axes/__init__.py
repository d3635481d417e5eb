"""Every operation of the graph level as layers over named axes (docs/ir-graph.md, "Axes")."""

from frustum.dialects.graph.axes import products, recurrences, vectors, views  # noqa: F401  (their operations)
from frustum.dialects.graph.axes.reader import NEEDS_ALL, OPERATIONS, read_network, read_with_views

__all__ = ["NEEDS_ALL", "OPERATIONS", "read_network", "read_with_views"]
