"""Policy `optimal`: which layers of a network share a unit, and in which shapes."""
