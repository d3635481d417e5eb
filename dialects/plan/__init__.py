"""Plans as trees of loops over named axes (docs/ir-plan.md)."""
