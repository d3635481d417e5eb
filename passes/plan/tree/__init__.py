"""Plans as trees: one evaluator, one search (docs/ir-plan.md)."""
