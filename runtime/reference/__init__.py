"""The two references: a network evaluated as a graph, and as tiles."""
